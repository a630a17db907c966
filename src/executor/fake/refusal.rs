//! The error for plans that a fake executor rejects.

use crate::error::StepError;
use crate::ids::SeqId;

pub(super) fn rejected(seq: SeqId, why: &str) -> StepError {
    StepError::Rejected(format!("{seq} {why}"))
}
