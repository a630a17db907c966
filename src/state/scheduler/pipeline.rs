//! The plan that is out and the steps under way.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::ids::{PageId, RowId, SeqId, StepId};
use crate::state::plan::prefill_pace::PrefillWork;
use crate::state::plan::probe::Matched;
use crate::state::pool::pages::{PageRun, Pages, WindowPages, WindowRun};
use crate::state::pool::state_pool::OwnedState;
use crate::state::step::{PIPELINE_DEPTH, RowResult, TableDelta};

/// At most one plan and [`PIPELINE_DEPTH`] steps.
pub(super) struct Pipeline {
    phase: PlanPhase,
    steps: VecDeque<StepRecord>,
    next_step: StepId,
    /// Page-table edits that ride in the next step.
    deltas: Vec<TableDelta>,
    /// Something happened since the last plan was opened; without it the next plan would come out the same.
    is_dirty: bool,
    /// A step was lost: no plan until the steps under way are back, then everything is retracted and the tree flushed.
    is_recovering: bool,
    /// Rows of the last result, emptied.
    spent: Option<Vec<RowResult>>,
}

/// How far the plan of the next step is.
#[derive(Debug, Default)]
enum PlanPhase {
    /// None is out.
    #[default]
    Closed,
    /// It has only asked the tree so far.
    Probing,
    /// The tree has answered, and the plan itself is to be opened.
    Probed(Found),
    /// It is out, and the pools will answer.
    Open(OpenPlan),
}

/// The answer of the tree, until the plan is opened.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// The matches of the queue.
    pub(super) matches: FxHashMap<SeqId, Matched>,
    /// Memory that the probe's settling gave back, on its way to the pools.
    pub(super) returned: Returned,
}

/// Memory that a probe's settling gave back.
#[derive(Debug, Default)]
pub(super) struct Returned {
    /// Pages.
    pub(super) pages: Pages,
    /// Rows.
    pub(super) rows: Vec<RowId>,
    /// States.
    pub(super) states: Vec<OwnedState>,
    /// Window pages.
    pub(super) windows: WindowPages,
}

/// The plan that is out.
#[derive(Debug)]
pub(super) struct OpenPlan {
    /// The step that it is for.
    pub(super) step: StepId,
    /// The decode to run when nothing is admitted.
    pub(super) decode: Vec<SeqId>,
    /// Number of the last flush that it carries out for hosts.
    pub(super) flush: Option<u64>,
}

