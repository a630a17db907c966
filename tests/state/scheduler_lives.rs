//! Random scripts of request and host events, interleaved with plans and steps in any order.

use proptest::collection::vec;
use proptest::prelude::*;
use souffleur_request::CancelFlag;
use souffleur_state::cache::eviction::EvictionPolicy;
use souffleur_state::plan::preemption::PriorityRules;
use souffleur_state::scheduler::BatchRules;
use souffleur_state::scheduler::policy::{PriorityOrder, schedule_policy_names};

use crate::deterministic_runner;
use crate::grammars::HashedGrammar;
use crate::scheduler_world::{Ask, EOS, Outcome, Setup, VOCAB, World};

/// Cases for each of the sixteen configurations; `PROPTEST_CASES` sets another number.
const CASES: u32 = 200;
const MAX_EVENTS: usize = 120;

#[derive(Clone, Debug)]
enum Event {
    Submit(Spec),
    /// A further turn of an earlier conversation.
    Continue {
        which: usize,
        spec: Spec,
    },
    /// Submits a request whose cancel flag is already raised.
    SubmitCancelled(Spec),
    Cancel {
        which: usize,
    },
    RaiseFlag {
        which: usize,
    },
    StopFound {
        which: usize,
        kept: usize,
    },
    Advance {
        legs: usize,
    },
    EndStep,
    FailStep {
        outcome: Outcome,
    },
    Turns {
        n: usize,
    },
    Pin {
        which: usize,
        cut: usize,
        expires_s: u64,
    },
    PinSoftly {
        which: usize,
        cut: usize,
        replaces: bool,
    },
    Unpin,
    Expire {
        now_s: u64,
    },
    SetPolicy {
        policy: usize,
    },
    SetEvictionPolicy {
        policy: usize,
    },
}

/// A request. Lengths are in half pages and single tokens, so that prefixes end inside pages and at page boundaries.
#[derive(Clone, Debug)]
struct Spec {
    family: u32,
    shared_units: usize,
    variant: u32,
    tail: usize,
    new_units: usize,
    new_tokens: usize,
    ignore_eos: bool,
    stop_token: Option<u32>,
    salted: bool,
    logprob_start: Option<u32>,
    priority: Option<i64>,
    grammar: Option<HashedGrammar>,
}

/// Grammars whose openings avoid EOS.
fn grammar() -> impl Strategy<Value = HashedGrammar> {
    let opening = vec(EOS + 1..VOCAB, 0..6);
    let fails_after = proptest::option::weighted(0.2, 0..40usize);
    (any::<u32>(), opening, 1..60usize, fails_after).prop_map(
        |(seed, opening, more, fails_after)| HashedGrammar {
            seed,
            vocab_size: VOCAB,
            done_after: opening.len() + more,
            fails_after: fails_after.map(|tokens| tokens + opening.len()),
            opening,
        },
    )
}

fn spec() -> impl Strategy<Value = Spec> {
    (
        (0..3u32, 0..10usize, 0..3u32, 0..40usize),
        (0..24usize, 0..8usize, proptest::bool::weighted(0.2)),
        proptest::option::weighted(0.3, 0..VOCAB),
        proptest::bool::weighted(0.2),
        proptest::option::weighted(0.2, 0..64u32),
        proptest::option::weighted(0.75, prop_oneof![-30..30i64, -2..3i64]),
        proptest::option::weighted(0.3, grammar()),
    )
        .prop_map(
            |(prompt, output, stop_token, salted, logprob_start, priority, grammar)| Spec {
                grammar,
                family: prompt.0,
                shared_units: prompt.1,
                variant: prompt.2,
                tail: prompt.3,
                new_units: output.0,
                new_tokens: output.1,
                ignore_eos: output.2,
                stop_token,
                salted,
                logprob_start,
                priority,
            },
        )
}

