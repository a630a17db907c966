//! NUMA placement by first touch: a page is allocated on the node of the thread that first touches it.
//!
//! The KV pool is touched at engine start: otherwise a thread that stores a decode's few tokens would place the heads
//! of all nodes on its own node.

use std::ops::Range;

use super::nodes::{Nodes, PerNode, locate};
use super::tensor::Shared;
use super::threads::ThreadPool;

/// Page size; if the system's pages are larger, some are touched more than once.
const PAGE_BYTES: usize = 4 << 10;
/// Number of pages of a work item. Nodes get memory that no node owns in turn, in stretches of this many pages.
const STRETCH_PAGES: usize = 256;
/// Approximate cost of touching a page, in multiply-adds.
const PAGE_COST: usize = 1 << 14;

/// Touches zeroed, page-aligned memory of contiguous planes, each divided equally among heads. A page on the border of
/// two heads belongs to the head of its first byte.
pub fn touch(pool: &mut ThreadPool, bytes: &mut [u8], planes_and_heads: (usize, usize)) {
    let homes = homes(pool.nodes(), bytes.len(), planes_and_heads);
    touch_at(pool, bytes, &homes);
}

/// As [`touch`], for contiguous states: each node owns one part of a state. States of a single part are interleaved.
///
/// # Panics
/// If there are several parts, but not one for each node.
pub fn touch_states(
    pool: &mut ThreadPool,
    bytes: &mut [u8],
    state_bytes: usize,
    parts: &[Range<usize>],
) {
    let homes = state_homes(pool.nodes(), bytes.len(), state_bytes, parts);
    touch_at(pool, bytes, &homes);
}

fn touch_at(pool: &mut ThreadPool, bytes: &mut [u8], homes: &[Vec<Range<usize>>]) {
    let node_items: PerNode<usize> = homes.iter().map(Vec::len).collect();
    let cost = bytes.len() / PAGE_BYTES * PAGE_COST;
    let bytes = Shared::new(bytes);
    pool.for_each_on_own_node(&node_items, cost, &|item| {
        let (node, stretch) = locate(&node_items, item);
        for page in homes[node][stretch].clone() {
            // SAFETY: each page belongs to one item, and its first byte is in bounds.
            let first = unsafe { bytes.part(page * PAGE_BYTES, 1) };
            // Writes the value that is already there; the compiler could elide a plain write.
            // SAFETY: as above.
            unsafe { std::ptr::from_mut(&mut first[0]).write_volatile(0) };
        }
    });
}

fn homes(
    nodes: &Nodes,
    n_bytes: usize,
    (planes, heads): (usize, usize),
) -> PerNode<Vec<Range<usize>>> {
    let n_pages = n_bytes.div_ceil(PAGE_BYTES);
    let owned = nodes.heads(heads);
    if owned.len() == 1 {
        return interleaved_homes(nodes, n_pages);
    }
    let mut homes: PerNode<_> = (0..nodes.count()).map(|_| Vec::new()).collect();
    // A page belongs to the head in which it begins.
    let begins = |plane: usize, head: usize| {
        let byte = (n_bytes as u128 * (plane * heads + head) as u128) / (planes * heads) as u128;
        (byte as usize).div_ceil(PAGE_BYTES)
    };
    for plane in 0..planes {
        for (home, own) in homes.iter_mut().zip(&owned) {
            home.extend(stretches(begins(plane, own.start)..begins(plane, own.end)));
        }
    }
    homes
}

fn state_homes(
    nodes: &Nodes,
    n_bytes: usize,
    state_bytes: usize,
    parts: &[Range<usize>],
) -> PerNode<Vec<Range<usize>>> {
    let n_pages = n_bytes.div_ceil(PAGE_BYTES);
    if parts.len() <= 1 || state_bytes == 0 {
        return interleaved_homes(nodes, n_pages);
    }
    assert_eq!(
        parts.len(),
        nodes.count(),
        "a state must have one part per node"
    );
    let mut homes: PerNode<_> = (0..nodes.count()).map(|_| Vec::new()).collect();
    for first in (0..n_bytes).step_by(state_bytes) {
        let begins = |byte: usize| (first + byte).min(n_bytes).div_ceil(PAGE_BYTES);
        for (home, part) in homes.iter_mut().zip(parts) {
            home.extend(stretches(begins(part.start)..begins(part.end)));
        }
    }
    homes
}

fn interleaved_homes(nodes: &Nodes, n_pages: usize) -> PerNode<Vec<Range<usize>>> {
    let mut homes: PerNode<_> = (0..nodes.count()).map(|_| Vec::new()).collect();
    for (i, stretch) in stretches(0..n_pages).enumerate() {
        homes[i % nodes.count()].push(stretch);
    }
    homes
}

