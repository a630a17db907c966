//! What a step is, and who can run one.
//!
//! A [`StepPlan`] speaks of rows, positions and pages only; tensors, weights and KV buffers stay on the
//! executor's side. Every implementation runs on its own OS thread and is handed steps in [`StepId`] order.

mod check;
pub mod cpu;
pub mod cuda;
pub mod fake;
pub mod memory_plan;
mod results;
mod rows;
mod wanted;

use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::error::StepError;
use crate::ids::{PageId, RowId, SeqId, StepId};
use crate::state::pages::PageRun;
use crate::state::sampling::SamplingParams;

/// Runs steps: owns the weights, the KV buffers, the page table and the sampler.
///
/// Steps are handed in by [`Executor::launch`], in [`StepId`] order. An executor whose device works by itself returns
/// [`Launch::UnderWay`] and is handed the next step before [`Executor::finish`] asks for the result of this one; one
/// that computes on the calling thread has only [`Executor::run`] to write.
pub trait Executor: Send {
    /// Runs one step to its end and returns one result for each row of the plan, in the plan's order. No step may be
    /// under way.
    ///
    /// # Errors
    /// [`StepError::Rejected`] when nothing was launched: no KV was written and the rows may be planned
    /// again. [`StepError::Lost`] for anything later.
    fn run(&mut self, plan: &StepPlan) -> Result<StepOutput, StepError>;

    /// Begins a step, and returns its output if that ends it.
    ///
    /// At most [`MAX_UNDER_WAY`] steps are under way at once. Rows, pages and tokens of a step may depend on the steps
    /// under way: the device runs them in order.
    ///
    /// # Errors
    /// As [`Executor::run`]. The steps under way are not affected by a plan that is rejected.
    fn launch(&mut self, plan: &StepPlan) -> Result<Launch, StepError> {
        self.run(plan).map(Launch::Done)
    }

    /// Whether [`Executor::finish`] would return without waiting.
    fn is_finished(&mut self) -> bool {
        true
    }

    /// Waits for the oldest step under way and returns its output.
    ///
    /// # Errors
    /// [`StepError::Lost`], also when no step is under way.
    fn finish(&mut self) -> Result<StepOutput, StepError> {
        Err(StepError::Lost("no step is under way".to_owned()))
    }

    /// Takes back the results of an earlier step, for their memory; by default they are dropped.
    fn recycle(&mut self, rows: Vec<RowResult>) {
        drop(rows);
    }
}

/// Steps that are launched and not yet finished, at most: the one that the device works on and its successor.
pub const MAX_UNDER_WAY: usize = 2;

/// How a step stands after its launch.
#[derive(Debug)]
pub enum Launch {
    /// It has ended.
    Done(StepOutput),
    /// The device works on it, or will when it is done with the step before; [`Executor::finish`] has its output.
    UnderWay,
}

/// Which part of a model an executor runs, when several share it (tensor parallelism). One rank runs all of it as yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    rank: u32,
    world_size: u32,
}

impl Placement {
    /// The whole model.
    pub const WHOLE: Self = Self {
        rank: 0,
        world_size: 1,
    };

    /// Rank `rank` of `world_size`; `None` if there is no such rank.
    pub fn new(rank: u32, world_size: u32) -> Option<Self> {
        (rank < world_size).then_some(Self { rank, world_size })
    }

    /// Its number, from 0; rank 0 samples.
    pub fn rank(self) -> u32 {
        self.rank
    }

    /// How many ranks there are.
    pub fn world_size(self) -> u32 {
        self.world_size
    }
}

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
    /// Cached pages that hold the K/V of the first `prefix.len() * page_size` tokens.
    pub prefix: PageRun,
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
}

impl TableDelta {
    /// The row that is edited.
    pub fn row(&self) -> RowId {
        match self {
            Self::Append { row, .. } | Self::Remap { row, .. } => *row,
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
    /// What goes through the model.
    pub work: RowWork,
    /// Samples the token that follows; false for all but the last chunk of a prefill.
    pub sample: bool,
    /// Which log probabilities to return.
    pub logprobs: Option<Arc<LogprobWish>>,
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

/// Which log probabilities a request wants. Names follow SGLang. Clones share the list.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct LogprobWish {
    /// Position in the prompt whose logits are the first wanted; `None` for the output's log probabilities only.
    pub start: Option<u32>,
    /// How many of the most likely tokens to return with each position.
    pub top: u32,
    /// Tokens whose log probability to return with each position.
    pub token_ids: Arc<[u32]>,
}

/// What a step produced.
#[derive(Clone, Debug)]
pub struct StepOutput {
    /// The step.
    pub step: StepId,
    /// One result for each row of the plan, in its order.
    pub rows: Vec<RowResult>,
}

/// What a step produced for one row.
#[derive(Clone, Debug)]
pub struct RowResult {
    /// The sequence.
    pub seq: SeqId,
    /// Sampled tokens: none for a chunk that does not end its prefill, one otherwise (more with speculation).
    pub tokens: SmallVec<[u32; 2]>,
    /// Query tokens whose K/V stays valid (with speculation fewer than were fed).
    pub accepted: u32,
    /// Log probabilities, if wished for.
    pub logprobs: Option<Box<RowLogprobs>>,
    /// The logits held a NaN: the sampled token means nothing.
    pub nan: bool,
}

/// Log probabilities of one row in one step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RowLogprobs {
    /// For each prefilled position `p` at or after the wish's start with `p + 1 < prompt_tokens`: of the prompt's
    /// token at `p + 1`, from the logits at `p`. (The first token of the wished range has none.)
    pub input: Vec<TokenLogprobs>,
    /// For each sampled token.
    pub output: Vec<TokenLogprobs>,
}

/// The log probability of one token, and of others at its place.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct TokenLogprobs {
    /// The token.
    pub token: u32,
    /// Its log probability in nats, before temperature and penalties; `None` for the first token of a prompt.
    pub logprob: Option<f32>,
    /// The most likely tokens at this place, most likely first.
    pub top: Vec<(u32, f32)>,
    /// The tokens asked for by id.
    pub chosen: Vec<(u32, f32)>,
}
