//! Reductions over sliding windows, and their gradients.

use std::ops::Range;

use super::gather::accumulated;
use crate::window::dilated;
use crate::{Op, Reduction, Tensor, TensorType, WindowDim};

/// A sliding window over all dims of a tensor.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Window {
    /// Number of elements along each dim.
    pub sizes: Vec<usize>,
    /// Stride, padding and dilations along each dim.
    pub dims: Vec<WindowDim>,
}

impl Window {
    /// A window of `size` by `size` over the last two dims of `[n, c, h, w]`, with the same stride
    /// and the same padding on all sides.
    pub fn nchw(size: usize, stride: usize, padding: i64) -> Self {
        let spatial = WindowDim { stride, low: padding, high: padding, ..WindowDim::default() };
        let one = WindowDim::default();
        Self { sizes: vec![1, 1, size, size], dims: vec![one, one, spatial, spatial] }
    }

    /// [`Self::nchw`] over h and w of `[n, h, w, c]`.
    pub fn nhwc(size: usize, stride: usize, padding: i64) -> Self {
        let mut window = Self::nchw(size, stride, padding);
        window.sizes.rotate_left(1);
        window.dims.rotate_left(1);
        window
    }

    /// The number of window positions along each dim of a tensor: the dims of the result.
    pub(crate) fn positions(&self, base: &[usize]) -> Result<Vec<usize>, String> {
        let Self { sizes, dims } = self;
        if [sizes.len(), dims.len()] != [base.len(); 2] {
            return Err(format!("the window needs {} dims", base.len()));
        }
        let along = |i: usize| {
            if sizes[i] == 0 {
                return Err(format!("dim {i}: a window needs at least 1 element"));
            }
            dims[i]
                .num_positions(base[i], sizes[i])
                .map_err(|message| format!("dim {i}: {message}"))
        };
        (0..base.len()).map(along).collect()
    }

    /// Number of base elements that the windows of all positions cover, with multiplicity.
    pub(crate) fn num_covered(&self, base: &TensorType, positions: &TensorType) -> u64 {
        let along =
            |i: usize| self.dims[i].num_covered(positions.dims[i], self.sizes[i], base.dims[i]);
        (0..self.dims.len()).map(along).fold(1, u64::saturating_mul)
    }

    /// The elements that negative padding leaves of a base, and the window over them, which has the
    /// same positions and no negative padding. Compilers mishandle that: XLA's simplifier aborts
    /// the process if the window has one element.
    fn without_cuts(self, base: &[usize]) -> (Kept, Self) {
        let has_cuts = self.dims.iter().any(|dim| dim.low < 0 || dim.high < 0);
        if !has_cuts || self.positions(base).is_err() {
            return (Kept(None), self);
        }
        let (kept, dims) =
            self.dims.iter().zip(base).map(|(dim, base)| dim.without_cuts(*base)).unzip();
        (Kept(Some(kept)), Self { dims, ..self })
    }

    pub(crate) fn is_dilated(&self) -> bool {
        self.dims.iter().any(|dim| dim.base_dilation > 1 || dim.window_dilation > 1)
    }
}

/// The part of each dim that is kept of a tensor, if not all is.
struct Kept(Option<Vec<Range<usize>>>);

impl Kept {
    #[track_caller]
    fn of<'g>(&self, x: Tensor<'g>) -> Tensor<'g> {
        let Some(ranges) = &self.0 else { return x };
        let edge = |edge: fn(&Range<usize>) -> usize| ranges.iter().map(edge).collect::<Vec<_>>();
        x.slice(&edge(|range| range.start), &edge(|range| range.end), &vec![1; ranges.len()])
    }

    /// Zeros around the part, up to the dims of the whole.
    #[track_caller]
    fn back<'g>(&self, x: Tensor<'g>, dims: &[usize]) -> Tensor<'g> {
        let Some(ranges) = &self.0 else { return x };
        let low: Vec<_> = ranges.iter().map(|range| range.start as i64).collect();
        let high: Vec<_> =
            ranges.iter().zip(dims).map(|(range, dim)| (dim - range.end) as i64).collect();
        x.pad(0.0, &low, &high, &vec![0; dims.len()])
    }
}

impl<'g> Tensor<'g> {
    /// Reduction over each position of a window. Padding is the identity of the reduction; sums
    /// are accumulated in f32 for narrower floats.
    ///
    /// ```
    /// use hlo::{DType, Mesh, Reduction, TensorType, Window, trace};
    ///
    /// trace(Mesh::SINGLE, |t| {
    ///     let x = t.input("x", TensorType::new(DType::F32, &[8, 64, 112, 112]));
    ///     let y = x.reduce_window(Reduction::Max, Window::nchw(3, 2, 1));
    ///     assert_eq!(y.dims(), [8, 64, 56, 56]);
    /// })?;
    /// # Ok::<(), hlo::Error>(())
    /// ```
    #[must_use]
    #[track_caller]
    pub fn reduce_window(self, reduction: Reduction, window: Window) -> Tensor<'g> {
        let dtype = self.dtype();
        let accumulated = if reduction == Reduction::Sum { dtype.accumulation() } else { dtype };
        let (kept, window) = window.without_cuts(&self.shape());
        let x = kept.of(self).convert(accumulated);
        self.tracer().apply(Op::ReduceWindow { reduction, window }, &[x]).convert(dtype)
    }

    /// For each position of the window, adds `source`'s element at the position of this tensor's
    /// greatest element in the window, the first if several are equal. Sums are accumulated in f32
    /// for narrower floats. The gradient of a maximum over windows.
    ///
    /// The interpreter and the CPU kernels (images `[n, h, w, c]` in f32 and f64) take the first.
    /// XLA does too, but for some padded windows with several equal elements, where it may take
    /// another one of them.
    #[must_use]
    #[track_caller]
    pub fn select_and_scatter(self, source: Tensor<'g>, window: Window) -> Tensor<'g> {
        let dtype = self.dtype();
        let (kept, window) = window.without_cuts(&self.shape());
        let operands = accumulated(kept.of(self), source);
        let sums = self.tracer().apply(Op::SelectAndScatter { window }, &operands).convert(dtype);
        kept.back(sums, &self.shape())
    }
}