impl Spec {
    fn ask(&self, unit: usize, before: &[u32]) -> Ask {
        let symbol = |salt: u32, at: usize| (salt * 7 + at as u32 * (salt + 3)) % VOCAB;
        let shared = (0..self.shared_units * unit).map(|at| symbol(self.family, at));
        let tail = (0..=self.tail % (2 * unit)).map(|at| symbol(self.variant + 20, at));
        let prompt: Vec<u32> = before.iter().copied().chain(shared).chain(tail).collect();
        Ask {
            max_new_tokens: self.new_units * unit + self.new_tokens,
            ignore_eos: self.ignore_eos,
            stop_token: self.stop_token,
            salt: self.salted.then_some("salt"),
            logprob_start: self
                .logprob_start
                .filter(|start| (*start as usize) < prompt.len()),
            priority: self.priority,
            grammar: self.grammar.clone(),
            prompt,
            ..Ask::default()
        }
    }
}

fn event() -> impl Strategy<Value = Event> {
    let which = 0..12usize;
    let outcome = prop_oneof![
        Just(Outcome::Rejected),
        Just(Outcome::LostBeforeItRan),
        Just(Outcome::LostAfterItRan)
    ];
    prop_oneof![
        10 => spec().prop_map(Event::Submit),
        3 => (which.clone(), spec()).prop_map(|(which, spec)| Event::Continue { which, spec }),
        1 => spec().prop_map(Event::SubmitCancelled),
        3 => which.clone().prop_map(|which| Event::Cancel { which }),
        2 => which.clone().prop_map(|which| Event::RaiseFlag { which }),
        2 => (which.clone(), 0..12usize).prop_map(|(which, kept)| Event::StopFound { which, kept }),
        24 => (1..4usize).prop_map(|legs| Event::Advance { legs }),
        12 => Just(Event::EndStep),
        1 => outcome.prop_map(|outcome| Event::FailStep { outcome }),
        6 => (1..12usize).prop_map(|n| Event::Turns { n }),
        1 => (which, 0..40usize, 0..4u64)
            .prop_map(|(which, cut, expires_s)| Event::Pin { which, cut, expires_s }),
        1 => (0..64usize, 0..40usize, any::<bool>())
            .prop_map(|(which, cut, replaces)| Event::PinSoftly { which, cut, replaces }),
        1 => Just(Event::Unpin),
        1 => (0..4u64).prop_map(|now_s| Event::Expire { now_s }),
        1 => any::<usize>().prop_map(|policy| Event::SetPolicy { policy }),
        1 => any::<usize>().prop_map(|policy| Event::SetEvictionPolicy { policy }),
    ]
}

/// The random part of a configuration; page size, cache and prefix wait are fixed by the test.
#[derive(Clone, Debug)]
struct RandomSetup {
    pool_units: u32,
    n_rows: u32,
    chunk_units: Option<usize>,
    odd_chunk: usize,
    max_prefill_units: usize,
    conservativeness: f64,
    clips: bool,
    rules: BatchRules,
    policy: usize,
    priority: PriorityOrder,
}

fn setup() -> impl Strategy<Value = RandomSetup> {
    (
        6..40u32,
        1..9u32,
        proptest::option::weighted(0.7, 2..10usize),
        0..3usize,
        2..40usize,
        prop_oneof![Just(1.0), Just(0.3), Just(0.0)],
        proptest::bool::weighted(0.85),
        rules(),
        any::<usize>(),
        prop_oneof![
            Just(PriorityOrder::Ignored),
            Just(PriorityOrder::LargerFirst),
            Just(PriorityOrder::SmallerFirst)
        ],
    )
        .prop_map(
            |(
                pool_units,
                n_rows,
                chunk_units,
                odd_chunk,
                max_prefill_units,
                conservativeness,
                clips,
                rules,
                policy,
                priority,
            )| RandomSetup {
                pool_units,
                n_rows,
                chunk_units,
                odd_chunk,
                max_prefill_units,
                conservativeness,
                clips,
                rules,
                policy,
                priority,
            },
        )
}

