//! The error for plans that a fake executor rejects.

use souffleur_base::error::StepError;
use souffleur_base::ids::SeqId;

pub(super) fn rejected(seq: SeqId, why: &str) -> StepError {
    StepError::Rejected(format!("sequence {seq} {why}"))
}
