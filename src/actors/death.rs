//! Drop guards that report the death of an actor to the Watchdog, and the message for an orderly stop.

use std::sync::Arc;

use actix::{Actor, ActorContext, Context, Message, Recipient};

use crate::messages::ActorDied;
use crate::panics::{self, Cause};
use souffleur_base::ids::UnitId;
use souffleur_base::in_hand;
use souffleur_executor::DeviceLost;
use souffleur_state::pool::pages::PoolLedger;
use souffleur_state::supervision::Incarnation;

/// Unit -> each of its actors: stop, and report no death.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub struct StopActor;

/// Reports the death of one actor or thread to the Watchdog when dropped without being disarmed.
pub struct Obituary {
    actor: &'static str,
    /// `None` for an actor or thread that serves all units.
    unit: Option<UnitId>,
    generation: u64,
    to: Option<Recipient<ActorDied>>,
}

impl Obituary {
    pub fn new(actor: &'static str, generation: u64, to: Recipient<ActorDied>) -> Self {
        Self {
            actor,
            unit: None,
            generation,
            to: Some(to),
        }
    }

    /// The obituary of a member of this unit.
    pub fn of_unit(mut self, unit: UnitId) -> Self {
        self.unit = Some(unit);
        self
    }

    pub fn disarm(&mut self) {
        self.to = None;
    }

    /// True if the death would be reported: the actor was not told to stop.
    pub fn is_armed(&self) -> bool {
        self.to.is_some()
    }

    /// Reports the death now, on behalf of a thread that has ended or has caught its panic.
    pub fn report(&mut self, panicked: bool) {
        if let Some(to) = self.to.take() {
            to.do_send(self.death(panicked, panics::take_cause(panicked)));
        }
    }

    /// As [`Obituary::report`], after the loss of the device: the cause is its error, with a panic that came before.
    pub fn report_loss(&mut self, error: &DeviceLost) {
        if let Some(to) = self.to.take() {
            let panic = panics::take_cause(true).text;
            let cause = if panic.is_empty() {
                error.to_string()
            } else {
                format!("{error} (panic: {panic})")
            };
            to.do_send(self.death(true, Cause::of(cause)));
        }
    }

    fn death(&self, panicked: bool, cause: Cause) -> ActorDied {
        ActorDied {
            actor: self.actor,
            unit: self.unit,
            generation: self.generation,
            panicked,
            cause: cause.text,
            place: cause.place,
            in_hand: in_hand::take().filter(|_| panicked),
        }
    }
}

impl Drop for Obituary {
    fn drop(&mut self) {
        self.report(std::thread::panicking());
    }
}

/// The [`Obituary`] of an actor or thread whose death ends the whole unit.
///
/// It also closes the pool's ledger: memory that is dropped with the actor is lost with the whole unit, not leaked. In
/// the Scheduler the note is the first field, so that it is dropped before the `Pages` and locks.
pub struct DeathNote {
    obituary: Obituary,
    ledger: Arc<PoolLedger>,
}

impl DeathNote {
    pub fn new(
        actor: &'static str,
        at: Incarnation,
        to: Recipient<ActorDied>,
        ledger: Arc<PoolLedger>,
    ) -> Self {
        Self {
            obituary: Obituary::new(actor, at.generation, to).of_unit(at.unit),
            ledger,
        }
    }

    /// A note without a Watchdog, for actors that a host program or a test starts.
    pub fn unread(actor: &'static str, ledger: Arc<PoolLedger>) -> Self {
        let obituary = Obituary {
            actor,
            unit: None,
            generation: 0,
            to: None,
        };
        Self { obituary, ledger }
    }

    pub fn disarm(&mut self) {
        self.obituary.disarm();
    }

    /// As [`Obituary::report`].
    pub fn report(&mut self, panicked: bool) {
        self.ledger.close();
        self.obituary.report(panicked);
    }

    /// As [`Obituary::report_loss`].
    pub fn report_loss(&mut self, error: &DeviceLost) {
        self.ledger.close();
        self.obituary.report_loss(error);
    }
}

impl Drop for DeathNote {
    fn drop(&mut self) {
        self.ledger.close();
    }
}

pub fn stop_actor<A: Actor<Context = Context<A>>>(note: &mut DeathNote, ctx: &mut Context<A>) {
    note.disarm();
    ctx.stop();
}
