//! The Executor actor, and the OS thread that runs its steps and owns the weights, the KV buffers and the sampler.
//!
//! The thread runs steps through [`souffleur_executor::Executor`]. The channel to the thread holds two steps, and the
//! scheduler never has more than two in flight, so the actor never waits. The thread outlives the actor: it then serves
//! the next unit.

mod runner;
mod thread;

use actix::{ActorContext, Context, Handler};
use crossbeam_channel::Sender;

pub use self::thread::{ExecutorFactory, ExecutorThread};
use crate::death::{DeathNote, StopActor, stop_actor};
use crate::mailbox::Posted;
use crate::messages::{RunStep, SequencesEnded};
use souffleur_base::ids::SeqId;
use souffleur_chaos::{Actor, Chaos, Phase};

pub struct Executor {
    sender: StepSender,
    note: DeathNote,
    chaos: Chaos,
}

/// The unit's end of its channels to the thread. Dropping it ends the service of the unit.
pub struct StepSender {
    steps: Sender<RunStep>,
    /// Ended sequences, which overtake queued steps. The thread reads them before each step, so the channel holds at
    /// most as many ids as the last steps had rows.
    ended: Sender<SeqId>,
}

impl Executor {
    pub fn new(sender: StepSender, note: DeathNote) -> Self {
        Self {
            sender,
            note,
            chaos: Chaos::default(),
        }
    }

    pub fn with_chaos(self, chaos: Chaos) -> Self {
        Self { chaos, ..self }
    }
}

impl actix::Actor for Executor {
    type Context = Context<Self>;
}

impl Handler<Posted<RunStep>> for Executor {
    type Result = ();

    fn handle(&mut self, posted: Posted<RunStep>, ctx: &mut Context<Self>) {
        let (step, _timer) = posted.open();
        self.chaos.strike(Actor::Executor, Phase::Entry, "RunStep");
        if self.sender.steps.try_send(step).is_err() {
            // Either the thread has ended and its note reported this, or there is a third step: the unit is broken.
            tracing::error!(
                "cannot send a step to the executor thread (its queue is full or it has stopped): rebuilding the engine"
            );
            ctx.terminate();
        }
    }
}

impl Handler<Posted<SequencesEnded>> for Executor {
    type Result = ();

    fn handle(&mut self, posted: Posted<SequencesEnded>, _: &mut Context<Self>) {
        let (SequencesEnded { seqs }, _timer) = posted.open();
        self.chaos
            .strike(Actor::Executor, Phase::Entry, "SequencesEnded");
        for seq in seqs {
            // If the thread has ended, its note has reported this.
            let _ = self.sender.ended.send(seq);
        }
    }
}

impl Handler<StopActor> for Executor {
    type Result = ();

    fn handle(&mut self, _: StopActor, ctx: &mut Context<Self>) {
        stop_actor(&mut self.note, ctx);
    }
}

#[cfg(test)]
mod tests;