/// A step under way.
#[derive(Debug)]
pub(super) struct StepRecord {
    step: StepId,
    /// Its sequences.
    pub(super) rows: Vec<SeqId>,
    /// An earlier step was lost: the answer of this one is dropped.
    pub(super) is_void: bool,
    /// The prefill that it is measured by: nothing for a step that loads besides.
    prefill: PrefillWork,
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
            spent: None,
        }
    }

    /// A plan is out.
    #[inline]
    pub(super) fn is_planning(&self) -> bool {
        matches!(self.phase, PlanPhase::Probing | PlanPhase::Open(_))
    }

    #[inline]
    pub(super) fn is_probing(&self) -> bool {
        matches!(self.phase, PlanPhase::Probing)
    }

    /// No step is under way.
    #[inline]
    pub(super) fn is_drained(&self) -> bool {
        self.steps.is_empty()
    }

    /// No plan can be opened, or it would come out as the last one did.
    #[inline]
    pub(super) fn must_wait(&self) -> bool {
        self.is_planning() || self.steps.len() >= PIPELINE_DEPTH || !self.is_dirty
    }

    /// The step that is planned next, or now.
    #[inline]
    pub(super) fn next_step(&self) -> StepId {
        self.next_step
    }

    #[inline]
    pub(super) fn begin_probe(&mut self) {
        self.phase = PlanPhase::Probing;
    }

    #[inline]
    pub(super) fn end_probe(&mut self, found: Found) {
        debug_assert!(self.is_probing(), "the tree answers only what it was asked");
        self.phase = PlanPhase::Probed(found);
    }

    /// Takes the matches that the tree has answered; the pages and rows stay.
    #[inline]
    pub(super) fn take_matches(&mut self) -> FxHashMap<SeqId, Matched> {
        match &mut self.phase {
            PlanPhase::Probed(found) => std::mem::take(&mut found.matches),
            _ => FxHashMap::default(),
        }
    }

    /// The probe has left pages or rows that must be carried to the pools.
    #[inline]
    pub(super) fn has_returned(&self) -> bool {
        match &self.phase {
            PlanPhase::Probed(Found { returned, .. }) => {
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

    /// Takes what a probe has left.
    #[inline]
    pub(super) fn take_returned(&mut self) -> Returned {
        match &mut self.phase {
            PlanPhase::Probed(found) => std::mem::take(&mut found.returned),
            _ => Returned::default(),
        }
    }

    /// The plan of the next step goes out.
    #[inline]
    pub(super) fn open(&mut self, decode: Vec<SeqId>, flush: Option<u64>) {
        self.phase = PlanPhase::Open(OpenPlan {
            step: self.next_step,
            decode,
            flush,
        });
    }

    /// Nothing is to be planned after all.
    #[inline]
    pub(super) fn close(&mut self) {
        debug_assert!(!self.has_returned(), "a probe's pages go to the pools");
        self.phase = PlanPhase::Closed;
    }

    /// The pools have answered.
    ///
    /// # Panics
    /// If no plan is out: the pools answer only what the scheduler asked.
    #[inline]
    pub(super) fn close_answered(&mut self) -> OpenPlan {
        match std::mem::take(&mut self.phase) {
            PlanPhase::Open(open) => open,
            phase => panic!("the pools answer only what the scheduler asked, not {phase:?}"),
        }
    }

    /// Numbers a step that is sent, and takes the page-table edits that ride in it.
    #[inline]
    pub(super) fn send(
        &mut self,
        rows: Vec<SeqId>,
        prefill: PrefillWork,
    ) -> (StepId, Vec<TableDelta>) {
        let step = self.next_step;
        self.next_step = StepId::new(step.get() + 1);
        self.is_dirty = true;
        self.steps.push_back(StepRecord {
            step,
            rows,
            is_void: false,
            prefill,
        });
        (step, std::mem::take(&mut self.deltas))
    }

    /// The prefill of a step under way.
    #[inline]
    pub(super) fn prefill_of(&self, step: StepId) -> PrefillWork {
        let record = self.steps.iter().find(|record| record.step == step);
        record.map_or_else(PrefillWork::default, |record| record.prefill)
    }

    /// The oldest step, if it is the one that is done now; anything else is stale.
    #[inline]
    pub(super) fn take_done(&mut self, step: StepId) -> Option<StepRecord> {
        self.steps.pop_front_if(|record| record.step == step)
    }

    /// A step was lost, and with it all that are under way.
    #[inline]
    pub(super) fn begin_recovery(&mut self) {
        self.is_recovering = true;
        for later in &mut self.steps {
            later.is_void = true;
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

    /// From now on changes count for the plan after this one; `is_dirty` says whether there is one already.
    #[inline]
    pub(super) fn begin_plan(&mut self, is_dirty: bool) {
        self.is_dirty = is_dirty;
    }

    /// Makes room for so many page-table edits.
    #[inline]
    pub(super) fn expect_edits(&mut self, n_edits: usize) {
        self.deltas.reserve(n_edits);
    }

    /// Appends a page to a row, from the next step on.
    #[inline]
    pub(super) fn append_page(&mut self, row: RowId, page: PageId) {
        let pages = SmallVec::from_buf_and_len([page; 2], 1);
        // Built where it stays: `push` would copy it from the stack in large parts, and wait until its small ones have
        // left the processor's store buffer.
        self.deltas
            .extend(std::iter::once_with(|| TableDelta::Append { row, pages }));
    }

    /// Appends pages to a row, from the next step on.
    #[inline]
    pub(super) fn append_pages(&mut self, row: RowId, pages: &[PageId]) {
        if !pages.is_empty() {
            let pages = SmallVec::from_slice(pages);
            self.deltas.push(TableDelta::Append { row, pages });
        }
    }

    /// Has a row use the tree's pages from page index `from` on, from the next step on.
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

    /// Appends window pages to a row, from the next step on.
    pub(super) fn append_windows(&mut self, row: RowId, pages: &[PageId]) {
        if !pages.is_empty() {
            let pages = SmallVec::from_slice(pages);
            self.deltas.push(TableDelta::AppendWindows { row, pages });
        }
    }

    /// Has a row use the tree's window pages, from the next step on.
    pub(super) fn use_windows(&mut self, row: RowId, windows: WindowRun) {
        if !windows.pages.is_empty() {
            self.deltas.push(TableDelta::Windows {
                row,
                from: windows.from as u32,
                pages: Box::new(windows.pages),
            });
        }
    }

    /// Drops the page-table edits of a row that is given back: they mean nothing to its next holder.
    #[inline]
    pub(super) fn forget_edits(&mut self, row: Option<RowId>) {
        if let Some(row) = row {
            self.deltas.retain(|delta| delta.row() != row);
        }
    }

    #[inline]
    pub(super) fn keep_spent(&mut self, rows: Vec<RowResult>) {
        self.spent = Some(rows);
    }

    #[inline]
    pub(super) fn take_spent(&mut self) -> Option<Vec<RowResult>> {
        self.spent.take()
    }
}
