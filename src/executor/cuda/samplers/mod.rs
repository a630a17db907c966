//! Keeps the sampling state of rows on the device: parameters, token counts, biases and banned tokens.

use std::sync::Arc;

use crate::cuda::list_buffer::{ListBuffer, Section};
use souffleur_base::error::StepError;
use souffleur_base::ids::RowId;
use souffleur_kernels::cuda::arena::{Arena, Part};
use souffleur_kernels::cuda::driver::{Device, DeviceBuffer, DevicePtr, DriverError, Stream};
use souffleur_kernels::cuda::sampling::{
    BeginRowsParams, CountParams, CountRun, NONE, RowBegin, RowSampler, RowState, SampleParams,
    SamplingKernels, TokenBias,
};
use souffleur_state::sampling::SamplingParams;
use souffleur_state::step::RowStart;

/// Initial number of count slots; it is doubled when too small.
const COUNT_SLOTS: usize = 8;
/// Memory for the biases and bans of all rows.
const LIST_BYTES: usize = 4 << 20;

pub(super) struct RowSamplers {
    samplers: DeviceBuffer<RowSampler>,
    states: DeviceBuffer<RowState>,
    /// `[n_count_slots, vocab]`.
    counts: DeviceBuffer<u32>,
    n_count_slots: usize,
    free_slots: Vec<u32>,
    list_memory: DeviceBuffer<u32>,
    list_arena: Arena,
    row_memory: Vec<RowMemory>,
    vocab_size: usize,
    eos_ids: Arc<[u32]>,
}

/// The device memory and end tokens of a row, until its next start.
#[derive(Default)]
struct RowMemory {
    count_slot: Option<u32>,
    _biases: Option<Part>,
    _bans: Option<Part>,
    /// The tokens that end the row's output, if they are banned until it has `min_new_tokens`.
    banned_ends: Vec<u32>,
}

pub(super) struct StartLists {
    begins: Section<RowBegin>,
    runs: Section<CountRun>,
    counted_tokens: Section<u32>,
    max_counted: usize,
    /// Biases and bans to be copied: the uploaded words, and their first index in `list_memory`.
    copies: Vec<(Section<u32>, usize)>,
}

impl RowSamplers {
    pub(super) fn new(
        device: &Device,
        n_rows: usize,
        vocab_size: usize,
        eos_ids: Arc<[u32]>,
    ) -> Result<Self, DriverError> {
        let n_count_slots = COUNT_SLOTS.min(n_rows);
        Ok(Self {
            samplers: device.alloc(n_rows)?,
            states: device.alloc(n_rows)?,
            counts: device.alloc(n_count_slots * vocab_size)?,
            n_count_slots,
            free_slots: (0..n_count_slots as u32).rev().collect(),
            list_memory: device.alloc(LIST_BYTES / size_of::<u32>())?,
            list_arena: Arena::new(LIST_BYTES),
            row_memory: (0..n_rows).map(|_| RowMemory::default()).collect(),
            vocab_size,
            eos_ids,
        })
    }

    /// The tokens that a row does not sample before its output has `min_new_tokens`.
    pub(super) fn bans(&self, row: RowId) -> &[u32] {
        &self.row_memory[row.index()].banned_ends
    }

    pub(super) fn states(&self) -> DevicePtr<RowState> {
        self.states.ptr()
    }

    /// The parameters of a launch that do not depend on the step.
    pub(super) fn sample_params(&self) -> SampleParams {
        SampleParams {
            samplers: self.samplers.ptr(),
            states: self.states.ptr(),
            counts: self.counts.ptr(),
            biases: self.list_memory.ptr().cast(),
            bans: self.list_memory.ptr(),
            vocab: self.vocab_size as u32,
            ..SampleParams::default()
        }
    }

    /// Reserves token counts for starting rows that have penalties. Returns whether the counts' address has changed.
    pub(super) fn reserve_counts(
        &mut self,
        starts: &[RowStart],
        stream: &Stream,
    ) -> Result<bool, DriverError> {
        for start in starts {
            let row_memory = &mut self.row_memory[start.row.index()];
            self.free_slots.extend(row_memory.count_slot.take());
        }
        let counting = starts.iter().filter(|start| start.sampling.has_penalty());
        let missing = counting.count().saturating_sub(self.free_slots.len());
        if missing == 0 {
            return Ok(false);
        }
        let n_count_slots = (self.n_count_slots + missing).next_power_of_two();
        let counts = stream.device().alloc(n_count_slots * self.vocab_size)?;
        stream.copy(&counts, 0, &self.counts, 0..self.counts.len())?;
        stream.synchronize()?;
        self.counts = counts;
        let added = self.n_count_slots as u32..n_count_slots as u32;
        self.free_slots.extend(added.rev());
        self.n_count_slots = n_count_slots;
        Ok(true)
    }

