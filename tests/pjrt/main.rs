//! The layer on PJRT, run on the CPU plugin, which is installed if need be.
//!
//! | file | shows |
//! |---|---|
//! | `abi` | every declared C struct has the header's size and offsets |
//! | `plugin` | loading: what is no plugin, for another processor, loaded twice, flags that would abort |
//! | `client` | options, devices, clients beside each other |
//! | `buffers` | upload and read-back of every dtype, zero copy, lifetimes |
//! | `execute` | collectives, donation, pipelining, overrides, queries |
//! | `rejected` | every argument that would wedge the client is refused, and the client goes on |
//! | `faulty` | a plugin with calls that fail where they seldom do, or with null for an empty array |
//! | `cache` | compiled programs on disk: hits, damage, two processes, no place to write |
//! | `ops` | the interpreter and XLA compute the same values for each op and for random graphs |
//! | `install` | pip, hashes, no network, no Python, two installs at once |

#[path = "../support/mod.rs"]
mod support;

mod abi;
mod buffers;
mod cache;
mod client;
mod execute;
mod faulty;
mod install;
mod ops;
mod plugin;
mod programs;
mod rejected;
