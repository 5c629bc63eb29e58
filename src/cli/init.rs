//! `lockstep init`: a small configuration to begin with, beside the user's data.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use ::hlo::counted;
use anyhow::{Context, Result, bail};

use super::args::{InitArgs, InitKind};
use super::output::{self, OutputFile};
use super::print_lines;
use crate::config::{Config, shorten};
use crate::data::{self, LabelKind, SurveyedColumn};
use crate::observe::{Waiting, say};
use crate::train;

/// Steps of a run, about.
const NUM_STEPS: u64 = 2000;
/// Evaluations of a run, about: enough for a curve.
const NUM_EVALUATIONS: u64 = 20;
/// Names of columns that are likely to be texts.
const TEXTS: [&str; 4] = ["text", "sentence", "review", "content"];
/// Names of columns that are likely to be what is predicted.
const TARGETS: [&str; 6] = ["target", "label", "class", "y", "species", "price"];

/// A configuration in the making.
struct Draft {
    /// What it is for, as a comment.
    about: String,
    /// Model and data, as TOML.
    sections: String,
    /// The rate at which optimizers of such models begin.
    peak: &'static str,
    /// Examples of a batch, if the data do not say it.
    batch: u64,
    /// Steps, if an epoch says nothing.
    steps: Option<u64>,
    /// `true` if batch norm divides the batch into groups.
    has_batch_norm: bool,
}

pub fn run(args: &InitArgs) -> Result<ExitCode> {
    if let Some(data) = &args.data
        && !data.exists()
    {
        bail!("--data: there is no {}", data.display());
    }
    let path = match (&args.to, &args.data) {
        (Some(path), _) => path.clone(),
        (None, Some(data)) => data.with_file_name(format!("{}.toml", args.kind.name())),
        (None, None) => PathBuf::from(format!("{}.toml", args.kind.name())),
    };
    let file = OutputFile {
        option: "--to",
        path: &path,
        overwrite: args.overwrite,
        is_own: output::never,
    };
    file.check()?;
    let draft = Draft::of(args, &path)?;
    let mut text = draft.text(draft.batch, None);
    let needs_a_folder = matches!(args.kind, InitKind::TextClassification | InitKind::HuggingFace);
    if args.data.is_none() && args.model.is_none() && needs_a_folder {
        say("model.from in it must be a Hugging Face folder with a BERT or a DistilBERT");
    } else {
        let config = Config::parse(&text, &path, &[])?;
        if args.data.is_some() {
            text = look_at_data(&draft, &config, &path)?;
        }
    }
    file.write(text.as_bytes())?;
    say(&format!("wrote {}", path.display()));
    let path = path.display();
    let next = match args.data {
        Some(_) => "",
        None => "          # after you have set the paths in it",
    };
    let commands = [
        format!("lockstep data {path}{next}"),
        format!("lockstep train {path} --out run"),
        "lockstep evaluate run".to_owned(),
        "lockstep plot run".to_owned(),
    ];
    print_lines(commands.iter())?;
    Ok(ExitCode::SUCCESS)
}

/// The draft with a batch and a number of epochs that fit its data, which it opens.
fn look_at_data(draft: &Draft, config: &Config, path: &Path) -> Result<String> {
    let splits = data::open(config)?;
    for warning in &splits.warnings {
        say(&format!("warning: {warning}"));
    }
    let num_examples = splits.train.num_examples();
    let batch = draft.batch.min((num_examples / 4).max(1));
    let text = draft.text(1 << batch.ilog2(), Some(num_examples));
    let config = Config::parse(&text, path, &[])?;
    let model = train::build_model(&config, &*splits.train)?;
    train::check_example(&*model, &config, &splits)?;
    say(&format!(
        "{} for training, {} for evaluation",
        counted(num_examples, "example"),
        counted(splits.eval.num_examples(), "example")
    ));
    let names = || shorten(&splits.train.labels().join(", ")).into_owned();
    say(&match splits.train.label_kind() {
        LabelKind::Class => {
            let classes = counted(splits.train.num_outputs() as u64, "class");
            format!("it predicts {classes}: {}", names())
        }
        LabelKind::Labels => format!("it predicts labels: {}", names()),
        LabelKind::Values(_) => format!("it predicts a number: {}", names()),
    });
    Ok(text)
}

