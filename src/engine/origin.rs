//! Makes sure that a rebuilt executor loads the same model files as the first one.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use souffleur_actors::executor::ExecutorFactory;
use souffleur_base::error::LoadError;
use souffleur_executor::Executor;
use souffleur_model::origin::ModelFiles;

/// Wraps `make`, so that every executor is made from the same model files as the first one.
///
/// # Errors
/// [`LoadError::Replaced`] for files that were replaced since then, or while `make` ran.
pub(super) fn from_the_same_files(
    model_path: &Path,
    make: Arc<ExecutorFactory>,
) -> Arc<ExecutorFactory> {
    let path = model_path.to_owned();
    let first: Mutex<Option<ModelFiles>> = Mutex::new(None);
    Arc::new(move || -> Result<Box<dyn Executor>, LoadError> {
        // If `make` panicked, the value is still valid.
        let mut first = first.lock().unwrap_or_else(PoisonError::into_inner);
        let now = match first.as_ref() {
            Some(files) => {
                files.check()?;
                None
            }
            None => Some(ModelFiles::look(&path)?),
        };
        let executor = make()?;
        if let Some(files) = first.as_ref().or(now.as_ref()) {
            files.check()?;
        }
        first.get_or_insert_with(|| now.expect("the first call recorded its files"));
        Ok(executor)
    })
}
