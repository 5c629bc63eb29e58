//! The table of rules.

use super::{
    Found, Recipe, batch, constants, decay, factors, neighbours, rate, trust, unused, warmup,
    weight_decay,
};

/// A rule, as `schedule --explain` shows it.
pub struct RuleInfo {
    /// Its name.
    pub name: &'static str,
    /// The rule in words, with its limits.
    pub about: &'static str,
    /// The literature on it.
    pub source: &'static str,
    find: fn(&Recipe<'_>) -> Vec<Found>,
}

const GOYAL: &str = "Goyal et al., Accurate, Large Minibatch SGD (2017)";
const LARS: &str =
    "You, Gitman and Ginsburg, Large Batch Training of Convolutional Networks (2017)";
const HOFFMANN: &str =
    "Hoffmann et al., Training Compute-Optimal Large Language Models (2022), appendix B";
const WORTSMAN: &str = "Wortsman et al., Small-scale Proxies for Large-scale Transformer Training \
                        Instabilities (2023)";

/// All rules.
#[rustfmt::skip]
const RULES: [RuleInfo; 42] = [
    RuleInfo { name: "rate-too-high", find: rate::too_high, source: WORTSMAN,
        about: "The highest resolved rate is beyond what diverges. SGD on images: rate / (1 - \
                momentum) per 256 examples above 8 (5 without a warm-up, 2.8 from a batch of 4096 \
                on, 12 for 32-pixel images; published: 1 to 5, at most 2.3, and 10 for CIFAR), or \
                a rate above 20; where an epoch has fewer than 8 steps rate / (1 - momentum) above \
                60 instead, below which no rate is an error. Adam on transformers: rate x width \
                above 4.5, or 3 from 1e11 parameters on (published: 0.1 to 3.3), both times the \
                root of (tokens of a step / 250000) below that and from 5e6 parameters on; or \
                above 0.25 in steps of fewer than 15000 tokens (times the root of parameters / 1e8 \
                above that) from 5e7 parameters and 2 tokens per parameter on. Adam elsewhere: \
                above 0.02, on images times the root of (batch / 256) below that, and at least \
                0.004. SGD on transformers: rate / (1 - momentum) above 6; on MLPs: above 5, or 50 \
                with layer norm (both times the limit of clipping, if it is below 1). An error \
                above 6 times these limits." },
    RuleInfo { name: "rate-too-low", find: rate::too_low, source: GOYAL,
        about: "The highest resolved rate is too low to train the model from scratch. SGD on \
                images: rate / (1 - momentum) per 256 examples below 0.08 in a run from scratch \
                (0.28 from a batch of 1024 on, where 0.3 is published; a note below that at \
                smaller batches; none where an epoch has fewer than 8 steps), or below 0.002 in \
                any. SGD on transformers: rate / (1 - momentum) below 0.01. Adam on transformers, \
                in runs that are too long for fine-tuning: rate x width below 0.05 and a rate \
                below 6e-5, a rate below 0.3 of what is usual for the size from 1e9 parameters and \
                40 tokens per parameter on, or below 1e-6 times the root of a batch of 16384 or \
                more. Adam on images from scratch: below 2e-5." },
    RuleInfo { name: "rate-unlike-published", find: neighbours::unlike_published,
        source: "The table of published recipes: `lockstep recipes`; Malladi et al., On the SDEs \
                 and Scaling Rules for Adaptive Gradient Algorithms (2022)",
        about: "The rate is far from those of the published recipes (`lockstep recipes`) for the \
                same optimizer and kind of model whose batch is within a factor of 16 of this one, \
                and for transformers the size too (both 8, tokens for the batch, pre-training \
                apart from fine-tuning, and at least 5e6 parameters, with Adam): each is scaled to \
                this batch as its papers scale it. LARS (rate x trust coefficient / (1 - \
                momentum)), LAMB and Adam: above 2.5 times the second highest (and above 0.002 for \
                Adam on images). LARS and LAMB: below a quarter of the lowest. It needs three such \
                recipes, and is silent where a limit for all batches is exceeded." },
    RuleInfo { name: "fine-tuning-rate", find: rate::fine_tuning,
        source: "Mosbach et al., On the Stability of Fine-tuning BERT (2021)",
        about: "Adam on a transformer with rate x width above 0.32 in a run of less than one token \
                per parameter, or of a few epochs on such a small data set: too short to train \
                from scratch, and too high to keep what was learned before (published for \
                fine-tuning: 0.005 to 0.31)." },
    RuleInfo { name: "rate-not-scaled", find: rate::not_scaled, source: GOYAL,
        about: "The declared scaling does not fit the optimizer: the square root for SGD from 4 \
                times the base batch on; no scaling from 4 times on (16 for Adam and LAMB; a note \
                from 2 on); linear scaling of Adam from 32 times on (a note from 16 on, which is \
                published); or a fixed rate for a batch that grows with a number of replicas that \
                is not fixed (a warning)." },
    RuleInfo { name: "sgd-on-transformer", find: rate::sgd_on_transformer,
        source: "Zhang et al., Why Are Adaptive Methods Good for Attention Models? (2020)",
        about: "SGD on a transformer from scratch, as far as the data show it: at least 20 tokens \
                per parameter, and data of 2. A note otherwise: SGD fine-tunes vision transformers." },
    RuleInfo { name: "trust-ratio-too-high", find: trust::too_high, source: LARS,
        about: "LARS or LAMB move a layer too far. The share of its norm that a layer moves in a \
                step is rate x trust coefficient for LARS and the rate for LAMB. LARS: above 0.05 \
                in one step, or above 0.8 over the momentum (published: at most 0.036 and 0.58); \
                an error above 1 in one step. LAMB: above 0.03, 0.06 for images (published: at \
                most 0.01 and 0.04); an error above 0.3." },
    RuleInfo { name: "trust-ratio-too-low", find: trust::too_low, source: LARS,
        about: "LARS or LAMB hardly turn a layer in the whole run, in at least 500 steps. LARS: \
                less than 20 times its norm in all, and less than 0.02 in a step over the \
                momentum. LAMB: less than its norm in all, in more than 2000 steps at a rate below \
                5e-4." },
    RuleInfo { name: "rate-factors", find: factors::unusual,
        source: "Bao et al., BEiT: BERT Pre-Training of Image Transformers (2022), appendix; Clark \
                 et al., ELECTRA (2020), appendix",
        about: "`optimizer.lr_factors` gives a parameter more than 40 times the rate (published: \
                up to 10 for a new head), or more than 0.05 with Adam. Or `optimizer.layer_decay` \
                leaves the lowest layers less than a tenth of the rate from scratch (published for \
                fine-tuning only), or less than 1e-4 in fine-tuning (published: 1e-3)." },
    RuleInfo { name: "trust-excluded", find: trust::excluded, source: LARS,
        about: "`optimizer.trust_exclude` leaves no parameter of rank 2 or more with a trust \
                ratio: LARS is then SGD, and LAMB is Adam, at rates that are 10 to 1000 times \
                those of SGD and Adam." },
    RuleInfo { name: "no-trust-ratios", find: batch::without_trust_ratios,
        source: "Nado et al., A Large Batch Optimizer Reality Check (2021)",
        about: "A batch above 32768 with one rate for all parameters: a warning for SGD on images \
                and transformers, a note otherwise; published batches of Adam go to 90112." },
    RuleInfo { name: "schedule-impossible", find: decay::impossible, source: "`lockstep train` refuses it",
        about: "`lockstep train` refuses the schedule." },
    RuleInfo { name: "schedule-ends-early", find: decay::ends_early, source: HOFFMANN,
        about: "The decay ends before the run, at a rate below a thousandth of the peak, for at \
                least 2 % of the run: these steps do nothing. An error from half of the run on. A \
                warning if the decay ends at a higher floor, below half of the peak, for 70 % of \
                the run, or below 2 % of it for 30 % of the run; a note for less (published: \
                GPT-3)." },
    RuleInfo { name: "schedule-ends-late", find: decay::ends_late, source: HOFFMANN,
        about: "The decay ends after the run, whose last rate is above 30 % of the peak; a note \
                below that." },
    RuleInfo { name: "boundaries-unreached", find: decay::unreached, source: GOYAL,
        about: "Boundaries are after the end of the run: a warning from 1000 steps on, otherwise a \
                note." },
    RuleInfo { name: "decays-too-soon", find: decay::too_soon, source: HOFFMANN,
        about: "The mean rate of the run is below 6 % of the peak: most steps hardly move the \
                parameters. Milestones in steps left over from a larger batch, for example. Or the \
                decay is too steep: a power above 5 (published: 0.5 to 2), or a factor of `step` \
                below 0.02 (published: 0.1 and above). Or the first boundary of `step` is in the \
                first 5 % of a run of at least 1000 steps, or its last one in the first 45 %, and \
                then at most 2 % of the rate are left." },
    RuleInfo { name: "never-decays", find: decay::never,
        source: "Defazio et al., When, Why and How Much? Adaptive Learning Rate Scheduling by \
                 Refinement (2023)",
        about: "The rate ends above 35 % of its peak (50 % with `inverse_sqrt`), unless it is \
                constant or ends below 60 % and a running mean of the parameters (`ema_decay` from \
                0.99 on) takes the noise out: images from scratch, from 30 epochs on (but not Adam \
                on 32-pixel images); Adam and LAMB on transformers, in runs of at least 20 tokens \
                per parameter and 1e9 tokens at a rate for training from scratch." },
    RuleInfo { name: "decay-too-short", find: decay::too_short,
        source: "Hägele et al., Scaling Laws and Compute-Optimal Training Beyond Fixed Training \
                 Durations (2024)",
        about: "The decay of `wsd` takes less than 2 % of a run of at least 1000 steps (published: \
                10 to 20 %)." },
    RuleInfo { name: "rate-jumps", find: decay::jump, source: GOYAL,
        about: "The rate changes by more than a quarter of its peak in one step, without a \
                declared boundary, in runs of at least 50 steps; or `step` multiplies it by more \
                than 1; or a constant warm-up ends with a jump by more than 12 (published: 10)." },
    RuleInfo { name: "peak-unreached", find: decay::peak_unreached,
        source: "Page, How to Train Your ResNet (2018)",
        about: "The highest factor of `piecewise` is below 0.9: factors are shares of the peak, \
                and rates in their place multiply it." },
    RuleInfo { name: "warmup-missing", find: warmup::missing,
        source: "Ma and Yarats, On the Adequacy of Untuned Warmup for Adaptive Optimization (2021)",
        about: "The run starts at more than half of a rate that needs a warm-up. SGD: rate / (1 - \
                momentum) above 6 (not for linear models). LARS: 0.03 of a layer's norm over the \
                momentum. LAMB: 5e-4. Adam: rate x width from 0.3 on (published without: 0.29), in \
                transformers of at least 1e7 parameters and 5 tokens per parameter; 2e-3 for \
                images at a batch of 1024; fine-tuning 2e8 parameters or more on fewer than 20000 \
                examples in batches of at most 32. A note for other runs with Adam." },
    RuleInfo { name: "warmup-too-short", find: warmup::too_short, source: GOYAL,
        about: "The warm-up to such a rate takes fewer than 50 steps, in runs of at least 500 \
                steps: 20 for LAMB, and for other transformers a 2000th of the run up to 200 if \
                that is more (published: a 1400th)." },
    RuleInfo { name: "warmup-too-long", find: warmup::too_long, source: GOYAL,
        about: "The warm-up is longer than the run (an error, or a note if schedule.total_steps \
                says that a longer schedule goes on), more than 60 % of it, or with Adam more than \
                15 % and 60000 steps (a warning; published: up to 40000), or more than 20 % (a \
                note; published: mostly up to 10 %, at most 48 %)." },
    RuleInfo { name: "boundary-inside-warmup", find: warmup::boundary_inside, source: GOYAL,
        about: "A boundary lies inside the warm-up, which passes over it, so that the peak is \
                never reached." },
    RuleInfo { name: "weight-decay-too-strong", find: weight_decay::too_strong,
        source: "Loshchilov and Hutter, Decoupled Weight Decay Regularization (2019)",
        about: "Decay takes too much of a parameter in a step: AdamW: rate x decay above 0.005, or \
                a decay of 1 or more (published: at most 0.5) (an error above 0.02, which leaves \
                nothing of 50 steps ago). SGD: rate x decay / (1 - momentum) above 0.02 \
                (published: at most 0.017), or a decay from 0.005 on. Adam, whose decay is added \
                to the gradient: 0.01. LARS: 0.001 (published: 5e-4 and below). LAMB: above 0.5." },
    RuleInfo { name: "weight-decay-too-weak", find: weight_decay::too_weak,
        source: "Zhang et al., Three Mechanisms of Weight Decay Regularization (2019)",
        about: "Over the whole run, SGD on images from scratch, from 60 epochs on, decays by an \
                exponent below 0.5; or LARS on images from scratch has no decay. A note for AdamW \
                from scratch whose decay of 1e-3 or less does nothing: it may be from a convention \
                without the rate; or that has none, in at least 20 tokens per parameter." },
    RuleInfo { name: "decayed-norm-or-bias", find: weight_decay::norm_or_bias,
        source: "He et al., Bag of Tricks for Image Classification (2019), section 3.1",
        about: "Weight decay also applies to biases and scales of norms." },
    RuleInfo { name: "weight-decay-excluded", find: unused::weight_decay,
        source: "Loshchilov and Hutter, Decoupled Weight Decay Regularization (2019)",
        about: "`optimizer.weight_decay` is above 0, and `optimizer.weight_decay_exclude` leaves \
                no parameter of rank 2 or more with it." },
    RuleInfo { name: "evaluation-unreached", find: unused::evaluations,
        source: "Prechelt, Early Stopping - But When? (1998)",
        about: "`train.eval_every` is longer than a run of at least 1000 steps: a note, and a \
                warning if `train.patience` waits for evaluations." },
    RuleInfo { name: "factor-too-low", find: unused::factors,
        source: "Zhu et al., Deformable DETR (2021), appendix; Howard and Ruder, Universal \
                 Language Model Fine-tuning (2018)",
        about: "`optimizer.lr_factors` leaves a parameter less than 0.001 of the rate (published: \
                0.01 and above)." },
    RuleInfo { name: "unmatched-pattern", find: constants::unmatched_pattern, source: "`lockstep train` refuses it",
        about: "A pattern matches no parameter, which `lockstep train` refuses." },
    RuleInfo { name: "betas", find: constants::betas,
        source: "Zhang et al., Adam Can Converge Without Any Modification on Update Rules (2022)",
        about: "beta1 is not below the root of beta2, beta2 is below 0.8 or above 0.9995, or beta1 \
                above 0.98 (published beta2: 0.88 to 0.999)." },
    RuleInfo { name: "momentum", find: constants::momentum, source: GOYAL,
        about: "Momentum between 0 and 0.4, probably a typing error; none at a rate that was found \
                with 0.9; or above 0.98 with LARS (published: at most 0.97), 0.991 with SGD \
                (published: 0.99)." },
    RuleInfo { name: "epsilon", find: constants::epsilon, source: WORTSMAN,
        about: "epsilon of Adam from 1e-3 on, 1e-4 for transformers (published: at most 1e-5): \
                gradients are smaller, so that the step is no longer normalized. A note for LAMB, \
                whose trust ratio normalizes it again." },
    RuleInfo { name: "long-memory", find: constants::long_memory,
        source: "Busbridge et al., How to Scale Your EMA (2023)",
        about: "A running mean of parameters or gradients that is not corrected for its start \
                remembers more than half of the run: 1 / (1 - decay) steps. A note for Adam's \
                moments, which are corrected, and for a mean of the parameters that does not \
                remember more than the run." },
    RuleInfo { name: "short-memory", find: constants::short_memory,
        source: "Busbridge et al., How to Scale Your EMA (2023)",
        about: "`optimizer.ema_decay` is below 0.9 (published: 0.99 and above), so that next to \
                nothing is averaged. Some libraries name the share of the new instead." },
    RuleInfo { name: "double-precision", find: constants::double_precision,
        source: "Micikevicius et al., Mixed Precision Training (2018)",
        about: "f64 in a run of at least 1000 steps." },
    RuleInfo { name: "clipping", find: constants::clipping,
        source: "Pascanu, Mikolov and Bengio, On the Difficulty of Training Recurrent Neural \
                 Networks (2013)",
        about: "Clipping bounds what the run can do. SGD: a limit below 0.05, or all steps \
                together below a norm of 10 (an error); or none on a transformer with rate / (1 - \
                momentum) from 0.5 on. Adam: the limit spread over all parameters is below a \
                thirtieth of epsilon, so that updates vanish; a note for limits below 0.005." },
    RuleInfo { name: "batch-norm-group", find: batch::norm_group,
        source: "Wu and He, Group Normalization (2018), figure 1",
        about: "Batch norm over fewer than 8 examples, whose statistics are noise (a note below \
                16), or over 1024 and more with SGD (a note with others), where its regularization \
                is lost (Hoffer et al., 2017)." },
    RuleInfo { name: "label-smoothing", find: batch::label_smoothing,
        source: "Müller, Kornblith and Hinton, When Does Label Smoothing Help? (2019)",
        about: "Label smoothing of 0.3 or more (published: 0.1 to 0.2). A note for more than 8192 \
                images a step without any." },
    RuleInfo { name: "dropout", find: batch::dropout,
        source: "Srivastava et al., Dropout: A Simple Way to Prevent Neural Networks from \
                 Overfitting (2014)",
        about: "Dropout above 0.6 (published: 0 to 0.5), or above 0.35 in a transformer \
                (published: at most 0.3)." },
    RuleInfo { name: "batch-shape", find: batch::shape, source: GOYAL,
        about: "Notes: epochs of fewer than 8 steps, and 64 or more microbatches of a single \
                example." },
];

/// A refusal of `lockstep train`. It is no rule, as it is found without a recipe, and a check
/// cannot ignore it: the run would still be refused.
pub const REFUSED: RuleInfo = RuleInfo {
    name: "refused-by-train",
    about: "`lockstep train` refuses the configuration for a reason that no rule has given, such \
            as batch-norm groups that cannot be made of the microbatches. It cannot be left out \
            with `check.ignore`: the run would still be refused.",
    source: "`lockstep train` refuses it",
    find: |_| vec![],
};

/// All rules.
pub fn rules() -> impl Iterator<Item = &'static RuleInfo> {
    RULES.iter()
}

/// The rule with this name.
pub fn rule(name: &str) -> Option<&'static RuleInfo> {
    rules().find(|rule| rule.name == name)
}

/// The findings of all rules, with changes as the rules give them.
pub(super) fn findings(recipe: &Recipe<'_>) -> Vec<(&'static RuleInfo, Found)> {
    let ignored = &recipe.config.check.ignored_rules;
    let mut found: Vec<_> = rules()
        .filter(|rule| !ignored.contains_key(rule.name))
        .flat_map(|rule| (rule.find)(recipe).into_iter().map(move |found| (rule, found)))
        .collect();
    found.sort_by_key(|(_, found)| found.severity);
    found
}