impl Draft {
    fn of(args: &InitArgs, config: &Path) -> Result<Self> {
        let data = args.data.as_deref();
        let given = |default: &str| match data {
            Some(data) => quoted(&relative(data, config)),
            None => quoted(Path::new(default)),
        };
        match args.kind {
            InitKind::Tabular => tabular(args, &given("table.csv")),
            InitKind::Arrays => Ok(arrays(&given("arrays.npz"))),
            InitKind::Images => images(data, &given("images")),
            InitKind::TextClassification | InitKind::HuggingFace => {
                texts(args, &given("train.tsv"), config)
            }
            InitKind::LanguageModel => language_model(data, &given("text")),
            InitKind::ResnetImagenet => Ok(imagenet(&given("imagenet/train"))),
        }
    }

    /// The whole file, with a number of training examples if it is known.
    fn text(&self, batch: u64, num_examples: Option<u64>) -> String {
        let Self { about, sections, peak, steps, has_batch_norm, .. } = self;
        let mut text = format!("# {about}\n\n{sections}\n[train]\nglobal_batch = {batch}\n");
        let epochs = num_examples.map_or(20, |num_examples| {
            let per_epoch = (num_examples / batch).max(1);
            (NUM_STEPS / per_epoch).clamp(3, 200)
        });
        let _ = match steps {
            Some(steps) => writeln!(text, "steps = {steps}"),
            None => writeln!(text, "epochs = {epochs}"),
        };
        if let (None, Some(num_examples)) = (steps, num_examples) {
            let every = (num_examples / batch).max(1) * epochs.div_ceil(NUM_EVALUATIONS);
            let _ = writeln!(text, "eval_every = {every}          # steps between evaluations");
        }
        let _ = write!(
            text,
            "\n[optimizer]\nname = \"adamw\"\n\n[schedule]\nname = \"cosine\"\npeak = {peak}\n\
             warmup_steps = 20\n\n[mesh]\ndata = 1                # replicas; on one machine's \
             processors, more train the same curve, not faster\n"
        );
        match has_batch_norm {
            true => text.replace("{group}", &batch.min(32).to_string()),
            false => text,
        }
    }
}

fn tabular(args: &InitArgs, path: &str) -> Result<Draft> {
    let surveyed = args.data.as_deref().map(|data| {
        let _waiting = Waiting::on("reading the table");
        data::survey(data, "--data")
    });
    let surveyed = surveyed.transpose()?.unwrap_or_default();
    let columns: Vec<_> = surveyed.iter().map(|column| column.name.clone()).collect();
    let target = match &args.target {
        Some(target) if !columns.is_empty() && !columns.contains(target) => bail!(
            "--target: there is no column {:?}; the file has {}",
            shorten(target),
            columns.join(", ")
        ),
        Some(target) => target.clone(),
        None => likely(&columns, &TARGETS)
            .or(columns.last())
            .cloned()
            .unwrap_or_else(|| "target".to_owned()),
    };
    let about_features = match columns.is_empty() {
        true => TEMPLATE_FEATURES.to_owned(),
        false => about_features(&surveyed, &target),
    };
    let target = quoted(Path::new(&target));
    let loss = "# train.loss: \"auto\" takes words and few whole numbers as classes, others as \
                values";
    Ok(Draft {
        about: format!("An MLP on the rows of a table.\n{loss}"),
        sections: format!(
            "[model]\nname = \"mlp\"\nhidden = [64, 64]\nlayer_norm = false         # with few columns \
             it was worse on each table tried\n\n[data]\nsource = \"table\"\npath = {path}\n\
             target = {target}\n{about_features}# eval_path = \"test.csv\"     # by default a tenth \
             of the rows\n"
        ),
        peak: "3e-3",
        batch: 32,
        steps: None,
        has_batch_norm: false,
    })
}

