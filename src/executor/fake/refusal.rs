//! Plans that a fake executor refuses.

use crate::error::StepError;
use crate::ids::SeqId;

/// A plan that contradicts itself or what was planned before for a sequence.
pub(super) fn rejected(seq: SeqId, why: &str) -> StepError {
    StepError::Rejected(format!("{seq} {why}"))
}
