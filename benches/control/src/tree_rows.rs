//! Benchmarks of the two radix trees: this engine's and kv-index.

use std::hint::black_box;
use std::sync::Arc;

use crate::clock::{Times, time_us};
use crate::prompts::{NEW_TOKENS, SHARED_TOKENS, prompt, tokens_of};
use crate::report::{Operation, Row};
use crate::subjects::{KvIndex, Ours, Subject};

const ROUNDS: usize = 21;
/// The largest number of operations in a batch on small trees.
const KEYS: usize = 16;
/// The largest number of tokens in the keys of a batch. The keys must fit into the CPU caches.
const TOKENS_OF_KEYS: usize = 131_072;
/// Operations of a batch on large trees.
const BATCH: usize = 256;
/// Rounds of splits; each round splits a batch of leaves.
const SPLIT_ROUNDS: usize = 3;
/// Matches of one key in a batch.
const MATCHES: usize = 256;
/// Leaves of a large tree that are matched repeatedly.
const N_HOT: u64 = 512;
/// The number of nodes of the path in the row "match over 32 nodes".
const DEPTH: usize = 32;

/// Alternates between the trees, so that other load on the machine affects both alike.
fn both(
    rounds: [usize; 2],
    mut ours: impl FnMut() -> f64,
    mut peer: impl FnMut() -> f64,
) -> [Option<Times>; 2] {
    let (mut our_times, mut peer_times) = (Vec::new(), Vec::new());
    for round in 0..rounds[0].max(rounds[1]) {
        if round < rounds[0] {
            our_times.push(ours());
        }
        if round < rounds[1] {
            peer_times.push(peer());
        }
    }
    [our_times, peer_times].map(|times| (!times.is_empty()).then(|| Times::new(times)))
}

/// Benchmarks with keys of `n_tokens` tokens in small trees.
pub fn by_length(n_tokens: usize) -> Vec<Row> {
    let size = format!("{}k tokens", n_tokens / 1024);
    let row = |operation, times: [Option<Times>; 2]| Row::new(operation, &size, times);
    let both = |mut f: Box<dyn FnMut() -> f64>, mut g: Box<dyn FnMut() -> f64>| {
        both([ROUNDS; 2], &mut *f, &mut *g)
    };
    let capacity = n_tokens * (2 * KEYS + 2);
    let ours = || Ours::new(capacity);
    let peer = KvIndex::new;
    let mut rows = vec![
        row(
            Operation::Match,
            both(
                match_round(ours(), n_tokens, 1),
                match_round(peer(), n_tokens, 1),
            ),
        ),
        row(
            Operation::MatchDeep,
            both(
                match_round(ours(), n_tokens, DEPTH),
                match_round(peer(), n_tokens, DEPTH),
            ),
        ),
    ];
    rows.push(row(
        Operation::Lock,
        only_ours(lock_round(ours(), n_tokens)),
    ));
    rows.push(row(
        Operation::Insert,
        both(
            insert_round(ours(), n_tokens),
            insert_round(peer(), n_tokens),
        ),
    ));
    rows.push(row(
        Operation::InsertHalf,
        both(half_round(ours(), n_tokens), half_round(peer(), n_tokens)),
    ));
    rows.push(row(
        Operation::Split,
        both(split_round(ours(), n_tokens), split_round(peer(), n_tokens)),
    ));
    rows.push(row(
        Operation::EvictLeaf,
        both(evict_round(ours(), n_tokens), evict_round(peer(), n_tokens)),
    ));
    rows
}

fn only_ours(mut ours: Box<dyn FnMut() -> f64>) -> [Option<Times>; 2] {
    both([ROUNDS, 0], &mut *ours, || 0.0)
}

/// Matches a key that the tree holds as a path of `depth` nodes.
fn match_round(
    mut tree: impl Subject + 'static,
    n_tokens: usize,
    depth: usize,
) -> Box<dyn FnMut() -> f64> {
    let key = tokens_of(0, n_tokens);
    for node in 1..=depth {
        tree.add(&Arc::from(&key[..n_tokens * node / depth]));
    }
    Box::new(move || {
        time_us(MATCHES, || {
            for _ in 0..MATCHES {
                assert_eq!(tree.matched(black_box(&key)), n_tokens);
            }
        })
    })
}

