//! An executor without a model, for tests and for trying out the engine.
//!
//! The "K/V" of a position is a hash of all tokens up to this position. It is read back through the page table, so a
//! page that is freed too early, remapped wrongly or written twice changes the output; with `verify`, every step checks
//! the whole context. A recurrent state is the same hash in a state slot: a state of another position or sequence, or
//! one that was never written, fails the step. With sliding windows, a second page table also has the hashes, and each
//! step checks the hashes that its queries see. Decodes have drafts if the executor was told how many of them are right.

mod blocks;
mod drafts;
mod hashes;
mod refusal;
mod scores;
mod states;
mod tower;
mod windows;

use std::ops::Range;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use smallvec::smallvec;

use self::drafts::DecodePlan;
pub use self::drafts::FakeDrafts;
use self::hashes::{fake_state, mix, sample};
use self::refusal::rejected;
use self::scores::{input_scores, output_scores};
use self::states::{FakeStates, RowTokens};
pub use self::tower::fake_tower_work;
use self::windows::FakeWindows;
use crate::host::StoreLink;
use crate::script::Script;
use crate::vision::{EncodedImage, Encoder};
use crate::{DeviceLost, Executor};
use souffleur_base::error::StepError;
use souffleur_base::ids::{PageId, RowId, SeqId, StateSlot, StepId};
use souffleur_state::grammar::RowGrammar;
use souffleur_state::pool::window_pool::WindowLimits;
use souffleur_state::pooling::PoolSum;
use souffleur_state::prompt_images::PromptImages;
use souffleur_state::sampling::{RowLogprobs, Sampled, SamplingParams};
use souffleur_state::step::{
    RowResult, RowStart, RowVerdict, RowWork, StepOutput, StepPlan, StepRow, TableDelta,
};

/// Bytes of a token in a block of the fake executor, and of a state.
pub const FAKE_TOKEN_BYTES: usize = size_of::<u64>();

#[derive(Clone, Debug)]
pub struct FakeOptions {
    pub page_size: usize,
    pub n_pages: usize,
    /// Tokens are `0..vocab_size`.
    pub vocab_size: u32,
    /// Checks every slot of the context at every step.
    pub verify: bool,
    /// Slots for recurrent states; 0 for a model without them.
    pub n_states: usize,
    /// Length of an embedding, whose values derive from the hashes; 0 for a model without embeddings.
    pub hidden_size: usize,
    /// Steps that fail, and how.
    pub faults: Vec<(StepId, StepError)>,
}

pub struct FakeExecutor {
    options: FakeOptions,
    /// Determines the output; without a script, the context's hash does.
    script: Option<Script>,
    /// One hash per slot.
    kv: Vec<u64>,
    windows: Option<FakeWindows>,
    states: FakeStates,
    /// `None`: decodes have no drafts, whatever their room.
    drafts: Option<FakeDrafts>,
    store: Option<StoreLink>,
    vision: Option<Encoder<()>>,
    rows: FxHashMap<RowId, FakeRow>,
}

struct FakeRow {
    seq: SeqId,
    sampling: Arc<SamplingParams>,
    tokens: Vec<u32>,
    grammar: Option<RowGrammar>,
    prompt_tokens: usize,
    /// The sum for the prompt's embedding, until the embedding is complete.
    pool: Option<PoolSum>,
    answer: Option<Vec<u32>>,
    pages: Vec<PageId>,
    /// One for each of `pages`; the dummy page where none is mapped.
    window_pages: Vec<PageId>,
    state: Option<StateSlot>,
    images: Option<Arc<PromptImages>>,
    /// The latest step with work of this row, and the number of tokens that it sampled.
    last_step: StepId,
    last_sampled: usize,
}

impl FakeRow {
    /// Whether decodes of the row may have drafts, so that plans know only bounds of its length.
    fn speculates(&self) -> bool {
        let n_query = self.sampling.speculative_num_draft_tokens;
        n_query.is_some_and(|n_query| n_query > 1)
    }

