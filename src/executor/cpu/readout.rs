//! Computes sampled tokens and log probabilities from the model's output in the CPU executor.

use std::ops::Range;

use super::argmax::{Ahead, Part, argmax, choose};
use super::{CpuExecutor, LogitsProbe, RowSampling};
use crate::rows::Rows;
use crate::wanted::{WantedOutput, find_wanted, next_run};
use souffleur_base::ids::RowId;
use souffleur_kernels::cpu::Tensor;
use souffleur_state::sampling::{
    DrawScratch, Peak, RowSampler, Sampled, TokenMask, token_logprobs,
};
use souffleur_state::sampling::{LogprobWish, TokenLogprobs};
use souffleur_state::speculation::RowDrafts;
use souffleur_state::step::{RowResult, RowVerdict, StepPlan};

/// Rows of logits that are computed at once. A batch of decodes fits, and a long prompt takes little memory.
pub const LOGIT_ROWS: usize = 64;

#[derive(Clone, Default)]
struct RowOutput {
    /// The logits are read now, not after the choice of an earlier token of the row.
    is_due: bool,
    sampled: Option<Sampled>,
    logprobs: Option<TokenLogprobs>,
}

#[derive(Default)]
pub(super) struct Readout {
    wanted: Vec<WantedOutput>,
    /// Token indices of `wanted` in the step; after the forward pass, row indices in the model's output.
    tokens: Vec<u32>,
    /// Rows of logits whose argmax is the next token; `peaks` has their argmaxes, `parts` the argmaxes of row parts.
    greedy: Vec<usize>,
    peaks: Vec<Peak>,
    parts: Vec<Part>,
    outputs: Vec<RowOutput>,
    walks: Vec<Walk>,
    /// Indices in `wanted` of the logits that are read now.
    now: Vec<usize>,
    /// Buffers of each thread.
    buffers: Vec<Buffers>,
}

/// How far the sampled tokens of a row have followed its drafts in the current step.
#[derive(Clone, Copy)]
struct Walk {
    n_tokens: usize,
    /// The next position of the row is the one after the last sampled token.
    continues: bool,
}

#[derive(Default)]
struct Buffers {
    scratch: DrawScratch,
    /// A copy of one row's logits, from before the sampler changes them.
    raw_logits: Vec<f32>,
}

impl Readout {
    /// Finds what a plan needs, whose rows have tokens at these positions.
    pub(super) fn find(&mut self, plan: &StepPlan, positions: &[Range<u32>], rows: &Rows) {
        let order = positions.iter().cloned().enumerate();
        find_wanted(plan, order, rows, &mut self.wanted);
        self.walks.clear();
        let walk = Walk {
            n_tokens: 0,
            continues: true,
        };
        self.walks.resize(plan.rows.len(), walk);
        self.tokens.clear();
        self.tokens
            .extend(self.wanted.iter().map(|wanted| wanted.token_index));
    }

    /// Indices of the step's tokens that are read, ascending; valid until [`CpuExecutor::read_out`].
    pub(super) fn tokens(&self) -> &[u32] {
        &self.tokens
    }
}

impl CpuExecutor {
    /// Computes logits from `hidden` for the tokens of [`Readout::find`], samples, and fills in the results.
    pub(super) fn read_out(
        &mut self,
        plan: &StepPlan,
        hidden: &Tensor,
        results: &mut [RowResult],
        probe: LogitsProbe<'_>,
    ) {
        // Taken out of `self`, so that buffers, rows and backend can be borrowed together.
        let mut readout = std::mem::take(&mut self.readout);
        let wanted = std::mem::take(&mut readout.wanted);
        let mut next = 0;
        while let Some(Range { start: first, end }) = next_run(&wanted, next, LOGIT_ROWS) {
            next = end;
            readout.tokens.clear();
            readout.tokens.extend(first as u32..end as u32);
            if wanted[first].pools {
                self.pool(plan, &wanted[first..end], hidden, &readout.tokens, results);
                continue;
            }
            let mut logits = self
                .model
                .logits(&mut self.backend, hidden, &readout.tokens);
            for (index, wanted) in wanted[first..end].iter().enumerate() {
                let seq = plan.rows[wanted.work].seq;
                probe(seq, wanted.position as u32, logits.row(index));
            }
            let wanted = &wanted[first..end];
            readout.outputs.clear();
            readout.outputs.resize(wanted.len(), RowOutput::default());
            readout.now.clear();
            readout.now.extend(0..wanted.len());
            self.wait_for_drafts(plan, wanted, &mut readout);
            while !readout.now.is_empty() {
                self.read(plan, wanted, &mut logits, &mut readout);
                self.store_outputs(plan, wanted, results, &mut readout);
                self.find_next(wanted, &mut readout);
            }
        }
        self.count_drafts(plan, results, &readout.walks);
        readout.wanted = wanted;
        self.readout = readout;
    }

