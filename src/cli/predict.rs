//! `lockstep predict`: the labels of texts.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Result, bail};
use serde_json::{Value, json};

use super::args::PredictArgs;
use super::output::{self, OutputFile};
use super::print_lines;
use crate::config::{ClassificationConfig, Config, DataConfig, FolderClasses};
use crate::data::{self, Classification, Source, TextEncoder, TextRow, read_text_rows};
use crate::observe::say;
use crate::train::params_file::{self, SavedModel, check_counterpart, saved_classes};
use crate::train::{self, EvalSpec};

pub fn run(args: &PredictArgs) -> Result<ExitCode> {
    let to = args.to.as_deref().map(|path| OutputFile {
        option: "--to",
        path,
        overwrite: args.overwrite,
        is_own: output::never,
    });
    to.map_or(Ok(()), |file| file.check())?;
    let saved = SavedModel::find(&args.model)?;
    let (config, classes) = match saved.config()? {
        Some((text, path)) => {
            of_run(Config::parse_for_evaluation(&text, &path, &args.sets)?, args.truncate)?
        }
        None => of_folder(args)?,
    };
    let labels = &classes.labels;
    let DataConfig::Classification(texts) = &config.data else {
        bail!("predict needs a model of texts: data.source is not \"classification\" in {saved}");
    };
    let (rows, source) = read(args, texts, labels, matches!(saved, SavedModel::Files { .. }))?;
    let model = config.model.build(labels.len());
    let (client, mesh) = train::open_devices(&config, say)?;
    let splits = data::Splits { train: source.clone(), eval: source.clone(), warnings: vec![] };
    train::check_example(&*model, &config, &splits)?;
    let (num_replicas, batch) = (mesh.num_replicas(), args.batch_per_replica.get());
    let spec = EvalSpec::of_config(&config, &*model, &*source, num_replicas, batch)?;
    let scorer = spec.scorer(&client, |specs| params_file::open_saved(&saved, specs))?;
    let Some(scorer) = scorer else {
        bail!("the model of {saved} does not classify: set model.head = \"classification\"");
    };
    let mut lines = vec![];
    scorer.scores(source, |example, scores| {
        if scores.iter().any(|score| score.is_nan()) {
            bail!("the model has no score for example {}: a value was not finite", example + 1);
        }
        lines.push(classes.line(&rows[example as usize], scores).to_string());
        Ok::<_, anyhow::Error>(())
    })?;
    match to {
        None => print_lines(lines.iter())?,
        Some(file) => {
            let text: String = lines.iter().flat_map(|line| [line, "\n"]).collect();
            // What was computed is not lost because of a file that has appeared meanwhile.
            if let Err(error) = file.write(text.as_bytes()) {
                print_lines(lines.iter())?;
                return Err(error.context("the predictions were printed instead"));
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The classes that a model has scores for.
struct Classes {
    labels: Vec<String>,
    /// `true` if a text has any number of them.
    is_multi_label: bool,
}

/// The configuration of a run, and the classes of its data; none if these are not texts.
fn of_run(mut config: Config, truncate: bool) -> Result<(Config, Classes)> {
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

/// The rows of the input, and the same as tokens.
fn read(
    args: &PredictArgs,
    texts: &ClassificationConfig,
    labels: &[String],
    is_folder: bool,
) -> Result<(Vec<TextRow>, Arc<dyn Source>)> {
    let Some(tokenizer) = &texts.tokenizer else {
        bail!("data.tokenizer is not set: --set data.tokenizer=FOLDER");
    };
    let open = |length| TextEncoder::open(tokenizer, "data.tokenizer", length, texts.truncate);
    let mut encoder = open(texts.max_length)?;
    // As transformers. The texts of a run are cut as in its training.
    if let Some(most) = encoder.model_max_length()
        && texts.truncate
        && is_folder
        && most < texts.max_length
    {
        encoder = open(most)?;
    }
    for warning in encoder.warnings(args.text_pair.is_some() || texts.text_pair.is_some()) {
        say(&format!("warning: {warning}"));
    }
    let text = args.text.as_ref().unwrap_or(&texts.text);
    let pair = args.text_pair.as_ref().or(texts.text_pair.as_ref());
    let columns: Vec<_> = [Some(text), pair].into_iter().flatten().map(String::as_str).collect();
    let rows = read_text_rows(&args.input, "INPUT", &columns)?;
    if rows.is_empty() {
        bail!("{} has no rows", args.input.display());
    }
    let source = Classification::unlabeled(
        &rows,
        &args.input,
        &encoder,
        labels,
        pair.is_some(),
        &texts.pad_to,
    )?;
    Ok((rows, Arc::new(source)))
}

impl Classes {
    /// What is printed about a text: the class with the highest score, and the probability of each:
    /// shares of 1, or, if a text has any number of them, each by itself, and those of at least one
    /// half.
    fn line(&self, row: &TextRow, scores: &[f32]) -> Value {
        let highest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let probabilities: Vec<f64> = match self.is_multi_label {
            true => scores.iter().map(|score| 1.0 / (1.0 + f64::from(-score).exp())).collect(),
            false => {
                let powers: Vec<_> =
                    scores.iter().map(|score| f64::from(score - highest).exp()).collect();
                let sum: f64 = powers.iter().sum();
                powers.iter().map(|power| power / sum).collect()
            }
        };
        let place = scores.iter().position(|score| *score == highest).unwrap_or_default();
        let rounded = |probability: &f64| json!((probability * 1e6).round() / 1e6);
        let all = self.labels.iter().zip(&probabilities);
        let mut line = json!({ "text": row.cells[0] });
        if let Some(pair) = row.cells.get(1) {
            line["text_pair"] = json!(pair);
        }
        line["label"] = json!(self.labels.get(place));
        if self.is_multi_label {
            let likely = all.clone().filter(|(_, probability)| **probability >= 0.5);
            line["labels"] = likely.map(|(label, _)| json!(label)).collect();
        }
        line["probability"] = json!(probabilities.get(place).map(rounded));
        let all = all.map(|(label, probability)| (label.clone(), rounded(probability)));
        line["probabilities"] = Value::Object(all.collect());
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_has_one_class_or_those_that_are_likely() {
        let row = TextRow { line: 2, cells: vec!["a".to_owned()] };
        let labels = ["x", "y", "z"].map(str::to_owned).to_vec();
        let line = |is_multi_label| {
            Classes { labels: labels.clone(), is_multi_label }.line(&row, &[0.0, -2.0, 1.0])
        };
        let expected = json!({"text": "a", "label": "z", "probability": 0.705385,
            "probabilities": {"x": 0.259496, "y": 0.035119, "z": 0.705385}});
        assert_eq!(line(false), expected);
        let expected = json!({"text": "a", "label": "z", "labels": ["x", "z"], "probability": 0.731059,
            "probabilities": {"x": 0.5, "y": 0.119203, "z": 0.731059}});
        assert_eq!(line(true), expected);
    }
}
