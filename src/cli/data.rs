//! `lockstep data`: what a run of a configuration will read.

use std::process::ExitCode;

use ::hlo::{DType, counted};
use anyhow::Result;
use serde_json::{Value, json};

use super::args::DataArgs;
use super::{open_data, print_line, print_lines};
use crate::config::{ColumnEncoding, Config, DataConfig, MissingValues, shorten_words};
use crate::data::{self, Field, LabelKind, Source, SurveyedColumn};
use crate::observe::{Waiting, say};
use crate::train;

/// Most classes with a line of their own; `--json` has all.
const MAX_CLASSES: usize = 20;
/// Most elements of a field of an example.
const MAX_ELEMENTS: usize = 8;

/// Reads all examples once, as far as that finds what would end a run in its middle.
///
/// # Errors
/// What is wrong with the data, or does not fit the model.
pub fn run(args: &DataArgs) -> Result<ExitCode> {
    let config = Config::load(&args.config.config, &args.config.sets())?;
    let splits = open_data(&config)?;
    for warning in &splits.warnings {
        say(&format!("warning: {warning}"));
    }
    let model = train::build_model(&config, &*splits.train)?;
    train::check_example(&*model, &config, &splits)?;
    {
        let _waiting = Waiting::on("checking the data");
        splits.check(&say)?;
    }
    let parts = [("training", &splits.train), ("evaluation", &splits.eval)];
    let examples = read_examples(&*splits.train, args.examples)?;
    if let Some(report) = splits.skipped_report() {
        say(&format!("warning: {report}"));
    }
    if args.json {
        let part = |source: &dyn Source| json!({ "num_examples": source.num_examples(), "class_counts": source.class_counts() });
        let mut line = json!({
            "source": config.data.name(),
            "fields": splits.train.fields().iter().map(field_json).collect::<Vec<_>>(),
            "labels": splits.train.labels(),
            "examples": examples,
        });
        for (name, source) in parts {
            line[name] = part(&**source);
        }
        print_line(&line.to_string())?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut lines = vec![format!("source      {}", config.data.name())];
    for (name, source) in parts {
        lines.push(format!("{name:<11} {}", counted(source.num_examples(), "example")));
    }
    for Field { name, dtype, dims } in splits.train.fields() {
        lines.push(format!("{name:<11} {dtype}{dims:?}"));
    }
    lines.extend(about_columns(&*splits.train, &config.data));
    lines.extend(about_empty_cells(&config.data)?);
    lines.extend(about_labels(&*splits.train, &*splits.eval));
    for (index, example) in examples.iter().enumerate() {
        lines.push(format!("\nexample {index}"));
        let fields = example.as_object().into_iter().flatten();
        lines.extend(fields.map(|(name, value)| match value {
            Value::String(text) => format!("  {name:<9} {text}"),
            value => format!("  {name:<9} {value}"),
        }));
    }
    print_lines(lines.iter().map(|line| shorten_words(line)))?;
    Ok(ExitCode::SUCCESS)
}

fn field_json(field: &Field) -> Value {
    json!({ "name": field.name, "dtype": field.dtype.to_string(), "dims": field.dims })
}

/// What the model sees of each column of a table.
fn about_columns(train: &dyn Source, config: &DataConfig) -> Vec<String> {
    let mut learned = config.clone();
    train.write_learned(&mut learned);
    let DataConfig::Table(table) = learned else { return vec![] };
    let column = |column: &ColumnEncoding| {
        let ColumnEncoding { name, categories, mean, deviation, .. } = column;
        let what = match (categories, mean, deviation) {
            (Some(categories), ..) => {
                let first = &categories[..categories.len().min(MAX_ELEMENTS)];
                let rest = if first.len() < categories.len() { ", .." } else { "" };
                format!("{} categories: {}{rest}", categories.len(), first.join(", "))
            }
            (None, Some(mean), Some(deviation)) => {
                format!("mean {mean:.6}, deviation {deviation:.6}")
            }
            _ => "as it is".to_owned(),
        };
        format!("  {name:<20} {what}")
    };
    let columns = table.columns.iter().map(column);
    std::iter::once("columns".to_owned()).chain(columns).collect()
}

/// How many cells of a table are empty, if the mean of their column stands for them.
fn about_empty_cells(config: &DataConfig) -> Result<Option<String>> {
    let DataConfig::Table(table) = config else { return Ok(None) };
    if table.missing == MissingValues::Refuse {
        return Ok(None);
    }
    let columns = data::survey(&table.path, "data.path")?;
    let missing: Vec<_> = columns.iter().filter_map(SurveyedColumn::describe_missing).collect();
    Ok((!missing.is_empty()).then(|| format!("missing     {}", missing.join(", "))))
}

/// What is predicted: the classes with their counts, or the scales of values.
fn about_labels(train: &dyn Source, eval: &dyn Source) -> Vec<String> {
    let names = train.labels();
    match train.label_kind() {
        LabelKind::Values(scales) => {
            let scales = scales.iter().enumerate().map(|(index, scale)| {
                let name = names.get(index).map_or("value", String::as_str);
                format!("  {name:<20} mean {:.6}, deviation {:.6}", scale.mean, scale.deviation)
            });
            std::iter::once("values".to_owned()).chain(scales).collect()
        }
        LabelKind::Labels => vec![format!("labels      {}", names.join(", "))],
        LabelKind::Class => {
            let (train_counts, eval_counts) = (train.class_counts(), eval.class_counts());
            let mut lines = vec![format!("classes     {}", train.num_outputs())];
            let count = |counts: &Option<Vec<u64>>, class: usize| {
                counts.as_ref().and_then(|counts| counts.get(class)).map(u64::to_string)
            };
            let shown = names.len().min(MAX_CLASSES);
            let rows = names[..shown].iter().enumerate().map(|(class, name)| {
                let counts = [count(&train_counts, class), count(&eval_counts, class)];
                let [train, eval] = counts.map(|count| count.unwrap_or_else(|| "-".to_owned()));
                format!("  {name:<20} {train:>9} for training {eval:>9} for evaluation")
            });
            lines.extend(rows);
            if names.len() > shown {
                lines.push(format!("  and {} more: see --json", names.len() - shown));
            }
            lines
        }
    }
}

/// The first training examples, as evaluation sees them: without augmentation.
fn read_examples(source: &dyn Source, most: u64) -> Result<Vec<Value>> {
    let example = |index| {
        let mut fields: Vec<_> =
            source.fields().iter().map(|field| vec![0; field.num_bytes()]).collect();
        let mut out: Vec<_> = fields.iter_mut().map(|bytes| &mut bytes[..]).collect();
        source.read(index, None, &mut out)?;
        let all = source.fields().iter().zip(&fields);
        let all = all.map(|(field, bytes)| {
            let value = match (field, source.label_kind()) {
                (Field { name: "y", dims, .. }, LabelKind::Class) if dims.is_empty() => {
                    let class = elements(field.dtype, bytes).first().and_then(Value::as_i64);
                    let name = class.and_then(|class| source.labels().get(class as usize));
                    name.map_or_else(|| json!(class), |name| json!(name))
                }
                _ => json!(elements(field.dtype, bytes)),
            };
            (field.name.to_owned(), shown(value))
        });
        Ok(Value::Object(all.collect()))
    };
    (0..source.num_examples().min(most)).map(example).collect()
}

/// At most a few elements, and how many there are.
fn shown(value: Value) -> Value {
    match value {
        Value::Array(all) if all.len() > MAX_ELEMENTS => {
            let first: Vec<_> = all[..MAX_ELEMENTS].iter().map(Value::to_string).collect();
            json!(format!("[{}, .. {} in all]", first.join(", "), all.len()))
        }
        other => other,
    }
}

/// With as many digits as f32 has, not those of the same number as f64.
fn shortest(value: f32) -> Value {
    json!(value.to_string().parse::<f64>().ok())
}

fn elements(dtype: DType, bytes: &[u8]) -> Vec<Value> {
    let (words, _) = bytes.as_chunks::<4>();
    match dtype {
        DType::F32 => words.iter().map(|word| shortest(f32::from_ne_bytes(*word))).collect(),
        _ => words.iter().map(|word| json!(i32::from_ne_bytes(*word))).collect(),
    }
}