    /// Adds normed hidden states to the embeddings of their rows.
    fn pool(
        &mut self,
        plan: &StepPlan,
        wanted: &[WantedOutput],
        hidden: &Tensor,
        tokens: &[u32],
        results: &mut [RowResult],
    ) {
        let states = self.model.states(&mut self.backend, hidden, tokens);
        for (index, wanted) in wanted.iter().enumerate() {
            let (row, result) = (plan.rows[wanted.work].row, &mut results[wanted.work]);
            self.rows
                .pool(row, wanted.position, states.row(index), result);
        }
    }

    /// Samples tokens and computes log probabilities from rows of logits, on all threads.
    fn read(
        &mut self,
        plan: &StepPlan,
        wanted: &[WantedOutput],
        logits: &mut Tensor,
        readout: &mut Readout,
    ) {
        let vocab_size = self.vocab_size;
        let sampled = readout.now.iter().map(|index| &wanted[*index]);
        let sampled = sampled.filter(|wanted| wanted.sample);
        self.prepare_masks(sampled.map(|wanted| plan.rows[wanted.work].row));
        readout.greedy.clear();
        for &index in &readout.now {
            let wanted = &wanted[index];
            let wants_logprobs = plan.rows[wanted.work].logprobs.is_some();
            let row = sampling_of(&self.sampling, plan.rows[wanted.work].row);
            if wanted.sample && !wants_logprobs && row.takes_argmax() {
                readout.greedy.push(index);
            }
        }
        if !readout.greedy.is_empty() {
            let (rows, parts, peaks) = (&readout.greedy, &mut readout.parts, &mut readout.peaks);
            peaks.clear();
            argmax(&mut self.backend, logits, vocab_size, rows, parts, peaks);
            for (&index, &peak) in readout.greedy.iter().zip(&readout.peaks) {
                readout.outputs[index].sampled = Some(RowSampler::sampled_peak(peak));
            }
        }
        if readout.greedy.len() == readout.now.len() {
            return;
        }
        if readout.buffers.is_empty() {
            let buffers = (0..self.backend.n_threads()).map(|_| Buffers::new(vocab_size));
            readout.buffers.extend(buffers);
        }
        for &index in &readout.now {
            readout.outputs[index].is_due = true;
        }
        let (isa, rows, sampling) = (self.backend.isa(), &self.rows, &self.sampling);
        let walks = &readout.walks;
        let read = |bufs: &mut Buffers, index: usize, logits: &mut [f32], out: &mut RowOutput| {
            if out.sampled.is_some() || !out.is_due {
                return;
            }
            let wanted = &wanted[index];
            let work = &plan.rows[wanted.work];
            let wish = work.logprobs.as_deref();
            if !wanted.sample {
                let next = rows.row(work.row).tokens[wanted.position + 1];
                out.logprobs = wish.map(|wish| logprobs(logits, next, wish));
                return;
            }
            if wish.is_some() {
                bufs.raw_logits.clear();
                bufs.raw_logits.extend_from_slice(logits);
            }
            let row = sampling_of(sampling, work.row);
            let ahead = (wanted.ahead - walks[wanted.work].n_tokens) as u64;
            let sampler = Ahead(&row.sampler, ahead);
            let sampled = choose(isa, sampler, logits, row.mask(), &mut bufs.scratch);
            out.sampled = Some(sampled);
            out.logprobs = wish.map(|wish| logprobs(&bufs.raw_logits, sampled.token, wish));
        };
        let (buffers, outputs) = (&mut readout.buffers, &mut readout.outputs);
        self.backend.read_rows(logits, buffers, outputs, &read);
    }

    /// Records the tokens that follow the drafts of their rows, and their log probabilities.
    fn store_outputs(
        &mut self,
        plan: &StepPlan,
        wanted: &[WantedOutput],
        results: &mut [RowResult],
        readout: &mut Readout,
    ) {
        for &index in &readout.now {
            let wanted = &wanted[index];
            let output = std::mem::take(&mut readout.outputs[index]);
            let result = &mut results[wanted.work];
            if let Some(sampled) = output.sampled {
                let walk = &mut readout.walks[wanted.work];
                if !walk.is_at(wanted) || !self.take_token(plan, wanted, sampled, (result, walk)) {
                    continue;
                }
            }
            if let (Some(found), Some(logprobs)) = (output.logprobs, &mut result.logprobs) {
                if wanted.sample {
                    logprobs.output.push(found)
                } else {
                    logprobs.input.push(found)
                }
            }
        }
    }

