//! Arrays of NumPy: what models see of them, and what is refused.

use std::fs;
use std::io::{Cursor, Write};
use std::path::Path;
use std::sync::Arc;

use lockstep::config::{ArraysConfig, DataConfig, LossConfig};
use lockstep::data::{ExampleKind, LabelKind, Purpose, Source, Splits, open_for};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

/// A `.npy` file.
fn npy(descr: &str, shape: &str, elements: &[u8]) -> Vec<u8> {
    ordered(descr, "False", shape, elements)
}

fn ordered(descr: &str, fortran_order: &str, shape: &str, elements: &[u8]) -> Vec<u8> {
    let text =
        format!("{{'descr': {descr}, 'fortran_order': {fortran_order}, 'shape': {shape}, }}\n");
    let mut file = b"\x93NUMPY\x01\x00".to_vec();
    file.extend((text.len() as u16).to_le_bytes());
    file.extend(text.as_bytes());
    file.extend(elements);
    file
}

fn f32s(shape: &str, values: &[f32]) -> Vec<u8> {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    npy("'<f4'", shape, &bytes)
}

fn i64s(shape: &str, values: &[i64]) -> Vec<u8> {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    npy("'<i8'", shape, &bytes)
}

fn npz(method: CompressionMethod, members: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let mut archive = ZipWriter::new(Cursor::new(vec![]));
    let options = SimpleFileOptions::default().compression_method(method);
    for (name, contents) in members {
        archive.start_file(*name, options).unwrap();
        archive.write_all(contents).unwrap();
    }
    archive.finish().unwrap().into_inner()
}

/// All examples are for training, and evaluated as well.
fn whole(path: &Path) -> ArraysConfig {
    let path = path.to_owned();
    ArraysConfig { eval_path: Some(path.clone()), path, ..ArraysConfig::default() }
}

fn open_as(
    config: &ArraysConfig,
    loss: LossConfig,
    examples: ExampleKind,
) -> Result<Splits, String> {
    let purpose = Purpose { seed: 3, loss, examples };
    open_for(&DataConfig::Arrays(config.clone()), purpose).map_err(|error| error.to_string())
}

fn open(config: &ArraysConfig) -> Result<Splits, String> {
    open_as(config, LossConfig::Auto, ExampleKind::Numbers)
}

/// The fields of an example.
fn read(source: &Arc<dyn Source>, example: u64) -> Vec<Vec<u8>> {
    let mut fields: Vec<_> =
        source.fields().iter().map(|field| vec![0; field.num_bytes()]).collect();
    let mut out: Vec<_> = fields.iter_mut().map(|field| &mut field[..]).collect();
    source.read(example, None, &mut out).unwrap();
    fields
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|four| f32::from_ne_bytes(four.try_into().unwrap())).collect()
}

fn ints(bytes: &[u8]) -> Vec<i32> {
    bytes.chunks_exact(4).map(|four| i32::from_ne_bytes(four.try_into().unwrap())).collect()
}

#[test]
fn folders_and_archives_have_the_same_examples() {
    let dir = tempfile::tempdir().unwrap();
    let x = f32s("(3, 2)", &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let y = i64s("(3,)", &[0, 2, 1]);
    let folder = dir.path().join("folder");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("x.npy"), &x).unwrap();
    fs::write(folder.join("y.npy"), &y).unwrap();
    let mut paths = vec![folder];
    for (name, method) in
        [("a.npz", CompressionMethod::Stored), ("b.npz", CompressionMethod::Deflated)]
    {
        let path = dir.path().join(name);
        fs::write(&path, npz(method, &[("x.npy", x.clone()), ("y.npy", y.clone())])).unwrap();
        paths.push(path);
    }
    for path in paths {
        let splits = open(&whole(&path)).unwrap();
        assert_eq!(splits.train.labels(), ["0", "1", "2"]);
        assert_eq!(splits.train.class_counts(), Some(vec![1, 1, 1]));
        let fields = read(&splits.train, 1);
        assert_eq!((floats(&fields[0]), ints(&fields[1])), (vec![3.0, 4.0], vec![2]));
    }
}

