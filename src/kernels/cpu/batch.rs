//! The token batch of a step on the CPU, segmented by row.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use super::kv::{KvPool, PageTable};
use souffleur_base::ids::{RowId, StateSlot};
use souffleur_base::prompt_images::{BidirectionalLayers, PromptImages};
use souffleur_base::prompt_vectors::VectorRun;
use souffleur_base::row_state::StateSave;

/// The query tokens of one row in a step: contiguous, in ascending position.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    pub row: RowId,
    pub first_token: usize,
    pub n_tokens: usize,
    pub first_position: usize,
    /// Whether the row uses the rotary frequencies of long sequences.
    pub is_long: bool,
}

impl Segment {
    pub(super) fn end_token(&self) -> usize {
        self.first_token + self.n_tokens
    }

    pub(super) fn end_position(&self) -> usize {
        self.first_position + self.n_tokens
    }
}

/// Consecutive tokens of an image in a row: they attend to each other in both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BidirectionalTokens {
    pub first_token: usize,
    pub n_tokens: usize,
    /// The position after the last key that they see.
    pub end_position: usize,
}

impl BidirectionalTokens {
    /// Where the keys end that the token at a position sees. `runs` are ascending and disjoint.
    pub(super) fn end_of(runs: &[Self], token: usize, position: usize) -> usize {
        let after = runs.partition_point(|tokens| tokens.first_token <= token);
        match runs[..after].last() {
            Some(tokens) if token < tokens.first_token + tokens.n_tokens => tokens.end_position,
            _ => position + 1,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct SegmentState {
    live: StateSlot,
    first_save: usize,
    n_saves: usize,
    n_drafts: usize,
}

/// The tokens of one row with its recurrent state.
#[derive(Clone, Copy)]
pub(super) struct StateRow<'a> {
    pub segment: &'a Segment,
    pub live: StateSlot,
    /// Ordered by position, none among the drafts.
    pub saves: &'a [StateSave],
    /// Number of tokens at the segment's end that do not change the live state.
    pub n_drafts: usize,
}

impl StateRow<'_> {
    pub fn n_certain(&self) -> usize {
        self.segment.n_tokens - self.n_drafts
    }
}

fn next_serial() -> u64 {
    static SERIAL: AtomicU64 = AtomicU64::new(1);
    SERIAL.fetch_add(1, Ordering::Relaxed)
}

#[derive(Default)]
pub struct CpuBatch {
    pub(super) tokens: Vec<u32>,
    pub(super) positions: Vec<u32>,
    pub(super) slots: Vec<u32>,
    /// Slots in window pages; empty if no layer has window pages.
    window_slots: Vec<u32>,
    segments: Vec<Segment>,
    /// One for each segment; empty if no layer is recurrent.
    states: Vec<SegmentState>,
    saves: Vec<StateSave>,
    prompt_embeddings: Vec<VectorRun>,
    /// Rotary positions (time, row, column) of the tokens up to the last one of a row with images. Empty without such
    /// rows.
    rotary_positions: Vec<[u32; 3]>,
    /// Tokens that see later keys, ascending and disjoint; usually none.
    bidirectional: Vec<BidirectionalTokens>,
    /// They see later keys only in layers with a window.
    windows_only: bool,
    /// Unique number of this content among all batches.
    serial: u64,
}

impl CpuBatch {
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.positions.clear();
        self.slots.clear();
        self.window_slots.clear();
        self.segments.clear();
        self.states.clear();
        self.saves.clear();
        self.prompt_embeddings.clear();
        self.rotary_positions.clear();
        self.bidirectional.clear();
        self.windows_only = false;
    }

    /// Adds the query tokens of a row, the first one at `first_position`.
    ///
    /// # Panics
    /// If the row's pages do not cover the positions.
    pub fn push(&mut self, row: RowId, first_position: usize, tokens: &[u32], table: &PageTable) {
        self.serial = next_serial();
        let n_tokens = tokens.len();
        self.segments.push(Segment {
            row,
            first_token: self.tokens.len(),
            n_tokens,
            first_position,
            is_long: false,
        });
        self.tokens.extend_from_slice(tokens);
        for position in first_position..first_position + n_tokens {
            self.positions.push(position as u32);
            self.slots.push(table.slot(row, position) as u32);
        }
    }

    /// Looks up the window slots of the row that was added last.
    ///
    /// # Panics
    /// If no row was added, or its window pages do not cover the positions.
    pub fn place_windows(&mut self, table: &PageTable) {
        let segment = self.segments.last().expect("a row must be added first");
        for position in segment.first_position..segment.end_position() {
            let slot = table.slot(segment.row, position);
            self.window_slots.push(slot as u32);
        }
    }

    /// The slots of the tokens' keys and values in a layer.
    pub(super) fn slots_in(&self, kv: &KvPool, layer: usize) -> &[u32] {
        if kv.is_windowed(layer) {
            &self.window_slots
        } else {
            &self.slots
        }
    }