/// The cotangent of the operand of a reduction over windows.
pub(crate) fn reduce_window_vjp<'g>(
    reduction: Reduction,
    window: &Window,
    x: Tensor<'g>,
    ct: Tensor<'g>,
) -> Result<Option<Tensor<'g>>, String> {
    match reduction {
        Reduction::Sum => Ok(Some(sum_vjp(window, x, ct))),
        Reduction::And | Reduction::Or => Ok(None),
        _ if window.is_dilated() => Err(format!(
            "the {} over a dilated window is not differentiable; slice with strides instead",
            reduction.name()
        )),
        Reduction::Max => Ok(Some(x.select_and_scatter(ct, window.clone()))),
        Reduction::Min => Ok(Some((-x).select_and_scatter(ct, window.clone()))),
    }
}

/// Each element contributes to all positions with a window that covers it: the VJP is a sum over
/// windows of the cotangent, dilated by the stride.
fn sum_vjp<'g>(window: &Window, x: Tensor<'g>, ct: Tensor<'g>) -> Tensor<'g> {
    let (mut low, mut high, mut interior, mut dims) = (vec![], vec![], vec![], vec![]);
    for (i, dim) in window.dims.iter().enumerate() {
        let extent = dilated(window.sizes[i], dim.window_dilation);
        let before = extent - 1 - i128::from(dim.low);
        let after = dilated(x.dim(i), dim.base_dilation) + extent
            - 1
            - dilated(ct.dim(i), dim.stride)
            - before;
        low.push(before as i64);
        high.push(after as i64);
        interior.push(dim.stride - 1);
        let (stride, window_dilation) = (dim.base_dilation, dim.window_dilation);
        dims.push(WindowDim { stride, window_dilation, ..WindowDim::default() });
    }
    let spread = ct.pad(0.0, &low, &high, &interior);
    spread.reduce_window(Reduction::Sum, Window { sizes: window.sizes.clone(), dims })
}

/// The largest window for [`source_cotangent`], which records a few nodes per element.
const MAX_UNROLLED: usize = 1 << 16;

/// The cotangent of a `source` that was scattered: `ct` at the positions to which the source's
/// elements were added. Unrolled over the window's elements, in the op's order, with the selection
/// so far.
pub(crate) fn source_cotangent<'g>(
    window: &Window,
    x: Tensor<'g>,
    source: Tensor<'g>,
    ct: Tensor<'g>,
) -> Result<Tensor<'g>, String> {
    if source.num_elements() == 0 {
        return Ok(source.full_like(0.0));
    }
    let num_elements = window.sizes.iter().fold(1usize, |n, size| n.saturating_mul(*size));
    if num_elements > MAX_UNROLLED {
        return Err(format!(
            "second derivatives through a window are unrolled over its elements, of which there \
             may be {MAX_UNROLLED}, not {num_elements}; use a smaller window"
        ));
    }
    let edge = |edge: fn(&WindowDim) -> i64| window.dims.iter().map(edge).collect::<Vec<_>>();
    let (low, high) = (edge(|dim| dim.low), edge(|dim| dim.high));
    let none = vec![0; window.dims.len()];
    let x = x.pad(f64::NEG_INFINITY, &low, &high, &none);
    let ct = ct.pad(0.0, &low, &high, &none);
    let strides: Vec<_> = window.dims.iter().map(|dim| dim.stride).collect();
    let reach: Vec<_> = (0..strides.len())
        .map(|i| (source.dim(i) * strides[i]).saturating_sub(strides[i] - 1))
        .collect();
    let mut selected: Option<(Tensor<'g>, Tensor<'g>)> = None;
    for offset in offsets(&window.sizes) {
        let limit: Vec<_> = offset.iter().zip(&reach).map(|(from, reach)| from + reach).collect();
        let [candidate, read] = [x, ct].map(|of| of.slice(&offset, &limit, &strides));
        selected = Some(match selected {
            None => (candidate, read),
            Some((greatest, value)) => {
                let stays = greatest.greater_equal(candidate);
                (stays.select(greatest, candidate), stays.select(value, read))
            }
        });
    }
    Ok(selected.map_or_else(|| source.full_like(0.0), |(_, value)| value))
}

/// All indices within a window, row-major.
fn offsets(sizes: &[usize]) -> Vec<Vec<usize>> {
    sizes.iter().fold(vec![vec![]], |offsets, size| {
        let longer = |offset: &Vec<usize>, i| [&offset[..], &[i]].concat();
        offsets.iter().flat_map(|offset| (0..*size).map(move |i| longer(offset, i))).collect()
    })
}
