//! A step as data: the plan that the scheduler makes and an executor runs, and the results that come back.

use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::ids::{PageId, RowId, SeqId, StateSlot, StepId, Ticket};
use crate::state::grammar::{Grammar, GrammarFailure, GrammarProgress, RowGrammar};
use crate::state::pool::pages::PageRun;
use crate::state::pooling::Pooling;
use crate::state::prompt_vectors::PromptVectors;
use crate::state::sampling::{LogprobWish, RowLogprobs, Sampled, SamplingParams};

/// Steps that are planned and not yet done, at most: the one that the device works on and its successor.
pub const PIPELINE_DEPTH: usize = 2;

/// One forward pass over prefill chunks and decodes.
#[derive(Clone, Debug)]
pub struct StepPlan {
    /// The step.
    pub step: StepId,
    /// Rows that start (or start again after a retraction) with this step; applied before `table`.
    pub starts: Vec<RowStart>,
    /// Edits of the page table, in order; applied before `rows`.
    pub table: Vec<TableDelta>,
    /// The work, one entry for each sequence.
    pub rows: Vec<StepRow>,
    /// Copies between KV memory and the store's buffers, before `rows`; `None` for a step without any.
    pub copies: Option<Box<BlockCopies>>,
}

impl StepPlan {
    /// Query tokens: prefilled and decoded.
    pub fn query_tokens(&self) -> (usize, usize) {
        let rows = self.rows.iter();
        rows.fold((0, 0), |(prefill, decode), row| match &row.work {
            RowWork::Prefill { positions } => (prefill + positions.len(), decode),
            RowWork::Decode { .. } => (prefill, decode + 1),
        })
    }
}

/// Copies of blocks of K/V. A block is a fixed number of tokens of a sequence, from a multiple of that number on.
///
/// Saves come first, so they see what was in the pages before this step; loads follow, and then the rows. Nothing else
/// reads or writes KV memory, so a page may be granted anew in the step that saves it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockCopies {
    /// From pages to buffers.
    pub saves: Vec<BlockSave>,
    /// From buffers to pages of rows, after the table's edits.
    pub loads: Vec<BlockLoad>,
}

impl BlockCopies {
    /// True when nothing is to be done.
    pub fn is_empty(&self) -> bool {
        self.saves.is_empty() && self.loads.is_empty()
    }
}

/// A copy of something cached, which earlier steps have written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockSave {
    /// Names the copy: the store keeps nothing before it is told to.
    pub ticket: Ticket,
    /// The source of the copy.
    pub from: BlockSource,
}

/// A part of the cache that goes into one buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BlockSource {
    /// The keys and values of a block's tokens, on these pages, in order.
    Pages(SmallVec<[PageId; 4]>),
    /// The state after a block's last token.
    State(StateSlot),
}

/// A run of blocks that was fetched for a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockLoad {
    /// Names the run.
    pub ticket: Ticket,
    /// The row, which begins with this step.
    pub row: RowId,
    /// Tokens at the beginning of the run that the row has from the cache already: fewer than the run has.
    pub skip_tokens: u32,
    /// The positions behind its prefix whose K/V is copied to the row's own pages, and counts as computed.
    pub positions: Range<u32>,
    /// Where the state after them is copied to: the row's own slot, and one more if it is to stay there. None where no layer
    /// keeps a state.
    pub states: SmallVec<[StateSlot; 2]>,
}

impl BlockLoad {
    /// Which positions come from which block of the run.
    pub fn parts(&self, block_tokens: usize) -> LoadParts {
        LoadParts {
            begins: (self.positions.start - self.skip_tokens) as usize,
            positions: self.positions.start as usize..self.positions.end as usize,
            block_tokens,
        }
    }
}

/// The positions of a [`BlockLoad`], block by block.
#[derive(Clone, Debug)]
pub struct LoadParts {
    /// The position that the run begins with.
    begins: usize,
    positions: Range<usize>,
    block_tokens: usize,
}

impl LoadParts {
    /// Blocks of the run that are read, or skipped before one that is.
    pub fn len(&self) -> usize {
        (self.positions.end - self.begins).div_ceil(self.block_tokens)
    }

    /// True for a load of nothing, which no plan has.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The positions that come from block `index` of the run; `None` if there are none.
    pub fn of(&self, index: usize) -> Option<Range<usize>> {
        let first = self.begins + index * self.block_tokens;
        let start = first.max(self.positions.start);
        let end = (first + self.block_tokens).min(self.positions.end);
        (start < end).then_some(start..end)
    }
}

/// A sequence takes a row of the page table: the row's page list, sampler state and tokens begin anew.
#[derive(Clone, Debug)]
pub struct RowStart {
    /// The row.
    pub row: RowId,
    /// Its sequence.
    pub seq: SeqId,
    /// Prompt, then the output so far (not empty after a retraction).
    pub tokens: Arc<[u32]>,
    /// How many of `tokens` are prompt: the rest counts as output for penalties and `min_new_tokens`.
    pub prompt_tokens: u32,
    /// How to sample; `sampling_seed` is set.
    pub sampling: Arc<SamplingParams>,
    /// The grammar of the output, if it has one.
    pub grammar: Option<Arc<dyn Grammar>>,
    /// Vectors in the place of the prompt's tokens, which are placeholders then.
    pub vectors: Option<Arc<PromptVectors>>,
    /// The embedding of the prompt is wanted, with the result of its last token.
    pub pooling: Option<Pooling>,
    /// Cached pages that hold the K/V of the first `prefix.len() * page_size` tokens.
    pub prefix: PageRun,
    /// The state that goes on after `prefix`; `None` where no layer keeps one.
    pub state: Option<StateStart>,
}

