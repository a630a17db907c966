//! The kernel pack: machine code of all kernels for the usual GPUs, written by `kernels/pack.py`.
//!
//! The file is one zstd frame with little-endian numbers: 8 bytes of magic, the `u32` number of entries, the entries,
//! the images. An entry is the target (16 bytes) and the unit (32 bytes), both padded with NUL, the hash of the sources
//! (32 bytes), and the `u64` offset and length of its image.

use std::io::Read;
use std::ops::Range;

use super::sources::{EMBEDDED_PACK, PTX_TARGET, SourceHash, distance};

const MAGIC: &[u8] = b"SFLPACK1";
const TARGET_BYTES: usize = 16;
const UNIT_BYTES: usize = 32;
const ENTRY_BYTES: usize = TARGET_BYTES + UNIT_BYTES + 32 + 8 + 8;
/// Limit of the memory that a damaged pack can take; many times the usual size.
const MAX_BYTES: u64 = 256 << 20;

pub struct Archive {
    bytes: Vec<u8>,
    entries: Vec<Entry>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub target: String,
    pub unit: String,
    pub sources: SourceHash,
    range: Range<usize>,
}

impl Archive {
    /// The pack embedded in this binary.
    ///
    /// # Errors
    /// The binary has no pack, or the pack is damaged.
    pub fn embedded() -> Result<Self, String> {
        match EMBEDDED_PACK {
            [] => Err("this binary was built without kernels.pack".to_owned()),
            bytes => Self::decode(bytes),
        }
    }

    /// # Errors
    /// Why the pack is damaged.
    pub fn decode(packed: &[u8]) -> Result<Self, String> {
        let damaged = |reason: &dyn std::fmt::Display| format!("kernels.pack is damaged: {reason}");
        let decoder = ruzstd::decoding::StreamingDecoder::new(packed);
        let decoder = decoder.map_err(|error| damaged(&error))?;
        let mut bytes = Vec::new();
        let read = decoder.take(MAX_BYTES).read_to_end(&mut bytes);
        read.map_err(|error| damaged(&error))?;
        let entries = entries(&bytes).ok_or_else(|| damaged(&"an entry is cut short"))?;
        Ok(Self { bytes, entries })
    }

    /// The best machine code of a unit for a GPU.
    pub fn machine_code(&self, unit: &str, capability: (u32, u32)) -> Option<&Entry> {
        let of_unit = self.entries.iter().filter(|entry| entry.unit == unit);
        let codes = of_unit.filter_map(|entry| Some((distance(&entry.target, capability)?, entry)));
        codes
            .min_by_key(|(distance, _)| *distance)
            .map(|(_, entry)| entry)
    }

    pub fn ptx(&self, unit: &str) -> Option<&Entry> {
        let mut entries = self.entries.iter();
        entries.find(|entry| entry.unit == unit && entry.target == PTX_TARGET)
    }

    pub fn image(&self, entry: &Entry) -> &[u8] {
        &self.bytes[entry.range.clone()]
    }
}

/// `None` if an offset is outside of the pack.
fn entries(bytes: &[u8]) -> Option<Vec<Entry>> {
    let rest = bytes.strip_prefix(MAGIC)?;
    let (n_entries, rest) = rest.split_first_chunk::<4>()?;
    let n_entries = u32::from_le_bytes(*n_entries) as usize;
    let table = rest.get(..n_entries.checked_mul(ENTRY_BYTES)?)?;
    let entry = |entry: &[u8]| {
        let (target, entry) = entry.split_at_checked(TARGET_BYTES)?;
        let (unit, entry) = entry.split_at_checked(UNIT_BYTES)?;
        let (sources, entry) = entry.split_first_chunk::<32>()?;
        let (offset, entry) = entry.split_first_chunk::<8>()?;
        let (length, _) = entry.split_first_chunk::<8>()?;
        let start = usize::try_from(u64::from_le_bytes(*offset)).ok()?;
        let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
        let end = start
            .checked_add(length)
            .filter(|end| *end <= bytes.len())?;
        Some(Entry {
            target: text(target)?,
            unit: text(unit)?,
            sources: *sources,
            range: start..end,
        })
    };
    table.chunks(ENTRY_BYTES).map(entry).collect()
}

fn text(padded: &[u8]) -> Option<String> {
    let end = padded.iter().position(|byte| *byte == 0);
    let text = &padded[..end.unwrap_or(padded.len())];
    String::from_utf8(text.to_vec()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A zstd frame of raw blocks.
    fn packed(bytes: &[u8]) -> Vec<u8> {
        let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0b1010_0000];
        frame.extend((bytes.len() as u32).to_le_bytes());
        let block = (bytes.len() as u32) << 3 | 1;
        frame.extend(&block.to_le_bytes()[..3]);
        frame.extend(bytes);
        frame
    }

    fn padded(text: &str, len: usize) -> Vec<u8> {
        let mut bytes = text.as_bytes().to_vec();
        bytes.resize(len, 0);
        bytes
    }

    fn pack(images: &[(&str, &str, &[u8])]) -> Vec<u8> {
        let mut head = [MAGIC, &(images.len() as u32).to_le_bytes()].concat();
        let mut offset = head.len() + images.len() * ENTRY_BYTES;
        for (target, unit, image) in images {
            head.extend(padded(target, TARGET_BYTES));
            head.extend(padded(unit, UNIT_BYTES));
            head.extend([7; 32]);
            head.extend((offset as u64).to_le_bytes());
            head.extend((image.len() as u64).to_le_bytes());
            offset += image.len();
        }
        head.extend(images.iter().flat_map(|(_, _, image)| image.iter()));
        head
    }

    fn found(archive: &Archive, unit: &str, capability: (u32, u32)) -> Option<Vec<u8>> {
        let entry = archive.machine_code(unit, capability)?;
        Some(archive.image(entry).to_vec())
    }

    #[test]
    fn the_closest_machine_code_is_found() {
        let bytes = pack(&[
            ("compute_80", "gemm.cu", b"ptx\0"),
            ("sm_80", "gemm.cu", b"eighty"),
            ("sm_86", "gemm.cu", b"eighty-six"),
            ("sm_80", "norm.cu", b"norm"),
        ]);
        let archive = Archive::decode(&packed(&bytes)).expect("the pack is valid");
        assert_eq!(
            found(&archive, "gemm.cu", (8, 0)).as_deref(),
            Some(&b"eighty"[..])
        );
        assert_eq!(
            found(&archive, "gemm.cu", (8, 9)).as_deref(),
            Some(&b"eighty-six"[..])
        );
        assert_eq!(
            found(&archive, "norm.cu", (8, 9)).as_deref(),
            Some(&b"norm"[..])
        );
        assert_eq!(found(&archive, "gemm.cu", (9, 0)), None);
        let ptx = archive.ptx("gemm.cu").expect("the pack has PTX");
        assert_eq!(archive.image(ptx), b"ptx\0");
        assert_eq!(ptx.sources, [7; 32]);
        assert!(archive.ptx("norm.cu").is_none());
    }

    #[test]
    fn a_damaged_pack_is_an_error() {
        let whole = pack(&[("sm_80", "gemm.cu", b"eighty")]);
        for end in [0, 4, 11, 40, whole.len() - 1] {
            assert!(Archive::decode(&packed(&whole[..end])).is_err(), "{end}");
        }
        assert!(Archive::decode(b"no frame").is_err());
    }
}
