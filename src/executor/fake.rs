//! An executor without a model, for tests and for trying out the engine.
//!
//! The "K/V" of a position is a hash of all tokens up to this position. It is read back through the page table, so a
//! page that is freed too early, remapped wrongly or written twice changes the output; with `verify`, every step checks
//! the whole context. A recurrent state is the same hash in a state slot: a state of another position or sequence, or
//! one that was never written, fails the step. With sliding windows, a second page table also has the hashes, and each
//! step checks the hashes that its queries see.

mod blocks;
mod hashes;
mod refusal;
mod tower;
mod windows;

use std::ops::Range;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use smallvec::smallvec;

use self::hashes::{fake_logits, fake_state, mix, sample};
use self::refusal::rejected;
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
use souffleur_state::sampling::{LogprobWish, RowLogprobs, Sampled, TokenLogprobs, token_logprobs};
use souffleur_state::step::{
    RowResult, RowStart, RowVerdict, RowWork, StateStart, StepOutput, StepPlan, StepRow, TableDelta,
};

/// Bytes of a token in a block of the fake executor, and of a state.
pub const FAKE_TOKEN_BYTES: usize = size_of::<u64>();
/// Margin of the chosen token's logit over the highest possible logit of other tokens.
const CHOSEN_MARGIN: f32 = 4.0;

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
    /// One hash per state; `None` before anything is written.
    states: Vec<Option<u64>>,
    store: Option<StoreLink>,
    vision: Option<Encoder<()>>,
    rows: FxHashMap<RowId, FakeRow>,
}

struct FakeRow {
    seq: SeqId,
    seed: u64,
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
}

impl FakeRow {
    /// The token after the first `n_tokens` tokens, whose hash is `hash`.
    fn next_token(&self, n_tokens: usize, hash: u64, vocab_size: u32) -> u32 {
        match &self.answer {
            // The answer ends with EOS, which is repeated if the row continues.
            Some(answer) => {
                answer[n_tokens
                    .saturating_sub(self.prompt_tokens)
                    .min(answer.len() - 1)]
            }
            None => sample(hash, self.seed, vocab_size),
        }
    }
}

impl FakeExecutor {
    pub fn new(options: FakeOptions) -> Self {
        let slots = (options.n_pages + 1) * options.page_size;
        Self {
            states: vec![None; options.n_states + 1],
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
        let state = self.begin_state(start)?;
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
            seed: start.sampling.sampling_seed.unwrap_or(0),
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
        };
        self.rows.insert(start.row, row);
        Ok(())
    }

    /// Copies or clears the state of a row that starts.
    fn begin_state(&mut self, start: &RowStart) -> Result<Option<StateSlot>, StepError> {
        let Some(StateStart { live, from }) = start.state else {
            let keeps = self.options.n_states > 0;
            return if keeps {
                Err(rejected(start.seq, "starts without a state"))
            } else {
                Ok(None)
            };
        };
        let state = match from {
            Some(from) if from == live => {
                return Err(rejected(start.seq, "starts from its own state"));
            }
            Some(from) => *self.state(start.seq, from)?,
            None if !start.prefix.is_empty() => {
                return Err(rejected(start.seq, "starts a prefix without its state"));
            }
            None => Some(0),
        };
        *self.state(start.seq, live)? = state;
        Ok(Some(live))
    }

    fn state(&mut self, seq: SeqId, slot: StateSlot) -> Result<&mut Option<u64>, StepError> {
        let state = self.states.get_mut(slot.index());
        let state = state.filter(|_| slot.index() > 0);
        state.ok_or_else(|| rejected(seq, "names a state that does not exist"))
    }

    /// Checks that a row's state is the hash of its first `n_tokens` tokens.
    fn verify_state(&mut self, row: &FakeRow, n_tokens: usize) -> Result<(), StepError> {
        let Some(slot) = row.state else {
            return Ok(());
        };
        let seen = row.tokens[..n_tokens].iter();
        let expected = seen.fold(0, |hash, token| mix(hash, *token));
        let found = *self.state(row.seq, slot)?;
        if found == Some(expected) {
            Ok(())
        } else {
            Err(StepError::Lost(format!(
                "state {slot} of sequence {} is not the state after {n_tokens} tokens",
                row.seq
            )))
        }
    }

