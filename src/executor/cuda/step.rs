//! Launches a step's kernels (page table edits, forward pass, sampling, log probabilities), or its CUDA graph.

use std::ops::Range;

use crate::cuda::blocks::StepFailure;
use crate::cuda::graphs::{DecodeGraph, Logits};
use crate::cuda::layout::Lists;
use crate::cuda::masks::{MaskedWorks, Masks};
use crate::cuda::row_outputs::{LOGPROB_WORDS, SAMPLED_WORDS};
use crate::cuda::stage::{ReadbackPart, Upload};
use crate::cuda::{CudaExecutor, DeviceStep};
use crate::wanted::next_run;
use souffleur_kernels::cpu::ranks::Moment;
use souffleur_kernels::cuda::backend::{CudaBatch, CudaFailure, Tensor, TokenList};
use souffleur_kernels::cuda::driver::{DeviceBuffer, DevicePtr, DriverError};
use souffleur_kernels::cuda::sampling::{
    BeginDecodeParams, BeginPrefillParams, DecodeRow, EditTableParams, SampleParams, SampleWork,
    SamplingShape, TIE_MARGIN,
};
use souffleur_model::blocks::ReadTokens;
use souffleur_state::sampling::TokenLogprobs;
use souffleur_state::step::{RowResult, StepPlan};

/// Rows of logits, and the range of their entries in the layout's `wanted`.
pub(super) struct LogitRows {
    pub(super) logits: Logits,
    pub(super) first: usize,
    pub(super) len: usize,
}

impl CudaExecutor {
    /// Records a graph for every bucket, the largest first. Each decode runs once before it is recorded: its first
    /// launch may choose or load kernels, which is impossible while recording.
    pub(super) fn record_graphs(&mut self) -> Result<(), CudaFailure> {
        for bucket in self.graphs.buckets().to_vec().into_iter().rev() {
            let (rows, works) = (&self.arrays.decode_rows, &self.arrays.sample_works);
            // Row 0 is padding.
            self.compute.fill(rows, 0..rows.len(), 0)?;
            self.compute.fill(works, 0..works.len(), 0)?;
            for positions in [&self.arrays.rotary, &self.arrays.periods] {
                self.compute.fill(positions, 0..positions.len(), 0)?;
            }
            self.decode(bucket)?;
            self.compute.synchronize()?;
            self.record_graph(bucket)?;
        }
        Ok(())
    }

    fn record_graph(&mut self, bucket: usize) -> Result<(), CudaFailure> {
        let compute = self.compute.clone();
        let mut logits = Logits::NULL;
        let graph = compute.capture(|| {
            self.backend.inject_fault(Moment::Recording);
            logits = self.decode(bucket)?;
            Ok::<_, CudaFailure>(())
        })?;
        graph.upload(&compute)?;
        self.graphs.insert(bucket, DecodeGraph { graph, logits });
        Ok(())
    }

    /// Launches a decode of the rows in [`StepArrays`](crate::cuda::arrays::StepArrays), the work that graphs record.
    /// Returns the logits.
    fn decode(&mut self, n_rows: usize) -> Result<Logits, CudaFailure> {
        let rows = self.arrays.decode_rows.ptr().cast();
        self.begin_decode(rows, n_rows)?;
        let mut batch = self.batch(n_rows, 0);
        batch.periods = self.arrays.periods.ptr();
        if self.rotates_by_grid {
            batch.positions = self.arrays.rotary.ptr();
        }
        let hidden = self.model.forward(&mut self.backend, &batch, None);
        let all = TokenList {
            tokens: DevicePtr::NULL,
            len: n_rows,
        };
        let logits = self.model.logits(&mut self.backend, &hidden, &all);
        let rows = LogitRows {
            logits: Logits::of(&logits),
            first: 0,
            len: n_rows,
        };
        self.sample(&rows, self.arrays.sample_works.ptr().cast(), Masks::NONE)?;
        self.backend.take_failure()?;
        Ok(rows.logits)
    }

