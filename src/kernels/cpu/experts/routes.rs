//! Routing of a step's tokens to experts, sorted by expert.

use std::ops::Range;

use super::super::activations::max_group_rows;
use super::super::format::{even_part, n_groups};
use super::super::simd::Isa;
use super::super::tensor::{Shared, Tensor};
use super::super::threads::ThreadPool;
use crate::routing::Routing;

/// Approximate cost of choosing, per logit, in multiply-adds.
const LOGIT_COST: usize = 32;
const ITEM_TOKENS: usize = 16;
/// Tokens are divided into blocks if a block has, on average, at least this many rows per expert and thread. Otherwise
/// groups of rows would often not be full, although each thread reads all weights.
const LEAST_BLOCK_ROWS: usize = 16;

/// Biases that are added to scores for the choice only; factors on the weights of chosen experts. Each `[n_experts]`.
pub type PerExpert<'a> = [Option<&'a [f32]>; 2];

/// The rows of a step: a *row* is a token at one of its experts. Rows are ordered by block of tokens, within a block by
/// expert, and within an expert by token.
#[derive(Default)]
pub struct Routes {
    /// `[tokens, n_used]`.
    experts: Vec<u32>,
    scores: Vec<f32>,
    pub tokens: Vec<u32>,
    pub weights: Vec<f32>,
    /// Experts with rows, ascending in each block.
    pub active: Vec<ActiveExpert>,
    /// The active experts of each block of consecutive tokens.
    pub blocks: Vec<Range<usize>>,
    /// Start and end of each group of rows that are multiplied together.
    pub groups: Vec<(u32, u32)>,
    /// The next row of each expert in each block.
    next: Vec<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ActiveExpert {
    pub expert: usize,
    pub first: usize,
    pub rows: usize,
}

impl Routes {
    pub fn rows(&self) -> usize {
        self.tokens.len()
    }

    pub fn choose(
        &mut self,
        (pool, isa): (&mut ThreadPool, Isa),
        (routing, per_expert): (&Routing, PerExpert<'_>),
        logits: &Tensor,
    ) {
        let n_rows = logits.rows() * routing.n_used;
        resize(&mut self.experts, n_rows);
        resize(&mut self.scores, n_rows);
        let formula = (routing, per_expert);
        choose_all(pool, formula, logits, &mut self.experts, &mut self.scores);
        let n_blocks = n_blocks((pool, isa), n_rows, routing);
        self.group(routing, n_blocks, max_group_rows(isa));
    }

    fn group(&mut self, routing: &Routing, n_blocks: usize, max_group_rows: usize) {
        let (n_rows, n_experts) = (self.experts.len(), routing.n_experts);
        self.count(routing, n_blocks);
        // Reserves for the worst case, so that later steps of the same size don't allocate.
        let max_active = n_rows.min(n_blocks * n_experts);
        self.active.clear();
        self.active.reserve(max_active);
        self.groups.clear();
        self.groups.reserve(n_rows);
        self.blocks.clear();
        let mut first = 0;
        for of_block in self.next.chunks_exact_mut(n_experts) {
            let first_active = self.active.len();
            for (expert, next) in of_block.iter_mut().enumerate() {
                let rows = *next as usize;
                *next = first as u32;
                if rows > 0 {
                    let active = ActiveExpert {
                        expert,
                        first,
                        rows,
                    };
                    self.groups.extend(groups_of(active, max_group_rows));
                    self.active.push(active);
                }
                first += rows;
            }
            self.blocks.push(first_active..self.active.len());
        }
        resize(&mut self.tokens, n_rows);
        resize(&mut self.weights, n_rows);
        for (token, (block, chosen)) in chosen(&self.experts, routing, n_blocks).enumerate() {
            let scores = &self.scores[token * chosen.len()..];
            for (expert, score) in chosen.iter().zip(scores) {
                let next = &mut self.next[block * n_experts + *expert as usize];
                self.tokens[*next as usize] = token as u32;
                self.weights[*next as usize] = *score;
                *next += 1;
            }
        }
    }

    fn count(&mut self, routing: &Routing, n_blocks: usize) {
        resize(&mut self.next, n_blocks * routing.n_experts);
        self.next.fill(0);
        for (block, chosen) in chosen(&self.experts, routing, n_blocks) {
            for expert in chosen {
                self.next[block * routing.n_experts + *expert as usize] += 1;
            }
        }
    }
}

fn chosen<'a>(
    experts: &'a [u32],
    routing: &Routing,
    n_blocks: usize,
) -> impl Iterator<Item = (usize, &'a [u32])> {
    let n_tokens = experts.len() / routing.n_used;
    let of_token = experts.chunks_exact(routing.n_used).enumerate();
    of_token.map(move |(token, chosen)| (token * n_blocks / n_tokens, chosen))
}

/// Number of blocks of tokens: one per thread if experts keep enough rows, as a thread then reads data that it wrote
/// itself. Measured with bf16 and two threads; instruction sets that widen bf16 or multiply tiles of sixteen rows are
/// faster with a single block.
fn n_blocks((pool, isa): (&ThreadPool, Isa), n_rows: usize, routing: &Routing) -> usize {
    let n_threads = pool.n_threads();
    let is_enough = n_rows >= LEAST_BLOCK_ROWS * routing.n_experts * n_threads * n_threads;
    if isa == Isa::Avx512Bf16 && pool.nodes().count() == 1 && is_enough {
        n_threads
    } else {
        1
    }
}

fn groups_of(active: ActiveExpert, max_rows: usize) -> impl Iterator<Item = (u32, u32)> {
    let ActiveExpert { first, rows, .. } = active;
    let n = n_groups(rows, max_rows);
    (0..n).map(move |group| {
        let rows = even_part(group, n, rows);
        ((first + rows.start) as u32, (first + rows.end) as u32)
    })
}

fn choose_all(
    pool: &mut ThreadPool,
    (routing, [correction, factors]): (&Routing, PerExpert<'_>),
    logits: &Tensor,
    experts: &mut [u32],
    scores: &mut [f32],
) {
    let (n_tokens, used) = (logits.rows(), routing.n_used);
    let (experts, scores) = (Shared::new(experts), Shared::new(scores));
    let cost = n_tokens * routing.n_experts * LOGIT_COST;
    pool.for_each_in_runs(n_tokens.div_ceil(ITEM_TOKENS), cost, &|item| {
        for token in item * ITEM_TOKENS..n_tokens.min((item + 1) * ITEM_TOKENS) {
            // SAFETY: each token belongs to one item.
            let (experts, scores) = unsafe {
                (
                    experts.part(token * used, used),
                    scores.part(token * used, used),
                )
            };
            routing.choose(logits.row(token), correction, experts, scores);
            if let Some(factors) = factors {
                for (score, expert) in scores.iter_mut().zip(experts) {
                    *score *= factors[*expert as usize];
                }
            }
        }
    });
}

fn resize<T: Clone + Default>(values: &mut Vec<T>, len: usize) {
    values.resize(len, T::default());
}
