//! Tests of heads divided among NUMA nodes: bits are those of one node, and work items are on the node of their heads.

use super::world::Sparse;
use super::*;
use souffleur_kernels::cpu::CpuBatch;
use souffleur_kernels::cpu::attention::plan::AttentionPlan;
use souffleur_kernels::cpu::attention::prefix::Prefixes;
use souffleur_kernels::cpu::nodes::Nodes;

const fn shape(n_heads: usize, n_kv_heads: usize, values: Values) -> HeadShape {
    HeadShape {
        n_heads,
        n_kv_heads,
        key_dim: 24,
        values,
        ..HEADS
    }
}

/// Fewer key heads than nodes, as many, and more; values of every kind.
const SHAPES: [HeadShape; 4] = [
    shape(8, 8, Values::Own { dim: 24 }),
    shape(6, 3, Values::Own { dim: 16 }),
    shape(4, 2, Values::Own { dim: 24 }),
    shape(4, 1, Values::InKeys { dim: 16 }),
];

#[test]
fn heads_on_nodes_give_the_bits_of_one_node() {
    for isa in Isa::available() {
        for dtype in [KvDtype::BF16, KvDtype::Int8] {
            for heads in SHAPES {
                let base = Setup {
                    isa,
                    dtype,
                    heads,
                    threads: 4,
                    ..setup()
                };
                let (mut one, parts) = prefix_rows(base);
                let decode = [part(1, 899, 1)];
                let expected = [one.attend(&parts), one.attend(&decode)];
                for nodes in 2..=4 {
                    let (mut world, parts) = prefix_rows(Setup { nodes, ..base });
                    let got = [world.attend(&parts), world.attend(&decode)];
                    assert!(
                        got == expected,
                        "{isa:?}, {dtype:?}, {heads:?}, {nodes} nodes"
                    );
                }
            }
        }
    }
}

#[test]
fn sparse_heads_on_nodes_give_the_bits_of_one_node() {
    for heads in [SHAPES[0], SHAPES[2]] {
        let sparse = Some(Sparse {
            threshold: 200,
            tokens: 40,
            channels: 8,
        });
        let base = Setup {
            heads,
            sparse,
            threads: 4,
            ..setup()
        };
        let bits = |nodes| {
            let mut world = World::new(Setup { nodes, ..base });
            world.grow(1, (1, 0), 700);
            [
                world.attend(&[part(1, 0, 700)]),
                world.attend(&[part(1, 699, 1)]),
            ]
        };
        let expected = bits(1);
        for nodes in 2..=4 {
            assert!(bits(nodes) == expected, "{heads:?}, {nodes} nodes");
        }
    }
}

#[test]
fn work_items_belong_to_the_node_of_their_heads() {
    let (world, parts) = prefix_rows(setup());
    let mut batch = CpuBatch::default();
    for part in &parts {
        let tokens = vec![0; part.n_tokens];
        batch.push(RowId::new(part.row), part.first, &tokens, &world.table);
    }
    for heads in SHAPES {
        for n_nodes in 1..=4 {
            let nodes = Nodes::new(vec![1; n_nodes]);
            let mut plan = AttentionPlan::default();
            let mut prefixes = Prefixes::default();
            let segments = batch.segments();
            plan.make(
                (segments, &[]),
                &world.table,
                &heads,
                &nodes,
                Some(&mut prefixes),
            );
            for (round, items) in plan.rounds() {
                assert!(items.is_sorted_by_key(|item| item.node), "sorted by node");
                let of_node = |node| items.iter().filter(move |item| item.node as usize == node);
                if heads.n_kv_heads < n_nodes {
                    assert_eq!(plan.items_per_node(round), [items.len()], "not partitioned");
                    continue;
                }
                let counts: Vec<usize> = (0..n_nodes).map(|node| of_node(node).count()).collect();
                assert_eq!(plan.items_per_node(round), counts);
                for item in items {
                    let owner = |head| nodes.owner(head as usize, heads.n_kv_heads) as u32;
                    let mut owners = item.heads.clone().map(owner);
                    assert!(
                        owners.all(|owner| owner == item.node),
                        "{heads:?}, {item:?}"
                    );
                }
            }
        }
    }
}
