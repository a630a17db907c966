//! Reads the kernels' static shared memory on A100, the emulated device, from `kernels.pack` (see `kernels/pack.py`).

use std::fs;
use std::io::Read;
use std::path::Path;

const TARGET: &[u8] = b"sm_80\0";
const MAGIC: &[u8] = b"SFLPACK1";
const ENTRY_BYTES: usize = 16 + 32 + 32 + 16;
/// Byte offset of an entry's offset and length fields.
const ENTRY_PLACE: usize = 80;
const SECTION_BYTES: usize = 64;
const SECTION_PREFIX: &str = ".nv.shared.";

/// The kernels that have static shared memory, and its size in bytes.
pub fn static_shared_bytes(path: &Path) -> Result<Vec<(String, u64)>, String> {
    let packed = fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let mut pack = Vec::new();
    ruzstd::decoding::StreamingDecoder::new(&packed[..])
        .map_err(|error| format!("{}: {error}", path.display()))?
        .read_to_end(&mut pack)
        .map_err(|error| format!("{}: {error}", path.display()))?;
    sizes(&pack).ok_or_else(|| format!("{} is cut short", path.display()))
}

fn sizes(pack: &[u8]) -> Option<Vec<(String, u64)>> {
    let table = pack.strip_prefix(MAGIC)?;
    let (n_entries, table) = table.split_first_chunk::<4>()?;
    let n_entries = u32::from_le_bytes(*n_entries) as usize;
    let mut sizes = Vec::new();
    for entry in table.chunks(ENTRY_BYTES).take(n_entries) {
        if !entry.starts_with(TARGET) {
            continue;
        }
        let offset = number(entry, ENTRY_PLACE, 8)?;
        let length = number(entry, ENTRY_PLACE + 8, 8)?;
        sizes.extend(image_sizes(pack.get(offset..offset.checked_add(length)?)?)?);
    }
    Some(sizes)
}

/// The kernels and sizes of one cubin, a 64-bit ELF file, from its section headers.
fn image_sizes(image: &[u8]) -> Option<Vec<(String, u64)>> {
    let first = number(image, 0x28, 8)?;
    let (n_sections, names) = (number(image, 0x3c, 2)?, number(image, 0x3e, 2)?);
    let section = |index: usize| image.get(first + index * SECTION_BYTES..);
    let names = image.get(number(section(names)?, 0x18, 8)?..)?;
    let mut sizes = Vec::new();
    for index in 0..n_sections {
        let section = section(index)?;
        let name = names
            .get(number(section, 0, 4)?..)?
            .split(|byte| *byte == 0)
            .next()?;
        let name = std::str::from_utf8(name).ok()?;
        if let Some(kernel) = name.strip_prefix(SECTION_PREFIX) {
            sizes.push((kernel.to_owned(), number(section, 0x20, 8)? as u64));
        }
    }
    Some(sizes)
}

fn number(bytes: &[u8], at: usize, len: usize) -> Option<usize> {
    let mut number = [0; 8];
    number[..len].copy_from_slice(bytes.get(at..at.checked_add(len)?)?);
    usize::try_from(u64::from_le_bytes(number)).ok()
}
