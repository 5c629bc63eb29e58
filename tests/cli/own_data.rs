//! A user's own numbers and images: trained on, evaluated, predicted from files and from stdin.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::{BINARY, TIMEOUT, file, install_plugin, lockstep, text, train_args};

const REST: &str = "[train]\nglobal_batch = 16\nepochs = 30\n[optimizer]\nname = \"adamw\"\n\
                    [schedule]\nname = \"constant\"\npeak = 1e-2\n[mesh]\ndata = 2\n";

fn config(dir: &Path, data: &str) -> std::path::PathBuf {
    let model = "[model]\nname = \"mlp\"\nhidden = [16]\n";
    file(dir, "config.toml", format!("{model}[data]\n{data}\n{REST}").as_bytes())
}

fn lines(stdout: &str) -> Vec<Value> {
    stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A number between -1 and 1 that looks random.
fn noise(index: usize) -> f64 {
    ((index as f64 * 12.9898).sin() * 43_758.547).fract()
}

/// The floats at the end of a `.npy` file.
fn floats(path: &Path, count: usize) -> Vec<f32> {
    let bytes = fs::read(path).unwrap();
    assert!(bytes.starts_with(b"\x93NUMPY"));
    let tail = &bytes[bytes.len() - 4 * count..];
    tail.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect()
}

fn predict_stdin(run: &Path, stdin: &[u8]) -> String {
    install_plugin();
    let mut command = assert_cmd::Command::new(BINARY);
    let command = command.args(["predict", text(run), "-"]).write_stdin(stdin).timeout(TIMEOUT);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn classes_of_a_table() {
    let dir = tempfile::tempdir().unwrap();
    let rows: String = (0..90)
        .map(|row| {
            let kind = ["low", "mid", "top"][row % 3];
            format!("{},{kind},{}\n", (row % 3) as f64 * 2.0 + noise(row), noise(row + 500))
        })
        .collect();
    let table = file(dir.path(), "a.csv", format!("size,kind,other\n{rows}").as_bytes());
    let data = "source = \"table\"\npath = \"a.csv\"\neval_path = \"a.csv\"\ntarget = \"kind\"";
    let config = config(dir.path(), data);
    let shown = lockstep(&["data", text(&config)]).succeeded().stdout;
    for expected in ["training    90 examples", "x           f32[2]", "  other  ", "  mid  "] {
        assert!(shown.contains(expected), "{expected}: {shown}");
    }
    let shown = lockstep(&["data", text(&config), "--json", "--examples", "1"]).succeeded().json();
    assert_eq!(shown["training"]["class_counts"], serde_json::json!([30, 30, 30]));
    assert_eq!(shown["examples"][0]["y"], "low");
    let out = dir.path().join("run");
    let balanced = ["--set", "train.class_weights=balanced"];
    lockstep(&[&["train", text(&config), "--out", text(&out)], &balanced[..]].concat()).succeeded();
    let evaluated = lockstep(&["evaluate", text(&out), "--json"]).succeeded().json();
    let accuracy = evaluated["eval_accuracy"].as_f64().unwrap();
    assert!(accuracy > 0.9, "{evaluated}");

    // The figures of the evaluation are those of the predictions.
    let predicted = lockstep(&["predict", text(&out), text(&table)]).succeeded().stdout;
    let predicted = lines(&predicted);
    let right = |(row, line): (usize, &Value)| line["label"] == ["low", "mid", "top"][row % 3];
    let num_right = predicted.iter().enumerate().filter(|found| right(*found)).count();
    assert!((num_right as f64 / 90.0 - accuracy).abs() < 1e-6, "{num_right} {accuracy}");
    let confusion: u64 = (0..3).map(|k| evaluated["confusion"][k][k].as_u64().unwrap()).sum();
    assert_eq!(confusion, num_right as u64, "{evaluated}");

    // Only the columns of the features are needed, in any order; as files, lines or an array.
    let rows = b"other,size\n0.5,0.1\n-0.5,4.2\n";
    let other = file(dir.path(), "b.csv", rows);
    let of_file = lockstep(&["predict", text(&out), text(&other)]).succeeded().stdout;
    assert_eq!(predict_stdin(&out, rows), of_file);
    let jsonl = b"{\"size\":0.1,\"other\":0.5}\n{\"size\":4.2,\"other\":-0.5}\n";
    assert_eq!(predict_stdin(&out, jsonl), of_file);
    let labels: Vec<_> = lines(&of_file).iter().map(|line| line["label"].clone()).collect();
    assert_eq!(labels, ["low", "top"]);
    let to = |name: &str| {
        let path = dir.path().join(name);
        lockstep(&["predict", text(&out), text(&other), "--to", text(&path)]).succeeded();
        path
    };
    let csv = fs::read_to_string(to("c.csv")).unwrap();
    assert!(csv.starts_with("row,label,low,mid,top\n1,low,"), "{csv}");
    let shares = floats(&to("c.npy"), 6);
    for (row, line) in lines(&of_file).iter().enumerate() {
        for (class, name) in ["low", "mid", "top"].iter().enumerate() {
            let share = line["probabilities"][name].as_f64().unwrap();
            assert!((f64::from(shares[row * 3 + class]) - share).abs() < 1e-6, "{csv}");
        }
    }
    for (name, contents, expected) in [
        ("d.csv", "size\n1\n", "there is no column \"other\""),
        ("d.csv", "size,other\n1,x\n", "line 2: column \"other\": \"x\" is no number"),
        ("d.txt", "size,other\n1,2\n", "its name must end in"),
    ] {
        let path = file(dir.path(), name, contents.as_bytes());
        let outcome = lockstep(&["predict", text(&out), text(&path)]);
        assert_eq!(outcome.code, Some(1));
        assert!(outcome.stderr.contains(expected), "{}", outcome.stderr);
    }
}

#[test]
fn values_of_a_table() {
    let dir = tempfile::tempdir().unwrap();
    let value = |row: usize| 100.0 + 20.0 * noise(row) - 5.0 * noise(row + 300);
    let rows: String = (0..120)
        .map(|row| format!("{},{},{}\n", noise(row), noise(row + 300), value(row)))
        .collect();
    let table = file(dir.path(), "a.csv", format!("a,b,y\n{rows}").as_bytes());
    let data = "source = \"table\"\npath = \"a.csv\"\neval_path = \"a.csv\"\ntarget = \"y\"";
    let config = config(dir.path(), data);
    let out = dir.path().join("run");
    let train = ["train", text(&config), "--out", text(&out), "--set", "train.loss=huber"];
    lockstep(&train).succeeded();
    let evaluated = lockstep(&["evaluate", text(&out), "--json"]).succeeded().json();
    let predicted = lockstep(&["predict", text(&out), text(&table)]).succeeded().stdout;
    let errors: Vec<f64> = lines(&predicted)
        .iter()
        .enumerate()
        .map(|(row, line)| line["value"].as_f64().unwrap() - value(row))
        .collect();
    let mean = |values: &mut dyn Iterator<Item = f64>| values.sum::<f64>() / 120.0;
    let mse = mean(&mut errors.iter().map(|error| error * error));
    let average = mean(&mut (0..120).map(value));
    let variance = mean(&mut (0..120).map(|row| (value(row) - average).powi(2)));
    for (name, expected) in [
        ("eval_rmse", mse.sqrt()),
        ("eval_mae", mean(&mut errors.iter().map(|error| error.abs()))),
        ("eval_r2", 1.0 - mse / variance),
    ] {
        let found = evaluated[name].as_f64().unwrap();
        assert!((found - expected).abs() < 1e-5 * expected, "{name}: {found} {expected}");
    }
    assert!(evaluated["eval_r2"].as_f64().unwrap() > 0.95, "{evaluated}");
}

#[test]
fn arrays_of_numpy() {
    let dir = tempfile::tempdir().unwrap();
    let npy = |shape: &str, descr: &str, bytes: Vec<u8>| {
        let text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n");
        let length = (text.len() as u16).to_le_bytes();
        [b"\x93NUMPY\x01\x00", &length[..], text.as_bytes(), &bytes].concat()
    };
    let data = dir.path().join("arrays");
    fs::create_dir(&data).unwrap();
    let pixels: Vec<u8> = (0..80 * 4)
        .map(|at| if (at / 4) % 2 == usize::from(at % 4 < 2) { 200 } else { 30 + (at % 40) as u8 })
        .collect();
    let labels: Vec<u8> = (0..80i64).flat_map(|at| (at % 2).to_le_bytes()).collect();
    let x = npy("(80, 2, 2)", "|u1", pixels);
    file(&data, "x.npy", &x);
    file(&data, "y.npy", &npy("(80,)", "<i8", labels));
    let config = config(dir.path(), "source = \"arrays\"\npath = \"arrays\"");
    let out = dir.path().join("run");
    lockstep(&["train", text(&config), "--out", text(&out)]).succeeded();
    let predicted = lockstep(&["predict", text(&out), text(&data.join("x.npy"))]).succeeded();
    for (row, line) in lines(&predicted.stdout).iter().enumerate() {
        assert_eq!(line["label"], (row % 2).to_string(), "{line}");
    }
    assert_eq!(predict_stdin(&out, &x), predicted.stdout);
    let wrong = file(dir.path(), "wrong.npy", &npy("(2, 3, 2)", "|u1", vec![0; 12]));
    let outcome = lockstep(&["predict", text(&out), text(&wrong)]);
    assert_eq!(outcome.code, Some(1), "{}", outcome.stdout);
    assert!(outcome.stderr.contains("the model's is f32[16, 6]"), "{}", outcome.stderr);
}

/// Models of the other sources take arrays in the units of their files.
#[test]
fn arrays_for_a_model_of_digits() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("run");
    lockstep(&train_args(&["train.epochs=10"], &["--out", text(&out)])).succeeded();
    let zipped =
        fs::File::open(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/data/digits.csv.gz"));
    let rows = std::io::read_to_string(flate2::read::GzDecoder::new(zipped.unwrap())).unwrap();
    let rows: Vec<Vec<f32>> = rows
        .lines()
        .filter_map(|line| line.split(',').map(|cell| cell.parse().ok()).collect())
        .take(50)
        .collect();
    let text_of =
        format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, 64), }}\n", rows.len());
    let mut npy = b"\x93NUMPY\x01\x00".to_vec();
    npy.extend((text_of.len() as u16).to_le_bytes());
    npy.extend(text_of.as_bytes());
    let pixels = rows.iter().flat_map(|row| &row[..64]);
    npy.extend(pixels.flat_map(|pixel| pixel.to_le_bytes()));
    let input = file(dir.path(), "x.npy", &npy);
    let predicted = lockstep(&["predict", text(&out), text(&input)]).succeeded().stdout;
    let right = lines(&predicted)
        .iter()
        .zip(&rows)
        .filter(|(line, row)| line["label"].as_str() == Some(&*(row[64] as i64).to_string()))
        .count();
    assert!(right >= 48, "{right} of 50");
}

