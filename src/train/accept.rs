//! Whether `train` accepts a configuration, before there are data and devices.

use hlo::{DType, Mesh, TensorType};
use models::{LossFunction, Misfit, Model, Objective};

use super::objective::build_model;
use super::run::fields_of;
use super::setup::{mesh_on_host, platform_on_host};
use super::{Error, Run};
use crate::config::{Config, DataConfig, LossConfig};
use crate::data::{self, LabelKind, Splits};
use crate::pjrt::Platform;
use crate::step::{self, BatchField};

/// Number of classes, values or labels of data that are not opened. No configuration is refused
/// because of it.
const NUM_OUTPUTS: usize = 10;
/// `"auto"` in `[mesh]` is tried with up to two to this power of devices.
const MAX_LOG2_DEVICES: u32 = 12;

/// Checks that [`train`](super::train) accepts a configuration, with the functions that `train`
/// itself calls before it compiles: the batch over the mesh, the length of the run, the schedule,
/// the optimizer's patterns and the sharding of parameters, and tracing, which finds batch-norm
/// groups that do not fit. `num_examples` is that of the training data; without it, a configuration
/// that counts epochs is refused.
///
/// It opens no files and no plugin. So it does not see what depends on the machine or on what is in
/// the data: how many devices there are, options of the plugin and its compiler, directories, other
/// processes, and, except for synthetic data, whether the model takes the examples. A mesh with
/// `"auto"` is accepted if it would be for some number of devices.
///
/// # Errors
/// The error with which `train` would refuse the configuration.
pub fn check_config(config: &Config, num_examples: Option<usize>) -> Result<(), Error> {
    let splits = match &config.data {
        DataConfig::Synthetic(_) | DataConfig::SyntheticTokens(_) => Some(data::open(config)?),
        _ => None,
    };
    let model = match &splits {
        Some(splits) => build_model(config, &*splits.train)?,
        None => config.model.build(Objective {
            loss: match config.train.loss {
                loss if loss.is_regression() => LossFunction::SquaredError,
                LossConfig::BinaryCrossEntropy => LossFunction::BinaryCrossEntropy,
                _ => LossFunction::CrossEntropy,
            },
            ..Objective::from(NUM_OUTPUTS)
        }),
    };
    if let Some(splits) = &splits {
        check_example(&*model, config, splits)?;
    }
    let has_numbers = !matches!(config.train.loss, LossConfig::Auto | LossConfig::CrossEntropy);
    let of_model = |(name, ty): (&str, TensorType)| {
        let TensorType { dtype, dims, .. } = match name {
            "y" if has_numbers => TensorType::new(DType::F32, &[NUM_OUTPUTS]),
            _ => ty,
        };
        BatchField { name: name.to_owned(), dtype, dims }
    };
    let fields = match &splits {
        Some(splits) => fields_of(&*splits.train),
        None => config.model.example().into_iter().map(of_model).collect(),
    };
    let platform = platform_on_host(config).unwrap_or(Platform::Cpu);
    let check = |mesh: Mesh| {
        let run = Run::resolve(config, fields.clone(), num_examples, mesh, platform)?;
        step::check_programs(&run.spec(&*model).declare()?).map_err(Error::from)
    };
    let Err(refused) = check(mesh_on_host(config)) else { return Ok(()) };
    let mut others = (0..=MAX_LOG2_DEVICES).map(|log2| config.mesh.on_virtual_devices(1 << log2));
    match config.mesh.fixed().is_none() && others.any(|mesh| check(mesh).is_ok()) {
        true => Ok(()),
        false => Err(refused),
    }
}

/// Refuses data that the model does not take.
///
/// # Errors
/// Names the key to change.
pub fn check_example(model: &dyn Model, config: &Config, splits: &Splits) -> Result<(), Error> {
    let [x, ..] = splits.train.fields() else { return Ok(()) };
    let num_classes = splits.train.num_outputs();
    let Err(misfit) = model.check_example(x.dtype, &x.dims, num_classes) else {
        return check_labels_and_tokens(config, splits);
    };
    let (key, takes) = match misfit {
        Misfit::Kind { takes } => ("data.source", takes),
        Misfit::Dims { takes } => (config.data.shape_key(), takes),
        Misfit::Classes { takes } => (config.data.classes_key(), takes),
    };
    let example = TensorType::new(x.dtype, &x.dims).to_string();
    Err(Error::Example { key, example, num_classes, model: config.model.name(), takes })
}

fn check_labels_and_tokens(config: &Config, splits: &Splits) -> Result<(), Error> {
    if let (Some(found), Some(vocabulary)) = (splits.train.vocab_size(), config.model.vocabulary())
        && found > vocabulary
    {
        return Err(Error::Vocabulary { found, vocabulary });
    }
    let example = config.model.example();
    let fields = splits.train.fields();
    let lacks = |name: &str| !fields.iter().any(|field| field.name == name);
    if let Some((field, _)) = example.iter().find(|(name, _)| lacks(name)) {
        return Err(Error::Field { model: config.model.name(), field });
    }
    let taken = example.iter().find(|(name, _)| *name == "y").map(|(_, ty)| ty.dims.len());
    let given = fields.iter().find(|field| field.name == "y");
    let given = given.map(|field| field.dims.len());
    let has_classes = splits.train.label_kind() == LabelKind::Class;
    if let (Some(0), Some(1)) | (Some(1), Some(0)) = (taken, given)
        && (has_classes || taken == Some(1))
    {
        let of = |rank: Option<usize>| if rank == Some(0) { "each example" } else { "each token" };
        let (model, takes, found) = (config.model.name(), of(taken), of(given));
        return Err(Error::Labels { model, takes, found });
    }
    Ok(())
}
