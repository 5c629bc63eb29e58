//! The tables of chips: every chip compiles, with the memory that the table says, and the
//! documentation agrees.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use lockstep::targets::{CHIPS, Family, Target, gib};

use super::{BINARY, FEATURES, compile, config, lockstep};

const SMALL_MLP: &str = "name = \"mlp\"\nhidden = [64]";

/// Compiles a small step for a chip and returns the memory that programs may use, and that the
/// plugin describes. `plan` knows as much.
fn memory(dir: &Path, target: &str) -> (u64, u64) {
    let path = config(dir, SMALL_MLP, FEATURES, 8);
    let (code, report) = compile(&path, target, &[]);
    assert_eq!((code, &report["fits"]), (Some(0), &true.into()), "{target}: {report}");
    assert!(report["collectives"].as_array().is_some_and(|all| !all.is_empty()), "{report}");
    let [limit, described] = ["limit_bytes", "described_bytes"].map(|key| &report["memory"][key]);
    let done = lockstep(&["plan", path.to_str().unwrap(), "--target", target], &[]);
    let said = format!("of the {} that a program has on a device", gib(limit.as_u64().unwrap()));
    assert!(done.stdout.contains(&said), "{said}: {}", done.stdout);
    (limit.as_u64().unwrap(), described.as_u64().unwrap())
}

/// libtpu's limits are up to 4 % below the documented memory, and above it on v5p by less than 1 %.
#[test]
fn every_tpu_compiles_and_has_the_memory_of_the_table() {
    let dir = tempfile::tempdir().unwrap();
    for chip in CHIPS {
        let Family::Tpu(tpu) = &chip.family else { continue };
        let topology = if tpu.max_bounds.len() == 2 { "2x2" } else { "2x2x1" };
        let target = format!("tpu:{}:{topology}", chip.name);
        let (limit, described) = memory(dir.path(), &target);
        assert_eq!((limit, described), (tpu.usable_bytes, tpu.usable_bytes), "{target}");
        let share = limit as f64 / chip.memory_bytes as f64;
        assert!((0.95..1.01).contains(&share), "{target}: {share}");
    }
}

/// By default the plugin takes three quarters. Of each architecture the first chip; of the full set
/// all.
#[test]
fn every_gpu_compiles_with_the_limits_of_its_architecture() {
    let dir = tempfile::tempdir().unwrap();
    let mut architectures = vec![];
    for chip in CHIPS {
        let Family::Gpu(gpu) = &chip.family else { continue };
        let is_known = architectures.contains(&gpu.architecture.compute_capability);
        if is_known && std::env::var_os("LOCKSTEP_FULL").is_none() {
            continue;
        }
        architectures.push(gpu.architecture.compute_capability);
        let target = format!("gpu:{}:2x{}", chip.name, gpu.max_per_host.min(8));
        let (limit, described) = memory(dir.path(), &target);
        assert_eq!(described, chip.memory_bytes, "{target}");
        let share = limit as f64 / chip.memory_bytes as f64;
        assert!((share - 0.75).abs() < 1e-6, "{target}: {share}");
    }
}

/// The pages, the README and the examples, with their texts.
fn pages() -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let files = ["docs", "examples", "examples/cluster"].map(|dir| root.join(dir));
    let files = files.iter().flat_map(|dir| fs::read_dir(dir).unwrap()).map(|f| f.unwrap().path());
    let files = files.chain([root.join("README.md")]).filter(|path| path.is_file());
    files.map(|path| (path.clone(), fs::read_to_string(&path).unwrap())).collect()
}

/// The words of a command until a comment, a pipe, or the backtick that ends it.
fn words(line: &str) -> Vec<&str> {
    let command = line.split('`').next().unwrap();
    command.split_whitespace().take_while(|word| !word.starts_with(['#', '|'])).collect()
}

