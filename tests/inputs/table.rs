//! Tables: numbers and words in any format, what the training rows teach, and what is refused.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use flate2::Compression;
use flate2::write::GzEncoder;
use lockstep::config::{ColumnNames, DataConfig, LossConfig, MissingValues, Patterns, TableConfig};
use lockstep::data::{LabelKind, Purpose, Source, Splits, open_for};

const ROWS: &str =
    "age,city,rent,kind\n20,rome,1.5,b\n30,oslo,2.5,a\n40,rome,3.5,b\n50,bonn,0.5,a\n";

fn patterns(patterns: &[&str]) -> Patterns {
    Patterns::new(patterns.iter().copied()).unwrap()
}

fn write(dir: &Path, name: &str, contents: impl AsRef<[u8]>) -> PathBuf {
    let path = dir.join(name);
    fs::write(&path, contents).unwrap();
    path
}

/// All rows are training rows, and the same are evaluated.
fn whole(path: &Path, target: &str) -> TableConfig {
    TableConfig {
        path: path.to_owned(),
        eval_path: Some(path.to_owned()),
        target: ColumnNames(vec![target.to_owned()]),
        ..TableConfig::default()
    }
}

fn open(config: &TableConfig, loss: LossConfig) -> Result<Splits, String> {
    let purpose = Purpose { seed: 5, loss, ..Purpose::default() };
    open_for(&DataConfig::Table(config.clone()), purpose).map_err(|error| error.to_string())
}

/// What the model sees of an example, and its label as bytes.
fn read(source: &Arc<dyn Source>, example: u64) -> (Vec<f32>, Vec<u8>) {
    let [x, y] = source.fields() else { panic!("{:?}", source.fields()) };
    let (mut x, mut y) = (vec![0; x.num_bytes()], vec![0; y.num_bytes()]);
    source.read(example, None, &mut [&mut x, &mut y]).unwrap();
    (x.chunks_exact(4).map(|x| f32::from_ne_bytes(x.try_into().unwrap())).collect(), y)
}

#[test]
fn numbers_are_scaled_and_words_are_categories() {
    let dir = tempfile::tempdir().unwrap();
    let path = write(dir.path(), "a.csv", ROWS);
    let splits = open(&whole(&path, "kind"), LossConfig::Auto).unwrap();
    assert_eq!(splits.train.labels(), ["a", "b"]);
    assert_eq!(splits.train.class_counts(), Some(vec![2, 2]));
    // NumPy 2.5: (x - x.mean()) / x.std() of ages, rents; cities are bonn, oslo, rome.
    let scaled = |value: f64| value as f32;
    let expected = [
        (vec![scaled(-1.341_640_786_499_874), 0.0, 0.0, 1.0, scaled(-0.447_213_595_499_958)], 1i32),
        (vec![scaled(-0.447_213_595_499_958), 0.0, 1.0, 0.0, scaled(0.447_213_595_499_958)], 0),
    ];
    for (example, (x, class)) in (0..).zip(expected) {
        assert_eq!(read(&splits.train, example), (x, class.to_ne_bytes().to_vec()));
    }
}