    /// The row's state, and its first `n_tokens` tokens.
    fn until(&self, n_tokens: usize) -> RowTokens<'_> {
        RowTokens {
            seq: self.seq,
            live: self.state,
            tokens: &self.tokens[..n_tokens],
        }
    }

    /// Samples the token after all the row's tokens, whose hash is `hash`, and appends it.
    fn sample(&mut self, hash: u64, vocab_size: u32) -> (u32, RowVerdict) {
        let token = self.next_token(self.tokens.len(), hash, vocab_size);
        let token = allowed(token, self.grammar.as_mut());
        let verdict = RowVerdict::of(Sampled { token, nan: false }, self.grammar.as_mut());
        self.tokens.push(token);
        (token, verdict)
    }

    /// The token after the first `n_tokens` tokens, whose hash is `hash`.
    fn next_token(&self, n_tokens: usize, hash: u64, vocab_size: u32) -> u32 {
        match &self.answer {
            // The answer ends with EOS, which is repeated if the row continues.
            Some(answer) => {
                answer[n_tokens
                    .saturating_sub(self.prompt_tokens)
                    .min(answer.len() - 1)]
            }
            None => {
                let seed = self.sampling.sampling_seed.unwrap_or(0);
                sample(hash, seed, vocab_size)
            }
        }
    }
}

impl FakeExecutor {
    pub fn new(options: FakeOptions) -> Self {
        let slots = (options.n_pages + 1) * options.page_size;
        Self {
            states: FakeStates::new(options.n_states),
            drafts: None,
            options,
            script: None,
            windows: None,
            store: None,
            vision: None,
            kv: vec![0; slots],
            rows: FxHashMap::default(),
        }
    }

    pub fn with_windows(self, limits: WindowLimits) -> Self {
        Self {
            windows: Some(FakeWindows::new(limits, self.options.page_size)),
            ..self
        }
    }

    pub(super) fn with_script(options: FakeOptions, script: Script) -> Self {
        Self {
            script: Some(script),
            ..Self::new(options)
        }
    }

    /// The configured fault of a step, if the fault is a rejection.
    pub fn refusal(&self, step: StepId) -> Option<StepError> {
        self.fault(step)
            .filter(|fault| matches!(fault, StepError::Rejected(_)))
    }

    fn fault(&self, step: StepId) -> Option<StepError> {
        let faults = &mut self.options.faults.iter();
        faults
            .find(|(faulty, _)| *faulty == step)
            .map(|(_, fault)| fault.clone())
    }

    fn slot(&self, row: &FakeRow, position: usize) -> Result<usize, StepError> {
        let page_size = self.options.page_size;
        let page = row.pages.get(position / page_size).ok_or_else(|| {
            StepError::Rejected(format!(
                "sequence {} has no page for position {position}",
                row.seq
            ))
        })?;
        Ok(page.index() * page_size + position % page_size)
    }

    fn start(&mut self, start: &RowStart) -> Result<(), StepError> {
        let state = self.states.begin(start)?;
        let prompt_tokens = start.prompt_tokens as usize;
        let vocab_size = self.options.vocab_size as usize;
        let grammar = start
            .grammar
            .as_deref()
            .map(|grammar| RowGrammar::new(grammar, vocab_size, &start.tokens[prompt_tokens..]));
        let script = self.script.as_ref();
        let row = FakeRow {
            grammar,
            seq: start.seq,
            sampling: start.sampling.clone(),
            tokens: start.tokens.to_vec(),
            prompt_tokens,
            pool: start
                .pooling
                .filter(|_| self.options.hidden_size > 0)
                .map(PoolSum::new),
            answer: script.map(|script| script.answer(&start.tokens[..prompt_tokens])),
            pages: start.prefix.iter().collect(),
            window_pages: match self.windows {
                Some(_) => vec![PageId::new(0); start.prefix.len()],
                None => Vec::new(),
            },
            state,
            images: start.images.clone(),
            last_step: StepId::new(0),
            last_sampled: 0,
        };
        self.rows.insert(start.row, row);
        Ok(())
    }

