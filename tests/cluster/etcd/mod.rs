//! etcd as the store of a job, with a real server on a loopback port:
//!
//! - `client`: the calls, leases, endpoints that are dead or are something else
//! - `jobs`: runs of several processes, with etcd there, restarted and gone

mod client;
mod jobs;
mod server;
