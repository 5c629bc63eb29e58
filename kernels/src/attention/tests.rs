use proptest::prelude::*;

use super::*;
use crate::{Element, Pool};

/// Numbers between -1 and 1 that look random.
fn values(len: usize, seed: u64) -> Vec<f64> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    };
    (0..len).map(next).collect()
}

/// Operands side by side in rows, and for each key 0 if it is hidden.
#[derive(Clone)]
struct Case {
    attention: Attention,
    qkv: Vec<f64>,
    mask: Option<Vec<f64>>,
}

impl Case {
    fn new(attention: Attention, is_masked: bool, seed: u64) -> Self {
        let Attention { batch, num_positions, num_heads, num_kv_heads, head_width, .. } = attention;
        let rows = batch * num_positions;
        let qkv = values(rows * (num_heads + 2 * num_kv_heads) * head_width, seed);
        // Some keys of the first example are hidden, and by every other seed all of the second.
        let is_hidden =
            |row: usize| row % 3 == 1 || (seed.is_multiple_of(2) && row >= num_positions);
        let mask = |row: usize| if is_hidden(row) { 0.0 } else { 1.0 };
        Self { attention, qkv, mask: is_masked.then(|| (0..rows).map(mask).collect()) }
    }

    fn widths(&self) -> [usize; 3] {
        let Attention { num_heads, num_kv_heads, head_width: d, .. } = self.attention;
        [num_heads * d, num_kv_heads * d, (num_heads + 2 * num_kv_heads) * d]
    }

    /// Queries, keys and values in three matrices.
    fn split<T: Copy>(&self, qkv: &[T]) -> [Vec<T>; 3] {
        let [q, kv, width] = self.widths();
        [0..q, q..q + kv, q + kv..width].map(|columns| {
            qkv.chunks(width).flat_map(|row| row[columns.clone()].to_vec()).collect()
        })
    }

    /// Weights before and after dropout of a head of an example, `[positions, positions]`, and y,
    /// by definition.
    fn plain(&self) -> (Vec<f64>, Vec<f64>) {
        let Attention {
            batch, num_positions: t, num_heads, head_width: d, causal, dropout, ..
        } = self.attention;
        let [q_width, kv_width, width] = self.widths();
        let mut y = vec![0.0; batch * t * q_width];
        let mut lse = vec![0.0; batch * t * num_heads];
        for (b, h, i) in indices(batch, num_heads, t) {
            let kv = h / self.attention.group();
            let at = |row: usize, column: usize| self.qkv[(b * t + row) * width + column];
            let score = |j: usize| {
                let terms = (0..d).map(|l| at(i, h * d + l) * at(j, q_width + kv * d + l));
                let is_hidden = self.mask.as_ref().is_some_and(|mask| mask[b * t + j] == 0.0);
                if is_hidden { f64::MIN } else { terms.sum::<f64>() / (d as f64).sqrt() }
            };
            let num_keys = if causal { i + 1 } else { t };
            let scores: Vec<f64> = (0..num_keys).map(score).collect();
            let greatest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let total: f64 = scores.iter().map(|score| (score - greatest).exp()).sum();
            let entry = (b * t + i) * num_heads + h;
            lse[entry] = greatest + total.ln();
            for (j, score) in scores.iter().enumerate() {
                let mut weight = (score - greatest).exp() / total;
                if let Some(dropout) = dropout {
                    let mut keep = [false];
                    let of = WeightsOfQuery { example: b, head: h, query: i, num_positions: t };
                    dropout.keep(&mut keep, of, j);
                    weight *= if keep[0] { dropout.scale() } else { 0.0 };
                }
                for l in 0..d {
                    y[entry * d + l] += weight * at(j, q_width + kv_width + kv * d + l);
                }
            }
        }
        (y, lse)
    }

    fn forward<T: Element>(&self, pool: &Pool<'_>, qkv: &[T]) -> (Vec<T>, Vec<T>) {
        let Attention { batch, num_positions, num_heads, .. } = self.attention;
        let rows = batch * num_positions;
        // Whatever was in memory is replaced.
        let mut y = vec![T::from_f64(7.0); rows * self.widths()[0]];
        let mut lse = vec![T::from_f64(7.0); rows * num_heads];
        let mask = self.mask.as_ref().map(|mask| narrow::<T>(mask));
        let [q, k, v] = &self.split(qkv);
        let operands = QueriesKeysValues { queries: &q[..], keys: k, values: v };
        self.attention.forward(pool, &mut y, &mut lse, operands, mask.as_deref());
        (y, lse)
    }

