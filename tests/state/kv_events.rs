//! Tests of KV events: a reader that applies them in order knows the token blocks in the tree after each plan, also
//! after any number of full resends.

use std::collections::HashMap;

use souffleur_kv_events::batch::{EventBatches, KvEvent};
use souffleur_kv_events::config::IdFormat;
use souffleur_kv_events::mirror::BlockMirror;
use souffleur_state::cache::changes::{Above, CacheChange, Observer};
use souffleur_state::cache::namespace::Namespace;
use souffleur_state::cache::radix_tree::{Insert, RadixTree};
use souffleur_state::pool::pages::{NodeLock, PageSize};

use crate::Memory;
use crate::chaos_load::{Chaos, Random};
use crate::chaos_table::{n_runs, table};

const N_REQUESTS: usize = 200;
/// Lists of changes between two full comparisons in a chaos run.
const COMPARED_EVERY: usize = 16;

/// A reader of KV events, and a naive copy of the cache's nodes to compare it with.
pub struct KvReader {
    block_size: usize,
    mirror: BlockMirror,
    events: EventBatches,
    changes: Vec<CacheChange>,
    nodes: HashMap<u32, (Above, Vec<u32>)>,
    /// The blocks that the reader knows, by id.
    known: HashMap<i64, Block>,
    /// The number of non-empty lists of changes.
    pub lists: usize,
    pub removed: usize,
    pub cleared: usize,
}

#[derive(Clone, Debug)]
struct Block {
    parent: Option<i64>,
    tokens: Vec<u32>,
    salt: Option<String>,
}

impl KvReader {
    pub fn new(page_size: PageSize, block_size: usize) -> Self {
        Self {
            block_size,
            mirror: BlockMirror::new(page_size, block_size, IdFormat::Default),
            events: EventBatches::new(block_size),
            changes: Vec::new(),
            nodes: HashMap::new(),
            known: HashMap::new(),
            lists: 0,
            removed: 0,
            cleared: 0,
        }
    }

    /// Applies the cache's changes, and sometimes compares everything.
    pub fn take_changes(&mut self, cache: &mut RadixTree) {
        cache.take_changes(Observer::Publisher, &mut self.changes);
        if self.changes.is_empty() {
            return;
        }
        self.lists += 1;
        for change in std::mem::take(&mut self.changes) {
            self.mirror.apply(&change, &mut self.events);
            self.apply_to_nodes(change);
        }
        for event in self.events.take().into_iter().flatten() {
            self.apply(event);
        }
        if self.lists.is_multiple_of(COMPARED_EVERY) {
            self.compare(cache);
        }
    }

    fn apply_to_nodes(&mut self, change: CacheChange) {
        match change {
            CacheChange::Stored {
                node,
                above,
                tokens,
            } => {
                let before = self.nodes.insert(node, (above, tokens.get().to_vec()));
                assert!(before.is_none(), "node {node} is stored twice");
            }
            CacheChange::Split { upper, lower, at } => {
                let (above, tokens) = self.nodes.remove(&lower).expect("a stored node");
                let (first, second) = tokens.split_at(at);
                self.nodes.insert(upper, (above, first.to_vec()));
                self.nodes
                    .insert(lower, (Above::Node(upper), second.to_vec()));
            }
            CacheChange::Removed { node } => {
                assert!(self.nodes.remove(&node).is_some(), "{node} was not stored");
            }
            CacheChange::Cleared => self.nodes.clear(),
        }
    }

    fn apply(&mut self, event: KvEvent) {
        match event {
            KvEvent::Stored(blocks) => {
                let mut parent = blocks.parent;
                assert!(parent.is_none_or(|parent| self.known.contains_key(&parent)));
                let tokens = blocks.tokens.chunks_exact(self.block_size);
                assert!(tokens.remainder().is_empty());
                for (id, tokens) in blocks.ids.iter().zip(tokens) {
                    let block = Block {
                        parent,
                        tokens: tokens.to_vec(),
                        salt: blocks.cache_salt.as_deref().map(str::to_owned),
                    };
                    let before = self.known.insert(*id, block);
                    assert!(before.is_none(), "block {id} is stored twice");
                    parent = Some(*id);
                }
            }
            KvEvent::Removed(ids) => {
                self.removed += ids.len();
                for id in ids {
                    assert!(self.known.remove(&id).is_some(), "{id} was not stored");
                }
            }
            KvEvent::Cleared => {
                self.cleared += 1;
                self.known.clear();
            }
        }
    }