#[test]
fn every_format_has_the_same_rows() {
    let dir = tempfile::tempdir().unwrap();
    let rows: Vec<Vec<&str>> = ROWS.lines().map(|line| line.split(',').collect()).collect();
    let joined = |with: &str| rows.iter().map(|row| row.join(with) + "\n").collect::<String>();
    let jsonl: String = rows[1..]
        .iter()
        .map(|row| {
            let [age, city, rent, kind] = row[..] else { panic!("{row:?}") };
            format!("{{\"age\":{age},\"city\":\"{city}\",\"rent\":{rent},\"kind\":\"{kind}\"}}\n")
        })
        .collect();
    let mut gzip = GzEncoder::new(vec![], Compression::fast());
    gzip.write_all(ROWS.as_bytes()).unwrap();
    let quoted = ROWS.replace("rome", "\"rome\"").replace('\n', "\r\n");
    let paths = [
        write(dir.path(), "a.csv", ROWS),
        write(dir.path(), "semicolon.csv", joined(";")),
        write(dir.path(), "a.tsv", joined("\t")),
        write(dir.path(), "a.jsonl", jsonl),
        write(dir.path(), "a.csv.gz", gzip.finish().unwrap()),
        write(dir.path(), "b.csv", format!("\u{feff}{quoted}")),
    ];
    let fingerprints = paths.map(|path| {
        // The columns of JSON have no order.
        let features = patterns(&["age", "city", "rent"]);
        let config = TableConfig { features, ..whole(&path, "kind") };
        let splits = open(&config, LossConfig::Auto).unwrap();
        (0..4).map(|example| read(&splits.train, example).0.iter().sum::<f32>()).collect::<Vec<_>>()
    });
    for sums in &fingerprints {
        for (sum, first) in sums.iter().zip(&fingerprints[0]) {
            assert!((sum - first).abs() < 1e-6, "{fingerprints:?}");
        }
    }
}

#[test]
fn targets_are_what_the_loss_takes() {
    let dir = tempfile::tempdir().unwrap();
    let path = write(dir.path(), "a.csv", "x,n,v,p,q\n1,3,0.5,0,1\n2,8,1.5,1,1\n3,3,2.5,1,0\n");
    let kind = |targets: &[&str], loss| {
        let names = targets.iter().map(|name| name.to_string()).collect();
        let config = TableConfig { target: ColumnNames(names), ..whole(&path, "n") };
        open(&config, loss).map(|splits| (splits.train.label_kind(), splits.train.num_outputs()))
    };
    assert_eq!(kind(&["n"], LossConfig::Auto), Ok((LabelKind::Class, 2)));
    let (values, num_outputs) = kind(&["n"], LossConfig::Mse).unwrap();
    assert!(
        matches!(values, LabelKind::Values(scales) if (scales[0].mean - 14.0 / 3.0).abs() < 1e-12)
    );
    assert_eq!(num_outputs, 1);
    assert!(matches!(kind(&["v"], LossConfig::Auto), Ok((LabelKind::Values(_), 1))));
    assert_eq!(kind(&["p", "q"], LossConfig::Auto), Ok((LabelKind::Labels, 2)));
    assert!(matches!(kind(&["v", "q"], LossConfig::Auto), Ok((LabelKind::Values(_), 2))));
    let error = kind(&["v"], LossConfig::BinaryCrossEntropy).unwrap_err();
    assert!(error.contains("line 2: column \"v\": each label"), "{error}");
    let error = kind(&["p", "q"], LossConfig::CrossEntropy).unwrap_err();
    assert!(error.contains("takes one class"), "{error}");
}

#[test]
fn held_out_rows_teach_nothing_and_every_row_is_somewhere() {
    let dir = tempfile::tempdir().unwrap();
    let rows: String = (0..200).map(|row| format!("{row},{}\n", row % 2)).collect();
    let path = write(dir.path(), "a.csv", format!("x,y\n{rows}"));
    let config = TableConfig { eval_path: None, eval_fraction: Some(0.25), ..whole(&path, "y") };
    let splits = open(&config, LossConfig::Auto).unwrap();
    assert_eq!((splits.train.num_examples(), splits.eval.num_examples()), (150, 50));
    assert_eq!(splits.eval.class_counts(), Some(vec![25, 25]));
    let mut learned = DataConfig::Table(config.clone());
    splits.train.write_learned(&mut learned);
    let DataConfig::Table(learned) = learned else { panic!("{learned:?}") };
    let (mean, deviation) =
        (learned.columns[0].mean.unwrap(), learned.columns[0].deviation.unwrap());
    let value = |source, example| {
        (f64::from(read(source, example).0[0]) * deviation + mean).round() as usize
    };
    let train: Vec<_> = (0..150).map(|example| value(&splits.train, example)).collect();
    let held_out: Vec<_> = (0..50).map(|example| value(&splits.eval, example)).collect();
    let train_mean = train.iter().sum::<usize>() as f64 / 150.0;
    assert!((train_mean - mean).abs() < 1e-12, "{train_mean} {mean}");
    let mut all = [train, held_out].concat();
    all.sort_unstable();
    assert_eq!(all, (0..200).collect::<Vec<_>>());
    // The same from the configuration that a run writes down.
    let again = open(&learned, LossConfig::Auto).unwrap();
    assert_eq!(again.eval.fingerprint().unwrap(), splits.eval.fingerprint().unwrap());
}

