//! The interpreter against XLA: the two meanings of a graph are one.
//!
//! | file | what it shows |
//! |---|---|
//! | `table` | every op, for every dtype that it takes, on one replica and on four in two arrangements |
//! | `random_graphs` | what ops do to each other: random graphs, also after `passes::simplify` |
//! | `agreement` | when two values agree |

#[path = "../support/mod.rs"]
mod support;

mod agreement;
mod random_graphs;
mod table;