impl RowStart {
    /// Prompt and output as penalties count them: a prompt of vectors has no tokens.
    pub fn counted_tokens(&self) -> (&[u32], &[u32]) {
        let (prompt, output) = self.tokens.split_at(self.prompt_tokens as usize);
        match &self.vectors {
            Some(_) => (&[], output),
            None => (prompt, output),
        }
    }
}

/// The state of a row from its start on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateStart {
    /// The slot that the row's steps read and write.
    pub live: StateSlot,
    /// The state after the prefix, which is copied to `live` before anything is computed; `None` for a row without a
    /// prefix, whose slot is zeroed: what it held is another sequence's.
    pub from: Option<StateSlot>,
}

/// One edit of the page table.
#[derive(Clone, Debug)]
pub enum TableDelta {
    /// Appends pages to a row.
    Append {
        /// The row.
        row: RowId,
        /// The pages, in sequence order.
        pages: SmallVec<[PageId; 2]>,
    },
    /// Overwrites the pages of a row from page index `from` on with the tree's copies of the same tokens.
    Remap {
        /// The row.
        row: RowId,
        /// Index of the first page overwritten.
        from: u32,
        /// The pages to use from now on; apart, since most edits are the other kind.
        pages: Box<PageRun>,
    },
    /// Appends window pages to a row, where layers have windows: each page comes with one.
    AppendWindows {
        /// The row.
        row: RowId,
        /// The pages, in sequence order.
        pages: SmallVec<[PageId; 2]>,
    },
    /// Overwrites the window pages of a row from page index `from` on. A row that starts has the dummy page for each page
    /// of its prefix, until this names those that it sees.
    Windows {
        /// The row.
        row: RowId,
        /// Index of the first page overwritten.
        from: u32,
        /// The cached pages to use from now on.
        pages: Box<PageRun>,
    },
}

impl TableDelta {
    /// The row that is edited.
    pub fn row(&self) -> RowId {
        match self {
            Self::Append { row, .. }
            | Self::Remap { row, .. }
            | Self::AppendWindows { row, .. }
            | Self::Windows { row, .. } => *row,
        }
    }
}

/// The work of one sequence in one step.
#[derive(Clone, Debug)]
pub struct StepRow {
    /// The row of the page table.
    pub row: RowId,
    /// Its sequence.
    pub seq: SeqId,
    /// The tokens that go through the model.
    pub work: RowWork,
    /// Samples the token that follows; false for all but the last chunk of a prefill.
    pub sample: bool,
    /// Which log probabilities to return.
    pub logprobs: Option<Arc<LogprobWish>>,
    /// Copies of the row's state on the way through `work`, by position.
    pub saves: SmallVec<[StateSave; 1]>,
}

/// A copy of a row's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateSave {
    /// How many tokens the state has seen: more than before the row's work, at most as many as after it.
    pub position: u32,
    /// The slot that is overwritten.
    pub slot: StateSlot,
}

/// The query tokens of one row.
#[derive(Clone, Debug)]
pub enum RowWork {
    /// Computes and stores K/V for these positions of the row's tokens (given by [`RowStart::tokens`]).
    Prefill {
        /// Token positions, in the sequence.
        positions: Range<u32>,
    },
    /// Feeds the row's last sampled token, which stands at this position.
    Decode {
        /// Tokens of the sequence whose K/V is stored already.
        position: u32,
    },
}

impl RowWork {
    /// Positions whose K/V this work writes.
    pub fn positions(&self) -> Range<u32> {
        match self {
            Self::Prefill { positions } => positions.clone(),
            Self::Decode { position } => *position..*position + 1,
        }
    }
}

/// The results of a step.
#[derive(Clone, Debug)]
pub struct StepOutput {
    /// The step.
    pub step: StepId,
    /// One result for each row of the plan, in its order.
    pub rows: Vec<RowResult>,
}

impl StepOutput {
    /// Rows that were fed nothing, since their sequences had ended when the step began.
    pub fn n_skipped(&self) -> usize {
        let skipped = self.rows.iter().filter(|row| row.accepted == 0);
        skipped.count()
    }
}

/// The results of a step for one row.
#[derive(Clone, Debug)]
pub struct RowResult {
    /// The sequence.
    pub seq: SeqId,
    /// Sampled tokens: none for a chunk that does not end its prefill, one otherwise (more with speculation).
    pub tokens: SmallVec<[u32; 2]>,
    /// Query tokens whose K/V stays valid (with speculation fewer than were fed); 0 for a row that was fed nothing, since its
    /// sequence had ended when the step began.
    pub accepted: u32,
    /// Log probabilities, if wished for.
    pub logprobs: Option<Box<RowLogprobs>>,
    /// Whether the row can go on.
    pub verdict: RowVerdict,
}

/// The findings of a step about a row besides its tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RowVerdict {
    /// Nothing keeps it from going on.
    #[default]
    Open,
    /// The logits held a NaN: the sampled token means nothing.
    NanLogits,
    /// Its grammar is complete with the sampled token: nothing may follow.
    GrammarDone,
    /// Its output cannot follow its grammar any further; a token that was sampled means nothing.
    GrammarFailed(GrammarFailure),
}

impl RowVerdict {
    /// The verdict on a row that sampled, by a grammar that this also takes the token to.
    pub fn of(sampled: Sampled, grammar: Option<&mut RowGrammar>) -> Self {
        let standing = grammar.map_or(Ok(GrammarProgress::Open), |grammar| {
            if grammar.standing().is_ok() {
                grammar.commit(sampled.token);
            }
            grammar.standing()
        });
        match standing {
            Err(failure) => Self::GrammarFailed(failure),
            Ok(_) if sampled.nan => Self::NanLogits,
            Ok(GrammarProgress::Open) => Self::Open,
            Ok(GrammarProgress::Done) => Self::GrammarDone,
        }
    }
}
