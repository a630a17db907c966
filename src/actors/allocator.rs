//! The Allocator actor, the only owner of the free pages and rows: frees and grants them.

use actix::{Actor, Context, Handler, Recipient};

use crate::death::{DeathNote, StopActor, stop_actor};
use crate::mailbox::{Mailbox, Posted};
use crate::messages::{ReservePages, StepPlanned};
use souffleur_chaos::{Actor as Place, Chaos, Kind, Phase, Point};
use souffleur_state::plan::{Reservation, reserve_pages};
use souffleur_state::pool::pools::Pools;

pub struct Allocator {
    pools: Pools,
    planned: GrantReceiver,
    chaos: Chaos,
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
            chaos: Chaos::default(),
            note,
        }
    }

    pub fn with_chaos(self, chaos: Chaos) -> Self {
        Self { chaos, ..self }
    }

    fn reserve(&mut self, mut request: ReservePages) -> StepPlanned {
        let is_empty = request.demands.is_empty() && request.growing.is_empty();
        let point = Point::new(Place::Allocator, Phase::Middle, "ReservePages");
        if is_empty || self.chaos.at(point, &[Kind::Refuse]).is_none() {
            return reserve_pages(&mut self.pools, request);
        }
        let demands = std::mem::take(&mut request.demands);
        let demanded: usize = demands.iter().map(|demand| demand.pages as usize).sum();
        let missing_pages = demanded + std::mem::take(&mut request.growing).len();
        StepPlanned {
            reservation: Reservation::Short { missing_pages },
            ..reserve_pages(&mut self.pools, request)
        }
    }
}

impl Actor for Allocator {
    type Context = Context<Self>;
}

impl Handler<Posted<Box<ReservePages>>> for Allocator {
    type Result = ();

    fn handle(&mut self, posted: Posted<Box<ReservePages>>, _: &mut Context<Self>) {
        self.chaos
            .strike(Place::Allocator, Phase::Entry, "ReservePages");
        let (reserve, _timer) = posted.open();
        let planned = Box::new(self.reserve(*reserve));
        self.chaos
            .strike(Place::Allocator, Phase::Middle, "ReservePages");
        match &self.planned {
            GrantReceiver::Scheduler(scheduler) => scheduler.post(planned),
            GrantReceiver::Host(host) => host.do_send(planned),
        }
        self.chaos
            .strike(Place::Allocator, Phase::Exit, "ReservePages");
    }
}

impl Handler<StopActor> for Allocator {
    type Result = ();

    fn handle(&mut self, _: StopActor, ctx: &mut Context<Self>) {
        stop_actor(&mut self.note, ctx);
    }
}
