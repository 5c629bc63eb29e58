//! `Tree<T>`: values under ordered paths.

use indexmap::IndexMap;

/// Values under dotted paths (`blocks.0.attn.qkv.weight`), in order of insertion.
///
/// Parameters, their types, gradients, buffers and files share the same paths: a parameter has one
/// name from the model to the disk. Only parameters that are stored as the [`rows`](crate::rows) of
/// one leaf share a path (`blocks.*.attn.qkv.weight`) in the trees of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree<T> {
    leaves: IndexMap<String, T>,
}

impl<T> Default for Tree<T> {
    fn default() -> Self {
        Self { leaves: IndexMap::new() }
    }
}

impl<T> Tree<T> {
    /// A tree without leaves.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a leaf. If `path` exists, the leaf keeps its position and the old value is returned.
    pub fn insert(&mut self, path: impl Into<String>, value: T) -> Option<T> {
        self.leaves.insert(path.into(), value)
    }

    /// The leaf at `path`.
    pub fn get(&self, path: &str) -> Option<&T> {
        self.leaves.get(path)
    }

    /// The leaf at `path`, mutable.
    pub fn get_mut(&mut self, path: &str) -> Option<&mut T> {
        self.leaves.get_mut(path)
    }

    /// The place of the leaf at `path` in the order of the leaves.
    pub fn index_of(&self, path: &str) -> Option<usize> {
        self.leaves.get_index_of(path)
    }

    /// Number of leaves.
    pub fn len(&self) -> usize {
        self.leaves.len()
    }

    /// `true` if the tree has no leaves.
    pub fn is_empty(&self) -> bool {
        self.leaves.is_empty()
    }

    /// Paths and leaves, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &T)> {
        self.leaves.iter().map(|(path, value)| (path.as_str(), value))
    }

    /// Paths, in order.
    pub fn paths(&self) -> impl ExactSizeIterator<Item = &str> {
        self.leaves.keys().map(String::as_str)
    }

    /// Leaves, in order.
    pub fn values(&self) -> impl ExactSizeIterator<Item = &T> {
        self.leaves.values()
    }

    /// A tree with the same paths and the values of `f`.
    pub fn map<U>(&self, mut f: impl FnMut(&str, &T) -> U) -> Tree<U> {
        self.iter().map(|(path, value)| (path.to_owned(), f(path, value))).collect()
    }

    /// The same leaves under `prefix.path`.
    #[must_use]
    pub fn prefixed(self, prefix: &str) -> Tree<T> {
        self.into_iter().map(|(path, value)| (format!("{prefix}.{path}"), value)).collect()
    }

    /// The leaves under `prefix.`, with the prefix removed.
    #[must_use]
    pub fn subtree(&self, prefix: &str) -> Tree<T>
    where
        T: Clone,
    {
        self.iter()
            .filter_map(|(path, value)| {
                let rest = path.strip_prefix(prefix)?.strip_prefix('.')?;
                Some((rest.to_owned(), value.clone()))
            })
            .collect()
    }
}

/// The leaf at a path.
///
/// # Panics
/// If there is none.
impl<T> std::ops::Index<&str> for Tree<T> {
    type Output = T;
    fn index(&self, path: &str) -> &T {
        &self.leaves[path]
    }
}

impl<T> FromIterator<(String, T)> for Tree<T> {
    fn from_iter<I: IntoIterator<Item = (String, T)>>(leaves: I) -> Self {
        Self { leaves: leaves.into_iter().collect() }
    }
}

impl<T> Extend<(String, T)> for Tree<T> {
    fn extend<I: IntoIterator<Item = (String, T)>>(&mut self, leaves: I) {
        self.leaves.extend(leaves);
    }
}

impl<T> IntoIterator for Tree<T> {
    type Item = (String, T);
    type IntoIter = indexmap::map::IntoIter<String, T>;
    fn into_iter(self) -> Self::IntoIter {
        self.leaves.into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaves_keep_insertion_order_and_prefixes_are_reversible() {
        let tree: Tree<i32> = [("b.10".to_owned(), 1), ("b.2".to_owned(), 2)].into_iter().collect();
        assert_eq!(tree.paths().collect::<Vec<_>>(), ["b.10", "b.2"]);
        let prefixed = tree.clone().prefixed("params");
        assert_eq!(prefixed.get("params.b.2"), Some(&2));
        assert_eq!(prefixed.subtree("params"), tree);
        assert!(prefixed.subtree("param").is_empty());
    }
}
