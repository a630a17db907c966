//! The CUDA executor: runs steps on one GPU.
//!
//! Three streams, ordered by events: one computes, one copies the inputs of steps to the device, and one copies results
//! back. A step is launched without waiting for the previous step's results: the tokens sampled last (the inputs of
//! decodes), the page table and the samplers are on the device.
//!
//! Decode steps run as CUDA graphs, one for each bucket of batch sizes; rows on the dummy page pad steps to buckets.
//! Steps with prefills, and the rare decodes that graphs do not cover, are launched kernel by kernel.
//!
//! With a KV store, two more streams copy KV blocks: see `blocks.rs`.

// Kernel launches take raw addresses; each launch states why they are valid.
#![allow(unsafe_code)]

mod arrays;
mod blocks;
mod clock;
mod families;
mod grammars;
mod graphs;
mod layout;
mod list_buffer;
mod logprobs;
mod masks;
mod options;
mod pinned;
mod ranks;
mod rotary;
mod row_outputs;
mod samplers;
mod stage;
mod step;
mod tower;

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;

use self::arrays::StepArrays;
pub use self::blocks::staging_bytes;
use self::blocks::{BlockCopier, StepBlocks};
use self::clock::StepClock;
pub use self::families::check_model;
use self::grammars::RowGrammars;
use self::graphs::Graphs;
use self::layout::{Layout, StepShape};
use self::options::check_options;
pub use self::options::{CudaOptions, DtypeOrigin, element_of};
pub use self::ranks::{LoadModules, load_modules, load_ranks};
use self::row_outputs::{Logprobs, RowOutput, SAMPLED_WORDS, read_logprobs};
use self::samplers::RowSamplers;
use self::stage::{N_SLOTS, Readback, ReadbackRing, UploadRing};
use crate::check::Limits;
use crate::cpu::HostTower;
use crate::ranks::LoadFailure;
use crate::results::ResultBuffers;
use crate::rows::Rows;
use crate::vision::EncodedImage;
use crate::{DeviceLost, Executor, Launch};
use souffleur_base::beat::Beat;
use souffleur_base::error::{LoadError, StepError};
use souffleur_base::ids::StepId;
use souffleur_kernels::cuda::backend::{
    CudaBackend, CudaFailure, CudaSizes, check_layout, check_periods,
};
use souffleur_kernels::cuda::driver::{Device, DriverError, LaunchState, Priority, Stream};
use souffleur_kernels::cuda::pack::Modules;
use souffleur_kernels::cuda::params::ElementType;
use souffleur_kernels::cuda::ranks::CudaLink;
use souffleur_kernels::cuda::sampling::{MAX_TOP, Sampled, SamplingKernels, TokenLogprob};
use souffleur_kernels::dtype::Dtype;
use souffleur_kernels::shard::Rank;
use souffleur_model::blocks::Decoder;
use souffleur_model::config::ModelConfig;
use souffleur_model::loader::{Checkpoint, LoadProgress, Loader};
use souffleur_state::sampling::TokenLogprobs;
use souffleur_state::step::{
    PIPELINE_DEPTH, RowResult, StepOutput, StepPlan, StepRow, VisionSlice,
};

/// Initial words of an upload slot for a step's lists.
const UPLOAD_WORDS: usize = 64 << 10;
/// Initial words of an upload slot for masks.
const MASK_WORDS: usize = 4 << 10;

