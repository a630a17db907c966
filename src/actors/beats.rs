//! Watches that the threads of an engine make progress.
//!
//! No thread can be ended from outside, so a hang is seen and told, not survived: the engine ends, its requests get
//! their terminal events, and the host learns the reason. The hung thread keeps its memory until the process ends.

use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use std::time::{Duration, Instant};

use actix::{Message, Recipient};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use tokio::sync::watch;

use crate::death::StopActor;
use crate::messages::Doors;
use souffleur_base::beat::Beat;
use souffleur_base::error::StepError;
use souffleur_base::ids::UnitId;
use souffleur_executor::vision::EncodedImage;
use souffleur_executor::{DeviceLost, Executor, Launch};
use souffleur_metrics::{BeatMetrics, look_at_mailboxes};
use souffleur_state::step::{RowResult, StepOutput, StepPlan};
use souffleur_state::supervision::beats::{BeatWatch, Sign};

/// Beats and looks in a timeout.
const LOOKS: u32 = 8;
const SHORTEST_INTERVAL: Duration = Duration::from_millis(10);
const LONGEST_INTERVAL: Duration = Duration::from_millis(250);

/// A thread that is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watched {
    /// The thread of a unit's executor, during a step.
    Executor(UnitId),
    /// The Arbiter of the Watchdog and of the control actors.
    Control,
    /// The Arbiter of the Tokenizer.
    Tokenizer,
}

impl Watched {
    /// The threads of an engine with this number of units.
    fn all(units: usize) -> Vec<Self> {
        let executors = (0..units as u32).map(|unit| Self::Executor(UnitId::new(unit)));
        let mut all: Vec<Self> = executors.collect();
        all.extend([Self::Control, Self::Tokenizer]);
        all
    }

    /// The value of the metric's label.
    fn name(self) -> String {
        match self {
            Self::Executor(UnitId::FIRST) => "executor".to_owned(),
            Self::Executor(unit) => format!("executor_{unit}"),
            Self::Control => "control".to_owned(),
            Self::Tokenizer => "tokenizer".to_owned(),
        }
    }

    /// Why the engine ends, for the host and its operator.
    fn reason(self, timeout: Duration) -> String {
        let silent = match self {
            Self::Executor(_) => "the executor has finished no layer",
            Self::Control => "the thread of the scheduler has handled no message",
            Self::Tokenizer => "the thread of the tokenizer has handled no message",
        };
        let seconds = timeout.as_secs_f64();
        format!(
            "{silent} for {seconds} s, which is the limit (--watchdog-timeout-s): it hangs and cannot be stopped, so \
             the process must be restarted"
        )
    }
}

/// The beats of an engine's threads.
#[derive(Clone, Debug, Default)]
pub struct Beats {
    /// `None` if no thread is watched.
    timeout: Option<Duration>,
    /// The executors' beats, indexed by the unit's id.
    executors: Vec<Beat>,
    pub(crate) control: Beat,
    pub(crate) tokenizer: Beat,
}

impl Beats {
    /// The beats of an engine with this number of units.
    pub fn new(timeout: Option<Duration>, units: u32) -> Self {
        Self {
            timeout,
            executors: (0..units).map(|_| Beat::default()).collect(),
            ..Self::default()
        }
    }

    pub(crate) fn executor(&self, unit: UnitId) -> &Beat {
        &self.executors[unit.index()]
    }

    /// The time between two beats of an Arbiter, and between two looks; `None` if no thread is watched.
    pub(crate) fn interval(&self) -> Option<Duration> {
        let interval = self.timeout? / LOOKS;
        Some(interval.clamp(SHORTEST_INTERVAL, LONGEST_INTERVAL))
    }

    fn of(&self, thread: Watched) -> &Beat {
        match thread {
            Watched::Executor(unit) => self.executor(unit),
            Watched::Control => &self.control,
            Watched::Tokenizer => &self.tokenizer,
        }
    }
}

/// Watching thread -> Watchdog: a thread hangs, and the failure of the engine is set.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub struct Hang(pub Watched);

/// What a hang ends, without help of the thread that hangs.
pub struct Alarm {
    pub failure: Weak<watch::Sender<Option<Arc<str>>>>,
    pub doors: Arc<RwLock<Option<Doors>>>,
    pub watchdog: Recipient<Hang>,
}

type TokenizerSlot = Arc<Mutex<Option<Recipient<StopActor>>>>;

/// The watching thread, which ends soon after this is dropped.
pub struct Watch {
    tokenizer: TokenizerSlot,
    _running: Sender<()>,
}

impl Watch {
    /// Starts the thread. `None` if no thread is to be watched, or the watching one cannot be started.
    pub fn start(beats: &Beats, alarm: Alarm, model_name: &str) -> Option<Self> {
        let (timeout, interval) = (beats.timeout?, beats.interval()?);
        let (running, stopped) = bounded(0);
        let tokenizer = TokenizerSlot::default();
        let threads = Watched::all(beats.executors.len());
        let names: Vec<String> = threads.iter().map(|thread| thread.name()).collect();
        let watcher = Watcher {
            beats: beats.clone(),
            threads,
            timeout,
            interval,
            alarm,
            tokenizer: tokenizer.clone(),
            metrics: BeatMetrics::register(model_name, &names),
        };
        let thread = std::thread::Builder::new().name("souffleur-beats".to_owned());
        if let Err(error) = thread.spawn(move || watcher.run(&stopped)) {
            tracing::warn!(
                %error,
                "failed to start the thread that watches the others: a thread that hangs is not noticed"
            );
            return None;
        }
        Some(Self {
            tokenizer,
            _running: running,
        })
    }

