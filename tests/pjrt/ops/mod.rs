//! The interpreter against XLA: both must compute the same values for a graph.
//!
//! | file | contents |
//! |---|---|
//! | `table` | every op, for every dtype that it takes, on one replica and on four in two arrangements |
//! | `random_graphs` | combinations of ops: random graphs, also after `passes::simplify` |
//! | `agreement` | criteria for the agreement of two values |

mod agreement;
mod random_graphs;
mod table;
