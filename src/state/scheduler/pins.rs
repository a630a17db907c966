//! Prefixes pinned by hosts: limited in number and time, and revoked before a request is refused for lack of memory.
//!
//! A pin outlives the cached prefix: after a lost step, or in the next generation of the unit, the tree is empty, and
//! the prefix is pinned again when a request has computed it.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::cache::namespace::Namespace;
use crate::plan::{PinDemand, Pinned, Settle};
use crate::pool::pages::NodeLock;
use souffleur_base::error::RequestError;

use super::Scheduler;
use super::soft_pins::SoftPins;

#[derive(Debug, Default)]
pub(super) struct Pins {
    /// Ordered, so that locks are released in a deterministic order.
    pins: BTreeMap<u64, Pin>,
    soft: SoftPins,
    demands: Vec<PinDemand>,
    released: Vec<Settle>,
    granted: Vec<(u64, usize)>,
    /// The number of the last pin.
    last_pin: u64,
    /// Changes of the granted pins.
    changes: u64,
}

/// A pin of a host, as the next generation of the unit needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldPin {
    pub pin: u64,
    pub namespace: Namespace,
    /// The part of the prefix that was cached when the host pinned it.
    pub tokens: Arc<[u32]>,
    pub expires_s: u64,
}

#[derive(Debug)]
struct Pin {
    namespace: Namespace,
    /// The prefix; from the first grant on, the part of it that was cached then.
    tokens: Arc<[u32]>,
    was_granted: bool,
    lock: Option<NodeLock>,
    /// Tokens that the lock keeps in the cache.
    held_tokens: usize,
    expires_s: u64,
}

impl Pin {
    /// True if tokens that were pinned are not locked: the tree was flushed since.
    fn is_owed(&self) -> bool {
        self.was_granted && self.held_tokens < self.tokens.len()
    }

    /// Takes a lock of the tree. Returns the one to release: the earlier one, or this one if it keeps no more tokens.
    fn hold(&mut self, lock: NodeLock, tokens: usize) -> Option<NodeLock> {
        if self.lock.is_some() && tokens <= self.held_tokens {
            return Some(lock);
        }
        self.held_tokens = tokens;
        self.lock.replace(lock)
    }
}

impl Pins {
    /// Number of pins, without soft ones.
    pub(super) fn len(&self) -> usize {
        self.pins.len()
    }

    /// The granted locks, without those of soft pins.
    pub(super) fn locks(&self) -> impl Iterator<Item = &NodeLock> {
        self.pins.values().filter_map(|pin| pin.lock.as_ref())
    }

    pub(super) fn soft(&self) -> &SoftPins {
        &self.soft
    }

    pub(super) fn take_demands(&mut self) -> Vec<PinDemand> {
        std::mem::take(&mut self.demands)
    }

    pub(super) fn has_demands(&self) -> bool {
        !self.demands.is_empty()
    }

    pub(super) fn take_released(&mut self) -> impl Iterator<Item = Settle> + use<> {
        std::mem::take(&mut self.released).into_iter()
    }

    /// Keeps granted locks (soft pins up to `max_soft_tokens`) and releases those of removed pins. Returns true if it
    /// released a lock.
    pub(super) fn keep_granted(&mut self, pinned: Vec<Pinned>, max_soft_tokens: usize) -> bool {
        let before = self.released.len();
        for Pinned { pin, lock, tokens } in pinned {
            let lock = match self.soft.grant(pin, lock, tokens) {
                Ok(()) => continue,
                Err(lock) => lock,
            };
            let Some(held) = self.pins.get_mut(&pin) else {
                self.granted.push((pin, 0));
                self.released.push(Settle::Unpin(lock));
                continue;
            };
            if !std::mem::replace(&mut held.was_granted, true) {
                self.granted.push((pin, tokens));
                self.changes += 1;
                if tokens < held.tokens.len() {
                    held.tokens = Arc::from(&held.tokens[..tokens]);
                }
            }
            self.released
                .extend(held.hold(lock, tokens).map(Settle::Unpin));
        }
        self.release_soft_until(|soft| soft.tokens() <= max_soft_tokens);
        self.released.len() > before
    }

