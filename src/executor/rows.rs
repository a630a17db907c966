//! The executor's record of its rows, updated from step plans.
//!
//! The record is updated when a step is launched: it already counts the tokens that steps in flight will sample.

use std::ops::Range;

use rustc_hash::FxHashSet;

use crate::check::{self, Limits};
use crate::row::{Row, RowImages};
use souffleur_base::error::StepError;
use souffleur_base::ids::RowId;
use souffleur_state::pooling::{PoolSum, Pooling};
use souffleur_state::prompt_images::BidirectionalLayers;
use souffleur_state::prompt_vectors::VectorRun;
use souffleur_state::step::{
    BlockLoad, RowResult, RowStart, RowVerdict, RowWork, StepPlan, StepRow, TableDelta,
};

pub(super) struct Rows {
    rows: Vec<Option<Row>>,
    /// Rows that were in use when a step was lost or the rows were forgotten, until they start again.
    lost: FxHashSet<RowId>,
    limits: Limits,
    scratch: check::Scratch,
}

impl Rows {
    /// Rows `1..=max_rows`, none of them in use.
    pub(super) fn new(max_rows: usize, limits: Limits) -> Self {
        Self {
            rows: (0..=max_rows).map(|_| None).collect(),
            lost: FxHashSet::default(),
            limits,
            scratch: check::Scratch::default(),
        }
    }

    /// Lets plans copy blocks of `block_tokens` tokens to and from a store.
    pub(super) fn allow_copies(&mut self, block_tokens: usize) {
        self.limits.block_tokens = Some(block_tokens);
    }

    /// Records that a step was lost. The contents of the rows are unknown: even a row's next input token may never have
    /// been sampled, and a kernel that reads garbage as a token reads out of bounds.
    pub(super) fn lose(&mut self) {
        let ids = (0..).map(RowId::new);
        let used = ids.zip(&self.rows).filter(|(_, row)| row.is_some());
        self.lost.extend(used.map(|(id, _)| id));
    }

    /// Forgets all rows. As after [`Self::lose`], a plan that continues one of them is refused.
    pub(super) fn forget(&mut self) {
        self.lose();
        self.rows.fill_with(|| None);
    }

    /// Refuses a plan that contradicts itself or the rows, or continues lost rows; a refusal changes nothing.
    pub(super) fn check(&mut self, plan: &StepPlan) -> Result<(), StepError> {
        if let Some(row) = self.lost_row(plan) {
            return Err(StepError::Lost(format!(
                "row {row} depends on a step that failed, so its K/V is invalid"
            )));
        }
        check::check(plan, &self.rows, &self.limits, &mut self.scratch).map_err(StepError::Rejected)
    }

    fn lost_row(&self, plan: &StepPlan) -> Option<RowId> {
        if self.lost.is_empty() {
            return None;
        }
        let worked = plan.rows.iter().map(|work| work.row);
        let edited = plan.table.iter().map(TableDelta::row);
        let starts = |row| plan.starts.iter().any(|start| start.row == row);
        let is_lost = |row: &RowId| self.lost.contains(row) && !starts(*row);
        worked.chain(edited).find(is_lost)
    }

    /// Starts a row. This method and those below require a plan that passed [`Self::check`].
    pub(super) fn start(&mut self, start: &RowStart) {
        // `is_long` never changes for a sequence, even if it is retracted: all cached keys need the same RoPE.
        let longest = start.prompt_tokens as usize + start.sampling.max_new_tokens as usize;
        let long_above = self.limits.long_above;
        self.lost.remove(&start.row);
        self.rows[start.row.index()] = Some(Row {
            seq: start.seq,
            tokens: start.tokens.clone(),
            prompt_tokens: start.prompt_tokens as usize,
            has_prompt_embeds: start.vectors.is_some(),
            prompt_embeds: start.vectors.clone(),
            images: start
                .images
                .as_ref()
                .map(|images| RowImages::new(images, &start.tokens, self.limits.bidirectional)),
            pool: start.pooling.map(PoolSum::new),
            n_pages: start.prefix.len(),
            n_windows: match self.limits.windows {
                Some(_) => start.prefix.len(),
                None => 0,
            },
            first_window: start.prefix.len(),
            sampled_tokens: 0,
            may_have_drafts: start.sampling.speculative_num_draft_tokens.unwrap_or(1) > 1,
            surplus: 0,
            computed: start.prefix.len() * self.limits.page_size,
            live: start.state.map(|state| state.live),
            is_long: long_above.is_some_and(|above| longest > above),
        });
    }