fn stretches(pages: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let end = pages.end;
    pages
        .step_by(STRETCH_PAGES)
        .map(move |first| first..end.min(first + STRETCH_PAGES))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn every_page_is_placed_once_on_the_node_of_its_head() {
        for threads in [&[1, 1][..], &[3, 1], &[1, 1, 1], &[2, 2, 2, 2]] {
            let nodes = Nodes::new(threads.iter().copied());
            for (planes, heads, head_bytes) in
                [(2, 8, MIB), (1, 8, 5000), (2, 4, 4096 * 3 + 64), (1, 4, 20)]
            {
                let n_bytes = planes * heads * head_bytes;
                let mut owners = vec![usize::MAX; n_bytes.div_ceil(PAGE_BYTES)];
                let homes = homes(&nodes, n_bytes, (planes, heads));
                for (node, stretches) in homes.iter().enumerate() {
                    for page in stretches.iter().cloned().flatten() {
                        assert_eq!(owners[page], usize::MAX, "page {page} has two homes");
                        owners[page] = node;
                    }
                }
                for (page, owner) in owners.iter().enumerate() {
                    let head = page * PAGE_BYTES / head_bytes % heads;
                    assert_eq!(
                        *owner,
                        nodes.owner(head, heads),
                        "page {page} of {threads:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn every_page_of_states_is_placed_once_on_the_node_of_its_part() {
        for threads in [&[1, 1][..], &[3, 1], &[2, 2, 2, 2]] {
            let nodes = Nodes::new(threads.iter().copied());
            for (heads, head_bytes, rest) in [(8, MIB / 4, 40_000), (4, 4096, 64), (4, 20, 48)] {
                let state_bytes = heads * head_bytes + rest;
                let owned = nodes.heads(heads);
                let mut parts: PerNode<_> = owned
                    .iter()
                    .map(|own| own.start * head_bytes..own.end * head_bytes)
                    .collect();
                parts.last_mut().expect("there must be a node").end = state_bytes;
                let n_bytes = 5 * state_bytes;
                let mut owners = vec![usize::MAX; n_bytes.div_ceil(PAGE_BYTES)];
                let homes = state_homes(&nodes, n_bytes, state_bytes, &parts);
                for (node, stretches) in homes.iter().enumerate() {
                    for page in stretches.iter().cloned().flatten() {
                        assert_eq!(owners[page], usize::MAX, "page {page} has two homes");
                        owners[page] = node;
                    }
                }
                for (page, owner) in owners.iter().enumerate() {
                    let byte = page * PAGE_BYTES % state_bytes;
                    let expected = parts.iter().position(|part| part.contains(&byte));
                    assert_eq!(Some(*owner), expected, "page {page} of {threads:?}");
                }
            }
        }
    }

    #[test]
    fn memory_of_fewer_heads_than_nodes_is_interleaved() {
        let nodes = Nodes::new([1; 4]);
        let homes = homes(&nodes, 8 * STRETCH_PAGES * PAGE_BYTES, (1, 1));
        let pages: Vec<usize> = homes
            .iter()
            .map(|home| home.iter().map(ExactSizeIterator::len).sum())
            .collect();
        assert_eq!(pages, [2 * STRETCH_PAGES; 4]);
    }

    #[test]
    fn touching_keeps_memory_zeroed_and_runs_every_item() {
        let mut pool = ThreadPool::on_nodes(&[1, 2, 1]).expect("threads start");
        for (planes, heads) in [(2, 4), (1, 1), (1, 0)] {
            let mut bytes = vec![0; 300 * PAGE_BYTES + 64];
            touch(&mut pool, &mut bytes, (planes, heads));
            assert!(bytes.iter().all(|byte| *byte == 0), "{planes}, {heads}");
        }
        touch(&mut pool, &mut [], (2, 4));
        let mut bytes = vec![0; 20 * PAGE_BYTES];
        let parts = [
            0..PAGE_BYTES,
            PAGE_BYTES..3 * PAGE_BYTES,
            3 * PAGE_BYTES..5 * PAGE_BYTES,
        ];
        touch_states(&mut pool, &mut bytes, 5 * PAGE_BYTES, &parts);
        touch_states(&mut pool, &mut [], 0, &[]);
        assert!(bytes.iter().all(|byte| *byte == 0));
        let counted = AtomicUsize::new(0);
        pool.for_each_on_own_node(&[0, 5, 2], 0, &|_| {
            counted.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(counted.into_inner(), 7);
    }
}
