//! Replays operations that another implementation recorded, and fails on the first different result.
//!
//! The committed fixture (`tests/fixtures/radix/`) is always replayed. `SOUFFLEUR_RADIX_TRACES=<file or folder>`
//! names further files of the same format, `.jsonl` or `.jsonl.gz`; of a folder, all such files in order of
//! name. A new run, with an empty tree, starts where the page size, the policy or the seed changes.

use std::collections::HashMap;
use std::fmt::Debug;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail, ensure};
use flate2::read::MultiGzDecoder;
use serde::Deserialize;
use souffleur::ids::{PageId, StepId};
use souffleur::state::eviction::EvictionPolicy;
use souffleur::state::namespace::Namespace;
use souffleur::state::page_pool::PagePool;
use souffleur::state::pages::{NodeLock, PageSize, PoolLedger};
use souffleur::state::prefix_cache::PrefixCache;
use souffleur::state::radix_tree::{Insert, RadixTree};

const FIXTURE: &str = "tests/fixtures/radix/radix_traces.jsonl.gz";
const FIXTURE_OPERATIONS: usize = 6_195;
const TRACES_VARIABLE: &str = "SOUFFLEUR_RADIX_TRACES";

/// More than any run caches at once, at one token a page.
const POOL_PAGES: u32 = 1 << 22;
/// The whole tree is walked after every so many operations.
const INTEGRITY_INTERVAL: usize = 32;

#[test]
fn fixture_gives_the_recorded_results() -> Result<()> {
    let n_operations = replay_file(&Path::new(env!("CARGO_MANIFEST_DIR")).join(FIXTURE))?;
    ensure!(
        n_operations == FIXTURE_OPERATIONS,
        "replayed {n_operations} operations"
    );
    Ok(())
}

#[test]
fn files_named_by_the_environment_give_the_recorded_results() -> Result<()> {
    let Some(named) = std::env::var_os(TRACES_VARIABLE) else {
        return Ok(());
    };
    let files = trace_files(Path::new(&named))?;
    ensure!(
        !files.is_empty(),
        "no .jsonl or .jsonl.gz file in {}",
        named.display()
    );
    for file in files {
        let n_operations = replay_file(&file)?;
        ensure!(n_operations > 0, "{}: no operations", file.display());
    }
    Ok(())
}

#[test]
fn first_difference_is_named_with_file_line_expected_and_got() -> Result<()> {
    let insert = r#"{"ps":4,"policy":"lru","seed":1,"op":"insert","key":[1,2,3,4],"extra_key":null,
        "cache_salt":null,"value":[7,8,9,10],"priority":0,"prefix_len":0,"evictable":4,"protected":0,"total":4}"#
        .replace('\n', "");
    let matches =
        r#"{"ps":4,"policy":"lru","seed":1,"op":"match","key":[1,2,3,4,5],"extra_key":null,
        "cache_salt":"","matched":4,"indices":[7,8,9,10],"evictable":4,"protected":0,"total":4}"#
            .replace('\n', "");
    let check = |lines: &str, parts: &[&str]| match replay("t.jsonl", lines.as_bytes()) {
        Ok(_) => bail!("{lines} passed"),
        Err(error) => {
            let message = format!("{error:#}");
            let missing = parts.iter().find(|part| !message.contains(**part));
            missing.map_or(Ok(()), |part| Err(anyhow!("no {part:?} in {message:?}")))
        }
    };
    let good = format!("{insert}\n{matches}\n");
    ensure!(replay("t.jsonl", good.as_bytes())? == 2);
    let wrong_slots = good.replace("[7,8,9,10],\"evictable", "[7,8,9,11],\"evictable");
    check(
        &wrong_slots,
        &[
            "t.jsonl",
            "line 2",
            "expected [7, 8, 9, 11]",
            "got [7, 8, 9, 10]",
        ],
    )?;
    check(
        &good.replace("lru", "newest"),
        &["t.jsonl", "line 1", "newest", "slru"],
    )?;
    check(
        &good.replace("\"match\"", "\"merge\""),
        &["t.jsonl", "line 2", "merge"],
    )
}

