//! Learning rates at every step against optax, Hugging Face, PyTorch and papers
//! (`reference/schedules.py`), and against independent implementations of their formulas;
//! continuity; and a resumed run, which must continue with the same rates.

use std::collections::BTreeSet;
use std::path::Path;

use lockstep::config::{
    self, Config, Constant, Decay, DecayShape, Interpolation, InverseSqrt, Length, Peak, Piecewise,
    Polynomial, RunLength, Scaling, Shape, Span, StepDecay, Warmup, WarmupKind, Wsd,
};
use lockstep::optim::schedule::{Error, Schedule};

/// 100 steps of 64 examples, 10 per epoch.
const TOTAL: u64 = 100;
const WARMUP: u64 = 10;
const PEAK: f64 = 0.5;

fn run(total_steps: u64, global_batch: usize) -> RunLength {
    RunLength::new(Length::Steps(total_steps), Some(645), global_batch).unwrap()
}

fn schedule(shape: Shape, peak: Peak, warmup: Warmup, total: u64) -> Result<Schedule, Error> {
    Schedule::new(&config::ScheduleConfig { shape, peak, warmup }, &run(total, 64))
}

/// A shape, its fraction of the peak after the warm-up as a formula of the step, and whether it
/// jumps.
type Case = (Shape, fn(f64) -> f64, bool);

fn cases() -> Vec<Case> {
    let floor = 0.1;
    let decay = || Decay { floor, ..Decay::default() };
    let short = Decay { floor, total_epochs: Some(6.0), ..Decay::default() };
    let wsd = |decay_shape| Wsd { decay_steps: Some(40), decay_shape, floor, ..Wsd::default() };
    vec![
        (Shape::Constant(Constant {}), |_| 1.0, false),
        (
            Shape::Cosine(decay()),
            |s| 0.55 + 0.45 * (std::f64::consts::PI * (s - 10.0) / 90.0).cos(),
            false,
        ),
        (Shape::Linear(decay()), |s| 1.0 - 0.9 * (s - 10.0) / 90.0, false),
        // Ends at step 60 and then stays constant.
        (Shape::Linear(short), |s| 1.0 - 0.9 * ((s - 10.0) / 50.0).min(1.0), false),
        (
            Shape::Polynomial(Polynomial { power: 3.0, floor, ..Polynomial::default() }),
            |s| 0.1 + 0.9 * (1.0 - (s - 10.0) / 90.0) * ((100.0 - s) / 90.0).powi(2),
            false,
        ),
        (Shape::InverseSqrt(InverseSqrt {}), |s| (10.0 / (s + 1.0)).sqrt(), false),
        (
            Shape::Step(StepDecay {
                boundary_epochs: Some(vec![4.0, 8.0]),
                ..StepDecay::default()
            }),
            |s| {
                if s < 40.0 {
                    1.0
                } else if s < 80.0 {
                    0.1
                } else {
                    0.01
                }
            },
            true,
        ),
        (Shape::Wsd(wsd(DecayShape::Linear)), |s| 1.0 - 0.9 * ((s - 60.0) / 40.0).max(0.0), false),
        (
            Shape::Wsd(wsd(DecayShape::Cosine)),
            |s| 0.55 + 0.45 * (std::f64::consts::PI * ((s - 60.0) / 40.0).max(0.0)).cos(),
            false,
        ),
        (
            Shape::Wsd(wsd(DecayShape::Sqrt)),
            |s| 1.0 - 0.9 * ((s - 60.0).max(0.0) / 40.0).sqrt(),
            false,
        ),
        (
            Shape::Piecewise(Piecewise {
                boundaries: Some(vec![20, 60]),
                factors: vec![1.0, 0.5],
                ..Piecewise::default()
            }),
            |s| if s < 20.0 { 1.0 } else { (1.0 - (s - 20.0) / 80.0).max(0.5) },
            false,
        ),
        (
            Shape::Piecewise(Piecewise {
                boundary_examples: Some(vec![640, 3840]),
                factors: vec![1.0, 0.3],
                interpolation: Interpolation::Constant,
                ..Piecewise::default()
            }),
            |s| if s < 60.0 { 1.0 } else { 0.3 },
            true,
        ),
    ]
}