#[test]
fn images_of_a_folder() {
    let dir = tempfile::tempdir().unwrap();
    let png = |bright: bool, number: u8| {
        let mut bytes = vec![];
        let mut encoder = png::Encoder::new(&mut bytes, 8, 8);
        encoder.set_color(png::ColorType::Rgb);
        let mut writer = encoder.write_header().unwrap();
        writer.write_image_data(&[if bright { 200 } else { 20 } + number; 192]).unwrap();
        writer.finish().unwrap();
        bytes
    };
    for (class, bright) in [("bright", true), ("dark", false)] {
        let folder = dir.path().join("images").join(class);
        fs::create_dir_all(&folder).unwrap();
        for number in 0..20 {
            file(&folder, &format!("{number:02}.png"), &png(bright, number));
        }
    }
    let data = "source = \"image_folder\"\npath = \"images\"\nimage_size = 8\naugment = false";
    let config = config(dir.path(), data);
    let out = dir.path().join("run");
    lockstep(&["train", text(&config), "--out", text(&out)]).succeeded();
    let new = dir.path().join("new");
    fs::create_dir(&new).unwrap();
    let [a, b] =
        [("a.png", true), ("b.png", false)].map(|(name, bright)| file(&new, name, &png(bright, 5)));
    let all = lines(&lockstep(&["predict", text(&out), text(&new)]).succeeded().stdout);
    for (line, (path, label)) in all.iter().zip([(&a, "bright"), (&b, "dark")]) {
        assert!(line["file"] == text(path) && line["label"] == label, "{line}");
    }
    assert_eq!(all.len(), 2);
    let one = lines(&lockstep(&["predict", text(&out), text(&b)]).succeeded().stdout);
    assert_eq!(one, all[1..]);
    let broken = file(dir.path(), "c.png", b"\x89PNG");
    let outcome = lockstep(&["predict", text(&out), text(&broken)]);
    assert!(outcome.code == Some(1) && outcome.stderr.contains("c.png"), "{}", outcome.stderr);
}

