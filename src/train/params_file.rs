//! Parameters on disk, and with them the model state that evaluation needs: safetensors, under the
//! model's own paths.

use std::borrow::Cow;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use hlo::{DType, Literal, TensorType, Tree};
use safetensors::tensor::{Dtype, SafeTensors, View};

use super::Error;

/// Name of the file in the output directory.
pub const FILE: &str = "params.safetensors";

/// Writes parameters, whole or not at all: a file that is there stays until the new one is complete.
///
/// # Errors
/// If the file cannot be written.
pub fn save(path: &Path, params: &Tree<Literal>) -> Result<(), Error> {
    let failed = |reason: String| Error::Params { verb: "write", path: path.to_owned(), reason };
    let views = params.iter().map(|(path, literal)| (path, Leaf(literal)));
    let bytes = safetensors::serialize(views, None).map_err(|error| failed(error.to_string()))?;
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let write = || -> std::io::Result<()> {
        // As any other new file: the process's umask takes its part away.
        let permissions = Permissions::from_mode(0o666);
        let mut file =
            tempfile::Builder::new().prefix(".params").permissions(permissions).tempfile_in(dir)?;
        std::io::Write::write_all(&mut file, &bytes)?;
        file.as_file().sync_all()?;
        file.persist(path)?;
        Ok(())
    };
    write().map_err(|error| failed(error.to_string()))
}

/// Reads parameters of the given types.
///
/// # Errors
/// A file that cannot be read or is damaged, a parameter that is missing, is of another dtype or dims,
/// or is not one of the model's.
pub fn load(path: &Path, types: &Tree<TensorType>) -> Result<Tree<Literal>, Error> {
    let failed = |reason: String| Error::Params { verb: "read", path: path.to_owned(), reason };
    let bytes = std::fs::read(path).map_err(|error| failed(error.to_string()))?;
    let file = SafeTensors::deserialize(&bytes)
        .map_err(|error| failed(format!("it is no safetensors file, or damaged: {error}")))?;
    if let Some(name) = file.names().into_iter().find(|name| types.get(name).is_none()) {
        return Err(failed(format!("it holds `{name}`, which the model does not have")));
    }
    let leaf = |path: &str, ty: &TensorType| -> Result<Literal, Error> {
        let view = file.tensor(path).map_err(|_| failed(format!("`{path}` is missing")))?;
        if view.dtype() != dtype(ty.dtype) || view.shape() != ty.dims {
            let found = format!("{:?}{:?}", view.dtype(), view.shape());
            return Err(failed(format!("`{path}` is {found}, but the model's is {ty}")));
        }
        let mut literal = Literal::zeros(ty.dtype, &ty.dims);
        literal.bytes_mut().copy_from_slice(view.data());
        Ok(literal)
    };
    types.iter().map(|(path, ty)| Ok((path.to_owned(), leaf(path, ty)?))).collect()
}

struct Leaf<'a>(&'a Literal);

impl View for Leaf<'_> {
    fn dtype(&self) -> Dtype {
        dtype(self.0.dtype())
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

fn dtype(dtype: DType) -> Dtype {
    match dtype {
        DType::F64 => Dtype::F64,
        DType::F32 => Dtype::F32,
        DType::Bf16 => Dtype::BF16,
        DType::F16 => Dtype::F16,
        DType::I64 => Dtype::I64,
        DType::I32 => Dtype::I32,
        DType::U64 => Dtype::U64,
        DType::U32 => Dtype::U32,
        DType::U8 => Dtype::U8,
        DType::Pred => Dtype::BOOL,
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

    fn types(params: &Tree<Literal>) -> Tree<TensorType> {
        params.map(|_, literal| TensorType::new(literal.dtype(), literal.dims()))
    }

    #[test]
    fn what_is_saved_is_loaded() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        save(&path, &example()).unwrap();
        assert_eq!(load(&path, &types(&example())).unwrap(), example());
    }

    #[test]
    fn what_does_not_fit_the_model_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        let types = types(&example());
        let message = |types: &Tree<TensorType>| load(&path, types).unwrap_err().to_string();
        assert!(message(&types).contains("cannot read the parameters"));

        save(&path, &example()).unwrap();
        let mut more = types.clone();
        more.insert("head.bias", TensorType::new(DType::F32, &[1]));
        assert!(message(&more).contains("`head.bias` is missing"));
        let mut other = types.clone();
        other.insert("b.2.bias", TensorType::new(DType::F32, &[2]));
        assert!(message(&other).contains("`b.2.bias` is F32[1], but the model's is f32[2]"));
        assert!(message(&Tree::new()).contains("which the model does not have"));

        let bytes = std::fs::read(&path).unwrap();
        std::fs::write(&path, &bytes[..bytes.len() - 3]).unwrap();
        assert!(message(&types).contains("damaged"));
    }
}
