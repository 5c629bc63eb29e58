//! A process's side of the horizon: which launch boundaries it may leave, and how much it should
//! ask for.

use std::collections::VecDeque;
use std::time::Duration;

use crate::cluster::wish::AgreedWish;

/// Boundaries that are remembered of the time in which the pace is measured.
const NUM_SAMPLES: u32 = 32;
/// The horizon is ahead by this many times the time of an answer.
const ANSWERS_AHEAD: u32 = 8;
/// The lead in steps never exceeds this, however fast steps are.
const MAX_LEAD: u64 = 100_000;

/// The horizon and the events that this process knows.
#[derive(Debug)]
pub struct Boundaries {
    horizon: u64,
    events: Vec<AgreedWish>,
    num_returned: usize,
    /// The boundary at which the process is, and when it arrived.
    last: Option<(Duration, u64)>,
    /// Steps of the last launch.
    launch: u64,
    /// Some of the boundaries before, of the last `ahead`.
    samples: VecDeque<(Duration, u64)>,
    /// How far ahead the horizon should be, in time, and the limits of that.
    ahead: Duration,
    min_ahead: Duration,
    max_ahead: Duration,
}

impl Boundaries {
    /// For a horizon that is ahead by between `min_ahead` and `max_ahead`, as soon as answers come.
    pub fn new(min_ahead: Duration, max_ahead: Duration) -> Self {
        Self {
            horizon: 0,
            events: Vec::new(),
            num_returned: 0,
            last: None,
            launch: 1,
            samples: VecDeque::new(),
            ahead: min_ahead,
            min_ahead,
            max_ahead,
        }
    }

    /// The process is at the boundary after `step` steps at time `now`.
    pub fn arrive(&mut self, now: Duration, step: u64) {
        match self.last {
            Some((_, last)) if last >= step => return,
            Some((_, last)) => self.launch = step - last,
            None => {}
        }
        self.last = Some((now, step));
        while self.samples.front().is_some_and(|(then, _)| now.saturating_sub(*then) > self.ahead) {
            self.samples.pop_front();
        }
        let pause = self.ahead / NUM_SAMPLES;
        if self.samples.back().is_none_or(|(then, _)| now.saturating_sub(*then) >= pause) {
            self.samples.push_back((now, step));
        }
    }

    /// The events that are due at the boundary after `step` steps and were not returned before, or
    /// `None` if the process must wait for a larger horizon.
    pub fn leave(&mut self, step: u64) -> Option<Vec<AgreedWish>> {
        if self.horizon <= step {
            return None;
        }
        let rest = &self.events[self.num_returned..];
        let due: Vec<_> = rest.iter().take_while(|event| event.step <= step).copied().collect();
        self.num_returned += due.len();
        Some(due)
    }

    pub fn horizon(&self) -> u64 {
        self.horizon
    }

    /// All events that are known.
    pub fn events(&self) -> &[AgreedWish] {
        &self.events
    }

    /// Number of events known.
    pub fn num_events(&self) -> usize {
        self.events.len()
    }

    /// Takes an answer of the coordinator. Answers may arrive in any order.
    pub fn grant(&mut self, horizon: u64, first_event: usize, events: &[AgreedWish]) {
        let num_known = self.events.len().saturating_sub(first_event);
        self.events.extend(events.iter().skip(num_known));
        self.horizon = self.horizon.max(horizon);
    }

    /// The last question was answered after this time. Slow answers are asked for earlier, at once;
    /// later again when several were fast.
    pub fn answered_after(&mut self, took: Duration) {
        let ahead = (ANSWERS_AHEAD * took).max(self.ahead - self.ahead / 8);
        self.ahead = ahead.clamp(self.min_ahead, self.max_ahead);
    }

    /// The horizon that the process should have now: the boundary where it is, the next one, and as
    /// many as it passes in `ahead` at its pace. 0 before the first boundary.
    pub fn wanted(&self) -> u64 {
        self.last.map_or(0, |(_, step)| step.saturating_add(1 + self.lead()))
    }

    /// The horizon to ask for now, if less than half of the lead is left.
    pub fn ask(&self) -> Option<u64> {
        let (_, step) = self.last?;
        let left = self.horizon.saturating_sub(step.saturating_add(1));
        (left <= self.lead() / 2).then(|| self.wanted()).filter(|&wanted| wanted > self.horizon)
    }

