//! MoE matrix products: each expert's rows times its own weights.

use std::ops::Range;

use super::super::CpuBackend;
use super::super::activations::RowGroups;
use super::super::experts::routes::ActiveExpert;
use super::super::experts::rows::ExpertRows;
use super::super::format::even_part;
use super::super::matrix::Matrix;
use super::super::nodes::{PerNode, locate};
use super::super::panel::MAX_PANELS;
use super::super::simd::Isa;
use super::super::stack::Stack;
use super::super::tensor::Shared;
use super::super::threads::ThreadPool;
use super::item_run::ItemRun;
use super::output::{Output, WeightedRows, Write};
use super::section::{STREAM_BYTES, Section};
use super::threads_of;
use crate::Linear;

/// Panels of a work item if an expert has several groups of rows; the rows stay in cache while the weights stream.
const ITEM_PANELS: usize = 2 * MAX_PANELS;

/// Maximum spans (ranges of panels) of a matrix per thread. A work item of [`add_experts`] multiplies, for one block of
/// tokens, the same span of each active expert.
const SPANS: usize = 5;
/// Maximum spans per thread with widened weights (`strips`): with smaller spans, other threads take over more of a
/// preempted thread's work.
const STRIP_SPANS: usize = 8;

/// # Shapes
/// `x: [rows, inputs]`, `out: [rows, outputs]`, or half as many outputs if gated.
pub struct ExpertProduct<'a> {
    pub x: &'a [ExpertRows<'a>],
    pub experts: &'a [Linear<CpuBackend>],
    pub active: &'a [ActiveExpert],
    /// The active experts of each block of tokens.
    pub blocks: &'a [Range<usize>],
    pub out: &'a mut [f32],
    pub write: Write,
}

/// Multiplies each expert's rows with its weights; `runs` is scratch memory.
///
/// # Panics
/// If the shapes or encodings do not match.
pub fn multiply_experts(
    pool: &mut ThreadPool,
    isa: Isa,
    product: ExpertProduct<'_>,
    runs: &mut Vec<ItemRun>,
) {
    let sections = ExpertSections::new(product, isa, None);
    runs.clear();
    runs.reserve(sections.max_sections());
    let (mut n_items, mut node_items) = (0, PerNode::new());
    for node in 0..sections.n_nodes() {
        let first_of_node = n_items;
        for (index, active) in sections.active.iter().enumerate() {
            let of_expert = sections.weight(active).sections().iter().enumerate();
            for (section, _) in of_expert.filter(|(_, matrix)| matrix.node == node) {
                runs.push(ItemRun {
                    first_item: n_items,
                    active: index,
                    section,
                });
                n_items += sections.section(index, section).n_items();
            }
        }
        node_items.push(n_items - first_of_node);
    }
    pool.for_each_by_node(&node_items, sections.cost(), &|item| {
        let item_of = |item: usize| {
            let run = runs[runs.partition_point(|run| run.first_item <= item) - 1];
            let section = sections.section(run.active, run.section);
            section.item(item - run.first_item)
        };
        let this = item_of(item);
        let next = (item + 1 < n_items).then(|| item_of(item + 1).start());
        let next = next.filter(|next| next.weight.node == this.weight.node);
        this.with_next(next).run(isa);
    });
}

