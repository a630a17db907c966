//! Tests of the executor's thread: panics of the executor, and units that it serves one after another.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use actix::{Actor, Addr, Context, Handler};
use actix_rt::System;
use crossbeam_channel::{Receiver, Sender, unbounded};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::{ExecutorThread, StepSender};
use crate::death::{DeathNote, StopActor};
use crate::mailbox::{Mailbox, Posted};
use crate::messages::{ActorDied, RunStep, StepDone};
use crate::panics;
use souffleur_base::error::{LoadError, StepError};
use souffleur_base::ids::{PageId, RowId, SeqId, StepId, UnitId};
use souffleur_executor::fake::{FakeExecutor, FakeOptions, expected_output};
use souffleur_executor::{DeviceLost, Executor, Launch};
use souffleur_state::pool::pages::{PageRun, PageSize, PoolLedger};
use souffleur_state::sampling::SamplingParams;
use souffleur_state::step::{
    PIPELINE_DEPTH, RowStart, RowWork, StepOutput, StepPlan, StepRow, TableDelta,
};
use souffleur_state::supervision::Incarnation;

const VOCAB: u32 = 100;
const PROMPT: [u32; 3] = [3, 5, 7];
const ROWS: u32 = 2;

/// What an executor does at one step, once.
#[derive(Clone)]
enum Fault {
    PanicInLaunch,
    /// Runs steps under way, and panics in the first `finish`.
    PanicInFinish,
    /// Panics, and cannot be used afterwards.
    DeviceLost,
    /// Runs the step. The device is lost afterwards, which no step reports.
    LostWhileIdle,
    /// Panics in the first step. The device is lost after the second one.
    PanicThenLost,
    /// Returns no rows for a step of decodes.
    MissingRows,
    /// Waits for a message when the step begins, and for another one.
    Held(Receiver<()>),
    /// None; tells each call of `forget_unwanted`.
    Told(Sender<()>),
}

#[derive(Default)]
struct Counts {
    builds: AtomicUsize,
    launches: AtomicUsize,
    resets: AtomicUsize,
    drops: AtomicUsize,
}

struct FaultyExecutor {
    inner: FakeExecutor,
    fault: Option<Fault>,
    under_way: usize,
    is_lost: bool,
    counts: Arc<Counts>,
}

impl FaultyExecutor {
    fn new(fault: Option<Fault>, counts: Arc<Counts>) -> Self {
        counts.builds.fetch_add(1, Ordering::SeqCst);
        let options = FakeOptions {
            page_size: 1,
            n_pages: 64,
            vocab_size: VOCAB,
            verify: true,
            n_states: 0,
            hidden_size: 0,
            faults: Vec::new(),
        };
        Self {
            inner: FakeExecutor::new(options),
            fault,
            under_way: 0,
            is_lost: false,
            counts,
        }
    }
}

impl Executor for FaultyExecutor {
    fn run(&mut self, plan: &StepPlan) -> Result<StepOutput, StepError> {
        self.inner.run(plan)
    }

    fn launch(&mut self, plan: &StepPlan) -> Result<Launch, StepError> {
        self.counts.launches.fetch_add(1, Ordering::SeqCst);
        match self.fault.take() {
            None => (),
            Some(Fault::PanicInLaunch) => panic!("planted"),
            Some(Fault::DeviceLost) => {
                self.is_lost = true;
                panic!("planted");
            }
            Some(Fault::LostWhileIdle) => self.is_lost = true,
            Some(Fault::PanicThenLost) => {
                self.fault = Some(Fault::LostWhileIdle);
                panic!("planted");
            }
            Some(Fault::PanicInFinish) => {
                self.fault = Some(Fault::PanicInFinish);
                self.under_way += 1;
                return Ok(Launch::UnderWay);
            }
            Some(Fault::MissingRows) if plan.starts.is_empty() => {
                let (step, rows) = (plan.step, Vec::new());
                return Ok(Launch::Done(StepOutput { step, rows }));
            }
            Some(Fault::MissingRows) => self.fault = Some(Fault::MissingRows),
            Some(Fault::Told(idle)) => self.fault = Some(Fault::Told(idle)),
            Some(Fault::Held(gate)) => {
                // The test holds the sender.
                gate.iter().take(2).for_each(drop);
            }
        }
        self.run(plan).map(Launch::Done)
    }

