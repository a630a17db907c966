//! Runs the steps of a unit on the executor's thread, and answers them in order.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, TryRecvError};

use crate::death::DeathNote;
use crate::mailbox::Mailbox;
use crate::messages::{RunStep, StepDone};
use souffleur_base::error::StepError;
use souffleur_base::ids::{SeqId, StepId};
use souffleur_executor::Launch;
use souffleur_executor::ended::{EndedRows, SkippedRows};
use souffleur_metrics::MailboxMetrics;
use souffleur_state::step::{PIPELINE_DEPTH, StepOutput, StepPlan};

/// Time that the thread waits for the next step before it polls the device for the end of the step in flight.
const GLANCE: Duration = Duration::from_micros(20);

pub(super) struct StepReceiver {
    pub(super) steps: Receiver<RunStep>,
    pub(super) ended: Receiver<SeqId>,
}

pub(super) struct Answers {
    pub(super) done: Mailbox<StepDone>,
    pub(super) note: DeathNote,
}

pub(super) fn run_steps(
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
