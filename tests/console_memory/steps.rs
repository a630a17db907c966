//! Tests that a warm step of the actors allocates only the envelopes of its messages, also with a reader of the tree.

use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::Instant;

use actix::{Actor, Addr, AsyncContext, Context, Handler, System};
use souffleur::actors::allocator::{Allocator, GrantReceiver};
use souffleur::actors::death::DeathNote;
use souffleur::actors::mailbox::{Mailbox, Posted};
use souffleur::actors::messages::{
    GetView, RunStep, SequencesEnded, StepDone, Submit, TakeTreeNotes, TokensReady, TreeReader,
    ViewedRequests,
};
use souffleur::actors::radix_cache::RadixCache;
use souffleur::actors::scheduler::{Links, Scheduler};
use souffleur::metrics::{SchedulerMetrics, mailbox_counts};
use souffleur::record::RecordedScheduler;
use souffleur::state::control::ControlStates;

use crate::allocator::allocations;
use crate::states::{BATCH, Loop, answer, requests, states};

/// Steps after which the Scheduler has begun to drop the oldest of the 1,024 that it keeps.
const WARM_STEPS: usize = 1100;
const STEPS: usize = 400;
/// Steps between two requests of the console.
const WATCHED_STEPS: usize = 50;
const POSTS: u64 = 64;

/// The work of the actors in the warm steps.
struct Warm {
    /// Allocations of a typical step. Lists that grow make a few steps differ.
    allocations: u64,
    /// Messages of a step.
    messages: u64,
}

fn typical(mut counts: Vec<u64>) -> u64 {
    counts.sort_unstable();
    counts[counts.len() / 2]
}

fn handled() -> u64 {
    mailbox_counts().iter().map(|counts| counts.handled).sum()
}

/// The console, as long as the reader exists.
struct Watch {
    reader: Arc<TreeReader>,
    radix_cache: Addr<RadixCache>,
    scheduler: Addr<Scheduler>,
}

impl Watch {
    fn ask(&self) {
        let reader = Arc::downgrade(&self.reader);
        self.radix_cache.do_send(TakeTreeNotes { reader });
        self.scheduler.do_send(GetView {
            steps_after: 0,
            requests: ViewedRequests::CONSOLE,
        });
    }
}

/// Answers every step at once, and counts the allocations of the Arbiter between two decode steps.
struct NullExecutor {
    done: Mailbox<StepDone>,
    watch: Option<Watch>,
    n_steps: usize,
    counted: u64,
    counts: Vec<u64>,
    handled: u64,
    results: Sender<Warm>,
}

impl NullExecutor {
    fn count_step(&mut self) {
        let now = allocations();
        let n_warm = self.n_steps.checked_sub(WARM_STEPS);
        self.n_steps += 1;
        match n_warm {
            Some(0) => self.handled = handled(),
            Some(n) if n <= STEPS => self.counts.push(now - self.counted),
            Some(n) if n == STEPS + 1 => {
                let warm = Warm {
                    allocations: typical(std::mem::take(&mut self.counts)),
                    messages: (handled() - self.handled) / (STEPS as u64 + 1),
                };
                // The receiver outlives the actors.
                let _ = self.results.send(warm);
                System::current().stop();
            }
            _ => (),
        }
        if self.n_steps.is_multiple_of(WATCHED_STEPS)
            && let Some(watch) = &self.watch
        {
            watch.ask();
        }
        self.counted = allocations();
    }
}

impl Actor for NullExecutor {
    type Context = Context<Self>;
}

impl Handler<Posted<SequencesEnded>> for NullExecutor {
    type Result = ();

    fn handle(&mut self, posted: Posted<SequencesEnded>, _: &mut Context<Self>) {
        drop(posted.open());
    }
}

impl Handler<Posted<RunStep>> for NullExecutor {
    type Result = ();

    fn handle(&mut self, posted: Posted<RunStep>, _: &mut Context<Self>) {
        let (RunStep { plan, spent }, _timer) = posted.open();
        if plan.starts.is_empty() && plan.rows.len() == BATCH {
            self.count_step();
        }
        let output = answer(&plan, spent);
        let step = plan.step;
        drop(plan);
        self.done.post(StepDone {
            step,
            result: Ok(output),
            began: Instant::now(),
            run_seconds: 0.0,
            idle_seconds: 0.0,
        });
    }
}

