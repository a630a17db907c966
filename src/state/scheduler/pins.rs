//! Prefixes kept in memory for hosts: bounded, with a time to live, revoked before a request is refused for them.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::error::RequestError;
use crate::state::cache::namespace::Namespace;
use crate::state::plan::{PinDemand, Pinned, Settle};
use crate::state::pool::pages::NodeLock;

use super::Scheduler;

/// The pins and what is to be said of them to the tree.
#[derive(Debug, Default)]
pub(super) struct Pins {
    /// In order, so that locks go back in one order.
    held: BTreeMap<u64, Pin>,
    demands: Vec<PinDemand>,
    released: Vec<NodeLock>,
    granted: Vec<(u64, usize)>,
    next_pin: u64,
}

#[derive(Debug)]
struct Pin {
    /// `None` until granted.
    lock: Option<NodeLock>,
    expires_s: u64,
}

impl Pins {
    pub(super) fn len(&self) -> usize {
        self.held.len()
    }

    pub(super) fn take_demands(&mut self) -> Vec<PinDemand> {
        std::mem::take(&mut self.demands)
    }

    pub(super) fn has_demands(&self) -> bool {
        !self.demands.is_empty()
    }

    pub(super) fn take_released(&mut self) -> impl Iterator<Item = Settle> + use<> {
        std::mem::take(&mut self.released)
            .into_iter()
            .map(Settle::Unlock)
    }

    /// Keeps the granted locks; one that was unpinned meanwhile goes straight back. True if there was such a one.
    pub(super) fn granted(&mut self, pinned: Vec<Pinned>) -> bool {
        let before = self.released.len();
        for Pinned { pin, lock, tokens } in pinned {
            let is_held = self.held.contains_key(&pin);
            self.granted.push((pin, if is_held { tokens } else { 0 }));
            match self.held.get_mut(&pin) {
                Some(held) => held.lock = Some(lock),
                None => self.release(lock),
            }
        }
        self.released.len() > before
    }

    /// Gives a lock back with the next plan.
    pub(super) fn release(&mut self, lock: NodeLock) {
        self.released.push(lock);
    }

    /// Gives every lock back; false if the next plan has no lock to give back at all, also none that was released
    /// before: only then does memory depend on somebody else.
    pub(super) fn revoke_all(&mut self) -> bool {
        let held = std::mem::take(&mut self.held);
        self.released
            .extend(held.into_values().filter_map(|pin| pin.lock));
        !self.released.is_empty()
    }

    fn remove(&mut self, pin: u64) -> bool {
        let Some(removed) = self.held.remove(&pin) else {
            return false;
        };
        self.released.extend(removed.lock);
        true
    }
}

impl Scheduler {
    /// Asks to keep what is cached of a prefix until `expires_s` (seconds of the caller's clock). The answer comes
    /// with the next plan, in [`Scheduler::take_pinned`].
    ///
    /// # Errors
    /// [`RequestError::Overloaded`] at the limit.
    pub fn pin(
        &mut self,
        namespace: Namespace,
        tokens: Arc<[u32]>,
        expires_s: u64,
    ) -> Result<u64, RequestError> {
        let limit = self.limits.max_pins;
        if self.pins.len() >= limit {
            return Err(RequestError::Overloaded {
                what: "pins",
                queued: self.pins.len(),
                limit,
            });
        }
        self.is_dirty = true;
        self.pins.next_pin += 1;
        let pin = self.pins.next_pin;
        self.pins.held.insert(
            pin,
            Pin {
                lock: None,
                expires_s,
            },
        );
        self.pins.demands.push(PinDemand {
            pin,
            namespace,
            tokens,
        });
        Ok(pin)
    }

    /// Gives a pin back; false if it was gone.
    pub fn unpin(&mut self, pin: u64) -> bool {
        self.is_dirty = true;
        self.pins.remove(pin)
    }

    /// Gives the pins back whose time has passed.
    pub fn expire_pins(&mut self, now_s: u64) {
        let held = self.pins.held.iter();
        let expired = held
            .filter(|(_, pin)| pin.expires_s <= now_s)
            .map(|(pin, _)| *pin);
        for pin in expired.collect::<Vec<u64>>() {
            self.unpin(pin);
        }
    }

    /// True if [`expire_pins`](Self::expire_pins) would give one back.
    pub fn has_expired_pins(&self, now_s: u64) -> bool {
        self.pins.held.values().any(|pin| pin.expires_s <= now_s)
    }

    /// Takes the pins that were granted: number, and tokens that are cached and stay.
    pub fn take_pinned(&mut self) -> Vec<(u64, usize)> {
        std::mem::take(&mut self.pins.granted)
    }
}
