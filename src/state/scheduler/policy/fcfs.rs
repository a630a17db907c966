//! Scheduling policy: first come, first served.

use super::{SchedulePolicy, Waiting};

pub(super) const NAME: &str = "fcfs";

pub(super) struct Fcfs;

impl SchedulePolicy for Fcfs {
    fn name(&self) -> &'static str {
        NAME
    }

    fn keeps_arrival_order(&self) -> bool {
        true
    }

    fn order(&mut self, _waiting: &mut [Waiting]) {}
}
