//! The executor's thread: loads the executor, and runs the steps of one unit after another.
//!
//! The weights outlive the units: only an executor that cannot run further steps ends the thread.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use tokio::sync::oneshot;

use super::StepSender;
use super::runner::{Connection, reset, run_steps};
use crate::death::DeathNote;
use crate::mailbox::Mailbox;
use crate::messages::{ImageEncoded, StepDone};
use souffleur_base::error::LoadError;
use souffleur_executor::ended::EndedRows;

/// Capacity of the channel from the actor to the thread.
const QUEUED_STEPS: usize = 2;

/// Makes an executor on its own thread; called again when the executor cannot run further steps.
pub type ExecutorFactory =
    dyn Fn() -> Result<Box<dyn souffleur_executor::Executor>, LoadError> + Send + Sync;

/// A thread with an executor. When it is dropped, the thread ends after the last unit that it was connected to.
pub struct ExecutorThread {
    units: Sender<Answers>,
    is_alive: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

/// Where a unit's steps come from and their answers go to, and the note that reports the end of the unit's service.
struct Answers {
    connection: Connection,
    note: DeathNote,
}

struct LoadedExecutor {
    executor: Box<dyn souffleur_executor::Executor>,
    _life: Life,
}

/// Clears its flag when it is dropped.
struct Life(Arc<AtomicBool>);

impl Drop for Life {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

impl ExecutorThread {
    /// Starts a thread that loads the executor; the receiver gets the result of loading. `eos_token_ids` end outputs.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn spawn(
        factory: Arc<ExecutorFactory>,
        eos_token_ids: Arc<[u32]>,
    ) -> std::io::Result<(Self, oneshot::Receiver<Result<(), LoadError>>)> {
        let (units, connected) = unbounded();
        let (loaded, is_loaded) = oneshot::channel();
        let is_alive = Arc::new(AtomicBool::new(true));
        let life = Life(is_alive.clone());
        let thread = std::thread::Builder::new()
            .name("souffleur-executor".to_owned())
            .stack_size(souffleur_state::grammar::STACK_BYTES)
            .spawn(move || {
                let executor = match factory() {
                    Ok(executor) => executor,
                    Err(error) => return drop(loaded.send(Err(error))),
                };
                // The receiver is gone if the engine was dropped meanwhile.
                let _ = loaded.send(Ok(()));
                let executor = LoadedExecutor {
                    executor,
                    _life: life,
                };
                serve(executor, &eos_token_ids, &connected);
            })?;
        Ok((
            Self {
                units,
                is_alive,
                thread,
            },
            is_loaded,
        ))
    }

    /// Connects a unit: gives the thread the mailboxes for its answers, and for the vectors of images if there is a vision
    /// tower, and returns the sender for the unit's actor. The thread serves the unit after all units that were connected
    /// before have dropped their senders.
    pub fn connect(
        &self,
        done: Mailbox<StepDone>,
        encoded: Option<Mailbox<ImageEncoded>>,
        note: DeathNote,
    ) -> StepSender {
        let (steps, queued) = bounded(QUEUED_STEPS);
        let (ended, ended_ids) = unbounded();
        let connection = Connection {
            steps: queued,
            ended: ended_ids,
            done,
            encoded,
        };
        // If the thread has died, the note in the rejected message reports this when it is dropped.
        let _ = self.units.send(Answers { connection, note });
        StepSender { steps, ended }
    }

    /// Whether the thread has an executor that can run steps, or loads it. It is false before a note reports the loss
    /// of the executor, and still true when a note reports another panic.
    pub fn is_alive(&self) -> bool {
        self.is_alive.load(Ordering::SeqCst)
    }

    /// Ends the thread once the units have dropped their senders. Returns the thread to join.
    pub fn end(self) -> JoinHandle<()> {
        let Self { units, thread, .. } = self;
        drop(units);
        thread
    }
}

/// Runs the steps of each connected unit, until there are no more or the executor cannot run further steps.
fn serve(mut loaded: LoadedExecutor, eos_token_ids: &Arc<[u32]>, connected: &Receiver<Answers>) {
    while let Ok(Answers {
        connection,
        mut note,
    }) = connected.recv()
    {
        let rows = EndedRows::new(eos_token_ids.clone());
        let run = || run_steps(&mut *loaded.executor, rows, &connection);
        let ran = catch_unwind(AssertUnwindSafe(run));
        let is_orderly = matches!(ran, Ok(Ok(())));
        if is_orderly {
            note.disarm();
        }
        let is_usable = match ran {
            Ok(Err(lost)) => Err(lost),
            Ok(Ok(())) | Err(_) => reset(&mut *loaded.executor),
        };
        if let Err(error) = is_usable {
            tracing::error!(
                %error,
                "the executor cannot run further steps: it is dropped, and the engine is rebuilt if that can succeed"
            );
            // Its memory is free before the report, at which another executor may be loaded.
            drop(loaded);
            // The unit's channels still exist, so this death is reported before one of the actor that sends steps.
            return note.report_loss(&error);
        }
        if !is_orderly {
            note.report(true);
        }
    }
}
