//! Matrix products of activations with packed weights.
//!
//! Weight panels are divided among the threads of their NUMA node; each thread multiplies a few panels with all rows
//! before the next panels, so weights are read from memory once. `super::tile` has the inner loops and
//! the order of the sums.
//!
//! A thread has the same share in every kernel: with few rows, a contiguous part of the outputs, whose weights are one
//! stream; with many, the same rows, as reading from another core's cache is slow. Idle threads help the others.

#[cfg(target_arch = "x86_64")]
mod amx;
pub(super) mod experts;
mod from_strips;
mod heads;
mod item;
mod item_run;
mod output;
mod section;
mod tiles;

use smallvec::{SmallVec, smallvec};

pub use self::heads::{HeadsProduct, multiply_heads};
pub use self::item_run::ItemRun;
use self::output::Output;
pub use self::output::{WeightedRows, Write};
use self::section::Section;
use super::activations::PackedRows;
use super::matrix::Matrix;
use super::nodes::PerNode;
use super::simd::Isa;
use super::stack::Stack;
use super::tensor::Shared;
use super::threads::ThreadPool;

/// A product to compute: `x weight^T + bias`, and the use of the result.
///
/// # Shapes
/// `x: [rows, inputs]`, `bias: [outputs]`, `out: [rows, outputs]`, or half as many outputs if gated.
pub struct Product<'a> {
    /// The activations in each encoding that the weights need.
    pub x: &'a [PackedRows],
    pub weight: &'a Stack,
    pub bias: Option<&'a [f32]>,
    pub out: &'a mut [f32],
    pub write: Write,
}

/// # Panics
/// If the shapes or encodings do not match.
pub fn matmul(pool: &mut ThreadPool, isa: Isa, product: Product<'_>) {
    let Product {
        x,
        weight,
        bias,
        out,
        write,
    } = product;
    let rows = x[0].rows();
    if rows == 0 {
        return;
    }
    let columns = write.columns(weight.outputs);
    assert!(
        !write.is_gated() || weight.alternates(),
        "a gated product needs alternating gate and up panels"
    );
    assert_eq!(
        out.len(),
        rows * columns,
        "the output must have {rows} rows"
    );
    assert!(
        bias.is_none_or(|b| b.len() == weight.outputs),
        "the bias must have {} values",
        weight.outputs
    );
    let out = Shared::new(out);
    let sections = weight.sections().iter().map(|section| {
        let output = Output {
            panels: section.panels(),
            bias,
            out,
            columns,
            write,
            weighted: None,
        };
        let rows = rows_for(x, section, isa).groups();
        Section::new(
            rows,
            section,
            output,
            threads_of(pool, weight, section.node),
        )
    });
    let sections: SmallVec<[Section<'_>; 8]> = sections.collect();
    let mut node_items: PerNode<usize> = smallvec![0; weight.n_nodes()];
    for section in &sections {
        node_items[section.weight.node] += section.n_items();
    }
    let cost = rows * weight.inputs * weight.outputs;
    pool.for_each_by_node(&node_items, cost, &|index| {
        let mut before = 0;
        for section in &sections {
            let end = before + section.n_items();
            if index < end {
                section.item(index - before).run(isa);
                return;
            }
            before = end;
        }
    });
}

fn threads_of(pool: &ThreadPool, weight: &Stack, node: usize) -> usize {
    if weight.n_nodes() == pool.nodes().count() {
        pool.nodes().threads(node).len()
    } else {
        pool.n_threads()
    }
}

fn rows_for<'a>(x: &'a [PackedRows], weight: &Matrix, isa: Isa) -> &'a PackedRows {
    let wanted = (weight.inputs, weight.format.encoding(isa));
    let found = x.iter().find(|x| (x.inputs(), x.encoding()) == wanted);
    found.expect("activations must be encoded for the weights")
}