/// 100 steps of 64 examples, with these keys of `[schedule]`.
fn read(keys: &str) -> Result<Config, String> {
    let text = format!(
        "[model]\nname = \"mlp\"\n[data]\nsource = \"synthetic\"\nnum_examples = 645\n[train]\n\
         global_batch = 64\nsteps = {TOTAL}\n[optimizer]\nname = \"sgd\"\n[schedule]\n{keys}"
    );
    let config = Config::parse(&text, Path::new("/runs/schedule.toml"), &[]);
    config.map_err(|error| error.to_string())
}

fn resolve(keys: &str) -> Schedule {
    let config = read(keys).unwrap_or_else(|error| panic!("{keys}: {error}"));
    Schedule::new(&config.schedule, &run(TOTAL, 64)).unwrap()
}

#[derive(serde::Deserialize)]
struct References {
    cases: Vec<Reference>,
}

/// The rates of all steps from a source, and the keys that say the same.
#[derive(serde::Deserialize)]
struct Reference {
    source: String,
    keys: toml::Table,
    rates: Vec<f64>,
}

#[test]
fn every_rate_equals_its_reference() {
    let References { cases } = serde_json::from_str(include_str!("schedules.json")).unwrap();
    let mut tested = BTreeSet::new();
    for Reference { source, keys, rates } in cases {
        let text = keys.to_string();
        let schedule = resolve(&text);
        assert_eq!(rates.len() as u64, TOTAL, "{source}");
        for (step, expected) in rates.into_iter().enumerate() {
            let got = schedule.lr(step as u64);
            let is_equal = (got - expected).abs() <= 1e-12 * expected.abs();
            assert!(is_equal, "{source}, step {step}: {got}, not {expected}\n{text}");
        }
        let name = keys["name"].as_str().unwrap().to_owned();
        tested.extend(keys.into_iter().map(|(key, value)| format!("{name} {key} = {value}")));
    }
    for name in Shape::NAMES {
        let mut needed = vec![format!("name = \"{name}\"")];
        match *name {
            "step" | "piecewise" => needed.push("boundaries_from = \"warmup\"".to_owned()),
            "cosine" | "linear" | "polynomial" | "wsd" => {
                needed.push("floor_at = \"last_step\"".to_owned());
            }
            _ => {}
        }
        needed.extend((*name != "wsd").then(|| "warmup_steps = 10".to_owned()));
        needed.push("peak_at = \"next_step\"".to_owned());
        for key in needed {
            assert!(tested.contains(&format!("{name} {key}")), "{name} {key} is not tested");
        }
    }
    for key in [
        "linear decay_from = \"start\"",
        "step warmup_from = \"base\"",
        "step warmup = \"constant\"",
    ] {
        assert!(tested.contains(key), "{key} is not tested");
    }
}

#[test]
fn conventions_are_defaults_or_named() {
    let rates = |keys: &str| {
        let schedule = resolve(keys);
        (0..TOTAL).map(|step| schedule.lr(step)).collect::<Vec<_>>()
    };
    let linear = "name = \"linear\"\npeak = 0.5\nwarmup_steps = 10\n";
    let scaled = "name = \"linear\"\nbase_lr = 0.1\nbase_batch = 16\nwarmup_steps = 10\n";
    let same = [
        (linear, "", "peak_at = \"last_step\"\nfloor_at = \"next_step\"\ndecay_from = \"warmup\""),
        (linear, "", "warmup_from = \"zero\""),
        (linear, "decay_from = \"start\"", "decay_from = \"start\"\npeak_at = \"next_step\""),
        (scaled, "warmup_from = \"base\"", "warmup_from = \"base\"\npeak_at = \"next_step\""),
        (scaled, "warmup_from = \"base\"", "warmup_factor = 0.25\npeak_at = \"next_step\""),
    ];
    for (keys, without, named) in same {
        assert_eq!(rates(&format!("{keys}{without}")), rates(&format!("{keys}{named}")), "{named}");
    }
    let last = rates(&format!("{linear}floor = 0.1\nfloor_at = \"last_step\""));
    assert_eq!((last[9], last[10], last[99]), (0.5, 0.5, 0.05));
    // A batch below `base_batch` has no rate above its peak.
    let small = rates(&format!("{}warmup_from = \"base\"", scaled.replace("16", "256")));
    assert!(small[..=10].iter().all(|rate| *rate == small[0]) && small[0] == 0.025, "{small:?}");

    let from_start = resolve(&format!("{linear}decay_from = \"start\""));
    assert!(from_start.is_declared_jump(10) && !resolve(linear).is_declared_jump(10));
    assert_eq!(from_start.lr(10), 0.45);
    let steps = "name = \"step\"\npeak = 1.0\nwarmup_epochs = 1\nboundary_epochs = [2, 4]\n";
    assert_eq!(resolve(&format!("{steps}boundaries_from = \"warmup\"")).boundaries(), [30, 50]);
    assert_eq!(resolve(steps).boundaries(), [20, 40]);
}

