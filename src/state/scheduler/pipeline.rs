//! The planning pipeline: the open plan and the steps in flight.
//!
//! Steps run in the order of their ids. A page that is freed while step N+2 is planned may still be written by step
//! N+1. The earliest step that can reuse the page is N+2, which runs later.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::vision::SliceRecord;
use crate::plan::prefill_pace::PrefillWork;
use crate::plan::probe::Matched;
use crate::pool::pages::{PageRun, Pages, WindowPages, WindowRun};
use crate::pool::state_pool::OwnedState;
use crate::step::{PIPELINE_DEPTH, RowResult, TableDelta};
use souffleur_base::ids::{PageId, RowId, SeqId, StepId};

/// At most one plan and [`PIPELINE_DEPTH`] steps.
pub(super) struct Pipeline {
    phase: PlanPhase,
    steps: VecDeque<StepRecord>,
    next_step: StepId,
    deltas: Vec<TableDelta>,
    /// An event has occurred since the last plan began; otherwise the next plan would be the same.
    is_dirty: bool,
    /// A step was lost: no plan until no step is in flight, then everything is retracted and the tree flushed.
    is_recovering: bool,
    /// The cleared rows of the last result, for reuse.
    cleared_rows: Option<Vec<RowResult>>,
}

#[derive(Debug, Default)]
enum PlanPhase {
    #[default]
    Closed,
    Probing,
    /// The tree has answered the probe; the plan can be opened.
    Probed(ProbeResult),
    Open(OpenPlan),
}

#[derive(Debug, Default)]
pub(super) struct ProbeResult {
    pub(super) matches: FxHashMap<SeqId, Matched>,
    pub(super) returned: Returned,
}

#[derive(Debug, Default)]
pub(super) struct Returned {
    pub(super) pages: Pages,
    pub(super) rows: Vec<RowId>,
    pub(super) states: Vec<OwnedState>,
    pub(super) windows: WindowPages,
}

#[derive(Debug)]
pub(super) struct OpenPlan {
    pub(super) step: StepId,
    /// The decode to run if nothing is admitted.
    pub(super) decode: Vec<SeqId>,
    /// The number of the last host flush that the plan carries out.
    pub(super) flush: Option<u64>,
}

#[derive(Debug)]
pub(super) struct StepRecord {
    step: StepId,
    pub(super) rows: Vec<SeqId>,
    /// The rooms of `rows`; empty if each is 1.
    rooms: Vec<u32>,
    /// An earlier step was lost: this step's result is dropped.
    pub(super) is_void: bool,
    /// The prefill whose time is measured; empty for a step that also loads.
    prefill: PrefillWork,
    pub(super) slice: SliceRecord,
}

impl StepRecord {
    /// The most query tokens of a row, if it is a decode.
    pub(super) fn room(&self, index: usize) -> u32 {
        self.rooms.get(index).copied().unwrap_or(1)
    }

    /// The requests in the step, and those whose image it encodes.
    pub(super) fn seqs(&self) -> impl Iterator<Item = &SeqId> {
        self.rows.iter().chain(&self.slice.waiting)
    }
}

impl Pipeline {
    pub(super) fn new() -> Self {
        Self {
            phase: PlanPhase::Closed,
            steps: VecDeque::with_capacity(PIPELINE_DEPTH),
            next_step: StepId::new(1),
            deltas: Vec::new(),
            is_dirty: false,
            is_recovering: false,
            cleared_rows: None,
        }
    }

    /// Numbers the steps from `step` on, unless they have larger numbers already.
    pub(super) fn number_from(&mut self, step: StepId) {
        self.next_step = self.next_step.max(step);
    }

    /// A plan or probe is open.
    #[inline]
    pub(super) fn is_planning(&self) -> bool {
        matches!(self.phase, PlanPhase::Probing | PlanPhase::Open(_))
    }