    fn edit(&mut self, delta: &TableDelta) -> Result<(), StepError> {
        let row = self.rows.get_mut(&delta.row()).ok_or_else(|| {
            StepError::Rejected(format!("row {} has not been started", delta.row()))
        })?;
        match delta {
            TableDelta::Append { pages, .. } => row.pages.extend_from_slice(pages),
            TableDelta::Remap { from, pages, .. } => {
                let places = row.pages.iter_mut().skip(*from as usize);
                for (place, page) in places.zip(pages.iter()) {
                    *place = page;
                }
            }
            TableDelta::AppendWindows { pages, .. } => row.window_pages.extend_from_slice(pages),
            TableDelta::Windows { from, pages, .. } => {
                let places = row.window_pages.iter_mut().skip(*from as usize);
                for (place, page) in places.zip(pages.iter()) {
                    *place = page;
                }
            }
        }
        Ok(())
    }

    fn run_row(&mut self, step: StepId, work: &StepRow) -> Result<RowResult, StepError> {
        let mut row = self.take_row(work)?;
        let result = match &work.work {
            RowWork::Prefill { positions } => self.prefill(&mut row, work, positions.clone())?,
            RowWork::Decode { position, room } => {
                let plan = DecodePlan {
                    step,
                    position: *position,
                    room: *room,
                };
                self.decode(&mut row, work, plan)?
            }
        };
        row.last_step = step;
        row.last_sampled = result.tokens.len();
        self.rows.insert(work.row, row);
        Ok(result)
    }

    fn prefill(
        &mut self,
        row: &mut FakeRow,
        work: &StepRow,
        positions: Range<u32>,
    ) -> Result<RowResult, StepError> {
        let (first, end) = (positions.start as usize, positions.end as usize);
        self.verify(row, first)?;
        self.states.verify(&row.until(first), first)?;
        self.verify_images(row, &positions)?;
        self.states.feed(&row.until(end), first, &work.saves)?;
        self.attend_windows(row, positions.clone())?;
        let vocab_size = self.options.vocab_size;
        let mut logprobs = work
            .logprobs
            .as_ref()
            .map(|_| Box::<RowLogprobs>::default());
        let mut last = 0;
        for position in first..end {
            last = self.compute(row, position)?;
            if let Some(pool) = row.pool.as_mut().filter(|_| position < row.prompt_tokens) {
                pool.add(&fake_state(last, self.options.hidden_size));
            }
            if let (Some(wish), Some(logprobs)) = (&work.logprobs, &mut logprobs)
                && wish.start.is_some_and(|start| start as usize <= position)
                && position + 1 < row.prompt_tokens
            {
                let token = row.tokens[position + 1];
                let scores = input_scores(last, token, vocab_size, wish);
                logprobs.input.push(scores);
            }
        }
        if end >= row.prompt_tokens
            && let Some(embedding) = row.pool.take().and_then(|pool| pool.embedding())
        {
            logprobs.get_or_insert_default().embedding = Some(embedding);
        }
        let mut tokens = smallvec![];
        let mut verdict = RowVerdict::Open;
        if work.sample {
            row.tokens.truncate(end);
            let (token, found) = row.sample(last, vocab_size);
            tokens.push(token);
            verdict = found;
            if let (Some(wish), Some(logprobs)) = (&work.logprobs, &mut logprobs) {
                let scores = output_scores(last, token, vocab_size, wish);
                logprobs.output.push(scores);
            }
        }
        Ok(RowResult {
            seq: work.seq,
            tokens,
            accepted: positions.len() as u32,
            logprobs,
            verdict,
            drafts: Default::default(),
        })
    }

    /// Writes the K/V of a position, the hash of all tokens up to it, and returns it.
    fn compute(&mut self, row: &FakeRow, position: usize) -> Result<u64, StepError> {
        let before = match position {
            0 => 0,
            _ => self.kv[self.slot(row, position - 1)?],
        };
        let hash = mix(before, row.tokens[position]);
        let slot = self.slot(row, position)?;
        self.kv[slot] = hash;
        Ok(hash)
    }

