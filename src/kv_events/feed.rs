//! A bounded queue that sends the changes of the radix tree to the publisher's thread, one list per step plan.
//!
//! If the queue overflows, changes are dropped until the publisher has drained it. Then the cache sends an event that
//! tells subscribers to discard all blocks, and reports its contents again, one part after each plan. It sends no part
//! while the queue is more than half full, so that a large cache does not overflow the queue again. The same follows
//! after a death of the publisher, which loses the list that it has in hand.
//!
//! The changes are not sent with a plan's messages, because cache probes also change the tree. They need not wait for
//! the end of the plan, because a plan that the Allocator refuses does not undo them.

use tokio::sync::mpsc::{self, Receiver, Sender, error::TrySendError};

use souffleur_metrics::KvEventMetrics;
use souffleur_state::cache::changes::{CacheChange, Observer};
use souffleur_state::cache::radix_tree::RadixTree;

/// The capacity of the queue. A plan has one list of changes.
pub(super) const MAX_QUEUED_LISTS: usize = 1024;
/// The largest number of token ids in queued changes (16 MiB), which stay in memory even after the cache evicts them.
const MAX_QUEUED_TOKENS: usize = 4 << 20;
/// Emptied lists with a larger capacity are dropped, not reused.
const MAX_SPARE_CHANGES: usize = 4096;

/// The largest number of consecutive calls of [`ChangeFeed::pass_on`] that leave changes in the cache.
const MAX_PAUSED_CALLS: usize = 64;

/// The changes of one plan.
pub(super) struct ChangeList {
    /// The generation of the actors that sent the changes.
    pub generation: u64,
    pub changes: Vec<CacheChange>,
    /// Set by the publisher once it has published all changes.
    pub is_read: bool,
    /// Gets the list back when it is dropped.
    give_back: Option<Sender<EmptiedList>>,
}

impl ChangeList {
    pub(super) fn new(
        generation: u64,
        changes: Vec<CacheChange>,
        give_back: Sender<EmptiedList>,
    ) -> Self {
        Self {
            generation,
            changes,
            is_read: false,
            give_back: Some(give_back),
        }
    }

    /// Takes the changes out of a list that was not sent.
    fn into_changes(mut self) -> Vec<CacheChange> {
        self.give_back = None;
        std::mem::take(&mut self.changes)
    }
}

impl Drop for ChangeList {
    fn drop(&mut self) {
        let Some(give_back) = self.give_back.take() else {
            return;
        };
        let mut changes = std::mem::take(&mut self.changes);
        let n_changes = changes.len();
        let n_tokens = changes.iter().map(CacheChange::n_tokens).sum();
        changes.clear();
        // Sending fails if the feed was dropped.
        let _ = give_back.try_send(EmptiedList {
            changes,
            n_changes,
            n_tokens,
            is_lost: !self.is_read,
        });
    }
}

/// An emptied list of changes.
pub(super) struct EmptiedList {
    pub changes: Vec<CacheChange>,
    pub n_changes: usize,
    pub n_tokens: usize,
    /// The publisher died with the list in hand, or dropped it after its death.
    pub is_lost: bool,
}

/// The sending end of the queue, which the cache owns.
pub struct ChangeFeed {
    generation: u64,
    queue: Sender<ChangeList>,
    emptied: Receiver<EmptiedList>,
    /// Cloned into each list.
    give_back: Sender<EmptiedList>,
    spare: Vec<Vec<CacheChange>>,
    max_changes: usize,
    /// Changes and tokens that the publisher has not read.
    queued_changes: usize,
    queued_tokens: usize,
    /// Calls since changes were last taken from the cache.
    paused_calls: usize,
    /// Changes were dropped, and the publisher's view is incomplete.
    has_lost: bool,
    metrics: KvEventMetrics,
}

impl ChangeFeed {
    pub(super) fn new(
        generation: u64,
        queue: Sender<ChangeList>,
        max_changes: usize,
        metrics: KvEventMetrics,
    ) -> Self {
        // The publisher may be reading one list while the queue is full.
        let (give_back, emptied) = mpsc::channel(MAX_QUEUED_LISTS + 1);
        Self {
            generation,
            queue,
            emptied,
            give_back,
            spare: Vec::new(),
            max_changes,
            queued_changes: 0,
            queued_tokens: 0,
            paused_calls: 0,
            has_lost: false,
            metrics,
        }
    }

