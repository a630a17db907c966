//! Times decode steps of the actors on one Arbiter, with an executor that answers at once.

use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use actix::{Actor, AsyncContext, Context, Handler, System};
use souffleur::actors::allocator::{Allocator, GrantReceiver};
use souffleur::actors::death::DeathNote;
use souffleur::actors::mailbox::{Mailbox, Posted};
use souffleur::actors::messages::{RunStep, SequencesEnded, StepDone, Submit, TokensReady};
use souffleur::actors::radix_cache::RadixCache;
use souffleur::actors::scheduler::{Links, Scheduler};
use souffleur::metrics::SchedulerMetrics;
use souffleur::record::RecordedScheduler;
use souffleur::state::control::ControlStates;

use crate::engine::{PoolSizes, answer, request};
use crate::prompts::prompt;

/// Decodes `batch` requests. Returns `n_values` times of a step in microseconds, each the mean of `steps_per_value`
/// steps. A time includes all work of the Arbiter between two answers of the executor, except the executor's.
pub fn decode_us(batch: u32, steps_per_value: usize, n_values: usize) -> Vec<f64> {
    let (values, measured) = channel();
    let system = System::new();
    system.block_on(async {
        let n_steps = (n_values + 2) * steps_per_value;
        let sizes = PoolSizes {
            page_size: 1,
            n_pages: batch * (320 + 4 * n_steps as u32 + 1_024) + 4_096,
            n_rows: batch,
        };
        let scheduler = start(sizes, |done| NullExecutor {
            done,
            batch: batch as usize,
            steps_per_value,
            values,
            n_steps: 0,
            executor_time: Duration::ZERO,
            started: Instant::now(),
            values_left: n_values,
        });
        for number in 0..u64::from(batch) {
            let request = request(number, &prompt(number), 2 * n_steps as u32);
            scheduler.post(Submit {
                request: Box::new(request),
            });
        }
    });
    system.run().expect("the actors stop it");
    measured.try_iter().collect()
}

fn start(
    sizes: PoolSizes,
    executor: impl FnOnce(Mailbox<StepDone>) -> NullExecutor,
) -> Mailbox<Submit> {
    let ControlStates {
        scheduler: state,
        cache,
        pools,
        ledger,
        evicted_nodes: _,
    } = sizes.states();
    let note = |actor| DeathNote::unread(actor, ledger.clone());
    let scheduler = Scheduler::create(|ctx| {
        let address = ctx.address();
        let planned = GrantReceiver::Scheduler(Mailbox::of(&address, "scheduler", "StepPlanned"));
        let allocator = Allocator::new(pools, planned, note("allocator")).start();
        let reserve = Mailbox::of(&allocator, "allocator", "ReservePages");
        let radix_cache = RadixCache::new(cache, reserve.clone(), note("radix_cache")).start();
        let done = Mailbox::of(&address, "scheduler", "StepDone");
        let executor = executor(done).start();
        let links = Links {
            probe: Mailbox::of(&radix_cache, "radix_cache", "ProbePrefixes"),
            radix_cache: Mailbox::of(&radix_cache, "radix_cache", "PlanStep"),
            allocator: reserve,
            executor: Mailbox::of(&executor, "executor", "RunStep"),
            ended: Mailbox::of(&executor, "executor", "SequencesEnded"),
            tokenizer: Mailbox::of(&NullTokenizer.start(), "tokenizer", "TokensReady"),
            store: None,
            vision: None,
        };
        let metrics = SchedulerMetrics::register("null");
        let state = RecordedScheduler::new(state, None);
        Scheduler::new(state, links, metrics, note("scheduler"))
    });
    Mailbox::of(&scheduler, "scheduler", "Submit")
}

/// Answers every step at once and computes nothing.
struct NullExecutor {
    done: Mailbox<StepDone>,
    batch: usize,
    steps_per_value: usize,
    values: Sender<f64>,
    /// Steps of the whole batch since the last value.
    n_steps: usize,
    /// Time spent in this actor since the last value.
    executor_time: Duration,
    started: Instant,
    values_left: usize,
}

impl NullExecutor {
    fn measure(&mut self, entered: Instant) {
        self.n_steps += 1;
        if self.n_steps < self.steps_per_value {
            return;
        }
        let elapsed = entered - self.started - self.executor_time;
        // The receiver outlives the actors.
        let _ = self
            .values
            .send(elapsed.as_secs_f64() * 1e6 / self.n_steps as f64);
        self.n_steps = 0;
        self.executor_time = Duration::ZERO;
        self.started = entered;
        self.values_left -= 1;
        if self.values_left == 0 {
            System::current().stop();
        }
    }
}

impl Actor for NullExecutor {
    type Context = Context<Self>;
}

impl Handler<Posted<SequencesEnded>> for NullExecutor {
    type Result = ();

    fn handle(&mut self, _: Posted<SequencesEnded>, _: &mut Context<Self>) {}
}

impl Handler<Posted<RunStep>> for NullExecutor {
    type Result = ();

    fn handle(&mut self, posted: Posted<RunStep>, _: &mut Context<Self>) {
        let entered = Instant::now();
        let (RunStep { plan, spent }, _timer) = posted.open();
        let is_decode = plan.starts.is_empty() && plan.rows.len() == self.batch;
        if is_decode && self.values_left > 0 {
            self.measure(entered);
        } else {
            (self.n_steps, self.started) = (0, entered);
            self.executor_time = Duration::ZERO;
        }
        let output = answer(&plan, spent);
        let step = plan.step;
        drop(plan);
        self.done.post(StepDone {
            step,
            result: Ok(output),
            began: entered,
            run_seconds: 0.0,
            idle_seconds: 0.0,
        });
        self.executor_time += entered.elapsed();
    }
}

/// Ignores the messages for the Tokenizer.
struct NullTokenizer;

impl Actor for NullTokenizer {
    type Context = Context<Self>;
}

impl Handler<Posted<TokensReady>> for NullTokenizer {
    type Result = ();

    fn handle(&mut self, posted: Posted<TokensReady>, _: &mut Context<Self>) {
        drop(posted.open());
    }
}