    /// Releases the oldest soft pins until `holds` is true or none is left.
    pub(super) fn release_soft_until(&mut self, holds: impl Fn(&SoftPins) -> bool) {
        while !holds(&self.soft)
            && let Some(lock) = self.soft.take_oldest()
        {
            self.released.extend(lock.map(Settle::Unpin));
        }
    }

    /// Releases the oldest soft pin that holds memory; false if there is none.
    pub(super) fn release_oldest_soft(&mut self) -> bool {
        let before = self.released.len();
        while self.released.len() == before
            && let Some(lock) = self.soft.take_oldest()
        {
            self.released.extend(lock.map(Settle::Unpin));
        }
        self.released.len() > before
    }

    /// Releases all soft pins; false if there was none.
    pub(super) fn release_all_soft(&mut self) -> bool {
        let had_some = self.soft.len() > 0;
        self.release_soft_until(|_| false);
        had_some
    }

    /// Releases all soft pins, or if there are none, [all others](Self::revoke_all).
    pub(super) fn release_soft_or_all(&mut self) -> bool {
        self.release_all_soft() || self.revoke_all()
    }

    pub(super) fn unpin_softly(&mut self, name: u64) -> bool {
        let Some(lock) = self.soft.take(name) else {
            return false;
        };
        self.released.extend(lock.map(Settle::Unpin));
        true
    }

    pub(super) fn request_soft(
        &mut self,
        name: u64,
        namespace: Namespace,
        tokens: Arc<[u32]>,
        expires_s: u64,
    ) {
        let number = self.demand(namespace, tokens);
        self.soft.insert(number, name, expires_s);
    }

    /// Releases, with the next plan, a lock that belongs to no pin.
    pub(super) fn release(&mut self, lock: NodeLock) {
        self.released.push(Settle::Unlock(lock));
    }

    /// Ends all pins, also soft ones, and releases their locks; owed ones without memory stay. Returns true if the next
    /// plan has a lock to release, from this call or an earlier one; false means that pins hold no memory.
    pub(super) fn revoke_all(&mut self) -> bool {
        self.release_all_soft();
        let pins = std::mem::take(&mut self.pins).into_iter();
        let (kept, revoked): (BTreeMap<_, _>, BTreeMap<_, _>) =
            pins.partition(|(_, pin)| pin.is_owed() && pin.held_tokens == 0);
        self.pins = kept;
        self.changes += revoked.len() as u64;
        let locks = revoked.into_values().filter_map(|pin| pin.lock);
        self.released.extend(locks.map(Settle::Unpin));
        !self.released.is_empty()
    }

    /// Releases every lock before the tree is flushed. Soft pins end; the others are owed.
    pub(super) fn lose_all(&mut self) {
        self.release_all_soft();
        for pin in self.pins.values_mut() {
            pin.held_tokens = 0;
            self.released.extend(pin.lock.take().map(Settle::Unpin));
        }
    }

    /// True if the prefix of a pin is to be pinned again.
    pub(super) fn are_owed(&self) -> bool {
        self.pins.values().any(Pin::is_owed)
    }

    /// Demands the prefixes that are to be pinned again, which a settlement may have published.
    pub(super) fn demand_owed(&mut self) {
        for (&pin, owed) in self.pins.iter().filter(|(_, pin)| pin.is_owed()) {
            if self.demands.iter().all(|demand| demand.pin != pin) {
                self.demands.push(PinDemand {
                    pin,
                    namespace: owed.namespace.clone(),
                    tokens: owed.tokens.clone(),
                });
            }
        }
    }

    /// Later pins have larger numbers than `number`.
    pub(super) fn number_after(&mut self, number: u64) {
        self.last_pin = self.last_pin.max(number);
    }

    fn restore(&mut self, held: HeldPin) {
        self.number_after(held.pin);
        self.changes += 1;
        self.pins.entry(held.pin).or_insert(Pin {
            namespace: held.namespace,
            tokens: held.tokens,
            was_granted: true,
            lock: None,
            held_tokens: 0,
            expires_s: held.expires_s,
        });
    }

