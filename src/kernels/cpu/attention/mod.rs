//! Attention over paged KV, for prefill and decode alike.
//!
//! A query's keys are visited in blocks of `BLOCK` and spans of `SPAN` keys that begin at multiples of these sizes in
//! the sequence. Each span has its own running maximum and sum (online softmax); spans are merged in ascending order.
//! So a query's result depends only on its position, its own vector and the keys that it sees, not on its prefill
//! chunk, the page size, the other queries of the step, or which thread computes which spans. It sees the keys up to its
//! own position, or up to the end of its image.
//!
//! Rows of a step that begin with the same pages have their shared spans computed together (`prefix`): keys and values
//! are read and packed once for all of them, and each row continues separately from where they diverge.

mod block;
mod block_cache;
mod codes;
mod direct;
mod float_kv;
mod kv_element;
mod pack;
pub mod plan;
pub mod prefix;
mod product;
mod records;
mod scale_loads;
mod scales;
mod seen;
mod sizes;
mod space;
pub mod sparse;
mod state;
mod tile;

use std::sync::atomic::{AtomicUsize, Ordering};

use self::kv_element::KvElement;
use self::plan::{AttentionPlan, Target, Tile};
use self::prefix::Prefixes;
use self::space::Workspace;
use self::sparse::SparseAttention;
use self::state::{finish, merge, record_len};
use self::tile::{Step, Work};
use super::batch::{CpuBatch, Segment};
use super::element::with_elements;
use super::kv::{KvPool, PageTable};
use super::memory::Lines;
use super::nodes::Nodes;
use super::planes::Planes;
use super::simd::{Isa, Kernel, Lanes};
use super::tensor::{Shared, Tensor};
use super::threads::ThreadPool;
use crate::HeadShape;

pub struct Attention {
    shares_prefixes: bool,
    /// Plans of step `serial`, by head shape and the position from which queries attend sparsely.
    pub plans: Vec<((HeadShape, usize), AttentionPlan)>,
    n_plans: usize,
    serial: u64,
    prefixes: Prefixes,
    /// The parts of the step's segments below that position, if some queries attend sparsely.
    dense: Vec<Segment>,
    pub sparse: SparseAttention,
    pub states: Lines<f32>,
    /// One for each thread, each large enough for any item, so that no item allocates.
    spaces: Vec<Workspace>,
    kv_bytes: AtomicUsize,
}

impl Attention {
    /// If `shares_prefixes`, pages that several rows of a step begin with are read once for all of these rows.
    pub fn new(shares_prefixes: bool) -> Self {
        Self {
            shares_prefixes,
            plans: Vec::new(),
            n_plans: 0,
            serial: 0,
            prefixes: Prefixes::default(),
            dense: Vec::new(),
            sparse: SparseAttention::default(),
            states: Lines::default(),
            spaces: Vec::new(),
            kv_bytes: AtomicUsize::new(0),
        }
    }

    /// Bytes of keys and values read since the start.
    pub fn kv_bytes(&self) -> usize {
        self.kv_bytes.load(Ordering::Relaxed)
    }

