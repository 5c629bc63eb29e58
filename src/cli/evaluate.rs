//! `lockstep evaluate`: a trained model on evaluation data.

use std::process::ExitCode;

use anyhow::{Result, bail};
use hlo::counted;
use serde_json::json;

use super::args::EvaluateArgs;
use super::class_table::{ClassRow, ClassTable};
use super::{open_data, print_line, print_lines};
use crate::config::Config;
use crate::observe::say;
use crate::train::params_file::{self, SavedModel};
use crate::train::{self, EvalSpec};

pub fn run(args: &EvaluateArgs) -> Result<ExitCode> {
    let saved = SavedModel::find(&args.run)?;
    let Some((text, path)) = saved.config()? else {
        bail!(
            "{saved} has no configuration, which names the model and the data; name a checkpoint \
             or the --out of a run"
        )
    };
    let config = Config::parse_for_evaluation(&text, &path, &args.sets)?;
    let splits = open_data(&config)?;
    for warning in &splits.warnings {
        say(&format!("warning: {warning}"));
    }
    let model = train::build_model(&config, &*splits.train)?;
    train::check_example(&*model, &config, &splits)?;
    let (client, mesh) = train::open_devices(&config, say)?;
    let batch = args.batch_per_replica.get();
    let spec = EvalSpec::of_config(&config, &*model, &*splits.eval, mesh, batch)?;
    let num_examples = splits.eval.num_examples();
    let names = splits.eval.labels().to_vec();
    let result = spec
        .evaluator(&client, |specs| params_file::open_saved(&saved, specs))?
        .evaluate(splits.eval)?;
    if args.json {
        let mut line = json!(result);
        line["num_examples"] = num_examples.into();
        if let Some(classes) = ClassTable::of(&result.counts, &names) {
            line["classes"] = classes.rows.iter().map(ClassRow::json).collect();
            if let Some(confusion) = &classes.confusion {
                line["confusion"] = json!(confusion);
            }
        }
        print_line(&line.to_string())?;
    } else {
        let metrics = result.metrics.iter().map(|(name, value)| format!("{name} {value:.4}, "));
        let metrics: String = metrics.collect();
        print_line(&format!(
            "{metrics}loss {:.4}, over {}",
            result.loss,
            counted(num_examples, "example")
        ))?;
        if let Some(classes) = ClassTable::of(&result.counts, &names) {
            print_lines(classes.lines().iter())?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
