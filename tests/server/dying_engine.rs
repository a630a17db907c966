//! A test server whose engine panics at its first step.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam_channel::Sender;
use serde_json::json;
use souffleur::config::EngineConfig;
use souffleur::engine::{Engine, EngineParts, Progress};
use souffleur::error::{LoadError, StepError};
use souffleur::executor::{DeviceLost, Executor};
use souffleur::server::ServerConfig;
use souffleur::state::step::{StepOutput, StepPlan};
use tempfile::TempDir;

use crate::http::{Response, get, post};
use crate::world::{World, long_model, wait_until};

/// An executor that panics at its first step, and cannot be used afterwards.
struct PanickingExecutor;

impl Executor for PanickingExecutor {
    fn run(&mut self, _: &StepPlan) -> Result<StepOutput, StepError> {
        panic!("the device is gone");
    }

    fn reset(&mut self) -> Result<(), DeviceLost> {
        Err(DeviceLost("there is no device".to_owned()))
    }
}

/// A server whose engine panics at its first step, the model's folder, and a channel. The engine's rebuild waits for a
/// message on the channel, and then fails.
pub fn world_with_dying_engine() -> (World, TempDir, Sender<()>) {
    let world = World::without_engine(ServerConfig::default());
    let model = long_model();
    let config = EngineConfig {
        model_path: model.path().to_owned(),
        max_total_tokens: Some(1024),
        rebuild_attempts: 1,
        ..EngineConfig::default()
    };
    let mut parts = EngineParts::from_model(&config, Progress::silent()).expect("parts");
    let (fail, failing) = crossbeam_channel::bounded(0);
    let is_first = AtomicBool::new(true);
    parts.executor = Arc::new(move || {
        if is_first.swap(false, Ordering::SeqCst) {
            return Ok(Box::new(PanickingExecutor) as Box<dyn Executor>);
        }
        let () = failing.recv().expect("a message");
        Err(LoadError::Device("there is no device".to_owned()))
    });
    let engine = Engine::start_with(config, parts).expect("an engine");
    world.state.slot().fill(engine);
    (world, model, fail)
}

/// Sends a request, at which the engine of [`world_with_dying_engine`] panics, and waits until the rebuild has begun.
/// The returned thread has the answer, which comes when the rebuild has failed.
pub fn kill(world: &World) -> std::thread::JoinHandle<Response> {
    let addr = world.addr;
    let waiting = std::thread::spawn(move || {
        let call = json!({"input_ids": [5, 6], "sampling_params": {"max_new_tokens": 3}});
        post(addr, "/generate", &call)
    });
    wait_until("a rebuild runs", || get(addr, "/ready").status == 503);
    waiting
}