    fn backward<T: Element>(&self, pool: &Pool<'_>, qkv: &[T], cotangent: &[T]) -> Vec<T> {
        let (y, lse) = self.forward(pool, qkv);
        let [q, k, v] = &self.split(qkv);
        let operands = QueriesKeysValues { queries: &q[..], keys: k, values: v };
        let mut gradients = [q, k, v].map(|x| vec![T::from_f64(7.0); x.len()]);
        let forward = Forward { y: &y, lse: &lse, cotangent };
        let mask = self.mask.as_ref().map(|mask| narrow::<T>(mask));
        let [queries, keys, values] = gradients.each_mut().map(Vec::as_mut_slice);
        let out = Gradients { queries, keys, values };
        self.attention.backward(pool, out, operands, forward, mask.as_deref());
        let [q_width, kv_width, _] = self.widths();
        let [dq, dk, dv] = gradients;
        let rows = dq.chunks(q_width).zip(dk.chunks(kv_width).zip(dv.chunks(kv_width)));
        rows.flat_map(|(q, (k, v))| [q, k, v].concat()).collect()
    }
}

fn indices(a: usize, b: usize, c: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    (0..a * b * c).map(move |i| (i / (b * c), i / c % b, i % c))
}

fn narrow<T: Real>(x: &[f64]) -> Vec<T> {
    x.iter().map(|x| T::from_f64(*x)).collect()
}

fn assert_close(found: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len());
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        let distance = (found - expected).abs();
        assert!(distance <= tolerance * (1.0 + expected.abs()), "{i}: {found} {expected}");
    }
}

