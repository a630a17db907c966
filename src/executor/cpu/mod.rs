//! The CPU executor: owns weights, KV pool, page table and samplers, and runs steps on its thread.

mod argmax;
mod blocks;
mod describe;
mod drafts;
mod host_tower;
mod masks;
mod pool;
mod ranks;
mod readout;
mod score;
mod state_drafts;
mod taught;
mod tower;

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

pub use self::describe::{
    CpuDescription, LoadedMatrix, OnRanks, describe, describe_checkpoint, matrices, widening_bytes,
};
use self::drafts::StepDrafts;
pub use self::host_tower::{HostSizes, HostTower};
pub use self::ranks::load_ranks;
pub use self::readout::LOGIT_ROWS;
use self::state_drafts::state_saves;
pub use self::state_drafts::{MAX_STATE_DRAFTS, draft_log_bytes};
pub use self::tower::{TowerFiles, tower_work};
use crate::check::Limits;
use crate::host::StoreLink;
use crate::results::ResultBuffers;
use crate::rows::Rows;
use crate::speculation::Speculation;
use crate::taught::{Lesson, Teacher};
use crate::vision::{EncodedImage, Encoder};
use crate::{DeviceLost, Executor};
use souffleur_base::beat::Beat;
use souffleur_base::error::{LoadError, StepError};
use souffleur_base::ids::{PageId, SeqId};
use souffleur_base::kv_layout::{KvDtype, KvLayout};
use souffleur_kernels::cpu::ranks::RankLink;
use souffleur_kernels::cpu::{CpuBackend, CpuBatch, CpuSizes, Isa, Numa, Tensor};
use souffleur_kernels::dtype::{Dtype, Quantization};
use souffleur_model::blocks::{Decoder, ReadTokens};
use souffleur_model::loader::{Checkpoint, LoadFormat, LoadProgress, Loader};
use souffleur_model::sparsity::ModelSparsity;
use souffleur_state::grammar::RowGrammar;
use souffleur_state::pool::window_pool::WindowLimits;
use souffleur_state::sampling::RowSampler;
use souffleur_state::speculation::{MAX_ROOM, Proposer, RowYield};
use souffleur_state::step::{
    RowResult, RowStart, RowWork, StepOutput, StepPlan, StepRow, TableDelta,
};

#[derive(Clone, Debug)]
pub struct CpuOptions {
    /// `None` for the checkpoint's data type.
    pub dtype: Option<Dtype>,
    pub kv_dtype: Option<KvDtype>,
    pub quantization: Option<Quantization>,
    pub load_format: LoadFormat,
    /// Pages that can be granted, ids `1..=n_pages`; the pool has one more, the dummy.
    pub n_pages: usize,
    pub page_size: usize,
    /// Compute threads, including the executor's own thread.
    pub threads: usize,
    /// Pins each thread to a core, if the process may use at least `threads` cores.
    pub pin_threads: bool,
    /// Whether the threads, the weights and the pool are partitioned among NUMA nodes; the results are the same.
    pub numa: Numa,
    /// Rows that can be granted, ids `1..=max_rows`.
    pub max_rows: usize,
    /// State slots that can be granted, ids `1..=n_state_slots`, plus the dummy; 0 where no layer keeps a state.
    pub n_state_slots: usize,
    /// Window pages that can be granted, ids `1..=n_window_pages`; the pool has one more, the dummy. With 0, layers
    /// with a window keep all tokens.
    pub n_window_pages: usize,
    pub isa: Option<Isa>,
    /// Whether attention reads the pages of a shared prefix once for all rows of a step; the results are the same.
    pub shared_prefix: bool,
    /// Tokens that end an output: none is sampled before a request's `min_new_tokens`.
    pub eos_token_ids: Arc<[u32]>,
    /// Double sparsity, as [`CpuDescription::sparsify`] returned it for this model.
    pub sparsity: Option<ModelSparsity>,
    /// `None`: decodes have no drafts.
    pub speculation: Option<Speculation>,
}

/// Receives a sequence, a position, and the raw logits at this position.
pub type LogitsProbe<'a> = &'a mut dyn FnMut(SeqId, u32, &[f32]);