    /// Counts the pages that a row is granted. Returns the index of the first changed entry in the row's page table.
    pub(super) fn edit(&mut self, delta: &TableDelta) -> usize {
        match delta {
            TableDelta::Append { row, pages } => {
                let row = self.row_mut(*row);
                row.n_pages += pages.len();
                row.n_pages - pages.len()
            }
            TableDelta::Remap { from, .. } => *from as usize,
            TableDelta::AppendWindows { row, pages } => {
                let row = self.row_mut(*row);
                row.n_windows += pages.len();
                row.n_pages
            }
            TableDelta::Windows { row, from, .. } => {
                let row = self.row_mut(*row);
                row.first_window = row.first_window.min(*from as usize);
                row.n_pages
            }
        }
    }

    /// Adds the normed hidden state of a token to the row's embedding; the prompt's last token completes the embedding.
    pub(super) fn pool(
        &mut self,
        row: RowId,
        position: usize,
        state: &[f32],
        result: &mut RowResult,
    ) {
        let row = self.row_mut(row);
        let Some(pool) = &mut row.pool else {
            return;
        };
        pool.add(state);
        if position + 1 < row.prompt_tokens {
            return;
        }
        match pool.embedding() {
            None => result.verdict = RowVerdict::NanLogits,
            embedding => result.logprobs.get_or_insert_default().embedding = embedding,
        }
        row.pool = None;
    }

    /// Calls `place` for each run of vectors at the positions of `work`, whose first token has index `first_token` in
    /// the step: prompt embeddings, or those of images. A row keeps the vectors of its images until it decodes: a position
    /// of a prefill that was computed may be computed again.
    pub(super) fn take_vectors(
        &mut self,
        work: &StepRow,
        first_token: usize,
        place: impl FnMut(VectorRun),
    ) {
        let RowWork::Prefill { positions } = &work.work else {
            if let Some(images) = &mut self.row_mut(work.row).images {
                images.drop_vectors();
            }
            return;
        };
        match &self.row(work.row).images {
            Some(images) => images
                .table
                .for_each_run(positions.clone(), first_token, place),
            None => self
                .take_embeds(work.row, positions, first_token)
                .into_iter()
                .for_each(place),
        }
    }

    /// The row drops its prompt embeddings with the last position, since each is computed once.
    fn take_embeds(
        &mut self,
        row: RowId,
        positions: &Range<u32>,
        first_token: usize,
    ) -> Option<VectorRun> {
        let row = self.row_mut(row);
        let (first, end) = (positions.start as usize, positions.end as usize);
        let prompt = if end >= row.prompt_tokens {
            row.prompt_embeds.take()?
        } else {
            row.prompt_embeds.clone()?
        };
        (first < row.prompt_tokens).then(|| VectorRun {
            first_token,
            vectors: first..end.min(row.prompt_tokens),
            prompt,
        })
    }

    pub(super) fn load(&mut self, load: &BlockLoad) {
        self.row_mut(load.row).computed = load.positions.end as usize;
    }

    /// Counts a row's work: of a decode, only the token that is no draft.
    pub(super) fn advance(&mut self, work: &StepRow) {
        let row = self.row_mut(work.row);
        row.computed = match &work.work {
            RowWork::Prefill { positions } => row.computed.max(positions.end as usize),
            RowWork::Decode { .. } => row.computed + 1,
        };
        row.sampled_tokens += usize::from(work.sample);
        row.surplus = 0;
    }

    /// Counts the drafts of a row that a step has accepted.
    pub(super) fn accept(&mut self, row: RowId, n_drafts: usize) {
        let row = self.row_mut(row);
        row.computed += n_drafts;
        row.sampled_tokens += n_drafts;
        row.surplus = n_drafts;
    }

    pub(super) fn has_windows(&self) -> bool {
        self.limits.windows.is_some()
    }

    /// The layers in which rows see their images' runs.
    pub(super) fn bidirectional(&self) -> Option<BidirectionalLayers> {
        self.limits.bidirectional
    }

    pub(super) fn has_states(&self) -> bool {
        self.limits.n_state_slots.is_some()
    }

    /// Those of `positions` whose hidden states the embedding of the row's prompt still needs.
    pub(super) fn pooled(&self, row: RowId, positions: Range<u32>) -> Range<u32> {
        let row = self.row(row);
        let end = positions.end.min(row.prompt_tokens as u32);
        let last = (row.prompt_tokens as u32).saturating_sub(1);
        let first = match row.pool.as_ref().map(PoolSum::pooling) {
            None => end,
            Some(Pooling::Mean) => positions.start,
            Some(Pooling::Last) => positions.start.max(last),
        };
        first.min(end)..end
    }

    pub(super) fn row(&self, row: RowId) -> &Row {
        self.rows[row.index()]
            .as_ref()
            .expect("the row must be in use: plans must be checked first")
    }

    fn row_mut(&mut self, row: RowId) -> &mut Row {
        self.rows[row.index()]
            .as_mut()
            .expect("the row must be in use: plans must be checked first")
    }
}
