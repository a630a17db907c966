//! The cache of `--disable-radix-cache`: it keeps nothing.

use crate::cache::namespace::Namespace;
use crate::cache::prefix_cache::{
    Checkpoint, Checkpointed, CheckpointedWindows, LockedPrefix, PrefixCache,
};
use crate::cache::prefix_history::Departure;
use crate::pool::pages::{EvictedPages, NodeLock, PageRun, PageSize, Pages};
use souffleur_base::ids::PageId;

/// A [`PrefixCache`] without a cache: every page stays private to its sequence.
#[derive(Debug)]
pub struct PlainCache {
    page_size: PageSize,
    has_diagnostics: bool,
}

impl PlainCache {
    /// Makes the cache; `page_size` is only reported.
    pub fn new(page_size: PageSize) -> Self {
        Self {
            page_size,
            has_diagnostics: false,
        }
    }

    /// Makes it report itself as the cause of every miss.
    pub fn with_diagnostics(self) -> Self {
        Self {
            has_diagnostics: true,
            ..self
        }
    }
}

impl PrefixCache for PlainCache {
    fn lock_prefix(&mut self, _namespace: &Namespace, _tokens: &[u32]) -> LockedPrefix {
        LockedPrefix::default()
    }

    fn unlock(&mut self, lock: NodeLock) {
        let node = lock.surrender();
        debug_assert!(node.is_none(), "a lock of another cache was released");
    }

    fn touch_prefix(&mut self, _namespace: &Namespace, _tokens: &[u32]) -> usize {
        0
    }

    fn peek(&self, _namespace: &Namespace, _tokens: &[u32]) -> usize {
        0
    }

    fn checkpoint(&mut self, checkpoint: Checkpoint<'_>) -> Checkpointed {
        debug_assert!(checkpoint.states.is_empty(), "no state is saved for it");
        Checkpointed {
            lock: checkpoint.lock,
            private: checkpoint.private,
            duplicates: Pages::empty(),
            remap: PageRun::empty(),
            protected_pages: checkpoint.protected_pages,
            inserted_tokens: checkpoint.inserted_tokens,
            windows: checkpoint.windows.map(|own| {
                let own = *own;
                Box::new(CheckpointedWindows {
                    own,
                    ..CheckpointedWindows::default()
                })
            }),
        }
    }

    fn evict(&mut self, _tokens: usize) -> EvictedPages {
        EvictedPages::empty()
    }

    fn departure(
        &self,
        _namespace: &Namespace,
        _lock: &NodeLock,
        _tokens: &[u32],
        (matched_tokens, kv_tokens): (usize, usize),
        match_limit: usize,
    ) -> Option<Box<Departure>> {
        self.has_diagnostics.then(|| {
            Box::new(Departure {
                matched_tokens,
                kv_tokens,
                missing_state: None,
                match_limit,
                is_cache_disabled: true,
                branch: None,
                elsewhere: None,
            })
        })
    }

    fn clear(&mut self) -> Pages {
        Pages::empty()
    }

    fn evictable_size(&self) -> usize {
        0
    }

    fn protected_size(&self) -> usize {
        0
    }

    fn n_nodes(&self) -> usize {
        0
    }

    fn page_size(&self) -> PageSize {
        self.page_size
    }

    fn is_disabled(&self) -> bool {
        true
    }

    fn for_each_page(&self, _visit: &mut dyn FnMut(PageId)) {}

    fn check_integrity(&self) -> Result<(), String> {
        Ok(())
    }
}