    /// Marks the row that was added last as a long sequence.
    pub fn mark_long(&mut self) {
        if let Some(last) = self.segments.last_mut() {
            last.is_long = true;
        }
    }

    pub(super) fn is_long(&self, token: usize) -> bool {
        let after = self
            .segments
            .partition_point(|segment| segment.first_token <= token);
        after > 0 && self.segments[after - 1].is_long
    }

    /// Replaces tokens by prompt embeddings, for the embedding lookup; [`Self::pick`] does not copy them.
    pub fn place_vectors(&mut self, run: VectorRun) {
        self.prompt_embeddings.push(run);
    }

    pub(super) fn prompt_embeddings(&self) -> &[VectorRun] {
        &self.prompt_embeddings
    }

    /// Sets the 3-D M-RoPE positions of the images in the row that was added last, if the model has M-RoPE.
    pub fn place_images(&mut self, images: &PromptImages) {
        let Some(&Segment { first_token, .. }) = self.segments.last() else {
            return;
        };
        let n_known = self.rotary_positions.len();
        let before = &self.positions[n_known..first_token];
        self.rotary_positions
            .extend(before.iter().map(|position| [*position; 3]));
        let own = self.positions[first_token..].iter();
        self.rotary_positions
            .extend(own.map(|position| images.rotary_position(*position)));
    }

    /// The rotary position of a token; `None` if all its numbers are the token's position.
    pub(super) fn rotary_position(&self, token: usize) -> Option<[u32; 3]> {
        self.rotary_positions.get(token).copied()
    }

    /// Lets each token of the row that was added last see its whole run of `runs`, which are ascending, in these layers.
    ///
    /// # Panics
    /// If the row's tokens end within a run: the keys of its rest are not stored.
    pub fn see_runs(&mut self, runs: &[Range<u32>], layers: BidirectionalLayers) {
        let Some(&segment) = self.segments.last() else {
            return;
        };
        self.windows_only = layers == BidirectionalLayers::Windowed;
        let (first, end) = (segment.first_position, segment.end_position());
        let after_first = runs.partition_point(|run| run.end as usize <= first);
        let runs = runs[after_first..].iter();
        for run in runs.take_while(|run| (run.start as usize) < end) {
            let (begin, run_end) = (first.max(run.start as usize), run.end as usize);
            assert!(
                run_end <= end,
                "a step ends at position {end}, within the vectors at {} to {run_end}",
                run.start
            );
            self.bidirectional.push(BidirectionalTokens {
                first_token: segment.first_token + begin - first,
                n_tokens: run_end - begin,
                end_position: run_end,
            });
        }
    }

    /// The tokens that see later keys in layers with this window.
    pub(super) fn bidirectional_in(&self, window: Option<usize>) -> &[BidirectionalTokens] {
        if self.windows_only && window.is_none() {
            &[]
        } else {
            &self.bidirectional
        }
    }

    /// Sets the live state of the row that was added last, and the copies to save, ordered by position.
    pub fn keep_state(&mut self, live: StateSlot, saves: &[StateSave]) {
        self.keep_state_with_drafts(live, saves, 0);
    }

    /// As [`Self::keep_state`], for a row whose last `n_drafts` tokens are drafts: the live state becomes that after
    /// the tokens before them, and [`CpuBackend::accept_drafts`](super::CpuBackend::accept_drafts) tells how many
    /// drafts to add.
    ///
    /// # Panics
    /// If no row was added, all its tokens are drafts, or a copy is after a draft.
    pub fn keep_state_with_drafts(
        &mut self,
        live: StateSlot,
        saves: &[StateSave],
        n_drafts: usize,
    ) {
        let segment = self.segments.last().expect("a row must be added first");
        let n_tokens = segment.n_tokens;
        assert!(
            n_drafts == 0 || n_drafts < n_tokens,
            "{n_drafts} of {n_tokens} tokens are drafts, expected fewer than all"
        );
        let end = segment.end_position() - n_drafts;
        assert!(
            n_drafts == 0 || saves.iter().all(|save| save.position as usize <= end),
            "a state after a draft cannot be saved before the draft is accepted"
        );
        let first_save = self.saves.len();
        self.saves.extend_from_slice(saves);
        self.states.push(SegmentState {
            live,
            first_save,
            n_saves: saves.len(),
            n_drafts,
        });
    }

