//! etcd as the store of a job: the key-value store of its generations, the address of its
//! coordinator, and leases that end with their processes.
//!
//! ```text
//! /lockstep/JOB/coordinator                      its address, under the lease of the job, which its owner keeps alive
//! /lockstep/JOB/GENERATION/values/KEY            under the lease of the job
//! /lockstep/JOB/GENERATION/gathers/NAME/ROUND/I  likewise
//! /lockstep/JOB/GENERATION/alive/I               under a lease of process I
//! ```
//! When everything is killed, all keys end with their leases.

mod client;
mod generation;
mod kept_key;
mod messages;
mod registration;

pub use client::{Etcd, EtcdError};
pub use registration::{Registration, published_address};

pub(super) use generation::GenerationStore;
pub(super) use registration::find_coordinator;

use std::time::Duration;

/// A lease that is not kept alive ends after this long. etcd rounds shorter ones up to its election
/// timeout.
const TTL: Duration = Duration::from_secs(8);

/// The first part of all keys of a job.
fn prefix(job: &str) -> String {
    format!("/lockstep/{}/", escaped(job))
}

/// A name without `/`, so that no job has the keys of another.
fn escaped(name: &str) -> String {
    name.replace('%', "%25").replace('/', "%2F")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_job_has_the_keys_of_another() {
        assert_eq!(prefix("a"), "/lockstep/a/");
        for (a, b) in [("a", "a/1"), ("a/b", "a%2Fb"), ("a", "aa")] {
            assert!(!prefix(b).starts_with(&prefix(a)), "{a} {b}");
        }
    }
}
