//! Tests of changed store files between two runs of a server: no output changes, and reads count the damage they find.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::server::Launch;
use crate::{BLOCK_TOKENS, STORED_TOKENS, model, prompt};

/// Headers and payloads begin at multiples of this number of bytes.
const ALIGN: usize = 4096;
/// The file of records of keys and values.
const RECORDS: &str = "seg-kv-0000";
/// Runs of the server within which all damage is repaired.
const MAX_RUNS: usize = 3;
/// The magic bytes of a header; `BLOCK_AT` is the offset of the block's number in the header.
const MAGIC: &[u8] = b"SFKVBLK1";
const BLOCK_AT: usize = 112;

/// The files of the one fingerprint in a store's folder.
struct Files(PathBuf);

impl Files {
    fn of(root: &Path) -> Self {
        let entries = fs::read_dir(root).expect("the folder can be read");
        let mut folders = entries.filter_map(|entry| {
            let path = entry.expect("the entry can be read").path();
            path.is_dir().then_some(path)
        });
        let only = folders.next().expect("the store has a fingerprint");
        assert!(folders.next().is_none(), "the store has two fingerprints");
        Self(only)
    }

    fn edit(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let path = self.0.join(name);
        let mut bytes = fs::read(&path).expect("the file exists");
        change(&mut bytes);
        fs::write(path, bytes).expect("the file can be written");
    }

    /// Changes the records of the prompt's two blocks, given their offsets in the order of the blocks.
    fn edit_records(&self, change: impl FnOnce(&mut Vec<u8>, [usize; 2])) {
        self.edit(RECORDS, |bytes| {
            let block = |at: &usize| bytes[at + BLOCK_AT];
            let offsets = (0..bytes.len()).step_by(ALIGN);
            let mut offsets: Vec<usize> = offsets
                .filter(|at| bytes[*at..].starts_with(MAGIC))
                .collect();
            offsets.sort_by_key(block);
            let offsets = <[usize; 2]>::try_from(offsets).expect("two blocks are stored");
            change(bytes, offsets);
        });
    }
}

/// A name, a change of the files, the tokens that are still found, and whether reads count the change as damage.
type Damage = (&'static str, fn(&Files), u64, bool);

const DAMAGES: [Damage; 12] = [
    (
        "a bit of the first payload",
        |files| files.edit_records(|bytes, [first, _]| bytes[first + ALIGN + 100] ^= 4),
        0,
        true,
    ),
    (
        "a bit of the second payload",
        |files| files.edit_records(|bytes, [_, second]| bytes[second + ALIGN + 7] ^= 128),
        BLOCK_TOKENS,
        true,
    ),
    (
        "a byte of the second block's key",
        |files| files.edit_records(|bytes, [_, second]| bytes[second + 50] ^= 1),
        BLOCK_TOKENS,
        true,
    ),
    (
        "a checksum of the second block",
        |files| files.edit_records(|bytes, [_, second]| bytes[second + 128] ^= 1),
        BLOCK_TOKENS,
        true,
    ),
    (
        "zeros for the first header",
        |files| files.edit_records(|bytes, [first, _]| bytes[first..first + ALIGN].fill(0)),
        0,
        true,
    ),
    (
        "swapped records",
        |files| files.edit_records(|bytes, offsets| swap(bytes, offsets)),
        0,
        true,
    ),
    (
        "a file without its end",
        |files| files.edit(RECORDS, |bytes| bytes.truncate(bytes.len() - ALIGN - 1)),
        BLOCK_TOKENS,
        true,
    ),
    (
        "an empty file",
        |files| files.edit(RECORDS, Vec::clear),
        0,
        false,
    ),
    (
        "another fingerprint in meta",
        |files| files.edit("meta", |bytes| bytes[20] ^= 1),
        0,
        false,
    ),
    (
        "a byte of index.log",
        |files| {
            files.edit("index.log", |bytes| {
                let half = bytes.len() / 2;
                bytes[half] ^= 1;
            });
        },
        STORED_TOKENS,
        false,
    ),
    (
        "a cut index.log",
        |files| files.edit("index.log", |bytes| bytes.truncate(bytes.len() - 1)),
        STORED_TOKENS,
        false,
    ),
    (
        "no index.log",
        |files| fs::remove_file(files.0.join("index.log")).expect("the file exists"),
        STORED_TOKENS,
        false,
    ),
];

fn swap(bytes: &mut [u8], [first, second]: [usize; 2]) {
    let (low, high) = (first.min(second), first.max(second));
    let (before, after) = bytes.split_at_mut(high);
    let len = (high - low).min(after.len());
    before[low..low + len].swap_with_slice(&mut after[..len]);
}

#[test]
fn damaged_blocks_are_computed_again_and_found_in_a_later_run() {
    let folder = TempDir::new().expect("a folder can be made");
    let launch = Launch::new(&model("qwen3")).with_store(folder.path());
    let server = launch.start_serving();
    let output = server.ask(&prompt(1)).output;
    server.wait_until_written(STORED_TOKENS);
    server.kill();
    for (what, damage, tokens, is_counted) in DAMAGES {
        damage(&Files::of(folder.path()));
        let mut server = launch.start_serving();
        let mut found = server.ask(&prompt(1));
        assert_eq!((found.stored, &found.output), (tokens, &output), "{what}");
        assert_eq!(server.damages() > 0, is_counted, "{what}");
        let misses = server.metric("souffleur_prefix_misses_total", "stored_damaged");
        assert_eq!(misses > 0.0, is_counted, "{what}");
        // Blocks after a damaged one are read in the next run, and may be damaged too.
        for _ in 0..MAX_RUNS {
            if found.stored == STORED_TOKENS {
                break;
            }
            server.wait_until_written(BLOCK_TOKENS);
            server.kill();
            server = launch.start_serving();
            found = server.ask(&prompt(1));
            assert_eq!(found.output, output, "after {what}");
        }
        assert_eq!(found.stored, STORED_TOKENS, "after {what}");
    }
}