    #[inline]
    pub(super) fn is_probing(&self) -> bool {
        matches!(self.phase, PlanPhase::Probing)
    }

    /// No step is in flight.
    #[inline]
    pub(super) fn is_drained(&self) -> bool {
        self.steps.is_empty()
    }

    /// No plan can be opened, or it would equal the last one.
    #[inline]
    pub(super) fn must_wait(&self) -> bool {
        self.is_planning() || self.steps.len() >= PIPELINE_DEPTH || !self.is_dirty
    }

    /// The step planned now or next.
    #[inline]
    pub(super) fn next_step(&self) -> StepId {
        self.next_step
    }

    #[inline]
    pub(super) fn begin_probe(&mut self) {
        self.phase = PlanPhase::Probing;
    }

    #[inline]
    pub(super) fn end_probe(&mut self, result: ProbeResult) {
        debug_assert!(self.is_probing(), "no probe of the tree is in flight");
        self.phase = PlanPhase::Probed(result);
    }

    /// Takes the probe's matches; the memory that the probe released stays.
    #[inline]
    pub(super) fn take_matches(&mut self) -> FxHashMap<SeqId, Matched> {
        match &mut self.phase {
            PlanPhase::Probed(result) => std::mem::take(&mut result.matches),
            _ => FxHashMap::default(),
        }
    }

    /// The probe released memory that must go to the pools.
    #[inline]
    pub(super) fn has_returned(&self) -> bool {
        match &self.phase {
            PlanPhase::Probed(ProbeResult { returned, .. }) => {
                let Returned {
                    pages,
                    rows,
                    states,
                    windows,
                } = returned;
                let is_empty = pages.is_empty() && rows.is_empty() && states.is_empty();
                !is_empty || !windows.is_empty()
            }
            _ => false,
        }
    }

    #[inline]
    pub(super) fn take_returned(&mut self) -> Returned {
        match &mut self.phase {
            PlanPhase::Probed(result) => std::mem::take(&mut result.returned),
            _ => Returned::default(),
        }
    }

    #[inline]
    pub(super) fn open(&mut self, decode: Vec<SeqId>, flush: Option<u64>) {
        self.phase = PlanPhase::Open(OpenPlan {
            step: self.next_step,
            decode,
            flush,
        });
    }

    /// Ends planning without a plan.
    #[inline]
    pub(super) fn close(&mut self) {
        debug_assert!(
            !self.has_returned(),
            "the memory that a probe released must go to the pools"
        );
        self.phase = PlanPhase::Closed;
    }

    /// Closes the plan when the pools have answered.
    ///
    /// # Panics
    /// If no plan is open: the pools answer only the scheduler's plans.
    #[inline]
    pub(super) fn close_answered(&mut self) -> OpenPlan {
        match std::mem::take(&mut self.phase) {
            PlanPhase::Open(open) => open,
            phase => panic!("the pools answered without a request, in {phase:?}"),
        }
    }

    /// Numbers a step and records it as in flight; returns its page-table edits.
    #[inline]
    pub(super) fn start_step(
        &mut self,
        (rows, rooms): (Vec<SeqId>, Vec<u32>),
        prefill: PrefillWork,
        slice: SliceRecord,
    ) -> (StepId, Vec<TableDelta>) {
        let step = self.next_step;
        self.next_step = StepId::new(step.get() + 1);
        self.is_dirty = true;
        self.steps.push_back(StepRecord {
            step,
            rows,
            rooms,
            is_void: false,
            prefill,
            slice,
        });
        (step, std::mem::take(&mut self.deltas))
    }

    #[inline]
    pub(super) fn prefill_of(&self, step: StepId) -> PrefillWork {
        let record = self.steps.iter().find(|record| record.step == step);
        record.map_or_else(PrefillWork::default, |record| record.prefill)
    }