    /// Removes the row of `work` from `rows`. An error if the row lacks tokens that `work` computes.
    fn take_row(&mut self, work: &StepRow) -> Result<FakeRow, StepError> {
        let row = self
            .rows
            .remove(&work.row)
            .filter(|row| row.seq == work.seq)
            .ok_or_else(|| {
                StepError::Rejected(format!(
                    "row {} does not hold sequence {}",
                    work.row, work.seq
                ))
            })?;
        if let RowWork::Prefill { positions } = &work.work
            && row.tokens.len() < positions.end as usize
        {
            let (end, known) = (positions.end, row.tokens.len());
            return Err(StepError::Rejected(format!(
                "cannot prefill up to position {end}: the row has {known} tokens"
            )));
        }
        Ok(row)
    }

    fn attend_windows(&mut self, row: &FakeRow, positions: Range<u32>) -> Result<(), StepError> {
        match &mut self.windows {
            Some(windows) => {
                let pages = (&row.tokens[..], &row.window_pages[..]);
                windows.attend(row.seq, pages, positions)
            }
            None if !row.window_pages.is_empty() => Err(rejected(
                row.seq,
                "has window pages, but no layer has a window",
            )),
            None => Ok(()),
        }
    }

    fn verify(&self, row: &FakeRow, end: usize) -> Result<(), StepError> {
        if !self.options.verify {
            return Ok(());
        }
        let mut expected = 0;
        for position in 0..end {
            expected = mix(expected, row.tokens[position]);
            if self.kv[self.slot(row, position)?] != expected {
                let seq = row.seq;
                return Err(StepError::Lost(format!(
                    "K/V of sequence {seq} at position {position} was not computed from its tokens"
                )));
            }
        }
        Ok(())
    }
}

impl Executor for FakeExecutor {
    fn run(&mut self, plan: &StepPlan) -> Result<StepOutput, StepError> {
        if let Some(fault) = self.fault(plan.step) {
            self.forget_image();
            return Err(fault);
        }
        self.encode(plan)?;
        if let Some(copies) = &plan.copies {
            self.save_blocks(&copies.saves)?;
        }
        for start in &plan.starts {
            self.start(start)?;
        }
        for delta in &plan.table {
            self.edit(delta)?;
        }
        if let Some(copies) = &plan.copies {
            self.load_blocks(&copies.loads)?;
        }
        let rows = plan
            .rows
            .iter()
            .map(|row| self.run_row(plan.step, row))
            .collect::<Result<_, _>>()?;
        Ok(StepOutput {
            step: plan.step,
            rows,
        })
    }

    fn take_encoded(&mut self) -> Vec<EncodedImage> {
        self.vision
            .as_mut()
            .map_or_else(Vec::new, Encoder::take_encoded)
    }

    fn forget_unwanted(&mut self) {
        if let Some(encoder) = &mut self.vision {
            encoder.forget_unwanted();
        }
    }

    fn reset(&mut self) -> Result<(), DeviceLost> {
        self.rows.clear();
        self.forget_image();
        Ok(())
    }
}

/// Returns `token`, or, if the grammar forbids it, the next allowed token (modulo the vocabulary).
fn allowed(token: u32, grammar: Option<&mut RowGrammar>) -> u32 {
    let Some(grammar) = grammar else {
        return token;
    };
    grammar.prepare();
    let Some(mask) = grammar.mask() else {
        return token;
    };
    let next = mask.next_allowed(token).or_else(|| mask.next_allowed(0));
    next.unwrap_or(token)
}

/// The tokens that a fake executor generates after a prompt, whatever the schedule and the cache.
pub fn expected_output(prompt: &[u32], seed: u64, n_tokens: usize, vocab_size: u32) -> Vec<u32> {
    let mut hash = prompt.iter().fold(0, |hash, token| mix(hash, *token));
    let mut output = Vec::with_capacity(n_tokens);
    for _ in 0..n_tokens {
        let token = sample(hash, seed, vocab_size);
        output.push(token);
        hash = mix(hash, token);
    }
    output
}
