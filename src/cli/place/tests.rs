//! The findings about recorded environments.

use std::net::{IpAddr, Ipv4Addr};

use super::*;

const TOKEN: &str = "LOCKSTEP_TOKEN=0123456789abcdef0123456789abcdef";
const TWO: [&str; 3] = [TOKEN, "LOCKSTEP_PROCESS_INDEX=1", "LOCKSTEP_NUM_PROCESSES=2"];

/// Hosts that begin with `here` are this machine, `home` is loopback, `none` has no address, others
/// are elsewhere.
fn whereabouts(host: &str) -> io::Result<Whereabouts> {
    match host {
        "home" | "localhost" => Ok(Whereabouts::Here(IpAddr::from([127, 0, 1, 1]))),
        "none" => Err(io::Error::other("unknown name")),
        host if host.starts_with("here") => Ok(Whereabouts::Here(IpAddr::from([10, 0, 0, 1]))),
        _ => Ok(Whereabouts::Elsewhere(Ipv4Addr::new(192, 0, 2, 1).into())),
    }
}

/// `NAME=value`, and `@name=value` for attributes of the metadata server; on a machine with these
/// chips.
fn place(recorded: &[&str], wanted: &Wanted<'_>, chips: &str) -> OwnPlace {
    let look = |name: &str| {
        let mut pairs = recorded.iter().filter_map(|line| line.split_once('='));
        pairs.find(|(key, _)| *key == name).map(|(_, value)| value.to_owned())
    };
    let probe = Probe {
        variable: &look,
        names: &Vec::new,
        file: &|_| None,
        metadata: &|name| look(&format!("@{name}")),
    };
    let machine = Machine {
        has_gpus: chips.contains("gpu"),
        has_tpus: chips.contains("tpu"),
        whereabouts: &whereabouts,
    };
    examine(&probe, wanted, &machine)
}

fn on(backend: &Backend) -> Wanted<'_> {
    Wanted { backend: Some(backend), ..Wanted::default() }
}

/// The findings of `doctor`.
fn findings(recorded: &[&str]) -> Vec<Fault> {
    place(recorded, &Wanted::default(), "").findings
}

#[track_caller]
fn check(found: Vec<Fault>, weight: Weight, what: &str, change: &str) {
    let [one] = &found[..] else { panic!("{what}: {found:?}") };
    let is_it = one.what.contains(what) && one.change.contains(change);
    assert!(is_it && one.weight == weight, "{one:?}");
}

#[test]
fn a_place_without_fault_has_no_findings() {
    assert_eq!(findings(&["USER=me", TOKEN]), []);
    let at = |address: &'static str| [&TWO[..], &[address]].concat();
    assert_eq!(findings(&at("LOCKSTEP_COORDINATOR=a:1")), []);
    assert!(place(&at("LOCKSTEP_COORDINATOR=a:1"), &Wanted::default(), "").secret.is_some());
    let first = [TOKEN, "RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=here"];
    assert_eq!(findings(&first), []);
    let local = ["LOCAL_RANK=0", "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=home"];
    assert_eq!(findings(&[&first[..3], &local].concat()), []);
    // Told to be alone.
    assert_eq!(findings(&["LOCKSTEP_NUM_PROCESSES=1", "DSTACK_NODES_NUM=2"]), []);
}

#[test]
fn a_token_is_needed_by_several_processes() {
    let several = ["RANK=1", "WORLD_SIZE=2", "MASTER_ADDR=a"];
    let with = |token: &'static str| findings(&[&several[..], &[token]].concat());
    let missing = "one of 2 processes (WORLD_SIZE), which need a common token";
    check(with("USER=me"), Weight::Error, missing, "cluster.token_file");
    check(with("LOCKSTEP_TOKEN=hello"), Weight::Error, "LOCKSTEP_TOKEN does not hold", "openssl");
    check(with("LOCKSTEP_TOKEN=0123"), Weight::Error, "LOCKSTEP_TOKEN has only 2 bytes", "16");
    check(with("LOCKSTEP_TOKEN="), Weight::Error, "LOCKSTEP_TOKEN has only 0 bytes", "16");
    // A token that `launch` would refuse.
    check(findings(&["LOCKSTEP_TOKEN=hello"]), Weight::Note, "does not hold", "openssl");
    let path = Path::new("/no/such/token");
    let wanted = Wanted { token_file: Some(path), ..Wanted::default() };
    let found = place(&[&several[..], &[TOKEN]].concat(), &wanted, "").findings;
    check(found, Weight::Error, "cluster.token_file, /no/such/token cannot be read", "openssl");
}

