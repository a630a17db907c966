//! The Watchdog's restarts: stops the actors that are replaced, and starts the next ones.

use std::thread::JoinHandle;
use std::time::Instant;

use actix::{ActorContext, ActorFutureExt, AsyncContext, Context, WrapFuture};
use actix_rt::Arbiter;
use tokio::sync::oneshot;

use super::Watchdog;
use crate::death::StopActor;
use crate::executor::ExecutorThread;
use crate::messages::{ActorDied, CancelAll, HostSettings, Relink, UnitDied};
use crate::status::UnitStatus;
use crate::tokenizer::arbiter::TokenizerArbiter;
use crate::unit::{Survivors, Unit};
use souffleur_base::error::StartError;
use souffleur_base::ids::UnitId;
use souffleur_state::supervision::Incarnation;

impl Watchdog {
    /// Stops the actors of a unit that are replaced, then starts them, unless this is under way.
    pub(super) fn replace(&mut self, unit: UnitId, ctx: &mut Context<Self>) {
        let replica = self.replica(unit);
        if replica.is_busy {
            return;
        }
        replica.is_busy = true;
        let due = std::mem::take(&mut replica.due);
        let running = replica.unit.take();
        let is_dead = |thread: &ExecutorThread| due.executor || !thread.is_alive();
        let executor = replica.executor.take_if(|thread| is_dead(thread));
        self.router.replica_died(unit);
        self.show_replicas();
        let stopped = async move {
            if let Some(running) = running {
                running.stop().await;
            }
            if let Some(executor) = executor {
                join(vec![executor], None).await;
            }
        };
        ctx.spawn(stopped.into_actor(self).map(move |(), watchdog, ctx| {
            watchdog.blueprint.clear_gauges(unit);
            // Results that other units still send to the dead Tokenizer are lost, and are computed again.
            if let Some(number) = watchdog.due_tokenizer.take() {
                watchdog.start_tokenizer(number, ctx);
            }
            watchdog.load(unit, ctx);
        }));
    }

    pub(super) fn start_tokenizer(&mut self, number: u64, ctx: &mut Context<Self>) {
        let me = ctx.address();
        let settings = self.blueprint.tokenizer.clone();
        let watchers = (me.clone().recipient(), me.recipient());
        let tokenizer = TokenizerArbiter::start(
            (
                settings,
                &self.blueprint.model_name,
                self.blueprint.chaos.clone(),
            ),
            number,
            self.estate.take(),
            watchers,
            (
                self.blueprint.beats.tokenizer.clone(),
                self.blueprint.beats.interval(),
            ),
        );
        if let Some(watch) = &self.watch {
            watch.set_tokenizer(tokenizer.tokenizer.clone().recipient());
        }
        self.router.connect(&tokenizer.tokenizer);
        for unit in self.retired() {
            let suspicion = None;
            tokenizer.tokenizer.do_send(UnitDied { unit, suspicion });
        }
        for generate in self.unread.drain(..) {
            tokenizer.tokenizer.do_send(generate);
        }
        if std::mem::take(&mut self.cancels_all) {
            tokenizer.tokenizer.do_send(CancelAll);
        }
        self.tokenizer = Some(tokenizer);
    }

    /// Loads a unit's executor if there is none, then starts the unit.
    pub(super) fn load(&mut self, unit: UnitId, ctx: &mut Context<Self>) {
        if self.replica(unit).executor.is_some() || self.is_over() {
            return self.start_unit(unit, ctx);
        }
        let blueprint = self.blueprint.clone();
        let loading = async move { blueprint.load_executor(unit).await };
        ctx.spawn(
            loading
                .into_actor(self)
                .map(move |loaded, watchdog, ctx| match loaded {
                    Ok(executor) => {
                        let replica = watchdog.replica(unit);
                        replica.failed_attempts = 0;
                        // Reports that came meanwhile are about the thread before.
                        replica.due.executor = false;
                        replica.executor = Some(executor);
                        watchdog.start_unit(unit, ctx);
                    }
                    Err(error) => watchdog.not_loaded(unit, error, ctx),
                }),
        );
    }

