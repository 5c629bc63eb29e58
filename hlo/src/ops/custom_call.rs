//! Calls of a backend's functions: kernels that are not expressed as ops.

use std::sync::Arc;

use crate::{Op, Tensor, TensorType, Tracer};

/// A call of a function that a backend looks up by name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CustomCall {
    /// The function's name.
    pub target: String,
    /// The function's compile-time configuration: any text in versions 1 to 3, an MLIR dictionary
    /// (`{rank = 7 : i64}`) or nothing in version 4.
    pub backend_config: String,
    /// StableHLO's calling convention, 1 to 4: original, status-returning, status-returning
    /// unified, typed FFI.
    pub api_version: i32,
    /// `true` if the function has a side effect. Then calls are kept even if nothing uses their
    /// results, and equal calls are not merged. A [`Tracer::remat`] around a call runs it twice.
    pub has_side_effect: bool,
    /// Types of the results on one replica, at least one. The results also vary over the axes of
    /// the operands.
    pub results: Vec<TensorType>,
    /// Memory layouts of operands and results, if not row-major.
    pub layouts: Option<Layouts>,
    /// Floating-point operations of the products in it, for [`crate::count`].
    pub flops: u64,
}

/// The layout of each operand and result of a [`CustomCall`]: its dims from minor to major.
/// `[1, 0]` is a row-major matrix.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Layouts {
    /// A layout for each operand.
    pub operands: Vec<Vec<usize>>,
    /// A layout for each result.
    pub results: Vec<Vec<usize>>,
}

impl CustomCall {
    /// A call in version 1, without configuration, side effect or layouts.
    pub fn new(target: impl Into<String>, results: Vec<TensorType>) -> Self {
        Self {
            target: target.into(),
            backend_config: String::new(),
            api_version: 1,
            has_side_effect: false,
            results,
            layouts: None,
            flops: 0,
        }
    }

    /// The types of the results on these operands.
    pub(crate) fn infer(&self, t: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        if self.target.is_empty() {
            return Err("needs a target".into());
        }
        if self.results.is_empty() {
            return Err("needs a result; it may be `u8[0]`".into());
        }
        let is_dictionary = self.backend_config.is_empty()
            || self.backend_config.starts_with('{') && self.backend_config.ends_with('}');
        match self.api_version {
            1..=3 => {}
            4 if is_dictionary => {}
            4 => return Err("the backend_config of version 4 must be an MLIR dictionary".into()),
            other => return Err(format!("api_version must be 1 to 4, not {other}")),
        }
        if let Some(layouts) = &self.layouts {
            let results: Vec<_> = self.results.iter().collect();
            fits(&layouts.operands, t, "operand")?;
            fits(&layouts.results, &results, "result")?;
        }
        let results = self.results.iter().cloned();
        Ok(results
            .map(|ty| {
                let varying = t.first().map_or(ty.varying, |x| ty.varying | x.varying);
                ty.varying(varying)
            })
            .collect())
    }
}

fn fits(layouts: &[Vec<usize>], types: &[&TensorType], role: &str) -> Result<(), String> {
    if layouts.len() != types.len() {
        let (given, needed) = (layouts.len(), types.len());
        return Err(format!("{given} layouts for {needed} {role}s"));
    }
    for (i, (layout, ty)) in layouts.iter().zip(types).enumerate() {
        let mut sorted = layout.clone();
        sorted.sort_unstable();
        if !sorted.into_iter().eq(0..ty.rank()) {
            return Err(format!(
                "layout {layout:?} of {role} {i} is not a permutation of its dims"
            ));
        }
    }
    Ok(())
}

impl Tracer {
    /// Calls a function of the backend. It has no VJP: to differentiate through it, wrap it
    /// in a [`Tracer::custom_vjp`]. [`crate::interpret`] returns an error for it.
    ///
    /// ```
    /// use hlo::{CustomCall, DType, Mesh, TensorType, lower, trace};
    ///
    /// let graph = trace(Mesh::SINGLE, |t| {
    ///     let x = t.input("x", TensorType::new(DType::F32, &[4]));
    ///     let call = CustomCall { api_version: 4, ..CustomCall::new("double", vec![x.ty()]) };
    ///     t.output("y", t.custom_call(call, &[x])[0]);
    /// })?;
    /// let text = lower(&graph, "example").text;
    /// assert!(text.contains("stablehlo.custom_call @double(%arg0) {api_version = 4 : i32}"));
    /// # Ok::<(), hlo::Error>(())
    /// ```
    #[track_caller]
    pub fn custom_call<'g>(&'g self, call: CustomCall, x: &[Tensor<'g>]) -> Vec<Tensor<'g>> {
        let num_results = call.results.len();
        let mut results = self.apply_variadic(Op::CustomCall(Arc::new(call)), x);
        results.resize(num_results, self.poison());
        results
    }
}
