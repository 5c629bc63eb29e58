//! `Literal`: a tensor value in host memory.
//!
//! Constants of a graph, batches, and values read back from a device are all literals. The storage
//! is aligned to 64 bytes, which XLA's CPU backend requires to use host memory without a copy.

use std::fmt;
use std::hash::{Hash, Hasher};

use bytemuck::{Pod, Zeroable};
use half::{bf16, f16};
use ndarray::{ArrayView, ArrayViewD, ArrayViewMutD, Dimension, IxDyn};

use crate::DType;

/// The Rust type of a [`DType`]'s elements. `pred` is stored as `u8` and constructed with
/// [`Literal::pred`].
pub trait Element: Pod + PartialEq + fmt::Debug {
    /// The dtype of values of this type.
    const DTYPE: DType;
}

macro_rules! elements {
    ($($ty:ty => $dtype:ident),*) => { $(impl Element for $ty { const DTYPE: DType = DType::$dtype; })* };
}
elements!(f64 => F64, f32 => F32, bf16 => Bf16, f16 => F16, i64 => I64, i32 => I32, i8 => I8, u64 => U64, u32 => U32, u8 => U8);

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// A dense row-major tensor in host memory: dtype, dims and 64-byte aligned bytes.
#[derive(Clone)]
pub struct Literal {
    dtype: DType,
    dims: Vec<usize>,
    lines: Vec<Line>,
}

impl Literal {
    /// All zeros (`false` for `pred`).
    pub fn zeros(dtype: DType, dims: &[usize]) -> Self {
        let bytes = dims.iter().product::<usize>() * dtype.size_bytes();
        Self { dtype, dims: dims.to_vec(), lines: vec![Line([0; 64]); bytes.div_ceil(64)] }
    }

    /// From values in row-major order.
    ///
    /// # Panics
    /// If the number of values is not the product of `dims`.
    pub fn from_slice<T: Element>(dims: &[usize], values: &[T]) -> Self {
        let mut literal = Self::zeros(T::DTYPE, dims);
        literal.as_mut_slice::<T>().copy_from_slice(values);
        literal
    }

    /// A rank-0 value.
    pub fn scalar<T: Element>(value: T) -> Self {
        Self::from_slice(&[], &[value])
    }

    /// A `pred` tensor.
    ///
    /// # Panics
    /// If the number of values is not the product of `dims`.
    pub fn pred(dims: &[usize], values: &[bool]) -> Self {
        let mut literal = Self::zeros(DType::Pred, dims);
        assert_eq!(literal.num_elements(), values.len(), "number of values for dims {dims:?}");
        for (byte, value) in literal.bytes_mut().iter_mut().zip(values) {
            *byte = u8::from(*value);
        }
        literal
    }

    /// A float tensor from f64 values, each rounded to `dtype` (nearest, ties to even); an integer
    /// or `pred` tensor from values that must be whole.
    ///
    /// # Panics
    /// If the number of values is not the product of `dims`.
    pub fn from_f64(dtype: DType, dims: &[usize], values: &[f64]) -> Self {
        macro_rules! cast {
            ($ty:ty) => {
                Self::from_slice(dims, &values.iter().map(|v| *v as $ty).collect::<Vec<_>>())
            };
        }
        // Rounded first, so that the conversion is exact: see `DType::round`.
        macro_rules! half {
            ($ty:ty) => {{
                let round = |v: &f64| <$ty>::from_f64(dtype.round(*v));
                Self::from_slice(dims, &values.iter().map(round).collect::<Vec<_>>())
            }};
        }
        match dtype {
            DType::F64 => Self::from_slice(dims, values),
            DType::F32 => cast!(f32),
            DType::Bf16 => half!(bf16),
            DType::F16 => half!(f16),
            DType::I64 => cast!(i64),
            DType::I32 => cast!(i32),
            DType::I8 => cast!(i8),
            DType::U64 => cast!(u64),
            DType::U32 => cast!(u32),
            DType::U8 => cast!(u8),
            DType::Pred => Self::pred(dims, &values.iter().map(|v| *v != 0.0).collect::<Vec<_>>()),
        }
    }

