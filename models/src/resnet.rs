//! `resnet`: residual networks for images.
//!
//! `x -> relu(f(x) + shortcut(x))`, block after block: He, Zhang, Ren and Sun, "Deep residual
//! learning for image recognition" (2016). Section 4.2 has those for 32x32 images (ResNet-20, -56:
//! basic blocks), table 1 those for 224x224 (ResNet-50: bottlenecks; version 1.5, with the stride
//! in the 3x3 convolution, as torchvision has it).
//!
//! **Shortcuts** are the published ones. Where a block changes the size, the small networks take
//! every second pixel and pad features with zeros (option A: no parameters, so that their counts
//! are those of table 6), and the large ones project with a 1x1 convolution and a norm (option B,
//! as all published ResNet-50 weights do).

use hlo::{DType, Tensor, TensorType};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use smart_default::SmartDefault;

use crate::layers::{
    BatchNorm, Conv2d, batch_norm, conv2d, global_avg_pool, linear, max_pool, relu,
};
use crate::model_keys::Architecture;
use crate::{Batch, Counterpart, Initializer, Loss, Misfit, Model, Objective, Scope};

/// Published networks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ResNetPreset {
    /// 20 layers, for 32x32 images: 0.27 million parameters.
    #[default]
    ResNet20,
    /// 56 layers, for 32x32 images: 0.85 million parameters.
    ResNet56,
    /// 50 layers, for 224x224 images: 25.6 million parameters.
    ResNet50,
}

/// Configuration of a ResNet. The size of the output comes from the data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, SmartDefault)]
#[serde(default, deny_unknown_fields)]
pub struct ResNetConfig {
    /// The network: 20 or 56 layers for images of 32x32, 50 (v1.5) for images of 224x224.
    pub preset: ResNetPreset,
    /// Number of examples that batch norm normalizes together.
    #[schemars(range(min = 1), extend("unit" = "examples"))]
    #[default(32)]
    pub batch_norm_group: usize,
    // Goyal et al., "Accurate, large minibatch SGD" (2017), section 5.1.
    /// Start the last norm of each block with scale 0, so that the block starts as its shortcut.
    pub zero_init_last_scale: bool,
    /// Label smoothing: the share that is spread evenly over all classes in training. Evaluation
    /// uses the labels unchanged.
    #[schemars(extend("minimum" = 0, "exclusiveMaximum" = 1, "unit" = "share of a label"))]
    pub label_smoothing: f64,
}

impl Architecture for ResNetConfig {
    fn build(&self, objective: Objective) -> Box<dyn Model> {
        Box::new(ResNet { config: self.clone(), objective })
    }

    fn example(&self) -> Vec<(&'static str, TensorType)> {
        let x = TensorType::new(DType::F32, &[3, 64, 64]);
        vec![("x", x), ("y", TensorType::new(DType::I32, &[]))]
    }

    fn check_tensor_replicas(&self, _num_replicas: usize) -> Result<(), String> {
        let reason = "convolutions have too few channels to be worth cutting, and batch norm too \
                      few examples; use mesh.data and mesh.fsdp";
        Err(reason.to_owned())
    }

    fn batch_norm_group(&self) -> Option<usize> {
        Some(self.batch_norm_group)
    }

    fn label_smoothing(&self) -> Option<f64> {
        Some(self.label_smoothing)
    }

    /// torchvision has none of the networks for 32x32 images.
    fn counterpart(&self) -> Option<Counterpart> {
        let is_published = self.preset == ResNetPreset::ResNet50;
        is_published.then(Counterpart::torchvision_resnet)
    }
}

/// A ResNet for a known number of classes. Parameters are `stem.{conv, norm}`,
/// `stages.I.blocks.J.{conv1, norm1, conv2, ..}`, `stages.I.blocks.J.shortcut.{conv, norm}` and
/// `head`.
#[derive(Clone, Debug)]
pub struct ResNet {
    /// Its layers.
    pub config: ResNetConfig,
    /// What its outputs are trained on.
    pub objective: Objective,
}

impl Model for ResNet {
    /// The objective's loss of `y` under the outputs for `x` (float `[n, c, h, w]`).
    fn loss<'g>(&self, scope: &Scope<'g>, batch: &Batch<'g>) -> Loss<'g> {
        let logits_nc = self.logits(scope, batch.field("x"));
        self.objective.loss(scope, logits_nc, batch, self.config.label_smoothing)
    }

    fn scores<'g>(&self, scope: &Scope<'g>, batch: &Batch<'g>) -> Option<Tensor<'g>> {
        Some(self.objective.scores(self.logits(scope, batch.field("x"))))
    }

    fn check_example(&self, dtype: DType, dims: &[usize], _classes: usize) -> Result<(), Misfit> {
        let takes = "images, f32[channels, height, width]".to_owned();
        match (dtype.is_float(), dims.len()) {
            (true, 3) => Ok(()),
            (true, _) => Err(Misfit::Dims { takes }),
            (false, _) => Err(Misfit::Kind { takes }),
        }
    }
}