fn lock_round(mut ours: Ours, n_tokens: usize) -> Box<dyn FnMut() -> f64> {
    let key = tokens_of(0, n_tokens);
    ours.add(&key);
    Box::new(move || {
        time_us(MATCHES, || {
            for _ in 0..MATCHES {
                let locked = ours.tree.lock_prefix(&ours.namespace, black_box(&key));
                assert_eq!(locked.pages.len(), n_tokens);
                ours.tree.unlock(locked.lock);
            }
        })
    })
}

/// Blocks at the top of the heap. They keep the allocator from returning the memory below them to the system, so that
/// no page faults are timed.
#[derive(Default)]
struct HeapTop(Vec<Vec<u8>>);

impl HeapTop {
    const BLOCKS: usize = 4;
    const BLOCK_BYTES: usize = 100_000;

    /// Call this while much memory is allocated.
    fn keep(&mut self) {
        if self.0.len() < Self::BLOCKS {
            self.0.push(vec![0; Self::BLOCK_BYTES]);
        }
    }
}

/// Inserts each key, and returns the time of one insert in microseconds.
fn timed_inserts<S: Subject>(tree: &mut S, keys: &[Arc<[u32]>]) -> f64 {
    let pages: Vec<S::NewPages> = keys.iter().map(|key| tree.allocate(key.len())).collect();
    let mut unused = Vec::with_capacity(keys.len());
    // The prompts were just written, but allocating pages evicted them from the CPU caches: read them again.
    black_box(
        keys.iter()
            .flat_map(|key| &key[..])
            .fold(0, |sum, token| sum ^ token),
    );
    let us = time_us(keys.len(), || {
        for (key, pages) in keys.iter().zip(pages) {
            unused.push(tree.insert(black_box(key), pages));
        }
    });
    unused.into_iter().for_each(|one| tree.put_back(one));
    us
}

fn timed_evictions<S: Subject>(tree: &mut S, n: usize, n_tokens: usize) -> f64 {
    // Writes the buffer of results beforehand, so that its page faults are not timed.
    let mut evicted: Vec<Option<S::Evicted>> = (0..n).map(|_| None).collect();
    let us = time_us(n, || {
        for place in &mut evicted {
            *place = Some(tree.evict(black_box(n_tokens)));
        }
    });
    let evicted = evicted.into_iter().flatten();
    evicted.for_each(|evicted| tree.free(evicted));
    us
}

fn keys_of(n_tokens: usize) -> Vec<Arc<[u32]>> {
    let n_keys = KEYS.min(TOKENS_OF_KEYS / n_tokens) as u64;
    (0..n_keys).map(|key| tokens_of(key, n_tokens)).collect()
}

fn insert_round(mut tree: impl Subject + 'static, n_tokens: usize) -> Box<dyn FnMut() -> f64> {
    let keys = keys_of(n_tokens);
    let mut top = HeapTop::default();
    Box::new(move || {
        let us = timed_inserts(&mut tree, &keys);
        top.keep();
        assert_eq!(tree.cached_tokens(), keys.len() * n_tokens);
        tree.remove(usize::MAX);
        us
    })
}

/// Inserts keys whose first half the tree holds as the start of a node.
fn half_round(mut tree: impl Subject + 'static, n_tokens: usize) -> Box<dyn FnMut() -> f64> {
    let cached = keys_of(n_tokens);
    let branch = |key: &Arc<[u32]>| {
        let mut key = key.to_vec();
        key[n_tokens / 2..].iter_mut().for_each(|token| *token += 1);
        Arc::from(key)
    };
    let keys: Vec<Arc<[u32]>> = cached.iter().map(branch).collect();
    let mut top = HeapTop::default();
    Box::new(move || {
        cached.iter().for_each(|key| tree.add(key));
        let us = timed_inserts(&mut tree, &keys);
        top.keep();
        assert_eq!(tree.cached_tokens(), keys.len() * n_tokens * 3 / 2);
        tree.remove(usize::MAX);
        us
    })
}

fn split_round(mut tree: impl Subject + 'static, n_tokens: usize) -> Box<dyn FnMut() -> f64> {
    let keys = keys_of(n_tokens);
    let mut top = HeapTop::default();
    Box::new(move || {
        keys.iter().for_each(|key| tree.add(key));
        top.keep();
        let us = time_us(keys.len(), || {
            for key in &keys {
                tree.split(black_box(&key[..n_tokens / 2]));
            }
        });
        tree.remove(usize::MAX);
        us
    })
}

