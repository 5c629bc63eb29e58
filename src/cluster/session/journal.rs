//! What this process tells a coordinator that was started again.

use std::collections::{HashMap, VecDeque};

use super::boundaries::Boundaries;
use crate::cluster::messages::{self as wire, HeldGather, HeldValue};
use crate::cluster::wish::Wish;

/// The last keys that were set or removed are kept. Those that matter are read soon, or were set
/// when the devices were opened: there are fewer.
const MAX_VALUES: usize = 1024;
/// Values and contributions in one message, at least one of them.
const MAX_PART_BYTES: usize = 1 << 20;

/// What this process has set, contributed and wished for.
#[derive(Debug, Default)]
pub struct Journal {
    values: VecDeque<HeldValue>,
    /// The last two rounds: a process that has no result yet of the one before needs it.
    gathers: HashMap<String, VecDeque<HeldGather>>,
    /// Wishes, with the number of events that were known when they were made.
    wishes: Vec<(Wish, usize)>,
}

impl Journal {
    /// A key was set, or removed.
    pub fn changed(&mut self, key: &[u8], value: Option<&[u8]>, revision: u64) {
        self.values.retain(|held| held.key != key);
        if self.values.len() >= MAX_VALUES {
            self.values.pop_front();
        }
        let value = value.map(<[u8]>::to_vec);
        self.values.push_back(HeldValue { key: key.to_vec(), value, revision });
    }

    pub fn contributed(&mut self, name: &str, round: u64, value: &[u8]) {
        let rounds = self.gathers.entry(name.to_owned()).or_default();
        if rounds.len() >= 2 {
            rounds.pop_front();
        }
        rounds.push_back(HeldGather { name: name.to_owned(), round, value: value.to_vec() });
    }

    pub fn wished(&mut self, wish: Wish, num_events: usize) {
        self.wishes.retain(|(other, _)| *other != wish);
        self.wishes.push((wish, num_events));
    }

    /// All of it, and the horizon, in parts that are not too large.
    pub fn parts(&self, join: &wire::Join, boundaries: &Boundaries) -> Vec<wire::TellHeld> {
        let events = boundaries.events();
        let is_open = |(wish, num_events): &&(Wish, usize)| {
            let since = if *wish == Wish::Stop { 0 } else { *num_events };
            !events.iter().skip(since).any(|event| event.wish == *wish)
        };
        let row = |event: &super::AgreedWish| wire::EventRow {
            step: event.step,
            wish: event.wish.code(),
        };
        let empty = wire::TellHeld { join: Some(join.clone()), ..Default::default() };
        let mut parts = vec![wire::TellHeld {
            horizon: boundaries.horizon(),
            events: events.iter().map(row).collect(),
            wishes: self.wishes.iter().filter(is_open).map(|(wish, _)| wish.code()).collect(),
            ..empty.clone()
        }];
        let mut num_bytes = 0;
        let mut part = |added: usize, add: &dyn Fn(&mut wire::TellHeld)| {
            num_bytes += added;
            if num_bytes > MAX_PART_BYTES {
                num_bytes = added;
                parts.push(empty.clone());
            }
            parts.last_mut().into_iter().for_each(add);
        };
        for held in &self.values {
            let num_bytes = held.key.len() + held.value.as_ref().map_or(0, Vec::len);
            part(num_bytes, &|part| part.values.push(held.clone()));
        }
        for held in self.gathers.values().flatten() {
            part(held.name.len() + held.value.len(), &|part| part.gathers.push(held.clone()));
        }
        let num_parts = parts.len() as u32;
        for (number, part) in (0..).zip(&mut parts) {
            (part.part, part.num_parts) = (number, num_parts);
        }
        parts
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::cluster::wish::AgreedWish;

    #[test]
    fn what_was_said_is_kept_as_long_as_it_may_matter() {
        let (mut journal, second) = (Journal::default(), Duration::from_secs(1));
        let mut boundaries = Boundaries::new(second, second);
        journal.wished(Wish::Save, 0);
        journal.wished(Wish::Stop, 0);
        let save = AgreedWish { step: 5, wish: Wish::Save };
        boundaries.grant(9, 0, &[save]);
        for round in 0..4 {
            journal.contributed("g", round, &[round as u8]);
        }
        for number in 0..2 * MAX_VALUES as u64 {
            journal.changed(&(number % 1500).to_le_bytes(), Some(&[0; 1024]), number);
        }
        journal.changed(&0u64.to_le_bytes(), None, 9999);
        let parts = journal.parts(&wire::Join::default(), &boundaries);
        assert_eq!((parts[0].horizon, parts[0].events.len()), (9, 1));
        assert_eq!(parts[0].wishes, [Wish::Stop.code()]);
        let values: Vec<_> = parts.iter().flat_map(|part| &part.values).collect();
        assert_eq!((values.len(), values[1023].revision), (1024, 9999));
        assert_eq!(values[1023].value, None);
        let rounds = parts.iter().flat_map(|part| &part.gathers).map(|held| held.round);
        assert_eq!(rounds.collect::<Vec<_>>(), [2, 3]);
        assert!(parts.len() > 1 && parts.iter().all(|part| part.num_parts == parts.len() as u32));
        // A wish for another checkpoint after that one.
        journal.wished(Wish::Save, 1);
        let parts = journal.parts(&wire::Join::default(), &boundaries);
        assert_eq!(parts[0].wishes, [Wish::Stop.code(), Wish::Save.code()]);
    }
}
