//! Drafts of a step's decodes: proposals, and how many of them the step verifies.

use std::ops::Range;

use super::CpuExecutor;
use super::state_drafts::{MAX_STATE_DRAFTS, finish_state};
use crate::speculation::Speculation;
use souffleur_base::ids::RowId;
use souffleur_kernels::cpu::CpuBackend;
use souffleur_state::speculation::{Candidate, Controller, Proposal, Proposer, RowYield};
use souffleur_state::step::{RowStart, RowWork, StepPlan};

/// The drafts of the current step.
#[derive(Default)]
pub(super) struct StepDrafts {
    /// `None` while each step has all drafts that are proposed.
    controller: Option<Controller>,
    /// One for each row of the plan; empty in a step without drafts.
    candidates: Vec<Candidate>,
    /// The drafts of all rows, and the place of each row's in them.
    tokens: Vec<u32>,
    places: Vec<Range<usize>>,
    /// The input of one row that decodes.
    input: Vec<u32>,
    /// The number of drafts of each row, as ranks exchange it.
    chosen: Vec<f32>,
    /// The tokens of all rows before the step.
    context_tokens: usize,
}

impl StepDrafts {
    pub(super) fn new(speculation: Option<&Speculation>, max_rows: usize) -> Self {
        let is_controlled = speculation.is_some_and(|speculation| speculation.is_controlled);
        Self {
            controller: is_controlled.then(|| Controller::new(max_rows)),
            ..Self::default()
        }
    }

    /// Forgets the drafts of the step.
    pub(super) fn clear(&mut self) {
        self.candidates.clear();
        self.tokens.clear();
        self.places.clear();
        self.context_tokens = 0;
    }

    /// True if no row of the step may have drafts.
    pub(super) fn is_empty(&self) -> bool {
        self.candidates.is_empty()
    }

    /// The drafts of the plan's row `work`.
    pub(super) fn of(&self, work: usize) -> &[u32] {
        let place = self.places.get(work).cloned();
        &self.tokens[place.unwrap_or(0..0)]
    }

    /// The input of the plan's row `work`: its last token and its drafts.
    pub(super) fn input(&mut self, work: usize, last_token: u32) -> &[u32] {
        let place = self.places.get(work).cloned();
        self.input.clear();
        self.input.push(last_token);
        self.input
            .extend_from_slice(&self.tokens[place.unwrap_or(0..0)]);
        &self.input
    }

    /// The proposal for the plan's row `work`, if the step has drafts.
    pub(super) fn proposal(&self, work: usize) -> Proposal {
        let candidate = self.candidates.get(work);
        candidate.map_or_else(Proposal::default, |candidate| candidate.proposal)
    }

    /// Counts the drafts of a row that the step has accepted. Returns the row's counts if they have changed.
    pub(super) fn note_result(&mut self, work: usize, n_accepted: usize) -> Option<RowYield> {
        let n_drafts = self.of(work).len();
        let controller = self.controller.as_mut().filter(|_| n_drafts > 0)?;
        let candidate = &mut self.candidates[work];
        controller.note_result(candidate, n_drafts, n_accepted);
        Some(candidate.row)
    }

    /// Takes the choice of rank 0: it depends on measured times, which differ among the ranks.
    fn take_first_rank(&mut self, backend: &mut CpuBackend) {
        if !backend.has_ranks() {
            return;
        }
        self.chosen.clear();
        let numbers = self.candidates.iter();
        self.chosen
            .extend(numbers.map(|candidate| candidate.n_tokens as f32));
        backend.take_first_rank(&mut self.chosen);
        for (candidate, number) in self.candidates.iter_mut().zip(&self.chosen) {
            candidate.n_tokens = *number as usize;
        }
    }

    /// Notes the time of a step that only decodes.
    pub(super) fn note_time(&mut self, n_tokens: usize, seconds: f64) {
        if let Some(controller) = &mut self.controller {
            controller.note_time(self.context_tokens, n_tokens, seconds);
        }
    }
}