    /// Sends the changes since the last call. Returns true if the caller should call again soon even without new
    /// changes, because the cache has more to report or the publisher lags.
    pub fn pass_on(&mut self, cache: &mut RadixTree) -> bool {
        self.collect_emptied();
        if self.queue.is_closed() {
            self.discard(cache);
            return false;
        }
        if self.should_pause(cache) {
            self.paused_calls += 1;
            return true;
        }
        self.paused_calls = 0;
        let mut changes = self.spare.pop().unwrap_or_default();
        if self.has_lost && self.queued_changes == 0 {
            self.has_lost = false;
            // Drops the recorded changes, and records a clear event and then all nodes.
            cache.restart_changes(Observer::Publisher);
        }
        cache.take_changes(Observer::Publisher, &mut changes);
        if self.has_lost || changes.is_empty() {
            self.metrics.lost(changes.len());
            self.recycle(changes);
        } else {
            self.send(changes);
        }
        self.has_lost || cache.has_pending_changes(Observer::Publisher)
    }

    fn discard(&mut self, cache: &mut RadixTree) {
        self.has_lost = false;
        let mut changes = self.spare.pop().unwrap_or_default();
        cache.take_changes(Observer::Publisher, &mut changes);
        self.recycle(changes);
    }

    /// True if the cache should not send its next part until the publisher has read more.
    fn should_pause(&self, cache: &RadixTree) -> bool {
        let is_lagging = self.queued_changes > self.max_changes / 2
            || self.queued_tokens > MAX_QUEUED_TOKENS / 2;
        is_lagging
            && !self.has_lost
            && self.paused_calls < MAX_PAUSED_CALLS
            && cache.has_pending_changes(Observer::Publisher)
    }

    fn send(&mut self, changes: Vec<CacheChange>) {
        let n_changes = changes.len();
        let n_tokens: usize = changes.iter().map(CacheChange::n_tokens).sum();
        let is_full = self.queued_changes > 0
            && (self.queued_changes + n_changes > self.max_changes
                || self.queued_tokens + n_tokens > MAX_QUEUED_TOKENS);
        if is_full {
            return self.drop_list(changes);
        }
        let list = ChangeList::new(self.generation, changes, self.give_back.clone());
        match self.queue.try_send(list) {
            Ok(()) => {
                self.queued_changes += n_changes;
                self.queued_tokens += n_tokens;
            }
            Err(TrySendError::Full(list)) => self.drop_list(list.into_changes()),
            // The next call detects the closed channel, too.
            Err(TrySendError::Closed(list)) => self.recycle(list.into_changes()),
        }
    }

    fn drop_list(&mut self, changes: Vec<CacheChange>) {
        self.metrics.lost(changes.len());
        self.has_lost = true;
        self.recycle(changes);
    }

    fn collect_emptied(&mut self) {
        while let Ok(list) = self.emptied.try_recv() {
            self.queued_changes -= list.n_changes;
            self.queued_tokens -= list.n_tokens;
            if list.is_lost {
                self.metrics.lost(list.n_changes);
                self.has_lost = true;
            }
            self.recycle(list.changes);
        }
    }

