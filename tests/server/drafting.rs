//! A server whose steps verify all proposed drafts, and the counts of its drafts by their sources.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use souffleur::server::ServerConfig;
use souffleur_base::error::{LoadError, StepError};
use souffleur_config::{EngineConfig, SpeculativeAlgorithm};
use souffleur_engine::{Engine, EngineParts, Progress};
use souffleur_executor::cpu::{CpuExecutor, CpuOptions};
use souffleur_executor::speculation::{NgramProposers, Speculation};
use souffleur_executor::{DeviceLost, Executor};
use souffleur_kernels::cpu::Numa;
use souffleur_state::speculation::DraftSource;
use souffleur_state::step::{RowResult, StepOutput, StepPlan};

use crate::world::World;

/// Drafts that steps have computed, and those that they have accepted, in the order of [`DraftSource::ALL`].
#[derive(Default)]
pub struct Tally([[AtomicU64; 2]; DraftSource::ALL.len()]);

impl Tally {
    fn add(&self, row: &RowResult) {
        let drafted = u64::from(row.drafts.n_tokens);
        let accepted = row.tokens.len().saturating_sub(1) as u64;
        assert!(accepted <= drafted, "{row:?}");
        for (source, counts) in DraftSource::ALL.iter().zip(&self.0) {
            if *source == row.drafts.source {
                counts[0].fetch_add(drafted, Ordering::Relaxed);
                counts[1].fetch_add(accepted, Ordering::Relaxed);
            }
        }
    }

    /// The computed and the accepted drafts from a source.
    pub fn of(&self, wanted: DraftSource) -> [u64; 2] {
        let counts = DraftSource::ALL.iter().zip(&self.0);
        let mut found = counts.filter(|(source, _)| **source == wanted);
        let (_, counts) = found.next().expect("each source has counts");
        [&counts[0], &counts[1]].map(|count| count.load(Ordering::Relaxed))
    }

    /// The computed and the accepted drafts from all sources.
    pub fn totals(&self) -> [u64; 2] {
        let sources = DraftSource::ALL.map(|source| self.of(source));
        [0, 1].map(|at| sources.iter().map(|counts| counts[at]).sum())
    }
}

struct Counted {
    inner: CpuExecutor,
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

/// A server with this engine, whose steps have all drafts that are proposed, whatever the measured times.
pub fn eager(config: EngineConfig) -> (World, Arc<Tally>) {
    let config = EngineConfig {
        speculative_algorithm: Some(SpeculativeAlgorithm::Ngram),
        ..config
    };
    // First the world: the engine's metrics go to the recorder that it installs.
    let world = World::without_engine(ServerConfig::default());
    let mut parts = EngineParts::from_model(&config, Progress::silent())
        .unwrap_or_else(|error| panic!("{error}"));
    let (options, tally) = (options(&config, &parts), Arc::new(Tally::default()));
    let (dir, counts) = (parts.info.model_path.clone(), tally.clone());
    parts.executor = Arc::new(move || -> Result<Box<dyn Executor>, LoadError> {
        Ok(Box::new(Counted {
            inner: CpuExecutor::load(&dir, &options, &mut |_, _| {})?,
            tally: counts.clone(),
        }))
    });
    let engine = Engine::start_with(config, parts).unwrap_or_else(|error| panic!("{error}"));
    world.state.slot().fill(engine);
    (world, tally)
}

fn options(config: &EngineConfig, parts: &EngineParts) -> CpuOptions {
    let memory = parts.info.memory.as_ref().expect("a plan of the memory");
    let wish = parts.info.speculation.expect("the engine speculates");
    CpuOptions {
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
        speculation: Some(Speculation {
            proposers: Arc::new(NgramProposers {
                max_match: wish.max_match,
                capacity: wish.capacity,
                vocab_size: parts.info.vocab_size,
            }),
            is_controlled: false,
        }),
    }
}