/// One line of a trace.
#[derive(Deserialize)]
struct Line {
    ps: u32,
    policy: String,
    #[serde(default)]
    seed: Option<i64>,
    #[serde(flatten)]
    operation: Operation,
    evictable: usize,
    protected: usize,
    total: usize,
}

#[derive(Deserialize)]
struct Key {
    key: Vec<u32>,
    extra_key: Option<String>,
    cache_salt: Option<String>,
}

impl Key {
    fn namespace(&self) -> Namespace {
        Namespace::new(self.extra_key.as_deref(), self.cache_salt.as_deref())
    }
}

#[derive(Deserialize)]
#[serde(tag = "op", rename_all = "lowercase")]
enum Operation {
    Insert {
        #[serde(flatten)]
        key: Key,
        value: Vec<u64>,
        priority: Option<i64>,
        prefix_len: usize,
    },
    Match {
        #[serde(flatten)]
        key: Key,
        matched: usize,
        indices: Vec<u64>,
    },
    Lock {
        #[serde(flatten)]
        key: Key,
        lock_id: u64,
        matched: usize,
    },
    Unlock {
        lock_id: u64,
    },
    Evict {
        num_tokens: usize,
        evicted: usize,
        freed: Vec<u64>,
    },
}

/// A tree, and what the recorded slots of its pages are: they are not aligned as ours are.
struct Run {
    name: (u32, String, Option<i64>),
    page_size: PageSize,
    tree: RadixTree,
    pool: PagePool,
    slots: HashMap<PageId, Vec<u64>>,
    locks: HashMap<u64, NodeLock>,
    n_operations: usize,
}

impl Run {
    fn new(name: (u32, String, Option<i64>)) -> Result<Self> {
        let page_size = PageSize::new(name.0).context("page size 0")?;
        let policy = EvictionPolicy::from_name(&name.1)?;
        let ledger = Arc::new(PoolLedger::default());
        Ok(Self {
            name,
            page_size,
            tree: RadixTree::new(page_size, policy, ledger.clone()),
            pool: PagePool::new(POOL_PAGES, page_size, ledger),
            slots: HashMap::new(),
            locks: HashMap::new(),
            n_operations: 0,
        })
    }

    fn apply(&mut self, operation: Operation) -> Result<()> {
        match operation {
            Operation::Insert {
                key,
                value,
                priority,
                prefix_len,
            } => {
                self.insert(&key, &value, priority.unwrap_or(0), prefix_len)?;
            }
            Operation::Match {
                key,
                matched,
                indices,
            } => {
                let found = self.tree.match_prefix(&key.namespace(), &key.key);
                let (tokens, pages) = (found.tokens, found.pages());
                same("matched", matched, tokens)?;
                same("indices", indices, self.slots_of(pages.iter()))?;
            }
            Operation::Lock {
                key,
                lock_id,
                matched,
            } => {
                let locked = self.tree.lock_prefix(&key.namespace(), &key.key);
                same(
                    "pages of the lock",
                    locked.tokens,
                    self.page_size.tokens_in(locked.pages.len()),
                )?;
                let tokens = locked.tokens;
                let before = self.locks.insert(lock_id, locked.lock);
                ensure!(before.is_none(), "lock_id {lock_id} is held already");
                same("matched", matched, tokens)?;
            }
            Operation::Unlock { lock_id } => {
                let lock = self.locks.remove(&lock_id);
                self.tree
                    .unlock(lock.with_context(|| format!("lock_id {lock_id} is not held"))?);
            }
            Operation::Evict {
                num_tokens,
                evicted,
                freed,
            } => {
                let got = self.tree.evict(num_tokens);
                let slots = self.slots_of(got.pages.ids().iter().copied());
                self.pool.free(got.pages);
                same("evicted", evicted, got.tokens)?;
                same("freed", freed, slots)?;
            }
        }
        Ok(())
    }

