//! Divides replicas among GPUs, and chooses the executor of each.

use std::sync::Arc;
use std::time::Duration;

use crate::chaos::with_chaos;
use souffleur_actors::executor::ExecutorFactory;
use souffleur_actors::unit::UnitExecutor;
use souffleur_chaos::Chaos;
use souffleur_config::{Device, EngineConfig};
use souffleur_executor::memory_plan::MemoryPlan;

/// How long a rank waits for the others in a step, without a watchdog.
const RANK_LIMIT: Duration = Duration::from_secs(60);

/// How long a rank waits for the others in a step. A rank that hangs is named before the watchdog ends the engine: the
/// others wait for it first, then their leader.
pub(super) fn rank_limit(config: &EngineConfig) -> Duration {
    let timeout = config.watchdog_timeout();
    timeout.map_or(RANK_LIMIT, |timeout| timeout / 4)
}

/// A GPU that runs replicas, or a rank of them.
#[derive(Clone, Debug)]
pub struct GpuShare {
    /// The GPU's number, name and properties.
    pub name: String,
    /// The number of replicas on it.
    pub replicas: usize,
    /// The plan of each replica, or of its rank there, if all GPUs were like this one. Replicas and ranks are alike: the
    /// GPU with the smallest pool decides.
    pub memory: MemoryPlan,
}

/// The executors of the replicas, which have the devices of `factories` in turn.
pub(super) fn unit_executors<'a>(
    config: &EngineConfig,
    factories: impl Iterator<Item = &'a Arc<ExecutorFactory>>,
    chaos: &Chaos,
) -> Vec<UnitExecutor> {
    let factories = factories.map(|make| with_chaos(make.clone(), chaos));
    let factories: Vec<Arc<ExecutorFactory>> = factories.collect();
    let n_factories = factories.len() as u32;
    let is_on_gpu = matches!(config.device, Device::Cuda(_));
    let executor = |unit: u32| {
        let index = unit % n_factories;
        UnitExecutor {
            make: factories[index as usize].clone(),
            // Replicas on CPUs share nothing that one of them can lose.
            device: if is_on_gpu { index } else { unit },
        }
    };
    (0..config.units()).map(executor).collect()
}
