//! `lockstep predict`: the labels of texts.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::args::PredictArgs;
use super::print_lines;
use crate::config::{ClassificationConfig, Config, DataConfig, read_regular};
use crate::data::{self, Classification, Source, TextEncoder, TextRow, read_text_rows};
use crate::observe::{replace_file, say};
use crate::train::params_file::SavedModel;
use crate::train::{self, EvalSpec};

/// Largest size of a folder's `config.json`, in bytes.
const MAX_CONFIG: u64 = 1 << 20;

pub fn run(args: &PredictArgs) -> Result<ExitCode> {
    let dir = args.to.as_deref().and_then(Path::parent).filter(|dir| !dir.as_os_str().is_empty());
    if let Some(dir) = dir.filter(|dir| !dir.is_dir()) {
        bail!("--to: there is no directory {}", dir.display());
    }
    let saved = SavedModel::find(&args.model)?;
    let (config, labels) = match saved.config()? {
        Some((text, path)) => {
            of_run(Config::parse_for_evaluation(&text, &path, &args.sets)?, args.truncate)?
        }
        None => of_folder(args)?,
    };
    let DataConfig::Classification(texts) = &config.data else {
        bail!("predict needs a model of texts: data.source is not \"classification\" in {saved}");
    };
    let (rows, source) = read(args, texts, &labels)?;
    let model = config.model.build(labels.len());
    say(&format!("taking the parameters from {saved}"));
    let (client, mesh) = train::open_devices(&config, say)?;
    let splits = data::Splits { train: source.clone(), eval: source.clone() };
    train::check_example(&*model, &config, &splits)?;
    let (num_replicas, batch) = (mesh.num_replicas(), args.batch_per_replica.get());
    let spec = EvalSpec::of_config(&config, &*model, &*source, num_replicas, batch)?;
    let scorer = spec.scorer(&client, |specs| saved.open(specs))?;
    let Some(scorer) = scorer else {
        bail!("the model of {saved} does not classify: set model.head = \"classification\"");
    };
    let mut lines = vec![];
    scorer.scores(source, |example, scores| {
        if scores.iter().any(|score| score.is_nan()) {
            bail!("the model has no score for example {}: a value was not finite", example + 1);
        }
        lines.push(line(&rows[example as usize], &labels, scores).to_string());
        Ok::<_, anyhow::Error>(())
    })?;
    match &args.to {
        None => print_lines(lines.iter())?,
        Some(path) => {
            let text: String = lines.iter().flat_map(|line| [line, "\n"]).collect();
            replace_file(path, text.as_bytes())
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The configuration of a run, and the labels of its data; none if these are not texts.
fn of_run(mut config: Config, truncate: bool) -> Result<(Config, Vec<String>)> {
    let labels = match &mut config.data {
        DataConfig::Classification(texts) => {
            texts.truncate |= truncate;
            data::class_names(texts)?
        }
        _ => vec![],
    };
    Ok((config, labels))
}

/// The configuration that a Hugging Face folder stands for, and the labels that its `config.json` has.
fn of_folder(args: &PredictArgs) -> Result<(Config, Vec<String>)> {
    let folder = std::path::absolute(&args.model)?;
    let Some(from) = folder.to_str().map(toml::Value::from) else {
        bail!("{} is not UTF-8; rename it", folder.display());
    };
    let path = folder.join("config.json");
    let text = format!(
        "model = {{ from = {from} }}\ndata = {{ source = \"classification\", path = \"unused\", max_length = 512 }}\n\
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
    let bytes = read_regular(&path, MAX_CONFIG);
    let bytes = bytes.with_context(|| format!("cannot read {}", path.display()))?;
    let found: Value = serde_json::from_slice(&bytes)
        .with_context(|| format!("{} is not JSON", path.display()))?;
    let names = found["id2label"].as_object();
    // What transformers has without them.
    let num_classes = names.map_or(2, serde_json::Map::len);
    let label = |class: usize| {
        let name = names.and_then(|names| names.get(&class.to_string())?.as_str());
        name.map_or_else(|| format!("LABEL_{class}"), str::to_owned)
    };
    let labels: Vec<_> = (0..num_classes).map(label).collect();
    if labels.iter().collect::<BTreeSet<_>>().len() < labels.len() {
        bail!("{}: two classes of id2label have the same name", path.display());
    }
    Ok((config, labels))
}

/// The rows of the input, and the same as tokens.
fn read(
    args: &PredictArgs,
    texts: &ClassificationConfig,
    labels: &[String],
) -> Result<(Vec<TextRow>, Arc<dyn Source>)> {
    let Some(tokenizer) = &texts.tokenizer else {
        bail!("data.tokenizer is not set: --set data.tokenizer=FOLDER");
    };
    let encoder = TextEncoder::open(tokenizer, "data.tokenizer", texts.max_length, texts.truncate)?;
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

/// What is printed about a text.
fn line(row: &TextRow, labels: &[String], scores: &[f32]) -> Value {
    let highest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let powers: Vec<_> = scores.iter().map(|score| f64::from(score - highest).exp()).collect();
    let sum: f64 = powers.iter().sum();
    let place = scores.iter().position(|score| *score == highest).unwrap_or_default();
    let probability = |power: f64| (power / sum * 1e6).round() / 1e6;
    let all = labels
        .iter()
        .zip(&powers)
        .map(|(label, power)| (label.clone(), json!(probability(*power))));
    let mut line = json!({ "text": row.cells[0] });
    if let Some(pair) = row.cells.get(1) {
        line["text_pair"] = json!(pair);
    }
    line["label"] = json!(labels.get(place));
    line["probability"] = json!(powers.get(place).map(|power| probability(*power)));
    line["probabilities"] = Value::Object(all.collect());
    line
}
