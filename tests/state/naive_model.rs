//! Random operations on the radix tree, compared with a naive model.

use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use souffleur_base::ids::PageId;
use souffleur_state::cache::eviction::{EvictionParameters, EvictionPolicy};
use souffleur_state::cache::namespace::Namespace;
use souffleur_state::cache::radix_tree::Insert;
use souffleur_state::pool::pages::NodeLock;

use crate::{Memory, deterministic_runner, s3fifo};

const CASES_PER_TREE: u32 = 300;
const MAX_OPERATIONS: usize = 120;

#[test]
fn tree_agrees_with_the_naive_model() {
    for policy in EvictionPolicy::names() {
        for page_size in [1, 4, 16, 64] {
            let operations = vec(operation(), 1..MAX_OPERATIONS);
            let outcome = deterministic_runner(CASES_PER_TREE).run(&operations, |operations| {
                TreeAndModel::new(page_size, policy_of(policy, page_size as usize)).run(&operations)
            });
            outcome.unwrap_or_else(|error| panic!("{policy}, page size {page_size}: {error}"));
        }
    }
}

/// For tlru: the number of tokens that a next turn may have to compute.
fn threshold(page_size: usize) -> usize {
    3 * page_size
}

/// For tlru: the number of tokens that a next turn is expected to add.
fn next_prompt_estimate(page_size: usize) -> usize {
    page_size / 2
}

pub fn policy_of(name: &str, page_size: usize) -> EvictionPolicy {
    let policy = EvictionPolicy::from_name(name).expect("tests name policies that exist");
    policy.with_parameters(EvictionParameters {
        threshold: threshold(page_size) as u32,
        next_prompt_estimate: next_prompt_estimate(page_size) as u32,
        ..EvictionParameters::default()
    })
}

/// The reference model of a stateful policy; it identifies nodes by number.
pub trait ModelPolicy {
    /// Called for a node that enters the cache, and for all nodes when the policy is selected.
    fn enter(&mut self, node: &ModelNode, page_size: usize);
    /// A node is split: `lower` keeps its number, and its first part becomes `upper`.
    fn split(&mut self, lower: usize, upper: usize);
    fn hit(&mut self, number: usize);
    /// Chooses the unlocked leaf to evict, and returns its number.
    fn evict(&mut self, leaves: &[&ModelNode], page_size: usize) -> usize;
}

fn model_policy(name: &str) -> Option<Box<dyn ModelPolicy>> {
    match name {
        "s3fifo" => Some(Box::<s3fifo::Model>::default()),
        _ => None,
    }
}

/// All nodes in a list, each with its whole path: no links, no indices, no incremental state.
struct Model {
    page_size: usize,
    policy: &'static str,
    /// The model of a policy that keeps queues.
    own: Option<Box<dyn ModelPolicy>>,
    clock: i64,
    n_numbers: usize,
    nodes: Vec<ModelNode>,
}

#[derive(Clone)]
pub struct ModelNode {
    pub number: usize,
    pub space: usize,
    pub path: Vec<u32>,
    pub start: usize,
    pages: Vec<PageId>,
    used: i64,
    created: i64,
    pub hits: i64,
    priority: i64,
    locks: u32,
    /// The length of the longest key inserted through this node.
    history: usize,
}

impl Model {
    fn new(page_size: usize, policy: &'static str) -> Self {
        Self {
            page_size,
            policy,
            own: model_policy(policy),
            clock: 0,
            n_numbers: 0,
            nodes: Vec::new(),
        }
    }

    fn set_policy(&mut self, policy: &'static str) {
        if policy == self.policy {
            return;
        }
        self.policy = policy;
        self.own = model_policy(policy);
        self.nodes.sort_by_key(|node| node.created);
        for node in &self.nodes {
            if let Some(own) = &mut self.own {
                own.enter(node, self.page_size);
            }
        }
    }

    fn tick(&mut self) -> i64 {
        self.clock += 1;
        self.clock
    }

