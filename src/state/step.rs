//! The data of a step: the scheduler's plan for an executor, and the results.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;
pub use souffleur_base::row_state::{StateSave, StateStart};

use crate::grammar::{Grammar, GrammarFailure, GrammarProgress, RowGrammar};
use crate::pool::pages::PageRun;
use crate::pooling::Pooling;
use crate::prompt_images::{ImageInput, PromptImages};
use crate::prompt_vectors::PromptVectors;
use crate::sampling::{LogprobWish, RowLogprobs, Sampled, SamplingParams};
use crate::speculation::{DraftText, RowDrafts};
use souffleur_base::ids::{PageId, RowId, SeqId, StateSlot, StepId, Ticket};

/// Upper bound of unfinished steps: the step on the device and the next one.
pub const PIPELINE_DEPTH: usize = 2;

/// One forward pass over prefill chunks and decodes.
#[derive(Clone, Debug)]
pub struct StepPlan {
    pub step: StepId,
    /// Rows that start (or restart after a retraction) with this step; applied before `table`.
    pub starts: Vec<RowStart>,
    /// Page-table edits, in order; applied before `rows`.
    pub table: Vec<TableDelta>,
    pub rows: Vec<StepRow>,
    /// Copies between KV memory and the store's buffers, made before `rows`; `None` without any.
    pub copies: Option<Box<BlockCopies>>,
    /// Work on an image without vectors; `None` without any.
    pub vision: Option<Box<VisionSlice>>,
}

/// Consecutive units of the vision tower's work on an image.
///
/// Slices of one image come in order, in steps that may have other work between them. One image is encoded at a time:
/// the first slice of another one ends the work on an unfinished one.
#[derive(Clone, Debug)]
pub struct VisionSlice {
    /// Names the encoding.
    pub job: Ticket,
    /// The pixels; `None` in a replay of a message log.
    pub input: Option<Arc<dyn ImageInput>>,
    pub units: Range<u32>,
    /// Units of the whole image. The slice that ends there completes the vectors.
    pub n_units: u32,
}

impl StepPlan {
    /// Number of query tokens: prefilled and decoded.
    pub fn query_tokens(&self) -> (usize, usize) {
        let rows = self.rows.iter();
        rows.fold((0, 0), |(prefill, decode), row| match &row.work {
            RowWork::Prefill { positions } => (prefill + positions.len(), decode),
            RowWork::Decode { .. } => (prefill, decode + 1),
        })
    }
}

/// Copies of K/V blocks. A block is a fixed number of tokens of a sequence, aligned to that number.
///
/// Saves run first, so they read the pages as the previous step left them; loads follow, then the rows. Nothing else
/// accesses KV memory, so a page may get a new owner in the step that saves it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockCopies {
    /// Copies from pages to buffers.
    pub saves: Vec<BlockSave>,
    /// Copies from buffers to pages of rows, after the page table's edits.
    pub loads: Vec<BlockLoad>,
}

impl BlockCopies {
    pub fn is_empty(&self) -> bool {
        self.saves.is_empty() && self.loads.is_empty()
    }
}

