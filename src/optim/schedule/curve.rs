//! Turns the shape in a configuration into a function of the step.

use super::{
    Error, constant, cosine, inverse_sqrt, linear, one_minus_sqrt, piecewise_constant,
    piecewise_linear, shapes, step_decay,
};
use crate::config::{
    BoundariesFrom, Decay, DecayFrom, DecayShape, Interpolation, Piecewise, Polynomial, ReachedAt,
    RunLength, Shape, Span, StepDecay, Wsd,
};

/// The learning rate after the warm-up, in units of steps.
pub(super) struct Curve {
    /// Fraction of the peak at a step after the warm-up.
    pub factor: Box<dyn Fn(u64) -> f64 + Send + Sync>,
    /// The step at which the decay ends, for shapes with a decay.
    pub end_step: Option<u64>,
    /// The boundaries in the configuration.
    pub boundaries: Vec<u64>,
    /// The boundaries at which the rate jumps.
    pub jumps: Vec<u64>,
}

impl Curve {
    fn smooth(factor: impl Fn(u64) -> f64 + Send + Sync + 'static, end_step: Option<u64>) -> Self {
        Self { factor: Box::new(factor), end_step, boundaries: vec![], jumps: vec![] }
    }

    /// Resolves a shape after a warm-up of `warmup_steps`, which reaches the peak at `peak_at`.
    pub fn new(
        shape: &Shape,
        run: &RunLength,
        warmup_steps: u64,
        peak_at: ReachedAt,
    ) -> Result<Self, Error> {
        Ok(match shape.clone() {
            Shape::Constant(_) => Self::smooth(|_| constant(), None),
            Shape::InverseSqrt(_) => {
                Self::smooth(move |step| inverse_sqrt(step, warmup_steps, peak_at), None)
            }
            Shape::Cosine(decay) => {
                let (fraction, end) = decay_fraction(&decay, run, warmup_steps)?;
                let factor = move |step| cosine(fraction(step), decay.floor);
                Self::decay(factor, end, decay.decay_from, warmup_steps)
            }
            Shape::Linear(decay) => {
                let (fraction, end) = decay_fraction(&decay, run, warmup_steps)?;
                let factor = move |step| linear(fraction(step), decay.floor);
                Self::decay(factor, end, decay.decay_from, warmup_steps)
            }
            Shape::Polynomial(polynomial) => {
                let Polynomial { power, .. } = polynomial;
                let decay = polynomial.decay();
                let (fraction, end) = decay_fraction(&decay, run, warmup_steps)?;
                let factor = move |step| shapes::polynomial(fraction(step), power, decay.floor);
                Self::decay(factor, end, decay.decay_from, warmup_steps)
            }
            Shape::Step(decay) => Self::steps(&decay, run, warmup_steps)?,
            Shape::Wsd(wsd) => Self::wsd(&wsd, run, warmup_steps)?,
            Shape::Piecewise(piecewise) => Self::piecewise(&piecewise, run, warmup_steps)?,
        })
    }

    /// A decay that ends at step `end`.
    fn decay(
        factor: impl Fn(u64) -> f64 + Send + Sync + 'static,
        end: u64,
        from: DecayFrom,
        warmup_steps: u64,
    ) -> Self {
        let curve = Self::smooth(factor, Some(end));
        match from {
            DecayFrom::Start if warmup_steps > 0 => Self { jumps: vec![warmup_steps], ..curve },
            DecayFrom::Start | DecayFrom::Warmup => curve,
        }
    }

    fn steps(decay: &StepDecay, run: &RunLength, warmup_steps: u64) -> Result<Self, Error> {
        let factor = decay.factor;
        if !factor.is_finite() || factor < 0.0 {
            let allowed = "a finite number, 0 or more";
            return Err(Error::Fraction { key: "factor", value: factor, allowed });
        }
        let from = origin(decay.boundaries_from, warmup_steps);
        let boundaries = places(&decay.boundaries(), run, from)?;
        // The start of each piece, computed once: a schedule may have a boundary at every step.
        let starts = std::iter::once(0).chain(boundaries.iter().copied());
        let pieces: Vec<_> =
            starts.map(|start| (start, step_decay(start, &boundaries, factor))).collect();
        Ok(Self {
            factor: Box::new(move |step| piecewise_constant(step, &pieces)),
            end_step: None,
            jumps: boundaries.clone(),
            boundaries,
        })
    }

