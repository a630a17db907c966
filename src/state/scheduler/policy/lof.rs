//! Scheduling policy: longest output (`max_new_tokens`) first, which avoids a tail of long outputs that run alone.

use std::cmp::Reverse;

use super::{SchedulePolicy, Waiting};

pub(super) const NAME: &str = "lof";

pub(super) struct Lof;

impl SchedulePolicy for Lof {
    fn name(&self) -> &'static str {
        NAME
    }

    fn order(&mut self, waiting: &mut [Waiting]) {
        waiting.sort_by_key(|request| Reverse(request.max_new_tokens));
    }
}
