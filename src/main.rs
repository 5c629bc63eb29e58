//! The command line: see `lockstep --help`.

use std::process::ExitCode;
use std::time::Instant;

use mimalloc::MiMalloc;

/// Also of plugins: the crate's feature `override` replaces the functions of the C library, with
/// which XLA takes longer to compile.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    lockstep::cli::main(Instant::now())
}