    /// Takes the next token of a row; false if it is undefined, and was not the row's first in this step: then the next
    /// step computes it again.
    fn take_token(
        &mut self,
        plan: &StepPlan,
        wanted: &WantedOutput,
        sampled: Sampled,
        (result, walk): (&mut RowResult, &mut Walk),
    ) -> bool {
        let row = self.sampling[plan.rows[wanted.work].row.index()]
            .as_mut()
            .expect(STARTED);
        walk.continues = false;
        let is_first = wanted.ahead == 0;
        if sampled.nan && !is_first {
            return false;
        }
        let sampled = row.taught(sampled);
        let Some(verdict) = row.record(sampled, is_first) else {
            return false;
        };
        let draft = self.drafts.of(wanted.work).get(wanted.ahead);
        walk.n_tokens += 1;
        walk.continues = verdict == RowVerdict::Open
            && draft == Some(&sampled.token)
            && !row.sampler.ends_at(sampled.token, &self.eos_token_ids);
        result.verdict = verdict;
        result.tokens.push(sampled.token);
        true
    }

    /// Leaves, of the logits to read now, those whose tokens may follow the tokens read so far. All tokens of a row are
    /// chosen at once if they depend on the output only by its length.
    fn wait_for_drafts(&self, plan: &StepPlan, wanted: &[WantedOutput], readout: &mut Readout) {
        let walks = &readout.walks;
        readout.now.retain(|&index| {
            let wanted = &wanted[index];
            let walk = &walks[wanted.work];
            let row = || sampling_of(&self.sampling, plan.rows[wanted.work].row);
            let is_next = || wanted.ahead == walk.n_tokens || row().needs_only_length();
            !wanted.sample || walk.continues && is_next()
        });
    }

    /// Finds the logits that are read after those before: of rows whose last token was the draft.
    fn find_next(&self, wanted: &[WantedOutput], readout: &mut Readout) {
        readout.now.clear();
        if self.drafts.is_empty() {
            return;
        }
        let is_next = |index: &usize| {
            let walk = &readout.walks[wanted[*index].work];
            wanted[*index].sample && walk.is_at(&wanted[*index])
        };
        readout.now.extend((0..wanted.len()).filter(is_next));
    }

    /// Counts the drafts of a step that were accepted.
    fn count_drafts(&mut self, plan: &StepPlan, results: &mut [RowResult], walks: &[Walk]) {
        if self.drafts.is_empty() {
            return;
        }
        for (work, (result, walk)) in results.iter_mut().zip(walks).enumerate() {
            let n_accepted = walk.n_tokens.saturating_sub(1);
            result.accepted = walk.n_tokens as u32;
            result.drafts = RowDrafts {
                n_tokens: self.drafts.of(work).len() as u32,
                source: self.drafts.proposal(work).source,
            };
            self.rows.accept(plan.rows[work].row, n_accepted);
            self.accept_in_state(plan, work, n_accepted);
            let row_yield = self.drafts.note_result(work, n_accepted);
            let sampling = self.sampling[plan.rows[work].row.index()].as_mut();
            if let (Some(row_yield), Some(sampling)) = (row_yield, sampling) {
                sampling.row_yield = row_yield;
            }
        }
    }
}

impl Walk {
    /// Whether this position of the row is the one after the tokens taken so far, the last of which was the draft.
    fn is_at(&self, wanted: &WantedOutput) -> bool {
        self.continues && self.n_tokens == wanted.ahead
    }
}

const STARTED: &str = "a row that samples must have been started";

fn sampling_of(sampling: &[Option<RowSampling>], row: RowId) -> &RowSampling {
    sampling[row.index()].as_ref().expect(STARTED)
}

impl RowSampling {
    fn mask(&self) -> Option<&TokenMask> {
        self.grammar.as_ref().and_then(|grammar| grammar.mask())
    }

    /// Whether the next token is the argmax of the raw logits.
    fn takes_argmax(&self) -> bool {
        self.mask().is_none() && self.sampler.takes_peak()
    }

    /// Whether all next tokens depend on the output only by its length.
    fn needs_only_length(&self) -> bool {
        self.grammar.is_none() && self.sampler.needs_only_length()
    }

    /// Records the sampled token, advances the grammar by it, and returns whether the row can continue. `None`: the token
    /// is undefined, and was not recorded, since it is not the first of the step.
    fn record(&mut self, sampled: Sampled, is_first: bool) -> Option<RowVerdict> {
        let grammar = self.grammar.as_deref_mut();
        let verdict = RowVerdict::of(sampled, grammar);
        if verdict.is_failure() && !is_first {
            return None;
        }
        self.sampler.record(sampled.token);
        self.last_token = sampled.token;
        if let Some(proposer) = &mut self.proposer {
            proposer.extend(&[sampled.token]);
        }
        Some(verdict)
    }
}

impl Buffers {
    fn new(vocab_size: usize) -> Self {
        let mut scratch = DrawScratch::default();
        scratch.reserve(vocab_size);
        Self {
            scratch,
            raw_logits: Vec::new(),
        }
    }
}

fn logprobs(logits: &[f32], token: u32, wish: &LogprobWish) -> TokenLogprobs {
    token_logprobs(logits, token, wish.top, &wish.token_ids)
}
