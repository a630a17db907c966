//! Tests that stored K/V and recurrent states equal the fixtures bit for bit, for each kernel path (instruction set).
//!
//! Blocks in the KV store outlive the binary that computed them. So a change of kernels that changes these bits must
//! raise the kernels' version number, the epoch (`KERNEL_EPOCH` in `src/engine/store.rs`). Otherwise this test fails.
//!
//! `SOUFFLEUR_REMAKE_KV_BITS=1 cargo test --test engine` writes the fixtures of all kernel paths that the machine has.
//! Use it after the epoch was raised, or to add a kernel path or a model. The test refuses to change bits within one
//! epoch. If the variable is a folder instead of 1, the fixtures are written to this folder.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use souffleur_config::{DtypeChoice, EngineConfig, KvCacheDtype};
use souffleur_kernels::cpu::{ISA_VARIABLE, Isa};
use souffleur_kernels::dtype::Quantization;
use tempfile::TempDir;

use crate::kernel_paths::say;
use crate::store::{run_and_store, stored};

const REMAKE: &str = "SOUFFLEUR_REMAKE_KV_BITS";
const COMMAND: &str = "SOUFFLEUR_REMAKE_KV_BITS=1 cargo test --test engine";
const FIXTURES: &str = "tests/fixtures/kv_bits";
/// The alignment of record headers and payloads, in bytes.
const ALIGN: usize = 4096;
const MAGIC: &[u8] = b"SFKVBLK1";
/// Offsets in a record header: the block's number, the number of planes, and the checksums of the planes.
const BLOCK_AT: usize = 112;
const PLANES_AT: usize = 116;
const SUMS_AT: usize = 128;

/// Models with all kinds of layers, in the data types of their files; [`cases`] adds conversions and quantisation. The
/// first model is large enough for kernels that compute many rows and columns.
const MODELS: [&str; 10] = [
    "models/souffleur-tiny",
    "tests/fixtures/models/qwen3",
    "tests/fixtures/models/qwen3-moe",
    "tests/fixtures/models/deepseek-v2",
    "tests/fixtures/models/gemma2",
    "tests/fixtures/models/gemma4",
    "tests/fixtures/models/gpt-oss",
    "tests/fixtures/models/lfm2",
    "tests/fixtures/models/qwen3-5",
    "tests/fixtures/models/qwen3-next",
];

/// The engine configurations, with their names in the fixtures.
fn cases(folder: &Path) -> Vec<(String, EngineConfig)> {
    let config_of = |model: &str| stored(model, folder, 16);
    let name = |model: &str| model.rsplit('/').next().unwrap_or(model).to_owned();
    let mut cases: Vec<_> = MODELS.map(|model| (name(model), config_of(model))).into();
    let dense = config_of(MODELS[0]);
    let dtypes = [
        ("float32", DtypeChoice::Float32),
        ("float16", DtypeChoice::Float16),
    ];
    for (name, dtype) in dtypes {
        let config = EngineConfig {
            dtype,
            ..dense.clone()
        };
        cases.push((format!("souffleur-tiny-{name}"), config));
    }
    for (name, quantization) in [("int8", Quantization::Int8), ("int4", Quantization::Int4)] {
        let config = EngineConfig {
            quantization: Some(quantization),
            ..dense.clone()
        };
        cases.push((format!("souffleur-tiny-{name}"), config));
    }
    let config = EngineConfig {
        kv_cache_dtype: KvCacheDtype::Int8,
        ..dense
    };
    cases.push(("souffleur-tiny-kv-int8".to_owned(), config));
    cases
}

/// The fixture of one kernel path: the epoch, and the checksums of records, by case and record.
#[derive(Debug, PartialEq)]
struct KvBits {
    epoch: String,
    records: BTreeMap<String, String>,
}

impl KvBits {
    /// Runs all cases on this kernel path, and computes their checksums.
    async fn compute(path: Isa) -> Self {
        let mut bits = Self {
            epoch: String::new(),
            records: BTreeMap::new(),
        };
        let names: Vec<String> = cases(Path::new(""))
            .into_iter()
            .map(|(name, _)| name)
            .collect();
        for (index, name) in names.into_iter().enumerate() {
            let folder = TempDir::new().expect("a temporary folder");
            let (_, config) = cases(folder.path()).swap_remove(index);
            run_and_store(config, 1).await;
            bits.add_folder(&name, path, folder.path());
        }
        bits
    }

    /// Adds the checksums of all records of the store at `root`, which must contain the folder of one fingerprint only.
    fn add_folder(&mut self, case: &str, path: Isa, root: &Path) {
        let entries = fs::read_dir(root).expect("the store created the folder");
        let entries = entries.map(|entry| entry.expect("the entry can be read").path());
        let folder = entries.into_iter().find(|path| path.is_dir());
        let folder = folder.expect("the store has a folder");
        let meta = fs::read_to_string(folder.join("meta")).expect("the file is text");
        let kernels = meta.lines().find_map(|line| line.strip_prefix("kernels: "));
        let kernels = kernels.expect("kernels are a part of the fingerprint");
        let words: Vec<&str> = kernels.trim_matches('"').split(' ').collect();
        assert_eq!(words[..2], ["cpu", path.name()]);
        self.epoch = words[2].to_owned();
        let mut n_records = 0;
        for kind in ["kv", "state"] {
            let file = folder.join(format!("seg-{kind}-0000"));
            let bytes = fs::read(file).unwrap_or_default();
            let at = (0..bytes.len()).step_by(ALIGN);
            for header in at.map(|at| &bytes[at..]) {
                if header.starts_with(MAGIC) {
                    let (block, sum) = checksum(header);
                    self.records.insert(format!("{case} {kind} {block}"), sum);
                    n_records += 1;
                }
            }
        }
        assert!(n_records >= 2, "{case}: {n_records} records");
    }

    fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        let epoch = lines.next()?.strip_prefix("epoch ")?.to_owned();
        let records = lines.map(|line| {
            let (record, sum) = line.rsplit_once(' ')?;
            Some((record.to_owned(), sum.to_owned()))
        });
        let records = records.collect::<Option<_>>()?;
        Some(Self { epoch, records })
    }

    fn text(&self) -> String {
        let mut text = format!("epoch {}\n", self.epoch);
        for (record, sum) in &self.records {
            let _ = writeln!(text, "{record} {sum}");
        }
        text
    }

    /// The records that both contain, but with different bits.
    fn changed(&self, now: &Self) -> Vec<&str> {
        let records = self.records.iter();
        let changed = records.filter(|(record, sum)| {
            let found = now.records.get(*record);
            found.is_some_and(|found| found != *sum)
        });
        changed.map(|(record, _)| record.as_str()).collect()
    }
}

/// The block number of a record, and a checksum over the checksums of its planes.
fn checksum(header: &[u8]) -> (u32, String) {
    let word = |at: usize| {
        let bytes = header[at..at + 4].try_into().expect("four bytes");
        u32::from_le_bytes(bytes)
    };
    let sums = &header[SUMS_AT..SUMS_AT + 4 * word(PLANES_AT) as usize];
    let sum = crc32fast::hash(sums);
    (word(BLOCK_AT), format!("{sum:08x}"))
}

fn fixture(path: Isa) -> PathBuf {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join(FIXTURES);
    folder.join(format!("{}.txt", path.name()))
}

/// Prints the kernel paths that have no fixture.
fn print_missing_fixtures() {
    let missing = Isa::ALL.into_iter().filter(|path| !fixture(*path).exists());
    for path in missing {
        say(path, &format!("no fixture: {COMMAND} writes one"));
    }
}

/// Writes the fixture. Panics if bits changed but the epoch did not.
fn remake(path: Isa, now: &KvBits) {
    let file = fixture(path);
    let text = fs::read_to_string(&file).unwrap_or_default();
    if let Some(before) = KvBits::parse(&text)
        && before.epoch == now.epoch
    {
        check(path, &before, now);
    }
    let value = std::env::var_os(REMAKE).filter(|value| value != "1");
    let file = match (value, file.file_name()) {
        (Some(folder), Some(name)) => PathBuf::from(folder).join(name),
        _ => file,
    };
    fs::create_dir_all(file.with_file_name("")).expect("the folder is writable");
    fs::write(file, now.text()).expect("the folder is writable");
}

fn check(path: Isa, expected: &KvBits, now: &KvBits) {
    let (path, epoch) = (path.name(), &now.epoch);
    assert_eq!(
        expected.epoch, *epoch,
        "kernel path {path}: the kernels are of epoch {epoch}, {FIXTURES}/{path}.txt is of epoch {}: run {COMMAND} on \
         machines that together have all kernel paths",
        expected.epoch
    );
    let changed = expected.changed(now);
    assert!(
        changed.is_empty(),
        "kernel path {path}: the bits of {changed:?} differ from those of epoch {epoch}, so a prefix could mix blocks of \
        this binary with blocks of an earlier one. If the kernels were meant to change, raise KERNEL_EPOCH in \
         src/engine/store.rs, then run {COMMAND}. If only a model or prompt of this test changed, remove \
         {FIXTURES}/{path}.txt first"
    );
}

#[tokio::test]
async fn stored_blocks_have_the_bits_of_their_epoch() {
    if cfg!(not(target_arch = "x86_64")) {
        eprintln!("skipped: the fixtures are those of x86-64");
        return;
    }
    let path = Isa::chosen().unwrap_or_else(|error| panic!("{error}"));
    let now = KvBits::compute(path).await;
    if std::env::var_os(REMAKE).is_some() {
        return remake(path, &now);
    }
    if std::env::var_os(ISA_VARIABLE).is_none() {
        print_missing_fixtures();
    }
    match fs::read_to_string(fixture(path)) {
        Ok(text) => {
            let expected = KvBits::parse(&text).expect("the fixture is whole");
            check(path, &expected, &now);
        }
        // Every machine has the portable path, so its fixture must exist.
        Err(error) => assert_ne!(path, Isa::Portable, "{error}: run {COMMAND}"),
    }
}

#[test]
fn changed_bits_are_named() {
    let bits = |epoch: &str, sum: &str| KvBits {
        epoch: epoch.to_owned(),
        records: [
            ("a kv 0".to_owned(), "0".to_owned()),
            ("a kv 1".to_owned(), sum.to_owned()),
        ]
        .into(),
    };
    let before = bits("1", "5");
    assert_eq!(KvBits::parse(&before.text()).as_ref(), Some(&before));
    assert!(before.changed(&before).is_empty());
    assert_eq!(before.changed(&bits("1", "6")), ["a kv 1"]);
}