#[test]
fn what_contradicts_is_a_finding_with_what_to_change() {
    let rows: [(&[&str], Weight, &str, &str); 6] = [
        (&["RANK=5"], Weight::Error, "but nothing says of how many", "set LOCKSTEP_NUM_PROCESSES"),
        (&["RANK=x", "WORLD_SIZE=2"], Weight::Error, "RANK is \"x\"", "correct it"),
        (&["RANK=1", "WORLD_SIZE=2"], Weight::Error, "where they meet", "host:port"),
        (
            &["RANK=1", "WORLD_SIZE=3", "MASTER_ADDR=a", "PMI_RANK=1", "PMI_SIZE=2"],
            Weight::Warning,
            "but PMI (PMI_RANK, PMI_SIZE) says process 1 of 2",
            "remove the variables",
        ),
        (
            &["RANK=1", "WORLD_SIZE=2", "MASTER_ADDR=[[::1]]"],
            Weight::Error,
            "MASTER_ADDR is \"[[::1]]\"",
            "correct it",
        ),
        (&["DSTACK_NODES_NUM=2"], Weight::Warning, "each process would train alone", "$DSTACK"),
    ];
    for (recorded, weight, what, change) in rows {
        check(findings(&[recorded, &[TOKEN]].concat()), weight, what, change);
    }
}

#[test]
fn a_supervisor_of_one_host_is_not_one_of_several() {
    let of = |recorded: &[&str]| {
        let look = |name: &str| {
            let mut pairs = recorded.iter().filter_map(|line| line.split_once('='));
            pairs.find(|(key, _)| *key == name).map(|(_, value)| value.to_owned())
        };
        let (names, file, metadata) = (&Vec::new, &|_: &Path| None, &|_: &str| None);
        ignored_hosts(&Probe { variable: &look, names, file, metadata })
    };
    let slurm = ["SLURM_PROCID=1", "SLURM_STEP_NUM_TASKS=2", "SLURM_STEP_NODELIST=a,b"];
    let said = of(&slurm).unwrap();
    assert!(said.starts_with("this is process 1 of 2 (SLURM_PROCID, SLURM_STEP"), "{said}");
    assert!(said.contains("--hosts 2 and --coordinator"), "{said}");
    let said = of(&["DSTACK_NODES_NUM=2"]).unwrap();
    assert!(said.starts_with("DSTACK_NODES_NUM (dstack) is 2, but --hosts is 1"), "{said}");
    assert_eq!(of(&["USER=me", "RANK=0", "WORLD_SIZE=1"]), None);
}

#[test]
fn process_0_is_where_the_others_look_for_it() {
    let first = [TOKEN, "RANK=0", "WORLD_SIZE=2", "MASTER_PORT=29517"];
    let at = |address: &'static str| findings(&[&first[..], &[address]].concat());
    let what = "192.0.2.1:29517 (from MASTER_ADDR, MASTER_PORT), which is no address of this host";
    check(at("MASTER_ADDR=192.0.2.1"), Weight::Warning, what, "start process 0");
    check(at("MASTER_ADDR=other"), Weight::Warning, "other:29517, which is 192.0.2.1", "set it");
    check(at("MASTER_ADDR=home"), Weight::Warning, "home (from", "/etc/hosts");
    check(at("MASTER_ADDR=none"), Weight::Note, "none (from", "correct its name");
    assert_eq!(at("MASTER_ADDR=localhost"), []);
    // The other processes are elsewhere, and a supervisor's worker does not run the coordinator.
    assert_eq!(findings(&[&TWO[..], &["LOCKSTEP_COORDINATOR=192.0.2.1:1"]].concat()), []);
    let worker = ["MASTER_ADDR=192.0.2.1", "LOCKSTEP_SUPERVISOR=7"];
    assert_eq!(findings(&[&first[..], &worker].concat()), []);
    let slurm = ["SLURM_PROCID=0", "SLURM_STEP_NUM_TASKS=2", "SLURM_STEP_NODELIST=localhost,b"];
    let found = findings(&[&slurm[..], &["SLURM_JOB_ID=1", TOKEN]].concat());
    check(
        found,
        Weight::Warning,
        "processes on other hosts cannot reach it",
        "LOCKSTEP_COORDINATOR",
    );
}

