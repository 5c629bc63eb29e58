//! The tasks, and the arms of the study: the ways in which they are trained.

use models::layers::{BatchNorm, Conv2d, batch_norm, conv2d, global_avg_pool, linear};
use models::loss::cross_entropy;
use models::mlp::{self, Mlp};
use models::{Batch, Initializer, Loss, Model, Scope};

/// A model and its data.
#[derive(Clone, Copy)]
pub enum Task {
    /// Digits as 64 numbers: an MLP with two hidden layers and no norms.
    Digits,
    /// Digits as 8x8 images: three convolutions with batch norm.
    Images,
}

impl Task {
    /// Both tasks.
    pub const ALL: [Self; 2] = [Self::Digits, Self::Images];

    /// The name in figures and tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Digits => "digits, MLP",
            Self::Images => "digits as images, convolutions",
        }
    }

    /// The model to train.
    pub fn model(self) -> Box<dyn Model> {
        let config =
            mlp::MlpConfig { hidden: vec![64, 64], layer_norm: false, ..mlp::MlpConfig::default() };
        match self {
            Self::Digits => Box::new(Mlp { config, objective: 10.into() }),
            Self::Images => Box::new(convolutions),
        }
    }

    /// The rate of SGD at the base batch, and that of LARS.
    fn base_rates(self) -> (f64, f64) {
        match self {
            Self::Digits => (0.03, 0.5),
            Self::Images => (0.05, 0.5),
        }
    }
}

/// Three convolutions with batch norm over 16 examples, global average pooling and a linear head.
fn convolutions<'g>(scope: &Scope<'g>, batch: &Batch<'g>) -> Loss<'g> {
    let x = batch.field("x");
    let num_examples = x.dim(0);
    let mut x = x.reshape(&[num_examples, 8, 8, 1]);
    for (index, (num_out, stride)) in [(8, 1), (16, 2), (32, 2)].into_iter().enumerate() {
        let scope = scope.at("blocks").at(index);
        let y = conv2d(&scope.at("conv"), x, Conv2d { num_out, size: 3, stride });
        let norm = BatchNorm { group: 16, weight: Initializer::Ones };
        x = batch_norm(&scope.at("norm"), y, norm).maximum(0.0);
    }
    let features = global_avg_pool(x);
    let initializer = Initializer::lecun_normal(features.dim(1));
    let logits = linear(&scope.at("head"), features, 10, initializer);
    cross_entropy(logits, batch.field("y"), batch.weight)
}

/// How a task is trained.
#[derive(Clone, Copy, PartialEq)]
pub enum Arm {
    /// SGD with the rate of the base batch for every batch.
    Unscaled,
    /// SGD with the linear scaling rule.
    Scaled,
    /// The same, with a warm-up of five epochs.
    WarmedUp,
    /// LARS, scaled linearly, with the same warm-up.
    Lars,
}

impl Arm {
    /// All arms, in the order of figures and tables.
    pub const ALL: [Self; 4] = [Self::Unscaled, Self::Scaled, Self::WarmedUp, Self::Lars];

    /// The name in figures and tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unscaled => "SGD, rate not scaled",
            Self::Scaled => "SGD, scaled",
            Self::WarmedUp => "SGD, scaled, warm-up",
            Self::Lars => "LARS, scaled, warm-up",
        }
    }

    /// Changes to `examples/digits.toml`.
    pub fn sets(self, task: Task, base_batch: usize) -> Vec<String> {
        let (sgd, lars) = task.base_rates();
        let (name, rate) = if self == Self::Lars { ("lars", lars) } else { ("sgd", sgd) };
        let scaling = if self == Self::Unscaled { "none" } else { "linear" };
        let warmup = match self {
            Self::WarmedUp | Self::Lars => "warmup_epochs=5",
            Self::Unscaled | Self::Scaled => "warmup=none",
        };
        vec![
            format!("optimizer.name={name}"),
            "optimizer.momentum=0.9".to_owned(),
            "optimizer.weight_decay=5e-4".to_owned(),
            format!("schedule.base_lr={rate}"),
            format!("schedule.base_batch={base_batch}"),
            format!("schedule.scaling={scaling}"),
            format!("schedule.{warmup}"),
            "train.epochs=20".to_owned(),
            // A run that diverges is a result, and must not end the study.
            "train.on_nonfinite=skip".to_owned(),
            "train.check_lockstep_every=0".to_owned(),
            "mesh.data=1".to_owned(),
        ]
    }
}