/// Multiplies as [`multiply_experts`], and adds each row, times its router weight, to its token's row of the output. A
/// work item has a range of outputs of one block of tokens to itself, and adds the experts in ascending order, so that
/// the sums do not depend on threads.
///
/// # Panics
/// As [`multiply_experts`].
pub fn add_experts(
    pool: &mut ThreadPool,
    isa: Isa,
    product: ExpertProduct<'_>,
    weighted: WeightedRows<'_>,
) {
    let sections = ExpertSections::new(product, isa, Some(weighted));
    let parts: PerNode<NodePanels> = (0..sections.n_nodes())
        .map(|node| {
            let threads = threads_of(pool, &sections.experts[0].weight, node);
            let threads = threads.div_ceil(sections.blocks.len());
            let largest = sections.largest(node);
            NodePanels::new(largest.panels, largest.uses_strips(), threads)
        })
        .collect();
    let items = |part: &NodePanels| sections.blocks.len() * part.n_spans;
    let node_items: PerNode<usize> = parts.iter().map(items).collect();
    pool.for_each_by_node(&node_items, sections.cost(), &|item| {
        let (node, item) = locate(&node_items, item);
        let (block, span) = (item / parts[node].n_spans, item % parts[node].n_spans);
        let of_part = |index, span| sections.section(index, node).span(parts[node].span(span));
        let block = sections.blocks[block].clone();
        for index in block.clone() {
            let next = if index + 1 < block.end {
                Some(of_part(index + 1, span).start())
            } else {
                (span + 1 < parts[node].n_spans).then(|| of_part(block.start, span + 1).start())
            };
            of_part(index, span).with_next(next).run(isa);
        }
    });
}

fn weight_of(linear: &Linear<CpuBackend>) -> (&Stack, Option<&[f32]>) {
    (&linear.weight, linear.bias.as_deref())
}

/// Divides an expert's panels on one NUMA node evenly among threads, and each thread's share into spans of whole tiles
/// (`tile_panels` panels); only the last span of a share may end with a partial tile, and spans may be empty. Without
/// strips, the spans of a share shrink towards its end, so that work stealing balances finely.
struct NodePanels {
    n_panels: usize,
    tile_panels: usize,
    threads: usize,
    thread_spans: usize,
    n_spans: usize,
    shrinks: bool,
}

impl NodePanels {
    fn new(n_panels: usize, uses_strips: bool, threads: usize) -> Self {
        let (tile_panels, spans, shrinks) = if uses_strips {
            // Strips of fewer panels leave registers idle.
            (MAX_PANELS, STRIP_SPANS, false)
        } else {
            // A single panel takes as long as two.
            (2, SPANS, true)
        };
        let threads = threads.min(n_panels.div_ceil(tile_panels)).max(1);
        let thread_spans = n_panels.div_ceil(threads).div_ceil(tile_panels).min(spans);
        Self {
            n_panels,
            tile_panels,
            threads,
            thread_spans,
            n_spans: threads * thread_spans,
            shrinks,
        }
    }

    fn span(&self, span: usize) -> Range<usize> {
        let panels = even_part(span / self.thread_spans, self.threads, self.n_panels);
        let n_tiles = panels.len().div_ceil(self.tile_panels);
        let (span, spans) = (span % self.thread_spans, self.thread_spans);
        // Shrinking spans: the last has one part, the one before it two.
        let parts = |spans: usize| spans * (spans + 1) / 2;
        let tiles = if self.shrinks && n_tiles > spans {
            let left = |span: usize| (n_tiles * parts(spans - span)).div_ceil(parts(spans));
            n_tiles - left(span)..n_tiles - left(span + 1)
        } else {
            even_part(span, spans, n_tiles)
        };
        let panel = |tile: usize| panels.end.min(panels.start + tile * self.tile_panels);
        panel(tiles.start)..panel(tiles.end)
    }
}

struct ExpertSections<'a> {
    x: &'a [ExpertRows<'a>],
    experts: &'a [Linear<CpuBackend>],
    active: &'a [ActiveExpert],
    blocks: &'a [Range<usize>],
    out: Shared<'a, f32>,
    write: Write,
    weighted: Option<WeightedRows<'a>>,
    columns: usize,
    isa: Isa,
}

impl<'a> ExpertSections<'a> {
    fn new(product: ExpertProduct<'a>, isa: Isa, weighted: Option<WeightedRows<'a>>) -> Self {
        let ExpertProduct {
            x,
            experts,
            active,
            blocks,
            out,
            write,
        } = product;
        let columns = write.columns(experts[0].weight.outputs);
        let rows = active.last().map_or(0, |last| last.first + last.rows);
        match weighted {
            None => assert_eq!(
                out.len(),
                rows * columns,
                "the output must have {rows} rows"
            ),
            Some(to) => {
                assert!(
                    out.len().is_multiple_of(columns),
                    "the output must have whole rows"
                );
                assert_eq!([to.rows.len(), to.weights.len()], [rows; 2]);
            }
        }
        Self {
            x,
            experts,
            active,
            blocks,
            out: Shared::new(out),
            write,
            weighted,
            columns,
            isa,
        }
    }

