//! The radix tree's integrity check: recounts all nodes and compares the counts with the incremental ones.

use rustc_hash::{FxHashMap, FxHashSet};

use super::RadixTree;
use super::arena::{NO_NODE, Node};
use crate::cache::eviction::KeyTrend;
use souffleur_base::ids::PageId;

impl RadixTree {
    /// Recounts all nodes and compares the results with the incremental counts. O(size of the cache).
    ///
    /// # Errors
    /// A sentence that names the first inconsistency.
    pub fn check_integrity(&self) -> Result<(), String> {
        let mut seen = FxHashSet::default();
        let mut below: FxHashMap<u32, (u32, u32)> = FxHashMap::default();
        let (mut evictable, mut protected) = (0, 0);
        for (index, node) in self.arena.iter() {
            let children = below.entry(node.parent).or_default();
            *children = (children.0 + 1, children.1.max(node.lock_ref));
            match node.lock_ref {
                0 => evictable += node.edge.len(),
                _ => protected += node.edge.len(),
            }
            self.check_node(index, node, &mut seen)?;
        }
        for (index, node) in self.arena.iter() {
            let (n_children, locks_below) = below.get(&index).copied().unwrap_or_default();
            same(index, "children", node.n_children, n_children)?;
            if node.lock_ref < locks_below && !node.is_root() {
                return Err(format!(
                    "node {index} has {} locks, fewer than a child's {locks_below}",
                    node.lock_ref
                ));
            }
        }
        same(
            NO_NODE,
            "evictable tokens",
            self.evictable_tokens,
            evictable,
        )?;
        same(
            NO_NODE,
            "protected tokens",
            self.protected_tokens,
            protected,
        )?;
        same(
            NO_NODE,
            "namespaces",
            self.roots.len(),
            self.root_names.len(),
        )?;
        self.check_states()?;
        self.check_windows()?;
        self.check_queues()?;
        self.check_victims()
    }

    fn check_node(
        &self,
        index: u32,
        node: &Node,
        seen: &mut FxHashSet<PageId>,
    ) -> Result<(), String> {
        if node.is_root() {
            let name = self
                .root_names
                .get(&index)
                .ok_or(format!("root {index} has no namespace"))?;
            same(
                index,
                "root of its namespace",
                self.roots.get(name),
                Some(&index),
            )?;
            return same(index, "locks of a root", node.lock_ref, 0);
        }
        let n_tokens = node.edge.len();
        same(
            index,
            "tokens",
            n_tokens,
            self.page_size
                .tokens_in(node.edge.pages(self.page_size).count()),
        )?;
        let tokens = node.edge.tokens();
        let tag = self.arena.tag_below(node.parent, tokens);
        let found = self.arena.step(node.parent, tag, tokens);
        same(
            index,
            "lookup from the parent",
            found.map(|step| (step.child, step.common)),
            Some((index, n_tokens)),
        )?;
        same(
            index,
            "child in its slot of the table",
            self.arena.at_spot_of(index),
            index,
        )?;
        for page in node.edge.pages(self.page_size) {
            if !seen.insert(page) {
                return Err(format!("page {page} of node {index} is cached twice"));
            }
        }
        let above = &self.arena[node.parent];
        let start_of = |index| self.arena.usage(index).start_tokens as usize;
        let start = start_of(node.parent) + above.edge.len();
        same(index, "start", start_of(index), start)?;
        let must_be_queued = self.policy.trend() == KeyTrend::Grows && node.is_evictable();
        if must_be_queued && !node.is_queued {
            return Err(format!(
                "node {index} can be evicted but is not in the eviction order"
            ));
        }
        Ok(())
    }

    fn check_victims(&self) -> Result<(), String> {
        let n_queued = self.arena.iter().filter(|(_, node)| node.is_queued).count();
        let (queued, others) = (self.victims.queued(), self.victims.others());
        let in_queues = self.queues.as_ref().map_or(0, |queues| queues.n_entries());
        let n_entries = queued.len() + others.len() + in_queues;
        same(
            NO_NODE,
            "entries in the eviction order",
            n_entries,
            n_queued,
        )?;
        let is_kept = self.policy.trend() == KeyTrend::Grows && !self.order_is_stale;
        let mut last = None;
        for index in queued {
            let due = self.rank(index);
            let is_settled = !self.arena[index].is_used_since;
            self.check_entry(index, is_kept && is_settled && last > Some(due))?;
            last = if is_settled { Some(due) } else { last };
        }
        for (key, index) in others {
            let due = self.rank(index);
            let is_used_since = self.arena[index].is_used_since;
            self.check_entry(index, is_kept && (key > due || key < due && !is_used_since))?;
        }
        Ok(())
    }

    fn check_entry(&self, index: u32, is_misplaced: bool) -> Result<(), String> {
        let node = &self.arena[index];
        if !node.is_live || !node.is_queued || is_misplaced {
            return Err(format!(
                "node {index} has a wrong entry in the eviction order"
            ));
        }
        Ok(())
    }
}

fn same<T: PartialEq + std::fmt::Debug>(
    index: u32,
    what: &str,
    kept: T,
    counted: T,
) -> Result<(), String> {
    if kept == counted {
        return Ok(());
    }
    let place = if index == NO_NODE {
        "tree".to_owned()
    } else {
        format!("node {index}")
    };
    Err(format!(
        "{place}: {what}: recorded {kept:?}, counted {counted:?}"
    ))
}
