//! Puts the faults of `--chaos` around executors.

use std::sync::Arc;

use souffleur_actors::executor::ExecutorFactory;
use souffleur_base::error::LoadError;
use souffleur_chaos::Chaos;
use souffleur_executor::Executor;
use souffleur_executor::chaos::ChaosExecutor;

/// A factory of executors with faults; `factory` itself if chaos is off.
pub(crate) fn with_chaos(factory: Arc<ExecutorFactory>, chaos: &Chaos) -> Arc<ExecutorFactory> {
    if !chaos.is_on() {
        return factory;
    }
    let chaos = chaos.clone();
    Arc::new(move || -> Result<Box<dyn Executor>, LoadError> {
        let executor = ChaosExecutor::new(factory()?, chaos.clone());
        Ok(Box::new(executor))
    })
}
