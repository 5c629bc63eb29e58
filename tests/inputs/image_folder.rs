//! Folders of images: the pixels that are read, on any number of replicas, and the handling of
//! broken files.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use lockstep::config::{self, OnBroken};
use lockstep::data::{
    EvalBatches, HostBatch, ImageFolder, Purpose, Source, Splits, TrainBatches, open_for,
};

/// A test image: colours change along rows and columns, so that all parts of it differ.
fn pixels(width: usize, height: usize, number: usize) -> Vec<u8> {
    let pixel = |place: usize| {
        let (row, column) = (place / width, place % width);
        [column * 255 / width, row * 255 / height, (number * 40) % 256]
    };
    (0..width * height).flat_map(pixel).map(|value| value as u8).collect()
}

fn jpeg(width: usize, height: usize, number: usize) -> Vec<u8> {
    let mut bytes = vec![];
    jpeg_encoder::Encoder::new(&mut bytes, 95)
        .encode(
            &pixels(width, height, number),
            width as u16,
            height as u16,
            jpeg_encoder::ColorType::Rgb,
        )
        .unwrap();
    bytes
}

fn png(width: usize, height: usize, number: usize) -> Vec<u8> {
    let mut bytes = vec![];
    let mut encoder = png::Encoder::new(&mut bytes, width as u32, height as u32);
    encoder.set_color(png::ColorType::Rgb);
    encoder.write_header().unwrap().write_image_data(&pixels(width, height, number)).unwrap();
    bytes
}

/// Three classes of four images each, in the order of `names`: `ant`, `bee`, `cat`.
fn write_folder(root: &Path) {
    for (label, class) in ["cat", "ant", "bee"].into_iter().enumerate() {
        let folder = root.join(class);
        fs::create_dir_all(folder.join("more")).unwrap();
        let number = 4 * label;
        fs::write(folder.join("a.jpg"), jpeg(48, 40, number)).unwrap();
        fs::write(folder.join("b.JPEG"), jpeg(40, 60, number + 1)).unwrap();
        // Decoded by content, not by name.
        fs::write(folder.join("c.jpg"), png(50, 50, number + 2)).unwrap();
        fs::write(folder.join("more/d.png"), png(64, 33, number + 3)).unwrap();
        fs::write(folder.join("notes.txt"), "no image").unwrap();
    }
}

fn config(path: &Path) -> config::ImageFolderConfig {
    config::ImageFolderConfig {
        path: path.to_owned(),
        eval_path: None,
        eval_fraction: Some(0.25),
        image_size: 28,
        eval_resize: None,
        augment: true,
        on_broken: OnBroken::Stop,
        num_examples: None,
    }
}

fn open_folder(config: config::ImageFolderConfig) -> Result<Splits, String> {
    open_for(&config::DataConfig::ImageFolder(config), Purpose { seed: 5, ..Purpose::default() })
        .map_err(|error| error.to_string())
}

fn error_of(config: config::ImageFolderConfig) -> String {
    open_folder(config).err().expect("an error")
}

fn read(source: &Arc<dyn Source>, id: u64, epoch: Option<u64>) -> Result<(Vec<f32>, i32), String> {
    let (mut x, mut y) = (vec![0f32; 3 * 28 * 28], [0]);
    let mut out = [bytemuck::cast_slice_mut(&mut x), bytemuck::cast_slice_mut(&mut y)];
    source.read(id, epoch, &mut out).map_err(|error| error.to_string())?;
    Ok((x, y[0]))
}

fn whole(batch: &HostBatch, field: &str) -> Vec<f64> {
    batch.fields[field].iter().flat_map(|literal| literal.to_f64()).collect()
}

