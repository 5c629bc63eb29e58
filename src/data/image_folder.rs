//! `image_folder`: a folder of images for each class, the layout of ImageNet.
//!
//! Training takes a random resized crop and flips it horizontally with probability 1/2; evaluation
//! resizes the shorter side and takes the center crop. Colors are normalized with ImageNet's mean
//! and standard deviation. Files are decoded on demand, on all cores.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use hlo::DType;

use super::augment::Draws;
use super::files::{ListedFile, is_hidden, list, unreadable};
use super::fingerprint::Fingerprinter;
use super::image::{MAX_FILE_BYTES, Rect, decode};
use super::source::checked_index;
use super::{Error, Field, Skipped, Source};
use crate::config::{self, OnBroken, read_regular};

/// Mean and standard deviation of ImageNet's pixels per color, with black 0 and white 1.
const MEAN: [f32; 3] = [0.485, 0.456, 0.406];
const STD: [f32; 3] = [0.229, 0.224, 0.225];

const PATH: &str = "data.path";
const EVAL_PATH: &str = "data.eval_path";

const EXTENSIONS: [&str; 3] = ["jpg", "jpeg", "png"];

/// One split. Field `x` is f32 `[3, image_size, image_size]`; `y` is i32 `[]`, the index of the
/// class in the sorted names of the training folders.
pub struct ImageFolder {
    files: Vec<Labelled>,
    /// The folder of the class folders.
    root: PathBuf,
    /// The key that names it.
    key: &'static str,
    /// The names of the classes' folders.
    labels: Vec<String>,
    image_size: u32,
    eval_resize: u32,
    /// `None` if images are not augmented.
    augment_seed: Option<u64>,
    skipped: Option<Skipped>,
    /// The normalized value of each byte, per color.
    tables: [[f32; 256]; 3],
    fields: [Field; 2],
}

struct Labelled {
    file: ListedFile,
    label: i32,
}

impl ImageFolder {
    /// Lists the files, and returns the training split and the evaluation split: all of
    /// `eval_path`, or the last files of each class.
    ///
    /// # Errors
    /// A folder that cannot be listed, has no class folders, or has one without images; or a class
    /// for evaluation that training does not have. Images are not read yet.
    pub fn open(config: &config::ImageFolderConfig, seed: u64) -> Result<(Self, Self), Error> {
        let classes = classes(&config.path, PATH)?;
        let (mut train, mut eval) = (vec![], vec![]);
        for (label, class) in classes.iter().enumerate() {
            let mut files = labelled(&config.path.join(class), PATH, label)?;
            if config.eval_path.is_none() {
                // Training keeps at least one file of each class.
                let num_eval = (files.len() as f64 * config.eval_fraction()).round() as usize;
                eval.extend(files.split_off(files.len() - num_eval.min(files.len() - 1)));
            }
            train.extend(files);
        }
        if let Some(eval_path) = &config.eval_path {
            for class in self::classes(eval_path, EVAL_PATH)? {
                let path = eval_path.join(&class);
                let Ok(label) = classes.binary_search(&class) else {
                    return Err(Error::UnknownClass { path, train: config.path.clone() });
                };
                eval.extend(labelled(&path, EVAL_PATH, label)?);
            }
        }
        if eval.is_empty() {
            return Err(Error::NothingHeldOut { path: config.path.clone() });
        }
        let augment_seed = config.augment.then_some(seed);
        let (eval_root, eval_key) = match &config.eval_path {
            Some(eval_path) => (eval_path, EVAL_PATH),
            None => (&config.path, PATH),
        };
        let labels: Vec<_> =
            classes.iter().map(|class| class.to_string_lossy().into_owned()).collect();
        let split = |files, (root, key): (&PathBuf, _), augment_seed| Self {
            root: root.clone(),
            key,
            ..Self::new(config, files, labels.clone(), augment_seed)
        };
        let train = split(train, (&config.path, PATH), augment_seed);
        Ok((train, split(eval, (eval_root, eval_key), None)))
    }

    /// Images to predict the classes of: a file, or all in a folder and its subfolders, in the
    /// order of their paths. Their label is 0, and there are no names of classes.
    ///
    /// # Errors
    /// A folder that cannot be listed, or has no images. `key` names it in messages.
    pub fn unlabeled(
        config: &config::ImageFolderConfig,
        path: &Path,
        key: &'static str,
    ) -> Result<Self, Error> {
        let metadata = fs::metadata(path).map_err(|source| unreadable(path, key, source))?;
        let files = match metadata.is_dir() {
            true => labelled(path, key, 0)?,
            false => {
                let file = ListedFile { path: path.to_owned(), num_bytes: metadata.len() };
                vec![Labelled { file, label: 0 }]
            }
        };
        let config = config::ImageFolderConfig { on_broken: OnBroken::Stop, ..config.clone() };
        let images = Self::new(&config, files, vec![], None);
        Ok(Self { root: path.to_owned(), key, ..images })
    }

    /// The files, in order.
    pub fn paths(&self) -> Vec<PathBuf> {
        self.files.iter().map(|labelled| labelled.file.path.clone()).collect()
    }

