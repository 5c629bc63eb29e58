//! Each rule with a case that it finds, and one just beside it that it does not.

use lockstep::recipe::{Finding, Severity, rules};

use super::{Loaded, owned};

const IMAGES: &str = "resnet50-imagenet.toml";
const LARS: &str = "resnet50-imagenet-32k-lars.toml";
const LAMB: &str = "gpt2-124m-lamb.toml";
const DIGITS: &str = "digits.toml";
const GPT: &str = "nanogpt-gpt2-124m";
const GPT_LARGE: &str = "opt-175b-linear";
const BERT: &str = "bert-mrpc-google";
const CLIP: &str = "clip-vit-b32-32768";
const CIFAR: &str = "mmpretrain-resnet18-cifar10";
const WSD: &str = "smollm2-135m-wsd-linear";
const SMALL: &str = "pytorch-examples-resnet50-256";
const PROBE: &str = "moco-lincls-lr30";

use Severity::{Error, Note, Warning};

/// The rule, the recipe, how it is broken, the severity, words of the reason, and a change beside
/// it that is not found.
type Case = (
    &'static str,
    &'static str,
    &'static [&'static str],
    Severity,
    &'static str,
    &'static [&'static str],
);

#[rustfmt::skip]
const CASES: &[Case] = &[
    // 0.1 declared for the batch itself is the same as a peak of 0.1.
    ("rate-too-low", IMAGES, &["schedule.peak=0.1"], Warning, "32 times less", &["schedule.peak=0.9"]),
    ("rate-too-low", IMAGES, &["schedule.base_lr=0.1", "schedule.base_batch=8192"], Warning, "per 256 examples", &["schedule.base_lr=3.2", "schedule.base_batch=8192"]),
    ("rate-too-low", GPT, &["optimizer.name=sgd", "schedule.peak=6e-4"], Warning, "a rate for Adam", &["optimizer.name=sgd", "schedule.peak=0.1"]),
    ("rate-too-low", CLIP, &["schedule.peak=1e-4"], Warning, "far smaller batch", &["schedule.peak=2e-4"]),
    // Pairs are trained on further at such rates, for fewer steps.
    ("rate-too-low", CLIP, &["schedule.peak=1e-4", "train.steps=40000", "schedule.warmup_steps=2000"], Warning, "far smaller batch", &["schedule.peak=1e-4", "train.steps=20000", "schedule.warmup_steps=2000"]),
    ("rate-too-low", "olmo-7b-linear", &["schedule.peak=3e-5"], Warning, "one of fine-tuning", &["schedule.peak=7e-5"]),
    ("rate-too-low", SMALL, &["train.global_batch=1024"], Warning, "0.25 per 256", &["train.global_batch=1024", "schedule.peak=0.12"]),
    ("rate-too-low", GPT, &["schedule.peak=6e-6"], Warning, "one of fine-tuning", &["schedule.peak=1e-4"]),
    ("rate-too-low", IMAGES, &["optimizer.name=adamw", "schedule.peak=1e-6"], Warning, "from scratch", &["optimizer.name=adamw", "schedule.peak=1e-4"]),
    ("rate-too-low", IMAGES, &["schedule.name=piecewise", "schedule.boundaries=[0]", "schedule.factors=[0]", "schedule.warmup=none"], Error, "0 in every step", &[]),
    ("rate-too-low", SMALL, &["schedule.peak=0.02"], Note, "0.2 per 256", &["schedule.peak=0.03"]),
    ("rate-too-high", SMALL, &["schedule.peak=10"], Error, "100 per 256", &["schedule.peak=0.4"]),
    ("rate-too-high", IMAGES, &["optimizer.momentum=0.99"], Warning, "10 per 256", &["optimizer.momentum=0.95"]),
    ("rate-too-high", CIFAR, &["schedule.peak=1.0"], Warning, "20 per 256", &["schedule.peak=0.5"]),
    ("rate-too-high", GPT, &["schedule.peak=6e-3"], Warning, "rate x width is 4.61", &["schedule.peak=3e-3"]),
    ("rate-too-high", GPT, &["schedule.peak=0.06"], Error, "rate x width", &["schedule.peak=5e-3"]),
    ("rate-too-high", GPT_LARGE, &["schedule.peak=3e-4"], Warning, "1.9 from 1e11", &["schedule.peak=2e-4"]),
    ("rate-too-high", GPT, &["train.global_batch=12", "train.num_microbatches=1", "mesh.data=1"], Warning, "for steps of 12288 tokens", &["train.global_batch=16", "train.num_microbatches=1", "mesh.data=1"]),
    ("rate-too-high", GPT, &["schedule.peak=4e-3", "train.global_batch=96", "train.num_microbatches=1", "mesh.data=1"], Warning, "for steps of 98304 tokens", &["schedule.peak=3e-3", "train.global_batch=96", "train.num_microbatches=1", "mesh.data=1"]),
    ("rate-too-high", GPT, &["optimizer.name=sgd", "schedule.peak=3.2"], Warning, "2 / sharpness", &["optimizer.name=sgd", "schedule.peak=0.1"]),
    ("rate-too-high", IMAGES, &["optimizer.name=adamw", "schedule.peak=0.1"], Warning, "at most 0.01", &["optimizer.name=adamw", "schedule.peak=0.01"]),
    ("rate-too-high", "edge-of-stability-full-batch-gd", &["schedule.peak=10"], Warning, "2 / sharpness", &["schedule.peak=1"]),
    ("rate-unlike-published", LARS, &["train.global_batch=1024"], Warning, "times above all but one", &["train.global_batch=1024", "schedule.peak=6.0"]),
    ("rate-unlike-published", LARS, &["optimizer.momentum=0.0"], Warning, "times below all of them", &["optimizer.momentum=0.85"]),
    ("rate-unlike-published", LAMB, &["schedule.peak=3e-2"], Warning, "times above all but one", &["schedule.peak=6e-3"]),
    ("rate-unlike-published", IMAGES, &["optimizer.name=adamw", "schedule.peak=4e-3", "train.global_batch=64"], Warning, "times above all but one", &["optimizer.name=adamw", "schedule.peak=2e-3", "train.global_batch=64"]),
    ("rate-unlike-published", BERT, &["schedule.peak=5e-4"], Warning, "times above all but one", &["schedule.peak=5e-5"]),
    ("fine-tuning-rate", BERT, &["schedule.peak=1e-3"], Warning, "too high to fine-tune", &["schedule.peak=1e-4"]),
    ("rate-not-scaled", IMAGES, &["schedule.scaling=sqrt"], Warning, "over 32 times the batch", &["schedule.scaling=linear"]),
    ("rate-not-scaled", IMAGES, &["schedule.scaling=none"], Warning, "stays 0.1", &["schedule.scaling=none", "schedule.base_batch=4096"]),
    ("rate-not-scaled", IMAGES, &["schedule.scaling=none", "schedule.base_batch=4096"], Note, "stays 0.1", &["schedule.scaling=none", "schedule.base_batch=8192"]),
    ("rate-not-scaled", "deit-s-1024", &["schedule.base_batch=32"], Warning, "over 32 times the batch", &["schedule.base_batch=64"]),
    ("rate-not-scaled", "deit-s-1024", &["schedule.base_batch=64"], Note, "adaptive optimizer", &["schedule.base_batch=128"]),
    ("rate-not-scaled", DIGITS, &["train.batch_per_replica=32", "mesh.data=auto", "schedule.peak=2e-3"], Warning, "grows with the replicas", &["train.global_batch=32"]),
    ("rate-not-scaled", DIGITS, &["train.batch_per_replica=32"], Note, "grows with the replicas", &["train.global_batch=32"]),
    ("sgd-on-transformer", GPT, &["optimizer.name=sgd", "schedule.peak=0.1"], Warning, "far more slowly", &["optimizer.name=sgd", "schedule.peak=0.1", "train.steps=3000"]),
    ("sgd-on-transformer", GPT, &["optimizer.name=sgd", "schedule.peak=0.1", "train.steps=3000"], Note, "far more slowly", &[]),
    ("trust-ratio-too-high", LARS, &["optimizer.trust_coefficient=1.0"], Error, "32 of its norm", &["schedule.peak=37"]),
    ("trust-ratio-too-high", LAMB, &["schedule.peak=0.05"], Warning, "0.05 of its norm", &["schedule.peak=0.01"]),
    ("trust-ratio-too-high", "rsb-a2-resnet50-lamb-2048", &["schedule.peak=0.07"], Warning, "0.07 of its norm", &["schedule.peak=0.05"]),
    ("trust-ratio-too-low", LARS, &["schedule.peak=0.1"], Warning, "times its norm", &["schedule.peak=3.2"]),
    ("trust-ratio-too-low", LAMB, &["schedule.peak=1e-4"], Warning, "times its norm", &["schedule.peak=1e-3"]),
    ("no-trust-ratios", IMAGES, &["train.global_batch=65536"], Warning, "65536 with sgd", &["train.global_batch=32768"]),
    ("no-trust-ratios", "openclip-b32-90k", &[], Note, "90000 with adamw", &["train.global_batch=32768", "mesh.data=auto"]),
    ("schedule-impossible", DIGITS, &["schedule.name=wsd", "schedule.decay_epochs=29.5"], Error, "begins inside the warm-up", &["schedule.name=wsd", "schedule.decay_epochs=10"]),
    ("schedule-ends-early", DIGITS, &["schedule.total_epochs=10"], Error, "last 440 of 660", &["schedule.total_epochs=30"]),
    ("schedule-ends-early", DIGITS, &["schedule.total_epochs=20"], Warning, "last 220 of 660", &["schedule.total_epochs=30"]),
    ("schedule-ends-early", DIGITS, &["schedule.total_epochs=20", "schedule.floor=0.1"], Note, "have a rate of 2e-4", &[]),
    ("schedule-ends-early", GPT, &["schedule.floor=0.1", "schedule.total_steps=100000"], Warning, "last 500000 of 600000", &["schedule.floor=0.1", "schedule.total_steps=200000"]),
    ("schedule-ends-late", DIGITS, &["schedule.total_epochs=60"], Warning, "still 51 % of its peak", &["schedule.total_epochs=33"]),
    ("boundaries-unreached", IMAGES, &["train.epochs=70"], Warning, "1 of 3 boundaries", &["train.epochs=81"]),
    ("boundaries-unreached", IMAGES, &["train.epochs=6"], Note, "3 of 3 boundaries", &[]),
    ("boundaries-unreached", IMAGES, &["schedule.boundaries=[150000, 300000]"], Warning, "2 of 2 boundaries", &["schedule.boundaries=[5000, 10000]"]),
    ("decays-too-soon", SMALL, &["schedule.boundaries=[4684, 9369, 12492]"], Warning, "mean rate", &["schedule.boundaries=[46840, 93690, 224920]"]),
    ("decays-too-soon", LARS, &["schedule.power=9"], Warning, "a power of 9", &["schedule.power=5"]),
    ("decays-too-soon", SMALL, &["schedule.factor=0.001"], Warning, "multiplies the rate by 0.001", &["schedule.factor=0.02"]),
    ("decays-too-soon", LARS, &["schedule.power=20"], Warning, "mean rate", &["schedule.power=3"]),
    ("decays-too-soon", SMALL, &["schedule.boundaries=[600]"], Warning, "at step 600 already", &["schedule.boundaries=[30000]"]),
    ("never-decays", SMALL, &["schedule.name=constant"], Warning, "ends at 100 %", &["schedule.name=cosine"]),
    ("never-decays", SMALL, &["schedule.factor=0.9"], Warning, "ends at 81 %", &["schedule.factor=0.5"]),
    ("never-decays", GPT, &["schedule.floor=0.4"], Warning, "ends at 40 %", &["schedule.floor=0.3"]),
    ("never-decays", "pythia-410m", &["schedule.name=constant"], Warning, "noise", &["schedule.name=linear"]),
    ("decay-too-short", WSD, &["schedule.decay_steps=400"], Warning, "400 of 2000000", &["schedule.decay_steps=200000"]),
    ("rate-jumps", DIGITS, &["schedule.warmup_epochs=1", "schedule.name=piecewise", "schedule.boundaries=[0, 600]", "schedule.factors=[3, 3]"], Warning, "jumps from 0.002 to 0.006 at step 22", &["schedule.name=piecewise", "schedule.boundaries=[0, 600]", "schedule.factors=[1, 0]"]),
    ("rate-jumps", DIGITS, &["schedule.name=piecewise", "schedule.boundaries=[22, 600]", "schedule.factors=[0.2, 1]"], Note, "at step 22", &[]),
    ("rate-jumps", SMALL, &["schedule.factor=10"], Warning, "multiplied by 10", &["schedule.factor=0.5"]),
    ("rate-jumps", IMAGES, &["schedule.warmup=constant", "schedule.warmup_factor=0.05"], Warning, "ends with a jump", &["schedule.warmup=constant", "schedule.warmup_factor=0.1"]),
    ("peak-unreached", "page-cifar10-fast-512", &["schedule.factors=[0.0, 0.4, 0.0]"], Warning, "highest factor is 0.4", &["schedule.factors=[0.0, 0.95, 0.0]"]),
    ("warmup-missing", IMAGES, &["schedule.warmup=none"], Warning, "starts at more than half", &["schedule.warmup=constant", "schedule.warmup_factor=0.1"]),
    ("warmup-missing", IMAGES, &["schedule.base_lr=3.2", "schedule.base_batch=8192", "schedule.warmup=none"], Warning, "lasting step of 32", &[]),
    // A warm-up from the peak is none.
    ("warmup-missing", IMAGES, &["schedule.warmup_factor=1.0"], Warning, "starts at more than half", &["schedule.warmup_factor=0.25"]),
    ("warmup-missing", LARS, &["schedule.warmup=none"], Warning, "LARS moves", &[]),
    ("warmup-missing", LAMB, &["schedule.warmup=none"], Warning, "LAMB moves", &[]),
    ("warmup-missing", GPT, &["schedule.warmup=none"], Warning, "Adam moves", &["schedule.warmup_steps=100"]),
    ("warmup-missing", "roberta-large-mnli", &["schedule.warmup=none", "data.num_examples=8551", "train.steps=5336"], Warning, "second moments", &["schedule.warmup=none", "train.steps=5336"]),
    ("warmup-missing", DIGITS, &["schedule.warmup=none"], Note, "second moments", &[]),
    // A piecewise curve that rises is a warm-up.
    ("warmup-missing", "page-cifar10-fast-512", &["schedule.boundary_epochs=[0, 24]", "schedule.factors=[2.0, 0.0]"], Warning, "lasting step of 8", &[]),
    ("warmup-too-short", IMAGES, &["schedule.warmup_steps=5"], Warning, "0.0 %", &["schedule.warmup_steps=100"]),
    ("warmup-too-short", GPT, &["schedule.warmup_steps=10"], Warning, "of 600000 steps", &["schedule.warmup_steps=250"]),
    ("warmup-too-short", GPT, &["schedule.warmup_steps=100"], Warning, "within 98 of 600000 steps", &["schedule.warmup_steps=100", "train.steps=60000"]),
    ("warmup-too-long", DIGITS, &["schedule.warmup_steps=1000"], Error, "longer than the run of 660", &["schedule.warmup_steps=200"]),
    ("warmup-too-long", DIGITS, &["schedule.warmup_steps=700", "schedule.total_steps=900"], Note, "ends inside the warm-up of 700", &["schedule.warmup_steps=100", "schedule.total_steps=900"]),
    ("warmup-too-long", DIGITS, &["schedule.warmup_steps=500"], Warning, "500 of 660", &["schedule.warmup_steps=200"]),
    ("warmup-too-long", DIGITS, &["schedule.warmup_steps=330"], Note, "330 of 660", &[]),
    ("boundary-inside-warmup", IMAGES, &["schedule.boundary_epochs=[3, 60]"], Warning, "step 468 lies inside the warm-up of 780", &["schedule.boundary_epochs=[6, 60]"]),
    ("weight-decay-too-strong", GPT, &["optimizer.weight_decay=10"], Warning, "0.6 % of each weight", &["optimizer.weight_decay=0.5"]),
    ("weight-decay-too-strong", GPT, &["optimizer.weight_decay=1.0"], Warning, "0.06 % of each weight", &["optimizer.weight_decay=0.9"]),
    ("weight-decay-too-strong", IMAGES, &["optimizer.weight_decay=7e-4"], Warning, "2.24 % of each weight", &["optimizer.weight_decay=5e-4"]),
    ("weight-decay-too-strong", "deit-s-1024", &["optimizer.weight_decay=50"], Error, "5 % of each weight", &["optimizer.weight_decay=0.3"]),
    ("weight-decay-too-strong", SMALL, &["optimizer.weight_decay=0.1"], Warning, "10 % of each weight", &["optimizer.weight_decay=5e-4"]),
    ("weight-decay-too-strong", DIGITS, &["optimizer.name=adam", "optimizer.weight_decay=0.1"], Warning, "added to the gradient", &["optimizer.name=adam", "optimizer.weight_decay=1e-4"]),
    ("weight-decay-too-strong", LAMB, &["optimizer.weight_decay=1.0"], Warning, "share of the update", &["optimizer.weight_decay=0.1"]),
    ("weight-decay-too-weak", IMAGES, &["optimizer.weight_decay=0"], Warning, "exp(-0)", &["optimizer.weight_decay=2e-5"]),
    ("weight-decay-too-weak", LARS, &["optimizer.weight_decay=0"], Warning, "norms only grow", &["optimizer.weight_decay=1e-6"]),
    ("weight-decay-too-weak", GPT, &["optimizer.weight_decay=1e-4", "train.steps=100000"], Note, "next to nothing", &["optimizer.weight_decay=0.1"]),
    ("weight-decay-too-weak", GPT, &["optimizer.weight_decay=0"], Note, "next to nothing", &["optimizer.weight_decay=0.1"]),
    ("decayed-norm-or-bias", IMAGES, &["optimizer.weight_decay_exclude=['*.bias']"], Warning, "such as `stem.norm.weight`", &[]),
    ("unmatched-pattern", IMAGES, &["optimizer.weight_decay_exclude=['*.bias', '*.nrom?.*']"], Error, "\"*.nrom?.*\" matches no parameter", &["optimizer.weight_decay_exclude=['*.bias', '*.norm?.*']"]),
    ("weight-decay-excluded", GPT, &["optimizer.weight_decay_exclude=['*']"], Warning, "excludes all weights", &["optimizer.weight_decay_exclude=['*bias']"]),
    ("evaluation-unreached", GPT, &["train.eval_every=700000"], Note, "at its end only", &["train.eval_every=600000"]),
    ("evaluation-unreached", GPT, &["train.eval_every=700000", "train.patience=3"], Warning, "never end early", &["train.eval_every=600000", "train.patience=3"]),
    ("factor-too-low", GPT, &["optimizer.lr_factors={ 'blocks.*' = 1e-4 }"], Warning, "hardly moves", &["optimizer.lr_factors={ 'blocks.*' = 0.01 }"]),
    ("betas", GPT, &["optimizer.beta1=0.95", "optimizer.beta2=0.9"], Warning, "may diverge", &["optimizer.beta1=0.9", "optimizer.beta2=0.9"]),
    ("betas", CLIP, &["optimizer.beta1=0.5", "optimizer.beta2=0.5"], Warning, "remembers 2 steps", &[]),
    ("betas", GPT, &["optimizer.beta2=0.9999"], Warning, "lag behind", &["optimizer.beta2=0.999"]),
    ("momentum", SMALL, &["optimizer.momentum=0.09"], Warning, "0.9, with which", &["optimizer.momentum=0.5"]),
    ("momentum", SMALL, &["optimizer.momentum=0"], Warning, "without momentum", &["optimizer.momentum=0", "schedule.peak=1.0"]),
    ("momentum", LARS, &["optimizer.momentum=0.99"], Warning, "0.9 to 0.97", &["optimizer.momentum=0.97"]),
    ("epsilon", GPT, &["optimizer.epsilon=1e-3"], Warning, "larger than most gradients", &["optimizer.epsilon=1e-5"]),
    ("epsilon", LAMB, &["optimizer.epsilon=1.0"], Note, "larger than most gradients", &[]),
    ("long-memory", DIGITS, &["optimizer.ema_decay=0.9999"], Warning, "ema_decay = 0.9999", &["optimizer.ema_decay=0.99"]),
    ("long-memory", DIGITS, &["optimizer.name=sgd", "optimizer.momentum=0.999"], Warning, "momentum = 0.999 remembers 1000 steps, and the run has 660", &["optimizer.name=sgd", "optimizer.momentum=0.99"]),
    ("long-memory", DIGITS, &[], Note, "beta2 = 0.999", &["optimizer.beta2=0.95"]),
    ("short-memory", DIGITS, &["optimizer.ema_decay=0.001"], Warning, "parameters of 1 step, and", &["optimizer.ema_decay=0.95"]),
    ("double-precision", GPT, &["train.precision=f64"], Warning, "600000 steps are in f64", &["train.precision=f64", "train.steps=500"]),
    ("clipping", "flax-nlp-seq-rsqrt", &["optimizer.name=sgd", "schedule.peak=0.1"], Warning, "heavy tails", &["optimizer.name=sgd", "schedule.peak=0.1", "optimizer.clip_grad_norm=1.0"]),
    ("clipping", SMALL, &["optimizer.clip_grad_norm=1e-6"], Error, "all steps by", &["optimizer.clip_grad_norm=1.0"]),
    ("clipping", CIFAR, &["optimizer.clip_grad_norm=0.001"], Warning, "clipped at a norm of 0.001", &["optimizer.clip_grad_norm=0.25"]),
    // Adam divides the limit out, until it is below epsilon.
    ("clipping", GPT, &["optimizer.clip_grad_norm=1e-6"], Warning, "below epsilon", &["optimizer.clip_grad_norm=0.02"]),
    ("rate-factors", GPT, &["optimizer.lr_factors={ 'embed.*' = 100.0 }"], Warning, "published heads have up to 10", &["optimizer.lr_factors={ 'embed.*' = 10.0 }"]),
    ("rate-factors", GPT, &["optimizer.layer_decay=0.65"], Warning, "trained from scratch", &["optimizer.layer_decay=0.9"]),
    ("trust-excluded", LARS, &["optimizer.trust_exclude=['*']"], Error, "no layer has a trust ratio", &["optimizer.trust_exclude=['*.bias']"]),
    ("dropout", GPT, &["model.dropout=0.5"], Warning, "50 % of the values", &["model.dropout=0.3"]),
    ("decays-too-soon", SMALL, &["schedule.boundary_epochs=[15, 35]"], Warning, "those of a shorter run", &["schedule.boundary_epochs=[15, 45]"]),
    ("schedule-ends-early", GPT, &["schedule.floor=0.01", "schedule.total_steps=300000"], Warning, "schedule ends", &["schedule.floor=0.01", "schedule.total_steps=600000"]),
    ("momentum", SMALL, &["optimizer.momentum=0.995", "schedule.peak=0.01"], Warning, "0.9 to 0.99", &["optimizer.momentum=0.99", "schedule.peak=0.01"]),
    ("batch-norm-group", IMAGES, &["model.batch_norm_group=4"], Warning, "groups of 4", &["model.batch_norm_group=16"]),
    ("batch-norm-group", IMAGES, &["model.batch_norm_group=8"], Note, "groups of 8", &[]),
    ("batch-norm-group", IMAGES, &["model.batch_norm_group=4096", "mesh.data=1"], Warning, "groups of 4096", &["model.batch_norm_group=512", "mesh.data=1"]),
    ("label-smoothing", IMAGES, &["model.label_smoothing=0.9"], Warning, "90 % of each label", &["model.label_smoothing=0.2"]),
    ("label-smoothing", IMAGES, &["train.global_batch=16384"], Note, "16384 images", &["train.global_batch=8192"]),
    ("batch-shape", DIGITS, &["train.global_batch=720"], Note, "an epoch is 1 step of 720 examples", &["train.global_batch=128"]),
    ("batch-shape", LAMB, &["train.num_microbatches=4096", "mesh.data=1"], Note, "4096 microbatches", &["train.num_microbatches=512", "mesh.data=1"]),
];

