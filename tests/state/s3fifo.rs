//! Tests of S3-FIFO eviction: random operations compared with a model of the paper's queues, and hand-computed victims.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use souffleur_state::cache::eviction::EvictionPolicy;
use souffleur_state::cache::eviction::queues::{QueuePolicy, Scan, ScannedLeaf};
use souffleur_state::cache::prefix_history::PrefixHash;

use crate::naive_model::{Key, ModelNode, ModelPolicy, Operation, TreeAndModel, policy_of};
use crate::{Memory, deterministic_runner, panics};

const CASES: u32 = 400;
const MAX_OPERATIONS: usize = 160;

/// The queues as lists, the oldest first, and a counter that every hit raises.
#[derive(Default)]
pub struct Model {
    small: Vec<Entry>,
    main: Vec<Entry>,
    ghosts: Vec<Ghost>,
}

#[derive(Clone, Copy)]
struct Entry {
    number: usize,
    frequency: i64,
}

struct Ghost {
    space: usize,
    /// The path up to the end of the node's first page.
    path: Vec<u32>,
    tokens: usize,
    has_returned: bool,
}

fn first_page(node: &ModelNode, page_size: usize) -> Vec<u32> {
    node.path[..node.start + page_size].to_vec()
}

fn tokens(node: &ModelNode) -> usize {
    node.path.len() - node.start
}

impl Model {
    fn queues(&mut self) -> [&mut Vec<Entry>; 2] {
        [&mut self.small, &mut self.main]
    }

    fn remember(&mut self, node: &ModelNode, page_size: usize, limit: usize) {
        let path = first_page(node, page_size);
        let is_same = |ghost: &&mut Ghost| ghost.space == node.space && ghost.path == path;
        for ghost in self.ghosts.iter_mut().filter(is_same) {
            ghost.has_returned = true;
        }
        self.ghosts.push(Ghost {
            space: node.space,
            path,
            tokens: tokens(node),
            has_returned: false,
        });
        while self.ghosts.iter().map(|ghost| ghost.tokens).sum::<usize>() > limit {
            self.ghosts.remove(0);
        }
    }
}

impl ModelPolicy for Model {
    fn enter(&mut self, node: &ModelNode, page_size: usize) {
        let path = first_page(node, page_size);
        let is_ghost = |ghost: &&mut Ghost| {
            !ghost.has_returned && ghost.space == node.space && ghost.path == path
        };
        let queue = match self.ghosts.iter_mut().find(is_ghost) {
            Some(ghost) => {
                ghost.has_returned = true;
                &mut self.main
            }
            None => &mut self.small,
        };
        queue.push(Entry {
            number: node.number,
            frequency: (node.hits - 1).clamp(0, 3),
        });
    }

    fn split(&mut self, lower: usize, upper: usize) {
        for queue in self.queues() {
            if let Some(at) = queue.iter().position(|entry| entry.number == lower) {
                let number = upper;
                queue.insert(
                    at,
                    Entry {
                        number,
                        ..queue[at]
                    },
                );
            }
        }
    }

    fn hit(&mut self, number: usize) {
        for queue in self.queues() {
            for entry in queue.iter_mut().filter(|entry| entry.number == number) {
                entry.frequency = (entry.frequency + 1).min(3);
            }
        }
    }

    fn evict(&mut self, leaves: &[&ModelNode], page_size: usize) -> usize {
        loop {
            let leaf = |entry: &Entry| leaves.iter().find(|leaf| leaf.number == entry.number);
            let size = |queue: &[Entry]| {
                queue
                    .iter()
                    .filter_map(leaf)
                    .map(|leaf| tokens(leaf))
                    .sum::<usize>()
            };
            let (small, all) = (size(&self.small), size(&self.small) + size(&self.main));
            let is_small = small * 10 >= all;
            let queue = if is_small {
                &mut self.small
            } else {
                &mut self.main
            };
            let at = queue.iter().position(|entry| leaf(entry).is_some());
            let entry = queue.remove(at.expect("the queue has leaves"));
            match (is_small, entry.frequency) {
                (true, 2..) => self.main.push(Entry {
                    frequency: 0,
                    ..entry
                }),
                (false, frequency @ 1..) => self.main.push(Entry {
                    frequency: frequency - 1,
                    ..entry
                }),
                _ => {
                    if let Some(leaf) = leaf(&entry).filter(|_| is_small) {
                        self.remember(leaf, page_size, all - all / 10);
                    }
                    return entry.number;
                }
            }
        }
    }
}

/// Prefixes of few prompts, so that most recur.
fn key() -> impl Strategy<Value = Key> {
    (0..6u32, 1..5usize, 0..8usize).prop_map(|(prompt, n_symbols, cut)| Key {
        space: 0,
        symbols: (0..2 * n_symbols as u32)
            .map(|at| prompt * (at / 2 + 1) % 7)
            .collect(),
        cut: cut.saturating_sub(4),
    })
}

fn operation(has_swaps: bool) -> impl Strategy<Value = Operation> {
    prop_oneof![
        8 => key().prop_map(|key| Operation::Insert(key, 0, 0)),
        1 => key().prop_map(Operation::Match),
        2 => key().prop_map(Operation::Lock),
        2 => (0..8usize).prop_map(Operation::Unlock),
        5 => (0..6usize).prop_map(Operation::Evict),
        1 => any::<usize>().prop_map(move |policy| if has_swaps {
            Operation::SetPolicy(policy)
        } else {
            Operation::Evict(1)
        }),
    ]
}

fn s3fifo() -> EvictionPolicy {
    EvictionPolicy::from_name("s3fifo").expect("a policy")
}

