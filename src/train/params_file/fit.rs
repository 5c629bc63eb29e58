//! From named tensors to the leaves of a model.

use std::collections::{BTreeMap, BTreeSet};

use hlo::{DType, Fused, LeafSpec, Literal, TensorType, Tree};
use models::{ForeignFormat, ForeignTensor, Layout};

use super::read::{StoredTensor, Tensors};

/// The difference between a model and a file, which another program may have written.
#[derive(Debug, Default)]
pub struct Unmatched {
    /// The model's leaves that the file lacks: parts of the head.
    pub missing: Vec<String>,
    /// The file's tensors that the model lacks: parts of another head.
    pub unused: Vec<String>,
}

/// A leaf of the model, with the tensor that has its values.
#[derive(Clone, Debug)]
pub(super) struct StoredLeaf {
    name: String,
    tensor: StoredTensor,
    layout: Layout,
    /// The first row of the leaf, which may be a part of the tensor, in the model's order of dims.
    first_row: usize,
    spec: LeafSpec,
}

impl StoredLeaf {
    /// `true` if the model declares it as `spec`.
    pub fn is(&self, spec: &LeafSpec) -> bool {
        (self.spec.dtype, &self.spec.dims) == (spec.dtype, &spec.dims)
    }

    /// All values, as [`Self::read`].
    pub fn read_all(&self) -> Result<Literal, String> {
        self.read(&vec![0; self.spec.dims.len()], &self.spec.dims)
    }

    /// The rectangle of these `dims` that starts at `start`, in the model's dtype.
    ///
    /// # Errors
    /// Values that cannot be read, or that are not finite or too large.
    pub fn read(&self, start: &[usize], dims: &[usize]) -> Result<Literal, String> {
        let named = |reason: String| format!("`{}`: {reason}", self.name);
        let [mut start, mut dims] = [start, dims].map(<[usize]>::to_vec);
        if let Some(row) = start.first_mut() {
            *row += self.first_row;
        }
        let mut values = match self.layout {
            Layout::Same => self.tensor.read(&start, &dims).map_err(named)?,
            Layout::Transposed => {
                start.reverse();
                dims.reverse();
                arranged(&self.tensor.read(&start, &dims).map_err(named)?, self.layout)
            }
        };
        check_finite(&self.name, &values)?;
        if values.dtype() != self.spec.dtype {
            values = rounded(&self.name, &values, self.spec.dtype)?;
        }
        Ok(values)
    }
}

/// The model's leaves, in the order of `specs`. Tensors of other heads may stand beside them.
///
/// # Errors
/// A leaf that is missing or does not fit, or a tensor that belongs neither to the model nor to
/// another head.
pub(super) fn fit(
    tensors: &Tensors,
    specs: &Tree<LeafSpec>,
) -> Result<(Tree<StoredLeaf>, Unmatched), String> {
    let (leaves, unmatched) = fit_below_head(tensors, specs)?;
    match unmatched.missing.first() {
        None => Ok((leaves, unmatched)),
        Some(_) => {
            let missing = unmatched.missing.join("`, `");
            Err(format!(
                "`{missing}` is missing: a head that the file does not have; train it first, with \
                 model.from"
            ))
        }
    }
}

/// [`fit`] of a file with a model that may have another head, or none.
///
/// # Errors
/// As [`fit`], for everything but heads.
pub(super) fn fit_below_head(
    tensors: &Tensors,
    specs: &Tree<LeafSpec>,
) -> Result<(Tree<StoredLeaf>, Unmatched), String> {
    check_wrappers(tensors, specs)?;
    let Some(format) = format_of(tensors, specs) else {
        let sources = sources(tensors, None, specs)?;
        check_rest(tensors, None, &sources)?;
        return Ok((leaves(tensors, specs, &sources)?, Unmatched::default()));
    };
    let ours: Vec<_> = specs.paths().collect();
    let has_prefixes = format.has_prefixes(tensors.keys().map(String::as_str));
    let unused: Vec<_> = tensors
        .keys()
        .filter(|name| format.is_of_other_head(name, &ours, has_prefixes))
        .filter(|name| !stands_for_another(tensors, format, name))
        .cloned()
        .collect();
    let kept: Tensors = tensors
        .iter()
        .filter(|(name, _)| !unused.contains(name))
        .map(|(name, view)| (name.clone(), view.clone()))
        .collect();
    let all = sources(&kept, Some(format), specs)?;
    let is_missing = |(path, source): &(&str, &ForeignTensor)| {
        format.is_of_head(path) && !kept.contains_key(&source.name)
    };
    let missing = specs.paths().zip(&all).filter(is_missing).map(|(path, _)| path.to_owned());
    let missing: Vec<_> = missing.collect();
    let present = specs.iter().filter(|(path, _)| !missing.iter().any(|other| other == path));
    let present = present.map(|(path, spec)| (path.to_owned(), spec.clone())).collect();
    let sources = sources(&kept, Some(format), &present)?;
    check_rest(&kept, Some(format), &sources)?;
    Ok((leaves(&kept, &present, &sources)?, Unmatched { missing, unused }))
}

