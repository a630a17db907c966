//! The executor's thread: loads the executor, and runs the steps of the unit that it is connected to.

use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam_channel::{Sender, bounded, unbounded};
use tokio::sync::oneshot;

use super::StepSender;
use super::runner::{Answers, StepReceiver, run_steps};
use crate::death::DeathNote;
use crate::mailbox::Mailbox;
use crate::messages::StepDone;
use souffleur_base::error::LoadError;
use souffleur_executor::ended::EndedRows;

/// Capacity of the channel from the actor to the thread.
const QUEUED_STEPS: usize = 2;

/// An executor thread that has not received the mailbox for its answers yet.
pub struct ExecutorThread {
    sender: StepSender,
    answers: Sender<Answers>,
    thread: JoinHandle<()>,
}

/// Makes an executor on its own thread; called again when a unit is rebuilt.
pub type ExecutorFactory =
    dyn Fn() -> Result<Box<dyn souffleur_executor::Executor>, LoadError> + Send + Sync;

impl ExecutorThread {
    /// Starts a thread that loads the executor; the receiver gets the result of loading. `eos_token_ids` end outputs.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn spawn(
        factory: Arc<ExecutorFactory>,
        eos_token_ids: Arc<[u32]>,
    ) -> std::io::Result<(Self, oneshot::Receiver<Result<(), LoadError>>)> {
        let (steps, queued) = bounded(QUEUED_STEPS);
        let (ended, ended_ids) = unbounded();
        let (answers, connection) = bounded(1);
        let (loaded, is_loaded) = oneshot::channel();
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
                if let Ok(answers) = connection.recv() {
                    let receiver = StepReceiver {
                        steps: queued,
                        ended: ended_ids,
                    };
                    run_steps(executor, EndedRows::new(eos_token_ids), receiver, answers);
                }
            })?;
        Ok((
            Self {
                sender: StepSender { steps, ended },
                answers,
                thread,
            },
            is_loaded,
        ))
    }

    /// Gives the thread the mailbox for its answers. Returns the senders for the actor, and the thread to join.
    pub fn connect(self, done: Mailbox<StepDone>, note: DeathNote) -> (StepSender, JoinHandle<()>) {
        // If the thread has died, the note in the rejected message reports this when it is dropped.
        let _ = self.answers.send(Answers { done, note });
        (self.sender, self.thread)
    }
}
