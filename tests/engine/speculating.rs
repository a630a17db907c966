//! Engines on the CPU executor with scripted drafts.

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::Receiver;
use souffleur_base::error::StepError;
use souffleur_config::{EngineConfig, SpeculativeAlgorithm};
use souffleur_engine::{Engine, EngineParts, Progress};
use souffleur_executor::cpu::{CpuExecutor, CpuOptions, load_ranks};
use souffleur_executor::speculation::Speculation;
use souffleur_executor::{DeviceLost, Executor};
use souffleur_kernels::cpu::Numa;
use souffleur_kernels::cpu::ranks::GroupRules;
use souffleur_request::{GenerateRequest, Prompt};
use souffleur_state::step::{RowResult, StepOutput, StepPlan};

use crate::scripted_drafts::{ScriptedDrafts, Tally};
use crate::world::{Gated, World};

/// The most query tokens of a row in a step.
pub const ROOM: u32 = 8;
/// The most drafts of a row in a step.
pub const PLACES: usize = ROOM as usize - 1;

/// More than a busy machine keeps a rank waiting.
const RANK_LIMIT: Duration = Duration::from_secs(60);

/// Counts the drafts of each step.
struct Counted {
    inner: Gated<dyn Executor>,
    tally: Arc<Tally>,
}

impl Executor for Counted {
    fn run(&mut self, plan: &StepPlan) -> Result<StepOutput, StepError> {
        let output = self.inner.run(plan)?;
        output.rows.iter().for_each(|row| self.tally.add(row));
        Ok(output)
    }

    fn recycle(&mut self, rows: Vec<RowResult>) {
        self.inner.recycle(rows);
    }

    fn reset(&mut self) -> Result<(), DeviceLost> {
        self.inner.reset()
    }
}

/// An engine whose rows have these drafts, and the counts of its drafts. With a gate, it runs no step before the gate's
/// sender is dropped.
pub fn start(
    config: EngineConfig,
    drafts: &ScriptedDrafts,
    gate: Option<Receiver<()>>,
) -> (World, Arc<Tally>) {
    start_with(config, drafts.speculation(), gate)
}

/// Like [`start`], with drafts of other proposers.
pub fn start_with(
    config: EngineConfig,
    speculation: Speculation,
    gate: Option<Receiver<()>>,
) -> (World, Arc<Tally>) {
    let config = EngineConfig {
        speculative_algorithm: Some(SpeculativeAlgorithm::Ngram),
        speculative_num_draft_tokens: Some(ROOM),
        ..config
    };
    let mut parts = EngineParts::from_model(&config, Progress::silent()).expect("the model exists");
    let memory = parts.info.memory.as_ref().expect("a plan of the memory");
    let options = CpuOptions {
        dtype: config.dtype.named(),
        kv_dtype: config.kv_cache_dtype.named(),
        quantization: config.quantization,
        load_format: config.load_format,
        n_pages: memory.n_pages as usize,
        page_size: config.page_size as usize,
        threads: config.threads.max(1),
        pin_threads: false,
        numa: Numa::Off,
        max_rows: memory.max_running_requests as usize,
        // The plan counts the dummy slot, which the pool adds.
        n_state_slots: memory.state_slots.saturating_sub(1) as usize,
        n_window_pages: memory.window_pages as usize,
        isa: None,
        shared_prefix: true,
        eos_token_ids: parts.info.eos_token_ids.clone().into(),
        sparsity: None,
        speculation: Some(speculation),
    };
    let ranks = GroupRules::new(config.tp_size, RANK_LIMIT);
    let tally = Arc::new(Tally::default());
    let (dir, counts) = (parts.info.model_path.clone(), tally.clone());
    parts.executor = Arc::new(move || {
        let inner: Box<dyn Executor> = match ranks.count {
            1 => Box::new(CpuExecutor::load(&dir, &options, &mut |_, _| {})?),
            _ => Box::new(load_ranks(
                &dir,
                &options,
                &ranks,
                None,
                None,
                &mut |_, _| {},
            )?),
        };
        let inner = Gated {
            inner,
            gate: gate.clone(),
        };
        Ok(Box::new(Counted {
            inner,
            tally: counts.clone(),
        }))
    });
    let engine = Engine::start_with(config, parts).expect("the model loads");
    (World { engine }, tally)
}

/// Lets the drafts of a request follow its output without drafts.
pub fn learn(drafts: &ScriptedDrafts, request: &GenerateRequest, output: &[u32]) {
    let Prompt::Tokens(prompt) = &request.prompt else {
        panic!("a prompt of tokens");
    };
    let seed = request.sampling.sampling_seed.expect("a seed");
    drafts.learn(prompt, seed, output);
}