    fn wsd(wsd: &Wsd, run: &RunLength, warmup_steps: u64) -> Result<Self, Error> {
        let Wsd { floor, decay_shape, .. } = *wsd;
        check_floor(floor)?;
        let end_step = end_step(wsd.total(), run, warmup_steps)?;
        let unit = wsd.decay().unit();
        let decay_steps = run.steps(wsd.decay(), &format!("schedule.decay_{unit}"))?;
        if decay_steps == 0 {
            return Err(Error::NoDecay { unit, global_batch: run.global_batch() });
        }
        let start = end_step.checked_sub(decay_steps).filter(|start| *start >= warmup_steps);
        let too_long = || Error::Decay { decay_steps, end_step, warmup_steps, unit };
        let fraction = fraction(start.ok_or_else(too_long)?, end_step, wsd.floor_at);
        let shape = match decay_shape {
            DecayShape::Linear => linear,
            DecayShape::Cosine => cosine,
            DecayShape::Sqrt => one_minus_sqrt,
        };
        Ok(Self::smooth(move |step| shape(fraction(step), floor), Some(end_step)))
    }

    fn piecewise(piecewise: &Piecewise, run: &RunLength, warmup_steps: u64) -> Result<Self, Error> {
        let from = origin(piecewise.boundaries_from, warmup_steps);
        let boundaries = places(&piecewise.boundaries(), run, from)?;
        let factors = piecewise.factors.iter().copied();
        let points: Vec<_> = boundaries.iter().copied().zip(factors).collect();
        let (interpolate, jumps) = match piecewise.interpolation {
            Interpolation::Linear => (piecewise_linear as fn(u64, &[(u64, f64)]) -> f64, vec![]),
            Interpolation::Constant => (piecewise_constant as _, boundaries.clone()),
        };
        let factor = Box::new(move |step| interpolate(step, &points));
        Ok(Self { factor, end_step: None, boundaries, jumps })
    }
}

/// The fraction of a decay over the steps from `start` to before `end`: 0 up to `start`, and 1 from
/// the step on at which it reaches its floor. A decay of one step that reaches the floor there has
/// no step at the peak.
fn fraction(
    start: u64,
    end: u64,
    floor_at: ReachedAt,
) -> impl Fn(u64) -> f64 + Send + Sync + Copy + use<> {
    let (start, end) = match floor_at {
        ReachedAt::NextStep => (start, end),
        ReachedAt::LastStep if end > start + 1 => (start, end - 1),
        ReachedAt::LastStep => (start.saturating_sub(1), end.saturating_sub(1)),
    };
    let length = end.saturating_sub(start).max(1) as f64;
    move |step| (step.saturating_sub(start) as f64 / length).min(1.0)
}

fn decay_fraction(
    decay: &Decay,
    run: &RunLength,
    warmup_steps: u64,
) -> Result<(impl Fn(u64) -> f64 + Send + Sync + Copy + use<>, u64), Error> {
    check_floor(decay.floor)?;
    let end = end_step(decay.total(), run, warmup_steps)?;
    let start = match decay.decay_from {
        DecayFrom::Warmup => warmup_steps,
        DecayFrom::Start => 0,
    };
    Ok((fraction(start, end, decay.floor_at), end))
}

/// The step at which a decay ends: the configured one, by default the end of the run.
fn end_step(total: Option<Span>, run: &RunLength, warmup_steps: u64) -> Result<u64, Error> {
    let Some(total) = total else { return Ok(run.total_steps()) };
    let unit = total.unit();
    let end_step = run.steps(total, &format!("schedule.total_{unit}"))?;
    if end_step < warmup_steps {
        return Err(Error::Total { end_step, warmup_steps, unit });
    }
    Ok(end_step)
}

/// The step that boundaries are counted from.
fn origin(from: BoundariesFrom, warmup_steps: u64) -> u64 {
    match from {
        BoundariesFrom::Start => 0,
        BoundariesFrom::Warmup => warmup_steps,
    }
}

/// The boundaries, given relative to step `origin`, in steps of the run. They must be increasing
/// after rounding to whole steps, too.
fn places(boundaries: &[Span], run: &RunLength, origin: u64) -> Result<Vec<u64>, Error> {
    let key = match boundaries.first() {
        Some(Span::Epochs(_)) => "boundary_epochs",
        Some(Span::Examples(_)) => "boundary_examples",
        Some(Span::Steps(_)) | None => "boundaries",
    };
    let step = |span: &Span| {
        let steps = run.steps(*span, &format!("schedule.{key}"))?;
        Ok::<_, Error>(steps.saturating_add(origin))
    };
    let steps = boundaries.iter().map(step);
    let steps = steps.collect::<Result<Vec<_>, _>>()?;
    match steps.windows(2).find(|pair| pair[0] >= pair[1]) {
        Some(pair) => Err(Error::BoundaryOrder { key, previous: pair[0], next: pair[1] }),
        None => Ok(steps),
    }
}

fn check_floor(floor: f64) -> Result<(), Error> {
    if (0.0..=1.0).contains(&floor) {
        return Ok(());
    }
    Err(Error::Fraction { key: "floor", value: floor, allowed: "a fraction of the peak, 0 to 1" })
}