    /// Replaces the Tokenizer that is stopped by a hang.
    pub fn set_tokenizer(&self, stop: Recipient<StopActor>) {
        *self
            .tokenizer
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Some(stop);
    }
}

struct Watcher {
    beats: Beats,
    threads: Vec<Watched>,
    timeout: Duration,
    interval: Duration,
    alarm: Alarm,
    tokenizer: TokenizerSlot,
    metrics: BeatMetrics,
}

impl Watcher {
    /// Looks until a thread hangs, or [`Watch`] is dropped.
    fn run(self, stopped: &Receiver<()>) {
        let began = Instant::now();
        let mut watch = BeatWatch::new(self.threads.len(), self.timeout.as_secs_f64(), 0.0);
        let mut signs = Vec::with_capacity(self.threads.len());
        while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(self.interval) {
            signs.clear();
            signs.extend(self.threads.iter().map(|thread| self.sign(*thread)));
            let hung = watch.look(&signs, began.elapsed().as_secs_f64());
            self.metrics.record(watch.silences_s());
            look_at_mailboxes();
            if let Some(hung) = hung {
                return self.raise(self.threads[hung]);
            }
        }
    }

    fn sign(&self, thread: Watched) -> Sign {
        let beat = self.beats.of(thread);
        Sign {
            beats: beat.count(),
            owes: beat.owes_work(),
        }
    }

    fn raise(&self, hung: Watched) {
        // The Watchdog is gone, and the engine with it.
        let Some(failure) = self.alarm.failure.upgrade() else {
            return;
        };
        let (thread, reason) = (hung.name(), hung.reason(self.timeout));
        tracing::error!(thread, reason, "the engine ends: a thread hangs");
        failure.send_if_modified(|failure| {
            let is_first = failure.is_none();
            if is_first {
                *failure = Some(reason.into());
            }
            is_first
        });
        if let Ok(mut doors) = self.alarm.doors.write() {
            *doors = None;
        }
        let tokenizer = self.tokenizer.lock();
        let tokenizer = tokenizer.unwrap_or_else(PoisonError::into_inner).take();
        if let Some(tokenizer) = tokenizer {
            // Its requests end here even if the thread of the Watchdog hangs.
            tokenizer.do_send(StopActor);
        }
        self.alarm.watchdog.do_send(Hang(hung));
    }
}

/// Marks when an executor has work, and counts the begin and the end of each step as signs of life.
pub(crate) struct BeatingExecutor {
    inner: Box<dyn Executor>,
    beat: Beat,
    in_flight: usize,
}

impl BeatingExecutor {
    pub(crate) fn new(mut inner: Box<dyn Executor>, beat: Beat) -> Self {
        inner.set_beat(beat.clone());
        Self {
            inner,
            beat,
            in_flight: 0,
        }
    }

    fn rest_if_idle(&self) {
        if self.in_flight == 0 {
            self.beat.rest();
        }
    }
}

impl Executor for BeatingExecutor {
    fn run(&mut self, plan: &StepPlan) -> Result<StepOutput, StepError> {
        self.beat.work();
        let output = self.inner.run(plan);
        self.rest_if_idle();
        output
    }

    fn launch(&mut self, plan: &StepPlan) -> Result<Launch, StepError> {
        self.beat.work();
        let launch = self.inner.launch(plan);
        if matches!(launch, Ok(Launch::UnderWay)) {
            self.in_flight += 1;
        }
        self.rest_if_idle();
        launch
    }

    /// No sign of life: a device that hangs can be polled for ever.
    fn is_finished(&mut self) -> bool {
        self.inner.is_finished()
    }

    fn finish(&mut self) -> Result<StepOutput, StepError> {
        self.beat.work();
        let output = self.inner.finish();
        self.in_flight = self.in_flight.saturating_sub(1);
        self.beat.beat();
        self.rest_if_idle();
        output
    }

    fn recycle(&mut self, rows: Vec<RowResult>) {
        self.inner.recycle(rows);
    }

    fn take_encoded(&mut self) -> Vec<EncodedImage> {
        self.inner.take_encoded()
    }

    fn forget_unwanted(&mut self) {
        self.inner.forget_unwanted();
    }

    fn set_beat(&mut self, beat: Beat) {
        self.inner.set_beat(beat.clone());
        self.beat = beat;
    }

    fn is_lost(&self) -> bool {
        self.inner.is_lost()
    }

    fn reset(&mut self) -> Result<(), DeviceLost> {
        self.beat.work();
        let reset = self.inner.reset();
        self.in_flight = 0;
        self.beat.rest();
        reset
    }

    fn run_faulty_item(&mut self, cause: &str) {
        self.inner.run_faulty_item(cause);
    }
}

impl Drop for BeatingExecutor {
    fn drop(&mut self) {
        self.beat.rest();
    }
}