fn evict_round(mut tree: impl Subject + 'static, n_tokens: usize) -> Box<dyn FnMut() -> f64> {
    let keys = keys_of(n_tokens);
    let mut top = HeapTop::default();
    Box::new(move || {
        keys.iter().for_each(|key| tree.add(key));
        top.keep();
        let us = timed_evictions(&mut tree, keys.len(), n_tokens);
        assert_eq!(tree.cached_tokens(), 0);
        us
    })
}

/// Benchmarks with prompts of 256 shared and 64 new tokens in trees of `n_leaves` leaves.
pub fn by_leaves(n_leaves: u64) -> Vec<Row> {
    let size = match n_leaves {
        1_000_000.. => "1e6 leaves".to_owned(),
        _ => format!("1e{} leaves", n_leaves.ilog10()),
    };
    let row = |operation, times: [Option<Times>; 2]| Row::new(operation, &size, times);
    let tokens = n_leaves as usize * NEW_TOKENS;
    let mut ours = LargeTree::new(Ours::new(tokens * 5 / 4 + 4_000_000), n_leaves);
    let mut peer = LargeTree::new(KvIndex::new(), n_leaves);
    // Each eviction of the peer walks its whole tree.
    let slow_rounds = [7, 3, 2][(n_leaves.ilog10() as usize).saturating_sub(4).min(2)];
    let mut rows = Vec::new();
    let times = both([ROUNDS; 2], || ours.matches(), || peer.matches());
    rows.push(row(Operation::Match, times));
    let times = both([ROUNDS; 2], || ours.cold_matches(), || peer.cold_matches());
    rows.push(row(Operation::MatchCold, times));
    let times = both([ROUNDS, 0], || ours.locks(), || 0.0);
    rows.push(row(Operation::Lock, times));
    let times = both([ROUNDS, slow_rounds], || ours.inserts(), || peer.inserts());
    rows.push(row(Operation::Insert, times));
    let times = both(
        [ROUNDS, slow_rounds],
        || ours.evictions(BATCH),
        || peer.evictions(1),
    );
    rows.push(row(Operation::EvictLeaf, times));
    let times = both([ROUNDS, 0], || ours.evictions_freed(BATCH), || 0.0);
    rows.push(row(Operation::EvictFree, times));
    let times = both(
        [ROUNDS, slow_rounds],
        || ours.cycles(BATCH),
        || peer.cycles(1),
    );
    rows.push(row(Operation::Cycle, times));
    let times = both([1; 2], || ours.evicts_half(), || peer.evicts_half());
    rows.push(row(Operation::EvictHalf, times));
    let times = both([SPLIT_ROUNDS; 2], || ours.splits(), || peer.splits());
    rows.push(row(Operation::Split, times));
    rows
}

/// A tree with many leaves, of either implementation.
struct LargeTree<S> {
    tree: S,
    /// Prompts `oldest..next` have been inserted; all are in the tree until the first eviction.
    oldest: u64,
    next: u64,
    random: fastrand::Rng,
    /// Prompts that are matched repeatedly.
    hot_prompts: Vec<Arc<[u32]>>,
}

impl<S: Subject> LargeTree<S> {
    fn new(mut tree: S, n_leaves: u64) -> Self {
        (0..n_leaves).for_each(|number| tree.add(&prompt(number)));
        let large = Self {
            tree,
            oldest: 0,
            next: n_leaves,
            random: fastrand::Rng::with_seed(7),
            hot_prompts: (0..N_HOT)
                .map(|number| prompt(number * 7_919 % n_leaves))
                .collect(),
        };
        let expected = SHARED_TOKENS + n_leaves as usize * NEW_TOKENS;
        assert_eq!(large.tree.cached_tokens(), expected);
        large
    }

    fn random_prompts(&mut self) -> Vec<Arc<[u32]>> {
        let range = self.oldest..self.next;
        (0..BATCH)
            .map(|_| prompt(self.random.u64(range.clone())))
            .collect()
    }

