//! The last message of a plan: the pools' grants, with the tree's verdict.

use super::verdict::Verdict;
use crate::pool::pages::{Pages, WindowPages};
use crate::pool::state_pool::OwnedState;
use souffleur_base::ids::{RowId, SeqId, StepId};

/// Third leg: the pools' grants.
#[derive(Debug)]
pub struct StepPlanned {
    pub step: StepId,
    /// Grants in the order of the demands, or the shortfall.
    pub reservation: Reservation,
    pub verdict: Box<Verdict>,
    pub free_pages: usize,
    pub free_rows: usize,
    pub free_states: usize,
    pub free_windows: usize,
}

#[derive(Debug)]
pub enum Reservation {
    Granted {
        grants: Vec<Grant>,
        growth: Growth,
    },
    /// Nothing was granted; the pools keep the memory returned with the demands.
    Short {
        missing_pages: usize,
    },
}

/// One more page for each decoding sequence whose last page is full.
#[derive(Debug)]
pub struct Growth {
    pub seqs: Vec<SeqId>,
    pub pages: Pages,
    /// As many window pages as `pages`, where layers have windows.
    pub windows: WindowPages,
}

#[derive(Debug)]
pub struct Grant {
    pub seq: SeqId,
    /// New pages, in sequence order.
    pub pages: Pages,
    pub row: Option<RowId>,
    /// Recurrent states: first the row's private one, if the row is new, then those for copies that are cached.
    pub states: Vec<OwnedState>,
    /// As many window pages as `pages`, where layers have windows.
    pub windows: WindowPages,
}
