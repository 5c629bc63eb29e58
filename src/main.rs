//! The command line: see `lockstep --help`.

use std::process::ExitCode;
use std::time::Instant;

use mimalloc::MiMalloc;

/// Also of the C library and so of plugins, which the crate's feature `override` sees to. XLA's CPU backend allocates all temporaries of a
/// step at its start and frees them at its end. The C library gives them back to the system each time, which clears them in pages of 4 KiB;
/// this allocator keeps them, in large pages. It also compiles in less time: XLA allocates and frees much.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    lockstep::cli::main(Instant::now())
}
