//! The Executor actor, and the OS thread that it passes steps to: the thread owns weights, KV buffers and sampler.
//!
//! The thread samples tokens through [`souffleur_executor::Executor`]. The channel to it holds two steps, and the
//! scheduler never has more than two in flight, so the actor never waits.

use std::collections::VecDeque;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use actix::{Actor, ActorContext, Context, Handler};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TryRecvError, bounded, unbounded};
use tokio::sync::oneshot;

use crate::death::{DeathNote, StopActor, stop_actor};
use crate::mailbox::{Mailbox, Posted};
use crate::messages::{RunStep, SequencesEnded, StepDone};
use souffleur_base::error::{LoadError, StepError};
use souffleur_base::ids::{SeqId, StepId};
use souffleur_executor::Launch;
use souffleur_executor::ended::{EndedRows, SkippedRows};
use souffleur_state::step::{PIPELINE_DEPTH, StepOutput, StepPlan};

/// Steps between the actor and the thread.
const QUEUED_STEPS: usize = 2;

/// Time that the thread waits for a step before it polls the device for the end of the one in flight.
const GLANCE: Duration = Duration::from_micros(20);

pub struct Executor {
    line: LineIn,
    note: DeathNote,
}

pub struct LineIn {
    steps: Sender<RunStep>,
    /// Ended sequences, which overtake queued steps. The thread reads them before each step, so the channel holds at
    /// most as many ids as the last steps had rows.
    ended: Sender<SeqId>,
}

struct LineOut {
    steps: Receiver<RunStep>,
    ended: Receiver<SeqId>,
}

/// A thread that has loaded its executor and waits for the mailbox for its answers.
pub struct ExecutorThread {
    line: LineIn,
    answers: Sender<Answers>,
    thread: JoinHandle<()>,
}

struct Answers {
    done: Mailbox<StepDone>,
    note: DeathNote,
}

/// Makes an executor on its own thread; called again when a unit is rebuilt.
pub type ExecutorFactory =
    dyn Fn() -> Result<Box<dyn souffleur_executor::Executor>, LoadError> + Send + Sync;

impl ExecutorThread {
    /// Starts a thread and loads the executor there; the receiver gets the result. `eos_token_ids` end outputs.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub fn spawn(
        factory: std::sync::Arc<ExecutorFactory>,
        eos_token_ids: std::sync::Arc<[u32]>,
    ) -> std::io::Result<(Self, oneshot::Receiver<Result<(), LoadError>>)> {
        let (steps, queued) = bounded(QUEUED_STEPS);
        let (ended, ends) = unbounded();
        let (answers, wired) = bounded(1);
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
                if let Ok(answers) = wired.recv() {
                    let line = LineOut {
                        steps: queued,
                        ended: ends,
                    };
                    run_steps(executor, EndedRows::new(eos_token_ids), line, answers);
                }
            })?;
        Ok((
            Self {
                line: LineIn { steps, ended },
                answers,
                thread,
            },
            is_loaded,
        ))
    }

    /// Gives the thread the mailbox for its answers; returns the actor's ends of the channels and the thread to join.
    pub fn connect(self, done: Mailbox<StepDone>, note: DeathNote) -> (LineIn, JoinHandle<()>) {
        // A thread that died has sent its death note already.
        let _ = self.answers.send(Answers { done, note });
        (self.line, self.thread)
    }
}

fn run_steps(
    executor: Box<dyn souffleur_executor::Executor>,
    rows: EndedRows,
    LineOut { steps, ended }: LineOut,
    answers: Answers,
) {
    let Answers { done, mut note } = answers;
    let mut line = StepLine {
        executor,
        rows,
        ended,
        done,
        under_way: VecDeque::with_capacity(PIPELINE_DEPTH),
        last_end: None,
    };
    loop {
        match line.next(&steps) {
            Turn::Launch(step) => line.launch(step),
            Turn::Finish => line.finish(),
            Turn::End => break,
        }
    }
    note.disarm();
}

/// The executor, and the steps that were launched and not answered yet.
struct StepLine {
    executor: Box<dyn souffleur_executor::Executor>,
    /// The rows that steps must skip.
    rows: EndedRows,
    ended: Receiver<SeqId>,
    done: Mailbox<StepDone>,
    under_way: VecDeque<LaunchedStep>,
    last_end: Option<Instant>,
}

struct LaunchedStep {
    step: StepId,
    launched: Instant,
    skipped: SkippedRows,
    /// `None` until the executor has returned it.
    result: Option<Result<StepOutput, StepError>>,
}

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

    /// Launches a step. If it ends with its launch, or fails to launch, it is still answered in order of steps.
    fn launch(&mut self, RunStep { mut plan, spent }: RunStep) {
        let launched = Instant::now();
        if let Some(rows) = spent {
            self.executor.recycle(rows);
        }
        while let Ok(seq) = self.ended.try_recv() {
            self.rows.end(seq);
        }
        self.rows.start(&plan.starts);
        let skipped = self.rows.skip(&mut plan);
        let result = if !skipped.is_empty() && is_empty(&plan) {
            Some(Ok(StepOutput {
                step: plan.step,
                rows: Vec::new(),
            }))
        } else {
            match self.executor.launch(&plan) {
                Ok(Launch::UnderWay) => None,
                Ok(Launch::Done(output)) => Some(Ok(output)),
                Err(error) => Some(Err(error)),
            }
        };
        let is_answered = result.is_some();
        self.under_way.push_back(LaunchedStep {
            step: plan.step,
            launched,
            skipped,
            result,
        });
        if is_answered && self.under_way.len() == 1 {
            self.finish();
        }
    }

    /// Answers the oldest step. A step launched while another one runs begins when that one ends.
    fn finish(&mut self) {
        let Some(oldest) = self.under_way.pop_front() else {
            return;
        };
        let result = oldest.result.unwrap_or_else(|| self.executor.finish());
        let result = result.map(|mut output| {
            self.rows.note(&output.rows);
            oldest.skipped.put_back(&mut output.rows);
            output
        });
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

fn is_empty(plan: &StepPlan) -> bool {
    plan.rows.is_empty() && plan.starts.is_empty() && plan.table.is_empty() && plan.copies.is_none()
}

impl Executor {
    pub fn new(line: LineIn, note: DeathNote) -> Self {
        Self { line, note }
    }
}

impl Actor for Executor {
    type Context = Context<Self>;
}

impl Handler<Posted<RunStep>> for Executor {
    type Result = ();

    fn handle(&mut self, posted: Posted<RunStep>, ctx: &mut Context<Self>) {
        let (step, _timer) = posted.open();
        if self.line.steps.try_send(step).is_err() {
            // The thread is gone (and has sent its note) or a third step came: either way the unit is broken.
            tracing::error!(
                "cannot hand a step to the executor thread (its queue is full or it has ended): rebuilding the engine"
            );
            ctx.terminate();
        }
    }
}

impl Handler<Posted<SequencesEnded>> for Executor {
    type Result = ();

    fn handle(&mut self, posted: Posted<SequencesEnded>, _: &mut Context<Self>) {
        let (SequencesEnded { seqs }, _timer) = posted.open();
        for seq in seqs {
            // A thread that is gone has sent its death note.
            let _ = self.line.ended.send(seq);
        }
    }
}

impl Handler<StopActor> for Executor {
    type Result = ();

    fn handle(&mut self, _: StopActor, ctx: &mut Context<Self>) {
        stop_actor(&mut self.note, ctx);
    }
}
