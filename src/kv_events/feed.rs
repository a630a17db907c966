//! A bounded queue that sends the changes of the radix tree to the publisher's thread, one list per plan.
//!
//! If the queue overflows, changes are dropped until the publisher has drained it. Then the cache sends an event that
//! tells subscribers to discard all blocks, and reports its contents again, a part after each plan. While the queue is
//! more than half full, the cache sends no further parts, so that a large cache does not overflow the queue again.
//!
//! The changes are not part of a plan's verdict: only the tree makes them, the Allocator's answer never reverts them,
//! and probes make changes too.

use tokio::sync::mpsc::{self, Receiver, Sender, error::TrySendError};

use souffleur_metrics::KvEventMetrics;
use souffleur_state::cache::changes::CacheChange;
use souffleur_state::cache::radix_tree::RadixTree;

/// Capacity of the queue in lists of changes, one per plan.
pub(super) const MAX_WAITING_NEWS: usize = 1024;
/// The largest number of token ids in queued changes, which keep 16 MiB alive even after the cache evicted them.
const MAX_WAITING_TOKENS: usize = 4 << 20;
/// Emptied lists with a larger capacity are dropped, not reused.
const MAX_SPARE_CHANGES: usize = 4096;

/// The largest number of consecutive calls that leave changes in the cache, which bounds the changes that accumulate
/// there.
const MAX_PAUSED_CALLS: usize = 64;

/// The changes of one plan.
pub(super) struct News {
    /// The generation of the engine's actors that sent them.
    pub generation: u64,
    pub changes: Vec<CacheChange>,
    /// Receives the emptied list.
    pub read: Sender<Read>,
}

/// An emptied list of changes that the publisher has read.
pub(super) struct Read {
    pub emptied: Vec<CacheChange>,
    pub n_changes: usize,
    pub n_tokens: usize,
}

/// The cache's end of the queue to the publisher.
pub struct ChangeFeed {
    generation: u64,
    news: Sender<News>,
    read: Receiver<Read>,
    /// Cloned into each message.
    reader: Sender<Read>,
    spare: Vec<Vec<CacheChange>>,
    max_changes: usize,
    /// Changes and tokens in flight.
    waiting_changes: usize,
    waiting_tokens: usize,
    /// Calls since changes were last taken from the cache.
    paused_calls: usize,
    /// Changes were dropped, and the publisher's view is incomplete.
    has_lost: bool,
    metrics: KvEventMetrics,
}

impl ChangeFeed {
    pub(super) fn new(
        generation: u64,
        news: Sender<News>,
        max_changes: usize,
        metrics: KvEventMetrics,
    ) -> Self {
        // The publisher may be reading one list while the queue is full.
        let (reader, read) = mpsc::channel(MAX_WAITING_NEWS + 1);
        Self {
            generation,
            news,
            read,
            reader,
            spare: Vec::new(),
            max_changes,
            waiting_changes: 0,
            waiting_tokens: 0,
            paused_calls: 0,
            has_lost: false,
            metrics,
        }
    }

    /// Sends the changes since the last call. Returns true if it should be called again soon without another change,
    /// because the cache has more to report or the publisher lags.
    pub fn pass_on(&mut self, cache: &mut RadixTree) -> bool {
        self.take_back();
        if self.news.is_closed() {
            self.forget(cache);
            return false;
        }
        if self.pauses(cache) {
            self.paused_calls += 1;
            return true;
        }
        self.paused_calls = 0;
        let mut changes = self.spare.pop().unwrap_or_default();
        if self.has_lost && self.waiting_changes == 0 {
            self.has_lost = false;
            cache.note_changes();
        }
        cache.take_changes(&mut changes);
        if self.has_lost || changes.is_empty() {
            self.metrics.lost(changes.len());
            self.keep(changes);
        } else {
            self.send(changes);
        }
        self.has_lost || cache.has_more_to_tell()
    }

    /// The publisher has stopped or died: discards changes and the pending resynchronisation.
    fn forget(&mut self, cache: &mut RadixTree) {
        self.has_lost = false;
        let mut changes = self.spare.pop().unwrap_or_default();
        cache.take_changes(&mut changes);
        self.keep(changes);
    }

    /// True if the cache should not send its next part until the publisher has read more.
    fn pauses(&self, cache: &RadixTree) -> bool {
        let is_behind = self.waiting_changes > self.max_changes / 2
            || self.waiting_tokens > MAX_WAITING_TOKENS / 2;
        is_behind
            && !self.has_lost
            && self.paused_calls < MAX_PAUSED_CALLS
            && cache.has_more_to_tell()
    }

