//! Files of parameters and of the model state that evaluation needs: safetensors with the model's own paths.
//! Reading also accepts the names that other programs use.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::Path;

use hlo::{DType, LeafSpec, Literal, TensorType, Tree};
use models::{ForeignFormat, Layout};
use safetensors::tensor::{Dtype, Metadata, SafeTensors, View};

use super::Error;
use crate::checkpoint::safetensors_dtype;
use crate::config::open_regular;
use crate::observe::replace_file;

/// Name of the file in the output directory.
pub const FILE: &str = "params.safetensors";

/// Writes parameters atomically: an existing file is replaced only when the new one is complete.
///
/// # Errors
/// If a value is not finite, or the file cannot be written.
pub fn save(path: &Path, params: &Tree<Literal>) -> Result<(), Error> {
    let failed = |reason: String| Error::Params { verb: "write", path: path.to_owned(), reason };
    params.iter().try_for_each(|(name, literal)| check_finite(name, literal)).map_err(failed)?;
    let views = params.iter().map(|(path, literal)| (path, Leaf(literal)));
    let bytes = safetensors::serialize(views, None).map_err(|error| failed(error.to_string()))?;
    replace_file(path, &bytes).map_err(|error| failed(error.to_string()))
}

/// Reads parameters of the given types, under the model's own paths or the names of a
/// [foreign format](ForeignFormat), which is recognized by its names.
///
/// Floats of any width are converted to the model's dtype, rounded once, to nearest, ties to even. A value too large for
/// that dtype is an error; one too small for it becomes 0, as with any other rounding. Other dtypes must match the
/// model's.
///
/// # Errors
/// If the file cannot be read or is damaged, or if a parameter is missing, has other dims or another dtype, holds a
/// value that is not finite or too large, or is not one of the model's.
pub fn load(path: &Path, specs: &Tree<LeafSpec>) -> Result<Tree<Literal>, Error> {
    let failed = |reason: String| Error::Params { verb: "read", path: path.to_owned(), reason };
    let bytes = read_announced(path).map_err(failed)?;
    let damaged =
        |error: String| failed(format!("it is not a safetensors file, or it is damaged: {error}"));
    let file = SafeTensors::deserialize(&bytes).map_err(|error| damaged(error.to_string()))?;
    let is_own = file.names().into_iter().any(|name| specs.get(name).is_some());
    let format = if is_own { None } else { ForeignFormat::recognize(file.names()) };
    let sources = sources(&file, format, specs).map_err(failed)?;
    check_rest(&file, format, &sources).map_err(failed)?;
    let leaf = |(path, ty): (&str, &LeafSpec), (name, layout): &(String, Layout)| {
        let view = file.tensor(name).map_err(|_| failed(format!("`{name}` is missing")))?;
        let mut dims = ty.dims.clone();
        if *layout == Layout::Transposed {
            dims.reverse();
        }
        let is_convertible =
            |from: &DType| *from == ty.dtype || from.is_float() && ty.dtype.is_float();
        let from = DType::ALL.into_iter().find(|from| safetensors_dtype(*from) == view.dtype());
        let Some(from) = from.filter(is_convertible).filter(|_| view.shape() == dims) else {
            let found = format!("{:?}{:?}", view.dtype(), view.shape());
            let expected = TensorType::new(ty.dtype, &dims);
            return Err(failed(format!("`{name}` is {found}, but the model's is {expected}")));
        };
        let mut literal = Literal::zeros(from, &ty.dims);
        match (layout, &dims[..]) {
            (Layout::Transposed, [_, columns]) => {
                transpose(view.data(), *columns, from.size_bytes(), literal.bytes_mut());
            }
            _ => literal.bytes_mut().copy_from_slice(view.data()),
        }
        check_finite(name, &literal).map_err(failed)?;
        if from != ty.dtype {
            literal = rounded(name, &literal, ty.dtype).map_err(failed)?;
        }
        Ok((path.to_owned(), literal))
    };
    specs.iter().zip(&sources).map(|(ours, theirs)| leaf(ours, theirs)).collect()
}

