//! An agentic trace: conversations with common system prompts, their turns in random order. Compares the cached tokens
//! of replicas with those of one engine that has the pages of all.

use souffleur_state::router::LoadBalance;

use super::world::{PAGE_TOKENS, Setup, serve};
use crate::chaos_load::Random;

const N_CONVERSATIONS: usize = 24;
const N_TURNS: usize = 8;
const SEEDS: std::ops::Range<u64> = 0..8;
/// The most tokens of a conversation.
const MAX_TOKENS: usize = 1_000_000;
const MAX_IMBALANCE: f64 = 1.25;
/// A speed at which each prefill ends at once.
const AT_ONCE: usize = usize::MAX;

pub struct Turn {
    pub conversation: usize,
    pub prompt_tokens: usize,
    pub output_tokens: usize,
}

/// The lengths of a trace's prompts.
#[derive(Clone, Copy)]
struct Shape {
    n_systems: usize,
    system_tokens: usize,
}

pub struct Trace {
    shape: Shape,
    pub turns: Vec<Turn>,
    distinct_tokens: usize,
}

impl Trace {
    fn new(shape: Shape, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let mut order: Vec<usize> = (0..N_CONVERSATIONS * N_TURNS)
            .map(|turn| turn % N_CONVERSATIONS)
            .collect();
        for at in (1..order.len()).rev() {
            order.swap(at, random.below(at + 1));
        }
        let mut lengths = [shape.system_tokens; N_CONVERSATIONS];
        let mut turns = Vec::new();
        for conversation in order {
            let length = &mut lengths[conversation];
            let prompt_tokens = *length + random.within(150..500);
            let output_tokens = random.within(8..40);
            *length = prompt_tokens + output_tokens;
            turns.push(Turn {
                conversation,
                prompt_tokens,
                output_tokens,
            });
        }
        let own = lengths.iter().map(|length| length - shape.system_tokens);
        let distinct_tokens = own.sum::<usize>() + shape.n_systems * shape.system_tokens;
        Self {
            shape,
            turns,
            distinct_tokens,
        }
    }

    /// The token of a conversation at a position, of a prompt or of an output.
    pub fn token(&self, conversation: usize, position: usize) -> u32 {
        let text = if position < self.shape.system_tokens {
            N_CONVERSATIONS + conversation % self.shape.n_systems
        } else {
            conversation
        };
        (text * MAX_TOKENS + position) as u32
    }

    pub fn prompt(&self, turn: &Turn) -> Vec<u32> {
        let positions = 0..turn.prompt_tokens;
        positions
            .map(|position| self.token(turn.conversation, position))
            .collect()
    }

    /// The conversation to which a prompt belongs.
    pub fn conversation_of(&self, prompt: &[u32]) -> usize {
        let last = prompt.last().expect("no prompt is empty");
        *last as usize / MAX_TOKENS
    }

    /// Half of the trace's distinct tokens, in pages for each replica.
    fn pages(&self, n_replicas: usize) -> usize {
        self.distinct_tokens / 2 / PAGE_TOKENS / n_replicas
    }
}

/// The cached tokens of the traces of all seeds.
#[derive(Debug, Default)]
struct Cached {
    prefix: usize,
    round_robin: usize,
    /// One engine with the pages of all replicas.
    whole: usize,
}

/// Serves the traces of all seeds, and checks the load of each. The one engine has the speed of all replicas.
fn cached(shape: Shape, n_replicas: usize, tokens_per_turn: usize) -> Cached {
    let mut sum = Cached::default();
    for seed in SEEDS {
        let trace = Trace::new(shape, seed);
        let setup = Setup {
            method: LoadBalance::Prefix,
            n_replicas,
            n_pages: trace.pages(n_replicas),
            tokens_per_turn,
        };
        let prefix = serve(&trace, setup);
        let imbalance = prefix.imbalance();
        assert!(
            imbalance <= MAX_IMBALANCE,
            "seed {seed}, {n_replicas} replicas: {imbalance:.3}, {:?}",
            prefix.computed_tokens
        );
        let in_turn = Setup {
            method: LoadBalance::RoundRobin,
            ..setup
        };
        let whole = Setup {
            n_replicas: 1,
            n_pages: n_replicas * setup.n_pages,
            tokens_per_turn: tokens_per_turn.saturating_mul(n_replicas),
            ..setup
        };
        sum.prefix += prefix.cached_tokens;
        sum.round_robin += serve(&trace, in_turn).cached_tokens;
        sum.whole += serve(&trace, whole).cached_tokens;
    }
    sum
}

fn ratio(part: usize, whole: usize) -> f64 {
    part as f64 / whole as f64
}

#[test]
fn replicas_cache_nearly_as_much_as_one_engine_with_all_pages() {
    let shape = Shape {
        n_systems: 4,
        system_tokens: 1600,
    };
    for (n_replicas, over_round_robin) in [(2, 1.1), (4, 1.3)] {
        let cached = cached(shape, n_replicas, AT_ONCE);
        assert!(
            ratio(cached.prefix, cached.whole) >= 0.95,
            "{n_replicas} replicas: {cached:?}"
        );
        assert!(
            ratio(cached.prefix, cached.round_robin) >= over_round_robin,
            "{n_replicas} replicas: {cached:?}"
        );
    }
}

/// A system prompt that all replicas need takes pages from each.
#[test]
fn system_prompts_that_do_not_divide_among_replicas_keep_the_load_even() {
    for (n_systems, system_tokens) in [(1, 960), (3, 640), (6, 640)] {
        let shape = Shape {
            n_systems,
            system_tokens,
        };
        let cached = cached(shape, 4, AT_ONCE);
        assert!(
            ratio(cached.prefix, cached.whole) >= 0.9,
            "{n_systems} system prompts: {cached:?}"
        );
        assert!(
            ratio(cached.prefix, cached.round_robin) >= 1.3,
            "{n_systems} system prompts: {cached:?}"
        );
    }
}

#[test]
fn queues_of_prefills_move_few_conversations() {
    let shape = Shape {
        n_systems: 4,
        system_tokens: 1600,
    };
    for n_replicas in [2, 4] {
        let cached = cached(shape, n_replicas, 128);
        assert!(
            ratio(cached.prefix, cached.whole) >= 0.9,
            "{n_replicas} replicas: {cached:?}"
        );
    }
}
