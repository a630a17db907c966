//! Parallel loops whose items belong to NUMA nodes: a node's threads take its items first, then help the others.
//!
//! `node_items` has the number of items of each node, or the number of all items if no node owns them; items are
//! numbered node by node.

use std::sync::atomic::Ordering;

use super::{Item, NUMBER, Parts, Run, ThreadPool};
use crate::cpu::cores::run_on;

/// The order in which a node's items are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Each thread takes consecutive items, as in [`ThreadPool::for_each_in_runs`].
    Runs,
    /// Each thread takes the first remaining item, as in [`ThreadPool::for_each_with`].
    First,
}

impl Order {
    /// Takes another thread's item.
    fn help(self, run: &Run) -> Option<usize> {
        match self {
            Self::Runs => run.claim_last(),
            Self::First => run.claim_first(),
        }
    }
}

impl ThreadPool {
    /// Like [`ThreadPool::for_each_in_runs`], for items that are divided among nodes.
    ///
    /// # Panics
    /// As [`ThreadPool::for_each`].
    pub fn for_each_by_node(&mut self, node_items: &[usize], cost: usize, item: Item<'_>) {
        if node_items.len() == self.nodes.count() && node_items.len() > 1 {
            self.run_by_node(node_items, Order::Runs, cost, &|_, index| item(index))
        } else {
            self.for_each_in_runs(node_items.iter().sum(), cost, item)
        }
    }

    /// As [`ThreadPool::for_each_by_node`], with exclusive use of one of `lanes` (scratch data) in each call.
    ///
    /// # Panics
    /// As [`ThreadPool::for_each`], and with fewer lanes than threads.
    pub fn for_each_by_node_with<L: Send>(
        &mut self,
        (lanes, order): (&mut [L], Order),
        node_items: &[usize],
        cost: usize,
        item: &(dyn Fn(&mut L, usize) + Sync),
    ) {
        if node_items.len() == self.nodes.count() && node_items.len() > 1 {
            let lanes = Parts::new(lanes);
            return self.run_by_node(node_items, order, cost, &|claim, index| {
                // SAFETY: each claim belongs to one thread and has its own lane.
                item(&mut unsafe { lanes.part(claim, 1) }[0], index);
            });
        }
        let n_items = node_items.iter().sum();
        match order {
            Order::Runs => self.for_each_in_runs_with(lanes, n_items, cost, item),
            Order::First => self.for_each_with(lanes, n_items, cost, item),
        }
    }

    /// Calls `item` once for each item, only on threads of the item's node, for first touch. Only for engine start:
    /// finished threads wait for the other threads.
    ///
    /// # Panics
    /// As [`ThreadPool::for_each`].
    pub fn for_each_on_own_node(&mut self, node_items: &[usize], cost: usize, item: Item<'_>) {
        let n_items = node_items.iter().sum();
        if self.nodes.count() == 1 || n_items == 0 {
            return self.for_each_in_runs(n_items, cost, item);
        }
        self.set_runs(node_items, Order::Runs);
        let (runs, nodes, shared) = (self.runs.clone(), self.nodes.clone(), self.shared.clone());
        let of_node = |_: usize| {
            let own = NUMBER.get();
            let threads = nodes.threads(nodes.of_thread(own));
            for run in rotated(threads, own).map(|thread| &runs[thread]) {
                while let Some(index) = run.claim_first() {
                    item(index);
                }
            }
            // There are as many claims as threads. A finished thread keeps its claim, so one is left for every other
            // thread.
            let is_over = || shared.panicked.load(Ordering::Relaxed);
            while runs.iter().any(Run::has_items) && !is_over() {
                std::thread::yield_now();
            }
        };
        let own_cpus = self.own_cpus.clone();
        run_on(&own_cpus, || {
            self.for_each(runs.len(), usize::MAX, &of_node)
        });
    }

    /// Calls `item` for each item, with the number of an exclusive claim.
    pub(super) fn run_by_node(
        &mut self,
        node_items: &[usize],
        order: Order,
        cost: usize,
        item: &(dyn Fn(usize, usize) + Sync),
    ) {
        self.set_runs(node_items, order);
        let (runs, nodes) = (self.runs.clone(), self.nodes.clone());
        self.for_each(runs.len(), cost, &|claim| {
            let own = NUMBER.get();
            let node = nodes.of_thread(own);
            while let Some(index) = runs[own].claim_first() {
                item(claim, index);
            }
            let near = rotated(nodes.threads(node), own).skip(1);
            let count = nodes.count();
            let far = (1..count).flat_map(|i| nodes.threads((node + i) % count));
            for other in near.chain(far) {
                while let Some(index) = order.help(&runs[other]) {
                    item(claim, index);
                }
            }
        });
    }

    /// Sets each thread's items; with `Order::First`, the first thread of a node has all of the node's items.
    fn set_runs(&mut self, node_items: &[usize], order: Order) {
        assert_eq!(
            node_items.len(),
            self.nodes.count(),
            "each node must have a number of items"
        );
        let mut first = 0;
        for (node, count) in node_items.iter().enumerate() {
            let threads = self.nodes.threads(node);
            for (i, thread) in threads.clone().enumerate() {
                let items = match order {
                    Order::Runs => i * count / threads.len()..(i + 1) * count / threads.len(),
                    Order::First if i == 0 => 0..*count,
                    Order::First => 0..0,
                };
                let number = |item: usize| {
                    u32::try_from(first + item).expect("a kernel must have fewer than 2^32 items")
                };
                self.runs[thread].set(number(items.start)..number(items.end));
            }
            first += count;
        }
    }
}

/// The numbers of a range from `from` on, wrapping around.
fn rotated(numbers: std::ops::Range<usize>, from: usize) -> impl Iterator<Item = usize> {
    (from..numbers.end).chain(numbers.start..from)
}
