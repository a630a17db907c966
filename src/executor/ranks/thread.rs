//! The thread of a rank: loads the rank's executor, and follows the orders of the ranks' leader.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

use crate::vision::EncodedImage;
use crate::{DeviceLost, Executor, Launch};
use souffleur_base::beat::Beat;
use souffleur_base::error::{LoadError, StepError};
use souffleur_kernels::cpu::ranks::RanksLost;
use souffleur_state::step::{RowResult, StepOutput, StepPlan};

/// Stack of a rank's thread: grammar masks are computed there too, by recursion as deep as the grammar.
const STACK_BYTES: usize = 64 << 20;

/// The executor of a rank.
pub(crate) trait RankExecutor: Executor {
    /// Ends the collectives of all ranks, with the reason; an earlier reason stays.
    fn fail_ranks(&self, reason: &str);

    /// Why another rank or the leader has ended the collectives. An executor on a CPU panics with [`RanksLost`]
    /// instead.
    fn ended_by_others(&self) -> Option<String> {
        None
    }
}

/// Makes the executor of a rank, on the rank's thread.
pub(crate) type MakeRank =
    Box<dyn FnOnce(&Reporter) -> Result<Box<dyn RankExecutor>, LoadFailure> + Send>;

/// Why a rank was not loaded.
#[derive(Debug)]
pub(crate) enum LoadFailure {
    Own(LoadError),
    /// Another rank has failed, with this text.
    Others(String),
}

impl LoadFailure {
    pub(crate) fn into_error(self) -> LoadError {
        match self {
            Self::Own(error) => error,
            Self::Others(reason) => LoadError::Device(reason),
        }
    }
}

impl From<LoadError> for LoadFailure {
    fn from(error: LoadError) -> Self {
        Self::Own(error)
    }
}

/// Collectives that run on devices, where the ranks' threads do not wait for each other.
pub(crate) trait Collectives: Send + Sync {
    /// A failure that a device has noticed.
    fn failure(&self) -> Option<String>;

    /// Ends the collectives of all ranks, for good; an earlier reason stays.
    fn end(&self, reason: &str);

    /// Why the collectives have ended.
    fn ended(&self) -> Option<String>;
}

pub(super) enum Order {
    Launch(Arc<StepPlan>),
    Finish,
    /// Asks whether the oldest step has ended.
    Poll,
    Reset,
    /// Has no answer.
    Recycle(Vec<RowResult>),
    /// Has no answer.
    SetBeat(Beat),
    /// Has no answer.
    ForgetUnwanted,
}

pub(super) enum Answer {
    /// Part of the load: bytes read, and their total.
    Progress(u64, u64),
    /// Part of the load: the rank begins to connect to the others' devices.
    Connects,
    Loaded(Result<(), LoadFailure>),
    /// Before the answer to the order that completed the images.
    Encoded(Vec<EncodedImage>),
    Launched(Result<Launch, Failure>),
    Finished(Result<StepOutput, Failure>),
    Polled {
        has_ended: bool,
    },
    Reset(Result<(), DeviceLost>),
}

pub(super) struct Failure {
    pub(super) error: StepError,
    /// Whether the rank failed, and not another one that it waited for.
    pub(super) is_own: bool,
}

/// Sends a rank's answers to the leader, which may be gone if the load of another rank has failed.
pub(crate) struct Reporter {
    index: usize,
    answers: Sender<(usize, Answer)>,
}

impl Reporter {
    pub(crate) fn progress(&self, done: u64, total: u64) {
        self.send(Answer::Progress(done, total));
    }

    /// Says that the rest of the load must not take longer than a step may.
    pub(crate) fn connects(&self) {
        self.send(Answer::Connects);
    }

    fn encoded(&self, images: Vec<EncodedImage>) {
        if !images.is_empty() {
            self.send(Answer::Encoded(images));
        }
    }

    fn send(&self, answer: Answer) {
        let _ = self.answers.send((self.index, answer));
    }
}

pub(super) struct RankThread {
    orders: Sender<Order>,
    thread: JoinHandle<()>,
}