    /// The tower's operations in a step.
    #[inline]
    pub(super) fn slice_flops_of(&self, step: StepId) -> u64 {
        let record = self.steps.iter().find(|record| record.step == step);
        record.map_or(0, |record| record.slice.flops)
    }

    /// Removes the oldest step if it has this id; any other id is stale.
    #[inline]
    pub(super) fn take_done(&mut self, step: StepId) -> Option<StepRecord> {
        self.steps.pop_front_if(|record| record.step == step)
    }

    /// The requests in the steps in flight, or whose images these encode; one in two steps comes twice.
    pub(super) fn seqs_in_flight(&self) -> impl Iterator<Item = SeqId> + '_ {
        let seqs = self.steps.iter().flat_map(StepRecord::seqs);
        seqs.copied()
    }

    /// Begins the recovery from a lost step, which voids all steps in flight.
    #[inline]
    pub(super) fn begin_recovery(&mut self) {
        self.is_recovering = true;
        for record in &mut self.steps {
            record.is_void = true;
        }
    }

    #[inline]
    pub(super) fn end_recovery(&mut self) {
        self.is_recovering = false;
        self.deltas.clear();
    }

    #[inline]
    pub(super) fn is_recovering(&self) -> bool {
        self.is_recovering
    }

    #[inline]
    pub(super) fn note_change(&mut self) {
        self.is_dirty = true;
    }

    /// Starts a plan: later changes count for the plan after it. With `is_dirty`, another plan follows in any case.
    #[inline]
    pub(super) fn begin_plan(&mut self, is_dirty: bool) {
        self.is_dirty = is_dirty;
    }

    #[inline]
    pub(super) fn reserve_edits(&mut self, n_edits: usize) {
        self.deltas.reserve(n_edits);
    }

    #[inline]
    pub(super) fn append_page(&mut self, row: RowId, page: PageId) {
        let pages = SmallVec::from_buf_and_len([page; 2], 1);
        // Builds the edit in place: `push` would copy it from the stack with wide loads, which stall until the narrow
        // stores before them have left the processor's store buffer.
        self.deltas
            .extend(std::iter::once_with(|| TableDelta::Append { row, pages }));
    }

    #[inline]
    pub(super) fn append_pages(&mut self, row: RowId, pages: &[PageId]) {
        if !pages.is_empty() {
            let pages = SmallVec::from_slice(pages);
            self.deltas.push(TableDelta::Append { row, pages });
        }
    }

    /// Maps the tree's pages into a row from page index `from` on, in the next step.
    #[inline]
    pub(super) fn remap(&mut self, row: RowId, from: usize, pages: PageRun) {
        if !pages.is_empty() {
            self.deltas.push(TableDelta::Remap {
                row,
                from: from as u32,
                pages: Box::new(pages),
            });
        }
    }

    pub(super) fn append_windows(&mut self, row: RowId, pages: &[PageId]) {
        if !pages.is_empty() {
            let pages = SmallVec::from_slice(pages);
            self.deltas.push(TableDelta::AppendWindows { row, pages });
        }
    }

    /// Maps the tree's window pages into a row, in the next step.
    pub(super) fn map_windows(&mut self, row: RowId, windows: WindowRun) {
        if !windows.pages.is_empty() {
            self.deltas.push(TableDelta::Windows {
                row,
                from: windows.from as u32,
                pages: Box::new(windows.pages),
            });
        }
    }

    /// Drops the page-table edits of a released row: they must not reach its next sequence.
    #[inline]
    pub(super) fn drop_edits(&mut self, row: Option<RowId>) {
        if let Some(row) = row {
            self.deltas.retain(|delta| delta.row() != row);
        }
    }

    #[inline]
    pub(super) fn keep_cleared_rows(&mut self, rows: Vec<RowResult>) {
        self.cleared_rows = Some(rows);
    }

    #[inline]
    pub(super) fn take_cleared_rows(&mut self) -> Option<Vec<RowResult>> {
        self.cleared_rows.take()
    }
}