    fn n_nodes(&self) -> usize {
        self.experts[0].weight.n_nodes()
    }

    fn weight(&self, active: &ActiveExpert) -> &'a Stack {
        weight_of(&self.experts[active.expert]).0
    }

    fn max_sections(&self) -> usize {
        let rows = self.active.last().map_or(0, |last| last.first + last.rows);
        let sections = |linear: &Linear<CpuBackend>| linear.weight.sections().len();
        rows.min(self.blocks.len() * self.experts.len())
            * self.experts.iter().map(sections).max().unwrap_or(0)
    }

    fn cost(&self) -> usize {
        let rows: usize = self.active.iter().map(|active| active.rows).sum();
        let weight = &self.experts[0].weight;
        rows * weight.inputs * weight.outputs
    }

    fn largest(&self, node: usize) -> Section<'a> {
        let active = self.active.iter().enumerate();
        let largest = active.max_by_key(|(_, active)| active.rows);
        self.section(largest.map_or(0, |(index, _)| index), node)
    }

    fn section(&self, active: usize, section: usize) -> Section<'a> {
        let active = &self.active[active];
        let (stack, bias) = weight_of(&self.experts[active.expert]);
        let weight = &stack.sections()[section];
        let output = Output {
            panels: weight.panels(),
            bias,
            out: self.out,
            columns: self.columns,
            write: self.write,
            weighted: self.weighted,
        };
        let rows = self.rows_for(weight, active);
        // With many experts, items need not be small to be balanced.
        let span_panels = match rows.n_groups {
            1 => (STREAM_BYTES / (4 * weight.panel_words)).max(1),
            _ => ITEM_PANELS,
        };
        Section::with_spans(rows, weight, output, span_panels)
    }

    fn rows_for(&self, weight: &Matrix, active: &ActiveExpert) -> RowGroups<'a> {
        let wanted = (weight.inputs, weight.format.encoding(self.isa));
        let found = self.x.iter().find(|x| (x.inputs(), x.encoding()) == wanted);
        found
            .expect("activations must be encoded for the weights")
            .of(active)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_differ_by_at_most_one_panel_and_spans_cover_all_panels() {
        for (n_panels, threads) in [
            (64, 2),
            (64, 3),
            (64, 64),
            (1, 8),
            (22, 5),
            (200, 2),
            (10, 1),
        ] {
            for uses_strips in [false, true] {
                let split = NodePanels::new(n_panels, uses_strips, threads);
                let case = format!("{n_panels} panels, {threads} threads, strips {uses_strips}");
                let spans: Vec<_> = (0..split.n_spans).map(|span| split.span(span)).collect();
                let panels: Vec<_> = spans.iter().cloned().flatten().collect();
                assert!(panels.into_iter().eq(0..n_panels), "{case}");
                let shares = spans.chunks(split.thread_spans);
                let shares: Vec<usize> = shares
                    .map(|share| share.iter().map(Range::len).sum())
                    .collect();
                if !uses_strips {
                    let tiles = |span: &Range<usize>| span.len().div_ceil(split.tile_panels);
                    let shrinks = |share: &[Range<usize>]| {
                        share.iter().all(|span| tiles(span) <= 1)
                            || share.is_sorted_by(|a, b| tiles(a) >= tiles(b))
                    };
                    assert!(
                        spans.chunks(split.thread_spans).all(shrinks),
                        "{case}: {spans:?}"
                    );
                }
                let is_even = |share: &usize| share.abs_diff(shares[0]) <= 1;
                assert!(shares.iter().all(is_even), "{case}: {shares:?}");
            }
        }
    }
}
