//! Runs a model on several CPU ranks: an executor for each, on its own thread.
//!
//! Every rank has a part of the weights and of the KV memory, gets the same plans, and samples for every row; rank 0
//! answers. A step that one rank loses is lost on all.

mod store;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use self::store::{Exchange, RankPort, RanksStore};
use super::{CpuExecutor, CpuOptions};
use crate::host::BlockPort;
use crate::{DeviceLost, Executor};
use souffleur_base::beat::Beat;
use souffleur_base::error::{LoadError, StepError};
use souffleur_kernels::cpu::Numa;
use souffleur_kernels::cpu::ranks::{GroupRules, Moment, RankLink, RanksLost};
use souffleur_kernels::shard::Rank;
use souffleur_model::loader::{Checkpoint, LoadProgress};
use souffleur_state::step::{RowResult, StepOutput, StepPlan};

/// Stack of a rank's thread: grammar masks are computed there too, by recursion as deep as the grammar.
const STACK_BYTES: usize = 64 << 20;

/// Several CPU executors that run one model.
pub struct CpuRanks {
    ranks: Vec<RankThread>,
    answers: Receiver<(usize, Answer)>,
    store: Option<RanksStore>,
    limit: Duration,
    /// Why no further step can run: a rank does not answer.
    lost: Option<String>,
}

struct RankThread {
    orders: Sender<Order>,
    thread: JoinHandle<()>,
}

enum Order {
    Run(Arc<StepPlan>),
    Reset,
    /// Has no answer.
    Recycle(Vec<RowResult>),
    /// Has no answer.
    SetBeat(Beat),
}

enum Answer {
    Progress(u64, u64),
    Loaded(Result<(), LoadError>),
    Ran(Result<StepOutput, Failure>),
    Reset(Result<(), DeviceLost>),
}

struct Failure {
    error: StepError,
    /// Whether the rank failed, and not another one that it waited for.
    is_own: bool,
}

impl CpuRanks {
    /// Loads a model on the ranks of a group, each with the threads of `options`, on one NUMA node unless `numa` is off.
    ///
    /// # Errors
    /// Those of [`CpuExecutor::load`], and if the ranks cannot share the model: the text names `tp_size`.
    ///
    /// # Panics
    /// If there are no ranks.
    pub fn load(
        dir: &Path,
        options: &CpuOptions,
        rules: &GroupRules,
        progress: LoadProgress<'_>,
    ) -> Result<Self, LoadError> {
        Self::load_with(dir, options, rules, None, progress)
    }

    /// As [`Self::load`], with a KV store of blocks of `block_tokens` tokens. A block has the parts of all ranks.
    ///
    /// # Errors
    /// As for [`CpuExecutor::with_store`], too.
    ///
    /// # Panics
    /// If there are no ranks.
    pub fn load_with_store(
        dir: &Path,
        options: &CpuOptions,
        rules: &GroupRules,
        (block_tokens, port): (usize, Box<dyn BlockPort>),
        progress: LoadProgress<'_>,
    ) -> Result<Self, LoadError> {
        let store = RanksStore::new(port, block_tokens, rules.count);
        Self::load_with(dir, options, rules, Some(store), progress)
    }

    fn load_with(
        dir: &Path,
        options: &CpuOptions,
        rules: &GroupRules,
        store: Option<RanksStore>,
        progress: LoadProgress<'_>,
    ) -> Result<Self, LoadError> {
        assert!(rules.count > 0, "a model must have a rank");
        let (sender, answers) = channel();
        let mut ranks = Vec::with_capacity(rules.count);
        for link in RankLink::group(rules) {
            let (orders, of_rank) = channel();
            let (dir, sender) = (dir.to_owned(), sender.clone());
            let options = CpuOptions {
                // All ranks would be bound to the same cores.
                pin_threads: false,
                numa: match options.numa {
                    Numa::Auto => Numa::OfRank(link.rank()),
                    other => other,
                },
                ..options.clone()
            };
            let exchange = store
                .as_ref()
                .map(|store| store.of_rank(link.rank().index()));
            let thread = thread::Builder::new()
                .name(format!("souffleur-rank-{}", link.rank().index()))
                .stack_size(STACK_BYTES)
                .spawn(move || serve((link, exchange), (&dir, &options), &of_rank, &sender));
            let thread = thread.map_err(|error| {
                LoadError::Memory(format!("failed to start the thread of a rank: {error}"))
            })?;
            ranks.push(RankThread { orders, thread });
        }
        drop(sender);
        let loaded = Self {
            ranks,
            answers,
            store,
            limit: rules.limit,
            lost: None,
        };
        loaded.wait_until_loaded(progress)?;
        Ok(loaded)
    }