    fn next_number(&mut self) -> usize {
        self.n_numbers += 1;
        self.n_numbers
    }

    fn shared(&self, node: &ModelNode, space: usize, key: &[u32]) -> usize {
        let equal = node
            .path
            .iter()
            .zip(key)
            .take_while(|(a, b)| a == b)
            .count();
        if node.space == space {
            equal / self.page_size * self.page_size
        } else {
            0
        }
    }

    fn peek(&self, space: usize, key: &[u32]) -> usize {
        self.nodes
            .iter()
            .map(|node| self.shared(node, space, key))
            .max()
            .unwrap_or(0)
    }

    fn touch(&mut self, space: usize, key: &[u32]) -> (usize, Vec<PageId>) {
        let now = self.tick();
        for index in 0..self.nodes.len() {
            let end = self.shared(&self.nodes[index], space, key);
            if end <= self.nodes[index].start {
                continue;
            }
            self.nodes[index].used = now;
            if end < self.nodes[index].path.len() {
                let mut upper = self.nodes[index].clone();
                let lower = &mut self.nodes[index];
                upper.path.truncate(end);
                upper.pages = lower
                    .pages
                    .drain(..(end - lower.start) / self.page_size)
                    .collect();
                lower.start = end;
                upper.created = self.tick();
                upper.number = self.next_number();
                if let Some(own) = &mut self.own {
                    own.split(self.nodes[index].number, upper.number);
                }
                self.nodes.push(upper);
            }
        }
        self.nodes.sort_by_key(|node| node.start);
        let on_path = self
            .nodes
            .iter()
            .filter(|n| self.shared(n, space, key) > n.start);
        (
            self.peek(space, key),
            on_path.flat_map(|node| node.pages.clone()).collect(),
        )
    }

    fn insert(
        &mut self,
        space: usize,
        key: &[u32],
        pages: &[PageId],
        priority: i64,
        counted: usize,
    ) -> usize {
        let key = &key[..key.len() / self.page_size * self.page_size];
        let start = self.touch(space, key).0;
        let is_new = start < key.len();
        let new = self.n_numbers + 1;
        if is_new {
            let (used, pages) = (self.tick(), pages[start / self.page_size..].to_vec());
            let (path, created) = (key.to_vec(), used);
            let node = ModelNode {
                number: self.next_number(),
                space,
                path,
                start,
                pages,
                used,
                created,
                hits: 0,
                priority,
                locks: 0,
                history: 0,
            };
            self.nodes.push(node);
        }
        for node in self
            .nodes
            .iter_mut()
            .filter(|n| n.space == space && key.starts_with(&n.path))
        {
            node.priority = node.priority.max(priority);
            node.history = node.history.max(key.len());
            if node.path.len() <= counted {
                continue;
            }
            node.hits += 1;
            if let Some(own) = self.own.as_mut().filter(|_| node.number != new || !is_new) {
                own.hit(node.number);
            }
        }
        if let (Some(own), Some(leaf)) = (&mut self.own, self.nodes.last().filter(|_| is_new)) {
            own.enter(leaf, self.page_size);
        }
        start
    }

    fn lock(&mut self, space: usize, path: &[u32], by: i32) {
        for node in self
            .nodes
            .iter_mut()
            .filter(|n| n.space == space && path.starts_with(&n.path))
        {
            node.locks = node.locks.checked_add_signed(by).expect("locked before");
        }
    }