/// Runs steps on the CPU.
///
/// **The result of a row depends on its own tokens and sampling state only, bit for bit**: not on the other rows of
/// a step, on chunks, pages, cached prefixes, the number of threads or the NUMA nodes that they are divided among.
pub struct CpuExecutor {
    model: Decoder<CpuBackend>,
    backend: CpuBackend,
    /// The step's tokens; `read_batch` has those whose logits or states are read. Later steps reuse both.
    batch: CpuBatch,
    read_batch: CpuBatch,
    rows: Rows,
    sampling: Vec<Option<RowSampling>>,
    n_pages: usize,
    page_size: usize,
    vocab_size: usize,
    eos_token_ids: Arc<[u32]>,
    kv_layout: KvLayout,
    store: Option<StoreLink>,
    /// `None` without a vision tower.
    encoder: Option<Encoder<CpuBackend>>,
    hidden_size: usize,
    /// Values of a position of an image.
    image_width: usize,
    readout: readout::Readout,
    results: ResultBuffers,
    speculation: Option<Speculation>,
    drafts: StepDrafts,
    /// The positions of each row's tokens in the step.
    positions: Vec<Range<u32>>,
    teacher: Option<Arc<Teacher>>,
}

struct RowSampling {
    sampler: RowSampler,
    grammar: Option<Box<RowGrammar>>,
    /// The token that was sampled last; arbitrary before the first.
    last_token: u32,
    /// `None` for a row without drafts.
    proposer: Option<Box<dyn Proposer>>,
    row_yield: RowYield,
    lesson: Option<Lesson>,
}

fn backend_sizes(options: &CpuOptions, dtype: Dtype, kv: KvLayout) -> Result<CpuSizes, LoadError> {
    Ok(CpuSizes {
        dtype,
        quantization: options.quantization,
        threads: options.threads,
        pin_threads: options.pin_threads,
        numa: options.numa,
        isa: options
            .isa
            .map_or_else(Isa::chosen, Ok)
            .map_err(LoadError::Memory)?,
        kv,
        n_pages: options.n_pages,
        page_size: options.page_size,
        n_rows: options.max_rows + 1,
        n_state_slots: options.n_state_slots,
        n_window_pages: options.n_window_pages,
        shared_prefix: options.shared_prefix,
        sparsity: options
            .sparsity
            .as_ref()
            .map(|sparsity| sparsity.rules.clone()),
    })
}

fn start_backend(
    options: &CpuOptions,
    checkpoint: &Checkpoint,
    kv: KvLayout,
) -> Result<CpuBackend, LoadError> {
    let sizes = backend_sizes(options, checkpoint.dtype, kv)?;
    let mut backend = CpuBackend::new(&sizes).map_err(|error| {
        LoadError::Memory(format!(
            "failed to start the compute threads: {error}; set a lower --threads, or raise the limit (ulimit -u)"
        ))
    })?;
    state_drafts::prepare(&mut backend, &checkpoint.config, options);
    Ok(backend)
}

impl CpuExecutor {
    /// Loads the model in a folder: checks it, starts the threads, allocates the pool and copies the weights.
    pub fn load(
        dir: &Path,
        options: &CpuOptions,
        progress: LoadProgress<'_>,
    ) -> Result<Self, LoadError> {
        let checkpoint = Checkpoint::open(dir, options.dtype, options.load_format)?;
        Self::of_checkpoint(&checkpoint, options, None, progress)
    }

    fn of_checkpoint(
        checkpoint: &Checkpoint,
        options: &CpuOptions,
        link: Option<RankLink>,
        progress: LoadProgress<'_>,
    ) -> Result<Self, LoadError> {
        let config = &checkpoint.config;
        let widening_bytes = widening_bytes(checkpoint, options.quantization);
        if widening_bytes > 0 {
            tracing::info!(
                widening_bytes,
                "block-quantised weights are expanded for dtype float32: other dtypes take less memory"
            );
        }
        let mut kv = pool::layout(options, checkpoint)?;
        if let Some(sparsity) = &options.sparsity {
            pool::check_sparsity(sparsity, &kv, &config.windows)?;
            kv = sparsity.label(kv);
        }
        pool::check(options, &kv)?;
        let windows = kv.window().map(|tokens| WindowLimits {
            tokens,
            total_pages: options.n_window_pages,
        });
        let kv_layout = kv.clone();
        let mut backend = start_backend(options, checkpoint, kv)?;
        backend.join(link);
        let model =
            souffleur_model::blocks::load(&mut Loader::new(checkpoint, &mut backend, progress))?;
        let image_width = config.images().vector_width(config.hidden_size);
        let limits = Limits {
            n_pages: options.n_pages,
            page_size: options.page_size,
            row_pages: usize::MAX,
            vocab_size: config.vocab_size,
            max_room: MAX_ROOM,
            hidden_size: config.hidden_size,
            image_width,
            n_state_slots: (kv_layout.state_bytes() > 0).then_some(options.n_state_slots),
            windows,
            long_above: config.rope.long_above(),
            bidirectional: config.bidirectional(),
            block_tokens: None,
        };
        // Done last: threads that loading starts would inherit the pinning.
        backend.pin_caller();
        Ok(Self {
            model,
            backend,
            batch: CpuBatch::default(),
            read_batch: CpuBatch::default(),
            rows: Rows::new(options.max_rows, limits),
            sampling: (0..=options.max_rows).map(|_| None).collect(),
            n_pages: options.n_pages,
            page_size: options.page_size,
            vocab_size: config.vocab_size,
            eos_token_ids: options.eos_token_ids.clone(),
            kv_layout,
            store: None,
            encoder: None,
            hidden_size: config.hidden_size,
            image_width,
            readout: readout::Readout::default(),
            results: ResultBuffers::default(),
            drafts: StepDrafts::new(options.speculation.as_ref(), options.max_rows),
            speculation: options.speculation.clone(),
            positions: Vec::new(),
            teacher: None,
        })
    }

