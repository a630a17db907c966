//! A server with a scripted model, whose steps a test can hold.

use std::sync::{Arc, Condvar, Mutex};

use souffleur::config::EngineConfig;
use souffleur::engine::Engine;
use souffleur::error::{LoadError, StepError};
use souffleur::executor::{DeviceLost, Executor};
use souffleur::server::ServerConfig;
use souffleur::state::step::{StepOutput, StepPlan};

use crate::scripted::{self, Line};
use crate::world::{CONTEXT_TOKENS, World, recorder};

/// When it is dropped it releases the steps, so that the server can end.
pub struct Stage(Arc<Gate>);

#[derive(Default)]
struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    begun: u64,
    limit: Option<u64>,
    is_dying: bool,
}

struct StagedExecutor {
    inner: Box<dyn Executor>,
    gate: Arc<Gate>,
    is_lost: bool,
}

impl Stage {
    /// Holds the steps after this many more. A step that waits already runs and does not count.
    pub fn hold_after(&self, steps: u64) {
        self.change(|state| state.limit = Some(state.begun + steps));
    }

    pub fn release(&self) {
        self.change(|state| state.limit = None);
    }

    /// Has the next step panic, and the executor lose its device.
    pub fn die(&self) {
        self.change(|state| state.is_dying = true);
    }

    /// The steps that have begun, also one that waits.
    pub fn begun(&self) -> u64 {
        self.0.state.lock().expect("no panic under the lock").begun
    }

    /// Whether a step waits to be released.
    pub fn is_held(&self) -> bool {
        let state = self.0.state.lock().expect("no panic under the lock");
        state.is_holding()
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.0.state.lock().expect("no panic under the lock"));
        self.0.changed.notify_all();
    }
}

impl State {
    fn is_holding(&self) -> bool {
        self.limit.is_some_and(|limit| self.begun > limit)
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.release();
    }
}

impl Executor for StagedExecutor {
    fn run(&mut self, plan: &StepPlan) -> Result<StepOutput, StepError> {
        let mut state = self.gate.state.lock().expect("no panic under the lock");
        state.begun += 1;
        while state.is_holding() {
            state = self
                .gate
                .changed
                .wait(state)
                .expect("no panic under the lock");
        }
        let is_dying = std::mem::take(&mut state.is_dying);
        drop(state);
        self.is_lost |= is_dying;
        assert!(!is_dying, "the device is gone");
        self.inner.run(plan)
    }

    fn reset(&mut self) -> Result<(), DeviceLost> {
        if self.is_lost {
            return Err(DeviceLost("there is no device".to_owned()));
        }
        self.inner.reset()
    }
}

/// A server whose model replies with these lines. Drop the stage first.
pub fn staged(
    lines: &[Line<'_>],
    configure: impl FnOnce(&mut EngineConfig, &mut ServerConfig),
) -> (World, Stage) {
    recorder();
    let mut engine = EngineConfig {
        model_path: scripted::checkpoint(),
        served_model_name: Some("scripted".to_owned()),
        max_total_tokens: Some(CONTEXT_TOKENS + 1024),
        max_running_requests: Some(32),
        ..EngineConfig::default()
    };
    let mut config = ServerConfig::default();
    configure(&mut engine, &mut config);
    let world = World::without_engine(config);
    let mut parts = scripted::parts(&engine, lines);
    let gate = Arc::new(Gate::default());
    let stage = Stage(Arc::clone(&gate));
    let make = parts.executor;
    parts.executor = Arc::new(move || -> Result<Box<dyn Executor>, LoadError> {
        let (inner, gate) = (make()?, Arc::clone(&gate));
        Ok(Box::new(StagedExecutor {
            inner,
            gate,
            is_lost: false,
        }))
    });
    let engine = Engine::start_with(engine, parts).unwrap_or_else(|error| panic!("{error}"));
    world.state.slot().fill(engine);
    (world, stage)
}