    /// Waits for all ranks, also if one fails, as their threads are joined afterwards.
    fn wait_until_loaded(&self, progress: LoadProgress<'_>) -> Result<(), LoadError> {
        let (mut n_pending, mut result) = (self.ranks.len(), Ok(()));
        while n_pending > 0 {
            match self.answers.recv() {
                Ok((0, Answer::Progress(done, total))) => progress(done, total),
                Ok((_, Answer::Loaded(loaded))) => {
                    n_pending -= 1;
                    result = result.and(loaded);
                }
                Ok(_) => {}
                Err(_) => {
                    return Err(LoadError::Memory("the ranks ended in the load".to_owned()));
                }
            }
        }
        result
    }

    /// Gives every rank an order. A rank that has ended is noticed by its missing answer.
    fn order(&self, order: impl Fn() -> Order) {
        for rank in &self.ranks {
            let _ = rank.orders.send(order());
        }
    }

    /// One answer of each rank, in rank order. The first may take any time, the others then the limit.
    fn collect(&mut self) -> Result<Vec<Answer>, String> {
        let mut answers: Vec<Option<Answer>> = self.ranks.iter().map(|_| None).collect();
        for n_before in 0..self.ranks.len() {
            let received = match n_before {
                0 => self.answers.recv().ok(),
                _ => self.answers.recv_timeout(self.limit).ok(),
            };
            if let Some((rank, answer)) = received {
                answers[rank] = Some(answer);
                continue;
            }
            let absent = answers.iter().position(Option::is_none);
            let reason = format!(
                "rank {} has not answered within {:?} after the first rank",
                absent.unwrap_or_default(),
                self.limit
            );
            self.lost = Some(reason.clone());
            return Err(reason);
        }
        Ok(answers.into_iter().flatten().collect())
    }

    /// Runs a step on every rank, and returns rank 0's output.
    fn run_on_all(&mut self, plan: Arc<StepPlan>) -> Result<StepOutput, StepError> {
        self.order(|| Order::Run(plan.clone()));
        let (mut outputs, mut failures) = (Vec::with_capacity(self.ranks.len()), Vec::new());
        for answer in self.collect().map_err(StepError::Lost)? {
            match answer {
                Answer::Ran(Ok(output)) => outputs.push(output),
                Answer::Ran(Err(failure)) => failures.push(failure),
                Answer::Progress(..) | Answer::Loaded(_) | Answer::Reset(_) => {
                    unreachable!("a rank must answer its order")
                }
            }
        }
        if failures.is_empty() {
            self.first_of(outputs)
        } else {
            Err(error_of(failures, !outputs.is_empty()))
        }
    }

    /// Rank 0's output. The others' results go back to them.
    fn first_of(&self, outputs: Vec<StepOutput>) -> Result<StepOutput, StepError> {
        let mut outputs = outputs.into_iter();
        let first = outputs.next().expect("there must be a rank 0");
        for (index, other) in (1..).zip(outputs) {
            if !agree(&first, &other) {
                return Err(StepError::Lost(format!(
                    "rank {index} sampled other tokens than rank 0"
                )));
            }
            let _ = self.ranks[index].orders.send(Order::Recycle(other.rows));
        }
        Ok(first)
    }
}

impl Executor for CpuRanks {
    fn run(&mut self, plan: &StepPlan) -> Result<StepOutput, StepError> {
        if let Some(reason) = &self.lost {
            return Err(StepError::Lost(reason.clone()));
        }
        if let Some(store) = &mut self.store {
            store.before_step(plan)?;
        }
        let output = self.run_on_all(Arc::new(plan.clone()));
        if let Some(store) = &mut self.store {
            store.after_step(output.is_ok());
        }
        output
    }

    fn recycle(&mut self, rows: Vec<RowResult>) {
        let _ = self.ranks[0].orders.send(Order::Recycle(rows));
    }

    /// Rank 0 beats for all: it waits for the others several times in each layer.
    fn set_beat(&mut self, beat: Beat) {
        let _ = self.ranks[0].orders.send(Order::SetBeat(beat));
    }

    fn is_lost(&self) -> bool {
        self.lost.is_some()
    }

    fn reset(&mut self) -> Result<(), DeviceLost> {
        if let Some(reason) = &self.lost {
            return Err(DeviceLost(reason.clone()));
        }
        self.order(|| Order::Reset);
        for answer in self.collect().map_err(DeviceLost)? {
            match answer {
                Answer::Reset(reset) => reset?,
                Answer::Progress(..) | Answer::Loaded(_) | Answer::Ran(_) => {
                    unreachable!("a rank must answer its order")
                }
            }
        }
        Ok(())
    }
}