impl ResNet {
    /// `[n, c, h, w] -> [n, classes]`.
    #[track_caller]
    pub fn logits<'g>(&self, scope: &Scope<'g>, x_nchw: Tensor<'g>) -> Tensor<'g> {
        let (block_counts, bottleneck): (&[usize], bool) = match self.config.preset {
            ResNetPreset::ResNet20 => (&[3; 3], false),
            ResNetPreset::ResNet56 => (&[9; 3], false),
            ResNetPreset::ResNet50 => (&[3, 4, 6, 3], true),
        };
        // Convolutions use NHWC layout, which XLA prefers on CPUs and GPUs: otherwise it transposes
        // around each.
        let x_nhwc = x_nchw.transpose(&[0, 2, 3, 1]);
        let mut x = self.stem(&scope.at("stem"), x_nhwc, bottleneck);
        let first_width = x.dim(3);
        for (stage, num_blocks) in block_counts.iter().enumerate() {
            let width = first_width << stage;
            for block in 0..*num_blocks {
                let scope = scope.at("stages").at(stage).at("blocks").at(block);
                let stride = if stage > 0 && block == 0 { 2 } else { 1 };
                x = match bottleneck {
                    true => self.bottleneck(&scope, x.block_boundary(), width, stride),
                    false => self.basic_block(&scope, x.block_boundary(), width, stride),
                };
            }
        }
        let features_nc = global_avg_pool(x.block_boundary());
        let initializer = Initializer::lecun_normal(features_nc.dim(1));
        linear(&scope.at("head"), features_nc, self.objective.num_outputs, initializer)
    }

    fn stem<'g>(&self, scope: &Scope<'g>, x: Tensor<'g>, for_large_images: bool) -> Tensor<'g> {
        if for_large_images {
            let conv = Conv2d { num_out: 64, size: 7, stride: 2 };
            max_pool(relu(self.conv_norm(scope, "", x, conv)), 3, 2, 1)
        } else {
            let conv = Conv2d { num_out: 16, size: 3, stride: 1 };
            relu(self.conv_norm(scope, "", x, conv))
        }
    }

    /// Two 3x3 convolutions, the first with the stride.
    fn basic_block<'g>(
        &self,
        scope: &Scope<'g>,
        x: Tensor<'g>,
        width: usize,
        stride: usize,
    ) -> Tensor<'g> {
        let y = self.conv_norm(scope, "1", x, Conv2d { num_out: width, size: 3, stride });
        let y = conv2d(&scope.at("conv2"), relu(y), Conv2d { num_out: width, size: 3, stride: 1 });
        let y = self.last_norm(&scope.at("norm2"), y);
        relu(y + padded_shortcut(x, width, stride))
    }

    /// 1x1 down to `width`, 3x3 with the stride, 1x1 up to four times `width`.
    fn bottleneck<'g>(
        &self,
        scope: &Scope<'g>,
        x: Tensor<'g>,
        width: usize,
        stride: usize,
    ) -> Tensor<'g> {
        let narrow = Conv2d { num_out: width, size: 1, stride: 1 };
        let wide = Conv2d { num_out: 4 * width, size: 1, stride: 1 };
        let y = relu(self.conv_norm(scope, "1", x, narrow));
        let y = relu(self.conv_norm(scope, "2", y, Conv2d { size: 3, stride, ..narrow }));
        let y = self.last_norm(&scope.at("norm3"), conv2d(&scope.at("conv3"), y, wide));
        let shortcut = match x.dim(3) == wide.num_out && stride == 1 {
            true => x,
            false => self.conv_norm(&scope.at("shortcut"), "", x, Conv2d { stride, ..wide }),
        };
        relu(y + shortcut)
    }

    fn conv_norm<'g>(
        &self,
        scope: &Scope<'g>,
        number: &str,
        x: Tensor<'g>,
        conv: Conv2d,
    ) -> Tensor<'g> {
        let y = conv2d(&scope.at(format!("conv{number}")), x, conv);
        let norm = BatchNorm { group: self.config.batch_norm_group, weight: Initializer::Ones };
        batch_norm(&scope.at(format!("norm{number}")), y, norm)
    }

    fn last_norm<'g>(&self, scope: &Scope<'g>, x: Tensor<'g>) -> Tensor<'g> {
        let weight =
            if self.config.zero_init_last_scale { Initializer::Zeros } else { Initializer::Ones };
        batch_norm(scope, x, BatchNorm { group: self.config.batch_norm_group, weight })
    }
}

/// Every `stride`th pixel, padded with zeros to `num_out` features, half of them on either side.
fn padded_shortcut(x_nhwc: Tensor<'_>, num_out: usize, stride: usize) -> Tensor<'_> {
    let [_, _, _, num_in] = x_nhwc.dims();
    if num_in == num_out && stride == 1 {
        return x_nhwc;
    }
    let dims = x_nhwc.shape();
    let taken = x_nhwc.slice(&[0; 4], &dims, &[1, stride, stride, 1]);
    let new = num_out.saturating_sub(num_in);
    let (low, high) = ((new / 2) as i64, (new - new / 2) as i64);
    taken.pad(0.0, &[0, 0, 0, low], &[0, 0, 0, high], &[0; 4])
}
