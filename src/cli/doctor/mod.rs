//! The command `souffleur doctor`: checks the machine, and says what mends each fault.
//!
//! | part | role |
//! |---|---|
//! | [`facts`] | reads the facts of the machine |
//! | [`findings`] | judges the facts |

mod facts;
mod findings;

use clap::Args;

use super::failure::Failure;
use super::flags::AllFlags;
use super::output::say;
use crate::cli::settings::Settings;
use facts::Facts;
use findings::{Finding, State};

#[derive(Args, Debug)]
pub struct DoctorArgs {
    /// Print the findings as JSON
    #[arg(long, help_heading = "Doctor")]
    json: bool,
    #[command(flatten)]
    pub flags: AllFlags,
}

/// # Errors
/// If a check failed.
pub fn run(args: &DoctorArgs, settings: Settings) -> Result<(), Failure> {
    let findings = findings::of(&Facts::read(settings));
    if args.json {
        let json = serde_json::to_string_pretty(&findings).map_err(Failure::failed)?;
        say(json);
    } else {
        findings.iter().for_each(show);
    }
    let failed = findings.iter().filter(|one| one.state == State::Fail);
    match failed.count() {
        0 => Ok(()),
        1 => Err(Failure::failed("1 check failed")),
        count => Err(Failure::failed(format_args!("{count} checks failed"))),
    }
}

fn show(finding: &Finding) {
    say(format_args!(
        "{:<4} {:<16} {}",
        finding.state.name(),
        finding.check,
        finding.text
    ));
    if let Some(advice) = &finding.advice {
        say(format_args!("{:<21} {advice}", ""));
    }
}