fn findings(name: &str, sets: &[&str]) -> Vec<Finding> {
    // The number of examples is given where the data are not part of this repository.
    let number = match name {
        DIGITS => vec!["data.num_examples=1437".to_owned()],
        _ => vec![],
    };
    Loaded::new(name, &[number, owned(sets)].concat()).findings()
}

#[test]
fn each_rule_finds_its_case_and_not_the_one_beside_it() {
    let mut wrong = vec![];
    for (rule, name, sets, severity, words, beside) in CASES {
        let found = findings(name, sets);
        let is_expected = |finding: &Finding| {
            finding.rule == *rule && finding.severity == *severity && finding.reason.contains(words)
        };
        if !found.iter().any(is_expected) {
            wrong.push(format!(
                "{name} {sets:?}: no {severity} {rule} with {words:?} in {found:#?}"
            ));
        }
        for finding in &found {
            let texts = [&finding.reason, &finding.change, finding.source];
            assert!(texts.iter().all(|text| !text.is_empty()), "{finding:?}");
        }
        if beside.is_empty() {
            continue;
        }
        let found = findings(name, beside);
        let is_there = |finding: &Finding| finding.rule == *rule && finding.severity <= *severity;
        if found.iter().any(is_there) {
            wrong.push(format!("{name} {beside:?}: {rule} in {found:#?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    for rule in rules() {
        assert!(
            CASES.iter().any(|case| case.0 == rule.name),
            "nothing shows what {} finds",
            rule.name
        );
        let has_beside = |case: &Case| case.0 == rule.name && !case.5.is_empty();
        let is_plain = ["sgd-on-transformer", "decayed-norm-or-bias"].contains(&rule.name);
        assert!(is_plain || CASES.iter().any(has_beside), "{}: nothing beside", rule.name);
        assert!(rule.about.ends_with('.') && !rule.source.is_empty(), "{}", rule.name);
    }
}

#[test]
fn rates_are_shown_beside_the_nearest_published_recipe() {
    let found = findings(SMALL, &["schedule.peak=10"]);
    let published = found.iter().find_map(|finding| finding.published.as_deref()).unwrap();
    assert!(published.contains("at a batch of 256 with sgd at 0.1"), "{published}");
}

#[test]
fn linear_models_have_no_limit() {
    assert_eq!(findings(PROBE, &[]), []);
}