#[test]
fn empty_cells_are_refused_or_filled() {
    let dir = tempfile::tempdir().unwrap();
    let path = write(dir.path(), "a.csv", "x,c,y\n1,a,0\n,b,1\n3,NA,0\n");
    let config = whole(&path, "y");
    let error = open(&config, LossConfig::Auto).err().unwrap();
    assert!(error.contains("line 3: column \"x\": the cell is empty"), "{error}");
    let config = TableConfig { missing: MissingValues::Mean, ..config };
    let splits = open(&config, LossConfig::Auto).unwrap();
    assert_eq!(read(&splits.train, 1).0, [0.0, 0.0, 1.0]);
    assert_eq!(read(&splits.train, 2).0[1..], [0.0, 0.0]);
    let config = TableConfig { standardize: false, ..config };
    assert_eq!(read(&open(&config, LossConfig::Auto).unwrap().train, 1).0, [2.0, 0.0, 1.0]);
}

#[test]
fn bad_tables_are_named_by_line_and_column() {
    let dir = tempfile::tempdir().unwrap();
    let long = format!("x,y\n1,0\n{},1\n", "9".repeat(1 << 25));
    let many: String = (0..1500).map(|row| format!("n{row},{}\n", row % 2)).collect();
    let cases: Vec<(&str, Vec<u8>, &str)> = vec![
        ("a.csv", b"".to_vec(), "it is empty"),
        ("a.csv", b"x,y\n".to_vec(), "it has no rows"),
        ("a.csv", b"x,x,y\n1,2,0\n".to_vec(), "two columns are named \"x\""),
        ("a.csv", b"x,,y\n1,2,0\n".to_vec(), "column 2 has no name"),
        ("a.csv", b"1,2\n3,4\n".to_vec(), "the names of the columns are numbers"),
        ("a.csv", b"x,z\n1,0\n".to_vec(), "there is no column \"y\""),
        ("a.csv", b"y\n1\n2\n".to_vec(), "no column is left but the target"),
        ("a.csv", b"x,y\n1,0\n2\n".to_vec(), "line 3: 1 column, but a row has 2"),
        ("a.csv", b"x,y\n1,0\n2,1,3\n".to_vec(), "line 3: 3 columns, but a row has 2"),
        ("a.csv", b"x,y\n1,0\ninf,1\n".to_vec(), "line 3: column \"x\": inf is not finite"),
        ("a.csv", b"x,y\n1,0\n1e300,1\n".to_vec(), "line 3: column \"x\": 1e300 is beyond"),
        ("a.csv", b"x,y\n1,0.5\n2,1e300\n".to_vec(), "line 3: column \"y\": the target is inf"),
        ("a.csv", b"x,y\n1,0\n2,1\nhi,0\n".to_vec(), "line 4: column \"x\": \"hi\" is no number"),
        ("a.csv", b"x,y\na,0\nb,1\n3,0\n".to_vec(), "line 4: column \"x\": \"3\" is a number"),
        ("a.csv", b"x,y\n1,0\n2,\n".to_vec(), "line 3: column \"y\": the target is empty"),
        ("a.csv", b"x,y\n1,0\n2,0\n".to_vec(), "all rows have the same target"),
        ("a.csv", b"x,y\n1,0\n\"2,1\n".to_vec(), "line 3: a double quote is opened"),
        ("a.csv", b"x,y\n1,0\n\xff,1\n".to_vec(), "line 3: column \"x\" is not UTF-8"),
        ("a.csv", b"x,\xff\n1,0\n".to_vec(), "line 1: the names of the columns are not UTF-8"),
        ("a.csv", b"\xff\xfex\0,\0y\0\n\0".to_vec(), "UTF-16"),
        ("a.csv", long.into_bytes(), "line 3: the row is longer than 16 MiB"),
        ("a.csv", format!("x,y\n{many}").into_bytes(), "more than 1000 different names"),
        ("a.csv.gz", b"x,y\n1,0\n".to_vec(), "cannot read the data file"),
        ("a.jsonl", b"[1]\n".to_vec(), "line 1: column 0: not a JSON object"),
        ("a.jsonl", b"{\"x\":1,\"y\":0}\n{\"x\":[1],\"y\":1}\n".to_vec(), "line 2: column \"x\""),
        ("a.jsonl", b"{\"x\":1,\"y\":0}\n{\"y\":1}\n".to_vec(), "line 2: column \"x\": the cell"),
        ("a.jsonl", b"{\"x\":1,\"y\":0}\n{\"x\":1e999,\"y\":1}\n".to_vec(), "line 2"),
        ("a.jsonl", b"\n\n".to_vec(), "it is empty"),
        ("a.xlsx", b"x,y\n".to_vec(), "its name must end in"),
        ("a.parquet", b"PAR1".to_vec(), "not a whole Parquet file"),
        ("a.parquet", b"PAR1\0\0\0\0\xff\xff\xff\x7fPAR1".to_vec(), "not a whole Parquet file"),
    ];
    for (name, contents, expected) in cases {
        let path = write(dir.path(), name, &contents);
        let error = open(&whole(&path, "y"), LossConfig::Auto).err();
        let error = error.unwrap_or_else(|| panic!("{expected}: no error"));
        assert!(error.contains(expected), "{expected}: {error}");
        assert!(error.contains(name), "{error}");
    }
    let path = write(dir.path(), "a.csv", "x,y\n1,0\n2,1\n");
    let features = TableConfig { features: patterns(&["z*"]), ..whole(&path, "y") };
    let error = open(&features, LossConfig::Auto).err().unwrap();
    assert!(error.contains("data.features: no column matches \"z*\""), "{error}");
    let features = TableConfig { features: patterns(&["x", "y"]), ..whole(&path, "y") };
    let error = open(&features, LossConfig::Auto).err().unwrap();
    assert!(error.contains("names the target"), "{error}");
}

