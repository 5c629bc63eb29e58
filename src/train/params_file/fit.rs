//! From named tensors to the leaves of a model.

use std::collections::{BTreeMap, BTreeSet};

use hlo::{DType, LeafSpec, Literal, TensorType, Tree};
use models::{ForeignFormat, Layout};
use safetensors::tensor::TensorView;

use crate::checkpoint::safetensors_dtype;

/// Tensors by name, from one file or several.
pub(super) type Tensors<'a> = BTreeMap<String, TensorView<'a>>;

/// What was found of a model in a file that another one may have written.
#[derive(Debug, Default)]
pub struct Found {
    /// The leaves that the file has.
    pub values: Tree<Literal>,
    /// The model's leaves that it lacks: parts of the head.
    pub missing: Vec<String>,
    /// Its tensors that the model lacks: parts of another head.
    pub unused: Vec<String>,
}

/// The values of the model's leaves, in the order of `specs`.
///
/// # Errors
/// A leaf that is missing or does not fit, a value that is not finite or too large, or a tensor that is not the model's.
pub(super) fn fit(tensors: &Tensors<'_>, specs: &Tree<LeafSpec>) -> Result<Tree<Literal>, String> {
    let format = format_of(tensors, specs);
    let sources = sources(tensors, format, specs)?;
    check_rest(tensors, format, &sources)?;
    read(tensors, specs, &sources)
}

/// [`fit`] of a file whose model may have another head, or none.
///
/// # Errors
/// As [`fit`], for everything but heads.
pub(super) fn fit_below_head(
    tensors: &Tensors<'_>,
    specs: &Tree<LeafSpec>,
) -> Result<Found, String> {
    let Some(format) = format_of(tensors, specs) else {
        let (missing, unused) = Default::default();
        return Ok(Found { values: fit(tensors, specs)?, missing, unused });
    };
    let ours: Vec<_> = specs.paths().collect();
    let is_unused = |name: &&String| format.is_of_other_head(name, &ours);
    let unused: Vec<_> = tensors.keys().filter(is_unused).cloned().collect();
    let kept: Tensors<'_> = tensors
        .iter()
        .filter(|(name, _)| !unused.contains(name))
        .map(|(name, view)| (name.clone(), view.clone()))
        .collect();
    let all = sources(&kept, Some(format), specs)?;
    let is_missing = |(path, (name, _)): &(&str, &(String, Layout))| {
        format.is_of_head(path) && !kept.contains_key(name)
    };
    let missing = specs.paths().zip(&all).filter(is_missing).map(|(path, _)| path.to_owned());
    let missing: Vec<_> = missing.collect();
    let present = specs.iter().filter(|(path, _)| !missing.iter().any(|other| other == path));
    let present = present.map(|(path, spec)| (path.to_owned(), spec.clone())).collect();
    let values = fit(&kept, &present)?;
    Ok(Found { values, missing, unused })
}