/// `true` for the second name of a tensor, if the file does not have its first name.
fn stands_for_another(tensors: &Tensors, format: &ForeignFormat, name: &str) -> bool {
    let name = format.without_prefix(name);
    let tied = format.tied.iter().find(|tied| tied.copy == name);
    tied.is_some_and(|tied| !tensors.keys().any(|name| format.without_prefix(name) == tied.of))
}

/// Wrappers that put a model into another, and the part that they insert in front of or into the
/// parameters' names.
const WRAPPERS: [(&str, &str); 6] = [
    ("_fsdp_wrapped_module.", "FullyShardedDataParallel"),
    ("_checkpoint_wrapped_module.", "checkpoint_wrapper"),
    ("_orig_mod.", "torch.compile"),
    ("_forward_module.", "Fabric"),
    ("module.", "DataParallel, DistributedDataParallel or DeepSpeed"),
    ("model.", "a module around the model"),
];

/// Refuses a file with names that wrappers have extended, if they would be known without the
/// extension.
fn check_wrappers(tensors: &Tensors, specs: &Tree<LeafSpec>) -> Result<(), String> {
    let num_known = |names: &[String]| {
        let format = ForeignFormat::recognize(names.iter().map(String::as_str));
        let is_known = |name: &&String| match format {
            Some(format) => format.has_parameter(name),
            None => specs.get(name).is_some(),
        };
        names.iter().filter(is_known).count()
    };
    let names: Vec<_> = tensors.keys().cloned().collect();
    let strip = |name: &String| {
        WRAPPERS.iter().fold(name.clone(), |name, (part, _)| without_part(&name, part))
    };
    let stripped: Vec<_> = names.iter().map(strip).collect();
    let Some(example) = names.iter().zip(&stripped).find(|(name, stripped)| name != stripped)
    else {
        return Ok(());
    };
    if num_known(&stripped) <= num_known(&names) {
        return Ok(());
    }
    let has = |part: &str| names.iter().any(|name| without_part(name, part) != *name);
    let found: Vec<_> = WRAPPERS.iter().filter(|(part, _)| has(part)).collect();
    let causes: Vec<_> =
        found.iter().map(|(part, wrapper)| format!("`{part}`, which {wrapper} adds")).collect();
    let replace: String = found.iter().map(|(part, _)| format!(".replace('{part}', '')")).collect();
    Err(format!(
        "its names have {}, as in `{}`; save the model that is wrapped, or strip the names: python \
         -c \"from safetensors.torch import load_file, save_file; save_file({{k{replace}: v for k, \
         v in load_file('model.safetensors').items()}}, 'stripped.safetensors')\"",
        causes.join("; and "),
        example.0
    ))
}

/// The name without a part that stands at its start or after a dot.
fn without_part(name: &str, part: &str) -> String {
    let name = name.strip_prefix(part).unwrap_or(name);
    name.replace(&format!(".{part}"), ".")
}

/// The format of a file, unless it has the model's own names.
fn format_of(tensors: &Tensors, specs: &Tree<LeafSpec>) -> Option<&'static ForeignFormat> {
    let format = ForeignFormat::recognize(tensors.keys().map(String::as_str));
    // A name may be the same in both.
    format.filter(|_| !tensors.keys().all(|name| specs.get(name).is_some()))
}

fn leaves(
    tensors: &Tensors,
    specs: &Tree<LeafSpec>,
    sources: &[ForeignTensor],
) -> Result<Tree<StoredLeaf>, String> {
    let leaf = |((path, spec), source): ((&str, &LeafSpec), &ForeignTensor)| {
        let ForeignTensor { name, layout, fused } = source;
        let tensor = tensors.get(name).ok_or_else(|| format!("`{name}` is missing"))?;
        let mut dims = spec.dims.clone();
        let mut first_row = 0;
        if let (Some(fused), Some(num_rows)) = (fused, dims.first_mut()) {
            *num_rows = num_rows.saturating_mul(Fused::NUM_PARTS);
            first_row = fused.rows(*num_rows).start;
        }
        if *layout == Layout::Transposed {
            dims.reverse();
        }
        let is_convertible =
            |from: DType| from == spec.dtype || from.is_float() && spec.dtype.is_float();
        if !tensor.program_dtype().is_some_and(is_convertible) || tensor.dims != dims {
            let found = format!("{:?}{:?}", tensor.dtype, tensor.dims);
            let expected = TensorType::new(spec.dtype, &dims);
            return Err(format!("`{name}` is {found}, but the model's is {expected}"));
        }
        let (name, tensor, layout) = (name.clone(), tensor.clone(), *layout);
        let leaf = StoredLeaf { name, tensor, layout, first_row, spec: spec.clone() };
        Ok((path.to_owned(), leaf))
    };
    specs.iter().zip(sources).map(leaf).collect()
}

