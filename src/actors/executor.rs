//! The Executor actor, and the OS thread that runs its steps and owns the weights, the KV buffers and the sampler.
//!
//! The thread runs steps through [`souffleur_executor::Executor`]. The channel to the thread holds two steps, and the
//! scheduler never has more than two in flight, so the actor never waits.

use std::collections::VecDeque;
use std::sync::Arc;
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
use souffleur_metrics::MailboxMetrics;
use souffleur_state::step::{PIPELINE_DEPTH, StepOutput, StepPlan};

/// Capacity of the channel from the actor to the thread.
const QUEUED_STEPS: usize = 2;

/// Time that the thread waits for the next step before it polls the device for the end of the step in flight.
const GLANCE: Duration = Duration::from_micros(20);

pub struct Executor {
    sender: StepSender,
    note: DeathNote,
}

pub struct StepSender {
    steps: Sender<RunStep>,
    /// Ended sequences, which overtake queued steps. The thread reads them before each step, so the channel holds at
    /// most as many ids as the last steps had rows.
    ended: Sender<SeqId>,
}

struct StepReceiver {
    steps: Receiver<RunStep>,
    ended: Receiver<SeqId>,
}

/// An executor thread that has not received the mailbox for its answers yet.
pub struct ExecutorThread {
    sender: StepSender,
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
    /// Starts a thread that loads the executor; the receiver gets the result of loading. `eos_token_ids` end outputs.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn spawn(
        factory: std::sync::Arc<ExecutorFactory>,
        eos_token_ids: std::sync::Arc<[u32]>,
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

fn run_steps(
    executor: Box<dyn souffleur_executor::Executor>,
    rows: EndedRows,
    StepReceiver { steps, ended }: StepReceiver,
    answers: Answers,
) {
    let Answers { done, mut note } = answers;
    let mut runner = StepRunner {
        executor,
        rows,
        ended,
        done,
        work: MailboxMetrics::register("executor", "RunStep"),
        under_way: VecDeque::with_capacity(PIPELINE_DEPTH),
        last_end: None,
    };
    loop {
        match runner.next(&steps) {
            Action::Launch(step) => runner.launch(step),
            Action::Finish => runner.finish(),
            Action::End => break,
        }
    }
    note.disarm();
}

/// The executor, and the steps that were launched and not answered yet.
struct StepRunner {
    executor: Box<dyn souffleur_executor::Executor>,
    /// The rows that steps must skip.
    rows: EndedRows,
    ended: Receiver<SeqId>,
    done: Mailbox<StepDone>,
    /// Counts the time of the steps, which the actor only forwards.
    work: Arc<MailboxMetrics>,
    under_way: VecDeque<LaunchedStep>,
    last_end: Option<Instant>,
}

struct LaunchedStep {
    step: StepId,
    launched: Instant,
    skipped: SkippedRows,
    /// `None` until the executor has returned the result.
    result: Option<Result<StepOutput, StepError>>,
}

enum Action {
    Launch(RunStep),
    Finish,
    End,
}

impl StepRunner {
    /// Prefers a launch to an answer, because the device must not be idle.
    fn next(&mut self, steps: &Receiver<RunStep>) -> Action {
        if self.under_way.is_empty() {
            return steps.recv().map_or(Action::End, Action::Launch);
        }
        if self.under_way.len() == PIPELINE_DEPTH {
            return Action::Finish;
        }
        match steps.try_recv() {
            Ok(step) => return Action::Launch(step),
            Err(TryRecvError::Disconnected) => return Action::Finish,
            Err(TryRecvError::Empty) => {}
        }
        while !self.is_oldest_finished() {
            match steps.recv_timeout(GLANCE) {
                Ok(step) => return Action::Launch(step),
                Err(RecvTimeoutError::Disconnected) => return Action::Finish,
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
        Action::Finish
    }

    fn is_oldest_finished(&mut self) -> bool {
        let is_answered = self
            .under_way
            .front()
            .is_some_and(|oldest| oldest.result.is_some());
        is_answered || self.executor.is_finished()
    }

    /// Launches a step. Steps are answered in order, even if a step is done at once or fails to launch.
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

    /// Answers the oldest step. The time of a step that was launched while another one ran counts from that one's end.
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
        let run_seconds = (ended - began).as_secs_f64();
        self.work.worked(run_seconds);
        self.done.post(StepDone {
            step: oldest.step,
            result,
            began,
            run_seconds,
            idle_seconds: (began - last_end).as_secs_f64(),
        });
    }
}

fn is_empty(plan: &StepPlan) -> bool {
    plan.rows.is_empty() && plan.starts.is_empty() && plan.table.is_empty() && plan.copies.is_none()
}

impl Executor {
    pub fn new(sender: StepSender, note: DeathNote) -> Self {
        Self { sender, note }
    }
}

impl Actor for Executor {
    type Context = Context<Self>;
}

impl Handler<Posted<RunStep>> for Executor {
    type Result = ();

    fn handle(&mut self, posted: Posted<RunStep>, ctx: &mut Context<Self>) {
        let (step, _timer) = posted.open();
        if self.sender.steps.try_send(step).is_err() {
            // Either the thread has ended and its note reported this, or there is a third step: the unit is broken.
            tracing::error!(
                "cannot send a step to the executor thread (its queue is full or it has ended): rebuilding the engine"
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
            // If the thread has ended, its note has reported this.
            let _ = self.sender.ended.send(seq);
        }
    }
}

impl Handler<StopActor> for Executor {
    type Result = ();

    fn handle(&mut self, _: StopActor, ctx: &mut Context<Self>) {
        stop_actor(&mut self.note, ctx);
    }
}
