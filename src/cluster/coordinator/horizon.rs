//! How far processes may go, and after which steps the events come that all of them must see at the
//! same place.
//!
//! A process may leave the boundary after `b` steps, that is, launch what follows, if it was
//! granted a horizon beyond `b`. A wish becomes an event at the largest horizon that was granted to
//! anyone: no process has left that boundary, and none can before it is granted more, together with
//! the event. So all processes see an event at the same boundary.

use crate::cluster::wish::{AgreedWish, Wish};

/// The horizon and the events of one generation.
#[derive(Debug, Default)]
pub struct Horizon {
    granted: u64,
    /// By step, ascending.
    events: Vec<AgreedWish>,
}

/// The answer to a process: it may leave boundaries before `horizon`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Granted {
    pub horizon: u64,
    /// Number of the first of `events`.
    pub first_event: usize,
    /// All events from there on.
    pub events: Vec<AgreedWish>,
}

impl Horizon {
    /// Makes an event of a wish, and returns it. A wish that is still waiting is not repeated, and
    /// one stop, or one to regroup, is enough.
    pub fn wish(&mut self, wish: Wish) -> AgreedWish {
        let is_same = |event: &&AgreedWish| {
            event.wish == wish && (wish != Wish::Save || event.step == self.granted)
        };
        if let Some(&event) = self.events.iter().find(is_same) {
            return event;
        }
        let event = AgreedWish { step: self.granted, wish };
        self.events.push(event);
        event
    }

    /// A process holds this horizon and these events, of a coordinator that is gone: the first of
    /// all events.
    pub fn hold(&mut self, granted: u64, events: Vec<AgreedWish>) {
        self.granted = self.granted.max(granted);
        if events.len() > self.events.len() {
            self.events = events;
        }
    }

