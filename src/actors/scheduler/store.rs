//! The Scheduler's messages to and from the KvStore.

use actix::{Context, Handler};

use super::Scheduler;
use crate::mailbox::Posted;
use crate::messages::{StoreNews, StoreOrders, UseStore};
use souffleur_chaos::Phase;

impl Scheduler {
    /// Without a store, orders wait for the next one. They only release buffers, since it does not serve meanwhile.
    pub(super) fn send_store_orders(&mut self) {
        let Some(store) = &self.links.store else {
            return;
        };
        let orders = self.state.take_store_orders();
        if !orders.is_empty() {
            store.post(StoreOrders {
                generation: self.at.generation,
                orders,
                prefill_tokens_per_s: self.prefill_rate.tokens_per_s(),
            });
        }
    }
}

impl Handler<UseStore> for Scheduler {
    type Result = ();

    fn handle(&mut self, UseStore(store): UseStore, _: &mut Context<Self>) {
        self.links.store = Some(store);
    }
}

impl Handler<Posted<StoreNews>> for Scheduler {
    type Result = ();

    fn handle(&mut self, posted: Posted<StoreNews>, _: &mut Context<Self>) {
        self.strike(Phase::Entry, "StoreNews");
        let (news, _timer) = posted.open();
        match news {
            StoreNews::Serves(serves) => self.state.store_serves(serves),
            StoreNews::Found { seq, found } => self.state.prefix_found(seq, found),
            StoreNews::Fetched {
                ticket,
                blocks,
                miss,
            } => self.state.blocks_fetched(ticket, blocks, miss),
            StoreNews::Written { ticket, kept } => self.state.blocks_written(&[ticket], kept),
        }
        self.drive_after("StoreNews");
    }
}