    fn send(&mut self, changes: Vec<CacheChange>) {
        let n_changes = changes.len();
        let n_tokens: usize = changes.iter().map(CacheChange::n_tokens).sum();
        let is_full = self.waiting_changes > 0
            && (self.waiting_changes + n_changes > self.max_changes
                || self.waiting_tokens + n_tokens > MAX_WAITING_TOKENS);
        if is_full {
            return self.lose(changes);
        }
        let news = News {
            generation: self.generation,
            changes,
            read: self.reader.clone(),
        };
        match self.news.try_send(news) {
            Ok(()) => {
                self.waiting_changes += n_changes;
                self.waiting_tokens += n_tokens;
            }
            Err(TrySendError::Full(news)) => self.lose(news.changes),
            // The next call detects the closed channel, too.
            Err(TrySendError::Closed(news)) => self.keep(news.changes),
        }
    }

    fn lose(&mut self, changes: Vec<CacheChange>) {
        self.metrics.lost(changes.len());
        self.has_lost = true;
        self.keep(changes);
    }

    fn take_back(&mut self) {
        while let Ok(read) = self.read.try_recv() {
            self.waiting_changes -= read.n_changes;
            self.waiting_tokens -= read.n_tokens;
            self.keep(read.emptied);
        }
    }

    fn keep(&mut self, mut changes: Vec<CacheChange>) {
        changes.clear();
        if changes.capacity() <= MAX_SPARE_CHANGES && self.spare.len() < MAX_WAITING_NEWS {
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
        news: Receiver<News>,
    }

    impl World {
        fn new(max_changes: usize) -> Self {
            let page_size = PageSize::new(1).expect("positive");
            let ledger = Arc::new(PoolLedger::new(page_size));
            let policy = EvictionPolicy::from_name("lru").expect("it exists");
            let mut tree = RadixTree::new(page_size, policy, ledger.clone());
            tree.note_changes();
            let (sender, news) = mpsc::channel(MAX_WAITING_NEWS);
            let metrics = KvEventMetrics::register();
            Self {
                tree,
                pool: PagePool::new(200_000, page_size, ledger),
                feed: ChangeFeed::new(1, sender, max_changes, metrics),
                news,
            }
        }

        fn insert(&mut self, tokens: &[u32]) {
            let pages = self.pool.alloc(tokens.len()).expect("it is large");
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

        /// Reads one list and returns its summary.
        fn read(&mut self) -> Option<String> {
            let mut news = self.news.try_recv().ok()?;
            let mut text = String::new();
            let n_tokens = news.changes.iter().map(CacheChange::n_tokens).sum();
            let n_changes = news.changes.len();
            for change in news.changes.drain(..) {
                text.push_str(match change {
                    CacheChange::Stored { .. } => "stored ",
                    CacheChange::Split { .. } => "split ",
                    CacheChange::Removed { .. } => "removed ",
                    CacheChange::Cleared => "cleared ",
                });
            }
            let read = Read {
                emptied: news.changes,
                n_changes,
                n_tokens,
            };
            news.read.try_send(read).expect("there is room");
            Some(text)
        }
    }

    #[test]
    fn dropped_changes_are_reported_again_once_the_queue_is_empty() {
        let mut world = World::new(4);
        assert!(!world.feed.pass_on(&mut world.tree));
        world.insert(&[1, 2, 3]);
        world.insert(&[1, 2, 4]);
        // Queued are the clear, then two new nodes and a split.
        assert!(!world.feed.pass_on(&mut world.tree));
        world.insert(&[5]);
        assert!(world.feed.pass_on(&mut world.tree), "the queue is full");
        world.insert(&[6]);
        assert!(world.feed.pass_on(&mut world.tree), "still full");
        assert_eq!(world.read().as_deref(), Some("cleared "));
        assert!(world.feed.pass_on(&mut world.tree), "not all was read");
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
        assert!(world.feed.pass_on(&mut world.tree), "it is lost");
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
        world.tree.note_changes();
        assert!(world.feed.pass_on(&mut world.tree), "half is published");
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
        world.tree.note_changes();
        // The publisher reads nothing meanwhile.
        for _ in 0..20 {
            assert!(world.feed.pass_on(&mut world.tree));
        }
        assert!(!world.feed.has_lost);
        assert!(world.feed.waiting_changes > 300 && world.feed.waiting_changes <= 600);
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
    fn a_stopped_publisher_gets_no_changes() {
        let mut world = World::new(4);
        world.news.close();
        world.insert(&[1]);
        assert!(!world.feed.pass_on(&mut world.tree));
        assert_eq!(world.feed.waiting_changes, 0);
    }

    #[test]
    fn a_publisher_that_died_before_it_caught_up_is_not_waited_for() {
        let mut world = World::new(1);
        assert!(!world.feed.pass_on(&mut world.tree));
        world.insert(&[1]);
        assert!(world.feed.pass_on(&mut world.tree), "it is lost");
        world.news.close();
        assert!(!world.feed.pass_on(&mut world.tree));
        world.insert(&[2]);
        assert!(!world.feed.pass_on(&mut world.tree));
    }
}