    /// Feeds the tokens of a row's work to its state, and copies the state at the positions of `work.saves`.
    fn feed_state(&mut self, row: &FakeRow, work: &StepRow) -> Result<(), StepError> {
        let Some(live) = row.state else {
            return if work.saves.is_empty() {
                Ok(())
            } else {
                Err(rejected(row.seq, "saves a state that it does not have"))
            };
        };
        let positions = work.work.positions();
        let mut saves = work.saves.iter().peekable();
        for position in positions {
            let token = row.tokens[position as usize];
            let state = self.state(row.seq, live)?;
            *state = state.map(|hash| mix(hash, token));
            let state = *state;
            if let Some(save) = saves.next_if(|save| save.position == position + 1) {
                if save.slot == live {
                    return Err(rejected(row.seq, "saves its state to its own slot"));
                }
                *self.state(row.seq, save.slot)? = state;
            }
        }
        match saves.next() {
            None => Ok(()),
            Some(_) => Err(rejected(row.seq, "saves a state outside of its work")),
        }
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

    fn run_row(&mut self, work: &StepRow) -> Result<RowResult, StepError> {
        let mut row = self.take_row(work)?;
        let positions = work.work.positions();
        self.verify(&row, positions.start as usize)?;
        self.verify_state(&row, positions.start as usize)?;
        self.verify_images(&row, &positions)?;
        self.feed_state(&row, work)?;
        self.attend_windows(&row, positions.clone())?;
        let vocab_size = self.options.vocab_size;
        let mut logprobs = work
            .logprobs
            .as_ref()
            .map(|_| Box::<RowLogprobs>::default());
        let mut last = 0;
        for position in positions.clone() {
            let position = position as usize;
            let before = match position {
                0 => 0,
                _ => self.kv[self.slot(&row, position - 1)?],
            };
            last = mix(before, row.tokens[position]);
            let slot = self.slot(&row, position)?;
            self.kv[slot] = last;
            if let Some(pool) = row.pool.as_mut().filter(|_| position < row.prompt_tokens) {
                pool.add(&fake_state(last, self.options.hidden_size));
            }
            if let (Some(wish), Some(logprobs)) = (&work.logprobs, &mut logprobs)
                && wish.start.is_some_and(|start| start as usize <= position)
                && position + 1 < row.prompt_tokens
            {
                let token = row.tokens[position + 1];
                let logits = fake_logits(last, vocab_size);
                logprobs.input.push(scores(&logits, token, wish));
            }
        }
        if positions.end as usize >= row.prompt_tokens
            && let Some(embedding) = row.pool.take().and_then(|pool| pool.embedding())
        {
            logprobs.get_or_insert_default().embedding = Some(embedding);
        }
        let mut tokens = smallvec![];
        let mut verdict = RowVerdict::Open;
        if work.sample {
            let token = row.next_token(positions.end as usize, last, vocab_size);
            let token = allowed(token, row.grammar.as_mut());
            verdict = RowVerdict::of(Sampled { token, nan: false }, row.grammar.as_mut());
            row.tokens.truncate(positions.end as usize);
            row.tokens.push(token);
            tokens.push(token);
            if let (Some(wish), Some(logprobs)) = (&work.logprobs, &mut logprobs) {
                let scores = output_scores(last, token, vocab_size, wish);
                logprobs.output.push(scores);
            }
        }
        let accepted = positions.len() as u32;
        self.rows.insert(work.row, row);
        Ok(RowResult {
            seq: work.seq,
            tokens,
            accepted,
            logprobs,
            verdict,
            drafts: Default::default(),
        })
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
        let end = work.work.positions().end;
        if let RowWork::Decode { position, .. } = work.work
            && row.tokens.len() != position as usize + 1
        {
            let known = row.tokens.len();
            return Err(StepError::Rejected(format!(
                "cannot decode position {position}: the row has {known} tokens"
            )));
        }
        if row.tokens.len() < end as usize {
            let known = row.tokens.len();
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
            .map(|row| self.run_row(row))
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

/// The log probabilities after a sampled token, whose logit is raised above all others.
fn output_scores(hash: u64, token: u32, vocab_size: u32, wish: &LogprobWish) -> TokenLogprobs {
    let mut logits = fake_logits(hash, vocab_size);
    if let Some(logit) = logits.get_mut(token as usize) {
        *logit = 1.0 + CHOSEN_MARGIN;
    }
    scores(&logits, token, wish)
}

fn scores(logits: &[f32], token: u32, wish: &LogprobWish) -> TokenLogprobs {
    token_logprobs(logits, token, wish.top, &wish.token_ids)
}
