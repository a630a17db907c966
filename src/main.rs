//! The binary `souffleur`, a command line around the library. Process-wide state (metrics recorder, log subscriber,
//! signal handlers, exit codes) is set in `cli`, never in the library.

use std::process::ExitCode;

mod cli;

fn main() -> ExitCode {
    cli::main()
}
