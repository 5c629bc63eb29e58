//! The rows of stacked leaves: their paths, and conversion between stacks and rows.
//!
//! A leaf `blocks.*.norm.weight` of dims `[2, 64]` with one stacked dim has the rows
//! `blocks.0.norm.weight` and `blocks.1.norm.weight` of dims `[64]`. Programs use the stack; files
//! and patterns use the rows. A path with fewer `*` than stacked dims is that of a pipeline: the
//! first `*` counts several dims, row-major.

use std::borrow::Cow;
use std::collections::HashMap;

use crate::{LeafSpec, Literal, Tree};

/// Where a row is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StackedRow {
    /// The path of its leaf.
    pub leaf: String,
    /// Its index in the leaf, row-major over the stacked dims.
    pub index: usize,
}

/// A row that does not fit its stack.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{path}`: {reason}")]
pub struct MisfitRow {
    /// Its path.
    pub path: String,
    /// The mismatch.
    pub reason: String,
}

/// The rows of all leaves under their own paths, block by block: in the order in which the model
/// would declare them if no leaf were stacked. An ordinary leaf is its own row.
///
/// ```
/// use hlo::{DType, LeafSpec, Tree, rows};
///
/// let leaf = LeafSpec::replicated(DType::F32, &[64]);
/// let leaves = Tree::from_iter([
///     ("blocks.*.bias".to_owned(), leaf.clone().stacked(&[2])),
///     ("blocks.*.scale".to_owned(), leaf.clone().stacked(&[2])),
///     ("bias".to_owned(), leaf),
/// ]);
/// let rows = rows(&leaves);
/// let paths: Vec<_> = rows.paths().collect();
/// let expected = ["blocks.0.bias", "blocks.0.scale", "blocks.1.bias", "blocks.1.scale", "bias"];
/// assert_eq!(paths, expected);
/// assert_eq!((&*rows["blocks.1.scale"].leaf, rows["blocks.1.scale"].index), ("blocks.*.scale", 1));
/// ```
pub fn rows(leaves: &Tree<LeafSpec>) -> Tree<StackedRow> {
    let stack = |(path, spec): (&str, &LeafSpec)| {
        let num_more = spec.num_stacked.saturating_sub(path.matches('*').count());
        let sizes = spec.stack_sizes();
        let (of_first, others) = sizes.split_at((num_more + 1).min(sizes.len()));
        let first = (!of_first.is_empty()).then(|| of_first.iter().product());
        Stack {
            path: path.to_owned(),
            row: StackedRow { leaf: path.to_owned(), index: 0 },
            sizes: first.into_iter().chain(others.iter().copied()).collect(),
        }
    };
    let mut rows = Tree::new();
    add_rows(&mut rows, &leaves.iter().map(stack).collect::<Vec<_>>());
    rows
}

/// A leaf with some of its stacked dims already indexed.
struct Stack {
    path: String,
    row: StackedRow,
    /// The number of blocks for each `*` in the path.
    sizes: Vec<usize>,
}

fn add_rows(rows: &mut Tree<StackedRow>, mut stacks: &[Stack]) {
    // The path before the first index, and the number of blocks: the same for all parameters of a
    // block.
    let blocks = |stack: &Stack| {
        let before = stack.path.split('*').next().unwrap_or_default().to_owned();
        stack.sizes.first().map(|size| (before, *size))
    };
    while let Some(first) = stacks.first() {
        let Some((before, num_blocks)) = blocks(first) else {
            rows.insert(first.path.clone(), first.row.clone());
            stacks = &stacks[1..];
            continue;
        };
        let same = |stack: &&Stack| blocks(stack) == Some((before.clone(), num_blocks));
        let (block, rest) = stacks.split_at(stacks.iter().take_while(same).count());
        for index in 0..num_blocks {
            let indexed = |stack: &Stack| Stack {
                path: stack.path.replacen('*', &index.to_string(), 1),
                row: StackedRow {
                    index: stack.row.index * num_blocks + index,
                    ..stack.row.clone()
                },
                sizes: stack.sizes[1..].to_vec(),
            };
            add_rows(rows, &block.iter().map(indexed).collect::<Vec<_>>());
        }
        stacks = rest;
    }
}

/// The paths of a leaf's rows, in the order in which the leaf holds them.
pub fn row_paths(path: &str, spec: &LeafSpec) -> Vec<String> {
    let leaf = Tree::from_iter([(path.to_owned(), spec.clone())]);
    rows(&leaf).paths().map(str::to_owned).collect()
}

/// The specification of each row, in the order of [`rows`].
pub fn row_specs(leaves: &Tree<LeafSpec>) -> Tree<LeafSpec> {
    rows(leaves).map(|_, row| leaves[&*row.leaf].row())
}

/// Whole leaves as their rows, in the order of [`rows`]. The paths of `values` are among those of
/// `leaves`.
pub fn split_rows(leaves: &Tree<LeafSpec>, values: Tree<Literal>) -> Tree<Literal> {
    let mut split = HashMap::new();
    for (path, whole) in values {
        let spec = &leaves[&*path];
        if spec.num_stacked == 0 {
            split.insert(path, whole);
            continue;
        }
        let empty = Literal::zeros(whole.dtype(), &spec.dims[spec.num_stacked..]);
        for (index, path) in row_paths(&path, spec).into_iter().enumerate() {
            let mut row = empty.clone();
            let num_bytes = row.num_bytes();
            row.bytes_mut().copy_from_slice(&whole.bytes()[index * num_bytes..][..num_bytes]);
            split.insert(path, row);
        }
    }
    let rows = rows(leaves).into_iter();
    rows.filter_map(|(path, _)| split.remove(&path).map(|value| (path, value))).collect()
}

