//! Plans that a fake executor refuses.

use crate::error::StepError;
use crate::ids::SeqId;

/// Refuses a plan that contradicts itself or an earlier plan of a sequence.
pub(super) fn rejected(seq: SeqId, why: &str) -> StepError {
    StepError::Rejected(format!("{seq} {why}"))
}