    fn request(&mut self, namespace: Namespace, tokens: Arc<[u32]>, expires_s: u64) -> u64 {
        let number = self.demand(namespace.clone(), tokens.clone());
        let pin = Pin {
            namespace,
            tokens,
            was_granted: false,
            lock: None,
            held_tokens: 0,
            expires_s,
        };
        self.pins.insert(number, pin);
        number
    }

    fn demand(&mut self, namespace: Namespace, tokens: Arc<[u32]>) -> u64 {
        self.last_pin += 1;
        let pin = self.last_pin;
        self.demands.push(PinDemand {
            pin,
            namespace,
            tokens,
        });
        pin
    }

    fn expired(&self, now_s: u64) -> impl Iterator<Item = u64> + '_ {
        let pins = self.pins.iter();
        pins.filter(move |(_, pin)| pin.expires_s <= now_s)
            .map(|(pin, _)| *pin)
    }

    fn remove(&mut self, pin: u64) -> bool {
        let Some(removed) = self.pins.remove(&pin) else {
            return false;
        };
        self.changes += 1;
        self.released.extend(removed.lock.map(Settle::Unpin));
        true
    }
}

impl Scheduler {
    /// Requests to pin the cached part of a prefix until `expires_s` (seconds of the caller's clock).
    /// [`Scheduler::take_pinned`] returns the outcome after the next plan.
    ///
    /// # Errors
    /// [`RequestError::Overloaded`] at the limit.
    pub fn pin(
        &mut self,
        namespace: Namespace,
        tokens: Arc<[u32]>,
        expires_s: u64,
    ) -> Result<u64, RequestError> {
        let (queued, limit) = (self.hosts.pins().len(), self.limits.max_pins);
        if queued >= limit {
            return Err(RequestError::Overloaded {
                what: "pins",
                queued,
                limit,
            });
        }
        self.pipeline.note_change();
        Ok(self.hosts.pins_mut().request(namespace, tokens, expires_s))
    }

    /// Takes over a pin of an earlier generation, whose prefix is pinned again when it is cached. Ignores it at the
    /// limit of pins.
    pub fn restore_pin(&mut self, held: HeldPin) {
        if self.hosts.pins().len() < self.limits.max_pins {
            self.hosts.pins_mut().restore(held);
        }
    }

    /// The granted pins, without soft ones.
    pub fn held_pins(&self) -> Vec<HeldPin> {
        let pins = self.hosts.pins().pins.iter();
        let granted = pins.filter(|(_, pin)| pin.was_granted);
        let held = granted.map(|(&number, pin)| HeldPin {
            pin: number,
            namespace: pin.namespace.clone(),
            tokens: pin.tokens.clone(),
            expires_s: pin.expires_s,
        });
        held.collect()
    }

    /// A number that increases when [`Scheduler::held_pins`] changes.
    pub fn pin_changes(&self) -> u64 {
        self.hosts.pins().changes
    }

    /// Releases a pin; false if it does not exist.
    pub fn unpin(&mut self, pin: u64) -> bool {
        self.pipeline.note_change();
        self.hosts.pins_mut().remove(pin)
    }

    pub fn expire_pins(&mut self, now_s: u64) {
        let expired: Vec<u64> = self.hosts.pins().expired(now_s).collect();
        for pin in expired {
            self.unpin(pin);
        }
        let expired: Vec<u64> = self.hosts.pins().soft.expired(now_s).collect();
        for name in expired {
            self.unpin_softly(name);
        }
    }

    pub fn has_expired_pins(&self, now_s: u64) -> bool {
        let pins = self.hosts.pins();
        pins.expired(now_s).next().is_some() || pins.soft.expired(now_s).next().is_some()
    }

    /// Takes the granted pins: number, and pinned tokens.
    pub fn take_pinned(&mut self) -> Vec<(u64, usize)> {
        std::mem::take(&mut self.hosts.pins_mut().granted)
    }
}