    /// Runs one step like [`Executor::run`], and passes each row of raw logits that the step needs to `probe`.
    pub fn run_observed(
        &mut self,
        plan: &StepPlan,
        probe: LogitsProbe<'_>,
    ) -> Result<StepOutput, StepError> {
        self.rows.check(plan)?;
        self.check_slice(plan)?;
        // A step without rows and slices only copies blocks, so the store's threads need not pause.
        let computes = !plan.rows.is_empty() || plan.vision.is_some();
        self.set_computing(computes);
        let output = self.run_checked(plan, probe);
        if output.is_err() {
            self.rows.lose();
            self.forget_image();
        }
        self.set_computing(false);
        output
    }

    fn run_checked(
        &mut self,
        plan: &StepPlan,
        probe: LogitsProbe<'_>,
    ) -> Result<StepOutput, StepError> {
        self.backend.wake();
        self.forget_unwanted_image();
        if let Some(copies) = &plan.copies {
            self.save_blocks(&copies.saves);
        }
        for start in &plan.starts {
            self.rows.start(start);
            self.start(start);
        }
        for delta in &plan.table {
            self.rows.edit(delta);
            self.edit_table(delta);
        }
        let states = plan.starts.iter().filter_map(|start| start.state);
        self.backend.begin_states(states);
        if let Some(copies) = &plan.copies {
            self.load_blocks(&copies.loads)?;
        }
        if let (Some(encoder), Some(slice)) = (&mut self.encoder, &plan.vision) {
            encoder.run(&mut self.backend, slice)?;
        }
        let began = Instant::now();
        if self.speculation.is_some() {
            self.propose(plan);
        }
        self.positions.clear();
        for (index, work) in plan.rows.iter().enumerate() {
            self.push_work(index, work);
        }
        let mut rows = self.results.begin(plan);
        if self.batch.n_tokens() > 0 {
            self.readout.find(plan, &self.positions, &self.rows);
            let hidden = self.forward();
            self.read_out(plan, &hidden, &mut rows, probe);
            let is_decode = plan.rows.iter().all(|row| row.work.is_decode());
            if is_decode && plan.vision.is_none() {
                let seconds = began.elapsed().as_secs_f64();
                self.drafts.note_time(self.batch.n_tokens(), seconds);
            }
        }
        if let Some(teacher) = &self.teacher {
            teacher.note(plan, &rows);
        }
        self.backend.rest();
        // Frees prompt embeddings at the end of their last step, not at the next step.
        self.batch.clear();
        Ok(StepOutput {
            step: plan.step,
            rows,
        })
    }

    pub fn keeps_states(&self) -> bool {
        self.rows.has_states()
    }

    /// Runs the model, and returns the residual stream of the tokens in [`Readout::tokens`](readout::Readout::tokens).
    fn forward(&mut self) -> Tensor {
        let tokens = self.readout.tokens();
        let reads_some = tokens.len() < self.batch.n_tokens();
        if reads_some {
            self.read_batch.pick(&self.batch, tokens);
        }
        let reads = reads_some.then_some(ReadTokens {
            n_tokens: tokens.len(),
            tokens,
            batch: &self.read_batch,
        });
        self.model.forward(&mut self.backend, &self.batch, reads)
    }

    fn start(&mut self, start: &RowStart) {
        // Reserves pages for the row's maximum length, so that no step allocates.
        let max_tokens = start.prompt_tokens as usize + start.sampling.max_new_tokens as usize;
        let max_pages = max_tokens.div_ceil(self.page_size);
        let pages = self.backend.table_mut().row_mut(start.row);
        pages.clear();
        pages.reserve(max_pages.min(self.n_pages));
        pages.extend(start.prefix.iter());
        if self.rows.has_windows() {
            let windows = self.backend.window_table_mut().row_mut(start.row);
            windows.clear();
            windows.reserve(max_pages.min(self.n_pages));
            // A table delta of the same plan sets the pages that queries see.
            windows.resize(start.prefix.len(), PageId::new(0));
        }
        let (prompt, output) = start.counted_tokens();
        let sampling = start.sampling.clone();
        let eos_ids = &self.eos_token_ids;
        let grammar = start.grammar.as_deref().map(|grammar| {
            let row = RowGrammar::new(grammar, self.vocab_size, output);
            Box::new(row)
        });
        self.sampling[start.row.index()] = Some(RowSampling {
            grammar,
            sampler: RowSampler::new(sampling, self.vocab_size, eos_ids, &prompt, output),
            last_token: 0,
            proposer: self.proposer_of(start),
            row_yield: RowYield::default(),
            lesson: self
                .teacher
                .as_ref()
                .and_then(|teacher| teacher.lesson(start)),
        });
    }