/// A whole leaf from the values of its rows, by their paths. `None` if no row has a value.
///
/// # Errors
/// If only some rows have a value, or a row of a stack has another dtype or other dims.
pub fn join_rows<'v>(
    path: &str,
    spec: &LeafSpec,
    values: &'v Tree<Literal>,
) -> Result<Option<Cow<'v, Literal>>, MisfitRow> {
    if spec.num_stacked == 0 {
        return Ok(values.get(path).map(Cow::Borrowed));
    }
    let paths = row_paths(path, spec);
    if paths.iter().all(|path| values.get(path).is_none()) {
        return Ok(None);
    }
    let row = spec.row();
    let mut whole = Literal::zeros(spec.dtype, &spec.dims);
    for (index, path) in paths.into_iter().enumerate() {
        let Some(value) = values.get(&path) else {
            return Err(MisfitRow { path, reason: "there is no value".to_owned() });
        };
        if (value.dtype(), value.dims()) != (row.dtype, &row.dims[..]) {
            let found = format!("{}{:?}", value.dtype(), value.dims());
            let reason = format!("it is {}, not {found}", row.global_type());
            return Err(MisfitRow { path, reason });
        }
        let num_bytes = value.num_bytes();
        whole.bytes_mut()[index * num_bytes..][..num_bytes].copy_from_slice(value.bytes());
    }
    Ok(Some(Cow::Owned(whole)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Axis, DType, Mesh};

    fn leaves() -> Tree<LeafSpec> {
        let leaf =
            |dims: &[usize], sizes: &[usize]| LeafSpec::replicated(DType::F32, dims).stacked(sizes);
        Tree::from_iter([
            ("embed".to_owned(), leaf(&[3], &[])),
            ("a.*.inner.*.w".to_owned(), leaf(&[2, 2], &[2, 3])),
            ("a.*.inner.*.b".to_owned(), leaf(&[], &[2, 3])),
            ("a.*.norm".to_owned(), leaf(&[1], &[2])),
            ("b.*.norm".to_owned(), leaf(&[1], &[2])),
        ])
    }

    #[test]
    fn rows_of_nested_stacks_are_in_the_order_of_the_blocks() {
        let paths: Vec<_> = rows(&leaves()).paths().map(str::to_owned).collect();
        let mut expected = vec!["embed".to_owned()];
        for i in 0..2 {
            let inner = |j: usize| ["w", "b"].map(|name| format!("a.{i}.inner.{j}.{name}"));
            expected.extend((0..3).flat_map(inner));
            expected.push(format!("a.{i}.norm"));
        }
        expected.extend(["b.0.norm".to_owned(), "b.1.norm".to_owned()]);
        assert_eq!(paths, expected);
        assert_eq!(row_specs(&leaves())["a.1.inner.2.w"].dims, [2, 2]);
        assert_eq!(rows(&leaves())["a.1.inner.2.w"].index, 5);
    }

    #[test]
    fn rows_of_a_pipeline_are_its_blocks_in_order() {
        let leaf = LeafSpec::replicated(DType::F32, &[4]).stacked_over_stages([2, 3, 2]);
        assert_eq!(
            leaf.local_type(&Mesh::SINGLE.with(Axis::Pipeline, 3)).unwrap().dims,
            [2, 1, 2, 4]
        );
        let leaves = Tree::from_iter([("blocks.*.w".to_owned(), leaf.clone())]);
        let paths: Vec<_> = (0..12).map(|block| format!("blocks.{block}.w")).collect();
        assert!(rows(&leaves).paths().eq(&paths));
        assert_eq!(row_paths("blocks.*.w", &leaf), paths);
        assert_eq!(rows(&leaves)["blocks.7.w"].index, 7);
        let values: Vec<_> = (0..48).map(|i| i as f32).collect();
        let whole =
            Tree::from_iter([("blocks.*.w".to_owned(), Literal::from_slice(&leaf.dims, &values))]);
        let split = split_rows(&leaves, whole.clone());
        assert_eq!(split["blocks.7.w"].as_slice::<f32>(), [28.0, 29.0, 30.0, 31.0]);
        let joined = join_rows("blocks.*.w", &leaf, &split).unwrap().unwrap();
        assert_eq!(*joined, whole["blocks.*.w"]);
    }

    #[test]
    fn stacks_are_split_and_joined() {
        let values = leaves().map(|_, spec| {
            let values: Vec<_> = (0..spec.num_elements()).map(|i| i as f32).collect();
            Literal::from_slice(&spec.dims, &values)
        });
        let split = split_rows(&leaves(), values.clone());
        assert!(split.paths().eq(rows(&leaves()).paths()));
        assert_eq!(split["a.1.inner.2.w"].as_slice::<f32>(), [20.0, 21.0, 22.0, 23.0]);
        assert_eq!(split["a.0.inner.1.b"], Literal::scalar(1f32));
        for (path, spec) in leaves().iter() {
            assert_eq!(*join_rows(path, spec, &split).unwrap().unwrap(), values[path], "{path}");
            assert_eq!(join_rows(path, spec, &Tree::new()), Ok(None));
        }

        let join = |value: Option<Literal>| {
            let others = split.clone().into_iter().filter(|(path, _)| path != "a.1.norm");
            let mut values: Tree<_> = others.collect();
            values.extend(value.map(|value| ("a.1.norm".to_owned(), value)));
            join_rows("a.*.norm", &leaves()["a.*.norm"], &values).map(|_| ()).unwrap_err()
        };
        assert_eq!(join(None).to_string(), "`a.1.norm`: there is no value");
        let error = join(Some(Literal::scalar(1f32))).to_string();
        assert_eq!(error, "`a.1.norm`: it is f32[1], not f32[]");
    }
}