    fn recycle(&mut self, mut changes: Vec<CacheChange>) {
        changes.clear();
        if changes.capacity() <= MAX_SPARE_CHANGES && self.spare.len() < MAX_QUEUED_LISTS {
            self.spare.push(changes);
        }
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

    struct World {
        tree: RadixTree,
        pool: PagePool,
        feed: ChangeFeed,
        queue: Receiver<ChangeList>,
    }

    impl World {
        fn new(max_changes: usize) -> Self {
            let page_size = PageSize::new(1).expect("positive");
            let ledger = Arc::new(PoolLedger::new(page_size));
            let policy = EvictionPolicy::from_name("lru").expect("lru exists");
            let mut tree = RadixTree::new(page_size, policy, ledger.clone());
            tree.restart_changes(Observer::Publisher);
            let (sender, queue) = mpsc::channel(MAX_QUEUED_LISTS);
            let metrics = KvEventMetrics::register();
            Self {
                tree,
                pool: PagePool::new(200_000, page_size, ledger),
                feed: ChangeFeed::new(1, sender, max_changes, metrics),
                queue,
            }
        }

        fn insert(&mut self, tokens: &[u32]) {
            let pages = self.pool.alloc(tokens.len()).expect("the pool is large");
            let inserted = self.tree.insert(Insert {
                namespace: &Namespace::default(),
                tokens,
                owner: None,
                pages,
                priority: 0,
                inserted_tokens: 0,
            });
            self.pool.free(inserted.duplicates);
            self.pool.free(inserted.rest);
        }

        /// Reads one list. Returns the kinds of its changes.
        fn read(&mut self) -> Option<String> {
            let mut list = self.queue.try_recv().ok()?;
            let mut text = String::new();
            for change in &list.changes {
                text.push_str(match change {
                    CacheChange::Stored { .. } => "stored ",
                    CacheChange::Split { .. } => "split ",
                    CacheChange::Removed { .. } => "removed ",
                    CacheChange::Cleared => "cleared ",
                });
            }
            list.is_read = true;
            Some(text)
        }
    }

    #[test]
    fn dropped_changes_are_reported_again_once_the_queue_is_empty() {
        let mut world = World::new(4);
        assert!(!world.feed.pass_on(&mut world.tree));
        world.insert(&[1, 2, 3]);
        world.insert(&[1, 2, 4]);
        // The queue holds the clear event. This call adds a second list: two new nodes and a split.
        assert!(!world.feed.pass_on(&mut world.tree));
        world.insert(&[5]);
        assert!(world.feed.pass_on(&mut world.tree), "the queue is full");
        world.insert(&[6]);
        assert!(world.feed.pass_on(&mut world.tree), "still full");
        assert_eq!(world.read().as_deref(), Some("cleared "));
        assert!(
            world.feed.pass_on(&mut world.tree),
            "the queue is not empty"
        );
        assert_eq!(world.read().as_deref(), Some("stored split stored "));
        assert!(!world.feed.pass_on(&mut world.tree));
        let all = "cleared stored stored stored stored stored ";
        assert_eq!(world.read().as_deref(), Some(all));
        world.insert(&[7]);
        assert!(!world.feed.pass_on(&mut world.tree));
        assert_eq!(world.read().as_deref(), Some("stored "));
        assert_eq!(world.read(), None);
    }

    #[test]
    fn a_large_cache_is_reported_again_in_parts() {
        let mut world = World::new(2);
        world.feed.pass_on(&mut world.tree);
        for token in 0..1000 {
            world.insert(&[token]);
        }
        assert!(world.feed.pass_on(&mut world.tree), "a change was dropped");
        let mut stored = 0;
        loop {
            let text = world.read().expect("something was published");
            stored += text.matches("stored").count();
            if !world.feed.pass_on(&mut world.tree) {
                break;
            }
        }
        stored += world
            .read()
            .map_or(0, |text| text.matches("stored").count());
        assert_eq!(stored, 1000);
    }

    #[test]
    fn parts_have_a_bounded_number_of_tokens() {
        let mut world = World::new(100);
        for first in [0, 100_000, 200_000, 300_000] {
            let tokens: Vec<u32> = (first..first + 40_000).collect();
            world.insert(&tokens);
        }
        world.tree.restart_changes(Observer::Publisher);
        assert!(
            world.feed.pass_on(&mut world.tree),
            "half of the nodes are sent"
        );
        assert_eq!(world.read().as_deref(), Some("cleared stored stored "));
        assert!(!world.feed.pass_on(&mut world.tree));
        assert_eq!(world.read().as_deref(), Some("stored stored "));
    }

    #[test]
    fn no_further_part_is_sent_while_the_queue_is_more_than_half_full() {
        let mut world = World::new(600);
        for token in 0..1000 {
            world.insert(&[token]);
        }
        world.tree.restart_changes(Observer::Publisher);
        // The publisher reads nothing meanwhile.
        for _ in 0..20 {
            assert!(world.feed.pass_on(&mut world.tree));
        }
        assert!(!world.feed.has_lost);
        assert!(world.feed.queued_changes > 300 && world.feed.queued_changes <= 600);
        let mut all_read = String::new();
        loop {
            while let Some(text) = world.read() {
                all_read.push_str(&text);
            }
            if !world.feed.pass_on(&mut world.tree) {
                break;
            }
        }
        all_read.push_str(&world.read().unwrap_or_default());
        assert_eq!(all_read.matches("stored").count(), 1000);
        assert_eq!(all_read.matches("cleared").count(), 1, "one report");
    }

    #[test]
    fn changes_that_a_dying_publisher_had_in_hand_are_reported_again() {
        let mut world = World::new(100);
        assert!(!world.feed.pass_on(&mut world.tree));
        world.insert(&[1]);
        assert!(!world.feed.pass_on(&mut world.tree));
        assert_eq!(world.read().as_deref(), Some("cleared "));
        // A panic drops the list.
        drop(world.queue.try_recv());
        world.insert(&[2]);
        assert!(!world.feed.pass_on(&mut world.tree));
        assert_eq!(world.read().as_deref(), Some("cleared stored stored "));
    }

    #[test]
    fn a_stopped_publisher_gets_no_changes() {
        let mut world = World::new(4);
        world.queue.close();
        world.insert(&[1]);
        assert!(!world.feed.pass_on(&mut world.tree));
        assert_eq!(world.feed.queued_changes, 0);
    }

    #[test]
    fn the_feed_does_not_wait_for_a_dead_publisher() {
        let mut world = World::new(1);
        assert!(!world.feed.pass_on(&mut world.tree));
        world.insert(&[1]);
        assert!(world.feed.pass_on(&mut world.tree), "a change was dropped");
        world.queue.close();
        assert!(!world.feed.pass_on(&mut world.tree));
        world.insert(&[2]);
        assert!(!world.feed.pass_on(&mut world.tree));
    }
}
