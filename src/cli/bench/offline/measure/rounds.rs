//! Runs the measurement rounds: each measures the machine's peak rates, then runs every load once.

use std::path::Path;

use super::bench::Bench;
use super::waits::StepWaits;
use crate::cli::bench::offline::load::Load;
use crate::cli::bench::offline::report::record::Record;
use crate::cli::bench::offline::report::rows::{Row, Sample, Unit};
use crate::cli::failure::Failure;
use crate::cli::output::record::save_progress;

const WARM_UP: Load = Load {
    streams: 2,
    prompt_tokens: 16,
    output_tokens: 4,
};

/// Runs all rounds. Updates the record and the file `json` after each sample.
pub async fn run(
    bench: &mut Bench<'_>,
    loads: &[Load],
    record: &mut Record,
    json: Option<&Path>,
) -> Result<(), Failure> {
    bench.streams(WARM_UP).await?;
    let repeat = record.repeat;
    let mut taken = vec![(Vec::new(), Vec::new()); loads.len()];
    for round in 1..=repeat {
        let rates = bench.machine.measure();
        record.machine.push(rates);
        for (index, load) in loads.iter().enumerate() {
            bench.show_status(format!("round {round} of {repeat}: {}", load.name()));
            let (samples, waits) = &mut taken[index];
            let before = bench.waits.as_ref().and_then(StepWaits::read);
            samples.extend(bench.sample(*load, &rates).await?);
            let after = bench.waits.as_ref().and_then(StepWaits::read);
            let share = before
                .zip(after)
                .and_then(|(before, after)| after.share_since(before));
            waits.extend(share.map(|share| Sample::of_cost(share, None)));
            record.rows = rows(loads, &taken);
            save_progress(record, json)?;
        }
    }
    Ok(())
}

/// The rows of all loads that have samples.
fn rows(loads: &[Load], taken: &[(Vec<Sample>, Vec<Sample>)]) -> Vec<Row> {
    let rows = loads.iter().zip(taken);
    let rows = rows.flat_map(|(load, (samples, waits))| {
        let name = load.name();
        let waiting = format!("GPU idle time before decode steps: {name}");
        [
            Row::new(name, Unit::TokensPerSecond, Some(*load), samples.clone()),
            Row::new(waiting, Unit::Share, Some(*load), waits.clone()),
        ]
    });
    rows.flatten().collect()
}
