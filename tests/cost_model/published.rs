//! Steps that others published: how many tokens or images a device trained on a second.
//!
//! A published language model is taken as a GPT with as many parameters; a block has 12 squares of
//! its width.

use lockstep::targets::{Chip, Target};

/// A published step.
pub struct Published {
    /// The publisher, the model, the devices, and other facts that matter.
    pub what: String,
    pub target: &'static str,
    pub num_devices: usize,
    pub model: Model,
    /// Examples of a device in a step, or of the devices that have the same ones, in as many
    /// microbatches.
    pub batch: usize,
    pub num_microbatches: usize,
    pub remat: bool,
    /// The stage of ZeRO, over all devices; 0 for whole state.
    pub zero: usize,
    /// How the devices are arranged, if not all along `data` or `fsdp`.
    pub axes: Option<Axes>,
    pub network: Option<&'static str>,
    pub attention: Attention,
    /// Tokens or images per second and device.
    pub per_second: f64,
    /// No share is fitted to it: it was looked up when the shares stood.
    pub is_held_out: bool,
}

/// Devices along axes; those that are left over lie along `data`.
#[derive(Clone, Copy, PartialEq)]
pub struct Axes {
    pub fsdp: usize,
    pub tensor: usize,
    pub pipeline: usize,
    /// Of each stage of the pipeline.
    pub num_chunks: usize,
}

#[derive(Clone, Copy, PartialEq)]
pub enum Model {
    Gpt { num_layers: usize, width: usize, num_heads: usize, context: usize, vocabulary: usize },
    ResNet50,
}

/// How attention was computed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Attention {
    /// By a fused kernel, as cuDNN has it. This project has none on TPUs, where the publishers had.
    Fused,
    /// As ops, with scores in memory.
    Ops,
}
pub use Attention::{Fused, Ops};

/// `12 * num_layers` squares of the width.
const fn gpt(
    num_layers: usize,
    width: usize,
    num_heads: usize,
    context: usize,
    vocabulary: usize,
) -> Model {
    Model::Gpt { num_layers, width, num_heads, context, vocabulary }
}

/// Blocks, width and heads of MosaicML's models.
const MPT: [(&str, usize, usize, usize); 9] = [
    ("125M", 12, 768, 12),
    ("350M", 24, 1024, 16),
    ("760M", 24, 1536, 12),
    ("1B", 24, 2048, 16),
    ("3B", 32, 2560, 20),
    ("7B", 32, 4096, 32),
    ("13B", 40, 5120, 40),
    ("30B", 48, 7168, 56),
    ("70B", 80, 8192, 64),
];