    /// The segments with their live states and the copies to save.
    ///
    /// # Panics
    /// If a row has no state.
    pub(super) fn with_states(&self) -> impl Iterator<Item = StateRow<'_>> {
        assert_eq!(
            self.segments.len(),
            self.states.len(),
            "every row of a recurrent model must have a state"
        );
        let segments = self.segments.iter().zip(&self.states);
        segments.map(|(segment, state)| StateRow {
            segment,
            live: state.live,
            saves: &self.saves[state.first_save..][..state.n_saves],
            n_drafts: state.n_drafts,
        })
    }

    pub fn n_tokens(&self) -> usize {
        self.tokens.len()
    }

    /// Replaces the content with the tokens of `step` at these ascending indices.
    ///
    /// # Panics
    /// If `step` has fewer tokens.
    pub fn pick(&mut self, step: &Self, tokens: &[u32]) {
        self.clear();
        self.serial = next_serial();
        let mut segments = step.segments.iter();
        let mut segment = segments.next();
        for &token in tokens {
            let index = token as usize;
            while segment.is_some_and(|segment| segment.end_token() <= index) {
                segment = segments.next();
            }
            let full = segment.expect("a picked index must be below the step's token count");
            let position = step.positions[index];
            match self.segments.last_mut() {
                Some(last) if last.row == full.row && last.end_position() == position as usize => {
                    last.n_tokens += 1;
                }
                _ => self.segments.push(Segment {
                    row: full.row,
                    first_token: self.tokens.len(),
                    n_tokens: 1,
                    first_position: position as usize,
                    is_long: full.is_long,
                }),
            }
            self.tokens.push(step.tokens[index]);
            self.positions.push(position);
            self.slots.push(step.slots[index]);
            self.window_slots.extend(step.window_slots.get(index));
            // The tokens are ascending, and those without a rotary position are the last ones.
            self.rotary_positions
                .extend(step.rotary_positions.get(index));
        }
        self.pick_bidirectional(step, tokens);
    }

    fn pick_bidirectional(&mut self, step: &Self, tokens: &[u32]) {
        self.windows_only = step.windows_only;
        for run in &step.bidirectional {
            let n_before = |end: usize| tokens.partition_point(|token| (*token as usize) < end);
            let first_token = n_before(run.first_token);
            let n_tokens = n_before(run.first_token + run.n_tokens) - first_token;
            if n_tokens > 0 {
                self.bidirectional.push(BidirectionalTokens {
                    first_token,
                    n_tokens,
                    ..*run
                });
            }
        }
    }

    pub(super) fn serial(&self) -> u64 {
        self.serial
    }

    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }
}

#[cfg(test)]
mod tests {
    use souffleur_base::ids::PageId;

    use super::*;

    fn table() -> PageTable {
        let mut table = PageTable::new(3, 16);
        for row in 1..3 {
            table
                .row_mut(RowId::new(row))
                .extend([1, 2].map(PageId::new));
        }
        table
    }

    fn ends(batch: &CpuBatch, window: Option<usize>) -> Vec<usize> {
        let runs = batch.bidirectional_in(window);
        let positions = (0..).zip(&batch.positions);
        positions
            .map(|(token, at)| BidirectionalTokens::end_of(runs, token, *at as usize))
            .collect()
    }

    #[test]
    fn tokens_of_a_run_see_its_end_also_when_some_are_picked() {
        let table = table();
        let mut batch = CpuBatch::default();
        let runs = [1..3, 6..9, 12..14];
        batch.push(RowId::new(1), 4, &[0; 6], &table);
        batch.see_runs(&runs, BidirectionalLayers::All);
        // This prefix ends within a run, and the third row has none.
        batch.push(RowId::new(2), 7, &[0; 3], &table);
        batch.see_runs(&runs, BidirectionalLayers::All);
        batch.push(RowId::new(2), 12, &[0; 2], &table);
        let expected = [5, 6, 9, 9, 9, 10, 9, 9, 10, 13, 14];
        assert_eq!(ends(&batch, None), expected);
        assert_eq!(ends(&batch, Some(4)), expected);
        let tokens = [0, 3, 4, 5, 7, 10];
        let mut picked = CpuBatch::default();
        picked.pick(&batch, &tokens);
        assert_eq!(
            ends(&picked, None),
            tokens.map(|token| expected[token as usize])
        );
    }

    #[test]
    fn full_attention_is_causal_if_only_windows_see_runs() {
        let table = table();
        let mut batch = CpuBatch::default();
        batch.push(RowId::new(1), 0, &[0; 4], &table);
        let runs = [1..3, 8..9];
        batch.see_runs(&runs, BidirectionalLayers::Windowed);
        let mut picked = CpuBatch::default();
        picked.pick(&batch, &[1, 3]);
        assert_eq!(ends(&batch, None), [1, 2, 3, 4]);
        assert_eq!(ends(&batch, Some(9)), [1, 3, 3, 4]);
        assert_eq!(
            (ends(&picked, None), ends(&picked, Some(9))),
            (vec![2, 4], vec![3, 4])
        );
        batch.clear();
        batch.push(RowId::new(1), 0, &[0; 4], &table);
        assert_eq!(ends(&batch, Some(9)), [1, 2, 3, 4]);
    }
}