pub struct CudaExecutor {
    /// Dropped first: graphs refer to buffers of all other fields, and to the collectives of the backend.
    graphs: Graphs,
    /// Dropped before the weights: freeing memory waits for the GPU, which may wait for other ranks.
    backend: CudaBackend,
    model: Decoder<CudaBackend>,
    compute: Arc<Stream>,
    kernels: SamplingKernels,
    samplers: RowSamplers,
    arrays: StepArrays,
    uploads: UploadRing,
    readbacks: ReadbackRing,
    grammars: RowGrammars,
    mask_uploads: UploadRing,
    clock: StepClock,
    rows: Rows,
    layout: Layout,
    results: ResultBuffers,
    in_flight: VecDeque<DeviceStep>,
    /// Cleared lists, which later steps reuse.
    spare_row_outputs: Vec<Vec<RowOutput>>,
    /// Whether a step was lost: the CUDA context is then checked before the next step. It stays set if the context is
    /// lost.
    is_suspect: bool,
    device: Device,
    options: CudaOptions,
    vocab_size: usize,
    /// Whether the model has M-RoPE.
    rotates_by_grid: bool,
    /// Positions whose queries have one factor; `None` if queries are not scaled.
    query_period: Option<u32>,
    /// `None` without a vision tower.
    tower: Option<HostTower>,
    /// Dropped last: the memory of the store's buffers must outlive the CUDA context in which it is pinned.
    blocks: Option<BlockCopier>,
}

struct DeviceStep {
    step: StepId,
    rows: Vec<RowResult>,
    row_outputs: Vec<RowOutput>,
    readback: Readback,
    blocks: StepBlocks,
    lap: usize,
    /// Log probabilities that the host ranked, each with its index in `row_outputs`.
    ranked: Vec<(usize, TokenLogprobs)>,
    /// Whether a grammar constrains a row of the step.
    follows_grammars: bool,
    /// Whether the outcomes of the rows are recorded, and their grammars have advanced.
    has_outcomes: bool,
    /// The work of the vision tower, which is done when the step is finished.
    slice: Option<Box<VisionSlice>>,
}

impl CudaExecutor {
    /// Loads the model in a folder: checks it, copies the weights, allocates the pool and records the graphs.
    pub fn load(
        device: Device,
        dir: &Path,
        options: &CudaOptions,
        progress: LoadProgress<'_>,
    ) -> Result<Self, LoadError> {
        let modules = load_modules(&device)?;
        Self::load_with(device, &modules, dir, options, progress)
    }

    /// Like [`Self::load`], with kernels from the caller.
    pub fn load_with(
        device: Device,
        modules: &Modules,
        dir: &Path,
        options: &CudaOptions,
        progress: LoadProgress<'_>,
    ) -> Result<Self, LoadError> {
        let checkpoint = open(dir, options)?;
        let whole = (&checkpoint, Rank::ONLY);
        let loaded = Self::of_checkpoint((device, modules), whole, options, |_| Ok(None), progress);
        loaded.map_err(LoadFailure::into_error)
    }

    /// Loads a rank's part of a model, and then calls `join` to connect the rank to the others.
    fn of_checkpoint(
        (device, modules): (Device, &Modules),
        (checkpoint, rank): (&Checkpoint, Rank),
        options: &CudaOptions,
        join: impl FnOnce(&Device) -> Result<Option<CudaLink>, LoadFailure>,
        progress: LoadProgress<'_>,
    ) -> Result<Self, LoadFailure> {
        let config = &checkpoint.config;
        check_model(config)?;
        check_options(options, config.vocab_size)?;
        let kv = checkpoint.kv_layout();
        check_layout(&kv).map_err(to_load_error)?;
        if let Some(scale) = config.query_scale {
            check_periods(scale, options.context_tokens).map_err(to_load_error)?;
        }
        let sizes = CudaSizes {
            element: options.element,
            n_pages: options.n_pages,
            page_size: options.page_size,
            n_rows: options.max_rows + 1,
            context_tokens: options.context_tokens,
            step_tokens: options.step_tokens,
            logit_rows: options.logit_rows(),
            gemm: options.gemm,
            weights: (
                checkpoint.weights_bytes(None, |_, _| None) as usize,
                config.tensors().len() + 1,
            ),
            rank,
        };
        let shape = config.shape();
        let compute = Arc::new(device.stream(Priority::High).map_err(to_load_error)?);
        let mut backend = CudaBackend::new(&device, compute.clone(), modules, &shape, &sizes)
            .map_err(to_load_error)?;
        let model =
            souffleur_model::blocks::load(&mut Loader::new(checkpoint, &mut backend, progress))?;
        let free_bytes = backend.end_loading().map_err(to_load_error)?;
        if let Some(plan) = &options.plan {
            plan.check_loaded(free_bytes)?;
        }
        // NCCL takes memory of the plan's reserve.
        if let Some(link) = join(&device)? {
            let joined = backend.join(link, sizes.logit_rows);
            joined.map_err(to_load_error)?;
        }
        backend
            .take_memory(&shape, &kv, &sizes)
            .map_err(to_load_error)?;
        if let Some(scale) = config.query_scale {
            backend.prepare_factors(scale).map_err(to_load_error)?;
        }
        let parts = (model, backend, compute);
        let made = Self::new(device, modules, options, config, parts);
        made.map_err(|failure| to_load_error(failure).into())
    }