#[test]
fn classes_are_sorted_and_part_of_each_is_held_out() {
    let dir = tempfile::tempdir().unwrap();
    write_folder(dir.path());
    let splits = open_folder(config(dir.path())).unwrap();
    assert_eq!((splits.train.num_examples(), splits.eval.num_examples()), (9, 3));
    assert_eq!(splits.train.num_outputs(), 3);
    assert_eq!(splits.train.fields()[0].dims, [3, 28, 28]);
    let labels: Vec<_> = (0..9).map(|id| read(&splits.train, id, None).unwrap().1).collect();
    assert_eq!(labels, [0, 0, 0, 1, 1, 1, 2, 2, 2]);
    // A folder for evaluation has the labels of the classes in the training folder.
    let val = tempfile::tempdir().unwrap();
    fs::create_dir(val.path().join("bee")).unwrap();
    fs::write(val.path().join("bee/x.png"), png(30, 30, 0)).unwrap();
    let with_val = config::ImageFolderConfig {
        eval_path: Some(val.path().to_owned()),
        eval_fraction: None,
        ..config(dir.path())
    };
    let splits = open_folder(with_val.clone()).unwrap();
    assert_eq!((splits.train.num_examples(), splits.eval.num_examples()), (12, 1));
    assert_eq!(read(&splits.eval, 0, None).unwrap().1, 1);
    fs::create_dir(val.path().join("dog")).unwrap();
    let message = error_of(with_val);
    assert!(message.contains("dog is not a training class"), "{message}");
}

/// A 64 x 33 image: its shorter side is scaled to 32, and its centre is cropped.
#[test]
fn evaluation_crops_the_centre() {
    let dir = tempfile::tempdir().unwrap();
    write_folder(dir.path());
    let splits = open_folder(config(dir.path())).unwrap();
    let (x, _) = read(&splits.eval, 2, None).unwrap();
    let byte = |colour: usize, row: usize, column: usize| {
        let (mean, std) = ([0.485, 0.456, 0.406][colour], [0.229, 0.224, 0.225][colour]);
        (f64::from(x[(colour * 28 + row) * 28 + column]) * std + mean) * 255.0
    };
    // Blue is the file's number, 3; red increases from left to right, green from top to bottom.
    assert!((byte(2, 13, 13) - 120.0).abs() < 1.0, "{}", byte(2, 13, 13));
    for (place, fraction) in [(0, 17.5 / 62.0), (27, 44.5 / 62.0)] {
        assert!((byte(0, 5, place) - fraction * 255.0).abs() < 5.0, "{}", byte(0, 5, place));
    }
    for (place, fraction) in [(0, 2.5 / 32.0), (27, 29.5 / 32.0)] {
        assert!((byte(1, place, 9) - fraction * 255.0).abs() < 6.0, "{}", byte(1, place, 9));
    }
    assert_eq!(read(&splits.eval, 2, Some(9)).unwrap().0, x);
}

#[test]
fn pixels_are_the_same_on_any_number_of_replicas_and_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    write_folder(dir.path());
    let splits = open_folder(config(dir.path())).unwrap();
    let batches = |n| TrainBatches::new(splits.train.clone(), 7, 4, n).unwrap();
    // Two batches per epoch: epochs 0 to 2.
    let all: Vec<_> = batches(1).range(0, 6).map(Result::unwrap).collect();
    for n in [2, 4] {
        let rest: Vec<_> = batches(n).range(3, 6).map(Result::unwrap).collect();
        for (one, other) in all[3..].iter().zip(&rest) {
            for field in ["x", "y"] {
                assert!(whole(one, field) == whole(other, field), "{field} on {n}");
            }
        }
    }
    let crops: Vec<_> =
        (0..4).map(|epoch| read(&splits.train, 1, Some(epoch)).unwrap().0).collect();
    assert!((0..4).all(|a| (0..a).all(|b| crops[a] != crops[b])));
    let plain = config::ImageFolderConfig { augment: false, ..config(dir.path()) };
    let plain = open_folder(plain).unwrap();
    assert_eq!(read(&plain.train, 1, Some(0)), read(&splits.train, 1, None));
}