    /// A copy of an array of any layout, in row-major order.
    ///
    /// ```
    /// use hlo::Literal;
    /// use ndarray::array;
    /// let transposed = array![[1.0f32, 2.0], [3.0, 4.0]].reversed_axes();
    /// let literal = Literal::from_array(&transposed.view());
    /// assert_eq!(literal.as_slice::<f32>(), [1.0, 3.0, 2.0, 4.0]);
    /// ```
    pub fn from_array<T: Element, D: Dimension>(array: &ArrayView<'_, T, D>) -> Self {
        let mut literal = Self::zeros(T::DTYPE, array.shape());
        match array.as_slice() {
            Some(values) => literal.as_mut_slice().copy_from_slice(values),
            None => {
                let out = literal.as_mut_slice().iter_mut();
                out.zip(array).for_each(|(out, value)| *out = *value);
            }
        }
        literal
    }

    /// The elements as an array, without a copy.
    ///
    /// ```
    /// let literal = hlo::Literal::from_slice(&[2, 3], &[1, 2, 3, 4, 5, 6]);
    /// assert_eq!(literal.array::<i32>()[[1, 2]], 6);
    /// ```
    ///
    /// # Panics
    /// If `T` is not this literal's dtype.
    pub fn array<T: Element>(&self) -> ArrayViewD<'_, T> {
        let shape = IxDyn(&self.dims);
        match ArrayViewD::from_shape(shape, self.as_slice()) {
            Ok(view) => view,
            Err(error) => unreachable!("as many elements as the dims say: {error}"),
        }
    }

    /// [`Self::array`], mutable.
    ///
    /// # Panics
    /// If `T` is not this literal's dtype.
    pub fn array_mut<T: Element>(&mut self) -> ArrayViewMutD<'_, T> {
        let shape = IxDyn(&self.dims.clone());
        match ArrayViewMutD::from_shape(shape, self.as_mut_slice()) {
            Ok(view) => view,
            Err(error) => unreachable!("as many elements as the dims say: {error}"),
        }
    }

    /// Every element as f64: exact for floats, for `pred` and for integers below 2^53.
    pub fn to_f64(&self) -> Vec<f64> {
        macro_rules! cast {
            ($ty:ty) => {
                self.as_slice::<$ty>().iter().map(|v| *v as f64).collect()
            };
        }
        match self.dtype {
            DType::F64 => self.as_slice::<f64>().to_vec(),
            DType::F32 => cast!(f32),
            DType::Bf16 => self.as_slice::<bf16>().iter().map(|v| v.to_f64()).collect(),
            DType::F16 => self.as_slice::<f16>().iter().map(|v| v.to_f64()).collect(),
            DType::I64 => cast!(i64),
            DType::I32 => cast!(i32),
            DType::I8 => cast!(i8),
            DType::U64 => cast!(u64),
            DType::U32 => cast!(u32),
            DType::U8 => cast!(u8),
            DType::Pred => self.bytes().iter().map(|v| f64::from(*v)).collect(),
        }
    }

    /// `true` if no element is infinite or NaN.
    pub fn is_finite(&self) -> bool {
        match self.dtype {
            DType::F64 => self.as_slice::<f64>().iter().all(|v| v.is_finite()),
            DType::F32 => self.as_slice::<f32>().iter().all(|v| v.is_finite()),
            DType::Bf16 => self.as_slice::<bf16>().iter().all(|v| v.is_finite()),
            DType::F16 => self.as_slice::<f16>().iter().all(|v| v.is_finite()),
            _ => true,
        }
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Size of each dimension.
    pub fn dims(&self) -> &[usize] {
        &self.dims
    }

    /// Product of the dims.
    pub fn num_elements(&self) -> usize {
        self.dims.iter().product()
    }

    /// Length in bytes.
    pub fn num_bytes(&self) -> usize {
        self.num_elements() * self.dtype.size_bytes()
    }

    /// The elements, row-major, as bytes in the host's byte order; the start is 64-byte aligned.
    pub fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.lines)[..self.num_bytes()]
    }

    /// [`Self::bytes`], mutable.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let num_bytes = self.num_bytes();
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..num_bytes]
    }

    /// The elements, row-major.
    ///
    /// # Panics
    /// If `T` is not this literal's dtype.
    pub fn as_slice<T: Element>(&self) -> &[T] {
        assert_eq!(self.dtype, T::DTYPE, "literal's dtype");
        bytemuck::cast_slice(self.bytes())
    }

    /// [`Self::as_slice`], mutable.
    ///
    /// # Panics
    /// If `T` is not this literal's dtype.
    pub fn as_mut_slice<T: Element>(&mut self) -> &mut [T] {
        assert_eq!(self.dtype, T::DTYPE, "literal's dtype");
        bytemuck::cast_slice_mut(self.bytes_mut())
    }
}

