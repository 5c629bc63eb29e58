//! `(x_i, x_{i + d/2}) -> rotated by the angle t * base^(-2i/d)`, at position t

use hlo::{Tensor, Tracer};

/// Parameters of [`rotary`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rotary {
    /// The base of the angles' wavelengths.
    pub base: f64,
    /// Positions are divided by it, so that a model that was trained on fewer positions sees
    /// familiar angles. Chen, Wong, Chen and Tian, "Extending context window of large language
    /// models via positional interpolation" (2023).
    pub scaling: f64,
}

impl Default for Rotary {
    /// The base 10,000, without scaling.
    fn default() -> Self {
        Self { base: 10_000.0, scaling: 1.0 }
    }
}

/// Rotary position embedding of `[b, t, d]` with even d: rotates each pair of dims `(i, i + d/2)`
/// by an angle proportional to the position, so that products of two such vectors depend only on
/// their distance. Su et al., "RoFormer: enhanced transformer with rotary position embedding"
/// (2021); pairs as in GPT-NeoX.
///
/// ```
/// use hlo::{Literal, Mesh, interpret, trace};
/// use models::layers::{Rotary, rotary};
///
/// let graph = trace(Mesh::SINGLE, |t| {
///     let x = t.constant(Literal::from_slice(&[1, 2, 2], &[1.0, 0.0, 1.0, 0.0]));
///     t.output("y", rotary(x, Rotary::default()));
/// })?;
/// let y = interpret(&graph, &[]).unwrap()[0][0].to_f64();
/// let expected = [1.0, 0.0, 1f64.cos(), 1f64.sin()];
/// assert!(y.iter().zip(expected).all(|(y, expected)| (y - expected).abs() < 1e-12));
/// # Ok::<(), hlo::Error>(())
/// ```
#[must_use]
#[track_caller]
pub fn rotary<'g>(x_btd: Tensor<'g>, how: Rotary) -> Tensor<'g> {
    rotary_from(x_btd, None, how)
}

/// [`rotary`] of positions from `first` on: a u32 scalar; `None` is 0.
#[track_caller]
pub(super) fn rotary_from<'g>(
    x_btd: Tensor<'g>,
    first: Option<Tensor<'g>>,
    how: Rotary,
) -> Tensor<'g> {
    let [_, t, d] = x_btd.dims();
    if !d.is_multiple_of(2) {
        x_btd.reject("rotary", format!("the width {d} must be even"));
        return x_btd;
    }
    let first_bth = x_btd.slice_dim(2, 0, d / 2);
    let second_bth = x_btd.slice_dim(2, d / 2, d);
    let angles_th = angles(x_btd, [t, d / 2], first, how);
    let like =
        |table_th: Tensor<'g>| table_th.convert(x_btd.dtype()).broadcast_like(first_bth, &[1, 2]);
    let (cos_bth, sin_bth) = (like(angles_th.cosine()), like(angles_th.sine()));
    let turned_bth = first_bth * cos_bth - second_bth * sin_bth;
    turned_bth.concatenate(&[second_bth * cos_bth + first_bth * sin_bth], 2)
}

/// In f32 or wider: bf16 is not precise enough for a position times a frequency.
#[track_caller]
fn angles<'g>(
    x: Tensor<'g>,
    [t, num_pairs]: [usize; 2],
    first: Option<Tensor<'g>>,
    how: Rotary,
) -> Tensor<'g> {
    let (tracer, dtype): (&'g Tracer, _) = (x.tracer(), x.dtype().accumulation());
    let position_th = tracer.iota(dtype, &[t, num_pairs], 0);
    let position_th = match first {
        None => position_th,
        Some(first) => {
            let first = first.convert(dtype);
            position_th.vary(first.varying()) + first.broadcast_like(position_th, &[])
        }
    };
    let pair_th = tracer.iota(dtype, &[t, num_pairs], 1);
    let position_th = match how.scaling == 1.0 {
        true => position_th,
        false => position_th / how.scaling,
    };
    position_th * (pair_th * (-how.base.ln() / num_pairs as f64)).exponential()
}