#[test]
fn a_broken_file_is_named_and_ends_the_run() {
    let dir = tempfile::tempdir().unwrap();
    let good = jpeg(48, 40, 0);
    let mut damaged = png(50, 50, 0);
    damaged[100] ^= 0xff;
    let cases = [
        (good[..good.len() / 2].to_vec(), "cannot decode"),
        (good[..20].to_vec(), "cannot decode"),
        (damaged, "cannot decode"),
        (vec![], "the file is empty"),
        (b"GIF89a".to_vec(), "neither a JPEG nor a PNG"),
    ];
    for (bytes, expected) in cases {
        write_folder(dir.path());
        fs::write(dir.path().join("bee/a.jpg"), bytes).unwrap();
        let splits = open_folder(config(dir.path())).unwrap();
        let message = read(&splits.train, 3, Some(0)).unwrap_err();
        let fragments = [expected, "bee/a.jpg", "data.on_broken"];
        assert!(fragments.iter().all(|part| message.contains(part)), "{message}");
        let batches = TrainBatches::new(splits.train.clone(), 0, 9, 3).unwrap();
        let message = batches.get(0).unwrap_err().to_string();
        assert!(message.contains("bee/a.jpg"), "{message}");
        assert_eq!(splits.skipped_report(), None);
    }
    // A missing file is not a broken image: it may exist on another machine.
    write_folder(dir.path());
    let skip = config::ImageFolderConfig { on_broken: OnBroken::Skip, ..config(dir.path()) };
    let splits = open_folder(skip).unwrap();
    fs::remove_file(dir.path().join("bee/a.jpg")).unwrap();
    let batches = TrainBatches::new(splits.train.clone(), 0, 9, 3).unwrap();
    assert!(batches.get(0).unwrap_err().to_string().contains("cannot read"));
}

#[test]
fn broken_files_can_be_left_out() {
    let dir = tempfile::tempdir().unwrap();
    write_folder(dir.path());
    for name in ["bee/b.JPEG", "bee/c.jpg", "cat/more/d.png"] {
        fs::write(dir.path().join(name), "broken").unwrap();
    }
    let skip = config::ImageFolderConfig { on_broken: OnBroken::Skip, ..config(dir.path()) };
    let splits = open_folder(skip).unwrap();
    let train = |n| TrainBatches::new(splits.train.clone(), 0, 9, n).unwrap();
    let one = train(1).get(5).unwrap();
    assert!(whole(&one, "x") == whole(&train(3).get(5).unwrap(), "x"));
    // Examples 4 and 5 are broken; 6, the first cat, replaces both.
    let mut labels = whole(&one, "y");
    labels.sort_by(f64::total_cmp);
    assert_eq!(labels, [0., 0., 0., 1., 2., 2., 2., 2., 2.]);
    assert_eq!(splits.train.skipped().unwrap().count(), 2);

    let eval = EvalBatches::new(splits.eval.clone(), 2, 2).unwrap();
    let weights: Vec<_> = eval.iter().flat_map(|batch| whole(&batch.unwrap(), "weight")).collect();
    assert_eq!(weights, [1., 1., 0., 0.]);
    let report = splits.skipped_report().unwrap();
    assert!(report.contains("training: broken examples left out: 2"), "{report}");
    assert!(report.contains("evaluation: broken examples left out: 1\n"), "{report}");
    assert!(report.contains("bee/c.jpg") && report.contains("cat/more/d.png"), "{report}");

    for name in ["a.jpg", "b.JPEG", "c.jpg"] {
        for class in ["ant", "bee", "cat"] {
            fs::write(dir.path().join(class).join(name), "broken").unwrap();
        }
    }
    let message = train(1).get(0).unwrap_err().to_string();
    assert!(message.contains("images can be decoded, too many to be left out"), "{message}");
    assert!(message.contains("it is neither a JPEG nor a PNG; replace the files"), "{message}");
}

/// Before the first step, and not with the advice that was followed.
#[test]
fn a_folder_of_broken_files_is_refused_at_the_start() {
    let dir = tempfile::tempdir().unwrap();
    write_folder(dir.path());
    let open = |on_broken| {
        open_folder(config::ImageFolderConfig { on_broken, ..config(dir.path()) }).unwrap()
    };
    open(OnBroken::Skip).check(&|_| ()).unwrap();
    for class in fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path()) {
        for file in fs::read_dir(class).unwrap().map(|entry| entry.unwrap().path()) {
            match file.is_dir() {
                true => fs::remove_dir_all(file).unwrap(),
                false => fs::write(file, "broken").unwrap(),
            }
        }
    }
    let message = open(OnBroken::Skip).check(&|_| ()).unwrap_err().to_string();
    assert!(message.contains("can be decoded") && message.contains("set data.path"), "{message}");
    assert!(!message.contains("leave such files out"), "{message}");
    // The first one that is read ends such a run by its name.
    open(OnBroken::Stop).check(&|_| ()).unwrap();
}

