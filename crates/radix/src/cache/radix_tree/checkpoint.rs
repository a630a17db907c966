//! Publishes a running sequence's computed pages in the tree.

use super::{Key, KeyUse, RadixTree};
use crate::cache::prefix_cache::{Checkpoint, Checkpointed};
use crate::pool::pages::{PageRun, Pages};

impl RadixTree {
    /// Publishes the computed tokens of a sequence and moves its lock to their end.
    ///
    /// Mutates: touches, splits, adds nodes, moves the lock. `checkpoint.lock` must protect the sequence's
    /// first `protected_pages` pages. Nothing is evicted.
    ///
    /// The owners of the sequence's pages, `p` = protected pages, `h` = pages that the tree already had, `k` = whole
    /// pages of the key:
    ///
    /// | pages | before | after |
    /// |---|---|---|
    /// | `0..p` | tree, under the old lock | tree, under the new lock |
    /// | `p..h` | sequence, and the tree has its own | `duplicates`; the sequence uses the tree's (`remap`) |
    /// | `h..k` | sequence | tree, under the new lock |
    /// | `k..`  | sequence | sequence |
    ///
    /// # Panics
    /// If `protected_pages` and `private` together do not cover the whole pages of `tokens`. In debug builds, also if
    /// the lock does not protect the protected pages.
    pub fn checkpoint(&mut self, checkpoint: Checkpoint<'_>) -> Checkpointed {
        let Checkpoint {
            namespace,
            tokens,
            owner,
            protected_pages,
            lock,
            states,
            windows,
            boundaries,
            stored_tokens,
            ..
        } = checkpoint;
        debug_assert!(
            self.path_pages(&lock) >= protected_pages,
            "the lock does not cover the protected pages"
        );
        let key = Key {
            namespace,
            tokens: self.kept_part(tokens),
            owner,
        };
        let n_key_pages = self.page_size.full_pages(key.tokens.len());
        let mut given = checkpoint.private;
        let private = given.split_off(n_key_pages.saturating_sub(protected_pages));
        let key_use = KeyUse {
            priority: checkpoint.priority,
            counted_tokens: checkpoint.inserted_tokens,
        };
        let (node, _) = self.insert_key(key, protected_pages, &mut given, key_use);
        self.publish_prompt(key, checkpoint.prompt_tokens, key_use);
        self.keep_states(key, states, key_use);
        let mut windows = self.keep_windows(node, n_key_pages, windows);
        self.mark_boundaries(key, boundaries, key_use);
        self.queue_saves(node, key, stored_tokens);
        let inserted_tokens = checkpoint.inserted_tokens.max(key.tokens.len());
        if n_key_pages < protected_pages {
            // The output was truncated to less than the locked part: the sequence keeps its deeper lock.
            let (duplicates, remap) = (given, PageRun::empty());
            return Checkpointed {
                lock,
                private,
                duplicates,
                remap,
                protected_pages,
                inserted_tokens,
                windows,
            };
        }
        let new_lock = self.lock_node(node);
        self.unlock(lock);
        if let Some(windows) = windows
            .as_deref_mut()
            .filter(|it| !it.duplicates.is_empty())
        {
            windows.remap = self.window_run(node);
        }
        Checkpointed {
            lock: new_lock,
            private,
            duplicates: given,
            remap: self.page_run(node, protected_pages),
            protected_pages: n_key_pages,
            inserted_tokens,
            windows,
        }
    }

    /// Splits the path at the end of the prompt's last whole page, so that output can be evicted without the prompt,
    /// and raises the prompt's priority by one. This does not count as a hit.
    fn publish_prompt(&mut self, key: Key<'_>, prompt_tokens: usize, key_use: KeyUse) {
        let n_prompt = self.page_size.floor(prompt_tokens);
        let Some(tokens) = key.tokens.get(..n_prompt) else {
            return;
        };
        let prompt = Key { tokens, ..key };
        let priority = key_use.priority.saturating_add(1);
        let uncounted = KeyUse {
            priority,
            counted_tokens: usize::MAX,
        };
        self.insert_key(prompt, 0, &mut Pages::empty(), uncounted);
    }
}
