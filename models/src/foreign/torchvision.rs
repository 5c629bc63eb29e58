//! The ResNets of torchvision.

use super::Layout::Same;
use super::{ForeignFormat, Library};

/// Their names. Counters of batches are not needed to load them.
pub(super) static TORCHVISION_RESNET: ForeignFormat = ForeignFormat {
    name: "a torchvision ResNet",
    library: Library::Torchvision,
    prefix: "",
    rows: &[
        ("stem.conv.weight", "conv1.weight", Same),
        ("stem.norm.weight", "bn1.weight", Same),
        ("stem.norm.bias", "bn1.bias", Same),
        ("stem.norm.mean", "bn1.running_mean", Same),
        ("stem.norm.variance", "bn1.running_var", Same),
        ("stages.*.blocks.*.conv*.weight", "layer+.*.conv*.weight", Same),
        ("stages.*.blocks.*.norm*.weight", "layer+.*.bn*.weight", Same),
        ("stages.*.blocks.*.norm*.bias", "layer+.*.bn*.bias", Same),
        ("stages.*.blocks.*.norm*.mean", "layer+.*.bn*.running_mean", Same),
        ("stages.*.blocks.*.norm*.variance", "layer+.*.bn*.running_var", Same),
        ("stages.*.blocks.*.shortcut.conv.weight", "layer+.*.downsample.0.weight", Same),
        ("stages.*.blocks.*.shortcut.norm.weight", "layer+.*.downsample.1.weight", Same),
        ("stages.*.blocks.*.shortcut.norm.bias", "layer+.*.downsample.1.bias", Same),
        ("stages.*.blocks.*.shortcut.norm.mean", "layer+.*.downsample.1.running_mean", Same),
        ("stages.*.blocks.*.shortcut.norm.variance", "layer+.*.downsample.1.running_var", Same),
        ("head.weight", "fc.weight", Same),
        ("head.bias", "fc.bias", Same),
    ],
    heads: &[],
    optional: &[],
    ignored: &[
        "bn1.num_batches_tracked",
        "layer*.*.bn*.num_batches_tracked",
        "layer*.*.downsample.1.num_batches_tracked",
    ],
    tied: &[],
};