    /// Launches a step and the readback of its results.
    pub(super) fn run_step(
        &mut self,
        plan: &StepPlan,
        mut rows: Vec<RowResult>,
        lists: &Lists,
        uploaded: Upload,
        bucket: Option<usize>,
    ) -> Result<(), StepFailure> {
        let is_decode = lists.prefill_tokens.len() == 0;
        self.clock.begin(&self.compute, is_decode)?;
        let mut blocks = self.save_blocks(plan)?;
        self.begin_rows(lists, &uploaded)?;
        self.load_blocks(plan, &mut blocks)?;
        self.reserve_logprobs(lists.n_logprobs)?;
        let mut ranked = Vec::new();
        match bucket {
            Some(bucket) => self.replay(bucket, lists, &uploaded)?,
            None => self.run_eagerly(lists, &uploaded, &mut ranked, &mut rows)?,
        }
        self.uploads.release(uploaded, &self.compute)?;
        let n_wanted = self.layout.wanted.len();
        let parts = [
            ReadbackPart {
                from: &self.arrays.sampled,
                words: 0..n_wanted * SAMPLED_WORDS,
            },
            ReadbackPart {
                from: &self.arrays.logprobs,
                words: 0..lists.n_logprobs * LOGPROB_WORDS,
            },
        ];
        let lap = self.clock.end(&self.compute)?;
        let readback = self.readbacks.begin(&parts, &self.compute)?;
        let mut row_outputs = self.spare_row_outputs.pop().unwrap_or_default();
        row_outputs.append(&mut self.layout.row_outputs);
        let follows_grammars = row_outputs.iter().any(|output| output.follows_grammar);
        self.in_flight.push_back(DeviceStep {
            follows_grammars,
            has_outcomes: false,
            step: plan.step,
            rows,
            row_outputs,
            readback,
            blocks,
            lap,
            ranked,
            slice: plan.vision.clone(),
        });
        Ok(())
    }

    fn begin_rows(&self, lists: &Lists, uploaded: &Upload) -> Result<(), DriverError> {
        if let Some(starts) = &lists.starts {
            let copy = |words, to: &DeviceBuffer<u32>, at| {
                self.uploads
                    .copy_words(uploaded, words, (to, at), &self.compute)
            };
            self.samplers
                .start(starts, uploaded.start, &self.kernels, &self.compute, copy)?;
        }
        if lists.table_runs.len() == 0 {
            return Ok(());
        }
        let params = EditTableParams {
            page_table: self.backend.page_table(),
            runs: lists.table_runs.at(uploaded.start),
            pages: lists.table_pages.at(uploaded.start),
            n_runs: lists.table_runs.len() as u32,
            table_stride: self.backend.table_stride() as u32,
        };
        // SAFETY: rows and pages were checked, a row has at most the pages of the longest sequence, and the lists have
        // the lengths given; all buffers are used on this stream only.
        unsafe { self.kernels.edit_table(&self.compute, &params) }
    }

    fn replay(
        &mut self,
        bucket: usize,
        lists: &Lists,
        uploaded: &Upload,
    ) -> Result<(), CudaFailure> {
        if self.graphs.get(bucket).is_none() {
            self.record_graph(bucket)?;
        }
        let copies = [
            (lists.decode_rows.words(), &self.arrays.decode_rows),
            (lists.sample_works.words(), &self.arrays.sample_works),
        ];
        let of_some_models = [
            (&lists.rotary, &self.arrays.rotary),
            (&lists.periods, &self.arrays.periods),
        ];
        let listed = of_some_models.into_iter();
        let listed = listed.filter_map(|(list, to)| Some((list.as_ref()?.words(), to)));
        for (words, to) in copies.into_iter().chain(listed) {
            self.uploads
                .copy_words(uploaded, words, (to, 0), &self.compute)?;
        }
        let Some(recorded) = self.graphs.get(bucket) else {
            return Ok(());
        };
        // SAFETY: all buffers that the graph uses belong to this executor, which drops graphs first.
        unsafe { recorded.graph.launch(&self.compute) }?;
        let rows = LogitRows {
            logits: recorded.logits,
            first: 0,
            len: self.layout.wanted.len(),
        };
        self.find_logprobs(&rows, 0, lists, uploaded)?;
        self.backend.take_failure()
    }

