//! Prefixes pinned until their memory is needed: released before a request waits, is retracted, preempted or refused
//! for lack of memory, and before the cache is flushed.
//!
//! To the tree, a soft pin is an ordinary lock.

use std::collections::BTreeMap;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::Scheduler;
use crate::cache::namespace::Namespace;
use crate::pool::pages::NodeLock;

/// Soft pins hold at most 1/`SHARE_OF_POOL` of the pool's tokens; each pin counts its whole prefix.
const SHARE_OF_POOL: usize = 2;

/// The soft pins by number, oldest first.
#[derive(Debug, Default)]
pub(super) struct SoftPins {
    pins: BTreeMap<u64, SoftPin>,
    by_name: FxHashMap<u64, u64>,
}

#[derive(Debug)]
struct SoftPin {
    name: u64,
    expires_s: u64,
    tokens: usize,
    /// `None` until granted.
    lock: Option<NodeLock>,
}

impl SoftPins {
    pub(super) fn len(&self) -> usize {
        self.pins.len()
    }

    pub(super) fn insert(&mut self, number: u64, name: u64, expires_s: u64) {
        let pin = SoftPin {
            name,
            expires_s,
            tokens: 0,
            lock: None,
        };
        self.by_name.insert(name, number);
        self.pins.insert(number, pin);
    }

    /// Keeps the tree's lock, or returns it if the pin no longer exists.
    pub(super) fn grant(
        &mut self,
        number: u64,
        lock: NodeLock,
        tokens: usize,
    ) -> Result<(), NodeLock> {
        let Some(pin) = self.pins.get_mut(&number) else {
            return Err(lock);
        };
        pin.lock = Some(lock);
        pin.tokens = tokens;
        Ok(())
    }

    /// Pinned tokens; shared ones count once per pin.
    pub(super) fn tokens(&self) -> usize {
        self.pins.values().map(|pin| pin.tokens).sum()
    }

    pub(super) fn locks(&self) -> impl Iterator<Item = &NodeLock> {
        self.pins.values().filter_map(|pin| pin.lock.as_ref())
    }

    /// Removes a pin, and returns its lock if it was granted.
    pub(super) fn take(&mut self, name: u64) -> Option<Option<NodeLock>> {
        let number = self.by_name.remove(&name)?;
        self.pins.remove(&number).map(|pin| pin.lock)
    }

    /// Removes the oldest pin, and returns its lock if it was granted.
    pub(super) fn take_oldest(&mut self) -> Option<Option<NodeLock>> {
        let (_, pin) = self.pins.pop_first()?;
        self.by_name.remove(&pin.name);
        Some(pin.lock)
    }

    pub(super) fn expired(&self, now_s: u64) -> impl Iterator<Item = u64> + '_ {
        let pins = self.pins.values();
        pins.filter(move |pin| pin.expires_s <= now_s)
            .map(|pin| pin.name)
    }
}

impl Scheduler {
    /// Pins the cached part of a prefix until `expires_s` (seconds of the caller's clock), its release by name, or
    /// until its memory is needed. Over the limit, the oldest pins are released, as is the pin that `replaces` names.
    pub fn pin_softly(
        &mut self,
        name: u64,
        replaces: Option<u64>,
        namespace: Namespace,
        tokens: Arc<[u32]>,
        expires_s: u64,
    ) {
        let limit = self.limits.max_pins;
        self.pipeline.note_change();
        let pins = self.hosts.pins_mut();
        for name in replaces.into_iter().chain([name]) {
            pins.unpin_softly(name);
        }
        if limit == 0 {
            return;
        }
        pins.release_soft_until(|soft| soft.len() < limit);
        pins.request_soft(name, namespace, tokens, expires_s);
    }

    /// Releases a soft pin; false if it does not exist.
    pub fn unpin_softly(&mut self, name: u64) -> bool {
        self.pipeline.note_change();
        self.hosts.pins_mut().unpin_softly(name)
    }

    pub(super) fn soft_pin_tokens(&self) -> usize {
        let total = self.limits.page_size.tokens_in(self.limits.total_pages);
        total / SHARE_OF_POOL
    }

    /// Releases the oldest soft pin for a candidate that was refused for lack of memory; the next plan retries.
    pub(super) fn release_soft_for_candidate(&mut self) -> bool {
        let has_released = self.hosts.pins_mut().release_oldest_soft();
        if has_released {
            self.batch.set_full(false);
            self.pipeline.note_change();
        }
        has_released
    }
}
