//! The byte layout of a block: its planes, layer by layer.

use std::sync::Arc;

use crate::pages::in_whole_pages;
use crate::record::RecordSize;
use souffleur_state::tiers::{BlockKind, Needs};

/// One buffer of one layer, for all tokens of a block: the unit of checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plane {
    pub layer: u32,
    /// The index of the buffer among the layer's buffers (`PagedKv::buffers`); 0 for a state.
    pub buffer: u32,
    pub bytes: usize,
}

/// The layout of an engine's blocks: the same for all sequences, and constant while the engine runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    pub block_tokens: usize,
    /// The records that a sequence needs to resume after a block.
    pub needs: Needs,
    /// The planes of each kind, by [`BlockKind::index`], empty for an absent kind.
    pub planes: [Arc<[Plane]>; 3],
}

impl Geometry {
    pub fn planes(&self, kind: BlockKind) -> &Arc<[Plane]> {
        &self.planes[kind.index()]
    }

    /// Bytes of a kind's payload: its planes without gaps.
    pub fn payload_bytes(&self, kind: BlockKind) -> usize {
        self.planes(kind).iter().map(|plane| plane.bytes).sum()
    }

    /// Bytes of memory that a buffer of a kind takes: its payload, rounded up to whole pages.
    pub fn buffer_bytes(&self, kind: BlockKind) -> usize {
        in_whole_pages(self.payload_bytes(kind))
    }

    /// Bytes of a kind's record on the disk: its header and its payload.
    pub fn record_bytes(&self, kind: BlockKind) -> u64 {
        RecordSize::new(self, kind).slot_bytes()
    }

    pub fn kinds(&self) -> impl Iterator<Item = BlockKind> + '_ {
        let all = BlockKind::ALL.into_iter();
        all.filter(|kind| !self.planes(*kind).is_empty())
    }
}
