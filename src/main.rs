//! The command line: see `lockstep --help`.

use std::process::ExitCode;
use std::time::Instant;

fn main() -> ExitCode {
    lockstep::cli::main(Instant::now())
}