/// The format of a file, unless it has the model's own names.
fn format_of(tensors: &Tensors<'_>, specs: &Tree<LeafSpec>) -> Option<&'static ForeignFormat> {
    let format = ForeignFormat::recognize(tensors.keys().map(String::as_str));
    // A name may be the same in both.
    format.filter(|_| !tensors.keys().all(|name| specs.get(name).is_some()))
}

fn read(
    tensors: &Tensors<'_>,
    specs: &Tree<LeafSpec>,
    sources: &[(String, Layout)],
) -> Result<Tree<Literal>, String> {
    let leaf = |((path, ty), (name, layout)): ((&str, &LeafSpec), &(String, Layout))| {
        let view = tensors.get(name).ok_or_else(|| format!("`{name}` is missing"))?;
        let mut dims = ty.dims.clone();
        if *layout == Layout::Transposed {
            dims.reverse();
        }
        let is_convertible =
            |from: &DType| *from == ty.dtype || from.is_float() && ty.dtype.is_float();
        let from = dtype_of(view).filter(is_convertible).filter(|_| view.shape() == dims);
        let Some(from) = from else {
            let found = format!("{:?}{:?}", view.dtype(), view.shape());
            let expected = TensorType::new(ty.dtype, &dims);
            return Err(format!("`{name}` is {found}, but the model's is {expected}"));
        };
        let mut literal = Literal::zeros(from, &ty.dims);
        copy(view.data(), &dims, *layout, &mut literal);
        check_finite(name, &literal)?;
        if from != ty.dtype {
            literal = rounded(name, &literal, ty.dtype)?;
        }
        Ok((path.to_owned(), literal))
    };
    specs.iter().zip(sources).map(leaf).collect()
}

/// The dtype of a tensor in a file, if programs can have it.
pub(super) fn dtype_of(view: &TensorView<'_>) -> Option<DType> {
    DType::ALL.into_iter().find(|dtype| safetensors_dtype(*dtype) == view.dtype())
}

pub(super) fn check_finite(name: &str, literal: &Literal) -> Result<(), String> {
    match literal.is_finite() {
        true => Ok(()),
        false => Err(format!("`{name}` holds values that are infinite or NaN")),
    }
}

/// Converts a finite literal of floats to another float dtype, in which its values must be finite, too.
fn rounded(name: &str, literal: &Literal, dtype: DType) -> Result<Literal, String> {
    let values = literal.to_f64();
    match values.iter().find(|value| !dtype.round(**value).is_finite()) {
        Some(value) => Err(format!("`{name}` holds {value:e}, which is too large for {dtype}")),
        None => Ok(Literal::from_f64(dtype, literal.dims(), &values)),
    }
}

/// The name in the file and the layout of each of the model's leaves, in order.
fn sources(
    tensors: &Tensors<'_>,
    format: Option<&ForeignFormat>,
    specs: &Tree<LeafSpec>,
) -> Result<Vec<(String, Layout)>, String> {
    let Some(format) = format else {
        return Ok(specs.paths().map(|path| (path.to_owned(), Layout::Same)).collect());
    };
    let in_file: BTreeMap<_, _> =
        tensors.keys().map(|name| (format.without_prefix(name), name.as_str())).collect();
    let source = |path: &str| {
        let (name, layout) = format.tensor(path).ok_or_else(|| {
            format!("it is {}, which has no tensor for the model's `{path}`", format.name)
        })?;
        Ok((in_file.get(&*name).map_or_else(|| name.clone(), |&full| full.to_owned()), layout))
    };
    specs.paths().map(source).collect()
}

/// Checks that every tensor in the file was used, except those that its format holds besides parameters.
fn check_rest(
    tensors: &Tensors<'_>,
    format: Option<&ForeignFormat>,
    sources: &[(String, Layout)],
) -> Result<(), String> {
    let used: BTreeSet<_> = sources.iter().map(|(name, _)| name.as_str()).collect();
    let data = |name: &str| tensors.get(name).map(|view| view.data());
    for name in tensors.keys().map(String::as_str).filter(|name| !used.contains(name)) {
        let Some(format) = format else {
            let formats = ForeignFormat::ALL.map(|format| format.name).join(" or ");
            return Err(format!(
                "it holds `{name}`, which the model does not have; all names must be the model's own, or \
                 those of {formats}"
            ));
        };
        match &format.tied {
            Some(tied) if name == tied.copy => {
                let of = used.iter().find(|name| format.without_prefix(name) == tied.of);
                if of.is_none_or(|of| data(name) != data(of)) {
                    return Err(format!(
                        "`{name}` has its own values, but the model ties it to another parameter"
                    ));
                }
            }
            _ if format.is_ignored(name) => {}
            _ => return Err(format!("it holds `{name}`, which the model does not have")),
        }
    }
    Ok(())
}

/// Copies the bytes of a tensor with dims `dims` to one of the given layout.
pub(super) fn copy(from: &[u8], dims: &[usize], layout: Layout, to: &mut Literal) {
    let size = to.dtype().size_bytes();
    match (layout, dims) {
        (Layout::Transposed, [_, columns]) => {
            let column = |column: usize| from.chunks_exact(size).skip(column).step_by(*columns);
            let elements = (0..*columns).flat_map(column);
            let to = to.bytes_mut().chunks_exact_mut(size);
            to.zip(elements).for_each(|(to, from)| to.copy_from_slice(from));
        }
        _ => to.bytes_mut().copy_from_slice(from),
    }
}