#[test]
fn the_targets_of_the_docs_exist() {
    let mut num_targets = 0;
    for (page, text) in pages() {
        for after in text.split("--target ").skip(1) {
            let Some(name) = words(after).first().copied() else { continue };
            // A command in general, `--target TARGET`.
            if name.chars().all(|c| c.is_ascii_uppercase()) {
                continue;
            }
            let target = name.parse::<Target>();
            assert!(target.is_ok(), "{}: {}", page.display(), target.unwrap_err());
            num_targets += 1;
        }
    }
    assert!(num_targets >= 8, "{num_targets}");
}

#[test]
fn the_schedules_of_the_docs_work() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut num_commands = 0;
    for (page, text) in pages() {
        let commands = text.replace("-- schedule ", "lockstep schedule ");
        for after in commands.split("lockstep schedule ").skip(1) {
            let args = words(after.lines().next().unwrap());
            // A command in general names no file: `lockstep schedule CONFIG --check`.
            if !args.iter().any(|arg| arg.ends_with(".toml")) {
                continue;
            }
            let done = Command::new(BINARY)
                .current_dir(root)
                .arg("schedule")
                .args(&args)
                .output()
                .unwrap();
            let stderr = String::from_utf8_lossy(&done.stderr);
            assert!(done.status.success(), "{}: {args:?}: {stderr}", page.display());
            num_commands += 1;
        }
    }
    assert!(num_commands >= 3, "{num_commands}");
}

/// The rows of a page's table that begin with a cell like this, as cells.
fn rows(page: &str, is_first: impl Fn(&str) -> bool) -> Vec<Vec<String>> {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(page)).unwrap();
    let rows = text.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"));
    let rows = rows.map(|row| row.split(" | ").map(str::to_owned).collect::<Vec<String>>());
    rows.filter(|row| is_first(&row[0])).collect()
}

#[test]
fn the_page_on_gpus_has_the_figures_of_the_table() {
    let number = |value: f64| format!("{}", (value * 10.0).round() / 10.0);
    let expected: Vec<Vec<String>> = CHIPS
        .iter()
        .filter_map(|chip| match &chip.family {
            Family::Gpu(gpu) => Some((chip, gpu)),
            Family::Tpu(_) => None,
        })
        .map(|(chip, gpu)| {
            vec![
                format!("`gpu:{}:HOSTSx{}`", chip.name, gpu.max_per_host),
                chip.title.to_owned(),
                number(chip.bf16_flops_per_sec / 1e12),
                number(chip.memory_bytes as f64 / 1e9),
                number(chip.memory_bytes_per_sec / 1e9),
                number(gpu.host_link_bytes_per_sec / 1e9),
                number(gpu.network_bytes_per_sec / 1e9),
            ]
        })
        .collect();
    let found = rows("docs/gpu.md", |cell| cell.starts_with("`gpu:"));
    let lines = |rows: &[Vec<String>]| {
        rows.iter().map(|row| format!("| {} |", row.join(" | "))).collect::<Vec<_>>().join("\n")
    };
    assert!(found == expected, "docs/gpu.md should have:\n{}", lines(&expected));
}

/// The largest type of one host has as many chips and devices as the page says, and the next one is
/// of several hosts.
#[test]
fn the_page_on_tpus_has_types_that_exist() {
    let rows = rows("docs/tpu.md", |cell| {
        CHIPS.iter().any(|chip| chip.family_name() == "tpu" && chip.title.contains(cell))
    });
    assert_eq!(rows.len(), 5);
    for row in rows {
        let types: Vec<&str> = row[1].split(", ").map(|name| name.trim_matches('`')).collect();
        let targets: Vec<Target> =
            types.iter().map(|name| format!("tpu:{name}").parse().unwrap()).collect();
        let largest = targets.last().unwrap();
        let Family::Tpu(tpu) = &largest.chip.family else { panic!("{largest}") };
        let devices: usize = row[3].parse().unwrap();
        assert_eq!(largest.num_devices(), devices, "{row:?}");
        let chips: usize = row[2].parse().unwrap();
        assert_eq!(chips * tpu.devices_per_chip, devices, "{row:?}");
        assert_eq!(row[5], format!("{} GiB", largest.chip.memory_bytes >> 30), "{row:?}");
    }
}
