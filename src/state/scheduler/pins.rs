//! Prefixes kept in memory for hosts: bounded, with a time to live, revoked before a request is refused for them.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::error::RequestError;
use crate::state::cache::namespace::Namespace;
use crate::state::plan::{PinDemand, Pinned, Settle};
use crate::state::pool::pages::NodeLock;

use super::Scheduler;
use super::soft_pins::SoftPins;

/// The pins, and the demands and locks that the tree is to get.
#[derive(Debug, Default)]
pub(super) struct Pins {
    /// In order, so that locks go back in one order.
    held: BTreeMap<u64, Pin>,
    soft: SoftPins,
    demands: Vec<PinDemand>,
    released: Vec<Settle>,
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
    /// Those of hosts.
    pub(super) fn len(&self) -> usize {
        self.held.len()
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

    /// Keeps the granted locks, and so many tokens by soft pins; one that was unpinned meanwhile goes straight back. True
    /// if any goes back.
    pub(super) fn granted(&mut self, pinned: Vec<Pinned>, max_soft_tokens: usize) -> bool {
        let before = self.released.len();
        for Pinned { pin, lock, tokens } in pinned {
            let lock = match self.soft.grant(pin, lock, tokens) {
                Ok(()) => continue,
                Err(lock) => lock,
            };
            let is_held = self.held.contains_key(&pin);
            self.granted.push((pin, if is_held { tokens } else { 0 }));
            match self.held.get_mut(&pin) {
                Some(held) => held.lock = Some(lock),
                None => self.released.push(Settle::Unpin(lock)),
            }
        }
        self.yield_until(|soft| soft.tokens() <= max_soft_tokens);
        self.released.len() > before
    }

    /// Gives the oldest soft pins back until this holds, or none is left.
    pub(super) fn yield_until(&mut self, holds: impl Fn(&SoftPins) -> bool) {
        while !holds(&self.soft)
            && let Some(lock) = self.soft.take_oldest()
        {
            self.released.extend(lock.map(Settle::Unpin));
        }
    }

    /// Gives the oldest soft pin back that holds memory; false if there is none.
    pub(super) fn yield_oldest(&mut self) -> bool {
        let before = self.released.len();
        while self.released.len() == before
            && let Some(lock) = self.soft.take_oldest()
        {
            self.released.extend(lock.map(Settle::Unpin));
        }
        self.released.len() > before
    }

    /// Gives every soft pin back; false if there was none.
    pub(super) fn yield_all(&mut self) -> bool {
        let had_some = self.soft.len() > 0;
        self.yield_until(|_| false);
        had_some
    }

    /// Gives the soft pins back, or if there are none, [all others](Self::revoke_all).
    pub(super) fn give_way(&mut self) -> bool {
        self.yield_all() || self.revoke_all()
    }

    pub(super) fn unpin_softly(&mut self, name: u64) -> bool {
        let Some(lock) = self.soft.take(name) else {
            return false;
        };
        self.released.extend(lock.map(Settle::Unpin));
        true
    }

    pub(super) fn ask_softly(
        &mut self,
        name: u64,
        namespace: Namespace,
        tokens: Arc<[u32]>,
        expires_s: u64,
    ) {
        let number = self.demand(namespace, tokens);
        self.soft.insert(number, name, expires_s);
    }

    /// Gives a lock that is no pin's back with the next plan.
    pub(super) fn release(&mut self, lock: NodeLock) {
        self.released.push(Settle::Unlock(lock));
    }

    /// Gives every lock back, those of soft pins too; false if the next plan has no lock to give back at all, also none that was released
    /// before: only then does memory depend on somebody else.
    pub(super) fn revoke_all(&mut self) -> bool {
        self.yield_all();
        let held = std::mem::take(&mut self.held);
        let locks = held.into_values().filter_map(|pin| pin.lock);
        self.released.extend(locks.map(Settle::Unpin));
        !self.released.is_empty()
    }

    fn ask(&mut self, namespace: Namespace, tokens: Arc<[u32]>, expires_s: u64) -> u64 {
        let pin = self.demand(namespace, tokens);
        let lock = None;
        self.held.insert(pin, Pin { lock, expires_s });
        pin
    }

    fn demand(&mut self, namespace: Namespace, tokens: Arc<[u32]>) -> u64 {
        self.next_pin += 1;
        let pin = self.next_pin;
        self.demands.push(PinDemand {
            pin,
            namespace,
            tokens,
        });
        pin
    }

    /// The pins whose time has passed.
    fn expired(&self, now_s: u64) -> impl Iterator<Item = u64> + '_ {
        let held = self.held.iter();
        held.filter(move |(_, pin)| pin.expires_s <= now_s)
            .map(|(pin, _)| *pin)
    }

    fn remove(&mut self, pin: u64) -> bool {
        let Some(removed) = self.held.remove(&pin) else {
            return false;
        };
        self.released.extend(removed.lock.map(Settle::Unpin));
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
        let (queued, limit) = (self.hosts.pins().len(), self.limits.max_pins);
        if queued >= limit {
            return Err(RequestError::Overloaded {
                what: "pins",
                queued,
                limit,
            });
        }
        self.pipeline.note_change();
        Ok(self.hosts.pins_mut().ask(namespace, tokens, expires_s))
    }

    /// Gives a pin back; false if it was gone.
    pub fn unpin(&mut self, pin: u64) -> bool {
        self.pipeline.note_change();
        self.hosts.pins_mut().remove(pin)
    }

    /// Gives the pins back whose time has passed.
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

    /// True if [`expire_pins`](Self::expire_pins) would give one back.
    pub fn has_expired_pins(&self, now_s: u64) -> bool {
        let pins = self.hosts.pins();
        pins.expired(now_s).next().is_some() || pins.soft.expired(now_s).next().is_some()
    }

    /// Takes the pins that were granted: number, and tokens that are cached and stay.
    pub fn take_pinned(&mut self) -> Vec<(u64, usize)> {
        std::mem::take(&mut self.hosts.pins_mut().granted)
    }
}
