//! Scheduling policy: longest prefix match first, which uses cached prefixes before they are evicted.

use std::cmp::Reverse;

use crate::plan::probe::ProbeKind;

use super::{LongQueue, ProbeNeed, SchedulePolicy, Waiting};

pub(super) const NAME: &str = "lpm";

pub(super) struct Lpm;

impl SchedulePolicy for Lpm {
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
        waiting.sort_by_key(|request| {
            if request.matched.is_deprioritised {
                (1, Reverse(0))
            } else {
                (0, Reverse(request.matched.tokens))
            }
        });
    }
}