#[test]
fn resolved_conventions_are_read_again() {
    let cases = [
        "name = \"cosine\"\npeak = 0.5\nwarmup_steps = 5\ndecay_from = \"start\"\n\
         floor_at = \"last_step\"",
        "name = \"linear\"\npeak = 0.5\nwarmup_steps = 5\npeak_at = \"next_step\"",
        "name = \"step\"\nbase_lr = 0.1\nbase_batch = 8\nwarmup_steps = 5\nwarmup_from = \"base\"\n\
         boundaries = [5]\nboundaries_from = \"warmup\"",
        "name = \"constant\"\nbase_lr = 0.1\nbase_batch = 8\nwarmup_steps = 5\n\
         warmup_from = \"base\"\nwarmup = \"constant\"",
    ];
    for keys in cases {
        let config = read(keys).unwrap();
        let text = config.to_toml().unwrap();
        let again = Config::parse(&text, Path::new("/runs/again.toml"), &[]).unwrap();
        assert_eq!(config, again, "{text}");
    }
}

#[test]
fn errors_of_conventions_say_what_to_change() {
    let peak = "name = \"linear\"\npeak = 0.5\n";
    let cases = [
        (
            "warmup_steps = 5\nwarmup_from = \"base\"",
            "schedule.warmup_from: \"base\" starts from schedule.base_lr",
        ),
        ("warmup_from = \"zero\"", "schedule.warmup_from asks for a warm-up"),
        ("peak_at = \"next_step\"", "schedule.peak_at asks for a warm-up"),
        ("warmup_steps = 5\nwarmup_factor = 0.1\nwarmup_from = \"zero\"", "schedule.warmup_factor"),
        (
            "warmup_steps = 5\nwarmup = \"constant\"\nwarmup_factor = 0.1\npeak_at = \"last_step\"",
            "schedule.peak_at: a constant warm-up reaches the peak after its last step",
        ),
        ("boundaries_from = \"start\"", "schedule.boundaries_from"),
        ("peak_at = \"first\"", "schedule.peak_at"),
    ];
    for (keys, expected) in cases {
        let error = read(&format!("{peak}{keys}")).unwrap_err();
        assert!(error.contains(expected), "{keys}: {error}");
    }
}

#[test]
fn every_rate_matches_its_formula() {
    let cases = cases();
    for name in Shape::NAMES {
        assert!(cases.iter().any(|case| case.0.name() == *name), "{name} is not tested");
    }
    for (shape, formula, _) in cases {
        let name = shape.name();
        let warmup = Warmup::linear(Span::Epochs(1.0));
        let schedule = schedule(shape, Peak::Rate(PEAK), warmup, TOTAL).unwrap();
        assert_eq!((schedule.warmup_steps(), schedule.total_steps()), (WARMUP, TOTAL), "{name}");
        for step in 0..TOTAL {
            let s = step as f64;
            let factor = if step < WARMUP { (s + 1.0) / 10.0 } else { formula(s) };
            let (got, expected) = (schedule.lr(step), PEAK * factor);
            assert!((got - expected).abs() < 1e-14, "{name}, step {step}: {got}, not {expected}");
        }
        assert!(schedule.lr(u64::MAX).is_finite(), "{name}");
    }
}

#[test]
fn rates_are_continuous_except_at_declared_jumps() {
    for (shape, _, jumps) in cases() {
        let name = shape.name();
        let warmup = Warmup::linear(Span::Steps(1_000));
        // The same shapes with 100 times as many steps.
        let run = RunLength::new(Length::Steps(10_000), Some(64_500), 64).unwrap();
        let stretch = |steps: &mut Option<Vec<u64>>| {
            steps.iter_mut().flatten().for_each(|step| *step *= 100);
        };
        let shape = match shape {
            Shape::Wsd(wsd) => Shape::Wsd(Wsd { decay_steps: Some(4_000), ..wsd }),
            Shape::Piecewise(mut piecewise) => {
                stretch(&mut piecewise.boundaries);
                stretch(&mut piecewise.boundary_examples);
                Shape::Piecewise(piecewise)
            }
            shape => shape,
        };
        let config = config::ScheduleConfig { shape, peak: Peak::Rate(1.0), warmup };
        let schedule = Schedule::new(&config, &run).unwrap();
        let mut num_jumps = 0;
        for step in 1..10_000 {
            let change = (schedule.lr(step) - schedule.lr(step - 1)).abs();
            if schedule.is_declared_jump(step) {
                num_jumps += usize::from(change > 0.01);
            } else {
                assert!(change < 0.02, "{name} jumps by {change} at step {step}");
            }
        }
        assert_eq!(num_jumps > 0, jumps, "{name}");
    }
}

