//! The token batch of a step on the CPU, segmented by row.

use std::sync::atomic::{AtomicU64, Ordering};

use super::kv::{KvPool, PageTable};
use souffleur_base::ids::{RowId, StateSlot};
use souffleur_base::prompt_images::PromptImages;
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

#[derive(Clone, Copy, Debug)]
struct SegmentState {
    live: StateSlot,
    first_save: usize,
    n_saves: usize,
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

    /// Rotates the row that was added last by its images' rows and columns, if the model has M-RoPE.
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

    /// Sets the live state of the row that was added last, and the copies to save, ordered by position.
    pub fn keep_state(&mut self, live: StateSlot, saves: &[StateSave]) {
        let first_save = self.saves.len();
        self.saves.extend_from_slice(saves);
        self.states.push(SegmentState {
            live,
            first_save,
            n_saves: saves.len(),
        });
    }

    /// The segments with their live states and the copies to save.
    ///
    /// # Panics
    /// If a row has no state.
    pub(super) fn with_states(&self) -> impl Iterator<Item = (&Segment, StateSlot, &[StateSave])> {
        assert_eq!(
            self.segments.len(),
            self.states.len(),
            "every row of a recurrent model must have a state"
        );
        let segments = self.segments.iter().zip(&self.states);
        segments.map(|(segment, state)| {
            let saves = &self.saves[state.first_save..][..state.n_saves];
            (segment, state.live, saves)
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
    }

    pub(super) fn serial(&self) -> u64 {
        self.serial
    }

    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }
}
