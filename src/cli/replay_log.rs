//! The command `souffleur replay-log`: replays a message log through the scheduler and compares every decision.

use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;

use clap::Args;

use souffleur::record::file::LogEnd;
use souffleur::record::replay::{Counts, Replayed, replay};
use souffleur::state::control::ControlSetup;

use super::failure::Failure;
use super::output::say;

#[derive(Args, Debug)]
pub struct ReplayLogArgs {
    /// Message log that --record wrote
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

pub fn run(args: &ReplayLogArgs) -> Result<(), Failure> {
    let shown = args.file.display();
    let in_file = |reason: String| Failure::Failed(format!("{shown}: {reason}"));
    let file = File::open(&args.file).map_err(|error| in_file(error.to_string()))?;
    let replayed = replay(BufReader::new(file), &ControlSetup::build);
    let replayed = replayed.map_err(|error| in_file(error.to_string()))?;
    show(&replayed);
    if let Some(difference) = &replayed.difference {
        return Err(in_file(difference.to_string()));
    }
    if replayed.has_gap {
        let missing = match replayed.n_dropped {
            0 => "records".to_owned(),
            n => format!("at least {n} records"),
        };
        return Err(in_file(format!(
            "has a gap: the disk was too slow or a record too large, {missing} are missing; later records cannot be \
             replayed"
        )));
    }
    Ok(())
}

fn show(replayed: &Replayed) {
    let header = &replayed.header;
    let control = &header.control;
    say(format_args!(
        "written by    souffleur {}: {}, {} pages of {}, {} rows",
        header.engine_version,
        control.schedule_policy,
        control.limits.total_pages,
        control.limits.page_size,
        control.limits.total_rows,
    ));
    if let Some(tag) = &header.double_sparsity {
        say(format_args!("sparse        {tag}"));
    }
    let Counts {
        records,
        events,
        units,
        plans,
        steps,
        requests,
        resumed,
        prompt_tokens,
        output_tokens,
    } = replayed.counts;
    say(format_args!(
        "replayed      {records} records: {events} events, {plans} plans, {steps} steps; starts of the engine: {units}"
    ));
    say(format_args!(
        "requests      {requests}: {prompt_tokens} prompt tokens, {output_tokens} tokens generated"
    ));
    if resumed > 0 {
        say(format_args!(
            "resumed       {resumed} times: requests continued after an actor died"
        ));
    }
    let ending = match (&replayed.difference, replayed.ending) {
        (Some(_), _) => "not reached",
        (None, LogEnd::Closed) => "the engine stopped",
        (None, LogEnd::SizeLimit) => "the log reached its maximum size",
        (None, LogEnd::CutOff) => "cut off: records after the last whole block are missing",
    };
    say(format_args!("end           {ending}"));
    if replayed.difference.is_none() {
        say("every plan equals the recorded one");
    }
}
