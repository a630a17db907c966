//! The last leg of a plan: the pools' grants, with the tree's verdict.

use super::verdict::Verdict;
use crate::ids::{RowId, SeqId, StepId};
use crate::state::pool::pages::{Pages, WindowPages};
use crate::state::pool::state_pool::OwnedState;

/// Third leg: the pools' grants.
#[derive(Debug)]
pub struct StepPlanned {
    /// The step being planned.
    pub step: StepId,
    /// Grants in the order of the demands, or the shortfall.
    pub reservation: Reservation,
    /// The tree's verdict.
    pub verdict: Box<Verdict>,
    /// Pages in the free list.
    pub free_pages: usize,
    /// Rows in the free list.
    pub free_rows: usize,
    /// States in the free list.
    pub free_states: usize,
    /// Window pages in the free list.
    pub free_windows: usize,
}

/// Whether everything could be granted.
#[derive(Debug)]
pub enum Reservation {
    /// Everything requested.
    Granted {
        /// In the order of the demands.
        grants: Vec<Grant>,
        /// For sequences that grow.
        growth: Growth,
    },
    /// Nothing was granted; the pools keep the returned holdings.
    Short {
        /// Pages that were missing.
        missing_pages: usize,
    },
}

/// One more page for each of some sequences: a batch that decodes needs nothing else, step after step.
#[derive(Debug)]
pub struct Growth {
    /// The sequences.
    pub seqs: Vec<SeqId>,
    /// Their pages, in their order.
    pub pages: Pages,
    /// As many window pages, where layers have windows.
    pub windows: WindowPages,
}

/// The grants of one sequence.
#[derive(Debug)]
pub struct Grant {
    /// The sequence.
    pub seq: SeqId,
    /// New pages, in sequence order.
    pub pages: Pages,
    /// Its row, if it requested one.
    pub row: Option<RowId>,
    /// Its states: first the row's private one, if the row is new.
    pub states: Vec<OwnedState>,
    /// As many window pages as pages, where layers have windows.
    pub windows: WindowPages,
}
