//! The Watchdog's hold of the KvStore: starts it, connects it to each unit, and starts it again after a death.

use std::sync::Arc;
use std::time::Duration;

use actix::{Actor, Addr, Recipient};

use super::{KvStore, StoreSetup};
use crate::death::{Obituary, StopActor};
use crate::mailbox::Mailbox;
use crate::messages::{ActorDied, ServeUnit, StoreNews, StoreOrders, UseStore};
use crate::rebuild::RebuildRules;
use souffleur_chaos::Chaos;
use souffleur_state::supervision::{Intensity, Restarts};
use souffleur_store::Buffers;

/// The KvStore, if the engine has one. It stops when this is dropped.
pub struct StoreKeeper {
    setup: Option<Arc<StoreSetup>>,
    chaos: Chaos,
    /// The buffers of all stores; `None` before the first, and if they do not fit into the memory limit.
    buffers: Option<Buffers>,
    backoff: RebuildRules,
    allowed: Intensity,
    restarts: Restarts,
    /// The number of the store that was started last; 0 before the first.
    number: u64,
    /// `None` before the start, and while a store that has died is not started again.
    running: Option<Addr<KvStore>>,
    unit: Option<StoreLinks>,
}

/// The addresses that connect the KvStore and the Scheduler of a unit.
pub struct StoreLinks {
    pub generation: u64,
    pub news: Mailbox<StoreNews>,
    pub use_store: Recipient<UseStore>,
}

impl StoreLinks {
    fn serve_unit(&self) -> ServeUnit {
        ServeUnit {
            generation: self.generation,
            news: self.news.clone(),
        }
    }
}

impl StoreKeeper {
    /// `backoff` has the waits between starts, `allowed` their number.
    pub fn new(
        (setup, chaos): (Option<Arc<StoreSetup>>, Chaos),
        backoff: RebuildRules,
        allowed: Intensity,
    ) -> Self {
        Self {
            setup,
            chaos,
            buffers: None,
            backoff: RebuildRules {
                attempts: usize::MAX,
                ..backoff
            },
            allowed,
            restarts: Restarts::default(),
            number: 0,
            running: None,
            unit: None,
        }
    }

    /// Starts the first store, on the Arbiter of the caller. It is not started before the executor was loaded: the
    /// store then checks that the model's files are still those that were loaded.
    pub fn start_first(&mut self, died: Recipient<ActorDied>) {
        if self.number == 0 {
            self.start(died);
        }
    }

    /// Starts another store, unless one runs, and connects it to the unit.
    pub fn start_again(&mut self, died: Recipient<ActorDied>) {
        if self.running.is_some() {
            return;
        }
        self.start(died);
        if let (Some(unit), Some(store), Some(orders)) = (&self.unit, &self.running, self.orders())
        {
            store.do_send(unit.serve_unit());
            unit.use_store.do_send(UseStore(orders));
        }
    }

    /// The mailbox for a Scheduler's orders; `None` while no store runs.
    pub fn orders(&self) -> Option<Mailbox<StoreOrders>> {
        let running = self.running.as_ref();
        running.map(|store| Mailbox::of(store, "kv_store", "StoreOrders"))
    }

    /// Connects the store to a unit that was started with its mailbox. Stores that are started later serve it, too.
    /// Returns when the store has told the unit's Scheduler whether it serves.
    pub fn serve(&mut self, unit: StoreLinks) -> impl Future<Output = ()> + use<> {
        let running = self.running.as_ref();
        let told = running.map(|store| store.send(unit.serve_unit()));
        self.unit = Some(unit);
        async move {
            if let Some(told) = told {
                // A store that has died serves no more.
                let _ = told.await;
            }
        }
    }

    /// Whether the store that runs has this number. Reports of others are late.
    pub fn is_current(&self, number: u64) -> bool {
        self.running.is_some() && self.number == number
    }

    /// Stops the store, one of whose members has died. Returns when the next one may be started; false if it died too
    /// often.
    pub fn died(&mut self, now_s: f64) -> impl Future<Output = bool> + use<> {
        let wait = self.wait_after_death(now_s);
        let stopped = self.stop();
        async move {
            stopped.await;
            let Some(wait) = wait else {
                return false;
            };
            tokio::time::sleep(wait).await;
            true
        }
    }

    /// The wait before the next start; `None` if there were too many deaths. The first restart of a period is made at
    /// once.
    fn wait_after_death(&mut self, now_s: f64) -> Option<Duration> {
        if !self.restarts.note(self.allowed, now_s) {
            return None;
        }
        match self.allowed.limit - self.restarts.left(self.allowed) {
            0 | 1 => Some(Duration::ZERO),
            restarts => self.backoff.wait_after(restarts - 1),
        }
    }

    /// Stops the store after all orders that were sent to it before. A store that has died has stopped, too.
    pub fn stop(&mut self) -> impl Future<Output = ()> + use<> {
        let running = self.running.take();
        async move {
            if let Some(store) = running {
                let _ = store.send(StopActor).await;
            }
        }
    }

    fn start(&mut self, died: Recipient<ActorDied>) {
        let Some(setup) = &self.setup else {
            return;
        };
        self.number += 1;
        let obituary = |who| Obituary::new(who, self.number, died.clone());
        if self.buffers.is_none() {
            // The store reports an error.
            self.buffers = Buffers::new(&setup.geometry, setup.config.host_bytes).ok();
        }
        let store = KvStore::new(setup.clone(), self.buffers.clone());
        let store = store.with_chaos(self.chaos.clone());
        let store = store.supervised(obituary("kv_store"), obituary("kv_store_thread"));
        self.running = Some(store.start());
    }
}

impl Drop for StoreKeeper {
    fn drop(&mut self) {
        if let Some(store) = &self.running {
            store.do_send(StopActor);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_dies_too_often_stays_off() {
        let backoff = RebuildRules {
            attempts: 1,
            first_wait: Duration::from_secs(1),
            longest_wait: Duration::from_secs(4),
        };
        let allowed = Intensity {
            limit: 5,
            period_s: 60.0,
        };
        let mut keeper = StoreKeeper::new((None, Chaos::default()), backoff, allowed);
        let mut waits = |times_s: &[f64]| -> Vec<Option<u64>> {
            let waits = times_s.iter().map(|now_s| keeper.wait_after_death(*now_s));
            waits.map(|wait| wait.map(|wait| wait.as_secs())).collect()
        };
        assert_eq!(waits(&[0.0, 100.0]), [Some(0), Some(0)]);
        let five = [101.0, 102.0, 103.0, 104.0];
        assert_eq!(waits(&five), [Some(1), Some(2), Some(4), Some(4)]);
        assert_eq!(waits(&[105.0]), [None]);
    }
}
