//! Sizes of the published ResNets, and that evaluation and training see the same parameters.

use hlo::{AxisSet, DType, Mesh, TensorType, trace};
use models::resnet::{ResNet, ResNetConfig, ResNetPreset};
use models::{Initializer, Parameter, Precision, Scope};

/// Numbers in parameters, leaves among them, and numbers in running means.
fn sizes(preset: ResNetPreset, num_classes: usize, image: [usize; 3]) -> (usize, usize, usize) {
    let mut sizes = (0, 0, 0);
    trace(Mesh::SINGLE, |t| {
        let dims = [&[2], &image[..]].concat();
        let x = t.input("x", TensorType::new(DType::F32, &dims));
        let scope = Scope::declare(t, Precision::uniform(DType::F32), AxisSet::EMPTY);
        let model = ResNet {
            config: ResNetConfig { preset, ..ResNetConfig::default() },
            objective: num_classes.into(),
        };
        assert_eq!(model.logits(&scope, x).dims(), [2, num_classes]);
        let count = |dims: &[usize]| dims.iter().product::<usize>();
        let parameters = scope.parameters();
        sizes = (
            parameters.values().map(|parameter| count(&parameter.dims)).sum(),
            parameters.len(),
            scope.running_means().values().map(|mean| count(&mean.dims)).sum(),
        );
    })
    .unwrap();
    sizes
}

/// Torchvision 0.20's `resnet50().parameters()`: 25,557,032 numbers in 161 tensors; its buffers
/// hold 53,120 running means and variances.
#[test]
fn resnet50_has_the_published_parameters() {
    assert_eq!(sizes(ResNetPreset::ResNet50, 1000, [3, 224, 224]), (25_557_032, 161, 53_120));
}

/// With `zero_init_last_scale` the scale of the last norm in each block starts at 0, and no other
/// leaf does that otherwise does not: each block starts as its shortcut. Goyal et al. (2017),
/// section 5.1.
#[test]
fn the_last_scale_of_each_block_starts_at_zero_if_asked_for() {
    for (preset, image, last, num_blocks) in [
        (ResNetPreset::ResNet20, 32, ".norm2.weight", 9),
        (ResNetPreset::ResNet50, 64, ".norm3.weight", 16),
    ] {
        let zeros = |zero_init_last_scale: bool| -> Vec<String> {
            let mut zeros = vec![];
            trace(Mesh::SINGLE, |t| {
                let x = t.input("x", TensorType::new(DType::F32, &[2, 3, image, image]));
                let scope = Scope::declare(t, Precision::uniform(DType::F32), AxisSet::EMPTY);
                let config =
                    ResNetConfig { preset, zero_init_last_scale, ..ResNetConfig::default() };
                ResNet { config, objective: 10.into() }.logits(&scope, x);
                let is_zero = |(path, parameter): &(&str, &Parameter)| {
                    parameter.initializer == Initializer::Zeros && path.ends_with(".weight")
                };
                let parameters = scope.parameters();
                zeros = parameters.iter().filter(is_zero).map(|(path, _)| path.into()).collect();
            })
            .unwrap();
            zeros
        };
        assert_eq!(zeros(false), [""; 0]);
        let zeros = zeros(true);
        assert_eq!(zeros.len(), num_blocks);
        assert!(zeros.iter().all(|path| path.ends_with(last)), "{zeros:?}");
    }
}

/// Table 6 of the paper says 0.27 and 0.85 million. By hand for 3n blocks of two convolutions each:
/// stem `27 * 16`; stages `9 w^2` a convolution, the first of a stage from `w / 2`; two numbers a
/// norm channel; head `65 * 10`.
#[test]
fn the_networks_for_small_images_have_the_published_parameters() {
    for (preset, n, published) in
        [(ResNetPreset::ResNet20, 3, 0.27e6), (ResNetPreset::ResNet56, 9, 0.85e6)]
    {
        let convolutions: usize = [16, 32, 64]
            .map(|w| 9 * w * w * (2 * n) - if w > 16 { 9 * w * w / 2 } else { 0 })
            .iter()
            .sum();
        let norms = 2 * (16 + 2 * n * (16 + 32 + 64));
        let expected = 27 * 16 + convolutions + norms + 65 * 10;
        let (parameters, _, running) = sizes(preset, 10, [3, 32, 32]);
        assert_eq!((parameters, running), (expected, norms));
        assert!((parameters as f64 / published - 1.0).abs() < 0.01, "{parameters}");
    }
    assert_eq!(sizes(ResNetPreset::ResNet20, 10, [3, 32, 32]).0, 269_722);
}