    /// Compares the nodes with the cache, and the blocks with the nodes.
    pub fn compare(&self, cache: &RadixTree) {
        if cache.has_pending_changes(Observer::Publisher) {
            return;
        }
        assert_eq!(self.nodes.len(), cache.n_nodes());
        let n_tokens: usize = self.nodes.values().map(|(_, tokens)| tokens.len()).sum();
        assert_eq!(n_tokens, cache.total_size());
        let mut expected = Vec::new();
        for index in self.nodes.keys() {
            let (namespace, path) = self.path_to(*index);
            let (_, own) = &self.nodes[index];
            // With windows or recurrent states, a match may end earlier, but never later.
            let cached = cache.peek(&namespace, &path);
            assert!(cached <= path.len());
            let salt = namespace.cache_salt().map(str::to_owned);
            let first = (path.len() - own.len()) / self.block_size + 1;
            for end in (first..).map(|n| n * self.block_size) {
                match path.get(..end) {
                    Some(path) => expected.push((salt.clone(), path.to_vec())),
                    None => break,
                }
            }
        }
        let known = self.known.keys().map(|id| self.path_of(*id));
        let mut known: Vec<(Option<String>, Vec<u32>)> = known.collect();
        known.sort_unstable();
        expected.sort_unstable();
        assert_eq!(known, expected);
        assert_eq!(self.mirror.n_blocks(), self.known.len());
    }

    /// Like [`compare`](Self::compare), for a tree without windows and recurrent states.
    fn compare_plain(&self, cache: &RadixTree) {
        self.compare(cache);
        if cache.has_pending_changes(Observer::Publisher) {
            return;
        }
        for index in self.nodes.keys() {
            let (namespace, path) = self.path_to(*index);
            assert_eq!(cache.peek(&namespace, &path), path.len());
        }
    }

    fn path_to(&self, index: u32) -> (Namespace, Vec<u32>) {
        let (above, tokens) = &self.nodes[&index];
        match above {
            Above::Root(namespace) => (namespace.clone(), tokens.clone()),
            Above::Node(above) => {
                let (namespace, mut path) = self.path_to(*above);
                path.extend(tokens);
                (namespace, path)
            }
        }
    }

    fn path_of(&self, id: i64) -> (Option<String>, Vec<u32>) {
        let block = &self.known[&id];
        let mut path = match block.parent {
            Some(parent) => self.path_of(parent).1,
            None => Vec::new(),
        };
        path.extend(&block.tokens);
        (block.salt.clone(), path)
    }
}

/// A random key over two tokens, so that keys share long prefixes.
fn key(random: &mut Random) -> Vec<u32> {
    let len = random.within(1..50);
    (0..len).map(|_| random.below(2) as u32).collect()
}

fn run_tree(page_size: u32, block_size: usize, seed: u64) {
    let mut random = Random::new(seed);
    let mut memory = Memory::new(page_size, "lru", 4_000);
    let mut reader = KvReader::new(memory.page_size, block_size);
    memory.tree.restart_changes(Observer::Publisher);
    let namespaces = [
        Namespace::default(),
        Namespace::new(None, Some("salt")),
        Namespace::new(Some("key"), None),
    ];
    let mut locks: Vec<NodeLock> = Vec::new();
    for _ in 0..300 {
        match random.below(100) {
            0..60 => {
                let namespace = &namespaces[random.below(namespaces.len())];
                memory.insert_in(namespace, &key(&mut random));
            }
            60..75 => {
                memory.matched(&key(&mut random));
            }
            75..80 => locks.push(memory.lock(&key(&mut random))),
            80..85 if !locks.is_empty() => {
                let lock = locks.swap_remove(random.below(locks.len()));
                memory.tree.unlock(lock);
            }
            80..97 => {
                memory.evict(random.below(60));
            }
            97 => {
                let cleared = memory.tree.clear();
                memory.pool.free(cleared);
            }
            _ => memory.tree.restart_changes(Observer::Publisher),
        }
        if memory.pool.free_pages() < 100 {
            memory.evict(1_000);
        }
        reader.take_changes(&mut memory.tree);
        reader.compare_plain(&memory.tree);
    }
    for lock in locks {
        memory.tree.unlock(lock);
    }
    assert!(reader.removed > 0 && reader.cleared > 1);
    memory.evict(usize::MAX);
    reader.take_changes(&mut memory.tree);
    reader.compare(&memory.tree);
    assert!(reader.known.is_empty());
}

