//! A picture of the tree: its largest nodes, the sums of the others, and the difference of two pictures.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use rustc_hash::{FxHashMap, FxHashSet};

use super::mirror::{Mirror, NodeSums, Sums, TreeEvent};
use souffleur_state::scheduler::live::LivePin;

/// The largest number of rows.
pub(crate) const MAX_ROWS: usize = 400;
/// The largest size of all rows as JSON; the events and names have the rest of a message.
const MAX_ROW_BYTES: usize = 27 << 10;
/// A row's brackets and commas, and the largest numbers of its columns `locks`, `pin` and `ns`.
const ROW_EXTRA_BYTES: usize = 11 + 6 + 1 + 6;

/// A node as the protocol shows it; [`Row::columns`] has the order of its columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) id: u32,
    pub(crate) parent: Option<u32>,
    pub(crate) tokens: u64,
    pub(crate) below: u64,
    pub(crate) locks: u32,
    pub(crate) pin: u8,
    pub(crate) namespace: i64,
    pub(crate) folded: Sums,
}

impl Row {
    pub(crate) fn columns(&self) -> (u32, Option<u32>, u64, u64, u32, u8, i64, u64, u64) {
        let Sums { nodes, tokens } = self.folded;
        (
            self.id,
            self.parent,
            self.tokens,
            self.below,
            self.locks,
            self.pin,
            self.namespace,
            nodes,
            tokens,
        )
    }
}

/// The state of a tree as the protocol shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Picture {
    /// By size, the largest first: each after its parent.
    pub(crate) rows: Vec<Row>,
    pub(crate) total: Sums,
    pub(crate) rest: Sums,
}

/// The difference of two pictures.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Delta {
    pub(crate) gone: Vec<u32>,
    pub(crate) set: Vec<Row>,
}

impl Picture {
    /// Folds a tree to its largest nodes. Locks and pins are 0.
    pub(crate) fn of(mirror: &Mirror) -> Self {
        let chosen = largest(mirror);
        let mut folded: FxHashMap<u32, Sums> = FxHashMap::default();
        let mut rest = mirror.total();
        for (id, node) in &chosen {
            let below = Sums {
                nodes: node.below_nodes,
                tokens: node.below_tokens,
            };
            folded.insert(*id, below);
            // The parent has an earlier row.
            let above = node.parent.and_then(|parent| folded.get_mut(&parent));
            let above = above.unwrap_or(&mut rest);
            above.nodes -= node.below_nodes + 1;
            above.tokens -= node.size();
        }
        let rows = chosen.into_iter().map(|(id, node)| Row {
            id,
            parent: node.parent,
            tokens: node.tokens,
            below: node.below_tokens,
            locks: 0,
            pin: 0,
            namespace: node.namespace,
            folded: folded.get(&id).copied().unwrap_or_default(),
        });
        Self {
            rows: rows.collect(),
            total: mirror.total(),
            rest,
        }
    }

    pub(crate) fn ids(&self) -> Vec<u32> {
        self.rows.iter().map(|row| row.id).collect()
    }

    /// Sets the locks of the rows, in their order.
    pub(crate) fn set_locks(&mut self, locks: &[u32]) {
        for (row, locks) in self.rows.iter_mut().zip(locks) {
            row.locks = *locks;
        }
    }

    /// Marks the rows that pins hold: each pinned node, and those above it.
    pub(crate) fn set_pins(&mut self, pins: &[LivePin], mirror: &Mirror) {
        let mut marks: FxHashMap<u32, u8> = FxHashMap::default();
        for pin in pins {
            let mark = if pin.is_soft { 1 } else { 2 };
            for node in std::iter::once(pin.node).chain(mirror.above(pin.node)) {
                let before = marks.entry(node).or_default();
                if *before >= mark {
                    // The nodes above it have this mark too.
                    break;
                }
                *before = mark;
            }
        }
        for row in &mut self.rows {
            row.pin = marks.get(&row.id).copied().unwrap_or(0);
        }
    }

    /// What turns `before` into this picture.
    pub(crate) fn since(&self, before: &Self) -> Delta {
        let old: FxHashMap<u32, &Row> = before.rows.iter().map(|row| (row.id, row)).collect();
        let new: FxHashSet<u32> = self.rows.iter().map(|row| row.id).collect();
        let gone = before.rows.iter().map(|row| row.id);
        let changed = |row: &&Row| old.get(&row.id) != Some(row);
        Delta {
            gone: gone.filter(|id| !new.contains(id)).collect(),
            set: self.rows.iter().filter(changed).copied().collect(),
        }
    }

    /// Whether an event is about one of the nodes `ids`.
    pub(crate) fn shows(ids: &FxHashSet<u32>, event: &TreeEvent) -> bool {
        match event {
            TreeEvent::Stored { node, .. } | TreeEvent::Removed { node, .. } => ids.contains(node),
            TreeEvent::Split { upper, lower, .. } => ids.contains(upper) || ids.contains(lower),
            TreeEvent::Cleared => true,
        }
    }
}

/// The largest nodes of a tree, in the order of their rows: by size, then by depth, then by number. In this order a
/// parent comes before its children, so the search visits only chosen nodes and their children.
fn largest(mirror: &Mirror) -> Vec<(u32, NodeSums)> {
    let key = |id: u32, depth: u32| {
        let node = mirror.sums_of(id)?;
        Some((node.size(), Reverse(depth), Reverse(id)))
    };
    let roots = mirror.roots().filter_map(|id| key(id, 0));
    let mut next: BinaryHeap<_> = roots.collect();
    let mut chosen = Vec::with_capacity(MAX_ROWS);
    let mut n_bytes = 0;
    while chosen.len() < MAX_ROWS
        && let Some((_, Reverse(depth), Reverse(id))) = next.pop()
        && let Some(node) = mirror.sums_of(id)
    {
        n_bytes += row_bytes(id, &node);
        if n_bytes > MAX_ROW_BYTES {
            break;
        }
        chosen.push((id, node));
        let children = mirror.children_of(id);
        next.extend(children.filter_map(|child| key(child, depth + 1)));
    }
    chosen
}

/// An upper bound of a row's size as JSON.
fn row_bytes(id: u32, node: &NodeSums) -> usize {
    let parent = node.parent.map_or(4, |parent| digits(parent.into()));
    // The folded nodes are among those below.
    let below = 2 * digits(node.below_tokens) + digits(node.below_nodes);
    ROW_EXTRA_BYTES + digits(id.into()) + parent + digits(node.tokens) + below
}

fn digits(number: u64) -> usize {
    number.checked_ilog10().map_or(1, |log| log as usize + 1)
}
