//! The order of the waiting queue. A policy is a line in the table and a small type behind [`SchedulePolicy`].

use crate::ids::SeqId;
use crate::state::sequence::SequenceTable;

/// Orders the waiting queue before an admission. Retracted requests stand ahead of every policy's order.
pub trait SchedulePolicy: Send {
    /// Name in the configuration.
    fn name(&self) -> &'static str;

    /// Puts those to be admitted first in front. `waiting` is in order of arrival.
    fn order(&self, waiting: &mut [SeqId], sequences: &SequenceTable);
}

/// First come, first served.
struct Fcfs;

impl SchedulePolicy for Fcfs {
    fn name(&self) -> &'static str {
        "fcfs"
    }

    fn order(&self, _waiting: &mut [SeqId], _sequences: &SequenceTable) {}
}

type Constructor = fn() -> Box<dyn SchedulePolicy>;

const POLICIES: &[(&str, Constructor)] = &[("fcfs", || Box::new(Fcfs))];

/// Makes the policy of this name.
///
/// # Errors
/// Names the policies that there are.
pub fn schedule_policy(name: &str) -> Result<Box<dyn SchedulePolicy>, String> {
    let found = POLICIES.iter().find(|(known, _)| *known == name);
    found.map(|(_, constructor)| constructor()).ok_or_else(|| {
        let known: Vec<&str> = POLICIES.iter().map(|(known, _)| *known).collect();
        format!("is {name:?}, must be one of {}", known.join(", "))
    })
}