    fn new_prompts(&mut self, n: usize) -> Vec<Arc<[u32]>> {
        let prompts = (self.next..).take(n).map(prompt).collect();
        self.next += n as u64;
        prompts
    }

    fn matches(&mut self) -> f64 {
        // Warms the CPU caches, since the other tree was used last.
        Self::timed_matches(&mut self.tree, &self.hot_prompts);
        Self::timed_matches(&mut self.tree, &self.hot_prompts)
    }

    /// Matches random leaves, most of which are not in the CPU caches.
    fn cold_matches(&mut self) -> f64 {
        let prompts = self.random_prompts();
        Self::timed_matches(&mut self.tree, &prompts)
    }

    fn timed_matches(tree: &mut S, prompts: &[Arc<[u32]>]) -> f64 {
        time_us(prompts.len(), || {
            for prompt in prompts {
                let n_matched = tree.matched(black_box(prompt));
                assert_eq!(n_matched, SHARED_TOKENS + NEW_TOKENS);
            }
        })
    }

    fn inserts(&mut self) -> f64 {
        let prompts = self.new_prompts(BATCH);
        let us = timed_inserts(&mut self.tree, &prompts);
        self.tree.remove(BATCH * NEW_TOKENS);
        us
    }

    fn evictions(&mut self, n: usize) -> f64 {
        let us = timed_evictions(&mut self.tree, n, NEW_TOKENS);
        let prompts = self.new_prompts(n);
        prompts.iter().for_each(|prompt| self.tree.add(prompt));
        us
    }

    /// The time includes the return of the pages to the pool.
    fn evictions_freed(&mut self, n: usize) -> f64 {
        let us = time_us(n, || {
            for _ in 0..n {
                let evicted = self.tree.evict(black_box(NEW_TOKENS));
                self.tree.free(evicted);
            }
        });
        let prompts = self.new_prompts(n);
        prompts.iter().for_each(|prompt| self.tree.add(prompt));
        us
    }

    /// Match, insert and the eviction that makes room: the cost of a request on a full cache.
    fn cycles(&mut self, n: usize) -> f64 {
        let prompts = self.new_prompts(n);
        let pages: Vec<S::NewPages> = prompts
            .iter()
            .map(|prompt| self.tree.allocate(prompt.len()))
            .collect();
        let mut unused = Vec::with_capacity(n);
        let mut evicted = Vec::with_capacity(n);
        let us = time_us(n, || {
            for (prompt, pages) in prompts.iter().zip(pages) {
                self.tree.matched(black_box(prompt));
                evicted.push(self.tree.evict(NEW_TOKENS));
                unused.push(self.tree.insert(prompt, pages));
            }
        });
        unused.into_iter().for_each(|one| self.tree.put_back(one));
        evicted.into_iter().for_each(|one| self.tree.free(one));
        us
    }

    /// Splits leaves in the middle, each once, from the newest to older ones.
    fn splits(&mut self) -> f64 {
        let prompts: Vec<Arc<[u32]>> = (0..BATCH)
            .map(|_| {
                self.next -= 1;
                prompt(self.next)
            })
            .collect();
        time_us(BATCH, || {
            for prompt in &prompts {
                self.tree
                    .split(black_box(&prompt[..SHARED_TOKENS + NEW_TOKENS / 2]));
            }
        })
    }

    /// Evicts half of the tokens in one call, before any leaf is split; returns the time per leaf.
    fn evicts_half(&mut self) -> f64 {
        let half = self.tree.cached_tokens() / 2;
        let mut evicted = Vec::with_capacity(1);
        let us = time_us(half / NEW_TOKENS, || evicted.push(self.tree.evict(half)));
        evicted.into_iter().for_each(|one| self.tree.free(one));
        let prompts = self.new_prompts(SPLIT_ROUNDS * BATCH);
        prompts.iter().for_each(|prompt| self.tree.add(prompt));
        us
    }
}

impl LargeTree<Ours> {
    fn locks(&mut self) -> f64 {
        let Ours {
            tree, namespace, ..
        } = &mut self.tree;
        time_us(self.hot_prompts.len(), || {
            for prompt in &self.hot_prompts {
                let locked = tree.lock_prefix(namespace, black_box(prompt));
                assert_eq!(locked.tokens, SHARED_TOKENS + NEW_TOKENS);
                tree.unlock(locked.lock);
            }
        })
    }
}
