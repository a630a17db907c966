//! The Allocator actor, the only owner of the free pages and rows: frees and grants them.

use actix::{Actor, Context, Handler, Recipient};

use crate::death::{DeathNote, StopActor, stop_actor};
use crate::mailbox::{Mailbox, Posted};
use crate::messages::{ReservePages, StepPlanned};
use souffleur_state::plan::reserve_pages;
use souffleur_state::pool::pools::Pools;

pub struct Allocator {
    pools: Pools,
    planned: GrantReceiver,
    note: DeathNote,
}

/// The receiver of grants: the Scheduler, or an actor of a host program that uses the cache without an engine.
pub enum GrantReceiver {
    Scheduler(Mailbox<Box<StepPlanned>>),
    Host(Recipient<Box<StepPlanned>>),
}

impl Allocator {
    pub fn new(pools: Pools, planned: GrantReceiver, note: DeathNote) -> Self {
        Self {
            pools,
            planned,
            note,
        }
    }
}

impl Actor for Allocator {
    type Context = Context<Self>;
}

impl Handler<Posted<Box<ReservePages>>> for Allocator {
    type Result = ();

    fn handle(&mut self, posted: Posted<Box<ReservePages>>, _: &mut Context<Self>) {
        let (reserve, _timer) = posted.open();
        let planned = Box::new(reserve_pages(&mut self.pools, *reserve));
        match &self.planned {
            GrantReceiver::Scheduler(scheduler) => scheduler.post(planned),
            GrantReceiver::Host(host) => host.do_send(planned),
        }
    }
}

impl Handler<StopActor> for Allocator {
    type Result = ();

    fn handle(&mut self, _: StopActor, ctx: &mut Context<Self>) {
        stop_actor(&mut self.note, ctx);
    }
}