/// Without a table.
const TEMPLATE_FEATURES: &str = "\
# features = [\"a\", \"b*\"]    # by default all but the target
# exclude = [\"id\"]           # columns that are no features
# missing = \"mean\"           # by default an empty cell is an error
";

/// The features, without columns that only tell rows apart, and what becomes of empty cells.
fn about_features(columns: &[SurveyedColumn], target: &str) -> String {
    let others = || columns.iter().filter(|column| column.name != target);
    let ids = others().filter_map(|column| Some((column, column.why_id()?)));
    let ids: Vec<_> = ids.collect();
    let is_id = |column: &&SurveyedColumn| ids.iter().any(|(id, _)| id.name == column.name);
    let features = || others().filter(|column| !is_id(column));
    let names: Vec<_> = features().map(|column| &column.name).collect();
    let mut text = format!("# features = {}\n", shorten(&format!("{names:?}")));
    if !ids.is_empty() {
        let names: Vec<_> =
            ids.iter().map(|(id, _)| toml::Value::from(glob::Pattern::escape(&id.name))).collect();
        let why = ids.iter().map(|(id, why)| format!("{} has {why}", shorten(&id.name)));
        let why = why.collect::<Vec<_>>().join(", ");
        say(&format!("not taken as features: {why}"));
        let _ = writeln!(text, "exclude = {}          # {why}", toml::Value::from(names));
    }
    let missing: Vec<_> = features().filter_map(SurveyedColumn::describe_missing).collect();
    match missing.is_empty() {
        true => text += "# missing = \"mean\"           # by default an empty cell is an error\n",
        false => {
            let missing = missing.join(", ");
            say(&format!("the mean of the column is taken for {missing}"));
            let _ = writeln!(text, "missing = \"mean\"             # {missing}");
        }
    }
    text
}

fn arrays(path: &str) -> Draft {
    Draft {
        about: "An MLP on NumPy's arrays x and y; of images, model.name = \"resnet\" is another \
                choice."
            .to_owned(),
        sections: format!(
            "[model]\nname = \"mlp\"\nhidden = [128, 128]\n\n[data]\nsource = \"arrays\"\n\
             path = {path}\n# x = \"x\"                   # the names of the arrays\n# y = \"y\"\n"
        ),
        peak: "2e-3",
        batch: 64,
        steps: None,
        has_batch_norm: false,
    }
}

fn images(data: Option<&Path>, path: &str) -> Result<Draft> {
    if let Some(data) = data
        && !data.is_dir()
    {
        bail!(
            "--data: {} is not a folder; name the one with a folder for each class",
            data.display()
        );
    }
    Ok(Draft {
        about: "A ResNet-20 on images, in a folder for each class, of 32x32 pixels.\n# For larger \
                ones: preset = \"resnet50\" and image_size = 224."
            .to_owned(),
        sections: format!(
            "[model]\nname = \"resnet\"\npreset = \"resnet20\"\nbatch_norm_group = {{group}}\n\n[data]\n\
             source = \"image_folder\"\npath = {path}\nimage_size = 32\n"
        ),
        peak: "3e-3",
        batch: 32,
        steps: None,
        has_batch_norm: true,
    })
}

fn texts(args: &InitArgs, path: &str, config: &Path) -> Result<Draft> {
    let columns = columns_of(args)?;
    let label = args.target.as_ref().or_else(|| likely(&columns, &TARGETS)).or(columns.last());
    let text = likely(&columns, &TEXTS).or(columns.first());
    let column = |found: Option<&String>, default: &str| {
        quoted(Path::new(found.map_or(default, String::as_str)))
    };
    let from = match &args.model {
        Some(model) => quoted(&relative(model, config)),
        None if args.data.is_some() => {
            bail!("--model: name the Hugging Face folder of a BERT or a DistilBERT to start from")
        }
        None => quoted(Path::new("distilbert-base-uncased")),
    };
    Ok(Draft {
        about: "A BERT or DistilBERT from a Hugging Face folder, fine-tuned on texts with a label \
                each."
            .to_owned(),
        sections: format!(
            "[model]\nfrom = {from}           # config.json, model.safetensors, and the tokenizer\n\n\
             [data]\nsource = \"classification\"\npath = {path}\ntext = {}\nlabel = {}\n\
             max_length = 128\ntruncate = true\n",
            column(text, "sentence"),
            column(label, "label")
        ),
        peak: "3e-5",
        batch: 32,
        steps: None,
        has_batch_norm: false,
    })
}

