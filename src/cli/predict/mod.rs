//! `lockstep predict`: the classes, labels or values of texts, images, arrays, and rows of a table.
//!
//! `inputs.rs` opens what is predicted, and `outputs.rs` says what the scores mean.

mod inputs;
mod outputs;

use std::process::ExitCode;

use anyhow::{Result, bail};

use super::args::PredictArgs;
use super::output::{self, OutputFile};
use super::print_lines;
use crate::config::{ClassWeights, Config, DataConfig, FolderClasses};
use crate::data::{self, Splits};
use crate::observe::{Waiting, say};
use crate::train::params_file::{self, SavedModel, check_counterpart, saved_classes};
use crate::train::{self, EvalSpec};
use inputs::Opened;
use outputs::{Classes, OutputFormat, Outputs, Predictions};

pub fn run(args: &PredictArgs) -> Result<ExitCode> {
    let to = args.to.as_deref().map(|path| OutputFile {
        option: "--to",
        path,
        overwrite: args.overwrite,
        is_own: output::never,
    });
    to.map_or(Ok(()), |file| file.check())?;
    let format = OutputFormat::of(args.to.as_deref())?;
    let saved = SavedModel::find(&args.model)?;
    let (config, classes) = match saved.config()? {
        Some((text, path)) => {
            of_run(Config::parse_for_evaluation(&text, &path, &args.sets)?, args.truncate)?
        }
        None => of_folder(args)?,
    };
    let is_folder = matches!(saved, SavedModel::Files { .. });
    let opened = {
        let _waiting = Waiting::on("reading the data");
        inputs::open(args, &config, &classes, is_folder)?
    };
    let Opened { inputs, source, place } = &opened;
    let outputs = Outputs::of(classes, &**source);
    let model = train::build_model(&config, &**source)?;
    let (client, mesh) = train::open_devices(&config, say)?;
    let splits = Splits { train: source.clone(), eval: source.clone(), warnings: vec![] };
    train::check_example(&*model, &config, &splits)?;
    source.check(&say).map_err(|error| place.name_stdin(error.into()))?;
    let batch = args.batch_per_replica.get();
    let spec = EvalSpec::of_config(&config, &*model, &**source, mesh, batch)?;
    let scorer = spec.scorer(&client, |specs| params_file::open_saved(&saved, specs))?;
    let Some(scorer) = scorer else {
        bail!("the model of {saved} predicts tokens, which this command does not print");
    };
    let mut predictions = Predictions::new(format, &outputs);
    let scored = scorer.scores(source.clone(), |example, scores| {
        if scores.iter().any(|score| score.is_nan()) {
            bail!("the model has no score for example {}: a value was not finite", example + 1);
        }
        predictions.add(&inputs.of(example as usize), scores)
    });
    scored.map_err(|error| place.name_stdin(error))?;
    let contents = predictions.finish()?;
    match to {
        None => print_lines(String::from_utf8_lossy(&contents).lines())?,
        Some(file) => {
            // What was computed is not lost because of a file that has appeared meanwhile.
            if let Err(error) = file.write(&contents) {
                if format == OutputFormat::Npy {
                    return Err(error);
                }
                print_lines(String::from_utf8_lossy(&contents).lines())?;
                return Err(error.context("the predictions were printed instead"));
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The configuration of a run, and the classes of its data; none if these are not texts.
fn of_run(mut config: Config, truncate: bool) -> Result<(Config, Classes)> {
    // They are of the loss, and examples without labels cannot be counted.
    config.train.class_weights = ClassWeights::default();
    let labels = match &mut config.data {
        DataConfig::Classification(texts) => {
            texts.truncate |= truncate;
            data::class_names(texts)?
        }
        _ => vec![],
    };
    Ok((config, Classes { labels, is_multi_label: false }))
}

/// The configuration that a Hugging Face folder stands for, and the classes that its `config.json`
/// has.
fn of_folder(args: &PredictArgs) -> Result<(Config, Classes)> {
    let folder = std::path::absolute(&args.model)?;
    let Some(from) = folder.to_str().map(toml::Value::from) else {
        bail!("{} is not UTF-8; rename it", folder.display());
    };
    let path = folder.join("config.json");
    let text = format!(
        "model = {{ from = {from} }}\n\
         data = {{ source = \"classification\", path = \"unused\", max_length = 512 }}\n\
         train = {{ global_batch = 1, steps = 1 }}\noptimizer = {{ name = \"sgd\" }}\n\
         schedule = {{ name = \"constant\", peak = 1.0 }}"
    );
    let mut config = Config::parse(&text, &path, &args.sets)?;
    if let (DataConfig::Classification(texts), Some(context)) =
        (&mut config.data, config.model.context())
    {
        texts.max_length = texts.max_length.min(context);
        texts.truncate |= args.truncate;
    }
    check_counterpart(&folder, &config.model)?;
    let saved = saved_classes(&folder)?;
    let (names, number, is_multi_label) = match saved {
        Some(saved) => (saved.names, saved.num_classes, saved.is_multi_label),
        None => (None, None, false),
    };
    let labels = names.unwrap_or_else(|| {
        // What transformers has where nothing says it.
        (0..number.unwrap_or(2)).map(FolderClasses::made_up).collect()
    });
    Ok((config, Classes { labels, is_multi_label }))
}
