//! Tests of weights divided among NUMA nodes: bits are those of one node, and each panel is on the node that owns it.

use super::blocks::{TYPES, seeded_stack_on};
use super::*;
use souffleur_kernels::blocks::BlockType;
use souffleur_kernels::cpu::matrix::Matrix;
use souffleur_kernels::cpu::nodes::Nodes;
use souffleur_kernels::cpu::panel::PANEL;

/// Threads of each node.
const NODES: [&[usize]; 5] = [&[1, 1], &[3, 1], &[1, 1, 1], &[1, 2, 1], &[1, 1, 1, 1]];

fn pool(threads: &[usize]) -> ThreadPool {
    ThreadPool::on_nodes(threads).expect("threads start")
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn products_on_nodes_give_the_bits_of_one_node() {
    for (isa, format) in isas_and_formats() {
        for (rows, outputs, inputs) in [(1, 8, 64), (1, 300, 384), (13, 400, 203), (70, 90, 150)] {
            let x = values(3, rows * inputs);
            let parts = [outputs, outputs, outputs / 2];
            let of = |threads: &[usize], parts: &[usize], write| {
                let mut pool = pool(threads);
                let weight = seeded_weight_on((&mut pool, isa), format, 5, parts, inputs);
                bits(&product_on((&mut pool, isa), &x, &weight, write))
            };
            for (parts, write) in [
                (&parts[..1], Write::Add),
                (&parts[..2], Write::GatedSilu),
                (&parts[..], Write::Store),
            ] {
                let expected = of(&[2], parts, write);
                for threads in NODES {
                    let case = format!("{isa:?} {format:?} {rows}x{parts:?}x{inputs} {write:?}");
                    assert_eq!(of(threads, parts, write), expected, "{case}, {threads:?}");
                }
            }
        }
    }
}

#[test]
fn blocks_on_nodes_give_the_bits_of_one_node() {
    for isa in Isa::available() {
        for block in TYPES {
            let inputs = 512;
            for rows in [1, 9] {
                let x = values(4, rows * inputs);
                let of = |threads: &[usize]| {
                    let mut pool = pool(threads);
                    let parts = [(block, 72), (BlockType::Q6K, 40)];
                    let (weight, _) = seeded_stack_on((&mut pool, isa), 1, &parts, inputs);
                    bits(&blocks::product_on((&mut pool, isa), &x, &weight))
                };
                let expected = of(&[2]);
                for threads in NODES {
                    assert_eq!(of(threads), expected, "{isa:?} {block:?} {threads:?}");
                }
            }
        }
    }
}

#[test]
fn weights_on_two_nodes_may_be_multiplied_by_threads_of_one() {
    let isa = Isa::detect();
    let x = values(3, 2 * 50);
    let weights = [&[2][..], &[1, 1]]
        .map(|threads| seeded_weight_on((&mut pool(threads), isa), Format::Bf16, 5, &[100], 50));
    let [one, two] = weights
        .each_ref()
        .map(|weight| product(isa, 3, &x, weight, Write::Store));
    assert_eq!(bits(&one), bits(&two));
}

fn firsts(matrix: &Matrix) -> Vec<usize> {
    matrix
        .panels()
        .iter()
        .map(|panel| panel.first as usize)
        .collect()
}

#[test]
fn every_panel_is_on_the_node_that_owns_it() {
    let isa = Isa::detect();
    for threads in NODES {
        let nodes = Nodes::new(threads.iter().copied());
        let mut pool = pool(threads);
        for outputs in [5usize, 16, 100, 1000] {
            let n_panels = outputs.div_ceil(PANEL);
            let stack = seeded_weight_on((&mut pool, isa), Format::F32, 5, &[outputs], 20);
            let whole = seeded_weight(isa, Format::F32, 5, &[outputs], 20);
            assert_eq!((stack.n_nodes(), stack.outputs), (nodes.count(), outputs));
            for (node, matrix) in stack.sections().iter().enumerate() {
                let own: Vec<usize> = nodes.share(node, n_panels).map(|i| i * PANEL).collect();
                assert_eq!((matrix.node, firsts(matrix)), (node, own), "{threads:?}");
            }
            let row_of = |stack: &Stack, output| {
                let mut row = vec![0.0; 20];
                stack.read_row(output, &mut row);
                row
            };
            for output in 0..outputs {
                assert_eq!(row_of(&stack, output), row_of(&whole, output), "{output}");
            }
        }
    }
}

#[test]
fn gate_panels_are_on_the_nodes_of_their_up_panels() {
    let isa = Isa::detect();
    for threads in NODES {
        let nodes = Nodes::new(threads.iter().copied());
        let mut pool = pool(threads);
        let width = 10 * PANEL;
        let stack = seeded_weight_on((&mut pool, isa), Format::F32, 5, &[width; 2], 20);
        assert!(stack.alternates());
        for (node, matrix) in stack.sections().iter().enumerate() {
            let pairs = nodes.share(node, 10);
            let own = pairs.flat_map(|pair| [pair * PANEL, width + pair * PANEL]);
            assert!(own.eq(firsts(matrix)), "{threads:?}, node {node}");
        }
    }
}