#[test]
fn the_reader_knows_the_blocks_of_a_tree_after_any_operation() {
    for (page_size, block_size) in [(1, 1), (1, 4), (1, 16), (4, 4), (4, 16), (2, 6)] {
        for seed in 0..3 {
            run_tree(page_size, block_size, seed);
        }
    }
}

#[test]
fn the_reader_knows_the_blocks_of_a_tree_after_every_plan_of_a_chaos_run() {
    let (mut windows, mut states, mut cleared) = (0, 0, 0);
    let runs = table().into_iter().enumerate();
    let cached = runs.filter(|(_, factors)| factors.eviction.is_some());
    for (number, factors) in cached.take(n_runs() / 2) {
        let mut chaos = Chaos::new(factors, 7_000 + number as u64);
        windows += usize::from(chaos.world.setup.windows.is_some());
        states += usize::from(chaos.world.setup.states.is_some());
        let page = factors.page_size as usize;
        let reader = chaos.world.read_kv_events(match number % 3 {
            0 => page,
            _ => page * 4,
        });
        assert_eq!(reader.lists, 0);
        chaos.run(N_REQUESTS);
        let world = &mut chaos.world;
        let reader = world.kv_reader.as_mut().expect("a reader");
        reader.take_changes(&mut world.states.cache);
        reader.compare(&world.states.cache);
        assert!(reader.lists > 20, "run {number}: {} lists", reader.lists);
        cleared += reader.cleared - 1;
    }
    assert!(windows > 0 && states > 0 && cleared > 0);
}

/// Inserts without the integrity check, which walks the whole (large) tree.
fn insert(memory: &mut Memory, tokens: &[u32]) {
    let pages = memory.alloc(tokens.len());
    let inserted = memory.tree.insert(Insert {
        namespace: &Namespace::default(),
        tokens,
        owner: None,
        pages,
        priority: 0,
        inserted_tokens: 0,
    });
    memory.pool.free(inserted.duplicates);
    memory.pool.free(inserted.rest);
}

/// The tree has more nodes than one part of a full resend.
#[test]
fn a_full_resend_of_a_tree_that_changes_meanwhile_ends_with_its_current_blocks() {
    for seed in 0..3 {
        let mut random = Random::new(seed);
        let mut memory = Memory::new(1, "lru", 60_000);
        memory.tree.restart_changes(Observer::Publisher);
        let mut reader = KvReader::new(memory.page_size, 2);
        let tokens = |random: &mut Random| -> Vec<u32> {
            let len = random.within(4..12);
            (0..len).map(|_| random.below(4) as u32).collect()
        };
        for _ in 0..3_000 {
            insert(&mut memory, &tokens(&mut random));
        }
        assert!(memory.tree.n_nodes() > 1_500, "{}", memory.tree.n_nodes());
        // The reader has no events so far, as if all had been lost.
        let mut lost = Vec::new();
        memory.tree.take_changes(Observer::Publisher, &mut lost);
        memory.tree.restart_changes(Observer::Publisher);
        let mut parts = 0;
        loop {
            reader.take_changes(&mut memory.tree);
            parts += 1;
            if !memory.tree.has_pending_changes(Observer::Publisher) {
                break;
            }
            for _ in 0..random.below(40) {
                insert(&mut memory, &tokens(&mut random));
            }
            memory.matched(&tokens(&mut random));
            memory.evict(random.below(200));
        }
        assert!(parts > 3, "{parts}");
        reader.compare_plain(&memory.tree);
    }
}
