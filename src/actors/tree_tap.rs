//! Notes the changes of the prefix tree for the console, as long as there is a reader.

use std::sync::Weak;

use crate::messages::{TreeNotes, TreeReader};
use souffleur_state::cache::changes::{CacheChange, Observer, TreeNote};
use souffleur_state::cache::radix_tree::RadixTree;

/// The largest number of notes that wait for the reader. Beyond it the notes begin anew.
const MAX_NOTES: usize = 1 << 16;

/// The notes for the current reader.
pub(crate) struct TreeTap {
    reader: Weak<TreeReader>,
    notes: Vec<TreeNote>,
    is_restart: bool,
    /// Reused by each call.
    changes: Vec<CacheChange>,
}

impl TreeTap {
    /// A tap for a new reader, which gets all nodes of the tree first.
    pub(crate) fn open(reader: Weak<TreeReader>, cache: &mut RadixTree) -> Self {
        let mut tap = Self {
            reader,
            notes: Vec::new(),
            is_restart: true,
            changes: Vec::new(),
        };
        tap.restart(cache);
        tap
    }

    pub(crate) fn is_for(&self, reader: &Weak<TreeReader>) -> bool {
        self.reader.ptr_eq(reader)
    }

    /// Notes the changes since the last call. Returns false once the reader is gone: the tap must be dropped.
    pub(crate) fn note(&mut self, cache: &mut RadixTree) -> bool {
        if self.reader.strong_count() == 0 {
            cache.stop_changes(Observer::Console);
            return false;
        }
        cache.take_changes(Observer::Console, &mut self.changes);
        if self.notes.len() + self.changes.len() > MAX_NOTES {
            self.changes.clear();
            self.restart(cache);
            return true;
        }
        self.notes
            .extend(self.changes.drain(..).map(TreeNote::from));
        true
    }

    /// Takes the notes since the last call.
    pub(crate) fn take(&mut self, cache: &RadixTree) -> TreeNotes {
        TreeNotes {
            notes: std::mem::take(&mut self.notes),
            is_restart: std::mem::take(&mut self.is_restart),
            is_whole: !cache.has_pending_changes(Observer::Console),
        }
    }

    fn restart(&mut self, cache: &mut RadixTree) {
        self.notes.clear();
        self.is_restart = true;
        cache.restart_changes(Observer::Console);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use souffleur_state::cache::eviction::EvictionPolicy;
    use souffleur_state::cache::namespace::Namespace;
    use souffleur_state::cache::radix_tree::Insert;
    use souffleur_state::pool::page_pool::PagePool;
    use souffleur_state::pool::pages::{PageSize, PoolLedger};

    fn tree() -> (RadixTree, PagePool) {
        let page_size = PageSize::new(1).expect("positive");
        let ledger = Arc::new(PoolLedger::new(page_size));
        let policy = EvictionPolicy::from_name("lru").expect("lru exists");
        let tree = RadixTree::new(page_size, policy, ledger.clone());
        (tree, PagePool::new(100_000, page_size, ledger))
    }

    fn insert((tree, pool): &mut (RadixTree, PagePool), tokens: &[u32]) {
        let inserted = tree.insert(Insert {
            namespace: &Namespace::default(),
            tokens,
            owner: None,
            pages: pool.alloc(tokens.len()).expect("the pool is large"),
            priority: 0,
            inserted_tokens: 0,
        });
        pool.free(inserted.duplicates);
        pool.free(inserted.rest);
    }

    #[test]
    fn notes_end_with_the_reader() {
        let mut world = tree();
        insert(&mut world, &[1, 2]);
        assert!(!world.0.records_changes());
        let reader = Arc::new(TreeReader);
        let mut tap = TreeTap::open(Arc::downgrade(&reader), &mut world.0);
        assert!(tap.is_for(&Arc::downgrade(&reader)));
        assert!(!tap.is_for(&Arc::downgrade(&Arc::new(TreeReader))));
        assert!(tap.note(&mut world.0));
        let taken = tap.take(&world.0);
        assert!(taken.is_restart && taken.is_whole);
        assert_eq!(taken.notes.len(), 2, "{:?}", taken.notes);
        insert(&mut world, &[1, 3]);
        assert!(tap.note(&mut world.0));
        let taken = tap.take(&world.0);
        assert!(!taken.is_restart && taken.is_whole);
        assert_eq!(taken.notes.len(), 2, "{:?}", taken.notes);
        drop(reader);
        assert!(world.0.records_changes());
        assert!(!tap.note(&mut world.0));
        assert!(!world.0.records_changes());
    }

    #[test]
    fn notes_that_a_reader_does_not_take_are_bounded() {
        let mut world = tree();
        let reader = Arc::new(TreeReader);
        let mut tap = TreeTap::open(Arc::downgrade(&reader), &mut world.0);
        for token in 0..70_000 {
            insert(&mut world, &[token]);
            assert!(tap.note(&mut world.0));
        }
        assert!(tap.notes.len() <= MAX_NOTES);
        let first = tap.take(&world.0);
        assert!(first.is_restart);
        let mut n_nodes = 0;
        let mut next = first;
        loop {
            let stored = |note: &&TreeNote| matches!(note, TreeNote::Stored { .. });
            n_nodes += next.notes.iter().filter(stored).count();
            if next.is_whole {
                break;
            }
            assert!(tap.note(&mut world.0));
            next = tap.take(&world.0);
        }
        assert_eq!(n_nodes, 70_000);
    }
}