    fn new(
        device: Device,
        modules: &Modules,
        options: &CudaOptions,
        config: &ModelConfig,
        (model, backend, compute): ModelParts,
    ) -> Result<Self, CudaFailure> {
        let vocab_size = config.vocab_size;
        let limits = Limits {
            n_pages: options.n_pages,
            page_size: options.page_size,
            row_pages: backend.table_stride(),
            vocab_size,
            max_room: 1,
            hidden_size: config.hidden_size,
            image_width: config.images().vector_width(config.hidden_size),
            n_state_slots: None,
            windows: None,
            long_above: None,
            bidirectional: None,
            block_tokens: None,
        };
        let n_rows = options.max_rows + 1;
        let readback_words = SAMPLED_WORDS * options.logit_rows();
        let mut executor = Self {
            graphs: Graphs::new(options.graph_rows.min(options.max_rows)),
            backend,
            model,
            compute,
            kernels: SamplingKernels::load(modules)?,
            samplers: RowSamplers::new(&device, n_rows, vocab_size, options.eos_token_ids.clone())?,
            arrays: StepArrays::new(&device, options)?,
            uploads: UploadRing::new(&device, N_SLOTS, UPLOAD_WORDS)?,
            readbacks: ReadbackRing::new(&device, N_SLOTS, readback_words)?,
            grammars: RowGrammars::new(n_rows),
            mask_uploads: UploadRing::new(&device, N_SLOTS, MASK_WORDS)?,
            clock: StepClock::new(&device)?,
            blocks: None,
            rows: Rows::new(options.max_rows, limits),
            layout: Layout::default(),
            results: ResultBuffers::default(),
            in_flight: VecDeque::with_capacity(PIPELINE_DEPTH),
            spare_row_outputs: Vec::new(),
            is_suspect: false,
            device,
            options: options.clone(),
            vocab_size,
            rotates_by_grid: config.mrope.is_some(),
            query_period: config.query_scale.map(|scale| scale.period),
            tower: None,
        };
        executor.record_graphs()?;
        Ok(executor)
    }

    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Checks the CUDA context, which this executor cannot renew: after a lost step by a call of the driver.
    fn check_context(&mut self) -> Result<(), DeviceLost> {
        let lost = |error: &str| DeviceLost(format!("the GPU's context is lost: {error}"));
        if let Some(error) = self.device.loss() {
            return Err(lost(error));
        }
        if self.is_suspect {
            self.device.synchronize().map_err(|error| {
                self.device.lose(&error);
                lost(&error.to_string())
            })?;
            self.is_suspect = false;
        }
        Ok(())
    }

