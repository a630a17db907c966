//! Matches of prompts against the tree.

use super::RadixTree;
use crate::cache::namespace::Namespace;
use crate::cache::prefix_cache::LockedPrefix;

impl RadixTree {
    /// Locks the longest cached prefix of `tokens` from which a sequence can resume. It stays cached until the lock is
    /// passed to [`unlock`](Self::unlock) or [`checkpoint`](Self::checkpoint).
    ///
    /// Mutates: touches the matched path, may split a node, takes a lock, postpones the eviction of its window pages.
    pub fn lock_prefix(&mut self, namespace: &Namespace, tokens: &[u32]) -> LockedPrefix {
        let (node, kv_tokens) = self.match_and_split(namespace, tokens);
        let (node, tokens) = self.resumable(node, kv_tokens);
        self.raise_window_priority(node);
        LockedPrefix {
            lock: self.lock_node(node),
            pages: self.page_run(node, 0),
            windows: self.window_run(node),
            tokens,
            kv_tokens,
        }
    }

    /// Matches as [`lock_prefix`](Self::lock_prefix) does, but takes no lock: returns the length only.
    ///
    /// Mutates: touches the matched path, may split a node. The length may be stale after any other call.
    pub fn touch_prefix(&mut self, namespace: &Namespace, tokens: &[u32]) -> usize {
        let (node, tokens) = self.match_and_split(namespace, tokens);
        self.resumable(node, tokens).1
    }

    /// Touches each key in turn as [`touch_prefix`](Self::touch_prefix) does. Returns each key's length and path
    /// (nodes from the top down) as they are after the last key. Calls `begin` with the place of a key each time before
    /// it works on the key.
    pub fn touch_paths<'a>(
        &mut self,
        keys: impl Iterator<Item = (&'a Namespace, &'a [u32])>,
        mut begin: impl FnMut(usize),
    ) -> Vec<(usize, Vec<u32>)> {
        let touched: Vec<(u32, usize)> = keys
            .enumerate()
            .map(|(place, (namespace, tokens))| {
                begin(place);
                self.match_and_split(namespace, tokens)
            })
            .collect();
        let paths = touched.into_iter().enumerate();
        paths
            .map(|(place, (node, tokens))| {
                begin(place);
                let (node, tokens) = self.resumable(node, tokens);
                (tokens, self.path_to(node))
            })
            .collect()
    }

    /// Length of the longest cached prefix from which a sequence can resume. Does not touch, split or lock nodes.
    pub fn peek(&self, namespace: &Namespace, tokens: &[u32]) -> usize {
        let Some(&root) = self.roots.get(namespace) else {
            return 0;
        };
        self.peek_from(root, tokens)
    }
}