fn language_model(data: Option<&Path>, path: &str) -> Result<Draft> {
    let extensions = match data {
        Some(data) if data.is_dir() => match commonest_extension(data)? {
            Some(extension) => format!("extensions = [{}]\n", quoted(Path::new(&extension))),
            None => bail!("--data: {} has no files with an extension", data.display()),
        },
        _ => String::new(),
    };
    Ok(Draft {
        about: "A small GPT on the bytes of text.".to_owned(),
        sections: format!(
            "[model]\nname = \"gpt\"\npreset = \"gpt-bytes\"\n\n[data]\nsource = \"text\"\npath = {path}\n\
             {extensions}context = 128\n"
        ),
        peak: "2e-3",
        batch: 32,
        steps: Some(1500),
        has_batch_norm: false,
    })
}

fn imagenet(path: &str) -> Draft {
    Draft {
        about: "ResNet-50 on images of 224x224. `lockstep recipes` has published recipes for it, \
                also for large batches."
            .to_owned(),
        sections: format!(
            "[model]\nname = \"resnet\"\npreset = \"resnet50\"\nbatch_norm_group = {{group}}\n\n[data]\n\
             source = \"image_folder\"\npath = {path}\n# eval_path = \"imagenet/val\"\nimage_size = 224\n"
        ),
        peak: "3e-3",
        batch: 32,
        steps: None,
        has_batch_norm: true,
    }
}

/// The names of the columns of the data; none without data.
fn columns_of(args: &InitArgs) -> Result<Vec<String>> {
    let names = args.data.as_deref().map(|data| data::column_names(data, "--data"));
    Ok(names.transpose()?.unwrap_or_default())
}

/// The first of the names that a column has, whatever its capitals.
fn likely<'c>(columns: &'c [String], names: &[&str]) -> Option<&'c String> {
    names.iter().find_map(|name| columns.iter().find(|column| column.eq_ignore_ascii_case(name)))
}

/// A path as the configuration reads it: relative to its directory.
fn relative(path: &Path, config: &Path) -> PathBuf {
    match config.parent().filter(|dir| !dir.as_os_str().is_empty()) {
        None => path.to_owned(),
        Some(dir) => match path.strip_prefix(dir) {
            Ok(inside) => inside.to_owned(),
            Err(_) => std::path::absolute(path).unwrap_or_else(|_| path.to_owned()),
        },
    }
}

fn quoted(path: &Path) -> String {
    toml::Value::from(path.to_string_lossy().into_owned()).to_string()
}

/// That of most files of a folder and its subfolders.
fn commonest_extension(folder: &Path) -> Result<Option<String>> {
    let mut counts = BTreeMap::<String, u64>::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let cannot = || format!("cannot list {}", folder.display());
        for entry in fs::read_dir(&folder).with_context(cannot)? {
            let entry = entry.with_context(cannot)?;
            let is_hidden = entry.file_name().to_string_lossy().starts_with('.');
            // Not through links: they can lead back.
            if entry.file_type().with_context(cannot)?.is_dir() && !is_hidden {
                folders.push(entry.path());
            } else if let Some(extension) = entry.path().extension() {
                *counts.entry(extension.to_string_lossy().into_owned()).or_default() += 1;
            }
        }
    }
    Ok(counts.into_iter().max_by_key(|(_, count)| *count).map(|(extension, _)| extension))
}