    /// Steps that the process has launched in the last `ahead`: at least one launch. It is not
    /// extrapolated from fewer, because the first launches of a run take no time: they are only
    /// queued.
    fn lead(&self) -> u64 {
        let (Some((_, last)), Some((_, first))) = (self.last, self.samples.front()) else {
            return self.launch;
        };
        (last - first).clamp(self.launch, MAX_LEAD.max(self.launch))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::wish::Wish;

    const AHEAD: Duration = Duration::from_secs(4);

    #[test]
    fn slow_steps_are_asked_for_one_ahead() {
        let mut boundaries = Boundaries::new(AHEAD, AHEAD);
        assert_eq!((boundaries.wanted(), boundaries.ask()), (0, None));
        for step in 0..20 {
            boundaries.arrive(Duration::from_secs(10 * step), step);
            if step == 0 {
                assert_eq!(boundaries.leave(step), None);
            }
            let wanted = boundaries.ask().unwrap();
            assert_eq!(wanted, step + 2);
            boundaries.grant(wanted, 0, &[]);
            assert_eq!(boundaries.leave(step), Some(vec![]));
        }
    }

    #[test]
    fn fast_steps_are_asked_for_rarely() {
        let mut boundaries = Boundaries::new(AHEAD, AHEAD);
        let mut num_asked = 0;
        for step in 0..10_000 {
            boundaries.arrive(Duration::from_millis(step), step);
            if let Some(wanted) = boundaries.ask() {
                boundaries.grant(wanted, 0, &[]);
                num_asked += 1;
            }
            assert_eq!(boundaries.leave(step), Some(vec![]));
        }
        assert!(num_asked < 40, "{num_asked}");
        let lead = boundaries.wanted() - 10_000;
        assert!((3_800..=4_000).contains(&lead), "{lead}");
    }

    /// Launches are queued without waiting for them, at the start of a run.
    #[test]
    fn queued_launches_are_no_pace() {
        let mut boundaries = Boundaries::new(AHEAD, AHEAD);
        for step in 0..3 {
            boundaries.arrive(Duration::from_micros(20 * step), step);
        }
        assert_eq!(boundaries.wanted(), 2 + 1 + 2);
        boundaries.arrive(Duration::from_secs(1), 3);
        assert_eq!(boundaries.wanted(), 3 + 1 + 3);
        boundaries.arrive(Duration::from_secs(6), 4);
        assert_eq!(boundaries.wanted(), 4 + 1 + 1);
    }

    /// Steps take 5 ms and then 50 ms: a wish at that moment takes effect two seconds later.
    #[test]
    fn a_wish_does_not_wait_for_long_when_steps_become_slower() {
        let limits = (Duration::from_millis(200), Duration::from_secs(1));
        let mut boundaries = Boundaries::new(limits.0, limits.1);
        for step in 0..1000 {
            boundaries.arrive(Duration::from_millis(5 * step), step);
            if let Some(wanted) = boundaries.ask() {
                boundaries.grant(wanted, 0, &[]);
                boundaries.answered_after(Duration::from_millis(2));
            }
        }
        let num_granted = boundaries.horizon - 999;
        assert!((20..=42).contains(&num_granted), "{num_granted}");
        // Answers over a slow network are asked for in time.
        boundaries.answered_after(Duration::from_millis(100));
        assert_eq!(boundaries.ahead, Duration::from_millis(800));
        (0..20).for_each(|_| boundaries.answered_after(Duration::ZERO));
        assert_eq!(boundaries.ahead, limits.0);
    }

    #[test]
    fn launches_of_several_steps_are_covered() {
        let mut boundaries = Boundaries::new(AHEAD, AHEAD);
        for launch in 0..5 {
            boundaries.arrive(Duration::from_secs(100 * launch), 50 * launch);
        }
        assert_eq!(boundaries.wanted(), 200 + 1 + 50);
    }

    #[test]
    fn a_pause_at_one_boundary_is_no_second_arrival() {
        let mut boundaries = Boundaries::new(AHEAD, AHEAD);
        boundaries.arrive(Duration::ZERO, 3);
        boundaries.arrive(Duration::from_secs(1), 3);
        assert_eq!(boundaries.wanted(), 5);
    }

    #[test]
    fn answers_may_be_repeated_and_overtake_each_other() {
        let mut boundaries = Boundaries::new(AHEAD, AHEAD);
        let save = AgreedWish { step: 2, wish: Wish::Save };
        let stop = AgreedWish { step: 5, wish: Wish::Stop };
        boundaries.grant(9, 0, &[save, stop]);
        boundaries.grant(3, 0, &[save]);
        boundaries.grant(9, 1, &[stop]);
        assert_eq!(boundaries.leave(1), Some(vec![]));
        assert_eq!(boundaries.leave(4), Some(vec![save]));
        assert_eq!(boundaries.leave(8), Some(vec![stop]));
        assert_eq!(boundaries.leave(9), None);
        assert_eq!(boundaries.num_events(), 2);
    }
}