/// A copy from the cache of data that earlier steps have written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockSave {
    /// Identifies the copy in the scheduler's later order to the store, to write or to discard the copy.
    pub ticket: Ticket,
    pub from: BlockSource,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BlockSource {
    /// K/V of a block's tokens, on these pages, in order.
    Pages(SmallVec<[PageId; 4]>),
    /// The state after a block's last token.
    State(StateSlot),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockLoad {
    pub ticket: Ticket,
    /// The row, which starts with this step or with an earlier load.
    pub row: RowId,
    /// Leading tokens of the blocks that the row already has from the cache; fewer than the blocks hold.
    pub skip_tokens: u32,
    /// Positions after the cached or loaded prefix whose K/V is copied to the row's pages. They count as computed.
    pub positions: Range<u32>,
    /// Destinations of the recurrent state after `positions`: the row's slot, and a slot for a copy to be cached. Empty
    /// without states.
    pub states: SmallVec<[StateSlot; 2]>,
}

impl BlockLoad {
    pub fn parts(&self, block_tokens: usize) -> LoadParts {
        LoadParts {
            begins: (self.positions.start - self.skip_tokens) as usize,
            positions: self.positions.start as usize..self.positions.end as usize,
            block_tokens,
        }
    }
}

#[derive(Clone, Debug)]
pub struct LoadParts {
    /// The first position of the fetched blocks.
    begins: usize,
    positions: Range<usize>,
    block_tokens: usize,
}

impl LoadParts {
    /// Number of blocks up to the last one that is read.
    pub fn len(&self) -> usize {
        (self.positions.end - self.begins).div_ceil(self.block_tokens)
    }

    /// True if no positions are loaded; plans contain no such load.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The positions that the fetched block `index` provides; `None` if it provides none.
    pub fn of(&self, index: usize) -> Option<Range<usize>> {
        let first = self.begins + index * self.block_tokens;
        let start = first.max(self.positions.start);
        let end = (first + self.block_tokens).min(self.positions.end);
        (start < end).then_some(start..end)
    }
}

/// Assigns a row of the page table to a sequence: resets the row's page list, sampler state and tokens.
#[derive(Clone, Debug)]
pub struct RowStart {
    pub row: RowId,
    pub seq: SeqId,
    /// Prompt, then the output so far (not empty after a retraction).
    pub tokens: Arc<[u32]>,
    /// Number of prompt tokens in `tokens`: the rest counts as output for penalties and `min_new_tokens`.
    pub prompt_tokens: u32,
    /// Sampling parameters; `sampling_seed` is set.
    pub sampling: Arc<SamplingParams>,
    pub grammar: Option<Arc<dyn Grammar>>,
    /// Prompt embeddings; the prompt's tokens are then placeholders.
    pub vectors: Option<Arc<PromptVectors>>,
    /// The prompt's images, at whose positions `tokens` has keys.
    pub images: Option<Arc<PromptImages>>,
    /// `Some` for an embedding request: the result of the prompt's last token includes the embedding.
    pub pooling: Option<Pooling>,
    /// Texts for drafts, in addition to `tokens`.
    pub draft_texts: Arc<[DraftText]>,
    /// Cached pages that hold the K/V of the first `prefix.len() * page_size` tokens.
    pub prefix: PageRun,
    /// The recurrent state to start from after `prefix`; `None` without recurrent layers.
    pub state: Option<StateStart>,
}

impl RowStart {
    /// Prompt and output as penalties count them: embeddings and images have no tokens.
    pub fn counted_tokens(&self) -> (Cow<'_, [u32]>, &[u32]) {
        let (prompt, output) = self.tokens.split_at(self.prompt_tokens as usize);
        let prompt = match (&self.vectors, &self.images) {
            (Some(_), _) => Cow::Borrowed(&[][..]),
            (None, Some(images)) => Cow::Owned(images.text_tokens(prompt)),
            (None, None) => Cow::Borrowed(prompt),
        };
        (prompt, output)
    }
}

#[derive(Clone, Debug)]
pub enum TableDelta {
    Append {
        row: RowId,
        pages: SmallVec<[PageId; 2]>,
    },
    /// Overwrites the pages of a row from page index `from` on with the tree's copies of the same tokens.
    Remap {
        row: RowId,
        from: u32,
        /// The new pages; boxed, since most edits are appends.
        pages: Box<PageRun>,
    },
    /// Appends window pages to a row of a model with window layers: one per page.
    AppendWindows {
        row: RowId,
        pages: SmallVec<[PageId; 2]>,
    },
    /// Overwrites the window pages of a row from page index `from` on. A row starts with the dummy page for each page
    /// of its prefix, until this edit maps the visible ones.
    Windows {
        row: RowId,
        from: u32,
        pages: Box<PageRun>,
    },
}

impl TableDelta {
    pub fn row(&self) -> RowId {
        match self {
            Self::Append { row, .. }
            | Self::Remap { row, .. }
            | Self::AppendWindows { row, .. }
            | Self::Windows { row, .. } => *row,
        }
    }
}

#[derive(Clone, Debug)]
pub struct StepRow {
    pub row: RowId,
    pub seq: SeqId,
    pub work: RowWork,
    /// Samples the next token: in a decode, and in the last chunk of a prefill that generates output.
    pub sample: bool,
    pub logprobs: Option<Arc<LogprobWish>>,
    /// Copies of the row's state during `work`, by position.
    pub saves: SmallVec<[StateSave; 1]>,
}

#[derive(Clone, Debug)]
pub enum RowWork {
    /// Computes and stores K/V for these positions of the row's tokens (given by [`RowStart::tokens`]).
    Prefill { positions: Range<u32> },
    /// Feeds the row's last sampled token, and drafts of the tokens after it.
    Decode {
        /// The least number of tokens of the sequence with stored K/V: without drafts in the steps in flight, exact.
        position: u32,
        /// The most query tokens, 1 without drafts. The row has pages for as many, even if the steps in flight accept
        /// all their drafts.
        room: u32,
    },
}

impl RowWork {
    pub fn is_decode(&self) -> bool {
        matches!(self, Self::Decode { .. })
    }

    /// The positions of a prefill, or the first one of a decode.
    pub fn positions(&self) -> Range<u32> {
        match self {
            Self::Prefill { positions } => positions.clone(),
            Self::Decode { position, .. } => *position..*position + 1,
        }
    }
}

#[derive(Clone, Debug)]
pub struct StepOutput {
    pub step: StepId,
    /// One result for each row of the plan, in its order.
    pub rows: Vec<RowResult>,
}

impl StepOutput {
    /// Number of rows that the step skipped because their sequences had ended before it began.
    pub fn n_skipped(&self) -> usize {
        let skipped = self.rows.iter().filter(|row| row.accepted == 0);
        skipped.count()
    }
}

#[derive(Clone, Debug)]
pub struct RowResult {
    pub seq: SeqId,
    /// Sampled tokens: none if the row samples nothing or was skipped, otherwise one, and one more for each accepted
    /// draft.
    pub tokens: SmallVec<[u32; 2]>,
    /// Query tokens whose K/V stays valid: rejected drafts are not among them; 0 for a row that the step skipped
    /// because its sequence had ended before the step began.
    pub accepted: u32,
    pub logprobs: Option<Box<RowLogprobs>>,
    pub verdict: RowVerdict,
    pub drafts: RowDrafts,
}

/// The outcome of a step for a row, in addition to its tokens: of the last token. Tokens before it are valid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RowVerdict {
    #[default]
    Open,
    /// The logits contained NaN: the sampled token is undefined.
    NanLogits,
    /// The sampled token completes its grammar: no token may follow.
    GrammarDone,
    /// The output cannot continue under its grammar; a sampled token is undefined.
    GrammarFailed(GrammarFailure),
}

impl RowVerdict {
    /// Whether the sampled token is undefined.
    pub fn is_failure(&self) -> bool {
        matches!(self, Self::NanLogits | Self::GrammarFailed(_))
    }

    /// The verdict on a sampled row; also commits the token to its grammar.
    pub fn of(sampled: Sampled, grammar: Option<&mut RowGrammar>) -> Self {
        let progress = grammar.map_or(Ok(GrammarProgress::Open), |grammar| {
            if grammar.standing().is_ok() {
                grammar.commit(sampled.token);
            }
            grammar.standing()
        });
        match progress {
            Err(failure) => Self::GrammarFailed(failure),
            Ok(_) if sampled.nan => Self::NanLogits,
            Ok(GrammarProgress::Open) => Self::Open,
            Ok(GrammarProgress::Done) => Self::GrammarDone,
        }
    }
}