impl Drop for CpuRanks {
    /// Joins the ranks' threads, unless one hangs.
    fn drop(&mut self) {
        for RankThread { orders, thread } in self.ranks.drain(..) {
            drop(orders);
            if self.lost.is_none() {
                let _ = thread.join();
            }
        }
    }
}

impl CpuExecutor {
    /// As [`Self::load`], with the part of the model that the link's rank has.
    fn load_rank(
        dir: &Path,
        options: &CpuOptions,
        (link, store): (RankLink, Option<(Exchange, usize)>),
        progress: LoadProgress<'_>,
    ) -> Result<Self, LoadError> {
        if options.sparsity.is_some() && link.rank() != Rank::ONLY {
            return Err(LoadError::Memory(format!(
                "tp_size is {}, expected 1 with double sparsity",
                link.rank().count()
            )));
        }
        link.strike(Moment::Load);
        let checkpoint = Checkpoint::open(dir, options.dtype, options.load_format)?;
        let part = checkpoint.of_rank(link.rank(), options.quantization);
        let part = part.map_err(|error| LoadError::Memory(error.to_string()))?;
        let executor = Self::of_checkpoint(&part, options, Some(link), progress)?;
        let Some(store) = store else {
            return Ok(executor);
        };
        let block_tokens = store.1;
        let port = RankPort::new(&executor.kv_layout, store)?;
        executor.with_store(block_tokens, Box::new(port))
    }
}

/// A rank's thread: loads the rank's part of the model, and follows orders.
fn serve(
    (link, store): (RankLink, Option<(Exchange, usize)>),
    (dir, options): (&Path, &CpuOptions),
    orders: &Receiver<Order>,
    answers: &Sender<(usize, Answer)>,
) {
    let index = link.rank().index();
    // The receiver may be gone, if the load of another rank has failed.
    let send = |answer: Answer| drop(answers.send((index, answer)));
    let mut report = |done, total| send(Answer::Progress(done, total));
    let load = || CpuExecutor::load_rank(dir, options, (link, store), &mut report);
    let loaded = catch_unwind(AssertUnwindSafe(load)).unwrap_or_else(|payload| {
        let text = text_of(&*payload);
        Err(LoadError::Memory(format!(
            "rank {index} panicked in the load: {text}"
        )))
    });
    let mut executor = match loaded {
        Ok(executor) => executor,
        Err(error) => return send(Answer::Loaded(Err(error))),
    };
    send(Answer::Loaded(Ok(())));
    for order in orders {
        match order {
            Order::Run(plan) => send(Answer::Ran(run(&mut executor, index, &plan))),
            Order::Reset => send(Answer::Reset(executor.reset())),
            Order::Recycle(rows) => executor.recycle(rows),
            Order::SetBeat(beat) => executor.set_beat(beat),
        }
    }
}

/// Runs a step. If the rank fails, the others' next collective ends their step.
fn run(executor: &mut CpuExecutor, index: usize, plan: &StepPlan) -> Result<StepOutput, Failure> {
    let lost = |reason: String, is_own| Failure {
        error: StepError::Lost(reason),
        is_own,
    };
    match catch_unwind(AssertUnwindSafe(|| executor.run(plan))) {
        Ok(Ok(output)) => Ok(output),
        Ok(Err(error)) => {
            if let StepError::Lost(reason) = &error {
                executor
                    .backend
                    .fail_ranks(&format!("rank {index} lost the step: {reason}"));
            }
            Err(Failure {
                error,
                is_own: true,
            })
        }
        Err(payload) => match payload.downcast_ref::<RanksLost>() {
            Some(others) => Err(lost(others.to_string(), false)),
            None => {
                let reason = format!("rank {index} panicked: {}", text_of(&*payload));
                executor.backend.fail_ranks(&reason);
                Err(lost(reason, true))
            }
        },
    }
}

/// The error of a step that ranks failed; `some_ran` if others did not.
fn error_of(mut failures: Vec<Failure>, some_ran: bool) -> StepError {
    let is_rejected = |failure: &Failure| matches!(failure.error, StepError::Rejected(_));
    if !some_ran && failures.iter().all(is_rejected) {
        return failures.swap_remove(0).error;
    }
    let own = failures.iter().position(|failure| failure.is_own);
    match failures.swap_remove(own.unwrap_or_default()).error {
        StepError::Rejected(reason) | StepError::Lost(reason) => StepError::Lost(reason),
    }
}

fn agree(first: &StepOutput, other: &StepOutput) -> bool {
    let outcome = |row: &RowResult| (row.tokens.clone(), row.verdict);
    let rows = first.rows.iter().map(outcome);
    rows.eq(other.rows.iter().map(outcome))
}

fn text_of(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("without a message").to_owned()
}