    fn new(
        config: &config::ImageFolderConfig,
        files: Vec<Labelled>,
        labels: Vec<String>,
        augment_seed: Option<u64>,
    ) -> Self {
        let side = config.image_size;
        let value = |colour: usize, byte: usize| (byte as f32 / 255.0 - MEAN[colour]) / STD[colour];
        Self {
            files,
            root: config.path.clone(),
            key: PATH,
            labels,
            // The configuration limits both to far less than u32::MAX.
            image_size: side as u32,
            eval_resize: config.eval_resize() as u32,
            augment_seed,
            skipped: (config.on_broken == OnBroken::Skip).then(Skipped::default),
            tables: [0, 1, 2].map(|colour| std::array::from_fn(|byte| value(colour, byte))),
            fields: [
                Field { name: "x", dtype: DType::F32, dims: vec![3, side, side] },
                Field { name: "y", dtype: DType::I32, dims: vec![] },
            ],
        }
    }

    fn write_image(
        &self,
        bytes: &[u8],
        draws: Option<Draws>,
        out: &mut [u8],
    ) -> Result<(), String> {
        let image = decode(bytes)?;
        let side = self.image_size;
        let Some(mut draws) = draws else {
            let image = image.resize_shorter_side(self.eval_resize)?;
            let rect = Rect::centred(image.width, image.height, side, side);
            image.write(rect, false, &self.tables, out);
            return Ok(());
        };
        let rect = Rect::random(&mut draws, image.width, image.height);
        let image = image.resize(rect, side, side)?;
        let whole = Rect { left: 0, top: 0, width: side, height: side };
        image.write(whole, draws.coin(), &self.tables, out);
        Ok(())
    }
}

impl Source for ImageFolder {
    fn num_examples(&self) -> u64 {
        self.files.len() as u64
    }

    fn num_outputs(&self) -> usize {
        self.labels.len()
    }

    fn labels(&self) -> &[String] {
        &self.labels
    }

    fn fields(&self) -> &[Field] {
        &self.fields
    }

    fn read(&self, example: u64, epoch: Option<u64>, out: &mut [&mut [u8]]) -> Result<(), Error> {
        let Labelled { file: ListedFile { path, .. }, label } =
            &self.files[checked_index(example, self.num_examples())?];
        let bytes = read_regular(path, MAX_FILE_BYTES)
            .map_err(|source| unreadable(path, self.key, source))?;
        let draws = match (self.augment_seed, epoch) {
            (Some(seed), Some(epoch)) => Some(Draws::new(seed, epoch, example)),
            _ => None,
        };
        self.write_image(&bytes, draws, out[0])
            .map_err(|reason| Error::Image { path: path.clone(), reason })?;
        out[1].copy_from_slice(&label.to_ne_bytes());
        Ok(())
    }

    /// If broken images are to be skipped: that at least one of some that are spread over all of
    /// them is intact.
    fn check(&self, _tell: &(dyn Fn(&str) + Sync)) -> Result<(), Error> {
        const MAX_TRIED: usize = 64;
        let tried = self.files.len().min(MAX_TRIED);
        let places = (0..tried).map(|place| place * self.files.len() / tried);
        let mut first = None;
        for place in places.filter(|_| self.skipped.is_some()) {
            let path = &self.files[place].file.path;
            let bytes = read_regular(path, MAX_FILE_BYTES)
                .map_err(|source| unreadable(path, self.key, source))?;
            match decode(&bytes) {
                Ok(_) => return Ok(()),
                Err(reason) => drop(first.get_or_insert((path.clone(), reason))),
            }
        }
        match first {
            None => Ok(()),
            Some((path, reason)) => {
                let (tried, key) = (tried as u64, self.key);
                Err(Error::NothingDecodes { tried, path, reason, key })
            }
        }
    }

    fn fingerprint(&self) -> Result<Option<u128>, Error> {
        let labels = self.files.iter().map(|file| file.label as u64);
        let files: Vec<_> = self.files.iter().map(|file| &file.file).collect();
        let all = Fingerprinter::new("image_folder").numbers(labels).files(&self.root, &files);
        let all = all.map_err(|source| unreadable(&self.root, self.key, source))?;
        Ok(Some(all.finish()))
    }

    fn is_costly(&self) -> bool {
        true
    }

    fn skipped(&self) -> Option<&Skipped> {
        self.skipped.as_ref()
    }
}

/// The sorted names of the folders, including links to folders.
fn classes(path: &Path, key: &'static str) -> Result<Vec<OsString>, Error> {
    let mut classes = vec![];
    for entry in fs::read_dir(path).map_err(|source| unreadable(path, key, source))? {
        let entry = entry.map_err(|source| unreadable(path, key, source))?;
        if !is_hidden(&entry.file_name()) && entry.path().is_dir() {
            classes.push(entry.file_name());
        }
    }
    if classes.is_empty() {
        return Err(Error::NoClasses { path: path.to_owned(), key });
    }
    classes.sort();
    Ok(classes)
}

fn labelled(folder: &Path, key: &'static str, label: usize) -> Result<Vec<Labelled>, Error> {
    let files = list(folder, key, &EXTENSIONS.map(str::to_owned))?;
    if files.is_empty() {
        return Err(Error::NoImages { path: folder.to_owned(), key });
    }
    Ok(files.into_iter().map(|file| Labelled { file, label: label as i32 }).collect())
}