    fn begin(&mut self, plan: &StepPlan) -> Result<(), StepError> {
        if self.in_flight.len() == PIPELINE_DEPTH {
            return Err(StepError::Rejected(format!(
                "the executor already has {PIPELINE_DEPTH} steps in flight, which is the limit"
            )));
        }
        self.rows.check(plan)?;
        let (n_decode, n_prefill) = self.layout.sort(plan);
        let n_tokens = n_decode + n_prefill;
        let limit = self.options.step_tokens;
        if n_tokens > limit {
            return Err(StepError::Rejected(format!(
                "a step has {n_tokens} tokens, but the GPU's buffers hold {limit}: split prompts with --chunked-prefill-size, \
                 or raise --max-prefill-tokens"
            )));
        }
        let not_launched = |error: DriverError| error.into_step_error(LaunchState::Nothing);
        let moved = self
            .samplers
            .reserve_counts(&plan.starts, &self.compute)
            .map_err(not_launched)?;
        if moved {
            // Graphs refer to the old address of the counts.
            self.graphs.clear();
        }
        let bucket = if n_prefill == 0 && plan.rows.iter().all(|row| self.graph_covers(row)) {
            self.graphs.bucket(n_decode)
        } else {
            None
        };
        let shape = StepShape {
            queries_per_tile: self.backend.queries_per_tile(),
            vocab_size: self.vocab_size,
            padded_rows: bucket.unwrap_or(0),
            logit_rows: self.options.logit_rows(),
            read_rows: self.options.read_rows().min(n_tokens.saturating_sub(1)),
            rotates_by_grid: self.rotates_by_grid,
            query_period: self.query_period,
        };
        let lists = self
            .layout
            .lay_out(plan, &mut self.rows, &mut self.samplers, &shape)?;
        // From here on the rows have advanced, so the same plan cannot be launched again.
        self.start_grammars(plan)
            .map_err(|error| self.lose(error))?;
        let words = self.layout.lists.words();
        let uploaded = self.uploads.upload(words, &self.compute);
        let uploaded = uploaded.map_err(|error| self.lose(error))?;
        let rows = self.results.begin(plan);
        self.run_step(plan, rows, &lists, uploaded, bucket)
            .map_err(|failure| self.lose(failure))
    }

    /// Whether a graph can run a row's work: it samples without a grammar, and kernels compute its log probabilities.
    fn graph_covers(&self, row: &StepRow) -> bool {
        let top = row.logprobs.as_ref().map_or(0, |wish| wish.top);
        row.sample && top.min(self.vocab_size as u32) <= MAX_TOP && !self.grammars.constrains(row)
    }

    fn lose(&mut self, failure: impl std::fmt::Display) -> StepError {
        self.is_suspect = true;
        self.rows.lose();
        self.forget_image();
        self.clock.skip_next_idle();
        StepError::Lost(failure.to_string())
    }

    fn take_results(&mut self, mut step: DeviceStep) -> Result<StepOutput, DriverError> {
        let words = self.readbacks.words(&step.readback)?;
        self.clock.measure(step.lap);
        let (sampled, logprobs) = words.split_at(step.row_outputs.len() * SAMPLED_WORDS);
        let sampled: &[Sampled] = bytemuck::cast_slice(sampled);
        let logprobs: &[TokenLogprob] = bytemuck::cast_slice(logprobs);
        if !step.has_outcomes {
            step.record_outcomes(sampled, &mut self.grammars);
        }
        let mut ranked = step.ranked.into_iter().peekable();
        for (index, (output, sampled)) in step.row_outputs.iter().zip(sampled).enumerate() {
            let result = &mut step.rows[output.work];
            if output.sample {
                result.tokens.push(sampled.token);
            }
            let found = match output.logprobs {
                Logprobs::Unwanted => None,
                Logprobs::Host { .. } => ranked
                    .next_if(|found| found.0 == index)
                    .map(|found| found.1),
                Logprobs::Device {
                    first_out,
                    top,
                    n_ids,
                } => Some(read_logprobs(&logprobs[first_out..], top, n_ids)),
            };
            if let (Some(found), Some(logprobs)) = (found, &mut result.logprobs) {
                if output.sample {
                    logprobs.output.push(found)
                } else {
                    logprobs.input.push(found)
                }
            }
        }
        step.row_outputs.clear();
        self.spare_row_outputs.push(step.row_outputs);
        Ok(StepOutput {
            step: step.step,
            rows: step.rows,
        })
    }
}