#[test]
fn victims_are_those_of_the_papers_queues() {
    for (page_size, has_swaps) in [(1, false), (4, false), (16, false), (4, true)] {
        let operations = vec(operation(has_swaps), 1..MAX_OPERATIONS);
        let outcome = deterministic_runner(CASES).run(&operations, |operations| {
            TreeAndModel::new(page_size, policy_of("s3fifo", page_size as usize)).run(&operations)
        });
        outcome.unwrap_or_else(|error| panic!("page size {page_size}: {error}"));
    }
}

/// The policy with a planted error.
struct PlantedPolicy {
    policy: Box<dyn QueuePolicy>,
    admit: fn(usize) -> usize,
    leaf: fn(ScannedLeaf) -> ScannedLeaf,
    scan: fn(Scan) -> Scan,
    sizes: fn(&[usize]) -> [usize; 2],
}

impl PlantedPolicy {
    fn none() -> Self {
        Self {
            policy: s3fifo().queues().expect("queues"),
            admit: |queue| queue,
            leaf: |leaf| leaf,
            scan: |scan| scan,
            sizes: |tokens| [tokens[0], tokens[1]],
        }
    }
}

impl QueuePolicy for PlantedPolicy {
    fn n_queues(&self) -> usize {
        self.policy.n_queues()
    }

    fn admit(&mut self, entry: PrefixHash) -> usize {
        (self.admit)(self.policy.admit(entry))
    }

    fn next_queue(&self, tokens: &[usize]) -> usize {
        self.policy.next_queue(&(self.sizes)(tokens))
    }

    fn scan(&mut self, leaf: ScannedLeaf, tokens: &[usize]) -> Scan {
        (self.scan)(self.policy.scan((self.leaf)(leaf), tokens))
    }
}

#[test]
fn the_model_finds_planted_errors() {
    type MakePolicy = fn() -> Box<dyn QueuePolicy>;
    let errors: [(&str, MakePolicy); 5] = [
        ("ghosts are forgotten", || {
            Box::new(PlantedPolicy {
                admit: |_| 0,
                ..PlantedPolicy::none()
            })
        }),
        ("one hit is enough for the main queue", || {
            Box::new(PlantedPolicy {
                leaf: |leaf| ScannedLeaf {
                    hits: leaf.hits + u32::from(leaf.queue == 0),
                    ..leaf
                },
                ..PlantedPolicy::none()
            })
        }),
        ("the counter has one bit", || {
            Box::new(PlantedPolicy {
                leaf: |leaf| match leaf.queue {
                    0 => leaf,
                    _ => ScannedLeaf {
                        hits: leaf.hits.min(1),
                        ..leaf
                    },
                },
                ..PlantedPolicy::none()
            })
        }),
        ("a reinsertion spends all hits", || {
            Box::new(PlantedPolicy {
                scan: |scan| match scan {
                    Scan::Move { queue, .. } => Scan::Move { queue, hits: 0 },
                    Scan::Evict => Scan::Evict,
                },
                ..PlantedPolicy::none()
            })
        }),
        ("the small queue has a fifth", || {
            Box::new(PlantedPolicy {
                sizes: |tokens| [tokens[0] / 2, tokens[1] + tokens[0].div_ceil(2)],
                ..PlantedPolicy::none()
            })
        }),
    ];
    for (error, make) in errors {
        let mut runner = deterministic_runner(CASES);
        let mut finds = || {
            let operations = vec(operation(false), MAX_OPERATIONS).new_tree(&mut runner);
            let operations = operations.expect("nothing is filtered").current();
            let planted = EvictionPolicy::with_queues("s3fifo", make);
            panics(|| {
                TreeAndModel::new(1, planted)
                    .run(&operations)
                    .expect("a difference panics")
            })
        };
        assert!((0..CASES).any(|_| finds()), "not found: {error}");
    }
    let whole = EvictionPolicy::with_queues("s3fifo", || Box::new(PlantedPolicy::none()));
    let mut runner = deterministic_runner(1);
    let operations = vec(operation(false), MAX_OPERATIONS).new_tree(&mut runner);
    let operations = operations.expect("nothing is filtered").current();
    assert!(TreeAndModel::new(1, whole).run(&operations).is_ok());
}

fn prompt(number: u32) -> Vec<u32> {
    (number * 100..number * 100 + 10).collect()
}

#[test]
fn prompts_used_once_leave_before_one_that_three_requests_used() {
    let mut memory = Memory::new(1, "s3fifo", 256);
    for number in [1, 1, 2, 2, 1, 3, 4] {
        memory.insert(&prompt(number));
    }
    // The first prompt moves to the main queue. Two requests are not enough for the second one.
    for gone in 2..=4 {
        assert_eq!((memory.evict(1), memory.peek(&prompt(gone))), (10, 0));
        assert_eq!(memory.peek(&prompt(1)), 10);
    }
    assert_eq!((memory.evict(1), memory.peek(&prompt(1))), (10, 0));
}

#[test]
fn a_prompt_that_returns_soon_enters_the_main_queue() {
    let mut memory = Memory::new(1, "s3fifo", 256);
    for number in 1..=4 {
        memory.insert(&prompt(number));
    }
    assert_eq!((memory.evict(1), memory.peek(&prompt(1))), (10, 0));
    // The returned prompt stays longer than the others, even than prompts that come later.
    for number in [1, 5, 6] {
        memory.insert(&prompt(number));
    }
    for gone in [2, 3, 4, 5, 6] {
        assert_eq!((memory.evict(1), memory.peek(&prompt(gone))), (10, 0));
    }
    assert_eq!(memory.peek(&prompt(1)), 10);
}
