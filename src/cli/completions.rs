//! The commands `souffleur completions` and `souffleur man`: completions of shells, and manual pages.

use std::io::Write;
use std::path::PathBuf;

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::Cli;
use super::failure::Failure;

#[derive(Args, Debug)]
pub struct CompletionsArgs {
    /// Shell for which the completions are printed
    shell: Shell,
}

#[derive(Args, Debug)]
pub struct ManArgs {
    /// Folder for the pages
    folder: PathBuf,
}

pub fn print(args: &CompletionsArgs) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "souffleur", &mut script);
    std::io::stdout()
        .write_all(&script)
        .map_err(|error| Failure::Failed(format!("failed to write the completions: {error}")))
}

pub fn write_manual(args: &ManArgs) -> Result<(), Failure> {
    let folder = &args.folder;
    clap_mangen::generate_to(Cli::command(), folder).map_err(|error| {
        Failure::Failed(format!(
            "failed to write manual pages to {}: {error}",
            folder.display()
        ))
    })
}