    pub(super) fn start_unit(&mut self, unit: UnitId, ctx: &mut Context<Self>) {
        self.replica(unit).is_busy = false;
        if self.is_over() {
            return self.stop_all(ctx);
        }
        if self.replica(unit).due.unit {
            return self.replace(unit, ctx);
        }
        let replica = &self.replicas[unit.index()];
        let (Some(executor), Some(tokenizer)) = (&replica.executor, &self.tokenizer) else {
            return;
        };
        let at = self.supervision.newest(unit);
        let me = ctx.address();
        self.store.start_first(me.clone().recipient());
        let survivors = Survivors {
            died: me.clone().recipient(),
            keeper: me.recipient(),
            tokenizer: &tokenizer.tokenizer,
            executor,
            store: self.store.orders(),
        };
        let settings = HostSettings {
            unit,
            desired: self.supervision.desired.clone(),
            pins: replica.pins.clone(),
        };
        let running = Unit::start(&self.blueprint, at, survivors, settings);
        // A request that is cancelled from here on is known to the new Scheduler, or has its flag raised.
        let doors = running.doors(&tokenizer.tokenizer);
        self.router.replica_started(unit, doors.clone());
        self.publish(Some(self.router.doors(doors)));
        let told = self.store.serve(running.store_links(at.generation));
        let replica = self.replica(unit);
        replica.unit = Some(running);
        let down_since = replica.down_since.take();
        let told = told.into_actor(self);
        ctx.spawn(told.map(move |(), watchdog, _| watchdog.link(at, down_since)));
        let outage = down_since.map(|since| since.elapsed());
        let executor_since = self.supervision.executor_since(unit);
        self.status.send_modify(|status| {
            status.started(at.generation, executor_since);
            status.last_outage = outage.or(status.last_outage);
        });
        self.show_replicas();
        self.report_start(at);
    }

    /// Tells the host that all units have started, or the log that one was started again.
    fn report_start(&mut self, at: Incarnation) {
        let is_whole = self.replicas.iter().all(|replica| replica.unit.is_some());
        if let Some(first) = self.first.take_if(|_| is_whole) {
            // The host may be gone.
            let _ = first.send(Ok(()));
        } else if self.first.is_none() {
            let unit = at.unit.index();
            tracing::warn!(unit, generation = at.generation, "engine restarted");
        }
    }

    /// Makes the Tokenizer send the live requests to the unit, whose Scheduler knows whether the KV store serves.
    pub(super) fn link(&mut self, at: Incarnation, down_since: Option<Instant>) {
        let unit = self.replicas[at.unit.index()].unit.as_ref();
        let (Some(unit), Some(tokenizer)) = (unit, &self.tokenizer) else {
            return;
        };
        // Without an answer, a later generation is about to replace this one.
        if let Some(suspicion) = self.supervision.start(at) {
            tokenizer.tokenizer.do_send(Relink {
                at,
                links: unit.links(),
                suspicion,
                down_since,
            });
            if self.first.is_none() {
                self.take_over_of_unloaded();
            }
        }
    }

    pub(super) fn not_loaded(&mut self, unit: UnitId, error: StartError, ctx: &mut Context<Self>) {
        self.replica(unit).is_busy = false;
        if let Some(first) = self.first.take() {
            let _ = first.send(Err(error));
            self.is_stopping = true;
            self.watch = None;
            return self.stop_all(ctx);
        }
        if self.is_over() {
            return self.stop_all(ctx);
        }
        let replica = self.replica(unit);
        if replica.due.executor {
            // Another unit has lost the device meanwhile, which this load shows too.
            tracing::warn!(%error, "a load of the model was interrupted: trying again");
            return self.replace(unit, ctx);
        }
        replica.failed_attempts += 1;
        let attempts = replica.failed_attempts;
        if error.is_permanent() {
            // The files hold another model than the one that clients know by this name, or the device is lost.
            tracing::error!(%error, "not rebuilding the engine: no attempt can succeed; it stays down");
            let reason = format!("the engine died and will not be rebuilt: {error}");
            return self.not_rebuilt(unit, &reason, ctx);
        }
        let Some(wait) = self.blueprint.rebuild.wait_after(attempts) else {
            tracing::error!(%error, attempts, "failed to rebuild the engine: it stays down until a restart");
            let reason = format!(
                "the engine died and {attempts} attempts to rebuild it failed; the last error: {error}"
            );
            return self.not_rebuilt(unit, &reason, ctx);
        };
        let wait_s = wait.as_secs_f64();
        tracing::error!(%error, attempts, wait_s, "failed to rebuild the engine: trying again");
        let next = ctx.run_later(wait, move |watchdog, ctx| {
            watchdog.replica(unit).next_attempt = None;
            watchdog.replace(unit, ctx);
        });
        let replica = self.replica(unit);
        replica.due.unit = true;
        replica.next_attempt = Some(next);
    }