#[test]
fn chips_that_are_spoken_of_are_there() {
    let worker = [TOKEN, "TPU_WORKER_ID=1", "TPU_WORKER_HOSTNAMES=a,b"];
    let no_tpu = "TPU_WORKER_ID is 1, TPU_WORKER_HOSTNAMES is a,b, but this machine has no TPU";
    check(findings(&worker), Weight::Note, no_tpu, "google.com/tpu");
    let of =
        |backend: &Backend, recorded: &[&str], chips| place(recorded, &on(backend), chips).findings;
    check(of(&Backend::Tpu, &worker, "gpu"), Weight::Error, no_tpu, "google.com/tpu");
    assert_eq!(of(&Backend::Tpu, &worker, "tpu gpu"), []);
    check(findings(&["@accelerator-type=v5litepod-8"]), Weight::Note, "metadata server", "chips");
    let several = [&TWO[..], &["LOCKSTEP_COORDINATOR=a:1"]].concat();
    check(of(&Backend::Cuda, &several, "tpu"), Weight::Error, "the backend is cuda", "nvidia.com");
    // Alone, its plugin says so at once.
    assert_eq!(of(&Backend::Cuda, &[], ""), []);
    for gpus in ["CUDA_VISIBLE_DEVICES=0", "NVIDIA_VISIBLE_DEVICES=all", "SLURM_GPUS_ON_NODE=8"] {
        check(findings(&[gpus]), Weight::Note, "no GPU of NVIDIA's", "--gpus all");
        assert_eq!(place(&[gpus], &Wanted::default(), "gpu").findings, []);
    }
    for none in ["CUDA_VISIBLE_DEVICES=-1", "NVIDIA_VISIBLE_DEVICES=void", "SLURM_GPUS_ON_NODE=0"] {
        assert_eq!(findings(&[none]), []);
    }
}

#[test]
fn a_slice_has_the_hosts_of_its_type() {
    let slice = |kind: &'static str, hosts: &'static str, more: &[&'static str]| {
        let names = [TOKEN, "TPU_WORKER_ID=1", kind, hosts];
        place(&[&names, more].concat(), &on(&Backend::Tpu), "tpu gpu").findings
    };
    let kind = "TPU_ACCELERATOR_TYPE=v5litepod-16";
    let what = "TPU_ACCELERATOR_TYPE is v5litepod-16, a slice of 4 hosts, but TPU_WORKER_HOSTNAMES \
                names 2";
    let two = "TPU_WORKER_HOSTNAMES=a,b";
    check(slice(kind, two, &[]), Weight::Error, what, "name all hosts");
    let pool = "TPU_ACCELERATOR_TYPE=tpu-v5-lite-podslice";
    let found = slice(pool, two, &["TPU_TOPOLOGY=4x4"]);
    check(found, Weight::Error, "a slice of 4 hosts", "LOCKSTEP_NUM_PROCESSES");
    for (kind, hosts) in [
        (kind, "TPU_WORKER_HOSTNAMES=a,b,c,d"),
        ("TPU_ACCELERATOR_TYPE=v5litepod-8", two),
        ("TPU_ACCELERATOR_TYPE=v5p-16", two),
        ("TPU_ACCELERATOR_TYPE=of-another-maker", two),
        // Two processes on each of four hosts.
        (kind, "TPU_PROCESS_ADDRESSES=a:1,a:2,b:1,b:2,c:1,c:2,d:1,d:2"),
    ] {
        assert_eq!(slice(kind, hosts, &[]), [], "{kind} {hosts}");
    }
    // Given by hand, or of no interest on another backend.
    let explicit = ["LOCKSTEP_PROCESS_INDEX=1", "LOCKSTEP_NUM_PROCESSES=2"];
    check(slice(kind, two, &explicit), Weight::Note, what, "name all");
    let found = place(&[TOKEN, "TPU_WORKER_ID=1", kind, two], &on(&Backend::Cpu), "tpu gpu");
    check(found.findings, Weight::Note, what, "name all");
}