/// Excel and Python's `csv` write `\r\n`.
#[test]
fn lines_are_counted_alike_with_any_line_ends() {
    let dir = tempfile::tempdir().unwrap();
    for contents in ["x,y\n1,0\n\n2,1\nhi,0\n", "x,y\n\"a\nb\",0\n2,1\n3,\n", "x,y\n1,0\n2,NA\n"] {
        let problem = |contents: &str| {
            let path = write(dir.path(), "a.csv", contents);
            let error = open(&whole(&path, "y"), LossConfig::Auto).err().unwrap();
            let at = error.find(" line ").unwrap();
            error[at..].to_owned()
        };
        assert_eq!(problem(&contents.replace('\n', "\r\n")), problem(contents));
    }
}

#[test]
fn columns_are_excluded_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let rows: String = (0..1500).map(|row| format!("c{row},{},{}\n", row % 7, row % 2)).collect();
    let path = write(dir.path(), "a.csv", format!("id,x,y\n{rows}"));
    let config = whole(&path, "y");
    let error = open(&config, LossConfig::Auto).err().unwrap();
    assert!(error.contains("set data.exclude = [\"id\"]"), "{error}");
    let exclude = |name: &str| TableConfig { exclude: patterns(&[name]), ..config.clone() };
    let splits = open(&exclude("i*"), LossConfig::Auto).unwrap();
    assert_eq!(splits.train.fields()[0].dims, [1]);
    let error = open(&exclude("ids"), LossConfig::Auto).err().unwrap();
    assert!(error.contains("data.exclude: no column matches \"ids\""), "{error}");
}
