//! Groups KV events into batches as SGLang does, but of bounded size.

use std::sync::Arc;

/// Largest encoded size of a batch of several blocks: small, since a slow ZeroMQ reader loses whole messages.
const MAX_BATCH_BYTES: usize = 256 << 10;
/// The largest encoded sizes in MessagePack: of a block id, of a token, and of an event without its ids and tokens.
const ID_BYTES: usize = 9;
const TOKEN_BYTES: usize = 5;
const EVENT_BYTES: usize = 192;

/// A change of the set of cached blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KvEvent {
    /// Consecutive blocks were cached.
    Stored(StoredBlocks),
    /// Blocks were evicted, by id.
    Removed(Vec<i64>),
    Cleared,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredBlocks {
    pub ids: Vec<i64>,
    /// The id of the block before the first one; `None` if the first one starts a prefix.
    pub parent: Option<i64>,
    /// The tokens of all blocks, concatenated.
    pub tokens: Vec<u32>,
    pub cache_salt: Option<Arc<str>>,
    /// True if the namespace has a salt or an `extra_key`: prompts of other namespaces never hit these blocks.
    /// ZeroMQ messages omit this.
    pub is_named: bool,
}

#[derive(Debug)]
pub struct EventBatches {
    block_size: usize,
    full: Vec<Vec<KvEvent>>,
    open: Vec<KvEvent>,
    /// An upper bound on the open batch's encoded size.
    open_bytes: usize,
}

impl EventBatches {
    /// `block_size` is in tokens.
    pub fn new(block_size: usize) -> Self {
        Self {
            block_size,
            full: Vec::new(),
            open: Vec::new(),
            open_bytes: 0,
        }
    }

    pub fn take(&mut self) -> Vec<Vec<KvEvent>> {
        self.close();
        std::mem::take(&mut self.full)
    }

    /// Adds a `Stored` event for blocks that follow `parent`, or extends the last event.
    pub fn stored(
        &mut self,
        parent: Option<i64>,
        ids: &[i64],
        tokens: &[u32],
        (cache_salt, is_named): (Option<&Arc<str>>, bool),
    ) {
        debug_assert_eq!(ids.len() * self.block_size, tokens.len());
        let block_bytes = ID_BYTES + TOKEN_BYTES * self.block_size;
        let (mut parent, mut ids, mut tokens) = (parent, ids, tokens);
        while !ids.is_empty() {
            let n_blocks = self.n_that_fit(block_bytes).min(ids.len());
            let (now, later) = ids.split_at(n_blocks);
            let (tokens_now, tokens_later) = tokens.split_at(n_blocks * self.block_size);
            self.open_bytes += n_blocks * block_bytes;
            self.push_stored(parent, now, tokens_now, (cache_salt, is_named));
            parent = now.last().copied();
            (ids, tokens) = (later, tokens_later);
        }
    }

    /// Adds a `Removed` event, or extends the last one.
    pub fn removed(&mut self, ids: impl ExactSizeIterator<Item = i64>) {
        let mut ids = ids;
        while ids.len() > 0 {
            let n_blocks = self.n_that_fit(ID_BYTES);
            let now = ids.by_ref().take(n_blocks);
            let before = match self.open.last_mut() {
                Some(KvEvent::Removed(before)) => before,
                _ => {
                    self.open_bytes += EVENT_BYTES;
                    self.open.push(KvEvent::Removed(Vec::new()));
                    let Some(KvEvent::Removed(new)) = self.open.last_mut() else {
                        return;
                    };
                    new
                }
            };
            let n_before = before.len();
            before.extend(now);
            self.open_bytes += (before.len() - n_before) * ID_BYTES;
        }
    }

    pub fn cleared(&mut self) {
        self.open.push(KvEvent::Cleared);
        self.open_bytes += EVENT_BYTES;
    }

    /// The number of items of this size to add to the open batch, at least one. If none fits, starts a new batch.
    fn n_that_fit(&mut self, item_bytes: usize) -> usize {
        let free_bytes = MAX_BATCH_BYTES.saturating_sub(self.open_bytes + EVENT_BYTES);
        if free_bytes < item_bytes && !self.open.is_empty() {
            self.close();
            return self.n_that_fit(item_bytes);
        }
        (free_bytes / item_bytes).max(1)
    }