/// The format's limit on the size of the header, in bytes.
const MAX_HEADER: u64 = 100_000_000;

/// The bytes of a file. They are read only if the length of the file matches its header.
fn read_announced(path: &Path) -> Result<Vec<u8>, String> {
    let in_words = |error: std::io::Error| error.to_string();
    let damaged =
        |reason: String| format!("it is not a safetensors file, or it is damaged: {reason}");
    let mut file = open_regular(path).map_err(in_words)?;
    let found = file.metadata().map_err(in_words)?.len();
    let mut bytes = vec![];
    file.by_ref().take(8).read_to_end(&mut bytes).map_err(in_words)?;
    let header_bytes = bytes.as_slice().try_into().map(u64::from_le_bytes).unwrap_or(u64::MAX);
    if header_bytes > MAX_HEADER || header_bytes > found {
        return Err(damaged("it has no valid header".to_owned()));
    }
    file.by_ref().take(header_bytes).read_to_end(&mut bytes).map_err(in_words)?;
    let header: Metadata = serde_json::from_slice(bytes.get(8..).unwrap_or_default())
        .map_err(|error| damaged(format!("its header is invalid: {error}")))?;
    let expected = (8 + header_bytes).saturating_add(header.data_len() as u64);
    if found != expected {
        return Err(damaged(format!("it has {found} bytes, but {expected} by its header")));
    }
    file.take(found).read_to_end(&mut bytes).map_err(in_words)?;
    Ok(bytes)
}

fn check_finite(name: &str, literal: &Literal) -> Result<(), String> {
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
    file: &SafeTensors<'_>,
    format: Option<&ForeignFormat>,
    specs: &Tree<LeafSpec>,
) -> Result<Vec<(String, Layout)>, String> {
    let Some(format) = format else {
        return Ok(specs.paths().map(|path| (path.to_owned(), Layout::Same)).collect());
    };
    let in_file: BTreeMap<_, _> =
        file.names().into_iter().map(|name| (format.without_prefix(name), name)).collect();
    let source = |path: &str| {
        let (name, layout) = format.tensor(path).ok_or_else(|| {
            format!("it is {}, which has no tensor for the model's `{path}`", format.name)
        })?;
        Ok((in_file.get(&*name).map_or(name, |&full| full.to_owned()), layout))
    };
    specs.paths().map(source).collect()
}

