//! The format of a block's record on the disk: a header that identifies the block, then the payload.
//!
//! ```text
//! 0    magic            8 bytes   "SFKVBLK1"
//! 8    version          u32 LE
//! 12   kind             u8, then 3 zeros
//! 16   fingerprint      32 bytes
//! 48   key              32 bytes
//! 80   parent           32 bytes
//! 112  block            u32 LE    number of blocks before it
//! 116  planes           u32 LE
//! 120  payload length   u64 LE    bytes
//! 128  CRC-32 of each plane, u32 LE each
//! ..   zeros
//! -4   CRC-32 of the header before it, u32 LE
//! ```
//!
//! The header is padded to a multiple of 4 KiB, and so is the payload. The header has no tokens, no salts, and nothing
//! that reveals them without the secret.
//!
//! A record is used only if its key, parent, fingerprint and all checksums match.

use crate::{Geometry, HostBlock, Plane};
use souffleur_state::tiers::{BlockKey, BlockKind, BlockPlace, Fingerprint};

/// Alignment of headers and payloads, in bytes.
pub(super) const ALIGN: usize = 4096;
/// The version of the file formats in a fingerprint's folder; it is part of the fingerprint.
pub(super) const VERSION: u32 = 1;
const MAGIC: &[u8; 8] = b"SFKVBLK1";
const FIXED_BYTES: usize = 128;
const CRC_BYTES: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RecordSize {
    pub header: usize,
    pub payload: usize,
}

impl RecordSize {
    pub fn new(geometry: &Geometry, kind: BlockKind) -> Self {
        let planes = geometry.planes(kind).len();
        Self {
            header: (FIXED_BYTES + planes * CRC_BYTES + CRC_BYTES).next_multiple_of(ALIGN),
            payload: geometry.payload_bytes(kind),
        }
    }

    pub fn slot_bytes(&self) -> u64 {
        (self.header + self.payload.next_multiple_of(ALIGN)) as u64
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RecordName {
    pub place: BlockPlace,
    pub kind: BlockKind,
}

/// Writes the header of a block's record; `sums` has the CRC-32 of each plane.
pub(super) fn header(
    size: &RecordSize,
    fingerprint: &Fingerprint,
    (place, kind): (&BlockPlace, BlockKind),
    sums: &[u32],
) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(size.header);
    bytes.extend(MAGIC);
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend([kind.index() as u8, 0, 0, 0]);
    bytes.extend(fingerprint.0);
    bytes.extend(place.key.0);
    bytes.extend(place.parent.0);
    bytes.extend(place.block.to_le_bytes());
    bytes.extend((sums.len() as u32).to_le_bytes());
    bytes.extend((size.payload as u64).to_le_bytes());
    bytes.extend(sums.iter().flat_map(|sum| sum.to_le_bytes()));
    bytes.resize(size.header - CRC_BYTES, 0);
    let crc = crc32fast::hash(&bytes);
    bytes.extend(crc.to_le_bytes());
    bytes
}

pub(super) fn sum(plane: &[u8]) -> u32 {
    crc32fast::hash(plane)
}

/// Parses the header of a record with these planes; `None` if it is damaged, or has another fingerprint or kind.
pub(super) fn read_header(
    bytes: &[u8],
    size: &RecordSize,
    fingerprint: &Fingerprint,
    kind: BlockKind,
    planes: &[Plane],
) -> Option<RecordName> {
    let (body, crc) = bytes.split_last_chunk::<CRC_BYTES>()?;
    if bytes.len() != size.header || crc32fast::hash(body).to_le_bytes() != *crc {
        return None;
    }
    let word = |at: usize| {
        let bytes = body.get(at..at + 4)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?))
    };
    let hash = |at: usize| body.get(at..at + 32)?.try_into().ok();
    let length = u64::from(word(120)?) | u64::from(word(124)?) << 32;
    let is_ours = body.starts_with(MAGIC)
        && word(8)? == VERSION
        && word(12)? == kind.index() as u32
        && hash(16)? == fingerprint.0
        && word(116)? as usize == planes.len()
        && length == size.payload as u64;
    is_ours.then_some(RecordName {
        place: BlockPlace {
            key: BlockKey(hash(48)?),
            parent: BlockKey(hash(80)?),
            block: word(112)?,
        },
        kind,
    })
}

/// True if a payload matches the checksums in the header that was read with it.
pub(super) fn is_intact(header: &[u8], block: &HostBlock) -> bool {
    let sums = header.get(FIXED_BYTES..).unwrap_or_default();
    let sums = sums.chunks_exact(CRC_BYTES);
    let n_planes = block.planes().len();
    sums.len() >= n_planes
        && block
            .split()
            .zip(sums)
            .all(|((_, plane), stored)| sum(plane).to_le_bytes() == *stored)
}
