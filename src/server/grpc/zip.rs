//! Writes ZIP archives of uncompressed files, up to 4 GiB in total.
//!
//! Compressing the files would take longer than sending them, and a ZIP crate is large compared with this file.

const FILE_SIGNATURE: u32 = 0x0403_4b50;
const ENTRY_SIGNATURE: u32 = 0x0201_4b50;
const END_SIGNATURE: u32 = 0x0605_4b50;
/// ZIP 2.0, the first version with folders.
const VERSION: u16 = 20;
/// Names are UTF-8.
const FLAGS: u16 = 1 << 11;
const STORED: u16 = 0;
/// Midnight of 1 January 1980. The time is fixed so that equal files make equal archives.
const TIME: u16 = 0;
const DATE: u16 = (1 << 5) | 1;

#[derive(Default)]
pub(super) struct Archive {
    bytes: Vec<u8>,
    /// The central directory.
    entries: Vec<u8>,
    n_entries: u16,
}

impl Archive {
    pub(super) fn add(&mut self, name: &str, content: &[u8]) {
        let start = self.bytes.len();
        let shared_fields = shared_fields(name, content);
        self.bytes.extend(FILE_SIGNATURE.to_le_bytes());
        self.bytes.extend(&shared_fields);
        self.bytes.extend(name.as_bytes());
        self.bytes.extend(content);

        self.entries.extend(ENTRY_SIGNATURE.to_le_bytes());
        // The version of the writer; `shared_fields` begins with the version that a reader needs.
        self.entries.extend(VERSION.to_le_bytes());
        self.entries.extend(&shared_fields);
        // Comment length, disk number and attributes are zero.
        self.entries.extend([0_u8; 2 + 2 + 2 + 4]);
        self.entries.extend(length(start).to_le_bytes());
        self.entries.extend(name.as_bytes());
        self.n_entries += 1;
    }

    pub(super) fn finish(mut self) -> Vec<u8> {
        let start = self.bytes.len();
        self.bytes.append(&mut self.entries);
        let n_bytes = self.bytes.len() - start;
        self.bytes.extend(END_SIGNATURE.to_le_bytes());
        // The numbers of this disk and of the directory's disk.
        self.bytes.extend([0_u8; 2 + 2]);
        self.bytes.extend(self.n_entries.to_le_bytes());
        self.bytes.extend(self.n_entries.to_le_bytes());
        self.bytes.extend(length(n_bytes).to_le_bytes());
        self.bytes.extend(length(start).to_le_bytes());
        // Comment length.
        self.bytes.extend([0_u8; 2]);
        self.bytes
    }
}

/// The fields that a file's header and its central directory entry share, from the reader's version to the lengths.
fn shared_fields(name: &str, content: &[u8]) -> Vec<u8> {
    let mut shared_fields = Vec::with_capacity(26);
    for number in [VERSION, FLAGS, STORED, TIME, DATE] {
        shared_fields.extend(number.to_le_bytes());
    }
    shared_fields.extend(crc32fast::hash(content).to_le_bytes());
    // The compressed and the uncompressed size.
    shared_fields.extend(length(content.len()).to_le_bytes());
    shared_fields.extend(length(content.len()).to_le_bytes());
    let name_bytes = u16::try_from(name.len()).unwrap_or(u16::MAX);
    shared_fields.extend(name_bytes.to_le_bytes());
    // Extra field length.
    shared_fields.extend([0_u8; 2]);
    shared_fields
}

fn length(bytes: usize) -> u32 {
    debug_assert!(u32::try_from(bytes).is_ok(), "{bytes} bytes are too many");
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Python's zipfile reads these bytes as two files with these contents.
    #[test]
    fn an_archive_has_the_bytes_of_a_valid_zip_file() {
        let mut archive = Archive::default();
        archive.add("a.txt", b"hello");
        archive.add("b", b"");
        let expected = concat!(
            "504b03041400000800000000210086a61036050000000500000005000000612e74787468656c6c6f",
            "504b0304140000080000000021000000000000000000000000000100000062",
            "504b010214001400000800000000210086a610360500000005000000050000000000000000000000000000000000612e747874",
            "504b010214001400000800000000210000000000000000000000000001000000000000000000000000002800000062",
            "504b0506000000000200020062000000470000000000",
        );
        let hex: String = archive
            .finish()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        assert_eq!(hex, expected);
    }
}
