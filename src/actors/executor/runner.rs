//! Runs the steps of a unit on the executor's thread, and answers them in order.
//!
//! A panic of the executor loses all steps in flight. After a lost step the executor is reset, once no step is in
//! flight.

use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, TryRecvError};

use crate::mailbox::Mailbox;
use crate::messages::{ImageEncoded, RunStep, StepDone};
use crate::panics;
use souffleur_base::error::StepError;
use souffleur_base::ids::{SeqId, StepId};
use souffleur_executor::ended::{EndedRows, SkippedRows};
use souffleur_executor::{DeviceLost, Executor, Launch};
use souffleur_metrics::MailboxMetrics;
use souffleur_state::step::{PIPELINE_DEPTH, StepOutput, StepPlan};

/// Time that the thread waits for the next step before it polls the device for the end of the step in flight.
const GLANCE: Duration = Duration::from_micros(20);
/// Interval at which the thread asks whether the device was lost, and frees the memory of images that no request waits
/// for, while no step is in flight.
const IDLE_GLANCE: Duration = Duration::from_millis(500);

/// The channels from a unit, and the mailbox for the answers.
pub(super) struct Connection {
    pub(super) steps: Receiver<RunStep>,
    pub(super) ended: Receiver<SeqId>,
    pub(super) done: Mailbox<StepDone>,
    /// Gets the vectors of images; `None` without a vision tower.
    pub(super) encoded: Option<Mailbox<ImageEncoded>>,
}

/// Runs steps until the unit has dropped its sender. Steps that have not begun by then are dropped.
///
/// # Errors
/// If the executor cannot run further steps.
pub(super) fn run_steps(
    executor: &mut dyn Executor,
    rows: EndedRows,
    connection: &Connection,
) -> Result<(), DeviceLost> {
    let mut runner = StepRunner {
        executor,
        rows,
        connection,
        work: MailboxMetrics::register("executor", "RunStep"),
        under_way: VecDeque::with_capacity(PIPELINE_DEPTH),
        condition: Condition::Sound,
        last_end: None,
    };
    loop {
        match runner.next() {
            Action::Launch(step) => runner.launch(step),
            Action::Finish => runner.finish(),
            Action::Reset => runner.reset()?,
            Action::End => return Ok(()),
        }
    }
}

/// Prepares an executor for new rows.
///
/// # Errors
/// If the executor cannot run further steps, also because it panics.
pub(super) fn reset(executor: &mut dyn Executor) -> Result<(), DeviceLost> {
    guarded(|| executor.reset()).unwrap_or_else(|panic| Err(DeviceLost(panic.0)))
}

/// A panic of the executor: the text of an error.
struct Panicked(String);

impl Panicked {
    /// The text has the panic's message, since the Scheduler tells causes of lost steps apart by it.
    fn new(payload: &(dyn Any + Send)) -> Self {
        let text = payload.downcast_ref::<&str>().copied();
        let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
        let text = text.unwrap_or("no message");
        Self(format!("the executor panicked: {text}"))
    }

    fn to_error(&self) -> StepError {
        StepError::Lost(self.0.clone())
    }
}

/// Calls the executor.
fn guarded<T>(call: impl FnOnce() -> T) -> Result<T, Panicked> {
    catch_unwind(AssertUnwindSafe(call)).map_err(|payload| Panicked::new(&*payload))
}

/// The executor, and the steps that were launched and not answered yet.
struct StepRunner<'a> {
    executor: &'a mut dyn Executor,
    /// The rows that steps must skip.
    rows: EndedRows,
    connection: &'a Connection,
    /// Counts the time of the steps, which the actor only forwards.
    work: Arc<MailboxMetrics>,
    under_way: VecDeque<LaunchedStep>,
    condition: Condition,
    last_end: Option<Instant>,
}

/// The executor's condition since its last reset.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Condition {
    Sound,
    /// A step was lost.
    Suspect,
    /// The executor has panicked: it is not called before its reset.
    Panicked,
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
    Reset,
    End,
}