pub(super) fn check_finite(name: &str, literal: &Literal) -> Result<(), String> {
    match literal.is_finite() {
        true => Ok(()),
        false => Err(format!("`{name}` holds values that are infinite or NaN")),
    }
}

/// Converts a finite literal of floats to another float dtype, in which its values must be finite,
/// too.
fn rounded(name: &str, literal: &Literal, dtype: DType) -> Result<Literal, String> {
    let values = literal.to_f64();
    match values.iter().find(|value| !dtype.round(**value).is_finite()) {
        Some(value) => Err(format!("`{name}` holds {value:e}, which is too large for {dtype}")),
        None => Ok(Literal::from_f64(dtype, literal.dims(), &values)),
    }
}

/// Where the file has each of the model's leaves, in order.
fn sources(
    tensors: &Tensors,
    format: Option<&ForeignFormat>,
    specs: &Tree<LeafSpec>,
) -> Result<Vec<ForeignTensor>, String> {
    let Some(format) = format else {
        let source = |path: &str| {
            let fused = Fused::of(path).filter(|fused| tensors.contains_key(&fused.path));
            let fused = fused.filter(|_| !tensors.contains_key(path));
            let name = fused.as_ref().map_or(path, |fused| &fused.path).to_owned();
            ForeignTensor { name, layout: Layout::Same, fused }
        };
        return Ok(specs.paths().map(source).collect());
    };
    let in_file: BTreeMap<_, _> =
        tensors.keys().map(|name| (format.without_prefix(name), name.as_str())).collect();
    let source = |path: &str| {
        let ForeignTensor { name, layout, fused } = format.tensor(path).ok_or_else(|| {
            format!("it is {}, which has no tensor for the model's `{path}`", format.name)
        })?;
        let second = || {
            let tied = format.tied.iter().find(|tied| tied.of == name)?;
            in_file.get(tied.copy)
        };
        let full = in_file.get(&*name).or_else(second);
        let name = full.map_or_else(|| name.clone(), |&full| full.to_owned());
        Ok(ForeignTensor { name, layout, fused })
    };
    specs.paths().map(source).collect()
}

/// Checks that every tensor in the file was used, except those that its format holds besides
/// parameters.
fn check_rest(
    tensors: &Tensors,
    format: Option<&ForeignFormat>,
    sources: &[ForeignTensor],
) -> Result<(), String> {
    let used: BTreeSet<_> = sources.iter().map(|source| source.name.as_str()).collect();
    let values = |name: &str| tensors.get(name).map(StoredTensor::read_all).transpose();
    for name in tensors.keys().map(String::as_str).filter(|name| !used.contains(name)) {
        let Some(format) = format else {
            let formats = ForeignFormat::ALL.map(|format| format.name).join(" or ");
            return Err(format!(
                "it holds `{name}`, which the model does not have; all names must be the model's \
                 own, or those of {formats}"
            ));
        };
        match format.tied.iter().find(|tied| tied.copy == name) {
            Some(tied) => {
                let of = used.iter().find(|name| format.without_prefix(name) == tied.of);
                let is_same = match of {
                    Some(of) => values(name)? == values(of)?,
                    None => false,
                };
                if !is_same {
                    return Err(format!(
                        "`{name}` has its own values, but the model ties it to `{}`",
                        tied.of
                    ));
                }
            }
            None if format.is_ignored(name) => {}
            None => return Err(format!("it holds `{name}`, which the model does not have")),
        }
    }
    Ok(())
}

/// Values with their dims in the given order.
pub(super) fn arranged(values: &Literal, layout: Layout) -> Literal {
    let (Layout::Transposed, [_, columns]) = (layout, values.dims()) else { return values.clone() };
    let dims: Vec<_> = values.dims().iter().rev().copied().collect();
    let mut to = Literal::zeros(values.dtype(), &dims);
    let size = values.dtype().size_bytes();
    let column = |column: usize| values.bytes().chunks_exact(size).skip(column).step_by(*columns);
    let elements = (0..*columns).flat_map(column);
    let places = to.bytes_mut().chunks_exact_mut(size);
    places.zip(elements).for_each(|(to, from)| to.copy_from_slice(from));
    to
}