fn rules() -> impl Strategy<Value = BatchRules> {
    let priority = (
        proptest::option::weighted(0.8, 0..25i64),
        any::<bool>(),
        prop_oneof![3 => Just(usize::MAX), 1 => 1..8usize],
    )
        .prop_map(
            |(preemption_threshold, low_values_first, max_requests)| PriorityRules {
                low_values_first,
                preemption_threshold,
                max_requests,
            },
        );
    let interval = prop_oneof![2 => Just(0), 3 => Just(1), 1 => 2..4usize];
    (
        any::<bool>(),
        interval,
        0..4usize,
        proptest::option::weighted(0.6, priority),
        proptest::option::weighted(0.3, 1..60_u32),
    )
        .prop_map(
            |(mixed_chunk, interval, min_bs, priority, step_ms)| BatchRules {
                mixed_chunk,
                prefill_decode_interval: interval,
                prefill_decode_interval_min_bs: min_bs,
                priority,
                max_prefill_step_ms: step_ms,
            },
        )
}

fn policy_name(number: usize) -> &'static str {
    let names: Vec<_> = schedule_policy_names().collect();
    names[number % names.len()]
}

fn eviction_policy_name(number: usize) -> &'static str {
    let names: Vec<_> = EvictionPolicy::names().collect();
    names[number % names.len()]
}

/// Picks one of the latest requests, since earlier ones have ended.
fn pick(world: &World, which: usize) -> Option<usize> {
    let n = world.views.len();
    (n > 0).then(|| n - 1 - which % n)
}

fn picked_prefix(world: &World, which: usize, cut: usize) -> Option<Vec<u32>> {
    let prompt = &world.views[pick(world, which)?].ask.prompt;
    Some(prompt[..prompt.len() - cut % prompt.len()].to_vec())
}

/// Submits the next turn of a chat: the prompt and the output of an earlier request, then new tokens.
fn continue_chat(world: &mut World, which: usize, unit: usize, spec: &Spec) {
    let Some(number) = pick(world, which) else {
        return;
    };
    let view = &world.views[number];
    let mut before = view.ask.prompt.clone();
    before.extend(&view.delivered);
    let mut ask = spec.ask(unit, &before);
    ask.salt = view.ask.salt;
    world.submit(ask);
}

/// Reports a stop string found by the tokenizer, which only sees delivered tokens.
fn find_stop(world: &mut World, which: usize, kept: usize) {
    let Some(number) = pick(world, which) else {
        return;
    };
    let delivered = world.views[number].delivered.len();
    if delivered > 0 {
        world.stop_found(number, kept % delivered + 1);
    }
}

fn apply(world: &mut World, unit: usize, event: &Event) {
    match event {
        Event::Submit(spec) => {
            world.submit(spec.ask(unit, &[]));
        }
        Event::SubmitCancelled(spec) => {
            let flag = CancelFlag::default();
            flag.raise();
            world.submit_flagged(spec.ask(unit, &[]), flag);
        }
        Event::Continue { which, spec } => continue_chat(world, *which, unit, spec),
        Event::Cancel { which } => {
            if let Some(number) = pick(world, *which)
                && world.views[number].end.is_none()
            {
                world.cancel(number);
            }
        }
        Event::RaiseFlag { which } => {
            if let Some(number) = pick(world, *which) {
                world.raise_flag(number);
            }
        }
        Event::StopFound { which, kept } => find_stop(world, *which, *kept),
        Event::Pin {
            which,
            cut,
            expires_s,
        } => {
            if let Some(prefix) = picked_prefix(world, *which, *cut) {
                world.pin(&prefix, *expires_s);
            }
        }
        Event::PinSoftly {
            which,
            cut,
            replaces,
        } => {
            if let Some(prefix) = picked_prefix(world, *which, *cut) {
                world.pin_softly(&prefix, 3, *replaces);
            }
        }
        Event::Unpin => world.unpin_oldest(),
        Event::Expire { now_s } => world.expire_pins(*now_s),
        Event::SetPolicy { policy } => world.set_policy(policy_name(*policy)),
        Event::SetEvictionPolicy { policy } => {
            world.set_eviction_policy(eviction_policy_name(*policy));
        }
        Event::Advance { legs } => {
            for _ in 0..*legs {
                world.advance();
            }
        }
        Event::EndStep => {
            world.end_step(Outcome::Done);
        }
        Event::FailStep { outcome } => {
            world.end_step(*outcome);
        }
        Event::Turns { n } => {
            for _ in 0..*n {
                world.turn();
            }
        }
    }
}

