//! The binary: a command line around the library. Everything that is global to a process (metrics recorder, log
//! subscriber, signal handlers, exit codes) is here and in `cli`, never in the library.

use std::process::ExitCode;

mod cli;

fn main() -> ExitCode {
    cli::main()
}
