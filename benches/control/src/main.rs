//! Times the control plane (tree, scheduler, allocator, an executor that does nothing), compared with smg's kv-index.
//!
//! Prints one table to standard output, and each row to standard error when it is measured.

mod actors;
mod clock;
mod engine;
mod memory;
mod prompts;
mod report;
mod step_rows;
mod subjects;
mod tree_rows;

use std::path::PathBuf;

use anyhow::Context;
use clap::Parser;

use report::Report;

/// Times the control plane, compared with smg's kv-index.
#[derive(Parser)]
struct Arguments {
    /// Writes everything measured as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Runs only these parts.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Part::Length, Part::Leaves, Part::Steps, Part::Memory])]
    only: Vec<Part>,
    /// Maximum number of leaves of a tree (a million need 5 GiB, mostly for kv-index).
    #[arg(long, default_value_t = 1_000_000)]
    leaves: u64,
    #[arg(long, hide = true)]
    memory_of: Option<String>,
}

#[derive(Clone, Copy, PartialEq, clap::ValueEnum)]
enum Part {
    /// Trees of a few keys of 1k, 8k and 32k tokens.
    Length,
    /// Trees of 1e3, 1e5 and 1e6 leaves.
    Leaves,
    /// Admissions and whole steps.
    Steps,
    /// The tree's own memory per cached token.
    Memory,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    if let Some(name) = &arguments.memory_of {
        let memory = memory::run(name)?;
        println!("{}", serde_json::to_string(&memory)?);
        return Ok(());
    }
    let has = |part| arguments.only.contains(&part);
    let mut rows = Vec::new();
    if has(Part::Length) {
        rows.extend(
            [1_024, 8_192, 32_768]
                .into_iter()
                .flat_map(tree_rows::by_length),
        );
    }
    if has(Part::Leaves) {
        let leaves = [1_000, 100_000, 1_000_000].into_iter();
        let leaves = leaves.filter(|n| *n <= arguments.leaves);
        rows.extend(leaves.flat_map(tree_rows::by_leaves));
    }
    if has(Part::Steps) {
        rows.extend(step_rows::all());
    }
    let memory = match has(Part::Memory) {
        true => memory::all()?,
        false => Vec::new(),
    };
    let report = Report::new(rows, memory)?;
    println!("{}", report.table());
    if let Some(file) = &arguments.json {
        let json = serde_json::to_string_pretty(&report)?;
        std::fs::write(file, json).with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(())
}