/// Bitwise: NaN equals itself and `0.0` differs from `-0.0`, as merging constants and comparing
/// replicas require.
impl PartialEq for Literal {
    fn eq(&self, other: &Self) -> bool {
        self.dtype == other.dtype && self.dims == other.dims && self.bytes() == other.bytes()
    }
}

impl Eq for Literal {}

impl Hash for Literal {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.dtype, &self.dims, self.bytes()).hash(state);
    }
}

impl fmt::Debug for Literal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let values = self.to_f64();
        let shown = &values[..values.len().min(16)];
        let more = if shown.len() < values.len() { " .." } else { "" };
        write!(f, "{}{:?} {shown:?}{more}", self.dtype, self.dims)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn storage_is_aligned_and_values_round_trip() {
        let literal = Literal::from_slice(&[3], &[1.5f32, -2.0, 3.0]);
        assert_eq!(literal.bytes().as_ptr() as usize % 64, 0);
        assert_eq!(literal.as_slice::<f32>(), [1.5, -2.0, 3.0]);
        assert_eq!(literal.num_bytes(), 12);
    }

    #[test]
    fn every_dtype_round_trips_through_f64() {
        for dtype in DType::ALL {
            let literal = Literal::from_f64(dtype, &[2], &[0.0, 1.0]);
            assert_eq!(literal.to_f64(), [0.0, 1.0], "{dtype}");
        }
    }

    #[test]
    fn non_finite_elements_are_detected_in_every_float_dtype() {
        for dtype in DType::ALL {
            let at_end = |last: f64| Literal::from_f64(dtype, &[3], &[1.0, 0.0, last]);
            assert!(at_end(1.0).is_finite(), "{dtype}");
            if dtype.is_float() {
                for last in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
                    assert!(!at_end(last).is_finite(), "{dtype} {last}");
                }
            }
        }
    }

    #[test]
    fn half_precision_is_rounded_once() {
        let above_tie = |exponent: i32| 1.0 + 2f64.powi(exponent) + 2f64.powi(-50);
        let bf16 = Literal::from_f64(DType::Bf16, &[], &[above_tie(-8)]);
        assert_eq!(bf16.to_f64(), [1.0 + 2f64.powi(-7)]);
        let f16 = Literal::from_f64(DType::F16, &[], &[above_tie(-11)]);
        assert_eq!(f16.to_f64(), [1.0 + 2f64.powi(-10)]);
    }

    #[test]
    fn equality_is_of_bits() {
        assert_eq!(Literal::scalar(f32::NAN), Literal::scalar(f32::NAN));
        assert_ne!(Literal::scalar(0.0f32), Literal::scalar(-0.0f32));
    }
}