fn attentions() -> impl Strategy<Value = Attention> {
    let sizes = (1usize..3, 1usize..300, 1usize..3, 1usize..3, 1usize..9);
    let dropout = proptest::option::of((0.0..0.9, any::<[u32; 2]>(), any::<[u32; 2]>()));
    (sizes, any::<bool>(), dropout).prop_map(|((batch, t, kv, group, d), causal, dropout)| {
        Attention {
            batch,
            num_positions: t,
            num_heads: kv * group,
            num_kv_heads: kv,
            head_width: d,
            causal,
            dropout: dropout.map(|(rate, key, [first_example, first_head])| Dropout {
                rate,
                key,
                first_example,
                first_head,
            }),
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn blocks_give_what_the_definition_gives(
        attention in attentions(), is_masked: bool, seed: u64, num_helpers in 0usize..3,
    ) {
        let case = Case::new(attention, is_masked, seed);
        let pool = Pool::new(num_helpers).unwrap();
        let (expected_y, expected_lse) = case.plain();
        let (y, lse) = case.forward(&pool, &case.qkv);
        assert_close(&y, &expected_y, 1e-12);
        assert_close(&lse, &expected_lse, 1e-12);
        let (y, _) = case.forward(&pool, &narrow::<f32>(&case.qkv));
        assert_close(&y.iter().map(|y| f64::from(*y)).collect::<Vec<_>>(), &expected_y, 1e-5);
    }

    /// The derivative along a direction, from both sides.
    #[test]
    fn gradients_are_those_of_finite_differences(
        attention in attentions(), is_masked: bool, seed: u64, num_helpers in 0usize..3,
    ) {
        let case = Case::new(attention, is_masked, seed);
        let pool = Pool::new(num_helpers).unwrap();
        let [q_width, kv_width, width] = case.widths();
        let cotangent = values(case.plain().0.len(), seed ^ 1);
        let gradients = case.backward(&pool, &case.qkv, &cotangent);
        let direction = values(case.qkv.len(), seed ^ 2);
        // Along queries, keys and values alone, so that one cannot hide the other.
        for part in [0..q_width, q_width..q_width + kv_width, q_width + kv_width..width] {
            let along = |i: usize| if part.contains(&(i % width)) { direction[i] } else { 0.0 };
            let step = 1e-5;
            let value = |sign: f64| -> f64 {
                let mut moved = case.clone();
                for (i, x) in moved.qkv.iter_mut().enumerate() {
                    *x += sign * step * along(i);
                }
                moved.plain().0.iter().zip(&cotangent).map(|(y, ct)| y * ct).sum()
            };
            let expected = (value(1.0) - value(-1.0)) / (2.0 * step);
            let found: f64 = gradients.iter().enumerate().map(|(i, g)| g * along(i)).sum();
            let size = 1.0 + expected.abs();
            assert!((found - expected).abs() < 1e-5 * size, "{part:?}: {found} {expected}");
        }
        let narrow_gradients = case.backward(&pool, &narrow::<f32>(&case.qkv), &narrow(&cotangent));
        let narrow_gradients: Vec<_> = narrow_gradients.iter().map(|g| f64::from(*g)).collect();
        assert_close(&narrow_gradients, &gradients, 3e-4);
    }
}

fn causal(batch: usize, num_positions: usize, num_heads: usize) -> Attention {
    let (num_kv_heads, head_width) = (num_heads, 16);
    Attention {
        batch,
        num_positions,
        num_heads,
        num_kv_heads,
        head_width,
        causal: true,
        dropout: None,
    }
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    let dropout = Some(Dropout { rate: 0.2, key: [3, 4], first_example: 5, first_head: 1 });
    let case = Case::new(Attention { dropout, ..causal(3, 150, 2) }, true, 1);
    let qkv = narrow::<f32>(&case.qkv);
    let cotangent = narrow(&values(3 * 150 * 32, 2));
    let of = |num_helpers: usize| {
        let pool = Pool::new(num_helpers).unwrap();
        (case.forward(&pool, &qkv), case.backward(&pool, &qkv, &cotangent))
    };
    let alone = of(0);
    assert!(alone == of(1) && alone == of(3));
}

#[test]
fn scores_may_be_huge_and_nan_shows() {
    let mut case = Case::new(causal(1, 100, 1), false, 1);
    let width = case.widths()[2];
    for (i, x) in case.qkv.iter_mut().enumerate() {
        // Queries and keys.
        *x *= if i % width < 32 { 300.0 } else { 1.0 };
    }
    let pool = Pool::new(0).unwrap();
    let (y, _) = case.forward(&pool, &case.qkv);
    assert_close(&y, &case.plain().0, 1e-9);
    assert!(y.iter().all(|y| y.is_finite()));
    // Whatever the scores of hidden keys would be, nothing depends on them.
    let rows = || (0..100).filter(|row| row % 3 != 1);
    case.mask = Some((0..100).map(|row| if row % 3 == 1 { 0.0 } else { 1.0 }).collect());
    let cotangent = values(y.len(), 2);
    let of_visible = |case: &Case| {
        let (y, gradients) =
            (case.forward(&pool, &case.qkv).0, case.backward(&pool, &case.qkv, &cotangent));
        let queries = rows().flat_map(|row| gradients[row * width..][..16].to_vec());
        (rows().flat_map(|row| y[row * 16..][..16].to_vec()).collect(), queries.collect())
    };
    let before: (Vec<f64>, Vec<f64>) = of_visible(&case);
    let mut moved = case.clone();
    for row in (0..100).filter(|row| row % 3 == 1) {
        moved.qkv[row * width..][16..width].fill(1e3);
    }
    assert!(before == of_visible(&moved));
    case.mask = None;
    // A key is seen by its own query and by later ones. Gradients of others in its block may show
    // it, too: 0 times NaN.
    case.qkv[64 * width + 16] = f64::NAN;
    let (y, _) = case.forward(&pool, &case.qkv);
    let is_nan = |row: usize| y[row * 16..][..16].iter().all(|y| y.is_nan());
    assert!((0..100).all(|row| is_nan(row) == (row >= 64)));
    let gradients = case.backward(&pool, &case.qkv, &values(y.len(), 2));
    assert!(gradients[..16].iter().all(|g| g.is_finite()));
    assert!(gradients[64 * width..][..16].iter().all(|g| g.is_nan()));
}
