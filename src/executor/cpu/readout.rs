//! Computes sampled tokens and log probabilities from the model's output in the CPU executor.

use std::ops::Range;

use super::argmax::{Part, argmax, choose};
use super::{CpuExecutor, LogitsProbe, RowSampling};
use crate::rows::Rows;
use crate::wanted::{WantedOutput, find_wanted, next_run};
use souffleur_base::ids::RowId;
use souffleur_kernels::cpu::Tensor;
use souffleur_state::sampling::{
    DrawScratch, Peak, RowSampler, Sampled, TokenMask, token_logprobs,
};
use souffleur_state::sampling::{LogprobWish, TokenLogprobs};
use souffleur_state::step::{RowResult, RowVerdict, StepPlan};

/// Rows of logits that are computed at once. A batch of decodes fits, and a long prompt takes little memory.
pub const LOGIT_ROWS: usize = 64;

#[derive(Clone, Default)]
struct RowOutput {
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
    /// Buffers of each thread.
    buffers: Vec<Buffers>,
}

#[derive(Default)]
struct Buffers {
    scratch: DrawScratch,
    /// A copy of one row's logits, from before the sampler changes them.
    raw_logits: Vec<f32>,
}

impl Readout {
    pub(super) fn find(&mut self, plan: &StepPlan, rows: &Rows) {
        find_wanted(plan, 0..plan.rows.len(), rows, &mut self.wanted);
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
            self.read(plan, wanted, &mut logits, &mut readout);
            self.store_outputs(plan, wanted, results, &mut readout);
        }
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
        self.prepare_masks(plan, wanted);
        readout.outputs.clear();
        readout.outputs.resize(wanted.len(), RowOutput::default());
        readout.greedy.clear();
        for (index, wanted) in wanted.iter().enumerate() {
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
        if readout.greedy.len() == wanted.len() {
            return;
        }
        if readout.buffers.is_empty() {
            let buffers = (0..self.backend.n_threads()).map(|_| Buffers::new(vocab_size));
            readout.buffers.extend(buffers);
        }
        let (isa, rows, sampling) = (self.backend.isa(), &self.rows, &self.sampling);
        let read = |bufs: &mut Buffers, index: usize, logits: &mut [f32], out: &mut RowOutput| {
            if out.sampled.is_some() {
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
            let sampled = choose(isa, &row.sampler, logits, row.mask(), &mut bufs.scratch);
            out.sampled = Some(sampled);
            out.logprobs = wish.map(|wish| logprobs(&bufs.raw_logits, sampled.token, wish));
        };
        let (buffers, outputs) = (&mut readout.buffers, &mut readout.outputs);
        self.backend.read_rows(logits, buffers, outputs, &read);
    }

    fn store_outputs(
        &mut self,
        plan: &StepPlan,
        wanted: &[WantedOutput],
        results: &mut [RowResult],
        readout: &mut Readout,
    ) {
        for (wanted, output) in wanted.iter().zip(readout.outputs.drain(..)) {
            let result = &mut results[wanted.work];
            if let Some(sampled) = output.sampled {
                let row = self.sampling[plan.rows[wanted.work].row.index()]
                    .as_mut()
                    .expect(STARTED);
                result.verdict = row.record(sampled);
                result.tokens.push(sampled.token);
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

    /// Records the sampled token, advances the grammar by it, and returns whether the row can continue.
    fn record(&mut self, sampled: Sampled) -> RowVerdict {
        self.sampler.record(sampled.token);
        self.last_token = sampled.token;
        let grammar = self.grammar.as_deref_mut();
        RowVerdict::of(sampled, grammar)
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