    fn evict(&mut self, tokens: usize) -> Vec<PageId> {
        let mut freed = Vec::new();
        while freed.len() * self.page_size < tokens {
            let is_leaf = |node: &ModelNode| {
                let is_child =
                    |n: &ModelNode| n.start == node.path.len() && n.path.starts_with(&node.path);
                !self
                    .nodes
                    .iter()
                    .any(|n| n.space == node.space && is_child(n))
            };
            let leaves = (0..self.nodes.len())
                .filter(|&i| self.nodes[i].locks == 0 && is_leaf(&self.nodes[i]));
            let leaves: Vec<usize> = leaves.collect();
            let victim = match &mut self.own {
                Some(own) if !leaves.is_empty() => {
                    let leaves: Vec<_> = leaves.iter().map(|&i| &self.nodes[i]).collect();
                    let number = own.evict(&leaves, self.page_size);
                    self.nodes.iter().position(|node| node.number == number)
                }
                _ => leaves
                    .into_iter()
                    .min_by_key(|&i| self.rank(&self.nodes[i])),
            };
            let Some(victim) = victim else {
                break;
            };
            freed.extend(self.nodes.swap_remove(victim).pages);
        }
        freed
    }

    /// The eviction rank of a leaf under a policy without queues; the smallest is evicted first.
    fn rank(&self, node: &ModelNode) -> (i64, i64) {
        match self.policy {
            "lru" => (0, node.used),
            "lfu" => (node.hits, node.used),
            "fifo" => (0, node.created),
            "mru" => (0, -node.used),
            "filo" => (0, -node.created),
            "priority" => (node.priority, node.used),
            "slru" => (i64::from(node.hits >= 2), node.used),
            "tlru" => {
                let to_keep = node.history + next_prompt_estimate(self.page_size);
                let can_go = node.start + threshold(self.page_size) >= to_keep;
                (if can_go { -1 } else { 0 }, node.used)
            }
            other => panic!("the model has no policy {other}"),
        }
    }

    fn size(&self, locked: bool) -> usize {
        let counted = self.nodes.iter().filter(|node| (node.locks > 0) == locked);
        counted.map(|node| node.path.len() - node.start).sum()
    }
}

#[derive(Clone, Debug)]
pub enum Operation {
    Insert(Key, i64, usize),
    Match(Key),
    Peek(Key),
    Lock(Key),
    Unlock(usize),
    Evict(usize),
    SetPolicy(usize),
}

/// Few symbols and few lengths, so that keys share prefixes, end inside pages and inside nodes.
#[derive(Clone, Debug)]
pub struct Key {
    pub space: usize,
    pub symbols: Vec<u32>,
    pub cut: usize,
}

impl Key {
    fn tokens(&self, page_size: usize) -> Vec<u32> {
        let half_page = page_size.div_ceil(2);
        let tokens = self
            .symbols
            .iter()
            .flat_map(|&symbol| vec![symbol; half_page]);
        let mut tokens: Vec<u32> = tokens.collect();
        tokens.truncate(tokens.len().saturating_sub(self.cut % half_page));
        tokens
    }
}

fn key() -> impl Strategy<Value = Key> {
    let symbols = vec(0..2u32, 0..14);
    (0..3usize, symbols, 0..32usize).prop_map(|(space, symbols, cut)| Key {
        space,
        symbols,
        cut,
    })
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        4 => (key(), 0..3i64, 0..40usize).prop_map(|(k, p, counted)| Operation::Insert(k, p, counted)),
        3 => key().prop_map(Operation::Match),
        1 => key().prop_map(Operation::Peek),
        2 => key().prop_map(Operation::Lock),
        2 => (0..8usize).prop_map(Operation::Unlock),
        2 => (0..80usize).prop_map(Operation::Evict),
        1 => any::<usize>().prop_map(Operation::SetPolicy),
    ]
}

pub struct TreeAndModel {
    memory: Memory,
    model: Model,
    spaces: [Namespace; 3],
    locks: Vec<(NodeLock, usize, Vec<u32>)>,
}

impl TreeAndModel {
    pub fn new(page_size: u32, policy: EvictionPolicy) -> Self {
        let spaces = [(None, None), (Some("lora"), None), (None, Some("salt"))];
        Self {
            memory: Memory::with_policy(page_size, policy, 4_000),
            model: Model::new(page_size as usize, policy.name()),
            spaces: spaces.map(|(extra_key, salt)| Namespace::new(extra_key, salt)),
            locks: Vec::new(),
        }
    }

