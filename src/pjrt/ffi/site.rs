//! The computation of a collective, from its custom call.

use hlo::Reduction;

/// One collective of a program. Equal on all replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollectiveSite {
    /// The number of the collective in its program.
    pub index: usize,
    /// Its computation.
    pub kind: CollectiveKind,
    /// The replica groups, one after the other.
    pub groups: Vec<usize>,
    /// Number of replicas of each group, at least 1.
    pub group_size: usize,
}

/// The computation of a collective in each replica group. Positions are places in the group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CollectiveKind {
    /// The reduction of each operand.
    AllReduce(Reduction),
    /// The operands, joined along `dim`.
    AllGather {
        /// The dim along which they are joined.
        dim: usize,
    },
    /// The reduction; each replica gets its piece of `dim`.
    ReduceScatter {
        /// The dim that is cut.
        dim: usize,
        /// The reduction.
        reduction: Reduction,
    },
    /// Piece `i` of each operand to position `i`, joined there.
    AllToAll {
        /// The dim that is cut.
        split_dim: usize,
        /// The dim along which pieces are joined.
        concat_dim: usize,
    },
    /// The operand of another position, or zeros.
    CollectivePermute {
        /// Source and target of each pair. Targets are distinct.
        pairs: Vec<(usize, usize)>,
    },
}

impl CollectiveKind {
    /// StableHLO's name of the op.
    pub fn name(&self) -> &'static str {
        match self {
            Self::AllReduce(_) => "all_reduce",
            Self::AllGather { .. } => "all_gather",
            Self::ReduceScatter { .. } => "reduce_scatter",
            Self::AllToAll { .. } => "all_to_all",
            Self::CollectivePermute { .. } => "collective_permute",
        }
    }
}

/// The value of an attribute of a custom call.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Attribute {
    Integer(i64),
    Integers(Vec<i64>),
    Text(String),
}

/// The attributes of a custom call by name.
pub(super) struct Attributes(pub Vec<(String, Attribute)>);

impl Attributes {
    fn get(&self, name: &str) -> Result<&Attribute, String> {
        let found = self.0.iter().find(|(other, _)| other == name);
        found.map(|(_, value)| value).ok_or_else(|| format!("attribute {name} is missing"))
    }

    pub fn number(&self, name: &str) -> Result<usize, String> {
        match self.get(name)? {
            Attribute::Integer(value) => {
                usize::try_from(*value).map_err(|_| format!("attribute {name} is {value}"))
            }
            other => Err(format!("attribute {name} is not an integer but {other:?}")),
        }
    }

    pub fn integers(&self, name: &str) -> Result<Vec<i64>, String> {
        match self.get(name)? {
            Attribute::Integers(values) => Ok(values.clone()),
            _ => Err(format!("attribute {name} is not an array of integers")),
        }
    }

    pub fn numbers(&self, name: &str) -> Result<Vec<usize>, String> {
        let number = |value: i64| usize::try_from(value).ok();
        let numbers: Option<Vec<_>> = self.integers(name)?.into_iter().map(number).collect();
        numbers.ok_or_else(|| format!("attribute {name} has a negative number"))
    }

    pub fn text(&self, name: &str) -> Result<&str, String> {
        match self.get(name)? {
            Attribute::Text(text) => Ok(text),
            other => Err(format!("attribute {name} is not a string but {other:?}")),
        }
    }

    fn reduction(&self) -> Result<Reduction, String> {
        let name = self.text("reduction")?;
        let found = Reduction::ALL.iter().find(|reduction| reduction.name() == name);
        found.copied().ok_or_else(|| format!("there is no reduction {name:?}"))
    }

    /// The collective that they describe.
    pub fn site(&self) -> Result<CollectiveSite, String> {
        let (groups, group_size) = (self.numbers("groups")?, self.number("group_size")?);
        if group_size == 0 || groups.is_empty() || !groups.len().is_multiple_of(group_size) {
            return Err(format!("{} replicas do not form groups of {group_size}", groups.len()));
        }
        let mut distinct = groups.clone();
        distinct.sort_unstable();
        distinct.dedup();
        if distinct.len() != groups.len() {
            return Err(format!("a replica stands twice in the groups {groups:?}"));
        }
        let kind = match self.text("kind")? {
            "all_reduce" => CollectiveKind::AllReduce(self.reduction()?),
            "all_gather" => CollectiveKind::AllGather { dim: self.number("dim")? },
            "reduce_scatter" => CollectiveKind::ReduceScatter {
                dim: self.number("dim")?,
                reduction: self.reduction()?,
            },
            "all_to_all" => CollectiveKind::AllToAll {
                split_dim: self.number("split_dim")?,
                concat_dim: self.number("concat_dim")?,
            },
            "collective_permute" => {
                let pairs = self.numbers("pairs")?;
                let (pairs, rest) = pairs.as_chunks::<2>();
                let pairs: Vec<_> = pairs.iter().map(|[from, to]| (*from, *to)).collect();
                let is_inside = |(from, to): &(usize, usize)| *from.max(to) < group_size;
                if !rest.is_empty() || !pairs.iter().all(is_inside) {
                    return Err(format!("{pairs:?} are not pairs of {group_size} positions"));
                }
                CollectiveKind::CollectivePermute { pairs }
            }
            other => return Err(format!("there is no collective {other:?}")),
        };
        Ok(CollectiveSite { index: self.number("site")?, kind, groups, group_size })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attributes(more: &[(&str, Attribute)]) -> Attributes {
        let mut all = vec![
            ("site".to_owned(), Attribute::Integer(7)),
            ("kind".to_owned(), Attribute::Text("collective_permute".into())),
            ("groups".to_owned(), Attribute::Integers(vec![0, 2, 1, 3])),
            ("group_size".to_owned(), Attribute::Integer(2)),
            ("pairs".to_owned(), Attribute::Integers(vec![0, 1])),
        ];
        for (name, value) in more {
            all.retain(|(other, _)| other != name);
            all.push(((*name).to_owned(), value.clone()));
        }
        Attributes(all)
    }

    #[test]
    fn a_site_is_read_and_nonsense_is_refused() {
        let site = attributes(&[]).site().unwrap();
        let kind = CollectiveKind::CollectivePermute { pairs: vec![(0, 1)] };
        assert_eq!(
            site,
            CollectiveSite { index: 7, kind, groups: vec![0, 2, 1, 3], group_size: 2 }
        );
        let text = |text: &str| Attribute::Text(text.to_owned());
        let cases = [
            ("site", Attribute::Integer(-1), "attribute site is -1"),
            ("kind", text("gossip"), "there is no collective \"gossip\""),
            ("kind", text("all_reduce"), "attribute reduction is missing"),
            ("kind", Attribute::Integer(1), "is not a string"),
            ("groups", Attribute::Integers(vec![0, 1, 2]), "3 replicas do not form groups of 2"),
            ("groups", Attribute::Integers(vec![0, 1, 1, 2]), "twice"),
            ("groups", Attribute::Integers(vec![0, -1]), "negative"),
            ("group_size", Attribute::Integer(0), "groups of 0"),
            ("pairs", Attribute::Integers(vec![0, 2]), "are not pairs of 2 positions"),
            ("pairs", Attribute::Integers(vec![0]), "are not pairs"),
        ];
        for (name, value, expected) in cases {
            let error = attributes(&[(name, value)]).site().unwrap_err();
            assert!(error.contains(expected), "{name}: {error}");
        }
        let error = attributes(&[("kind", text("all_reduce")), ("reduction", text("xor"))]);
        assert!(error.site().unwrap_err().contains("there is no reduction \"xor\""));
    }
}
