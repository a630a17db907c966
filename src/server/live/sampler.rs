//! The thread that reads the engine's state for all viewers, from the first one's arrival to the last one's end.
//!
//! It is a thread, because folding a large tree takes milliseconds, in which a worker could not serve its clients.

use std::io;
use std::sync::Arc;

use tokio::runtime::Builder;
use tokio::time::{Instant, sleep_until};

use super::sample::{Sample, generation_of};
use super::viewer::Viewer;
use super::watch::TreeWatch;
use crate::state::AppState;

struct Sampler {
    state: Arc<AppState>,
    viewers: Vec<Viewer>,
    started: Instant,
    generation: u64,
    tree: TreeWatch,
}

/// Starts the sampler of a server, which has none.
///
/// # Errors
/// The thread cannot be started.
pub(super) fn start(state: Arc<AppState>) -> io::Result<()> {
    let thread = std::thread::Builder::new().name("souffleur-console".to_owned());
    thread.spawn(move || {
        let guard = PanicGuard(state.clone());
        match Builder::new_current_thread().enable_time().build() {
            Ok(runtime) => runtime.block_on(Sampler::new(state).run()),
            Err(error) => {
                tracing::error!(%error, "failed to start the thread that reads the engine for the console: the console shows no data");
                state.viewers().abandon();
            }
        }
        drop(guard);
    })?;
    Ok(())
}

/// Makes room for another sampler after a panic.
struct PanicGuard(Arc<AppState>);

impl Drop for PanicGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.viewers().abandon();
        }
    }
}

impl Sampler {
    fn new(state: Arc<AppState>) -> Self {
        Self {
            generation: generation_of(&state),
            state,
            viewers: Vec::new(),
            started: Instant::now(),
            tree: TreeWatch::default(),
        }
    }

    async fn run(mut self) {
        let all = self.state.viewers().clone();
        let mut ended = all.end_signal();
        loop {
            self.viewers.retain(|viewer| !viewer.is_gone());
            let Some(joining) = all.admit(self.viewers.len()) else {
                return;
            };
            self.viewers.extend(joining.into_iter().map(Viewer::new));
            if *ended.borrow() || self.has_engine_stopped() {
                self.viewers.clear();
                continue;
            }
            let due = self.viewers.iter().map(Viewer::due).min();
            let due = due.unwrap_or_else(Instant::now);
            tokio::select! {
                biased;
                _ = ended.changed() => continue,
                () = all.changed() => continue,
                () = sleep_until(due) => (),
            }
            tokio::select! {
                biased;
                _ = ended.changed() => (),
                () = self.sample() => (),
            }
        }
    }

    /// True at the end of a shutdown.
    fn has_engine_stopped(&self) -> bool {
        let engine = self.state.slot().engine();
        self.state.is_draining() && engine.is_none_or(|engine| engine.is_over())
    }

    async fn sample(&mut self) {
        let generation = generation_of(&self.state);
        if generation != self.generation {
            self.generation = generation;
            self.tree = TreeWatch::default();
            self.viewers.iter_mut().for_each(Viewer::enter_generation);
        }
        let now = Instant::now();
        let due = self.viewers.iter().filter(|viewer| viewer.due() <= now);
        let steps_after = due.map(Viewer::steps_after).min();
        let sample = Sample::take(&self.state, generation, steps_after.unwrap_or(0)).await;
        if let (Some(engine), Some(view)) = (self.state.slot().engine(), &sample.view)
            && self.tree.update(engine, &view.pins).await.is_err()
        {
            // The unit has died: the tree of the next one is another.
            self.tree = TreeWatch::default();
        }
        let tree = sample.view.as_ref().map(|_| &self.tree);
        for viewer in &mut self.viewers {
            if viewer.due() <= now {
                viewer.show(&self.state, &sample, tree);
                viewer.set_next(self.started, now);
            }
        }
    }
}