#[test]
fn fingerprints_follow_the_files_wherever_they_are() {
    let [here, there] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    [&here, &there].iter().for_each(|dir| write_folder(dir.path()));
    let prints = |dir: &Path| {
        let splits = open_folder(config(dir)).unwrap();
        [splits.train, splits.eval].map(|part| part.fingerprint().unwrap().unwrap())
    };
    let first = prints(here.path());
    assert_ne!(first[0], first[1]);
    assert_eq!(prints(there.path()), first);
    // As many bytes, other pixels.
    let path = there.path().join("ant/a.jpg");
    let mut bytes = fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&path, bytes).unwrap();
    assert_ne!(prints(there.path())[0], first[0]);
    fs::rename(here.path().join("ant/a.jpg"), here.path().join("ant/aa.jpg")).unwrap();
    assert_ne!(prints(here.path())[0], first[0]);
}

#[test]
fn invalid_folders_are_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let message = error_of(config(&dir.path().join("no")));
    assert!(message.contains("cannot read") && message.contains("data.path"), "{message}");
    let message = error_of(config(dir.path()));
    assert!(message.contains("has no folders in it"), "{message}");
    fs::create_dir(dir.path().join("ant")).unwrap();
    let message = error_of(config(dir.path()));
    assert!(message.contains("ant holds no image, no file that ends in .jpg, .jpeg"), "{message}");
    assert!(message.ends_with("each folder in data.path is a class"), "{message}");
    fs::write(dir.path().join("ant/a.jpg"), jpeg(8, 8, 0)).unwrap();
    let message = error_of(config(dir.path()));
    assert!(message.contains("no image of") && message.contains("data.eval_fraction"), "{message}");
    let eval =
        config::ImageFolderConfig { eval_path: Some(dir.path().join("no")), ..config(dir.path()) };
    let message = error_of(eval);
    assert!(message.contains("/no: ") && message.ends_with("set data.eval_path"), "{message}");
    let opened = ImageFolder::open(&config(Path::new("/")), 0);
    assert!(opened.is_err());
}

#[test]
fn grey_and_progressive_jpegs_are_decoded() {
    let dir = tempfile::tempdir().unwrap();
    write_folder(dir.path());
    let grey: Vec<_> = (0..40 * 40).map(|place| (place % 40 * 6) as u8).collect();
    let mut bytes = vec![];
    jpeg_encoder::Encoder::new(&mut bytes, 95)
        .encode(&grey, 40, 40, jpeg_encoder::ColorType::Luma)
        .unwrap();
    fs::write(dir.path().join("ant/a.jpg"), bytes).unwrap();
    let mut bytes = vec![];
    let mut encoder = jpeg_encoder::Encoder::new(&mut bytes, 95);
    encoder.set_progressive(true);
    encoder.encode(&pixels(40, 60, 1), 40, 60, jpeg_encoder::ColorType::Rgb).unwrap();
    fs::write(dir.path().join("ant/c.jpg"), &bytes).unwrap();
    let splits = open_folder(config(dir.path())).unwrap();
    let (x, _) = read(&splits.train, 0, None).unwrap();
    let raw = |colour: usize| f64::from(x[colour * 784 + 400]) * [0.229, 0.224, 0.225][colour];
    assert!((raw(0) + 0.485 - raw(1) - 0.456).abs() < 1e-5, "grey has equal colours");
    let (one, _) = read(&splits.train, 1, None).unwrap();
    let (other, _) = read(&splits.train, 2, None).unwrap();
    // Class `ant` is numbered from 4 on, so only blue differs: 5 x 40 there, 1 x 40 here.
    let red = |x: &[f32]| x[..784].to_vec();
    assert!(red(&one).iter().zip(red(&other)).all(|(a, b)| (a - b).abs() < 0.1));
    fs::write(dir.path().join("ant/c.jpg"), &bytes[..bytes.len() * 2 / 3]).unwrap();
    assert!(read(&splits.train, 2, None).unwrap_err().contains("ant/c.jpg"));
}
