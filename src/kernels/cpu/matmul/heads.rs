//! Per-head matrix products: each head's part of every row times the head's weights.

use super::super::activations::RowGroups;
use super::super::latent::head_rows::HeadRows;
use super::super::nodes::{PerNode, locate};
use super::super::panel::MAX_PANELS;
use super::super::simd::Isa;
use super::super::stack::Stack;
use super::super::tensor::{Shared, Tensor};
use super::super::threads::ThreadPool;
use super::output::{Output, Write};
use super::section::{STREAM_BYTES, Section};

const ITEM_PANELS: usize = 4 * MAX_PANELS;

/// # Shapes
/// `out: [rows, heads * width]`, of which a head writes the first `outputs` of its `width` values.
pub struct HeadsProduct<'a> {
    pub x: &'a [HeadRows],
    /// One matrix `[outputs, inputs]` per head.
    pub heads: &'a [Stack],
    pub out: &'a mut Tensor,
}

/// # Panics
/// If the shapes or encodings do not match.
pub fn multiply_heads(pool: &mut ThreadPool, isa: Isa, product: HeadsProduct<'_>) {
    let HeadsProduct { x, heads, out } = product;
    let (rows, columns) = (out.rows(), out.width());
    let width = columns / heads.len();
    let [outputs, inputs] = [heads[0].outputs, heads[0].inputs];
    assert!(outputs <= width, "{outputs} outputs exceed {width} values");
    assert_eq!(columns, width * heads.len(), "heads must have equal widths");
    if rows == 0 {
        return;
    }
    let out = Shared::new(out.values_mut());
    let section = |head: usize, node: usize| {
        let weight = &heads[head].sections()[node];
        let wanted = (weight.inputs, weight.format.encoding(isa));
        let found = x.iter().find(|x| (x.inputs(), x.encoding()) == wanted);
        let found = found.expect("activations must be encoded for the weights");
        let rows: RowGroups<'_> = found.of(head);
        let output = Output {
            panels: weight.panels(),
            bias: None,
            out: out.after(head * width),
            columns,
            write: Write::Store,
            weighted: None,
        };
        // With many heads, items need not be small to be balanced.
        let span_panels = match rows.n_groups {
            1 => (STREAM_BYTES / (4 * weight.panel_words)).max(1),
            _ => ITEM_PANELS,
        };
        Section::with_spans(rows, weight, output, span_panels)
    };
    // Every head gets as many items as the node's largest head: formats, and so panel sizes, may differ.
    let max_items = (0..heads[0].n_nodes()).map(|node| {
        let items = (0..heads.len()).map(|head| section(head, node).n_items());
        items.max().unwrap_or(0)
    });
    let max_items: PerNode<usize> = max_items.collect();
    let node_items: PerNode<usize> = max_items.iter().map(|items| heads.len() * items).collect();
    let cost = rows * inputs * outputs * heads.len();
    pool.for_each_by_node(&node_items, cost, &|item| {
        let (node, index) = locate(&node_items, item);
        let section = section(index / max_items[node], node);
        if index % max_items[node] < section.n_items() {
            section.item(index % max_items[node]).run(isa);
        }
    });
}
