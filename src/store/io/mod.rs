//! The thread that touches the disk: reads before writes, what is asked for in memory before both.

use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender};

use crate::ids::Ticket;
use crate::store::{
    Answer, BlockKey, BlockPools, Commit, Fetch, Find, Geometry, Identify, Shared, Sink,
    StoreConfig, StoreError, TierState,
};

/// What is taken before reads and writes.
pub(super) enum Urgent {
    Find(Find),
    Fetch(Fetch),
    Touch(BlockKey),
    Cancel(Ticket),
}

/// The thread's ends of the channels.
pub(super) struct Doors {
    pub urgent: Receiver<Urgent>,
    pub commits: Receiver<Commit>,
    pub buffers_freed: Receiver<()>,
    pub sink: Sink,
    /// Dropped when the thread ends, whichever way it goes.
    pub running: Sender<()>,
}

/// Starts the thread.
pub(super) fn start(
    _config: StoreConfig,
    _geometry: Geometry,
    _identify: Identify,
    doors: Doors,
    _pools: BlockPools,
    _shared: Arc<Shared>,
) -> Result<(), StoreError> {
    let reason = "the disk tier is not there yet".to_owned();
    (doors.sink)(Answer::State(TierState::Off { reason }));
    Ok(())
}
