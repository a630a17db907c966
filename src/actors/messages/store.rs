//! The messages from and to the KvStore.

use actix::Message;

use crate::mailbox::Mailbox;
use souffleur_base::ids::{SeqId, Ticket};
use souffleur_state::cache::prefix_history::StoredMiss;
use souffleur_state::scheduler::tier::{PrefixFound, StoreOrder};
use souffleur_store::Answer;

/// KvStore -> Scheduler: the store's reports, in any order.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub enum StoreNews {
    /// True once the store serves; false once it serves no more, which replaces all outstanding answers.
    Serves(bool),
    /// Answers [`StoreOrder::Find`], also when the store is late.
    Found { seq: SeqId, found: PrefixFound },
    /// Answers [`StoreOrder::Fetch`], also when the store is late.
    Fetched {
        ticket: Ticket,
        /// Blocks fetched, counted from the first requested one.
        blocks: usize,
        /// Why fewer blocks than requested were fetched.
        miss: Option<StoredMiss>,
    },
    /// Answers [`StoreOrder::Write`], on success and failure.
    Written { ticket: Ticket, kept: bool },
}

/// Watchdog -> Scheduler, after the KvStore was started again: later orders go to this one. It reports when it serves.
#[derive(Message)]
#[rtype(result = "()")]
pub struct UseStore(pub Mailbox<StoreOrders>);

/// Watchdog -> KvStore, when a unit or the KvStore was started, and before the unit's first orders. The store forgets
/// the orders of the unit before, and answers with `StoreNews::Serves` if it serves already.
#[derive(Message)]
#[rtype(result = "()")]
pub struct ServeUnit {
    pub generation: u64,
    pub news: Mailbox<StoreNews>,
}

/// Scheduler -> KvStore, when it has work: orders, in sequence.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct StoreOrders {
    /// The Scheduler's generation. The KvStore drops orders of older ones.
    pub generation: u64,
    /// The orders. All but `Discard` are answered by `StoreNews`.
    pub orders: Vec<StoreOrder>,
    /// The executor's prefill rate in tokens per second; `None` before the first prefill.
    pub prefill_tokens_per_s: Option<f64>,
}

/// The store's thread -> KvStore: an answer of the store.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct StoreAnswered(pub Answer);