/// Ignores its messages.
struct Sink;

impl Actor for Sink {
    type Context = Context<Self>;
}

impl Handler<Posted<TokensReady>> for Sink {
    type Result = ();

    fn handle(&mut self, posted: Posted<TokensReady>, _: &mut Context<Self>) {
        drop(posted.open());
    }
}

impl Handler<Posted<SequencesEnded>> for Sink {
    type Result = ();

    fn handle(&mut self, posted: Posted<SequencesEnded>, _: &mut Context<Self>) {
        drop(posted.open());
    }
}

fn start(is_watched: bool, results: Sender<Warm>) -> Mailbox<Submit> {
    let ControlStates {
        scheduler: state,
        cache,
        pools,
        ledger,
        evicted_nodes: _,
    } = states();
    let note = |actor| DeathNote::unread(actor, ledger.clone());
    let scheduler = Scheduler::create(|ctx| {
        let address = ctx.address();
        let planned = GrantReceiver::Scheduler(Mailbox::of(&address, "scheduler", "StepPlanned"));
        let allocator = Allocator::new(pools, planned, note("allocator")).start();
        let reserve = Mailbox::of(&allocator, "allocator", "ReservePages");
        let radix_cache = RadixCache::new(cache, reserve.clone(), note("radix_cache")).start();
        let watch = is_watched.then(|| Watch {
            reader: Arc::default(),
            radix_cache: radix_cache.clone(),
            scheduler: address.clone(),
        });
        let executor = NullExecutor {
            done: Mailbox::of(&address, "scheduler", "StepDone"),
            watch,
            n_steps: 0,
            counted: 0,
            counts: Vec::with_capacity(STEPS),
            handled: 0,
            results,
        };
        let executor = executor.start();
        let links = Links {
            probe: Mailbox::of(&radix_cache, "radix_cache", "ProbePrefixes"),
            radix_cache: Mailbox::of(&radix_cache, "radix_cache", "PlanStep"),
            allocator: reserve,
            executor: Mailbox::of(&executor, "executor", "RunStep"),
            ended: Mailbox::of(&executor, "executor", "SequencesEnded"),
            tokenizer: Mailbox::of(&Sink.start(), "tokenizer", "TokensReady"),
            store: None,
            vision: None,
        };
        let metrics = SchedulerMetrics::register("null");
        let state = RecordedScheduler::new(state, None);
        Scheduler::new(state, links, metrics, note("scheduler"))
    });
    Mailbox::of(&scheduler, "scheduler", "Submit")
}

/// Decodes with all actors on this thread.
fn actors(is_watched: bool) -> Warm {
    let (results, warm) = channel();
    let system = System::new();
    system.block_on(async {
        let scheduler = start(is_watched, results);
        for request in requests() {
            let request = Box::new(request);
            scheduler.post(Submit { request });
        }
    });
    system.run().expect("the executor stops it");
    warm.recv().expect("all steps were counted")
}

/// The allocations of a typical step without actors, and without the list of past steps.
fn without_actors() -> u64 {
    let mut steps = Loop::start();
    for _ in 0..WARM_STEPS {
        steps.end_step();
    }
    let counts = (0..STEPS).map(|_| {
        let before = allocations();
        steps.end_step();
        allocations() - before
    });
    typical(counts.collect())
}

/// The allocations of posting one message.
fn of_a_post() -> u64 {
    System::new().block_on(async {
        let sink = Mailbox::of(&Sink.start(), "sink", "SequencesEnded");
        let before = allocations();
        for _ in 0..POSTS {
            sink.post(SequencesEnded { seqs: Vec::new() });
        }
        (allocations() - before) / POSTS
    })
}

#[test]
fn a_warm_step_of_the_actors_allocates_only_the_envelopes_of_its_messages() {
    let _alone = crate::alone();
    let (states, envelope, unwatched) = (without_actors(), of_a_post(), actors(false));
    assert!(envelope > 0, "allocations are counted");
    // ReservePages, StepPlanned, RunStep, StepDone and TokensReady.
    assert_eq!(unwatched.messages, 5);
    assert_eq!(
        unwatched.allocations,
        states + unwatched.messages * envelope,
        "{states} without actors, {envelope} for a message"
    );
    let watched = actors(true);
    assert_eq!(watched.messages, unwatched.messages);
    assert_eq!(watched.allocations, unwatched.allocations);
}
