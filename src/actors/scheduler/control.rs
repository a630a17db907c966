//! The Scheduler's handlers of host commands: pins, policies, flushes, pauses. A rebuild restores all but flushes and
//! soft pins.

use actix::{Context, Handler, Recipient, ResponseFuture};
use tokio::sync::oneshot;

use super::Scheduler;
use crate::messages::{
    FlushCache, HostPins, HostSettings, PinPrefix, PinSoftly, PoliciesSet, PrefixPinned, SetPaused,
    SetPolicy, UnpinPrefix, UnpinSoftly,
};
use souffleur_base::error::RequestError;
use souffleur_state::scheduler::CacheFlushed;
use souffleur_state::supervision::Desired;

impl Scheduler {
    /// Restores the settings that hosts made before, and reports every later change to `keeper`.
    pub fn with_settings(mut self, set: HostSettings, keeper: Recipient<HostSettings>) -> Self {
        let HostSettings {
            unit: _,
            desired: set,
            pins,
        } = set;
        // An earlier unit with the same cache accepted these names.
        let log_failure = |what: &str, outcome: Result<(), String>| {
            if let Err(reason) = outcome {
                tracing::error!(
                    what,
                    reason,
                    "failed to restore a policy after the engine was rebuilt: using the configured one"
                );
            }
        };
        if let Some(name) = &set.schedule_policy {
            log_failure("schedule_policy", self.state.set_policy(name));
        }
        if let Some(name) = &set.radix_eviction_policy {
            log_failure(
                "radix_eviction_policy",
                self.state.set_eviction_policy(name),
            );
        }
        if set.paused {
            self.state.set_paused(true);
        }
        let pins = pins.by_clock(self.started).held;
        if set != Desired::default() || !pins.is_empty() {
            tracing::info!(
                pins = pins.len(),
                paused = set.paused,
                schedule = set.schedule_policy,
                eviction = set.radix_eviction_policy,
                "settings restored after the engine was rebuilt"
            );
        }
        for pin in pins {
            self.state.restore_pin(pin);
        }
        self.reported_pins = self.state.pin_changes();
        self.settings = set;
        self.keeper = Some(keeper);
        self
    }

    fn report_settings(&self) {
        if let Some(keeper) = &self.keeper {
            keeper.do_send(HostSettings {
                unit: self.at.unit,
                desired: self.settings.clone(),
                pins: HostPins {
                    held: self.state.held_pins(),
                    since: self.started,
                },
            });
        }
    }

    /// Reports the pins if they have changed.
    pub(super) fn report_pins(&mut self) {
        let changes = self.state.pin_changes();
        if std::mem::replace(&mut self.reported_pins, changes) != changes {
            self.report_settings();
        }
    }
}

impl Handler<PinPrefix> for Scheduler {
    type Result = ResponseFuture<Result<PrefixPinned, RequestError>>;

    fn handle(&mut self, pin: PinPrefix, _: &mut Context<Self>) -> Self::Result {
        let expires_s = self.started.elapsed().as_secs() + u64::from(pin.ttl_s);
        let pin = match self.state.pin(pin.namespace, pin.tokens, expires_s) {
            Ok(pin) => pin,
            Err(error) => return Box::pin(async move { Err(error) }),
        };
        let (reply, granted) = oneshot::channel();
        self.pending_pins.insert(pin, reply);
        self.drive();
        Box::pin(async move {
            let stopped = |_| {
                RequestError::EngineDown(
                    "it is being rebuilt or has stopped: try again later".to_owned(),
                )
            };
            granted
                .await
                .map(|tokens| PrefixPinned { pin, tokens })
                .map_err(stopped)
        })
    }
}

impl Handler<UnpinPrefix> for Scheduler {
    type Result = bool;

    fn handle(&mut self, unpin: UnpinPrefix, _: &mut Context<Self>) -> bool {
        let was_held = self.state.unpin(unpin.pin);
        self.drive();
        was_held
    }
}

impl Handler<PinSoftly> for Scheduler {
    type Result = ();

    fn handle(&mut self, pin: PinSoftly, _: &mut Context<Self>) {
        let PinSoftly {
            name,
            replaces,
            namespace,
            tokens,
            ttl_s,
        } = pin;
        let expires_s = self.started.elapsed().as_secs() + u64::from(ttl_s);
        self.state
            .pin_softly(name, replaces, namespace, tokens, expires_s);
        self.drive();
    }
}

impl Handler<UnpinSoftly> for Scheduler {
    type Result = ();

    fn handle(&mut self, unpin: UnpinSoftly, _: &mut Context<Self>) {
        self.state.unpin_softly(unpin.name);
        self.drive();
    }
}

impl Handler<SetPolicy> for Scheduler {
    type Result = Result<PoliciesSet, RequestError>;

    fn handle(&mut self, set: SetPolicy, _: &mut Context<Self>) -> Self::Result {
        let SetPolicy {
            schedule_policy,
            radix_eviction_policy,
        } = set;
        let present = self.state.stats().schedule_policy;
        let invalid = |key: &str, reason: String| RequestError::Invalid(format!("{key} {reason}"));
        if let Some(name) = &schedule_policy {
            let set = self.state.set_policy(name);
            set.map_err(|reason| invalid("schedule_policy", reason))?;
        }
        if let Some(name) = &radix_eviction_policy
            && let Err(reason) = self.state.set_eviction_policy(name)
        {
            // Restores the schedule policy: either both policies change or neither does.
            let _ = self.state.set_policy(present);
            return Err(invalid("radix_eviction_policy", reason));
        }
        self.settings.schedule_policy = schedule_policy.or(self.settings.schedule_policy.take());
        self.settings.radix_eviction_policy =
            radix_eviction_policy.or(self.settings.radix_eviction_policy.take());
        self.report_settings();
        self.drive();
        let stats = self.state.stats();
        tracing::info!(
            schedule = stats.schedule_policy,
            eviction = stats.radix_eviction_policy,
            "policies set"
        );
        Ok(PoliciesSet {
            schedule_policy: stats.schedule_policy,
            radix_eviction_policy: stats.radix_eviction_policy,
        })
    }
}

impl Handler<FlushCache> for Scheduler {
    type Result = ResponseFuture<Result<CacheFlushed, RequestError>>;

    fn handle(&mut self, _: FlushCache, _: &mut Context<Self>) -> Self::Result {
        let number = match self.state.flush_cache() {
            Ok(number) => number,
            Err(error) => return Box::pin(async move { Err(error) }),
        };
        let (reply, flushed) = oneshot::channel();
        self.pending_flushes.push((number, reply));
        self.drive();
        Box::pin(async move {
            let stopped = |_| {
                RequestError::EngineDown(
                    "it is being rebuilt or has stopped: try again later".to_owned(),
                )
            };
            let flushed = flushed.await.map_err(stopped)?;
            tracing::info!(
                tokens = flushed.flushed_tokens,
                kept_tokens = flushed.kept_tokens,
                "cache flushed"
            );
            Ok(flushed)
        })
    }
}

impl Handler<SetPaused> for Scheduler {
    type Result = ();

    fn handle(&mut self, set: SetPaused, _: &mut Context<Self>) {
        let SetPaused { paused } = set;
        self.state.set_paused(paused);
        self.settings.paused = paused;
        self.report_settings();
        self.drive();
        let change = if paused { "paused" } else { "resumed" };
        tracing::info!(paused, "token generation {change}");
    }
}