    pub fn run(mut self, operations: &[Operation]) -> Result<(), TestCaseError> {
        for operation in operations {
            self.apply(operation);
            let tree = &self.memory.tree;
            assert_eq!(tree.check_integrity(), Ok(()));
            assert_eq!(tree.evictable_size(), self.model.size(false));
            assert_eq!(tree.protected_size(), self.model.size(true));
            assert_eq!(tree.n_nodes(), self.model.nodes.len());
        }
        let mut cached: Vec<PageId> = self.memory.tree.iter_pages().collect();
        let pages = self.model.nodes.iter().flat_map(|node| &node.pages);
        let mut expected: Vec<PageId> = pages.copied().collect();
        cached.sort();
        expected.sort();
        assert_eq!(cached, expected);
        for (lock, ..) in self.locks {
            self.memory.tree.unlock(lock);
        }
        self.memory.assert_idle();
        Ok(())
    }

    fn apply(&mut self, operation: &Operation) {
        let page_size = self.model.page_size;
        let Self {
            memory,
            model,
            spaces,
            locks,
        } = self;
        match operation {
            Operation::Insert(key, priority, counted) => self.insert(key, *priority, *counted),
            Operation::Match(key) => {
                let tokens = key.tokens(page_size);
                let found = memory.tree.match_prefix(&spaces[key.space], &tokens);
                let got = (found.tokens, found.pages().iter().collect::<Vec<_>>());
                assert_eq!(got, model.touch(key.space, &tokens));
            }
            Operation::Peek(key) => {
                let tokens = key.tokens(page_size);
                let got = memory.tree.peek(&spaces[key.space], &tokens);
                assert_eq!(got, model.peek(key.space, &tokens));
            }
            Operation::Lock(key) => {
                let mut tokens = key.tokens(page_size);
                let locked = memory.tree.lock_prefix(&spaces[key.space], &tokens);
                let got = (locked.tokens, locked.pages.iter().collect::<Vec<_>>());
                assert_eq!(got, model.touch(key.space, &tokens));
                tokens.truncate(locked.tokens);
                model.lock(key.space, &tokens, 1);
                locks.push((locked.lock, key.space, tokens));
            }
            Operation::Unlock(_) if locks.is_empty() => {}
            Operation::Unlock(index) => {
                let (lock, space, path) = locks.swap_remove(index % locks.len());
                memory.tree.unlock(lock);
                model.lock(space, &path, -1);
            }
            Operation::SetPolicy(number) => {
                let names: Vec<_> = EvictionPolicy::names().collect();
                model.set_policy(names[number % names.len()]);
                memory
                    .tree
                    .set_eviction_policy(policy_of(model.policy, page_size));
            }
            Operation::Evict(tokens) => {
                let evicted = memory.tree.evict(*tokens);
                let ids: Vec<PageId> = evicted.iter().collect();
                assert_eq!(ids, model.evict(*tokens));
                memory.pool.free_evicted(evicted);
            }
        }
    }

    fn insert(&mut self, key: &Key, priority: i64, counted: usize) {
        let page_size = self.model.page_size;
        let tokens = key.tokens(page_size);
        let pages = self.memory.alloc(tokens.len());
        let n_key_pages = tokens.len() / page_size;
        let ids = &pages.ids()[..n_key_pages].to_vec();
        let inserted = self.memory.tree.insert(Insert {
            namespace: &self.spaces[key.space],
            tokens: &tokens,
            owner: Some(&Arc::from(&tokens[..])),
            pages,
            priority,
            inserted_tokens: counted,
        });
        let expected = self
            .model
            .insert(key.space, &tokens, ids, priority, counted);
        assert_eq!(inserted.prefix_tokens, expected);
        assert_eq!(inserted.duplicates.ids(), &ids[..expected / page_size]);
        self.memory.pool.free(inserted.duplicates);
        self.memory.pool.free(inserted.rest);
    }
}
