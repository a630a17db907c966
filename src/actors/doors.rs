//! The addresses of an engine's actors for hosts.

use actix::Recipient;

use crate::messages::{
    CancelAll, CancelRequest, Drain, FlushCache, Generate, GetLoad, GetLoads, GetLocks,
    GetPrefixReport, GetRequests, GetStats, GetView, PeekPrefix, PinPrefix, PinSoftly, SetPaused,
    SetPolicy, TakeTreeNotes, UnpinPrefix, UnpinSoftly,
};

/// The addresses of the current actors, as recipients, which hide the actor types.
///
/// When an actor dies, its address is closed: `send` returns `MailboxError::Closed`, and a one-way message is dropped. A
/// request that is sent to a dead Tokenizer fails with `engine_down`. `EngineHandle::doors` returns the new addresses.
#[derive(Clone)]
pub struct Doors {
    pub generate: Recipient<Generate>,
    pub cancel: Recipient<CancelRequest>,
    pub cancel_all: Recipient<CancelAll>,
    pub peek: Recipient<PeekPrefix>,
    pub pin: Recipient<PinPrefix>,
    pub unpin: Recipient<UnpinPrefix>,
    pub pin_softly: Recipient<PinSoftly>,
    pub unpin_softly: Recipient<UnpinSoftly>,
    pub set_policy: Recipient<SetPolicy>,
    pub flush: Recipient<FlushCache>,
    pub pause: Recipient<SetPaused>,
    pub stats: Recipient<GetStats>,
    pub load: Recipient<GetLoad>,
    /// `None` without replicas.
    pub loads: Option<Recipient<GetLoads>>,
    pub view: Recipient<GetView>,
    pub requests: Recipient<GetRequests>,
    pub tree_notes: Recipient<TakeTreeNotes>,
    pub locks: Recipient<GetLocks>,
    pub prefix_report: Recipient<GetPrefixReport>,
    pub drain: Recipient<Drain>,
}

impl Doors {
    /// False once an actor has stopped, so that new addresses are needed.
    pub fn are_open(&self) -> bool {
        self.generate.connected() && self.stats.connected() && self.peek.connected()
    }
}