impl CpuExecutor {
    /// Proposes drafts for the rows of a step that only decodes, and chooses those that the step verifies.
    pub(super) fn propose(&mut self, plan: &StepPlan) {
        self.drafts.clear();
        let rooms = |work: &RowWork| match work {
            RowWork::Decode { room, .. } => *room,
            RowWork::Prefill { .. } => 0,
        };
        let is_decode = plan.rows.iter().all(|row| rooms(&row.work) > 0);
        if !is_decode || plan.rows.is_empty() {
            return;
        }
        for row in &plan.rows {
            let computed = self.rows.row(row.row).computed;
            self.drafts.context_tokens += computed;
        }
        if plan.rows.iter().all(|row| rooms(&row.work) == 1) {
            return;
        }
        for row in &plan.rows {
            let first = self.drafts.tokens.len();
            let proposal = self.propose_row(row.row, rooms(&row.work) as usize);
            let end = self.drafts.tokens.len();
            self.drafts.places.push(first..end);
            let sampling = self.sampling[row.row.index()].as_ref();
            let row_yield = sampling.map_or_else(RowYield::default, |sampling| sampling.row_yield);
            let candidate = Candidate::new(proposal, end - first, row_yield);
            self.drafts.candidates.push(candidate);
        }
        let drafts = &mut self.drafts;
        if let Some(controller) = &mut drafts.controller {
            controller.choose(drafts.context_tokens, &mut drafts.candidates);
            drafts.take_first_rank(&mut self.backend);
        }
        let drafts = &mut self.drafts;
        for (place, candidate) in drafts.places.iter_mut().zip(&drafts.candidates) {
            place.end = place.start + candidate.n_tokens.min(place.len());
        }
    }

    /// Lets the state of a row take the accepted drafts.
    pub(super) fn accept_in_state(&mut self, plan: &StepPlan, work: usize, n_accepted: usize) {
        let row = &plan.rows[work];
        let n_drafts = self.drafts.of(work).len();
        let Some(live) = self.rows.row(row.row).live.filter(|_| n_drafts > 0) else {
            return;
        };
        let first = self.positions[work].start as usize;
        let slot = row.saves.first().map(|save| save.slot);
        let saves = (self.page_size, slot);
        finish_state(&mut self.backend, live, (first, n_accepted + 1), saves);
    }

    /// The proposer of a row that starts, unless its request has no drafts.
    pub(super) fn proposer_of(&self, start: &RowStart) -> Option<Box<dyn Proposer>> {
        let speculation = self.speculation.as_ref()?;
        let room = start.sampling.speculative_num_draft_tokens;
        let has_drafts = room.is_some_and(|room| room > 1) && start.vectors.is_none();
        has_drafts
            .then(|| speculation.proposers.make(start))
            .flatten()
    }

    /// Appends the drafts of a row with this room, up to the first one that would end the output: the token after it is
    /// not needed.
    fn propose_row(&mut self, row: RowId, room: usize) -> Proposal {
        let most = match self.rows.row(row).live {
            Some(_) => MAX_STATE_DRAFTS,
            None => usize::MAX,
        };
        let Some(sampling) = &mut self.sampling[row.index()] else {
            return Proposal::default();
        };
        let remaining = usize::try_from(sampling.sampler.remaining_tokens()).unwrap_or(usize::MAX);
        let max = room.min(remaining).saturating_sub(1).min(most);
        let Some(proposer) = sampling.proposer.as_mut().filter(|_| max > 0) else {
            return Proposal::default();
        };
        let tokens = &mut self.drafts.tokens;
        let first = tokens.len();
        let proposal = proposer.propose(max, tokens);
        tokens.truncate(first + max);
        let drafts = &tokens[first..];
        let is_unknown = |token: &u32| *token as usize >= self.vocab_size;
        let n_known = drafts.iter().position(is_unknown).unwrap_or(drafts.len());
        let ends = |token: &u32| sampling.sampler.ends_at(*token, &self.eos_token_ids);
        let n_drafts = drafts[..n_known].iter().position(ends).unwrap_or(n_known);
        tokens.truncate(first + n_drafts);
        proposal
    }
}