    /// Grants the horizon `wanted`, or a larger one granted before, to a process that knows
    /// `num_known` events.
    pub fn extend(&mut self, wanted: u64, num_known: usize) -> Granted {
        self.granted = self.granted.max(wanted);
        let first_event = num_known.min(self.events.len());
        Granted { horizon: self.granted, first_event, events: self.events[first_event..].to_vec() }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::cluster::session::boundaries::Boundaries;

    /// What happens next; processes and answers in flight are chosen by number.
    #[derive(Clone, Debug)]
    enum Action {
        /// A process tries to leave its boundary.
        Leave(usize),
        /// A process asks for a horizon: the request is on its way.
        Ask(usize),
        /// One of the requests arrives.
        Arrive(usize),
        /// One of the answers arrives.
        Receive(usize),
        Wish(Wish),
    }

    fn action() -> impl Strategy<Value = Action> {
        prop_oneof![
            6 => any::<usize>().prop_map(Action::Leave),
            3 => any::<usize>().prop_map(Action::Ask),
            3 => any::<usize>().prop_map(Action::Arrive),
            3 => any::<usize>().prop_map(Action::Receive),
            1 => prop_oneof![Just(Wish::Save), Just(Wish::Stop), Just(Wish::Regroup), Just(Wish::Grow)]
                .prop_map(Action::Wish),
        ]
    }

    struct Process {
        boundaries: Boundaries,
        step: u64,
        seen: Vec<(u64, AgreedWish)>,
    }

    struct World {
        horizon: Horizon,
        processes: Vec<Process>,
        requests: Vec<(usize, u64, usize)>,
        answers: Vec<(usize, Granted)>,
        wished: Vec<AgreedWish>,
        /// Steps per launch.
        stride: u64,
        now: Duration,
    }

    impl World {
        fn new(num_processes: usize, first_step: u64, stride: u64) -> Self {
            let process = |_| Process {
                boundaries: Boundaries::new(Duration::from_millis(5), Duration::from_millis(5)),
                step: first_step,
                seen: vec![],
            };
            Self {
                horizon: Horizon::default(),
                processes: (0..num_processes).map(process).collect(),
                requests: vec![],
                answers: vec![],
                wished: vec![],
                stride,
                now: Duration::ZERO,
            }
        }

        fn leave(&mut self, process: usize) -> bool {
            let process = &mut self.processes[process];
            process.boundaries.arrive(self.now, process.step);
            let Some(events) = process.boundaries.leave(process.step) else { return false };
            process.seen.extend(events.into_iter().map(|event| (process.step, event)));
            process.step += self.stride;
            true
        }

        fn ask(&mut self, process: usize) {
            let boundaries = &self.processes[process].boundaries;
            self.requests.push((process, boundaries.wanted(), boundaries.num_events()));
        }

        fn arrive(&mut self, request: usize) {
            let (process, wanted, num_known) = self.requests.swap_remove(request);
            self.answers.push((process, self.horizon.extend(wanted, num_known)));
        }

        fn receive(&mut self, answer: usize) {
            let (process, granted) = self.answers.swap_remove(answer);
            let Granted { horizon, first_event, events } = granted;
            self.processes[process].boundaries.grant(horizon, first_event, &events);
        }

        fn act(&mut self, action: &Action) {
            self.now += Duration::from_millis(1);
            let num_processes = self.processes.len();
            match *action {
                Action::Leave(process) => drop(self.leave(process % num_processes)),
                Action::Ask(process) => self.ask(process % num_processes),
                Action::Arrive(request) if !self.requests.is_empty() => {
                    self.arrive(request % self.requests.len());
                }
                Action::Receive(answer) if !self.answers.is_empty() => {
                    self.receive(answer % self.answers.len());
                }
                Action::Arrive(_) | Action::Receive(_) => {}
                Action::Wish(wish) => {
                    let event = self.horizon.wish(wish);
                    if !self.wished.contains(&event) {
                        self.wished.push(event);
                        let furthest = self.processes.iter().map(|process| process.step).max();
                        let last_left = furthest.unwrap_or(0).checked_sub(self.stride);
                        assert!(
                            last_left
                                .is_none_or(|left| left < event.step || self.horizon.granted == 0),
                            "a process has left the boundary {} of a new event",
                            event.step
                        );
                    }
                }
            }
        }

        /// All processes go on until they are beyond all events and at one boundary.
        fn finish(&mut self) {
            let furthest = self.processes.iter().map(|process| process.step).max().unwrap_or(0);
            let end = furthest.max(self.horizon.granted) + 3 * self.stride;
            for process in 0..self.processes.len() {
                while self.processes[process].step < end {
                    self.now += Duration::from_millis(1);
                    if !self.leave(process) {
                        self.ask(process);
                        self.arrive(self.requests.len() - 1);
                        self.receive(self.answers.len() - 1);
                        assert!(self.leave(process), "an answer to the last request suffices");
                    }
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]
        #[test]
        fn all_processes_see_the_same_events_at_the_same_boundaries(
            num_processes in 1usize..5,
            first_step in prop_oneof![Just(0u64), 1u64..1000],
            stride in 1u64..4,
            actions in prop::collection::vec(action(), 0..300),
        ) {
            let mut world = World::new(num_processes, first_step, stride);
            for action in &actions {
                world.act(action);
            }
            world.finish();
            let expected: Vec<_> = world.wished.clone();
            for process in &world.processes {
                prop_assert_eq!(&process.seen, &world.processes[0].seen);
                let seen: Vec<_> = process.seen.iter().map(|(_, event)| *event).collect();
                prop_assert_eq!(&seen, &expected, "each once, none missing");
                for (boundary, event) in &process.seen {
                    let first = first_step.max(event.step);
                    prop_assert!(*boundary >= first && *boundary < first + stride);
                }
            }
        }
    }

    #[test]
    fn wishes_that_wait_are_merged() {
        let mut horizon = Horizon::default();
        horizon.extend(5, 0);
        let save = AgreedWish { step: 5, wish: Wish::Save };
        assert_eq!([horizon.wish(Wish::Save), horizon.wish(Wish::Save)], [save; 2]);
        let stop = horizon.wish(Wish::Stop);
        horizon.extend(9, 0);
        assert_eq!(horizon.wish(Wish::Save).step, 9);
        assert_eq!(horizon.wish(Wish::Stop), stop, "one stop is enough");
        assert_eq!(horizon.extend(0, 1).events.len(), 2);
        assert_eq!(horizon.extend(0, 99), Granted { horizon: 9, first_event: 3, events: vec![] });
    }
}