    fn check_sizes(&mut self, evictable: usize, protected: usize, total: usize) -> Result<()> {
        same("evictable", evictable, self.tree.evictable_size())?;
        same("protected", protected, self.tree.protected_size())?;
        same("total", total, self.tree.total_size())?;
        self.n_operations += 1;
        if self.n_operations.is_multiple_of(INTEGRITY_INTERVAL) {
            self.tree.check_integrity().map_err(anyhow::Error::msg)?;
        }
        Ok(())
    }

    fn insert(&mut self, key: &Key, value: &[u64], priority: i64, prefix_len: usize) -> Result<()> {
        same("slots of the key", key.key.len(), value.len())?;
        let n_pages = self.page_size.full_pages(key.key.len());
        let pages = self
            .pool
            .alloc(n_pages)
            .context("the harness has too few pages")?;
        for (page, slots) in pages.ids().iter().zip(value.chunks(self.page_size.get())) {
            self.slots.insert(*page, slots.to_vec());
        }
        let inserted = self.tree.insert(Insert {
            namespace: &key.namespace(),
            tokens: &key.key,
            pages,
            priority,
            inserted_tokens: 0,
            written_by: StepId::new(0),
        });
        self.pool.free(inserted.duplicates);
        self.pool.free(inserted.rest);
        same("prefix_len", prefix_len, inserted.prefix_tokens)
    }

    fn slots_of(&self, pages: impl Iterator<Item = PageId>) -> Vec<u64> {
        pages
            .flat_map(|page| self.slots[&page].iter().copied())
            .collect()
    }

    /// Gives everything back, also after a difference, and checks that every page is there once.
    fn finish(&mut self) -> Result<()> {
        for (_, lock) in self.locks.drain() {
            self.tree.unlock(lock);
        }
        self.tree.check_integrity().map_err(anyhow::Error::msg)?;
        self.pool.free(self.tree.clear());
        same(
            "pages at the end of the run",
            self.pool.total_pages(),
            self.pool.free_pages(),
        )
    }
}

fn same<T: PartialEq + Debug>(what: &str, expected: T, got: T) -> Result<()> {
    ensure!(
        expected == got,
        "{what}: expected {expected:?}, got {got:?}"
    );
    Ok(())
}

/// Replays every line of `lines` and returns their number.
fn replay(file: &str, lines: impl Read) -> Result<usize> {
    let mut run: Option<Run> = None;
    let mut n_operations = 0;
    for (index, line) in BufReader::new(lines).lines().enumerate() {
        let line = line.with_context(|| format!("{file}: cannot be read"))?;
        if line.trim().is_empty() {
            continue;
        }
        if let Err(error) = replay_line(&mut run, &line) {
            // A second difference, at the end of the run, would only follow from the first.
            let _ = run.as_mut().map(Run::finish);
            return Err(error.context(format!("{file}, line {}", index + 1)));
        }
        n_operations += 1;
    }
    finish(&mut run).with_context(|| format!("{file}, last run"))?;
    Ok(n_operations)
}

fn replay_line(run: &mut Option<Run>, line: &str) -> Result<()> {
    let line: Line = serde_json::from_str(line)?;
    let name = (line.ps, line.policy.clone(), line.seed);
    if run.as_ref().is_none_or(|run| run.name != name) {
        finish(run)?;
        *run = Some(Run::new(name)?);
    }
    let run = run.as_mut().expect("a run was started above");
    run.apply(line.operation)?;
    run.check_sizes(line.evictable, line.protected, line.total)
}

fn finish(run: &mut Option<Run>) -> Result<()> {
    run.take().map_or(Ok(()), |mut run| run.finish())
}

fn replay_file(path: &Path) -> Result<usize> {
    let name = path.display().to_string();
    let file = File::open(path).with_context(|| format!("{name}: cannot be opened"))?;
    match path.extension() {
        Some(extension) if extension == "gz" => replay(&name, MultiGzDecoder::new(file)),
        _ => replay(&name, file),
    }
}

fn trace_files(named: &Path) -> Result<Vec<PathBuf>> {
    if !named.is_dir() {
        return Ok(vec![named.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in std::fs::read_dir(named)? {
        let path = entry?.path();
        let name = path.to_string_lossy();
        if name.ends_with(".jsonl") || name.ends_with(".jsonl.gz") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}