    fn is_finished(&mut self) -> bool {
        self.under_way == PIPELINE_DEPTH
    }

    fn finish(&mut self) -> Result<StepOutput, StepError> {
        self.fault = None;
        panic!("planted");
    }

    fn forget_unwanted(&mut self) {
        if let Some(Fault::Told(idle)) = &self.fault {
            // The test may have ended.
            let _ = idle.send(());
        }
    }

    fn is_lost(&self) -> bool {
        self.is_lost
    }

    fn reset(&mut self) -> Result<(), DeviceLost> {
        self.counts.resets.fetch_add(1, Ordering::SeqCst);
        if self.is_lost {
            return Err(DeviceLost("the device is gone".to_owned()));
        }
        self.under_way = 0;
        self.inner.reset()
    }
}

impl Drop for FaultyExecutor {
    fn drop(&mut self) {
        self.counts.drops.fetch_add(1, Ordering::SeqCst);
    }
}

/// Receives the answers of all units, and the deaths.
struct Sink {
    answers: UnboundedSender<StepDone>,
    deaths: UnboundedSender<ActorDied>,
}

impl Actor for Sink {
    type Context = Context<Self>;
}

impl Handler<Posted<StepDone>> for Sink {
    type Result = ();

    fn handle(&mut self, posted: Posted<StepDone>, _: &mut Context<Self>) {
        let (done, _timer) = posted.open();
        let _ = self.answers.send(done);
    }
}

impl Handler<ActorDied> for Sink {
    type Result = ();

    fn handle(&mut self, died: ActorDied, _: &mut Context<Self>) {
        let _ = self.deaths.send(died);
    }
}

impl Handler<StopActor> for Sink {
    type Result = ();

    /// The answer means that all messages sent before were handled.
    fn handle(&mut self, _: StopActor, _: &mut Context<Self>) {}
}

struct World {
    thread: ExecutorThread,
    sink: Addr<Sink>,
    answers: UnboundedReceiver<StepDone>,
    deaths: UnboundedReceiver<ActorDied>,
    counts: Arc<Counts>,
    units: u64,
}

impl World {
    async fn start(fault: Option<Fault>) -> Self {
        let counts = Arc::new(Counts::default());
        let shared = counts.clone();
        let factory = move || -> Result<Box<dyn Executor>, LoadError> {
            let executor = FaultyExecutor::new(fault.clone(), shared.clone());
            Ok(Box::new(executor))
        };
        let (thread, loaded) =
            ExecutorThread::spawn(Arc::new(factory), [].into()).expect("a thread starts");
        let loaded = loaded.await.expect("the thread lives");
        loaded.expect("the executor is made");
        let (answers, received) = unbounded_channel();
        let (deaths, died) = unbounded_channel();
        Self {
            thread,
            sink: Sink { answers, deaths }.start(),
            answers: received,
            deaths: died,
            counts,
            units: 0,
        }
    }

    /// Connects the next unit; its generation is its number.
    fn connect(&mut self) -> StepSender {
        self.units += 1;
        let died = self.sink.clone().recipient();
        let ledger = Arc::new(PoolLedger::new(PageSize::ONE));
        let at = Incarnation {
            unit: UnitId::new(0),
            generation: self.units,
        };
        let note = DeathNote::new("executor_thread", at, died, ledger);
        let done = Mailbox::of(&self.sink, "sink", "StepDone");
        self.thread.connect(done, None, note)
    }

    async fn answer(&mut self) -> StepDone {
        self.answers.recv().await.expect("the sink lives")
    }

    async fn assert_lost(&mut self, step: u64) {
        let done = self.answer().await;
        assert_eq!(done.step, StepId::new(step));
        assert!(matches!(done.result, Err(StepError::Lost(_))));
    }

    /// Checks that the next answer has the first tokens of all rows.
    async fn assert_opened(&mut self, step: u64) {
        let done = self.answer().await;
        assert_eq!(done.step, StepId::new(step));
        let rows = done.result.expect("the step ran").rows;
        let expected = expected_output(&PROMPT, 0, 1, VOCAB);
        assert_eq!(rows.len(), ROWS as usize);
        assert!(rows.iter().all(|row| row.tokens.as_slice() == expected));
    }