/// MosaicML, llm-foundry, `scripts/train/benchmarking/README.md`: the model, its context, where it
/// ran, examples of a microbatch, microbatches, whether blocks are recomputed, and tokens per
/// second and GPU.
type MptRow = (&'static str, usize, &'static str, usize, usize, bool, f64);
const MPT_ROWS: [MptRow; 36] = [
    ("125M", 2048, "gpu:a100:1x8", 40, 2, false, 142_830.0),
    ("350M", 2048, "gpu:a100:1x8", 32, 2, false, 58_782.0),
    ("1B", 2048, "gpu:a100:1x8", 14, 4, false, 20_513.0),
    ("7B", 2048, "gpu:a100:1x8", 6, 2, false, 4641.0),
    ("125M", 512, "gpu:a100:1x8", 128, 2, false, 165_681.0),
    ("350M", 512, "gpu:a100:1x8", 128, 2, false, 69_330.0),
    ("760M", 2048, "gpu:a100:1x8", 24, 2, false, 32_434.0),
    ("1B", 8192, "gpu:a100:1x8", 3, 4, false, 13_814.0),
    ("3B", 2048, "gpu:a100:1x8", 10, 2, false, 10_811.0),
    ("13B", 2048, "gpu:a100:1x8", 2, 3, false, 2262.0),
    ("30B", 2048, "gpu:a100:1x8", 3, 21, true, 916.0),
    ("70B", 2048, "gpu:a100:8x8", 8, 4, true, 410.0),
    ("125M", 2048, "gpu:a100-40gb:16x8", 26, 1, false, 123_936.0),
    ("350M", 2048, "gpu:a100-40gb:2x8", 18, 1, false, 55_413.0),
    ("1B", 2048, "gpu:a100-40gb:16x8", 10, 1, false, 18_647.0),
    ("7B", 2048, "gpu:a100-40gb:16x8", 18, 1, true, 3623.0),
    ("13B", 2048, "gpu:a100-40gb:16x8", 16, 1, true, 1972.0),
    ("30B", 2048, "gpu:a100-40gb:16x8", 6, 1, true, 865.0),
    ("70B", 2048, "gpu:a100-40gb:16x8", 4, 1, true, 376.0),
    ("760M", 512, "gpu:h100:1x8", 96, 2, false, 83_749.0),
    ("760M", 2048, "gpu:h100:1x8", 24, 2, false, 63_147.0),
    ("1B", 512, "gpu:h100:1x8", 56, 4, false, 52_275.0),
    ("1B", 2048, "gpu:h100:1x8", 14, 1, false, 45_455.0),
    ("1B", 8192, "gpu:h100:1x8", 3, 4, false, 29_157.0),
    ("1B", 2048, "gpu:h100:8x8", 20, 1, false, 44_402.0),
    ("3B", 512, "gpu:h100:1x8", 40, 6, false, 27_965.0),
    ("3B", 2048, "gpu:h100:2x8", 10, 3, false, 24_142.0),
    ("7B", 2048, "gpu:h100:1x8", 6, 1, false, 10_643.0),
    ("7B", 2048, "gpu:h100:16x8", 6, 1, false, 10_475.0),
    ("7B", 2048, "gpu:h100:64x8", 6, 1, false, 9670.0),
    ("13B", 2048, "gpu:h100:1x8", 2, 1, false, 4792.0),
    ("13B", 2048, "gpu:h100:8x8", 2, 1, false, 4800.0),
    ("13B", 2048, "gpu:h100:16x8", 16, 1, true, 5080.0),
    ("30B", 2048, "gpu:h100:4x8", 14, 3, true, 2308.0),
    ("30B", 2048, "gpu:h100:64x8", 8, 1, true, 2115.0),
    ("70B", 2048, "gpu:h100:8x8", 8, 4, true, 1039.0),
];

fn mpt(
    (name, context, target, microbatch, num_microbatches, remat, per_second): MptRow,
) -> Published {
    let row = MPT.iter().find(|row| row.0 == name).unwrap();
    Published {
        model: gpt(row.1, row.2, row.3, context, 50_368),
        remat,
        num_microbatches,
        ..published(
            "llm-foundry",
            &format!("MPT {name}"),
            target,
            microbatch * num_microbatches,
            per_second,
        )
    }
}

/// A step of a GPT on all devices of a target, in stage 3.
fn published(
    who: &str,
    model: &str,
    target: &'static str,
    batch: usize,
    per_second: f64,
) -> Published {
    Published {
        what: format!("{who}, {model}"),
        target,
        num_devices: target.parse::<Target>().unwrap().num_devices(),
        model: Model::ResNet50,
        batch,
        num_microbatches: 1,
        remat: false,
        zero: 3,
        axes: None,
        network: None,
        attention: Fused,
        per_second,
        is_held_out: false,
    }
}

/// MaxText, `configs/tpu/*/README.md`: TFLOP/s of a chip, which counts 6 for each parameter and 12
/// for each pair of positions in an attention of the model's width. With `remat_policy=full`.
fn maxtext(what: &str, target: &'static str, batch: usize, tflops: f64, model: Model) -> Published {
    let per_second = tflops * 1e12 / model.flops_per_item();
    Published { model, remat: true, ..published("MaxText", what, target, batch, per_second) }
}

const B16: Model = gpt(78, 4096, 32, 2048, 32_000);
const B32: Model = gpt(39, 8192, 64, 2048, 32_000);
const B64: Model = gpt(78, 8192, 64, 2048, 32_000);
/// 64 blocks of width 8192 with attention of 16,384 and gated layers of 57,344: of 12 squares, and
/// nearly as many bytes that blocks exchange.
const B128: Model = gpt(39, 16_384, 128, 2048, 32_000);
const B22: Model = gpt(48, 6144, 48, 2048, 32_000);
const B52: Model = gpt(32, 12_288, 96, 2048, 32_000);
const GPT2: Model = gpt(12, 768, 12, 1024, 50_304);
const GPT3: Model = gpt(96, 12_288, 96, 2048, 50_304);
/// With the vocabulary of Megatron-LM.
const MEGATRON_175B: Model = gpt(96, 12_288, 96, 2048, 51_200);
/// Llama 2 and 3 with as many parameters in blocks of 12 squares.
const LLAMA_7B: Model = gpt(32, 4096, 32, 4096, 32_000);
const LLAMA_8B: Model = gpt(35, 4096, 32, 8192, 128_256);
const MISTRAL_7B: Model = gpt(35, 4096, 32, 8192, 32_000);
const LLAMA2_70B: Model = gpt(85, 8192, 64, 4096, 32_000);
const LLAMA3_70B: Model = gpt(85, 8192, 64, 8192, 128_256);
const LLAMA_405B: Model = gpt(126, 16_384, 128, 8192, 128_256);

