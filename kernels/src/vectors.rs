//! Vectors of the processor's own width, of either element type.

use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, PoisonError};

use pulp::{Arch, Simd, WithSimd};

/// Runs `task` compiled for the widest vectors of the processor.
///
/// `task` and all functions that it calls must be marked `#[inline(always)]`: a function that is
/// not inlined is compiled for the vectors that all processors have. For that reason `pulp::Arch`
/// is not given the closure itself: it would call `FnOnce::call_once`, which is such a function.
pub fn vectorized(task: impl FnMut()) {
    struct Task<F>(F);
    impl<F: FnMut()> WithSimd for Task<F> {
        type Output = ();

        #[inline(always)]
        fn with_simd<S: Simd>(mut self, _: S) {
            (self.0)();
        }
    }
    Arch::new().dispatch(Task(task));
}

/// An element type that there are vectors of.
pub trait Vectors: Copy {
    /// A vector of the instruction set `S`.
    type Vector<S: Simd>: Copy;

    /// A vector with `value` in all elements.
    fn splat<S: Simd>(simd: S, value: Self) -> Self::Vector<S>;

    /// `a * b + c`, rounded once or twice, as the processor does faster.
    fn mul_add<S: Simd>(
        simd: S,
        a: Self::Vector<S>,
        b: Self::Vector<S>,
        c: Self::Vector<S>,
    ) -> Self::Vector<S>;

    /// The whole vectors of a slice, without the rest.
    fn vectors<S: Simd>(slice: &[Self]) -> &[Self::Vector<S>];

    /// The whole vectors of a slice, without the rest.
    fn vectors_mut<S: Simd>(slice: &mut [Self]) -> &mut [Self::Vector<S>];

    /// Writes as many elements of a vector as the slice is long, at most all.
    fn store_part<S: Simd>(simd: S, slice: &mut [Self], value: Self::Vector<S>);
}

/// Number of elements of a vector.
#[inline(always)]
pub fn lanes<T: Vectors, S: Simd>() -> usize {
    size_of::<T::Vector<S>>() / size_of::<T>()
}

macro_rules! vectors {
    ($element:ty, $vector:ident, $splat:ident, $mul_add:ident, $as:ident, $as_mut:ident, $store:ident) => {
        impl Vectors for $element {
            type Vector<S: Simd> = S::$vector;

            #[inline(always)]
            fn splat<S: Simd>(simd: S, value: Self) -> S::$vector {
                simd.$splat(value)
            }

            #[inline(always)]
            fn mul_add<S: Simd>(
                simd: S,
                a: S::$vector,
                b: S::$vector,
                c: S::$vector,
            ) -> S::$vector {
                simd.$mul_add(a, b, c)
            }

            #[inline(always)]
            fn vectors<S: Simd>(slice: &[Self]) -> &[S::$vector] {
                S::$as(slice).0
            }

            #[inline(always)]
            fn vectors_mut<S: Simd>(slice: &mut [Self]) -> &mut [S::$vector] {
                S::$as_mut(slice).0
            }

            #[inline(always)]
            fn store_part<S: Simd>(simd: S, slice: &mut [Self], value: S::$vector) {
                simd.$store(slice, value);
            }
        }
    };
}

vectors!(f32, f32s, splat_f32s, mul_add_e_f32s, as_simd_f32s, as_mut_simd_f32s, partial_store_f32s);
vectors!(f64, f64s, splat_f64s, mul_add_e_f64s, as_simd_f64s, as_mut_simd_f64s, partial_store_f64s);

/// Elements from the start of a cache line, so that no vector of them crosses one.
#[derive(Debug)]
pub struct Aligned<T> {
    data: Vec<T>,
    start: usize,
    len: usize,
}

/// Bytes of a cache line.
const LINE: usize = 64;

impl<T: Copy + Default> Aligned<T> {
    /// So many zeros.
    pub fn new(len: usize) -> Self {
        let slack = LINE / size_of::<T>();
        let data = vec![T::default(); len + slack];
        let start = data.as_ptr().align_offset(LINE).min(slack);
        Self { data, start, len }
    }
}

/// Memory that tasks of a call take in turns, so that only the first tasks pay for its zeros.
#[derive(Debug)]
pub struct Scratch<T>(Mutex<Vec<Aligned<T>>>);

impl<T: Copy + Default> Scratch<T> {
    /// Nothing yet.
    pub fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }

    /// Calls `task` with so many elements: zeros, or what an earlier task of the same length has
    /// left.
    pub fn with<R>(&self, len: usize, task: impl FnOnce(&mut [T]) -> R) -> R {
        let kept = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = {
            let mut kept = kept();
            let index = kept.iter().position(|scratch| scratch.len == len);
            index.map(|index| kept.swap_remove(index))
        };
        let mut scratch = found.unwrap_or_else(|| Aligned::new(len));
        let result = task(&mut scratch);
        kept().push(scratch);
        result
    }
}

impl<T> Deref for Aligned<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.data[self.start..][..self.len]
    }
}

impl<T> DerefMut for Aligned<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.data[self.start..][..self.len]
    }
}