#[test]
fn a_resumed_run_continues_with_the_same_rates() {
    for (shape, ..) in cases() {
        let new = || {
            let warmup = Warmup::linear(Span::Steps(WARMUP));
            schedule(shape.clone(), Peak::Rate(PEAK), warmup, TOTAL).unwrap()
        };
        let whole: Vec<_> = (0..TOTAL).map(|step| new().lr(step)).collect();
        let again = new();
        // Also out of order, because a schedule has no state.
        let rest: Vec<_> = (37..TOTAL).rev().map(|step| again.lr(step)).collect();
        assert!(rest.iter().rev().eq(&whole[37..]), "{}", shape.name());
    }
}

#[test]
fn warm_ups_are_linear_or_constant_and_composed_with_any_shape() {
    for (shape, formula, _) in cases() {
        let name = shape.name();
        let warmup = |kind| Warmup { kind, factor: 0.25, ..Warmup::linear(Span::Examples(640)) };
        let new = |kind| schedule(shape.clone(), Peak::Rate(1.0), warmup(kind), TOTAL).unwrap();
        let (linear, constant) = (new(WarmupKind::Linear), new(WarmupKind::Constant));
        for step in 0..TOTAL {
            let s = step as f64;
            let linearly = if step < 10 { 0.25 + 0.75 * (s + 1.0) / 10.0 } else { formula(s) };
            let constantly = if step < 10 { 0.25 } else { formula(s) };
            assert!((linear.lr(step) - linearly).abs() < 1e-14, "{name}, step {step}");
            assert!((constant.lr(step) - constantly).abs() < 1e-14, "{name}, step {step}");
        }
        assert!(constant.is_declared_jump(10), "{name}");
    }
}

#[test]
fn the_peak_follows_the_batch() {
    let cases = [
        (Scaling::Linear, 8192, 3.2),
        (Scaling::Sqrt, 4096, 0.4),
        (Scaling::None, 8192, 0.1),
        (Scaling::Linear, 256, 0.1),
        (Scaling::Sqrt, 64, 0.05),
    ];
    for (scaling, batch, expected) in cases {
        let peak = Peak::Scaled { base_lr: 0.1, base_batch: 256, scaling };
        let shape = Shape::Constant(Constant {});
        let config = config::ScheduleConfig { shape, peak, warmup: Warmup::NONE };
        let run = RunLength::new(Length::Steps(5), None, batch).unwrap();
        let schedule = Schedule::new(&config, &run).unwrap();
        assert_eq!((schedule.peak(), schedule.lr(0)), (expected, expected), "{scaling:?}, {batch}");
    }
}

#[test]
fn a_run_may_be_all_warm_up_or_have_none() {
    for (shape, ..) in cases() {
        if let Shape::Wsd(_) = shape {
            continue;
        }
        let total = if shape.name() == "linear" { 60 } else { 50 };
        let warmup = Warmup::linear(Span::Steps(total));
        let all = schedule(shape.clone(), Peak::Rate(1.0), warmup, total).unwrap();
        assert_eq!((all.lr(total - 1), all.warmup_steps()), (1.0, total), "{}", shape.name());
        let none = schedule(shape, Peak::Rate(1.0), Warmup::NONE, TOTAL).unwrap();
        assert_eq!(none.lr(0), 1.0);
    }
}