#[test]
fn images_have_their_channels_first_and_bytes_are_fractions() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.npz");
    let y = i64s("(2,)", &[0, 1]);
    let of = |shape: &str, count: usize| {
        let x = npy("'|u1'", shape, &(0..count).map(|at| at as u8).collect::<Vec<_>>());
        let members = [("x.npy", x), ("y.npy", y.clone())];
        fs::write(&path, npz(CompressionMethod::Stored, &members)).unwrap();
        let splits = open(&whole(&path)).unwrap();
        let values = floats(&read(&splits.train, 1)[0]);
        (splits.train.fields()[0].dims.clone(), values)
    };
    let (dims, values) = of("(2, 2, 2, 3)", 24);
    assert_eq!(dims, [3, 2, 2]);
    let expected: Vec<_> =
        [12u8, 15, 18, 21, 13, 16].map(|byte| (f64::from(byte) / 255.0) as f32).to_vec();
    assert_eq!(values[..6], expected[..]);
    assert_eq!(of("(2, 3, 2, 2)", 24).0, [3, 2, 2]);
    assert_eq!(of("(2, 4, 3)", 24).0, [1, 4, 3]);
}

#[test]
fn tokens_are_ids_with_labels_of_any_kind() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.npz");
    let x = i64s("(2, 4)", &[5, 6, 7, 8, 1, 2, 3, 4]);
    let write = |members: &[(&str, Vec<u8>)]| {
        fs::write(&path, npz(CompressionMethod::Stored, members)).unwrap();
    };
    write(&[("x.npy", x.clone())]);
    let next = open_as(&whole(&path), LossConfig::Auto, ExampleKind::Sequence).unwrap();
    let fields = read(&next.train, 0);
    assert_eq!([ints(&fields[0]), ints(&fields[1])], [[5, 6, 7], [6, 7, 8]]);
    write(&[("x.npy", x.clone()), ("y.npy", i64s("(2, 4)", &[6, 7, 8, 9, 2, 3, 4, 5]))]);
    let each = open_as(&whole(&path), LossConfig::Auto, ExampleKind::Sequence).unwrap();
    let fields = read(&each.train, 1);
    assert_eq!([ints(&fields[0]), ints(&fields[1])], [[1, 2, 3, 4], [2, 3, 4, 5]]);
    write(&[("x.npy", x), ("y.npy", i64s("(2,)", &[1, 0]))]);
    let text = open_as(&whole(&path), LossConfig::Auto, ExampleKind::Text).unwrap();
    let names: Vec<_> = text.train.fields().iter().map(|field| field.name).collect();
    assert_eq!(names, ["x", "segments", "mask", "y"]);
    assert_eq!(
        read(&text.train, 1).iter().map(|field| ints(field)).collect::<Vec<_>>(),
        [vec![1, 2, 3, 4], vec![0; 4], vec![1; 4], vec![0],]
    );
}

#[test]
fn labels_are_what_the_loss_takes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.npz");
    let kind = |y: Vec<u8>, loss| {
        let x = f32s("(4, 1)", &[1.0, 2.0, 3.0, 4.0]);
        fs::write(&path, npz(CompressionMethod::Stored, &[("x.npy", x), ("y.npy", y)])).unwrap();
        let splits = open_as(&whole(&path), loss, ExampleKind::Numbers);
        splits.map(|splits| (splits.train.label_kind(), splits.train.num_outputs()))
    };
    let whole_numbers = || i64s("(4,)", &[0, 3, 0, 1]);
    assert_eq!(kind(whole_numbers(), LossConfig::Auto), Ok((LabelKind::Class, 4)));
    let (values, _) = kind(whole_numbers(), LossConfig::Mse).unwrap();
    // NumPy 2.5: mean and standard deviation of 0, 3, 0, 1.
    let LabelKind::Values(scales) = values else { panic!("{values:?}") };
    assert!((scales[0].mean - 1.0).abs() < 1e-12);
    assert!((scales[0].deviation - 1.224_744_871_391_589).abs() < 1e-12);
    let floats = || f32s("(4,)", &[0.5, 1.0, 2.0, 0.0]);
    assert!(matches!(kind(floats(), LossConfig::Auto), Ok((LabelKind::Values(_), 1))));
    let error = kind(floats(), LossConfig::CrossEntropy).unwrap_err();
    assert!(error.contains("the label of example 0 is 0.5"), "{error}");
    let two = || f32s("(4, 2)", &[0.0, 1.0, 1.0, 1.0, 0.0, 0.0, 1.0, 0.0]);
    assert_eq!(kind(two(), LossConfig::Auto), Ok((LabelKind::Labels, 2)));
    assert!(matches!(kind(two(), LossConfig::Huber), Ok((LabelKind::Values(_), 2))));
    let error = kind(two(), LossConfig::CrossEntropy).unwrap_err();
    assert!(error.contains("takes one class"), "{error}");
}