    /// Ends the thread, checks that it made and dropped one executor, and returns the remaining deaths.
    async fn end(mut self) -> Vec<ActorDied> {
        let joined = self.thread.end().join();
        joined.expect("the thread does not panic");
        let counts = [&self.counts.builds, &self.counts.drops];
        assert_eq!(counts.map(|count| count.load(Ordering::SeqCst)), [1, 1]);
        let flushed = self.sink.send(StopActor).await;
        flushed.expect("the sink lives");
        assert!(self.answers.try_recv().is_err(), "each step has one answer");
        let mut deaths = Vec::new();
        while let Ok(died) = self.deaths.try_recv() {
            deaths.push(died);
        }
        deaths
    }
}

fn plan(step: u64, work: &RowWork, pages: std::ops::Range<u32>) -> StepPlan {
    let mut plan = StepPlan {
        step: StepId::new(step),
        starts: Vec::new(),
        table: Vec::new(),
        rows: Vec::new(),
        copies: None,
        vision: None,
    };
    for number in 1..=ROWS {
        let (row, seq) = (RowId::new(number), SeqId::new(u64::from(number)));
        let pages = pages.clone().map(|page| PageId::new(number * 20 + page));
        plan.table.push(TableDelta::Append {
            row,
            pages: pages.collect(),
        });
        plan.rows.push(StepRow {
            row,
            seq,
            work: work.clone(),
            sample: true,
            logprobs: None,
            saves: Default::default(),
        });
    }
    plan
}

/// A step that starts all rows with the prompt.
fn opening(step: u64) -> RunStep {
    let positions = 0..PROMPT.len() as u32;
    let mut plan = plan(step, &RowWork::Prefill { positions }, 0..3);
    let starts = plan.rows.iter().map(|work| RowStart {
        row: work.row,
        seq: work.seq,
        tokens: PROMPT.as_slice().into(),
        prompt_tokens: PROMPT.len() as u32,
        sampling: Arc::new(SamplingParams::default()),
        grammar: None,
        vectors: None,
        images: None,
        pooling: None,
        prefix: PageRun::empty(),
        state: None,
        draft_texts: Default::default(),
    });
    plan.starts = starts.collect();
    RunStep {
        plan: Box::new(plan),
        spent: None,
    }
}

/// The first decode of all rows.
fn decode(step: u64) -> RunStep {
    let position = PROMPT.len() as u32;
    RunStep {
        plan: Box::new(plan(step, &RowWork::Decode { position, room: 1 }, 3..4)),
        spent: None,
    }
}

fn send(unit: &StepSender, step: RunStep) {
    unit.steps.send(step).expect("the unit is served");
}

#[test]
fn units_are_served_one_after_another_by_one_executor() {
    System::new().block_on(async {
        let mut world = World::start(None).await;
        let first = world.connect();
        send(&first, opening(1));
        world.assert_opened(1).await;
        drop(first);
        let second = world.connect();
        // The rows of the first unit are gone.
        send(&second, decode(2));
        assert!(world.answer().await.result.is_err());
        send(&second, opening(3));
        world.assert_opened(3).await;
        assert!(world.thread.is_alive());
        drop(second);
        assert!(world.end().await.is_empty(), "no unit ended by a death");
    });
}

#[test]
fn a_step_that_has_not_begun_ends_with_its_unit() {
    System::new().block_on(async {
        let (open, gate) = crossbeam_channel::bounded(0);
        let mut world = World::start(Some(Fault::Held(gate))).await;
        let first = world.connect();
        send(&first, opening(1));
        send(&first, decode(2));
        // Returns when the first step has begun.
        open.send(()).expect("the executor runs");
        drop(first);
        let second = world.connect();
        open.send(()).expect("the executor runs");
        world.assert_opened(1).await;
        send(&second, opening(3));
        world.assert_opened(3).await;
        assert_eq!(world.counts.launches.load(Ordering::SeqCst), 2);
        drop(second);
        assert!(world.end().await.is_empty());
    });
}

