//! Scheduling policy: highest response ratio next; short prefills come first, and waiting raises the rank of long ones.
//!
//! Time is counted in prefilled tokens. The ratio is the tokens prefilled for other requests since this request
//! arrived, divided by its uncached tokens.

use std::cmp::Ordering;

use crate::plan::probe::ProbeKind;

use super::{LongQueue, ProbeNeed, SchedulePolicy, Waiting};

pub(super) const NAME: &str = "hrrn";

pub(super) struct Hrrn;

impl SchedulePolicy for Hrrn {
    fn name(&self) -> &'static str {
        NAME
    }

    fn probe_need(&self) -> Option<ProbeNeed> {
        Some(ProbeNeed {
            kind: ProbeKind::InBatch,
            long_queue: LongQueue::FallsBack,
        })
    }

    fn order(&mut self, waiting: &mut [Waiting]) {
        waiting.sort_by(|a, b| class(a).cmp(&class(b)).then_with(|| ratio_descending(a, b)));
    }
}

/// Requests whose whole prompt is cached come first, which only a preempted request can reach, since a match never
/// counts the last token; deprioritised ones come last.
fn class(request: &Waiting) -> u8 {
    match (request.matched.is_deprioritised, uncached(request)) {
        (true, _) => 2,
        (false, 0) => 0,
        (false, _) => 1,
    }
}

fn uncached(request: &Waiting) -> usize {
    request.prompt_tokens.saturating_sub(request.matched.tokens)
}

/// Compares `waited / uncached` without division; fully cached and deprioritised requests compare as equal.
fn ratio_descending(a: &Waiting, b: &Waiting) -> Ordering {
    if class(a) != 1 || class(b) != 1 {
        return Ordering::Equal;
    }
    let of_a = u128::from(a.waited_tokens) * uncached(b) as u128;
    let of_b = u128::from(b.waited_tokens) * uncached(a) as u128;
    of_b.cmp(&of_a)
}