impl StepRunner<'_> {
    /// Prefers a launch to an answer, because the device must not be idle.
    fn next(&mut self) -> Action {
        let steps = &self.connection.steps;
        if self.under_way.is_empty() {
            if self.condition != Condition::Sound {
                return Action::Reset;
            }
            return self.wait();
        }
        if self.under_way.len() == PIPELINE_DEPTH || self.condition == Condition::Panicked {
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

    /// Waits for a step, or for the loss of the device, and meanwhile frees what no request needs.
    fn wait(&mut self) -> Action {
        loop {
            match self.connection.steps.recv_timeout(IDLE_GLANCE) {
                Ok(step) => return Action::Launch(step),
                Err(RecvTimeoutError::Disconnected) => return Action::End,
                Err(RecvTimeoutError::Timeout) if self.executor.is_lost() => return Action::Reset,
                Err(RecvTimeoutError::Timeout) => self.executor.forget_unwanted(),
            }
        }
    }

    fn is_oldest_finished(&mut self) -> bool {
        let is_answered = self
            .under_way
            .front()
            .is_some_and(|oldest| oldest.result.is_some());
        if is_answered {
            return true;
        }
        let is_finished = guarded(|| self.executor.is_finished());
        is_finished.unwrap_or_else(|panic| {
            self.lose_steps_in_flight(&panic);
            true
        })
    }

    /// Launches a step. Steps are answered in order, even if a step is done at once or fails to launch.
    fn launch(&mut self, RunStep { mut plan, spent }: RunStep) {
        let launched = Instant::now();
        if !self.read_ends() {
            return;
        }
        self.rows.start(&plan.starts);
        let skipped = self.rows.skip(&mut plan);
        let is_skipped = !skipped.is_empty() && is_empty(&plan);
        let executor = &mut *self.executor;
        let begun = guarded(|| {
            if let Some(rows) = spent {
                executor.recycle(rows);
            }
            if is_skipped {
                return Ok(Launch::Done(StepOutput {
                    step: plan.step,
                    rows: Vec::new(),
                }));
            }
            executor.launch(&plan)
        });
        let (result, panic) = match begun {
            Ok(Ok(Launch::UnderWay)) => (None, None),
            Ok(Ok(Launch::Done(output))) => (Some(Ok(output)), None),
            Ok(Err(error)) => (Some(Err(error)), None),
            Err(panic) => (None, Some(panic)),
        };
        let is_answered = result.is_some();
        self.under_way.push_back(LaunchedStep {
            step: plan.step,
            launched,
            skipped,
            result,
        });
        if let Some(panic) = panic {
            self.lose_steps_in_flight(&panic);
        }
        if is_answered && self.under_way.len() == 1 {
            self.finish();
        }
    }

    /// Reads which sequences have ended. False if the unit has dropped its sender.
    fn read_ends(&mut self) -> bool {
        loop {
            match self.connection.ended.try_recv() {
                Ok(seq) => self.rows.end(seq),
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }

    /// Answers the oldest step. The time of a step that was launched while another one ran counts from that one's end.
    fn finish(&mut self) {
        let Some(oldest) = self.under_way.pop_front() else {
            return;
        };
        let result = match oldest.result {
            Some(result) => result,
            None => guarded(|| self.executor.finish()).unwrap_or_else(|panic| {
                self.lose_steps_in_flight(&panic);
                Err(panic.to_error())
            }),
        };
        if matches!(result, Err(StepError::Lost(_))) && self.condition == Condition::Sound {
            self.condition = Condition::Suspect;
        }
        let result = result.map(|mut output| {
            self.rows.note(&output.rows);
            oldest.skipped.put_back(&mut output.rows);
            output
        });
        if result.is_ok() {
            self.send_encoded();
        }
        let ended = Instant::now();
        let last_end = self.last_end.unwrap_or(oldest.launched);
        let began = oldest.launched.max(last_end);
        self.last_end = Some(ended);
        let run_seconds = (ended - began).as_secs_f64();
        self.work.worked(run_seconds);
        self.connection.done.post(StepDone {
            step: oldest.step,
            result,
            began,
            run_seconds,
            idle_seconds: (began - last_end).as_secs_f64(),
        });
    }

    fn send_encoded(&mut self) {
        let connection = self.connection;
        if let Some(vision) = &connection.encoded {
            for image in self.executor.take_encoded() {
                vision.post(ImageEncoded(image));
            }
        }
    }

    /// After a panic of the executor: all steps in flight are answered as lost, before another step begins.
    fn lose_steps_in_flight(&mut self, panic: &Panicked) {
        self.condition = Condition::Panicked;
        for step in &mut self.under_way {
            step.result = Some(Err(panic.to_error()));
        }
    }

    fn reset(&mut self) -> Result<(), DeviceLost> {
        if std::mem::replace(&mut self.condition, Condition::Sound) != Condition::Panicked {
            // The executor was reset after an earlier panic, which is not the cause if the device is lost now.
            panics::forget();
        }
        reset(self.executor)
    }
}

fn is_empty(plan: &StepPlan) -> bool {
    let has_rows = !plan.rows.is_empty() || !plan.starts.is_empty() || !plan.table.is_empty();
    !has_rows && plan.copies.is_none() && plan.vision.is_none()
}
