//! The Watchdog's hold of the Router: starts it, tells it of the replicas and the Tokenizer, and starts it again.

use actix::{Actor, Addr, Recipient};

use super::{ROUTER, Router, RouterSetup};
use crate::death::{Obituary, StopActor};
use crate::doors::Doors;
use crate::mailbox::Mailbox;
use crate::messages::{
    ActorDied, ReplicaDied, ReplicaStarted, RouterLinks, RouterStarted, TokenizerStarted,
};
use crate::status::MemberStatus;
use crate::tokenizer::Tokenizer;
use souffleur_base::ids::UnitId;
use souffleur_chaos::Chaos;
use souffleur_state::supervision::{Intensity, Restarts};

/// The Router, if the engine has replicas. It stops when this is dropped.
pub struct RouterKeeper {
    /// Without several replicas, there is no Router.
    setup: RouterSetup,
    chaos: Chaos,
    allowed: Intensity,
    restarts: Restarts,
    /// The number of the Router that was started last; 0 before the first.
    number: u64,
    running: Option<Addr<Router>>,
}

impl RouterKeeper {
    /// `allowed` has the number of starts after deaths.
    pub fn new(setup: RouterSetup, allowed: Intensity, chaos: Chaos) -> Self {
        Self {
            setup,
            chaos,
            allowed,
            restarts: Restarts::default(),
            number: 0,
            running: None,
        }
    }

    /// Starts a Router on the Arbiter of the caller, if the engine has replicas.
    pub fn start(&mut self, died: Recipient<ActorDied>) {
        if self.setup.replicas < 2 {
            return;
        }
        self.number += 1;
        let obituary = Obituary::new(ROUTER, self.number, died);
        let router = Router::new(self.setup, self.number, obituary, self.chaos.clone());
        self.running = Some(router.start());
    }

    /// Whether the Router that runs has this number. Reports of others are late.
    pub fn is_current(&self, number: u64) -> bool {
        self.running.is_some() && self.number == number
    }

    /// Takes note of a death. False if there were too many, so that no Router is started again.
    pub fn may_start_again(&mut self, now_s: f64) -> bool {
        self.running = None;
        self.restarts.note(self.allowed, now_s)
    }

    /// Connects the Router and a Tokenizer of which one has been started.
    pub fn connect(&self, tokenizer: &Addr<Tokenizer>) {
        let Some(router) = &self.running else {
            return;
        };
        router.do_send(TokenizerStarted(Mailbox::of(
            tokenizer,
            "tokenizer",
            "Routed",
        )));
        let links = RouterLinks {
            route: Mailbox::of(router, ROUTER, "RouteRequest"),
            news: Mailbox::of(router, ROUTER, "RouteNews"),
            adopt: Mailbox::of(router, ROUTER, "AdoptRequests"),
        };
        tokenizer.do_send(RouterStarted {
            number: self.number,
            links,
        });
    }

    pub fn replica_started(&self, unit: UnitId, doors: Doors) {
        if let Some(router) = &self.running {
            let doors = Box::new(doors);
            router.do_send(ReplicaStarted { unit, doors });
        }
    }

    pub fn replica_died(&self, unit: UnitId) {
        if let Some(router) = &self.running {
            router.do_send(ReplicaDied(unit));
        }
    }

    /// The addresses for hosts, where `doors` are those of a replica: the Router's, if there is one.
    pub fn doors(&self, doors: Doors) -> Doors {
        let Some(router) = &self.running else {
            return doors;
        };
        Doors {
            peek: router.clone().recipient(),
            pin: router.clone().recipient(),
            unpin: router.clone().recipient(),
            pin_softly: router.clone().recipient(),
            unpin_softly: router.clone().recipient(),
            set_policy: router.clone().recipient(),
            flush: router.clone().recipient(),
            pause: router.clone().recipient(),
            stats: router.clone().recipient(),
            load: router.clone().recipient(),
            loads: Some(router.clone().recipient()),
            view: router.clone().recipient(),
            tree_notes: router.clone().recipient(),
            locks: router.clone().recipient(),
            ..doors
        }
    }

    /// The number of the Router, and whether it runs; `None` if the engine has no replicas.
    pub fn status(&self) -> Option<MemberStatus> {
        (self.setup.replicas > 1).then_some(MemberStatus {
            generation: self.number,
            is_up: self.running.is_some(),
        })
    }

    pub fn stop(&mut self) {
        if let Some(router) = self.running.take() {
            router.do_send(StopActor);
        }
    }
}

impl Drop for RouterKeeper {
    fn drop(&mut self) {
        self.stop();
    }
}
