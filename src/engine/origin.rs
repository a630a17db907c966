//! Makes sure that a rebuilt executor loads the same model files as the first one.

use std::iter;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use souffleur_actors::executor::ExecutorFactory;
use souffleur_base::error::LoadError;
use souffleur_executor::Executor;
use souffleur_model::origin::ModelFiles;

/// Wraps factories, so that every executor is made from the same files as the first one, and no two are made at the same
/// time: those of the model, and its vision tower if that is a separate file. They return [`LoadError::Replaced`] for
/// files that were replaced since then, or meanwhile.
pub(super) fn from_the_same_files(
    model_path: &Path,
    tower: Option<&Path>,
    factories: Vec<Arc<ExecutorFactory>>,
) -> Vec<Arc<ExecutorFactory>> {
    let paths = iter::once(model_path).chain(tower).map(Path::to_path_buf);
    let paths: Arc<[PathBuf]> = paths.collect();
    let first: Arc<Mutex<Option<Vec<ModelFiles>>>> = Arc::default();
    let checked = |make: Arc<ExecutorFactory>| -> Arc<ExecutorFactory> {
        let (paths, first) = (paths.clone(), first.clone());
        Arc::new(move || make_from(&paths, &first, &*make))
    };
    factories.into_iter().map(checked).collect()
}

fn make_from(
    paths: &[PathBuf],
    first: &Mutex<Option<Vec<ModelFiles>>>,
    make: &ExecutorFactory,
) -> Result<Box<dyn Executor>, LoadError> {
    let check = |files: &Vec<ModelFiles>| files.iter().try_for_each(ModelFiles::check);
    // If `make` panicked, the value is still valid.
    let mut first = first.lock().unwrap_or_else(PoisonError::into_inner);
    let now = match first.as_ref() {
        Some(files) => {
            check(files)?;
            None
        }
        None => {
            let looks = paths.iter().map(|path| ModelFiles::look(path));
            Some(looks.collect::<Result<Vec<_>, _>>()?)
        }
    };
    let executor = make()?;
    if let Some(files) = first.as_ref().or(now.as_ref()) {
        check(files)?;
    }
    first.get_or_insert_with(|| now.expect("the first call recorded its files"));
    Ok(executor)
}