fn open(dir: &Path, options: &CudaOptions) -> Result<Checkpoint, LoadError> {
    let dtype = match options.element {
        ElementType::F32 => Dtype::F32,
        ElementType::Bf16 => Dtype::BF16,
    };
    Checkpoint::open(dir, Some(dtype), options.load_format)
}

type ModelParts = (Decoder<CudaBackend>, CudaBackend, Arc<Stream>);

impl Executor for CudaExecutor {
    fn run(&mut self, plan: &StepPlan) -> Result<StepOutput, StepError> {
        self.launch(plan)?;
        self.finish()
    }

    fn launch(&mut self, plan: &StepPlan) -> Result<Launch, StepError> {
        self.check_context()
            .map_err(|lost| StepError::Lost(lost.to_string()))?;
        self.check_slice(plan)?;
        if let Some(tower) = &mut self.tower {
            tower.forget_unwanted();
        }
        self.begin(plan)?;
        Ok(Launch::UnderWay)
    }

    fn is_finished(&mut self) -> bool {
        // A failed step counts as finished: `finish` reports the failure. It also runs the slice.
        self.in_flight.front().is_none_or(|step| {
            let is_copied = self.readbacks.is_copied(&step.readback);
            let is_done =
                is_copied.unwrap_or(true) && step.blocks.are_saves_copied().unwrap_or(true);
            is_done || step.slice.is_some()
        })
    }

    fn finish(&mut self) -> Result<StepOutput, StepError> {
        let Some(mut step) = self.in_flight.pop_front() else {
            return Err(StepError::Lost("no step is in flight".to_owned()));
        };
        self.run_slice(step.slice.take().as_deref())?;
        let blocks = std::mem::take(&mut step.blocks);
        let output = self.take_results(step).map_err(|error| self.lose(error))?;
        // The store must get the step's saved blocks before the step's output is returned.
        self.end_blocks(blocks).map_err(|error| self.lose(error))?;
        Ok(output)
    }

    fn recycle(&mut self, rows: Vec<RowResult>) {
        self.results.recycle(rows);
    }

    fn take_encoded(&mut self) -> Vec<EncodedImage> {
        let tower = self.tower.as_mut();
        tower.map_or_else(Vec::new, HostTower::take_encoded)
    }

    fn forget_unwanted(&mut self) {
        if let Some(tower) = &mut self.tower {
            tower.forget_unwanted();
        }
    }

    fn set_beat(&mut self, beat: Beat) {
        if let Some(tower) = &mut self.tower {
            tower.set_beat(beat.clone());
        }
        self.model.set_beat(beat);
    }

    fn is_lost(&self) -> bool {
        self.device.loss().is_some()
    }

    fn reset(&mut self) -> Result<(), DeviceLost> {
        self.is_suspect = true;
        self.check_context()?;
        // The device is idle, so all slots of the rings and all buffers of the store are free.
        self.in_flight.clear();
        self.rows.forget();
        self.forget_image();
        self.grammars.forget();
        self.clock.skip_next_idle();
        // A failure of an operation that no step has reported.
        let _ = self.backend.take_failure();
        self.backend.forget_images();
        Ok(())
    }
}

fn to_load_error(failure: impl Into<CudaFailure>) -> LoadError {
    match failure.into() {
        CudaFailure::Driver(error) if error.is_out_of_memory() => LoadError::Memory(format!(
            "out of GPU memory: {error}; lower --mem-fraction-static, or end other processes on the GPU"
        )),
        failure => LoadError::Device(failure.to_string()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
