//! A random part of labelled examples, with the same share of each class.

use std::collections::BTreeMap;

use hlo::random::threefry2x32;

/// Separates the draw from other random numbers with the same seed.
const DRAW: u32 = 0x53504c54;

/// The examples of a set in two parts, each in ascending order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StratifiedSplit {
    /// The examples that are kept for training.
    pub kept: Vec<usize>,
    /// The examples that are held out.
    pub held_out: Vec<usize>,
}

impl StratifiedSplit {
    /// Holds out `share` of the examples, above 0 and below 1, where `classes` has the class of
    /// each. The number is rounded to the nearest; each class has its share of it, by largest
    /// remainders, but keeps at least one example. Which examples these are follows from `seed`
    /// alone, not from a mesh.
    ///
    /// ```
    /// use lockstep::data::StratifiedSplit;
    /// let split = StratifiedSplit::draw(&[0, 1, 0, 1, 0, 1, 0, 1, 0, 0], 0.2, 7);
    /// assert_eq!((split.kept.len(), split.held_out.len()), (8, 2));
    /// assert_eq!(split.held_out.iter().map(|example| example % 2).sum::<usize>(), 1);
    /// ```
    pub fn draw(classes: &[i32], share: f64, seed: u64) -> Self {
        let key = threefry2x32([seed as u32, (seed >> 32) as u32], [DRAW, 0]);
        // The examples of each class, in the order in which they are drawn.
        let mut examples: BTreeMap<i32, Vec<(u64, usize)>> = BTreeMap::new();
        for (example, class) in classes.iter().enumerate() {
            examples.entry(*class).or_default().push((bits(key, example as u64), example));
        }
        examples.values_mut().for_each(|drawn| drawn.sort_unstable());
        let mut counts: BTreeMap<_, _> = examples
            .iter()
            .map(|(class, drawn)| {
                (*class, ((share * drawn.len() as f64) as usize).min(drawn.len() - 1))
            })
            .collect();
        let total = (share * classes.len() as f64).round() as usize;
        let mut missing = total.saturating_sub(counts.values().sum());
        // Those with the largest remainders come first; equal ones in random order.
        let mut next: Vec<_> = examples
            .iter()
            .map(|(class, drawn)| ((share * drawn.len() as f64).fract(), drawn[0].0, *class))
            .collect();
        next.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        for (_, _, class) in next {
            if let Some(count) = counts.get_mut(&class)
                && missing > 0
                && *count + 1 < examples[&class].len()
            {
                *count += 1;
                missing -= 1;
            }
        }
        let (mut kept, mut held_out) = (vec![], vec![]);
        for (class, drawn) in &examples {
            let (out, rest) = drawn.split_at(counts[class]);
            held_out.extend(out.iter().map(|(_, example)| *example));
            kept.extend(rest.iter().map(|(_, example)| *example));
        }
        kept.sort_unstable();
        held_out.sort_unstable();
        Self { kept, held_out }
    }
}

fn bits(key: [u32; 2], example: u64) -> u64 {
    let [high, low] = threefry2x32(key, [example as u32, (example >> 32) as u32]);
    u64::from(high) << 32 | u64::from(low)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn count(classes: &[i32], part: &[usize], class: i32) -> usize {
        part.iter().filter(|example| classes[**example] == class).count()
    }

    proptest! {
        #[test]
        fn parts_are_disjoint_and_have_the_share_of_each_class(
            classes in proptest::collection::vec(0i32..5, 1..200), share in 0.01f64..0.99, seed: u64,
        ) {
            let split = StratifiedSplit::draw(&classes, share, seed);
            let mut all = [&split.kept[..], &split.held_out[..]].concat();
            all.sort_unstable();
            prop_assert_eq!(all, (0..classes.len()).collect::<Vec<_>>());
            prop_assert!(split.kept.is_sorted() && split.held_out.is_sorted());
            prop_assert!(split.held_out.len() as f64 <= (share * classes.len() as f64).round());
            for class in 0..5 {
                let size = classes.iter().filter(|other| **other == class).count();
                let held_out = count(&classes, &split.held_out, class);
                prop_assert!((held_out as f64 - share * size as f64).abs() <= 1.0, "{}", held_out);
                prop_assert!(size == 0 || held_out < size);
            }
            prop_assert_eq!(StratifiedSplit::draw(&classes, share, seed), split);
        }
    }

    #[test]
    fn alternating_classes_and_sorted_ones_are_held_out_alike() {
        let alternating: Vec<_> = (0..200).map(|row| row % 2).collect();
        let sorted: Vec<_> = (0..200).map(|row| row / 100).collect();
        for classes in [alternating, sorted] {
            let draw = |seed| StratifiedSplit::draw(&classes, 0.1, seed).held_out;
            for seed in 0..8 {
                let held_out = draw(seed);
                assert_eq!([0, 1].map(|class| count(&classes, &held_out, class)), [10, 10]);
            }
            assert_ne!(draw(0), draw(1));
        }
    }

    #[test]
    fn rare_classes_stay_in_training() {
        let classes = [vec![0; 98], vec![1], vec![2]].concat();
        let split = StratifiedSplit::draw(&classes, 0.5, 3);
        assert_eq!([1, 2].map(|class| count(&classes, &split.held_out, class)), [0, 0]);
        assert_eq!(split.held_out.len(), 50);
        let twice: Vec<_> = (0..100).map(|row| row / 2).collect();
        let split = StratifiedSplit::draw(&twice, 0.1, 3);
        assert_eq!(split.held_out.len(), 10);
        let one = StratifiedSplit::draw(&[0, 1], 0.9, 0);
        assert_eq!((one.kept, one.held_out), (vec![0, 1], vec![]));
        assert_eq!(StratifiedSplit::draw(&[], 0.5, 0).kept, Vec::<usize>::new());
    }

    /// Every example is equally likely to be held out: chi-square over 2000 seeds, 20 examples, 19
    /// degrees of freedom; 50 is exceeded once in eight thousand tries.
    #[test]
    fn draws_are_even() {
        let classes: Vec<_> = (0..20).map(|row| i32::from(row < 5)).collect();
        let mut counts = [0f64; 20];
        for seed in 0..2000 {
            let split = StratifiedSplit::draw(&classes, 0.2, seed);
            split.held_out.iter().for_each(|example| counts[*example] += 1.0);
        }
        let chi_square: f64 = counts.iter().map(|count| (count - 400.0).powi(2) / 400.0).sum();
        assert!(chi_square < 50.0, "{chi_square}");
    }
}