fn run_scripts(page_size: u32, has_radix_cache: bool, prefix_wait: bool) {
    let unit = (page_size as usize / 2).max(3);
    let tokens_per_page = page_size as usize;
    let cases = std::env::var("PROPTEST_CASES").ok();
    let cases = cases.and_then(|cases| cases.parse().ok()).unwrap_or(CASES);
    let script = (setup(), vec(event(), 1..MAX_EVENTS));
    let seen = std::cell::Cell::new(Seen::default());
    let outcome = deterministic_runner(cases).run(&script, |(setup, events)| {
        let pool_tokens = setup.pool_units as usize * unit;
        let mut world = World::new(Setup {
            page_size,
            n_pages: pool_tokens.div_ceil(tokens_per_page) as u32 + 2,
            n_rows: setup.n_rows,
            chunk_tokens: setup
                .chunk_units
                .map(|units| units * unit + setup.odd_chunk),
            max_prefill_tokens: setup.max_prefill_units * unit,
            prefix_wait,
            has_radix_cache,
            conservativeness: setup.conservativeness,
            clips: setup.clips,
            rules: setup.rules,
            policy: policy_name(setup.policy),
            priority: setup.priority,
            ..Setup::default()
        });
        for event in &events {
            apply(&mut world, unit, event);
        }
        world.assert_clean();
        let stats = world.stats();
        seen.set(seen.get().or(Seen {
            retracts: !world.has_failures && stats.retractions > 0,
            evicts: stats.evicted_tokens > 0,
            hits: stats.cached_tokens > 0,
            preempts: stats.preemptions > 0,
            mixes: world.watch.mixed_steps > 0,
            defers: world.watch.deferrals > 0,
        }));
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("page size {page_size}, radix {has_radix_cache}, wait {prefix_wait}: {error}");
    }
    let seen = seen.get();
    assert!(seen.retracts, "no script runs out of memory");
    assert!(seen.preempts && seen.mixes && seen.defers, "{seen:?}");
    assert_eq!((seen.evicts, seen.hits), (has_radix_cache, has_radix_cache));
}

/// Rare situations; each must occur in the scripts of every configuration.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    retracts: bool,
    evicts: bool,
    hits: bool,
    preempts: bool,
    mixes: bool,
    defers: bool,
}

impl Seen {
    fn or(self, other: Self) -> Self {
        Self {
            retracts: self.retracts | other.retracts,
            evicts: self.evicts | other.evicts,
            hits: self.hits | other.hits,
            preempts: self.preempts | other.preempts,
            mixes: self.mixes | other.mixes,
            defers: self.defers | other.defers,
        }
    }
}

#[test]
fn every_request_ends_once_with_its_own_tokens_and_leaks_no_page_with_pages_of_1() {
    for (radix, wait) in [(true, true), (true, false), (false, true), (false, false)] {
        run_scripts(1, radix, wait);
    }
}

#[test]
fn every_request_ends_once_with_its_own_tokens_and_leaks_no_page_with_pages_of_4() {
    for (radix, wait) in [(true, true), (true, false), (false, true), (false, false)] {
        run_scripts(4, radix, wait);
    }
}

#[test]
fn every_request_ends_once_with_its_own_tokens_and_leaks_no_page_with_pages_of_16() {
    for (radix, wait) in [(true, true), (true, false), (false, true), (false, false)] {
        run_scripts(16, radix, wait);
    }
}

#[test]
fn every_request_ends_once_with_its_own_tokens_and_leaks_no_page_with_pages_of_64() {
    for (radix, wait) in [(true, true), (true, false), (false, true), (false, false)] {
        run_scripts(64, radix, wait);
    }
}
