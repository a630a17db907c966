//! The Executor: a front on the control Arbiter and the OS thread that owns weights, KV buffers and sampler.
//!
//! A token is sampled on that thread, behind [`crate::executor::Executor::run`]. The channel in between holds two
//! steps, and the scheduler never has more than two under way, so the front never waits.

use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use actix::{Actor, ActorContext, Context, Handler};
use crossbeam_channel::{Receiver, Sender, bounded};
use tokio::sync::oneshot;

use crate::actors::mailbox::{Mailbox, Posted};
use crate::actors::messages::{RunStep, StepDone};
use crate::actors::watchdog::{DeathNote, StopActor, stop_actor};
use crate::error::LoadError;
use crate::executor;

/// Steps between the front and the thread.
const QUEUED_STEPS: usize = 2;

/// The front.
pub struct Executor {
    steps: Sender<RunStep>,
    note: DeathNote,
}

/// A thread that has loaded its executor and waits to be told whom to answer.
pub struct ExecutorThread {
    steps: Sender<RunStep>,
    answers: Sender<Answers>,
    thread: JoinHandle<()>,
}

/// Whom the thread answers, and who hears of its death.
struct Answers {
    done: Mailbox<StepDone>,
    note: DeathNote,
}

/// Makes an executor on its own thread; called again when a unit is rebuilt.
pub type ExecutorFactory = dyn Fn() -> Result<Box<dyn executor::Executor>, LoadError> + Send + Sync;

impl ExecutorThread {
    /// Starts a thread and loads the executor there; the receiver hears how that went.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub fn spawn(
        factory: std::sync::Arc<ExecutorFactory>,
    ) -> std::io::Result<(Self, oneshot::Receiver<Result<(), LoadError>>)> {
        let (steps, queued) = bounded(QUEUED_STEPS);
        let (answers, wired) = bounded(1);
        let (loaded, is_loaded) = oneshot::channel();
        let thread = std::thread::Builder::new()
            .name("souffleur-executor".to_owned())
            .spawn(move || {
                let executor = match factory() {
                    Ok(executor) => executor,
                    Err(error) => return drop(loaded.send(Err(error))),
                };
                // Nobody waits any more when the engine was dropped meanwhile.
                let _ = loaded.send(Ok(()));
                if let Ok(answers) = wired.recv() {
                    run_steps(executor, &queued, answers);
                }
            })?;
        Ok((
            Self {
                steps,
                answers,
                thread,
            },
            is_loaded,
        ))
    }

    /// Tells the thread whom to answer; returns the front's end of the channel and the thread to join.
    pub fn connect(
        self,
        done: Mailbox<StepDone>,
        note: DeathNote,
    ) -> (Sender<RunStep>, JoinHandle<()>) {
        // A thread that died has told its death note already.
        let _ = self.answers.send(Answers { done, note });
        (self.steps, self.thread)
    }
}

fn run_steps(
    mut executor: Box<dyn executor::Executor>,
    steps: &Receiver<RunStep>,
    answers: Answers,
) {
    let Answers { done, mut note } = answers;
    let mut idle_since: Option<Instant> = None;
    while let Ok(RunStep { plan, spent }) = steps.recv() {
        let started = Instant::now();
        let idle = idle_since.map_or(Duration::ZERO, |since| started - since);
        if let Some(rows) = spent {
            executor.recycle(rows);
        }
        let result = executor.run(&plan);
        let ended = Instant::now();
        idle_since = Some(ended);
        done.post(StepDone {
            step: plan.step,
            result,
            run_seconds: (ended - started).as_secs_f64(),
            idle_seconds: idle.as_secs_f64(),
        });
    }
    note.disarm();
}

impl Executor {
    /// A front to a thread.
    pub fn new(steps: Sender<RunStep>, note: DeathNote) -> Self {
        Self { steps, note }
    }
}

impl Actor for Executor {
    type Context = Context<Self>;
}

impl Handler<Posted<RunStep>> for Executor {
    type Result = ();

    fn handle(&mut self, posted: Posted<RunStep>, ctx: &mut Context<Self>) {
        let (step, _timer) = posted.open();
        if self.steps.try_send(step).is_err() {
            // The thread is gone (its own note has told) or a third step came: either way the unit is broken.
            tracing::error!("the executor thread takes no step");
            ctx.terminate();
        }
    }
}

impl Handler<StopActor> for Executor {
    type Result = ();

    fn handle(&mut self, _: StopActor, ctx: &mut Context<Self>) {
        stop_actor(&mut self.note, ctx);
    }
}