    /// The unit computes its prefixes until the store serves again.
    pub(super) fn store_died(&mut self, died: &ActorDied, ctx: &mut Context<Self>) {
        if self.is_over() || !self.store.is_current(died.generation) {
            return;
        }
        self.metrics.died(died.actor);
        self.status
            .send_modify(|status| status.has_lost_store = true);
        tracing::error!(
            actor = died.actor,
            panicked = died.panicked,
            cause = &*died.cause,
            "the KV store died: prefixes are cached in memory only until it is started again"
        );
        let stopped = self.store.died(self.started.elapsed().as_secs_f64());
        ctx.spawn(stopped.into_actor(self).map(|may_start, watchdog, ctx| {
            if watchdog.is_over() {
                return;
            }
            if may_start {
                watchdog.store.start_again(ctx.address().recipient());
                watchdog
                    .status
                    .send_modify(|status| status.has_lost_store = false);
                tracing::warn!("KV store started again");
            } else {
                tracing::error!(
                    "the KV store died too often: it stays off, and prefixes are cached in memory only, until a restart"
                );
            }
        }));
    }

    /// Ends all requests, and tells the host why.
    pub(super) fn give_up(&mut self, reason: &str, ctx: &mut Context<Self>) {
        self.failure.send_replace(Some(reason.into()));
        self.blueprint.chaos.end_hangs();
        self.publish(None);
        // The requests end now, even if the rest waits until a load has ended.
        if let Some(tokenizer) = &self.tokenizer {
            tokenizer.tokenizer.do_send(StopActor);
        }
        self.estate = None;
        self.unread.clear();
        self.stop_all(ctx);
    }

    /// Stops all actors, then the watchdog if this was requested.
    pub(super) fn stop_all(&mut self, ctx: &mut Context<Self>) {
        // The last of the restarts that are under way ends here.
        if self.replicas.iter().any(|replica| replica.is_busy) {
            return;
        }
        if let Some(first) = self.first.take() {
            let reason = "the engine was stopped before it had started".to_owned();
            let _ = first.send(Err(StartError::Thread(reason)));
        }
        self.publish(None);
        self.router.stop();
        self.status.send_modify(UnitStatus::stopped);
        let (mut units, mut executors) = (Vec::new(), Vec::new());
        for replica in &mut self.replicas {
            replica.is_busy = true;
            units.extend(replica.unit.take());
            executors.extend(replica.executor.take());
        }
        let (tokenizer, store) = (self.tokenizer.take(), self.store.stop());
        // The sinks in them send the terminal events.
        self.estate = None;
        self.unread.clear();
        let stopped = async move {
            for unit in units {
                unit.stop().await;
            }
            let arbiter = match tokenizer {
                Some(tokenizer) => tokenizer.stop().await,
                None => None,
            };
            // After the unit's last orders; it writes blocks for some seconds.
            store.await;
            join(executors, arbiter).await;
        };
        ctx.spawn(stopped.into_actor(self).map(|(), watchdog, ctx| {
            for replica in &mut watchdog.replicas {
                replica.is_busy = false;
            }
            if watchdog.is_stopping {
                for waiting in watchdog.waiting.drain(..) {
                    // The waiting side may be gone.
                    let _ = waiting.send(());
                }
                ctx.stop();
            }
        }));
    }
}

/// Waits until the executors' threads, and the Tokenizer's Arbiter, have ended.
async fn join(executors: Vec<ExecutorThread>, arbiter: Option<Arbiter>) {
    let (joined, is_joined) = oneshot::channel();
    let threads: Vec<JoinHandle<()>> = executors.into_iter().map(ExecutorThread::end).collect();
    if let Some(arbiter) = &arbiter {
        arbiter.stop();
    }
    let join = move || {
        for thread in threads {
            // If the thread panicked, its note has reported this.
            let _ = thread.join();
        }
        let _ = arbiter.map(Arbiter::join);
        let _ = joined.send(());
    };
    // Without a thread, both end by themselves.
    let _ = std::thread::Builder::new().spawn(join);
    let _ = is_joined.await;
}