/// All of them. `shared/cases` of the project's issues has none that is not here.
pub fn all() -> Vec<Published> {
    let mut rows: Vec<_> = MPT_ROWS.into_iter().map(mpt).collect();
    // karpathy/llm.c, discussion 481: 10 billion tokens in 90 minutes on 8 A100; README of
    // modded-nanogpt: in 45 on 8 H100; discussion 677: 32000 steps of 1048576 tokens in 24 hours,
    // from memory.
    let llm_c = |what, target, batch, per_second, model| Published {
        model,
        zero: 0,
        ..published("llm.c", what, target, batch, per_second)
    };
    rows.push(llm_c("GPT-2 124M", "gpu:a100:1x8", 64, 1e10 / 5400.0 / 8.0, GPT2));
    rows.push(llm_c("GPT-2 124M", "gpu:h100:1x8", 64, 1e10 / 2700.0 / 8.0, GPT2));
    rows.push(Published {
        num_microbatches: 8,
        zero: 1,
        ..llm_c(
            "GPT-2 1558M",
            "gpu:h100:1x8",
            128,
            32_000.0 * 1_048_576.0 / 86_400.0 / 8.0,
            gpt(48, 1600, 25, 1024, 50_304),
        )
    });
    // NVIDIA, JAX-Toolbox, `rosetta/projects/pax/README.md`: the first without TransformerEngine.
    rows.push(Published {
        model: gpt(12, 768, 12, 2048, 50_304),
        zero: 0,
        attention: Ops,
        ..published("Paxml", "GPT 126M", "gpu:a100:8x8", 4, 56_361.6)
    });
    rows.push(Published {
        model: gpt(24, 4096, 32, 2048, 50_304),
        ..published("Paxml", "GPT 5B", "gpu:a100:32x8", 8, 4790.64)
    });
    // Narayanan et al. 2021, table 1: 137 TFLOP/s a GPU, with the paper's count of a step with
    // recomputation; the microbatch is assumed.
    rows.push(Published {
        model: gpt(24, 2304, 24, 2048, 51_200),
        num_microbatches: 4,
        remat: true,
        zero: 0,
        attention: Ops,
        ..published("Megatron-LM", "GPT 1.7B", "gpu:a100:4x8", 16, 9287.935)
    });
    // torchtitan, `docs/performance.md` of 2024; the TorchTitan paper, table 1, from memory: H100s
    // of 500 W and 2.4 TB/s.
    rows.push(Published {
        model: LLAMA_8B,
        ..published("torchtitan", "Llama 3 8B", "gpu:a100:8x8", 1, 2973.0)
    });
    rows.push(Published {
        model: LLAMA_8B,
        ..published("torchtitan", "Llama 3.1 8B, 500 W", "gpu:h100:1x8", 2, 6258.0)
    });
    // README of TinyLlama.
    rows.push(Published {
        model: gpt(19, 2048, 32, 2048, 32_000),
        ..published("TinyLlama", "Llama 1.1B", "gpu:a100-40gb:2x8", 8, 24_000.0)
    });
    // PyTorch blog, "Maximizing training throughput", 2024; README of fms-fsdp.
    rows.push(Published {
        model: LLAMA_7B,
        network: Some("roce-v2-400:devices_per_port=8"),
        ..published("IBM", "Llama 2 7B", "gpu:a100:16x8", 2, 3700.0)
    });
    rows.push(Published {
        model: LLAMA_7B,
        ..published("IBM", "Llama 2 7B", "gpu:h100:12x8", 2, 7500.0)
    });
    // MaxText, `configs/gpu/a3/llama_2_7b`: 492 TFLOP/s.
    rows.push(Published {
        remat: false,
        ..maxtext("Llama 2 7B", "gpu:h100:1x8", 4, 492.0, LLAMA_7B)
    });
    // NVIDIA, DeepLearningExamples, `PyTorch/Classification/ConvNets/resnet50v1.5`, on a DGX A100;
    // MLPerf Training 3.0: 35 epochs in 13.466 minutes, from memory.
    let resnet = |who, target, num_devices, batch, per_second| Published {
        num_devices,
        zero: 0,
        attention: Ops,
        ..published(who, "ResNet-50", target, batch, per_second)
    };
    rows.push(resnet("NVIDIA", "gpu:a100:1x8", 1, 256, 2470.0));
    rows.push(resnet("NVIDIA", "gpu:a100:1x8", 8, 256, 2077.625));
    let images = 35.0 * 1_281_167.0 / (13.466 * 60.0) / 8.0;
    rows.push(resnet("MLPerf 3.0", "gpu:h100:1x8", 8, 408, images));
    rows.extend([
        maxtext("16B", "tpu:v5e:16x16", 6, 120.0, B16),
        maxtext("16B", "tpu:v5e:16x16x4", 6, 117.0, B16),
        maxtext("16B", "tpu:v5e:16x16x32", 6, 108.0, B16),
        maxtext("32B", "tpu:v5e:16x16", 4, 132.0, B32),
        maxtext("32B", "tpu:v5e:16x16x4", 4, 126.0, B32),
        maxtext("32B", "tpu:v5e:16x16x32", 4, 119.0, B32),
        maxtext("64B", "tpu:v5e:16x16", 2, 118.0, B64),
        maxtext("64B", "tpu:v5e:16x16x4", 2, 110.0, B64),
        maxtext("64B", "tpu:v5e:16x16x32", 2, 99.0, B64),
        maxtext("22B", "tpu:v4:4x4x4", 13, 156.0, B22),
        maxtext("22B", "tpu:v4:4x4x4x8", 13, 146.0, B22),
        maxtext("52B", "tpu:v4:4x4x12", 7, 154.0, B52),
    ]);
    // MaxText, `configs/tpu/v5p`, with few values recomputed; `docs/reference/models/tiering.md`.
    let kept = |row: Published| Published { remat: false, ..row };
    rows.push(kept(maxtext("32B", "tpu:v5p:4x4x4", 6, 328.0, B32)));
    rows.push(kept(maxtext("64B", "tpu:v5p:4x4x4", 3, 323.0, B64)));
    let recipe = |model, what, target, batch, per_second| Published {
        model,
        remat: true,
        ..published("MaxText", what, target, batch, per_second)
    };
    rows.push(recipe(LLAMA2_70B, "Llama 2 70B", "tpu:v5p:8x8x8", 4, 692.0));
    // Google, tpu-recipes, `training/trillium` and `training/ironwood`. All but GPT-3 and Llama 2
    // keep the inputs and projections of attention in the host's memory.
    rows.push(recipe(GPT3, "GPT-3 175B", "tpu:v6e:16x16", 3, 357.58));
    rows.push(recipe(LLAMA_8B, "Llama 3.1 8B", "tpu:v6e:2x4", 3, 7138.89));
    rows.push(recipe(LLAMA_8B, "Llama 3.1 8B", "tpu:v6e:16x16", 4, 7207.336));
    rows.push(recipe(LLAMA2_70B, "Llama 2 70B", "tpu:v6e:16x16", 2, 905.021));
    rows.push(recipe(LLAMA3_70B, "Llama 3.1 70B", "tpu:v6e:8x8", 2, 876.736));
    let held_out = |row: Published| Published { is_held_out: true, ..row };
    rows.extend(
        [
            recipe(LLAMA_8B, "Llama 3.1 8B", "tpu:v6e:4x8", 3, 7031.689),
            recipe(MISTRAL_7B, "Mistral 7B", "tpu:v6e:2x4", 6, 7776.813),
            recipe(LLAMA3_70B, "Llama 3.1 70B", "tpu:v6e:4x8", 2, 920.965),
            recipe(LLAMA3_70B, "Llama 3.1 70B", "tpu:v6e:8x16", 4, 941.976),
            recipe(LLAMA3_70B, "Llama 3.1 70B", "tpu:v6e:16x16", 5, 960.248),
        ]
        .map(held_out),
    );
    // torchtitan, `benchmarks/llama3_h100_202412_torchtitan.md`, tables 1 and 3, with
    // torch.compile: H100s of 500 W and 2.4 TB/s.
    let torchtitan = |target, per_second| Published {
        model: LLAMA_8B,
        ..published("torchtitan", "Llama 3.1 8B, compiled, 500 W", target, 2, per_second)
    };
    rows.extend(
        [("gpu:h100:1x8", 6667.0), ("gpu:h100:16x8", 6514.0)]
            .map(|(target, per_second)| held_out(torchtitan(target, per_second))),
    );
    // MaxText, `configs/tpu/v5e/README.md`, 56.1 and 46.3 % of the peak; `128b.sh`: a sequence for
    // each chip, 16 x 16 of a slice along `fsdp` and `tensor`.
    let of_128b = |target: &'static str, mfu: f64| {
        let peak = target.parse::<Target>().unwrap().chip.bf16_flops_per_sec;
        Published {
            axes: Some(Axes { fsdp: 16, tensor: 16, pipeline: 1, num_chunks: 1 }),
            ..maxtext("128B", target, 16, mfu * peak / 1e12, B128)
        }
    };
    rows.extend(
        [("tpu:v5e:16x16", 0.561), ("tpu:v5e:16x16x32", 0.463)]
            .map(|(target, mfu)| held_out(of_128b(target, mfu))),
    );
    // Megatron-LM, README, strong scaling with 1152 sequences: 47 and 42 % of the peak. It does not
    // say how: 8 along `tensor`, 12 stages of 8 chunks of a block and microbatches of one sequence
    // are assumed.
    let megatron = |target: &'static str, num_data: usize, mfu: f64| {
        let peak = target.parse::<Target>().unwrap().chip.bf16_flops_per_sec;
        let per_second = mfu * peak / MEGATRON_175B.flops_per_item();
        Published {
            model: MEGATRON_175B,
            num_microbatches: 1152 / num_data,
            zero: 0,
            axes: Some(Axes { fsdp: 1, tensor: 8, pipeline: 12, num_chunks: 8 }),
            ..published("Megatron-LM", "GPT-3 175B", target, 1152 / num_data, per_second)
        }
    };
    rows.extend(
        [("gpu:h100:12x8", 1, 0.47), ("gpu:h100:576x8", 48, 0.42)]
            .map(|(target, num_data, mfu)| held_out(megatron(target, num_data, mfu))),
    );
    rows.push(recipe(LLAMA3_70B, "Llama 3.1 70B", "tpu:tpu7x:4x4x4", 2, 2686.98 / 2.0));
    rows.push(recipe(LLAMA3_70B, "Llama 3.1 70B", "tpu:tpu7x:4x8x8", 2, 2670.55 / 2.0));
    rows.push(recipe(LLAMA_405B, "Llama 3.1 405B", "tpu:tpu7x:4x8x8", 3, 499.77 / 2.0));
    rows
}

