//! What an executor needs to verify drafts: proposers for its rows, and a controller.

use std::fmt;
use std::sync::Arc;

use souffleur_state::speculation::Proposer;
use souffleur_state::step::RowStart;

/// How an executor speculates.
#[derive(Clone)]
pub struct Speculation {
    pub proposers: Arc<dyn MakeProposer>,
    /// Whether steps have drafts only where measured times show that they pay. Otherwise each step has all proposed
    /// drafts, as tests need them.
    pub is_controlled: bool,
}

/// Makes the proposers of rows.
pub trait MakeProposer: Send + Sync {
    /// The proposer of a row that starts; `None` for a row without drafts.
    fn make(&self, start: &RowStart) -> Option<Box<dyn Proposer>>;
}

impl fmt::Debug for Speculation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Speculation")
            .field("is_controlled", &self.is_controlled)
            .finish_non_exhaustive()
    }
}