#[test]
fn a_panic_in_launch_loses_one_step() {
    System::new().block_on(async {
        let mut world = World::start(Some(Fault::PanicInLaunch)).await;
        let unit = world.connect();
        send(&unit, opening(1));
        world.assert_lost(1).await;
        send(&unit, opening(2));
        world.assert_opened(2).await;
        assert_eq!(world.counts.resets.load(Ordering::SeqCst), 1);
        assert!(world.thread.is_alive());
        drop(unit);
        assert!(world.end().await.is_empty());
    });
}

#[test]
fn a_panic_in_finish_loses_all_steps_in_flight() {
    System::new().block_on(async {
        let mut world = World::start(Some(Fault::PanicInFinish)).await;
        let unit = world.connect();
        send(&unit, opening(1));
        send(&unit, decode(2));
        world.assert_lost(1).await;
        world.assert_lost(2).await;
        send(&unit, opening(3));
        world.assert_opened(3).await;
        assert_eq!(world.counts.resets.load(Ordering::SeqCst), 1);
        drop(unit);
        assert!(world.end().await.is_empty());
    });
}

#[test]
fn a_lost_device_ends_the_thread() {
    System::new().block_on(async {
        panics::note_places();
        let mut world = World::start(Some(Fault::DeviceLost)).await;
        let unit = world.connect();
        send(&unit, opening(1));
        world.assert_lost(1).await;
        let died = world.deaths.recv().await.expect("the sink lives");
        assert_eq!((died.generation, died.panicked), (1, true));
        assert!(
            died.cause.starts_with("the device is gone (panic: "),
            "{}",
            died.cause
        );
        assert!(!world.thread.is_alive());
        // A unit that is connected nevertheless learns this, too.
        drop(world.connect());
        drop(unit);
        let deaths = world.end().await;
        let generations: Vec<u64> = deaths.iter().map(|died| died.generation).collect();
        assert_eq!(generations, [2]);
    });
}

#[test]
fn a_device_that_is_lost_while_no_step_runs_ends_the_thread() {
    System::new().block_on(async {
        let mut world = World::start(Some(Fault::LostWhileIdle)).await;
        let unit = world.connect();
        send(&unit, opening(1));
        world.assert_opened(1).await;
        let died = world.deaths.recv().await.expect("the sink lives");
        assert_eq!((died.generation, died.panicked), (1, true));
        assert_eq!(&*died.cause, "the device is gone");
        assert!(!world.thread.is_alive());
        drop(unit);
        assert!(world.end().await.is_empty());
    });
}

#[test]
fn an_idle_thread_frees_what_no_request_needs() {
    System::new().block_on(async {
        let (idle, told) = unbounded();
        let mut world = World::start(Some(Fault::Told(idle))).await;
        let unit = world.connect();
        send(&unit, opening(1));
        world.assert_opened(1).await;
        told.recv().expect("the executor lives");
        send(&unit, decode(2));
        world.answer().await.result.expect("the step ran");
        drop(unit);
        assert!(world.end().await.is_empty());
    });
}

#[test]
fn a_panic_after_which_the_executor_was_reset_is_not_the_cause_of_a_loss() {
    panics::note_places();
    System::new().block_on(async {
        let mut world = World::start(Some(Fault::PanicThenLost)).await;
        let unit = world.connect();
        send(&unit, opening(1));
        world.assert_lost(1).await;
        send(&unit, opening(2));
        world.assert_opened(2).await;
        let died = world.deaths.recv().await.expect("the sink lives");
        assert_eq!(&*died.cause, "the device is gone");
        drop(unit);
        assert!(world.end().await.is_empty());
    });
}

#[test]
fn a_panic_outside_of_the_executor_ends_the_unit_and_keeps_the_executor() {
    System::new().block_on(async {
        let mut world = World::start(Some(Fault::MissingRows)).await;
        let first = world.connect();
        send(&first, opening(1));
        world.assert_opened(1).await;
        // The result of a sequence that was skipped has no place among the missing rows.
        let ended = SeqId::new(u64::from(ROWS));
        first.ended.send(ended).expect("the unit is served");
        send(&first, decode(2));
        let died = world.deaths.recv().await.expect("the sink lives");
        assert_eq!((died.generation, died.panicked), (1, true));
        assert!(world.thread.is_alive());
        let second = world.connect();
        send(&second, opening(3));
        world.assert_opened(3).await;
        drop((first, second));
        assert!(world.end().await.is_empty());
    });
}