    fn push_stored(
        &mut self,
        parent: Option<i64>,
        ids: &[i64],
        tokens: &[u32],
        (cache_salt, is_named): (Option<&Arc<str>>, bool),
    ) {
        if let Some(KvEvent::Stored(before)) = self.open.last_mut()
            && parent.is_some()
            && before.ids.last().copied() == parent
            && before.cache_salt.as_ref() == cache_salt
            && before.is_named == is_named
        {
            before.ids.extend(ids);
            before.tokens.extend(tokens);
            return;
        }
        self.open_bytes += EVENT_BYTES + cache_salt.map_or(0, |salt| salt.len());
        self.open.push(KvEvent::Stored(StoredBlocks {
            ids: ids.to_vec(),
            parent,
            tokens: tokens.to_vec(),
            cache_salt: cache_salt.cloned(),
            is_named,
        }));
    }

    fn close(&mut self) {
        self.open_bytes = 0;
        if !self.open.is_empty() {
            self.full.push(std::mem::take(&mut self.open));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: (Option<&Arc<str>>, bool) = (None, false);

    fn stored(parent: Option<i64>, ids: &[i64], tokens: &[u32]) -> KvEvent {
        KvEvent::Stored(StoredBlocks {
            ids: ids.to_vec(),
            parent,
            tokens: tokens.to_vec(),
            cache_salt: None,
            is_named: false,
        })
    }

    #[test]
    fn consecutive_events_are_merged() {
        let mut batches = EventBatches::new(1);
        batches.stored(None, &[1], &[10], PLAIN);
        batches.stored(Some(1), &[2, 3], &[20, 30], PLAIN);
        batches.stored(Some(1), &[4], &[40], PLAIN);
        let salt: Arc<str> = "s".into();
        batches.stored(Some(4), &[5], &[50], (Some(&salt), true));
        batches.stored(None, &[6], &[60], PLAIN);
        batches.stored(None, &[7], &[70], PLAIN);
        batches.removed([3, 2].into_iter());
        batches.removed([4].into_iter());
        batches.cleared();
        batches.removed([1].into_iter());
        let salted = KvEvent::Stored(StoredBlocks {
            ids: vec![5],
            parent: Some(4),
            tokens: vec![50],
            cache_salt: Some(salt),
            is_named: true,
        });
        let expected = vec![
            stored(None, &[1, 2, 3], &[10, 20, 30]),
            stored(Some(1), &[4], &[40]),
            salted,
            stored(None, &[6], &[60]),
            stored(None, &[7], &[70]),
            KvEvent::Removed(vec![3, 2, 4]),
            KvEvent::Cleared,
            KvEvent::Removed(vec![1]),
        ];
        assert_eq!(batches.take(), [expected]);
        assert_eq!(batches.take(), Vec::<Vec<KvEvent>>::new());
    }

    #[test]
    fn empty_changes_add_no_event() {
        let mut batches = EventBatches::new(4);
        batches.stored(None, &[], &[], PLAIN);
        batches.removed([].into_iter());
        assert!(batches.take().is_empty());
    }

    #[test]
    fn large_events_are_split_into_consecutive_batches() {
        let n_blocks = 20_000_i64;
        let ids: Vec<i64> = (1..=n_blocks).collect();
        let tokens: Vec<u32> = (0..16 * n_blocks as u32).collect();
        let mut batches = EventBatches::new(16);
        batches.stored(None, &ids, &tokens, PLAIN);
        batches.removed(ids.iter().copied());
        let batches = batches.take();
        assert!(batches.len() > 6, "{}", batches.len());
        let (mut stored, mut removed): (Vec<i64>, Vec<i64>) = Default::default();
        let (mut last, mut all_tokens): (Option<i64>, Vec<u32>) = Default::default();
        for batch in &batches {
            let mut bytes = 0;
            for event in batch {
                match event {
                    KvEvent::Stored(blocks) => {
                        assert_eq!(blocks.parent, last);
                        last = blocks.ids.last().copied();
                        stored.extend(&blocks.ids);
                        all_tokens.extend(&blocks.tokens);
                        bytes += 9 * blocks.ids.len() + 5 * blocks.tokens.len();
                    }
                    KvEvent::Removed(ids) => {
                        removed.extend(ids);
                        bytes += 9 * ids.len();
                    }
                    KvEvent::Cleared => (),
                }
            }
            assert!(bytes <= MAX_BATCH_BYTES, "{bytes}");
        }
        assert_eq!((stored, removed), (ids.clone(), ids));
        assert_eq!(all_tokens, tokens);
    }

    #[test]
    fn a_block_larger_than_a_batch_gets_its_own_batch() {
        let mut batches = EventBatches::new(100_000);
        batches.cleared();
        batches.stored(None, &[1, 2], &vec![5; 200_000], PLAIN);
        let lengths: Vec<usize> = batches.take().iter().map(Vec::len).collect();
        assert_eq!(lengths, [1, 1, 1]);
    }
}
