//! The command line: see `lockstep --help`.

use std::process::ExitCode;
use std::time::Instant;

use mimalloc::MiMalloc;

/// Also of plugins: the crate's feature `override` replaces the functions of the C library. XLA compiles in less time with it, and steps find
/// their temporaries in large pages.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    lockstep::cli::main(Instant::now())
}