    fn edit_table(&mut self, delta: &TableDelta) {
        let table = match delta {
            TableDelta::Append { .. } | TableDelta::Remap { .. } => self.backend.table_mut(),
            TableDelta::AppendWindows { .. } | TableDelta::Windows { .. } => {
                self.backend.window_table_mut()
            }
        };
        match delta {
            TableDelta::Append { row, pages } | TableDelta::AppendWindows { row, pages } => {
                table.row_mut(*row).extend(pages);
            }
            TableDelta::Remap { row, from, pages } | TableDelta::Windows { row, from, pages } => {
                let old = &mut table.row_mut(*row)[*from as usize..];
                for (old, new) in old.iter_mut().zip(pages.iter()) {
                    *old = new;
                }
            }
        }
    }

    /// Adds the row `index` of the plan to the batch.
    fn push_work(&mut self, index: usize, work: &StepRow) {
        let sampling = self.sampling[work.row.index()].as_ref();
        let row = self.rows.row(work.row);
        let (first, tokens) = match &work.work {
            RowWork::Prefill { positions } => {
                let (first, end) = (positions.start as usize, positions.end as usize);
                (first, row.inputs(first..end))
            }
            RowWork::Decode { .. } => {
                let last_token = sampling.map_or(0, |sampling| sampling.last_token);
                (row.computed, self.drafts.input(index, last_token))
            }
        };
        let end = first + tokens.len();
        self.positions.push(first as u32..end as u32);
        let first_token = self.batch.n_tokens();
        self.batch
            .push(work.row, first, tokens, self.backend.table());
        if self.rows.has_windows() {
            self.batch.place_windows(self.backend.window_table());
        }
        let batch = &mut self.batch;
        self.rows
            .take_vectors(work, first_token, |run| batch.place_vectors(run));
        if let Some(images) = &self.rows.row(work.row).images {
            self.batch.place_images(&images.table);
            if let Some(layers) = self.rows.bidirectional() {
                self.batch.see_runs(&images.runs, layers);
            }
        }
        if self.rows.row(work.row).is_long {
            self.batch.mark_long();
        }
        if let Some(live) = self.rows.row(work.row).live {
            match self.drafts.of(index).len() {
                0 => {
                    let saves = state_saves(work, first..end, self.page_size);
                    self.batch.keep_state(live, &saves);
                }
                // Saved once it is known which drafts are accepted.
                n_drafts => self.batch.keep_state_with_drafts(live, &[], n_drafts),
            }
        }
        self.rows.advance(work);
    }
}

impl Executor for CpuExecutor {
    fn run(&mut self, plan: &StepPlan) -> Result<StepOutput, StepError> {
        self.run_observed(plan, &mut |_, _, _| {})
    }

    fn recycle(&mut self, rows: Vec<RowResult>) {
        self.results.recycle(rows);
    }

    fn take_encoded(&mut self) -> Vec<EncodedImage> {
        let encoder = self.encoder.as_mut();
        encoder.map_or_else(Vec::new, Encoder::take_encoded)
    }

    fn forget_unwanted(&mut self) {
        self.forget_unwanted_image();
    }

    fn set_beat(&mut self, beat: Beat) {
        if let Some(encoder) = &mut self.encoder {
            encoder.set_beat(beat.clone());
        }
        self.model.set_beat(beat);
    }

    fn reset(&mut self) -> Result<(), DeviceLost> {
        self.rows.forget();
        self.forget_image();
        self.sampling.fill_with(|| None);
        self.drafts.clear();
        self.batch.clear();
        self.read_batch.clear();
        self.readout = readout::Readout::default();
        // A step that panicked has not done these.
        self.backend.rest();
        self.backend.rejoin();
        self.set_computing(false);
        Ok(())
    }

    fn run_faulty_item(&mut self, cause: &str) {
        self.backend.run_faulty_item(cause);
    }

    fn teach(&mut self, teacher: Arc<Teacher>) -> bool {
        self.teacher = Some(teacher);
        true
    }
}
