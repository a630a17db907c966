//! Scheduling policy: fewest uncached tokens first; requests that share a prefix with an earlier one come last.

use crate::plan::probe::ProbeKind;

use super::{LongQueue, ProbeNeed, SchedulePolicy, Waiting};

pub(super) const NAME: &str = "shortest-prefill-first";

pub(super) struct ShortestPrefillFirst;

impl SchedulePolicy for ShortestPrefillFirst {
    fn name(&self) -> &'static str {
        NAME
    }

    fn probe_need(&self) -> Option<ProbeNeed> {
        Some(ProbeNeed {
            kind: ProbeKind::InBatch,
            long_queue: LongQueue::OrdersAll,
        })
    }

    fn order(&mut self, waiting: &mut [Waiting]) {
        waiting.sort_by_key(|request| {
            let work = request.fill_tokens.saturating_sub(request.matched.tokens);
            (request.matched.is_deprioritised, work.max(1))
        });
    }
}