#[test]
fn a_share_of_each_class_is_held_out() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.npz");
    let x: Vec<f32> = (0..60).map(|at| at as f32).collect();
    let y: Vec<i64> = (0..60).map(|at| i64::from(at % 3 == 0)).collect();
    let members = [("x.npy", f32s("(60, 1)", &x)), ("y.npy", i64s("(60,)", &y))];
    fs::write(&path, npz(CompressionMethod::Stored, &members)).unwrap();
    let config = ArraysConfig { eval_path: None, eval_fraction: Some(0.2), ..whole(&path) };
    let splits = open(&config).unwrap();
    assert_eq!(splits.eval.class_counts(), Some(vec![8, 4]));
    let mut all = vec![];
    for source in [&splits.train, &splits.eval] {
        let count = source.num_examples();
        all.extend((0..count).map(|example| floats(&read(source, example)[0])[0] as usize));
    }
    all.sort_unstable();
    assert_eq!(all, (0..60).collect::<Vec<_>>());
}

#[test]
fn bad_arrays_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.npz");
    let x = || f32s("(2, 2)", &[1.0, 2.0, 3.0, 4.0]);
    let y = || i64s("(2,)", &[0, 1]);
    let bytes = |count: usize| vec![0u8; count];
    let huge = [1.0f64.to_le_bytes(), 1e300f64.to_le_bytes()].concat();
    let cases: Vec<(Vec<u8>, Vec<u8>, &str)> = vec![
        (npy("'>f4'", "(2, 2)", &bytes(16)), y(), "big-endian"),
        (npy("'|O'", "(2, 2)", &bytes(16)), y(), "object array is a pickle"),
        (npy("'<U3'", "(2, 2)", &bytes(48)), y(), "its dtype is \"<U3\""),
        (npy("[('a', '<f4'), ('b', '<f4')]", "(2,)", &bytes(16)), y(), "structures"),
        (npy("'<c8'", "(2, 2)", &bytes(32)), y(), "its dtype"),
        (ordered("'<f4'", "True", "(2, 2)", &bytes(16)), y(), "Fortran order"),
        (npy("'<f4'", "(2, 3)", &bytes(16)), y(), "takes 24 bytes"),
        (npy("'<f4'", "(2, 1)", &bytes(16)), y(), "takes 8 bytes, but it has 16"),
        (npy("'<f4'", "(9999999999, 9999999999)", &bytes(16)), y(), "too many bytes"),
        (npy("'<f4'", "()", &bytes(4)), y(), "single number"),
        (npy("'<f4'", "(0, 2)", &[]), y(), "no element"),
        (npy("'<f4'", "(2, 0)", &[]), y(), "no element"),
        (f32s("(2, 2)", &[1.0, f32::NAN, 3.0, 4.0]), y(), "example 0 has NaN at [1]"),
        (f32s("(2, 2)", &[1.0, 2.0, f32::INFINITY, 4.0]), y(), "example 1 has inf at [0]"),
        (npy("'<f8'", "(2, 1)", &huge), y(), "example 1 has 1000"),
        (b"not an array".to_vec(), y(), "no .npy file"),
        (b"\x93NUMPY\x01\x00\xff\xff{".to_vec(), y(), "ends within its header"),
        (x(), i64s("(3,)", &[0, 1, 0]), "has 2 examples, but there are 3 labels"),
        (x(), i64s("(2,)", &[0, 0]), "all examples have the same class"),
        (x(), i64s("(2,)", &[0, -1]), "the label of example 1 is -1"),
        (x(), i64s("(2,)", &[0, 1_000_000]), "too many classes"),
        (x(), f32s("(2,)", &[0.0, f32::NAN]), "the label of example 1 is NaN"),
        (x(), i64s("(2, 1, 2)", &[0, 1, 0, 1]), "labels of shape [1, 2]"),
    ];
    for (x, y, expected) in cases {
        for method in [CompressionMethod::Stored, CompressionMethod::Deflated] {
            let members = [("x.npy", x.clone()), ("y.npy", y.clone())];
            fs::write(&path, npz(method, &members)).unwrap();
            // Inputs are looked at where a run begins, not where it is planned.
            let error = open(&whole(&path))
                .and_then(|splits| splits.train.check(&|_| ()).map_err(|error| error.to_string()));
            let error = error.err().unwrap_or_else(|| panic!("{expected}: none"));
            assert!(error.contains(expected), "{expected}: {error}");
            assert!(error.contains("a.npz"), "{expected}: {error}");
        }
    }
}

