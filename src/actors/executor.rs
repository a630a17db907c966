//! The Executor: a front on the control Arbiter and the OS thread that owns weights, KV buffers and sampler.
//!
//! A token is sampled on that thread, behind [`crate::executor::Executor`]. The channel in between holds two
//! steps, and the scheduler never has more than two under way, so the front never waits.

use std::collections::VecDeque;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use actix::{Actor, ActorContext, Context, Handler};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TryRecvError, bounded};
use tokio::sync::oneshot;

use crate::actors::death::{DeathNote, StopActor, stop_actor};
use crate::actors::mailbox::{Mailbox, Posted};
use crate::actors::messages::{RunStep, StepDone};
use crate::error::{LoadError, StepError};
use crate::executor::{self, Launch};
use crate::ids::StepId;
use crate::state::step::{PIPELINE_DEPTH, StepOutput};

/// Steps between the front and the thread.
const QUEUED_STEPS: usize = 2;

/// How long the thread waits for a step before it asks the device whether the one under way has ended.
const GLANCE: Duration = Duration::from_micros(20);

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
            .stack_size(crate::state::grammar::STACK_BYTES)
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

fn run_steps(executor: Box<dyn executor::Executor>, steps: &Receiver<RunStep>, answers: Answers) {
    let Answers { done, mut note } = answers;
    let mut line = StepLine {
        executor,
        done,
        under_way: VecDeque::with_capacity(PIPELINE_DEPTH),
        last_end: None,
    };
    loop {
        match line.next(steps) {
            Turn::Launch(step) => line.launch(step),
            Turn::Finish => line.finish(),
            Turn::End => break,
        }
    }
    note.disarm();
}

/// The executor, and the steps that it was handed and has not answered.
struct StepLine {
    executor: Box<dyn executor::Executor>,
    done: Mailbox<StepDone>,
    under_way: VecDeque<LaunchedStep>,
    /// When the last step ended.
    last_end: Option<Instant>,
}

struct LaunchedStep {
    step: StepId,
    launched: Instant,
    /// `None` while only the executor knows.
    result: Option<Result<StepOutput, StepError>>,
}

/// The next work of the thread.
enum Turn {
    Launch(RunStep),
    Finish,
    End,
}

impl StepLine {
    /// Prefers to launch: an answer can wait while the device has nothing to do.
    fn next(&mut self, steps: &Receiver<RunStep>) -> Turn {
        if self.under_way.is_empty() {
            return steps.recv().map_or(Turn::End, Turn::Launch);
        }
        if self.under_way.len() == PIPELINE_DEPTH {
            return Turn::Finish;
        }
        match steps.try_recv() {
            Ok(step) => return Turn::Launch(step),
            Err(TryRecvError::Disconnected) => return Turn::Finish,
            Err(TryRecvError::Empty) => {}
        }
        while !self.is_oldest_finished() {
            match steps.recv_timeout(GLANCE) {
                Ok(step) => return Turn::Launch(step),
                Err(RecvTimeoutError::Disconnected) => return Turn::Finish,
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
        Turn::Finish
    }

    fn is_oldest_finished(&mut self) -> bool {
        let is_answered = self
            .under_way
            .front()
            .is_some_and(|oldest| oldest.result.is_some());
        is_answered || self.executor.is_finished()
    }

    /// A step that ends with its launch, and one that is refused, are answered in their turn.
    fn launch(&mut self, RunStep { plan, spent }: RunStep) {
        let launched = Instant::now();
        if let Some(rows) = spent {
            self.executor.recycle(rows);
        }
        let result = match self.executor.launch(&plan) {
            Ok(Launch::UnderWay) => None,
            Ok(Launch::Done(output)) => Some(Ok(output)),
            Err(error) => Some(Err(error)),
        };
        let is_answered = result.is_some();
        self.under_way.push_back(LaunchedStep {
            step: plan.step,
            launched,
            result,
        });
        if is_answered && self.under_way.len() == 1 {
            self.finish();
        }
    }

    /// Answers the oldest step. A step launched behind another one begins when that one ends.
    fn finish(&mut self) {
        let Some(oldest) = self.under_way.pop_front() else {
            return;
        };
        let result = oldest.result.unwrap_or_else(|| self.executor.finish());
        let ended = Instant::now();
        let last_end = self.last_end.unwrap_or(oldest.launched);
        let began = oldest.launched.max(last_end);
        self.last_end = Some(ended);
        self.done.post(StepDone {
            step: oldest.step,
            result,
            run_seconds: (ended - began).as_secs_f64(),
            idle_seconds: (began - last_end).as_secs_f64(),
        });
    }
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
