//! The phases of all rounds as a table, and the goal.

use std::time::Duration;

use anyhow::ensure;

use super::steps::Step;

/// The longest step with a slice of an image may take this many times as long as the longest prefill step.
const GOAL: f64 = 1.2;

/// A time of streams, alone or with another request.
pub struct Phase {
    pub name: String,
    /// From the request until its answer.
    pub took: Duration,
    /// The longest time between two tokens of a stream.
    pub gap: Duration,
    pub steps: Vec<Step>,
}

impl Phase {
    pub fn line(&self) -> String {
        let steps = self.steps.iter();
        let slices = steps.filter(|step| step.units > 0);
        let (n_slices, n_units) = slices.fold((0, 0), |(slices, units), step| {
            (slices + 1, units + step.units)
        });
        format!(
            "| {} | {:.1} | {:.0} | {:.0} | {:.0} | {} | {n_slices} | {n_units} |",
            self.name,
            self.took.as_secs_f64(),
            ms(self.gap),
            ms(longest(&self.steps, |step| step.prefilled > 0)),
            ms(longest(&self.steps, |step| step.units > 0)),
            self.steps.len(),
        )
    }
}

pub fn head() -> String {
    "| phase | s | longest time between tokens, ms | longest prefill step, ms | longest step with a slice, ms | steps | \
     slices | units |\n|---|---:|---:|---:|---:|---:|---:|---:|"
        .to_owned()
}

/// Compares the steps of all phases.
pub fn check(phases: &[Phase]) -> anyhow::Result<String> {
    let steps: Vec<Step> = phases
        .iter()
        .flat_map(|phase| phase.steps.clone())
        .collect();
    let slice = longest(&steps, |step| step.units > 0);
    let prefill = longest(&steps, |step| step.prefilled > 0);
    let ratio = slice.as_secs_f64() / prefill.as_secs_f64();
    let text = format!(
        "the longest step with a slice took {:.0} ms, {ratio:.2} times the longest prefill step",
        ms(slice)
    );
    ensure!(ratio <= GOAL, "{text}: more than {GOAL}");
    Ok(text)
}

fn longest(steps: &[Step], is_counted: impl Fn(&Step) -> bool) -> Duration {
    let counted = steps.iter().filter(|step| is_counted(step));
    counted.map(|step| step.took).max().unwrap_or_default()
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}