    fn run_eagerly(
        &mut self,
        lists: &Lists,
        uploaded: &Upload,
        ranked: &mut Vec<(usize, TokenLogprobs)>,
        results: &mut [RowResult],
    ) -> Result<(), CudaFailure> {
        let (n_decode, n_prefill) = (lists.decode_rows.len(), lists.prefill_tokens.len());
        if n_decode + n_prefill == 0 {
            return Ok(());
        }
        self.begin_decode(lists.decode_rows.at(uploaded.start), n_decode)?;
        self.begin_prefill(lists, uploaded, n_decode)?;
        let mut batch = CudaBatch {
            prefill_segments: lists.prefill_segments.at(uploaded.start),
            tiles: lists.tiles.at(uploaded.start),
            n_tiles: lists.tiles.len(),
            ..self.batch(n_decode, n_prefill)
        };
        if let Some(rotary) = &lists.rotary {
            batch.positions = rotary.at(uploaded.start);
        }
        if let Some(periods) = &lists.periods {
            batch.periods = periods.at(uploaded.start);
        }
        self.backend.place_vectors(&mut self.layout.prompt_embeds);
        self.backend.place_grid_tokens(&mut self.layout.grid_tokens);
        let hidden = self.forward(&batch, lists, uploaded);
        let masked = self.masks_of_step(lists)?;
        let (works, masks) = match &masked {
            None => (lists.sample_works.at(uploaded.start), Masks::NONE),
            Some(masked) => (masked.works, masked.masks),
        };
        let mut first_work = 0;
        let (mut next, at_once) = (0, self.options.logit_rows());
        while let Some(Range { start: first, end }) = next_run(&self.layout.wanted, next, at_once) {
            next = end;
            let tokens = match lists.reads {
                Some(_) if lists.wanted_indices.len() == 0 => DevicePtr::NULL,
                Some(_) => lists.wanted_indices.at(uploaded.start).add(first),
                None => lists.wanted_tokens.at(uploaded.start).add(first),
            };
            let len = end - first;
            let list = TokenList { tokens, len };
            if self.layout.wanted[first].pools {
                self.pool(first..end, &hidden, &list, results)?;
                continue;
            }
            let logits = self.model.logits(&mut self.backend, &hidden, &list);
            self.backend.take_failure()?;
            let rows = LogitRows {
                logits: Logits::of(&logits),
                first,
                len: list.len,
            };
            self.sample(&rows, works.add(first), masks)?;
            first_work = self.find_logprobs(&rows, first_work, lists, uploaded)?;
            if lists.needs_host {
                self.rank_on_host(&rows, &logits, ranked)?;
            }
        }
        if let Some(masked) = masked {
            self.mask_uploads.release(masked.uploaded, &self.compute)?;
        }
        self.backend.take_failure()
    }

    /// Waits for the step, reads hidden states, and adds them to the embeddings of their rows.
    fn pool(
        &mut self,
        range: Range<usize>,
        hidden: &Tensor,
        tokens: &TokenList,
        results: &mut [RowResult],
    ) -> Result<(), CudaFailure> {
        let states = self.model.states(&mut self.backend, hidden, tokens);
        self.backend.take_failure()?;
        let width = states.width();
        let states = self.backend.read_rows(&states)?;
        for (index, state) in range.zip(states.chunks_exact(width)) {
            let wanted = self.layout.wanted[index];
            let row = self.layout.row_outputs[index].row;
            self.rows
                .pool(row, wanted.position, state, &mut results[wanted.work]);
        }
        Ok(())
    }

    /// The masks of a step, if one of its rows follows a grammar.
    fn masks_of_step(&mut self, lists: &Lists) -> Result<Option<MaskedWorks>, CudaFailure> {
        if !self.grammars.mark(&mut self.layout.row_outputs) {
            return Ok(None);
        }
        let words = &self.layout.lists.words()[lists.sample_works.words()];
        let works: Vec<SampleWork> = bytemuck::cast_slice(words).to_vec();
        self.masked_works(works).map(Some)
    }

    /// Returns the residual stream of all tokens, or of the tokens that are read.
    fn forward(&mut self, batch: &CudaBatch, lists: &Lists, uploaded: &Upload) -> Tensor {
        let n_tokens = self.layout.wanted.len();
        let tokens = TokenList {
            tokens: lists.wanted_tokens.at(uploaded.start),
            len: n_tokens,
        };
        let read_batch = lists.reads.as_ref().map(|segments| CudaBatch {
            decode_segments: segments.at(uploaded.start),
            ..self.batch(n_tokens, 0)
        });
        let reads = read_batch.as_ref().map(|batch| ReadTokens {
            n_tokens,
            tokens: &tokens,
            batch,
        });
        self.model.forward(&mut self.backend, batch, reads)
    }

