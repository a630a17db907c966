//! The Watchdog's work for several units: it moves requests of dead ones to others, and starts the Router again.

use actix::{AsyncContext, Context};

use super::Watchdog;
use super::replica::Replica;
use crate::messages::{ActorDied, UnitDied};
use souffleur_base::ids::UnitId;
use souffleur_state::supervision::blame::Suspicion;

impl Watchdog {
    /// Lets the units that run continue the requests of one that does not. Those that may have caused its death stay.
    pub(super) fn move_requests(&self, unit: UnitId, suspicion: Suspicion) {
        if self.runs_without(unit) {
            self.tell_tokenizer(unit, Some(suspicion));
        }
    }

    /// Lets a unit that has started, and others, continue the requests of those that must be loaded first.
    pub(super) fn take_over_of_unloaded(&self) {
        let is_unloaded = |replica: &Replica| replica.executor.is_none() && !replica.is_retired;
        let units = self.unit_ids().zip(&self.replicas);
        for (unit, _) in units.filter(|(_, replica)| is_unloaded(replica)) {
            self.move_requests(unit, self.supervision.suspicion(unit).clone());
        }
    }

    /// A unit could not be loaded again: the others take its requests, at once or when they run again. The engine ends
    /// if no other one can run.
    pub(super) fn not_rebuilt(&mut self, unit: UnitId, reason: &str, ctx: &mut Context<Self>) {
        let mut units = self.unit_ids().zip(&self.replicas);
        if !units.any(|(other, replica)| other != unit && !replica.is_retired) {
            return self.give_up(reason, ctx);
        }
        tracing::error!(
            unit = unit.index(),
            reason,
            "a replica stays down: the others serve its requests"
        );
        self.supervision.retire(unit);
        self.replica(unit).is_retired = true;
        if let Some(publishers) = &self.blueprint.kv_events {
            publishers.retire(unit);
        }
        self.tell_tokenizer(unit, None);
    }

    fn tell_tokenizer(&self, unit: UnitId, suspicion: Option<Suspicion>) {
        if let Some(tokenizer) = &self.tokenizer {
            tokenizer.tokenizer.do_send(UnitDied { unit, suspicion });
        }
    }

    pub(super) fn retired(&self) -> Vec<UnitId> {
        let units = self.unit_ids().zip(&self.replicas);
        let retired = units.filter(|(_, replica)| replica.is_retired);
        retired.map(|(unit, _)| unit).collect()
    }

    /// Whether another unit runs.
    fn runs_without(&self, unit: UnitId) -> bool {
        let mut units = self.unit_ids().zip(&self.replicas);
        units.any(|(other, replica)| other != unit && replica.unit.is_some())
    }

    /// Starts the Router, if the engine has replicas.
    pub(super) fn start_router(&mut self, ctx: &mut Context<Self>) {
        self.router.start(ctx.address().recipient());
        let router = self.router.status();
        self.status.send_modify(|status| status.router = router);
    }

    /// Starts the Router again. The replicas compute on meanwhile, and requests without a replica wait.
    pub(super) fn router_died(&mut self, died: &ActorDied, ctx: &mut Context<Self>) {
        if !self.router.is_current(died.generation) {
            return;
        }
        self.metrics.died(died.actor);
        let now_s = self.started.elapsed().as_secs_f64();
        if !self.router.may_start_again(now_s) {
            let reason = "the router died too often (--max-restarts): see the log for the causes";
            tracing::error!(cause = &*died.cause, reason, "the engine ends");
            return self.give_up(reason, ctx);
        }
        tracing::error!(
            panicked = died.panicked,
            cause = &*died.cause,
            "the router died: starting it again"
        );
        self.start_router(ctx);
        let Some(tokenizer) = &self.tokenizer else {
            return;
        };
        let mut published = None;
        for (unit, replica) in self.unit_ids().zip(&self.replicas) {
            if let Some(running) = &replica.unit {
                let doors = running.doors(&tokenizer.tokenizer);
                self.router.replica_started(unit, doors.clone());
                published = Some(doors);
            }
        }
        // The Tokenizer tells the Router which requests these replicas have.
        self.router.connect(&tokenizer.tokenizer);
        if let Some(doors) = published {
            self.publish(Some(self.router.doors(doors)));
        }
    }
}
