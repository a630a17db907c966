//! Makes sure that a rebuilt executor loads the same model files as the first one.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use souffleur_actors::executor::ExecutorFactory;
use souffleur_base::error::LoadError;
use souffleur_executor::Executor;
use souffleur_model::origin::ModelFiles;

/// Wraps factories, so that every executor is made from the same model files as the first one, and no two are made at
/// the same time. They return [`LoadError::Replaced`] for files that were replaced since then, or meanwhile.
pub(super) fn from_the_same_files(
    model_path: &Path,
    factories: Vec<Arc<ExecutorFactory>>,
) -> Vec<Arc<ExecutorFactory>> {
    let path: Arc<Path> = model_path.into();
    let first: Arc<Mutex<Option<ModelFiles>>> = Arc::default();
    let checked = |make: Arc<ExecutorFactory>| -> Arc<ExecutorFactory> {
        let (path, first) = (path.clone(), first.clone());
        Arc::new(move || make_from(&path, &first, &*make))
    };
    factories.into_iter().map(checked).collect()
}

fn make_from(
    path: &Path,
    first: &Mutex<Option<ModelFiles>>,
    make: &ExecutorFactory,
) -> Result<Box<dyn Executor>, LoadError> {
    // If `make` panicked, the value is still valid.
    let mut first = first.lock().unwrap_or_else(PoisonError::into_inner);
    let now = match first.as_ref() {
        Some(files) => {
            files.check()?;
            None
        }
        None => Some(ModelFiles::look(path)?),
    };
    let executor = make()?;
    if let Some(files) = first.as_ref().or(now.as_ref()) {
        files.check()?;
    }
    first.get_or_insert_with(|| now.expect("the first call recorded its files"));
    Ok(executor)
}