#[test]
fn errors_of_bad_schedules_say_what_to_change() {
    let steps = |boundaries: &[u64], factor| {
        let boundaries = Some(boundaries.to_vec());
        Shape::Step(StepDecay { boundaries, factor, ..StepDecay::default() })
    };
    let constant = || Shape::Constant(Constant {});
    let wsd = |decay_epochs, total_steps| {
        Shape::Wsd(Wsd { decay_epochs: Some(decay_epochs), total_steps, ..Wsd::default() })
    };
    let total =
        |total_steps| Shape::Cosine(Decay { total_steps: Some(total_steps), ..Decay::default() });
    let (one, none) = (Peak::Rate(1.0), Span::Steps(1));
    let no_batch = Peak::Scaled { base_lr: 0.1, base_batch: 0, scaling: Scaling::Linear };
    let grown = Peak::Scaled { base_lr: 3e38, base_batch: 1, scaling: Scaling::Linear };
    let points = |boundaries: &[u64], factors: &[f64]| {
        let (boundaries, factors) = (Some(boundaries.to_vec()), factors.to_vec());
        Shape::Piecewise(Piecewise { boundaries, factors, ..Piecewise::default() })
    };
    let epochs = |places: &[f64]| {
        let boundary_epochs = Some(places.to_vec());
        Shape::Step(StepDecay { boundary_epochs, ..StepDecay::default() })
    };
    let cases = [
        (constant(), one, Span::Steps(101), "warm-up of 101 steps"),
        (constant(), one, Span::Epochs(1e30), "longer than the run of 100"),
        (constant(), one, Span::ZERO, "schedule.warmup_steps is less than one step"),
        (constant(), one, Span::Epochs(0.01), "schedule.warmup_epochs is less than one step"),
        (constant(), one, Span::Examples(31), "schedule.warmup_examples is less than one step"),
        (constant(), Peak::Rate(-1.0), none, "peak learning rate is -1"),
        (constant(), no_batch, none, "is inf; set schedule.base_lr"),
        (constant(), Peak::Rate(3e39), none, "rate is 3e39; set schedule.peak"),
        (constant(), grown, none, "; set schedule.base_lr so that it is a number that f32 holds"),
        (steps(&[5, 10], 1e20), one, none, "of step 10 is 1e40, which f32 does not hold; lower"),
        (steps(&[5, 10], 1e20), one, none, "lower schedule.peak or schedule.factor"),
        (points(&[10, 20], &[1.0, 1e39]), one, none, "of step 20 is 1e39, which f32 does"),
        // A boundary inside the warm-up, where the rate is that of the warm-up.
        (points(&[5, 20], &[1e39, 0.0]), one, Span::Steps(10), "of step 10 is 6.6"),
        // The point is beyond the end, but the interpolation towards it overflows before the end.
        (points(&[10, 1000], &[1.0, 1e40]), one, none, "rate of step 99 is "),
        (points(&[10, 1000], &[1.0, 1e40]), one, none, "lower schedule.peak or schedule.factors"),
        (
            steps(&[5, 5], 0.1),
            one,
            none,
            "schedule.boundaries must increase, but step 5 follows step 5",
        ),
        (epochs(&[3.0, 3.01]), one, none, "schedule.boundary_epochs must increase"),
        (steps(&[5], -0.1), one, none, "schedule.factor is -0.1"),
        (Shape::Cosine(Decay { floor: 2.0, ..Decay::default() }), one, none, "schedule.floor is 2"),
        (wsd(9.5, None), one, Span::Steps(10), "begins inside the warm-up of 10"),
        (wsd(9.5, Some(50)), one, none, "the decay of 95 steps that ends at step 50"),
        (wsd(0.01, None), one, none, "schedule.decay_epochs is less than one step"),
        (total(9), one, Span::Steps(10), "ends at step 9, inside the warm-up of 10"),
        (total(110), one, Span::Steps(111), "ends at step 110, inside the warm-up of 111"),
    ];
    for (shape, peak, warmup, expected) in cases {
        let error = schedule(shape, peak, Warmup::linear(warmup), 100).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

/// The first part of a longer run; the schedule says where that run ends.
#[test]
fn a_run_may_end_inside_the_warm_up_of_a_longer_schedule() {
    let shapes = [
        Shape::Cosine(Decay { total_steps: Some(500), ..Decay::default() }),
        Shape::Linear(Decay { total_epochs: Some(50.0), ..Decay::default() }),
        Shape::Polynomial(Polynomial { total_examples: Some(64 * 500), ..Polynomial::default() }),
        Shape::Wsd(Wsd { decay_steps: Some(90), total_steps: Some(500), ..Wsd::default() }),
    ];
    for shape in shapes {
        let of = |steps| {
            schedule(shape.clone(), Peak::Rate(1.0), Warmup::linear(Span::Steps(120)), steps)
        };
        let (part, whole) = (of(100).unwrap(), of(500).unwrap());
        assert!((0..100).all(|step| part.lr(step) == whole.lr(step)), "{shape:?}");
        assert_eq!((part.warmup_steps(), part.total_steps()), (120, 100));
    }
}