/// Checks that every tensor in the file was used, except those that its format holds besides parameters.
fn check_rest(
    file: &SafeTensors<'_>,
    format: Option<&ForeignFormat>,
    sources: &[(String, Layout)],
) -> Result<(), String> {
    let used: BTreeSet<_> = sources.iter().map(|(name, _)| name.as_str()).collect();
    let data = |name: &str| file.tensor(name).ok().map(|view| view.data().to_owned());
    for name in file.names().into_iter().filter(|name| !used.contains(name)) {
        let Some(format) = format else {
            let formats = ForeignFormat::ALL.map(|format| format.name).join(" or ");
            return Err(format!(
                "it holds `{name}`, which the model does not have; all names must be the model's own, or \
                 those of {formats}"
            ));
        };
        match format.tied {
            Some((copy, of)) if name == copy => {
                let of = used.iter().find(|name| format.without_prefix(name) == of);
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

/// The transpose of a matrix with `columns` columns. `size` is that of an element in bytes.
fn transpose(from: &[u8], columns: usize, size: usize, to: &mut [u8]) {
    let column = |column: usize| from.chunks_exact(size).skip(column).step_by(columns);
    let elements = (0..columns).flat_map(column);
    to.chunks_exact_mut(size).zip(elements).for_each(|(to, from)| to.copy_from_slice(from));
}

struct Leaf<'a>(&'a Literal);

impl View for Leaf<'_> {
    fn dtype(&self) -> Dtype {
        safetensors_dtype(self.0.dtype())
    }

    fn shape(&self) -> &[usize] {
        self.0.dims()
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(self.0.bytes())
    }

    fn data_len(&self) -> usize {
        self.0.num_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Tree<Literal> {
        let weight = Literal::from_slice(&[2, 2], &[1.0f32, -2.0, 3.5, f32::MIN_POSITIVE]);
        Tree::from_iter([
            ("b.10.weight".to_owned(), weight),
            ("b.2.bias".to_owned(), Literal::from_slice(&[1], &[4.0f32])),
        ])
    }

    fn specs(params: &Tree<Literal>) -> Tree<LeafSpec> {
        params.map(|_, literal| LeafSpec::replicated(literal.dtype(), literal.dims()))
    }

    #[test]
    fn saved_parameters_can_be_loaded() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        save(&path, &example()).unwrap();
        assert_eq!(load(&path, &specs(&example())).unwrap(), example());
    }

    #[test]
    fn parameters_that_do_not_fit_the_model_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        let specs = specs(&example());
        let message = |specs: &Tree<LeafSpec>| load(&path, specs).unwrap_err().to_string();
        assert!(message(&specs).contains("cannot read the parameters"));

        save(&path, &example()).unwrap();
        let mut more = specs.clone();
        more.insert("head.bias", LeafSpec::replicated(DType::F32, &[1]));
        assert!(message(&more).contains("`head.bias` is missing"));
        let mut other = specs.clone();
        other.insert("b.2.bias", LeafSpec::replicated(DType::F32, &[2]));
        assert!(message(&other).contains("`b.2.bias` is F32[1], but the model's is f32[2]"));
        assert!(message(&Tree::new()).contains("which the model does not have"));

        let bytes = std::fs::read(&path).unwrap();
        std::fs::write(&path, &bytes[..bytes.len() - 3]).unwrap();
        assert!(message(&specs).contains("damaged"));
    }

    #[test]
    fn nonfinite_values_are_neither_saved_nor_loaded() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        save(&path, &example()).unwrap();
        let good = std::fs::read(&path).unwrap();
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut params = example();
            params.insert("b.2.bias", Literal::from_slice(&[1], &[bad]));
            let error = save(&path, &params).unwrap_err().to_string();
            assert!(error.contains("cannot write the parameters"), "{error}");
            assert!(error.contains("`b.2.bias` holds values that are infinite or NaN"), "{error}");
            assert_eq!(std::fs::read(&path).unwrap(), good, "the old file stays");

            let damaged = dir.path().join("damaged.safetensors");
            let bytes = good.windows(4).position(|bytes| bytes == 4f32.to_ne_bytes()).unwrap();
            let mut file = good.clone();
            file[bytes..bytes + 4].copy_from_slice(&bad.to_ne_bytes());
            std::fs::write(&damaged, file).unwrap();
            let error = load(&damaged, &specs(&example())).unwrap_err().to_string();
            assert!(error.contains("`b.2.bias` holds values that are infinite or NaN"), "{error}");
        }
    }

    #[test]
    fn floats_of_another_width_are_converted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        let load_as = |from: DType, to: DType, values: &[f64]| {
            let params = Tree::from_iter([(
                "w".to_owned(),
                Literal::from_f64(from, &[values.len()], values),
            )]);
            save(&path, &params).unwrap();
            let specs = params.map(|_, literal| LeafSpec::replicated(to, literal.dims()));
            load(&path, &specs).map(|params| params["w"].clone())
        };
        let floats = [DType::F64, DType::F32, DType::Bf16, DType::F16];
        for from in floats {
            for to in floats {
                let loaded = load_as(from, to, &[0.5, -3.0, 0.0, 96.0]).unwrap();
                let expected = Literal::from_f64(to, &[4], &[0.5, -3.0, 0.0, 96.0]);
                assert_eq!(loaded, expected, "{from} as {to}");
            }
        }
        // Rounded once: through f32, the first value would become a tie and be rounded down.
        let above_tie = 1.0 + 2f64.powi(-8) + 2f64.powi(-40);
        let rounded = load_as(DType::F64, DType::Bf16, &[above_tie, 1e-300]).unwrap();
        assert_eq!(rounded.to_f64(), [1.0 + 2f64.powi(-7), 0.0]);

        let too_large = [(DType::F64, DType::F32, -1e39), (DType::F32, DType::F16, 65536.0)];
        for (from, to, value) in too_large {
            let error = load_as(from, to, &[1.0, value]).unwrap_err().to_string();
            let expected = format!("`w` holds {value:e}, which is too large for {to}");
            assert!(error.contains(&expected), "{error}");
        }
        let error = load_as(DType::I32, DType::F32, &[1.0]).unwrap_err().to_string();
        assert!(error.contains("`w` is I32[1], but the model's is f32[1]"), "{error}");
    }

    /// A linear layer from 3 to 2 features in the layout of Hugging Face's GPT-2, `[in, out]`.
    fn of_gpt2() -> Tree<Literal> {
        let matrix = Literal::from_slice(&[3, 2], &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0]);
        Tree::from_iter([
            ("transformer.h.0.mlp.c_fc.weight".to_owned(), matrix.clone()),
            ("transformer.wte.weight".to_owned(), matrix.clone()),
            ("transformer.h.0.attn.bias".to_owned(), Literal::from_slice(&[1], &[1u8])),
            ("lm_head.weight".to_owned(), matrix),
        ])
    }

    #[test]
    fn a_foreign_file_is_recognized_by_its_names_and_transposed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.safetensors");
        save(&path, &of_gpt2()).unwrap();
        let specs = |paths: &[(&str, [usize; 2])]| -> Tree<LeafSpec> {
            let leaf = |(path, dims): &(&str, [usize; 2])| {
                ((*path).to_owned(), LeafSpec::replicated(DType::F32, dims))
            };
            paths.iter().map(leaf).collect()
        };
        let (up, embed) = (("blocks.0.mlp.up.weight", [2, 3]), ("embed.weight", [3, 2]));
        let loaded = load(&path, &specs(&[up, embed])).unwrap();
        assert_eq!(loaded[up.0].as_slice::<f32>(), [1.0, 3.0, 5.0, 2.0, 4.0, 6.0]);
        assert_eq!(loaded[embed.0].as_slice::<f32>(), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);

        let message = |paths: &[_]| load(&path, &specs(paths)).unwrap_err().to_string();
        let other = message(&[("stem.conv.weight", [1, 1])]);
        assert!(
            other.contains("a Hugging Face GPT-2, which has no tensor for the model's `stem.conv")
        );
        assert!(message(&[embed]).contains("`transformer.h.0.mlp.c_fc.weight`, which the model"));
        let missing = message(&[up, embed, ("blocks.1.mlp.up.weight", [2, 3])]);
        assert!(missing.contains("`h.1.mlp.c_fc.weight` is missing"), "{missing}");
        let turned = message(&[("blocks.0.mlp.up.weight", [3, 2]), embed]);
        assert!(turned.contains("is F32[3, 2], but the model's is f32[2, 3]"), "{turned}");

        let half = |_: &str, literal: &Literal| {
            let dtype = if literal.dtype().is_float() { DType::F16 } else { literal.dtype() };
            Literal::from_f64(dtype, literal.dims(), &literal.to_f64())
        };
        save(&path, &of_gpt2().map(half)).unwrap();
        assert_eq!(load(&path, &specs(&[up, embed])).unwrap(), loaded);

        let mut untied = of_gpt2();
        untied.insert("lm_head.weight", Literal::zeros(DType::F32, &[3, 2]));
        save(&path, &untied).unwrap();
        assert!(message(&[up, embed]).contains("`lm_head.weight` has its own values"));
    }
}