impl Model {
    /// FLOPs of a token or an image without recomputation, as publishers count them.
    pub fn flops_per_item(self) -> f64 {
        match self {
            Self::Gpt { num_layers, width, context, vocabulary, .. } => {
                let (layers, width) = (num_layers as f64, width as f64);
                let parameters = 12.0 * layers * width * width + vocabulary as f64 * width;
                6.0 * parameters + 12.0 * layers * width * context as f64
            }
            Self::ResNet50 => 24.6e9,
        }
    }

    pub fn items_per_example(self) -> f64 {
        match self {
            Self::Gpt { context, .. } => context as f64,
            Self::ResNet50 => 1.0,
        }
    }
}

impl Published {
    pub fn chip(&self) -> &'static Chip {
        self.target.parse::<Target>().unwrap().chip
    }

    /// Chips with the same arithmetic have one share.
    pub fn group(&self) -> &'static str {
        if self.chip().name.starts_with("a100") { "a100" } else { self.chip().name }
    }

    /// With the sizes that matter.
    pub fn label(&self) -> String {
        let of = match self.model {
            Model::Gpt { context, .. } => format!("{} x {context}", self.batch),
            Model::ResNet50 => self.batch.to_string(),
        };
        let parts = if self.num_microbatches > 1 {
            format!(" in {}", self.num_microbatches)
        } else {
            String::new()
        };
        let remat = if self.remat { ", remat" } else { "" };
        format!("{}, {of}{parts}{remat}", self.what)
    }
}