#[test]
fn bad_archives_and_names_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.npz");
    let x = f32s("(2, 2)", &[1.0, 2.0, 3.0, 4.0]);
    let whole_file = npz(CompressionMethod::Stored, &[("x.npy", x.clone())]);
    for (contents, expected) in [
        (vec![], "not a whole .npz file"),
        (b"PK\x03\x04".to_vec(), "not a whole .npz file"),
        (whole_file[..whole_file.len() / 2].to_vec(), "not a whole .npz file"),
        (whole_file, "there is no array \"y\"; it has [\"x\"]"),
        (npz(CompressionMethod::Stored, &[("readme", vec![])]), "there is no array \"x\""),
    ] {
        fs::write(&path, contents).unwrap();
        let error = open(&whole(&path)).err().unwrap();
        assert!(error.contains(expected) && error.contains("a.npz"), "{expected}: {error}");
    }
    // A header that promises more than the archive has unpacks nothing.
    let bomb = npy("'|u1'", "(2, 1099511627776)", &vec![0; 1 << 20]);
    let members = [("x.npy", bomb), ("y.npy", i64s("(2,)", &[0, 1]))];
    fs::write(&path, npz(CompressionMethod::Deflated, &members)).unwrap();
    assert!(open(&whole(&path)).err().unwrap().contains("write it again"));

    for (name, expected) in
        [("a.txt", "neither an .npy or .npz file nor a folder"), ("missing.npz", "missing.npz")]
    {
        let path = dir.path().join(name);
        if name == "a.txt" {
            fs::write(&path, "x").unwrap();
        }
        let error = open(&whole(&path)).err().unwrap();
        assert!(error.contains(expected), "{expected}: {error}");
    }
    for (tokens, expected) in [
        (x, "the model takes tokens; save whole numbers"),
        (i64s("(2, 2)", &[1, 2, 3, -4]), "example 1 has the token -4"),
        (i64s("(2, 2)", &[1, 2, 3, i64::MAX]), "ids of tokens are from 0"),
        (i64s("(2, 1)", &[1, 2]), "an example has one token"),
        (i64s("(2, 1, 2)", &[1, 2, 3, 4]), "the model takes tokens [positions]"),
    ] {
        fs::write(&path, npz(CompressionMethod::Stored, &[("x.npy", tokens)])).unwrap();
        let splits = open_as(&whole(&path), LossConfig::Auto, ExampleKind::Sequence);
        let error = splits.err().unwrap_or_else(|| panic!("{expected}: none"));
        assert!(error.contains(expected), "{expected}: {error}");
    }
}