    /// Writes the lists of rows that start. [`Self::reserve_counts`] must have been called for these rows.
    pub(super) fn lay_out(
        &mut self,
        starts: &[RowStart],
        lists: &mut ListBuffer,
    ) -> Result<StartLists, StepError> {
        let (mut begins, mut runs, mut copies) = (Vec::new(), Vec::new(), Vec::new());
        let (mut n_counted, mut max_counted) = (0, 0);
        for start in starts {
            let sampler = self.sampler(start, lists, &mut copies)?;
            let (prompt, output) = start.counted_tokens();
            let (n_prompt, n_output) = (prompt.len() as u32, output.len() as u32);
            if sampler.count_slot != NONE {
                runs.push(CountRun {
                    slot: sampler.count_slot,
                    first_token: n_counted,
                    n_prompt,
                    n_output,
                });
                n_counted += n_prompt + n_output;
                max_counted = max_counted.max(prompt.len() + output.len());
            }
            begins.push(RowBegin {
                row: start.row.get(),
                n_output,
                sampler,
            });
        }
        let first_counted = lists.begin();
        for start in starts.iter().filter(|start| start.sampling.has_penalty()) {
            let (prompt, output) = start.counted_tokens();
            lists.extend(prompt.iter().chain(output).copied());
        }
        let counted_tokens = lists.end(first_counted);
        Ok(StartLists {
            begins: lists.list(begins),
            runs: lists.list(runs),
            counted_tokens,
            max_counted,
            copies,
        })
    }

    fn sampler(
        &mut self,
        start: &RowStart,
        lists: &mut ListBuffer,
        copies: &mut Vec<(Section<u32>, usize)>,
    ) -> Result<RowSampler, StepError> {
        let params = &*start.sampling;
        let biases = sorted_biases(params);
        let bans = params.banned_ends(&self.eos_ids, self.vocab_size);
        let biases = self.allocate(bytemuck::cast_slice(&biases), lists, copies)?;
        let banned_ends = bans;
        let bans = self.allocate(&banned_ends, lists, copies)?;
        let count_slot = params.has_penalty().then(|| {
            let slot = self.free_slots.pop();
            slot.expect("slots must be reserved for all rows that start")
        });
        let first = |list: &Option<(Part, usize)>, bytes: usize| {
            list.as_ref()
                .map_or(0, |(part, _)| (part.offset() / bytes) as u32)
        };
        let len = |list: &Option<(Part, usize)>| list.as_ref().map_or(0, |list| list.1);
        let temperature = f64::from(params.temperature);
        let sampler = RowSampler {
            temperature,
            inverse_temperature: temperature.recip(),
            seed: params.seed(),
            top_p: params.top_p,
            min_p: params.min_p,
            frequency_penalty: params.frequency_penalty,
            presence_penalty: params.presence_penalty,
            repetition_penalty: params.repetition_penalty,
            top_k: params.rank_limit().unwrap_or(u32::MAX),
            is_greedy: u32::from(params.is_greedy()),
            min_new_tokens: params.min_new_tokens,
            count_slot: count_slot.unwrap_or(NONE),
            first_bias: first(&biases, size_of::<TokenBias>()),
            n_biases: (len(&biases) * size_of::<u32>() / size_of::<TokenBias>()) as u32,
            first_ban: first(&bans, size_of::<u32>()),
            n_bans: len(&bans) as u32,
            reserved: 0,
        };
        self.row_memory[start.row.index()] = RowMemory {
            count_slot,
            _biases: biases.map(|list| list.0),
            _bans: bans.map(|list| list.0),
            banned_ends,
        };
        Ok(sampler)
    }

    /// Allocates device memory for a list, and adds the list to the uploads. Returns memory and number of words; `None`
    /// for an empty list.
    fn allocate(
        &mut self,
        list: &[u32],
        lists: &mut ListBuffer,
        copies: &mut Vec<(Section<u32>, usize)>,
    ) -> Result<Option<(Part, usize)>, StepError> {
        if list.is_empty() {
            return Ok(None);
        }
        let part = self.list_arena.take(size_of_val(list)).ok_or_else(|| {
            StepError::Rejected(format!(
                "the logit biases and stop tokens of all running requests take more than {LIST_BYTES} bytes on the \
                 device: send fewer of them at once"
            ))
        })?;
        let uploaded = lists.list(list.iter().copied());
        copies.push((uploaded, part.offset() / size_of::<u32>()));
        Ok(Some((part, list.len())))
    }

    /// Starts rows on the device. `copy` copies a range of uploaded words to an index of a buffer.
    pub(super) fn start(
        &self,
        lists: &StartLists,
        uploaded: DevicePtr<u32>,
        kernels: &SamplingKernels,
        stream: &Stream,
        copy: impl Fn(std::ops::Range<usize>, &DeviceBuffer<u32>, usize) -> Result<(), DriverError>,
    ) -> Result<(), DriverError> {
        for (section, at) in &lists.copies {
            copy(section.words(), &self.list_memory, *at)?;
        }
        let params = BeginRowsParams {
            samplers: self.samplers.ptr(),
            states: self.states.ptr(),
            begins: lists.begins.at(uploaded),
            n_begins: lists.begins.len() as u32,
            reserved: 0,
        };
        // SAFETY: rows and slots are in bounds of their arrays, which live as long as `self` and are used on this
        // stream only; the uploaded lists have the lengths given.
        unsafe { kernels.begin_rows(stream, &params) }?;
        if lists.runs.len() == 0 {
            return Ok(());
        }
        let params = CountParams {
            counts: self.counts.ptr(),
            runs: lists.runs.at(uploaded),
            tokens: lists.counted_tokens.at(uploaded),
            n_runs: lists.runs.len() as u32,
            vocab: self.vocab_size as u32,
        };
        // SAFETY: as above.
        unsafe { kernels.count_tokens(stream, &params, lists.max_counted) }
    }
}

fn sorted_biases(params: &SamplingParams) -> Vec<TokenBias> {
    let biases = params.logit_bias.iter();
    let mut biases: Vec<TokenBias> = biases
        .map(|&(token, bias)| TokenBias { token, bias })
        .collect();
    biases.sort_by_key(|bias| bias.token);
    biases
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