impl RankThread {
    /// # Errors
    /// If the thread cannot be started.
    pub(super) fn spawn(
        (index, make): (usize, MakeRank),
        collectives: Option<Arc<dyn Collectives>>,
        answers: &Sender<(usize, Answer)>,
    ) -> Result<Self, LoadError> {
        let (orders, of_rank) = channel();
        let reporter = Reporter {
            index,
            answers: answers.clone(),
        };
        let thread = thread::Builder::new()
            .name(format!("souffleur-rank-{index}"))
            .stack_size(STACK_BYTES)
            .spawn(move || serve(make, collectives.as_deref(), &of_rank, &reporter));
        let thread = thread.map_err(|error| {
            LoadError::Memory(format!("failed to start the thread of a rank: {error}"))
        })?;
        Ok(Self { orders, thread })
    }

    /// Gives the rank an order. A rank that has ended is noticed by its missing answer.
    pub(super) fn order(&self, order: Order) {
        let _ = self.orders.send(order);
    }

    /// Lets the thread end. Returns the thread to join.
    pub(super) fn end(self) -> JoinHandle<()> {
        self.thread
    }
}

fn serve(
    make: MakeRank,
    collectives: Option<&dyn Collectives>,
    orders: &Receiver<Order>,
    reporter: &Reporter,
) {
    let index = reporter.index;
    let loaded = catch_unwind(AssertUnwindSafe(|| make(reporter))).unwrap_or_else(|payload| {
        let text = text_of(&*payload);
        Err(LoadFailure::Own(LoadError::Memory(format!(
            "rank {index} panicked in the load: {text}"
        ))))
    });
    let mut executor = match loaded {
        Ok(executor) => executor,
        Err(failure) => {
            if let (Some(collectives), LoadFailure::Own(error)) = (collectives, &failure) {
                collectives.end(&format!("rank {index} failed in the load: {error}"));
            }
            return reporter.send(Answer::Loaded(Err(failure)));
        }
    };
    reporter.send(Answer::Loaded(Ok(())));
    for order in orders {
        let executor = &mut *executor;
        match order {
            Order::Launch(plan) => {
                let launched = guarded(executor, index, |executor| executor.launch(&plan));
                reporter.encoded(executor.take_encoded());
                reporter.send(Answer::Launched(launched));
            }
            Order::Finish => {
                let finished = guarded(executor, index, |executor| executor.finish());
                reporter.encoded(executor.take_encoded());
                reporter.send(Answer::Finished(finished));
            }
            Order::Poll => {
                let has_ended = executor.is_finished();
                reporter.send(Answer::Polled { has_ended });
            }
            Order::Reset => reporter.send(Answer::Reset(executor.reset())),
            Order::Recycle(rows) => executor.recycle(rows),
            Order::SetBeat(beat) => executor.set_beat(beat),
            Order::ForgetUnwanted => executor.forget_unwanted(),
        }
    }
}

/// Runs a part of a step. If the rank fails, the others' next collective ends their step.
fn guarded<T>(
    executor: &mut dyn RankExecutor,
    index: usize,
    run: impl FnOnce(&mut dyn RankExecutor) -> Result<T, StepError>,
) -> Result<T, Failure> {
    let lost = |reason: String, is_own| Failure {
        error: StepError::Lost(reason),
        is_own,
    };
    match catch_unwind(AssertUnwindSafe(|| run(&mut *executor))) {
        Ok(Ok(result)) => Ok(result),
        Ok(Err(StepError::Lost(reason))) => match executor.ended_by_others() {
            Some(others) => Err(lost(others, false)),
            None => {
                executor.fail_ranks(&format!("rank {index} lost the step: {reason}"));
                Err(lost(reason, true))
            }
        },
        Ok(Err(error)) => Err(Failure {
            error,
            is_own: true,
        }),
        Err(payload) => match payload.downcast_ref::<RanksLost>() {
            Some(others) => Err(lost(others.to_string(), false)),
            None => {
                let reason = format!("rank {index} panicked: {}", text_of(&*payload));
                executor.fail_ranks(&reason);
                Err(lost(reason, true))
            }
        },
    }
}

fn text_of(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("without a message").to_owned()
}