#[test]
fn a_configuration_to_begin_with() {
    let dir = tempfile::tempdir().unwrap();
    let rows: String =
        (0..60).map(|row| format!("{},{}\n", noise(row), ["a", "b"][row % 2])).collect();
    let table = file(dir.path(), "rows.csv", format!("x,kind\n{rows}").as_bytes());
    let init = |args: &[&str]| lockstep(&[&["init"][..], args].concat());
    let written = dir.path().join("tabular.toml");
    let outcome = init(&["tabular", "--data", text(&table)]).succeeded();
    assert!(outcome.stderr.contains("54 examples for training, 6"), "{}", outcome.stderr);
    assert!(outcome.stdout.starts_with("lockstep data "), "{}", outcome.stdout);
    let contents = fs::read_to_string(&written).unwrap();
    assert!(contents.contains("path = \"rows.csv\"\ntarget = \"kind\""), "{contents}");
    lockstep(&["data", text(&written)]).succeeded();
    lockstep(&[
        "train",
        text(&written),
        "--set",
        "train.epochs=2",
        "--set",
        "schedule.warmup=none",
    ])
    .succeeded();
    // As tables are: with a column that only tells rows apart, empty cells, and `\r\n`.
    let rows: String = (0..60)
        .map(|row| {
            let size = if row % 20 == 7 { String::new() } else { noise(row).to_string() };
            format!("c{row},{row},{size},{}\r\n", ["a", "b"][row % 2])
        })
        .collect();
    let real = file(dir.path(), "real.csv", format!("code,row_id,size,kind\r\n{rows}").as_bytes());
    let to = dir.path().join("real.toml");
    let outcome = init(&["tabular", "--data", text(&real), "--to", text(&to)]).succeeded();
    for expected in [
        "code has another word in each row, row_id has another whole number in each row",
        "the mean of the column is taken for 3 empty cells in size",
        "it predicts 2 classes: a, b",
    ] {
        assert!(outcome.stderr.contains(expected), "{expected}: {}", outcome.stderr);
    }
    let shown = lockstep(&["data", text(&to)]).succeeded().stdout;
    assert!(shown.contains("f32[1]") && shown.contains("3 empty cells in size"), "{shown}");
    for (args, expected) in [
        (vec!["tabular", "--data", text(&table)], "exists; choose another name"),
        (vec!["tabular", "--data", "/nowhere.csv"], "there is no /nowhere.csv"),
        (
            vec!["tabular", "--data", text(&table), "--overwrite", "--target", "kinds"],
            "there is no column \"kinds\"; the file has x, kind",
        ),
        (vec!["images", "--data", text(&table)], "is not a folder"),
        (vec!["hugging-face", "--data", text(&table), "--to", text(&table)], "exists"),
    ] {
        let outcome = init(&args);
        assert_eq!(outcome.code, Some(1), "{args:?}");
        assert!(outcome.stderr.contains(expected), "{expected}: {}", outcome.stderr);
    }
    assert_eq!(fs::read_to_string(&written).unwrap(), contents);
    for kind in ["arrays", "images", "text-classification", "language-model", "resnet-imagenet"] {
        let path = dir.path().join(kind);
        init(&[kind, "--to", text(&path)]).succeeded();
        let contents = fs::read_to_string(path).unwrap();
        contents.parse::<toml::Table>().unwrap_or_else(|error| panic!("{error}: {contents}"));
    }
}