    fn batch(&self, n_decode: usize, n_prefill: usize) -> CudaBatch {
        CudaBatch {
            n_tokens: n_decode + n_prefill,
            tokens: self.arrays.tokens.ptr(),
            positions: self.arrays.positions.ptr(),
            periods: DevicePtr::NULL,
            slots: self.arrays.slots.ptr(),
            decode_segments: self.arrays.decode_segments.ptr(),
            n_decode,
            prefill_segments: DevicePtr::NULL,
            tiles: DevicePtr::NULL,
            n_tiles: 0,
        }
    }

    fn begin_decode(&self, rows: DevicePtr<DecodeRow>, n_rows: usize) -> Result<(), DriverError> {
        let params = BeginDecodeParams {
            tokens: self.arrays.tokens.ptr(),
            positions: self.arrays.positions.ptr(),
            slots: self.arrays.slots.ptr(),
            segments: self.arrays.decode_segments.ptr(),
            rows,
            states: self.samplers.states(),
            page_table: self.backend.page_table(),
            n_rows: n_rows as u32,
            table_stride: self.backend.table_stride() as u32,
            page_size: self.options.page_size as u32,
            reserved: 0,
        };
        // SAFETY: the arrays have space for all rows, and the plan's rows and positions were checked; all buffers are
        // used on this stream only.
        unsafe { self.kernels.begin_decode(&self.compute, &params) }
    }

    fn begin_prefill(
        &self,
        lists: &Lists,
        uploaded: &Upload,
        first_token: usize,
    ) -> Result<(), DriverError> {
        let params = BeginPrefillParams {
            tokens: self.arrays.tokens.ptr(),
            positions: self.arrays.positions.ptr(),
            slots: self.arrays.slots.ptr(),
            segments: lists.prefill_segments.at(uploaded.start),
            uploaded: lists.prefill_tokens.at(uploaded.start),
            page_table: self.backend.page_table(),
            first_token: first_token as u32,
            n_tokens: lists.prefill_tokens.len() as u32,
            n_segments: lists.prefill_segments.len() as u32,
            table_stride: self.backend.table_stride() as u32,
            page_size: self.options.page_size as u32,
            reserved: 0,
        };
        // SAFETY: as in `begin_decode`; the step was refused if it has more tokens than the arrays.
        unsafe { self.kernels.begin_prefill(&self.compute, &params) }
    }

    fn sample(
        &mut self,
        rows: &LogitRows,
        works: DevicePtr<SampleWork>,
        masks: Masks,
    ) -> Result<(), CudaFailure> {
        let shape = self.sampling_shape(rows.len);
        let peaks = self.backend.scratch(shape.peaks_bytes);
        let block_sums = self.backend.scratch(shape.block_sums_bytes);
        let classes = self.backend.scratch(shape.classes_bytes);
        self.backend.take_failure()?;
        let params = SampleParams {
            out: self.arrays.sampled.at(rows.first * SAMPLED_WORDS).cast(),
            logits: rows.logits.start,
            works,
            peaks: peaks.bytes(),
            block_sums: block_sums.bytes(),
            classes: classes.bytes(),
            tie_margin: TIE_MARGIN,
            stride: rows.logits.stride,
            n_works: rows.len as u32,
            chunk: shape.chunk,
            n_chunks: shape.n_chunks,
            masks: masks.words,
            mask_words: masks.mask_words as u32,
            ..self.samplers.sample_params()
        };
        // SAFETY: each row of logits has a work and a place for its result, and the workspaces have the sizes of
        // `shape`; all buffers are used on this stream only.
        Ok(unsafe { self.kernels.sample(&self.compute, &params) }?)
    }

    pub(super) fn sampling_shape(&self, n_rows: usize) -> SamplingShape {
        let multiprocessors = self.device.info().multiprocessors;
        SamplingShape::new(n_rows, self.vocab_size, multiprocessors)
    }
}