    /// Attends each query of the step to its row's keys in `layer`.
    ///
    /// # Shapes
    /// `q: [n_tokens, n_heads * key_dim]`, `sinks: [n_heads]`, `out: [n_tokens, n_heads * values.dim()]`.
    pub fn attend(
        &mut self,
        (pool, isa): (&mut ThreadPool, Isa),
        q: &Tensor,
        (heads, sinks): (&HeadShape, Option<&[f32]>),
        (kv, layer, table): (&KvPool, usize, &PageTable),
        batch: &CpuBatch,
        mut out: Tensor,
    ) -> Tensor {
        let labels = kv.labels(layer);
        let dense_until = labels.map_or(usize::MAX, |labels| labels.rules().first_position());
        if let Some(labels) = labels {
            let history = (kv.layer(layer), labels, table);
            let bytes =
                self.sparse
                    .attend((pool, isa), q, (heads, sinks), history, batch, &mut out);
            self.kv_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        let plan = self.plan((*heads, dense_until), table, batch, pool.nodes());
        let plan = &self.plans[plan].1;
        let shared = Shared::new(out.values_mut());
        with_elements!(kv.layer(layer), kv, scales => {
            let record_len = record_len_of(kv, heads);
            self.states.grow_to(plan.n_records * record_len);
            let states = Shared::new(&mut self.states);
            let planes = Planes::over(heads, kv);
            let step = Step { heads, sinks, planes, q, kv, scales, table, plan, states, out: shared };
            let (n_tokens, n_records) = plan.largest_item;
            self.spaces.resize_with(pool.n_threads(), Workspace::default);
            self.spaces.iter_mut().for_each(|space| fit(kv, space, heads, n_tokens, n_records));
            for (round, items) in plan.rounds() {
                let work = |space: &mut Workspace, index: usize| {
                    let item = &items[index];
                    let bytes = run(isa, step, Work { step, item, space });
                    self.kv_bytes.fetch_add(bytes, Ordering::Relaxed);
                };
                let spaces = (self.spaces.as_mut_slice(), round.order);
                pool.for_each_by_node_with(spaces, plan.items_per_node(round), round.cost, &work);
            }
            let (merges, cost) = plan.merges();
            pool.for_each(merges.len() * heads.n_kv_heads, cost, &|index| {
                let tile = &plan.tiles[merges[index / heads.n_kv_heads] as usize];
                run(isa, step, Merge { step, tile, kv_head: index % heads.n_kv_heads, record_len });
            });
        });
        out
    }

    /// Index of the plan for a head shape and the position from which queries attend sparsely; made on first use.
    fn plan(
        &mut self,
        kind: (HeadShape, usize),
        table: &PageTable,
        batch: &CpuBatch,
        nodes: &Nodes,
    ) -> usize {
        if self.serial != batch.serial() {
            self.serial = batch.serial();
            self.n_plans = 0;
        }
        let plans = &self.plans[..self.n_plans];
        if let Some(index) = plans.iter().position(|(planned, _)| *planned == kind) {
            return index;
        }
        if self.n_plans == self.plans.len() {
            self.plans.push((kind, AttentionPlan::default()));
        }
        let (planned, plan) = &mut self.plans[self.n_plans];
        *planned = kind;
        let (heads, dense_until) = kind;
        let mut segments = batch.segments();
        if segments
            .iter()
            .any(|segment| segment.end_position() > dense_until)
        {
            self.dense.clear();
            let below = |segment: &Segment| Segment {
                n_tokens: segment
                    .n_tokens
                    .min(dense_until.saturating_sub(segment.first_position)),
                ..*segment
            };
            let dense = segments.iter().map(below);
            self.dense
                .extend(dense.filter(|segment| segment.n_tokens > 0));
            segments = &self.dense;
        }
        let prefixes = self.shares_prefixes.then_some(&mut self.prefixes);
        let bidirectional = batch.bidirectional_in(heads.window);
        plan.make((segments, bidirectional), table, &heads, nodes, prefixes);
        self.n_plans += 1;
        self.n_plans - 1
    }
}

fn record_len_of<F: KvElement>(_: &[F], heads: &HeadShape) -> usize {
    record_len(F::padded(heads.values.dim()))
}

fn run<F: KvElement, K: Kernel>(isa: Isa, _: Step<'_, F>, kernel: K) -> K::Output {
    F::dispatch(isa, kernel)
}

fn fit<F: KvElement>(
    _: &[F],
    space: &mut Workspace,
    heads: &HeadShape,
    n_tokens: usize,
    n_records: usize,
) {
    space.fit::<F>(heads, n_tokens, n_records);
    space.blocks.clear();
}

/// Merges the spans of a tile that different items have computed, for the heads of one group.
struct Merge<'a, F> {
    step: Step<'a, F>,
    tile: &'a Tile,
    kv_head: usize,
    record_len: usize,
}

impl<F: KvElement> Kernel for Merge<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self) {
        let Target::Spans(first) = self.tile.result else {
            return;
        };
        let Step {
            heads,
            states,
            plan,
            out,
            ..
        } = self.step;
        let len = self.record_len;
        let tokens = plan.tokens_of(self.tile);
        let per_span = tokens.len() * heads.n_heads;
        let (group, dim) = (heads.group(), heads.values.dim());
        for (i, token) in tokens.iter().enumerate() {
            for head in self.kv_head * group..(self.kv_head + 1) * group {
                let at = token.index as usize * heads.n_heads + head;
                let first = first + i * heads.n_heads + head;
                // SAFETY: each token and head belongs to one item; `dispatch` detected the instruction set.
                unsafe {
                    let total = states.part(first * len, len);
                    if self.tile.resumes {
                        let before = states.part(at * len, len);
                        merge::<S>(before, total);
                        total.copy_from_slice(before);
                    }
                    for span in 1..self.tile.spans.len() {
                        merge::<S>(total, states.part((first + span * per_span) * len, len));
                    }
                    let sink = self.step.sink(head);
                    finish::<F, S>(total, sink, out.part(at * dim, dim));
                }
            }
        }
    }
}
