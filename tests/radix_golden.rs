//! Replays prefix-cache operations recorded from SGLang's `RadixCache`, and fails at the first different result.
//!
//! The committed fixture (`tests/fixtures/radix/`) is always replayed. `SOUFFLEUR_RADIX_TRACES=<file or folder>`
//! names more files of the same format (`.jsonl` or `.jsonl.gz`); a folder is searched recursively, in order of name.
//! A new run, with an empty tree, starts where the page size, the policy or the seed changes; without seeds, also where
//! the operation's number `i` does not increase.

use std::collections::HashMap;
use std::fmt::Debug;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail, ensure};
use flate2::read::MultiGzDecoder;
use serde::Deserialize;
use serde_json::Value;
use souffleur_base::ids::PageId;
use souffleur_state::cache::eviction::EvictionPolicy;
use souffleur_state::cache::namespace::Namespace;
use souffleur_state::cache::radix_tree::{Insert, RadixTree};
use souffleur_state::pool::page_pool::PagePool;
use souffleur_state::pool::pages::{NodeLock, PageSize, Pages, PoolLedger};

const FIXTURE: &str = "tests/fixtures/radix/radix_traces.jsonl.gz";
const FIXTURE_OPERATIONS: usize = 6_195;
const TRACES_VARIABLE: &str = "SOUFFLEUR_RADIX_TRACES";

const INTEGRITY_INTERVAL: usize = 32;

#[test]
fn fixture_gives_the_recorded_results() -> Result<()> {
    let n_operations =
        replay_file(&Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join(FIXTURE))?;
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
fn first_difference_is_reported_with_file_line_expected_and_got() -> Result<()> {
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

#[test]
fn runs_are_separated_by_seeds_of_any_type_or_by_operation_numbers() -> Result<()> {
    let insert = |seed: &str, i: u32| {
        format!(
            r#"{{"ps":1,"policy":"lru",{seed}"i":{i},"op":"insert","key":[1],"extra_key":null,"cache_salt":null,"value":[{}],"priority":0,"prefix_len":0,"evictable":1,"protected":0,"total":1}}"#,
            i + 1
        )
    };
    // The same insert finds an empty tree again: each line is a separate run.
    for seeds in [
        ["\"seed\":\"a\",", "\"seed\":\"b\","],
        ["\"seed\":18446744073709551615,", "\"seed\":-1,"],
        ["\"seed\":null,", ""],
        ["", ""],
    ] {
        let lines = seeds.map(|seed| insert(seed, 3)).join("\n");
        let n_operations = replay("t.jsonl", lines.as_bytes()).context(lines)?;
        ensure!(n_operations == 2, "replayed {n_operations} operations");
    }
    let one_run = [insert("", 3), insert("", 4)].join("\n");
    ensure!(replay("t.jsonl", one_run.as_bytes()).is_err());
    Ok(())
}

#[test]
fn files_in_nested_folders_are_found() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let inner = folder.path().join("b/c");
    std::fs::create_dir_all(&inner)?;
    let files = [folder.path().join("a.jsonl"), inner.join("d.jsonl.gz")];
    for file in files.iter().chain([&inner.join("readme.md")]) {
        std::fs::write(file, "")?;
    }
    same("files", files.to_vec(), trace_files(folder.path())?)
}

#[derive(Deserialize)]
struct Line {
    ps: u32,
    policy: String,
    seed: Option<Value>,
    i: Option<u64>,
    #[serde(flatten)]
    operation: Operation,
    evictable: usize,
    protected: usize,
    total: usize,
}

impl Line {
    fn begins_run_after(&self, last: &Self) -> bool {
        let settings = |line: &Self| (line.ps, line.policy.clone(), line.seed.clone());
        let restarts = || self.seed.is_none() && self.i.is_some() && self.i <= last.i;
        settings(self) != settings(last) || restarts()
    }

    fn inserted_tokens(&self) -> usize {
        match &self.operation {
            Operation::Insert { key, .. } => key.key.len(),
            _ => 0,
        }
    }
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

/// A tree, and the recorded slots of each page; recorded slots are not aligned to pages.
struct Run {
    page_size: PageSize,
    tree: RadixTree,
    pool: PagePool,
    slots: HashMap<PageId, Vec<u64>>,
    locks: HashMap<u64, NodeLock>,
    n_operations: usize,
}

impl Run {
    /// Creates a run with enough pages for all inserts in `lines`.
    fn new(ps: u32, policy: &str, lines: &[(usize, Line)]) -> Result<Self> {
        let page_size = PageSize::new(ps).context("page size 0")?;
        let policy = EvictionPolicy::from_name(policy)?;
        let ledger = Arc::new(PoolLedger::new(page_size));
        let inserted = lines.iter().map(|(_, line)| line.inserted_tokens());
        let n_pages: usize = inserted.map(|tokens| page_size.full_pages(tokens)).sum();
        let n_pages = u32::try_from(n_pages).context("the run inserts more than u32::MAX pages")?;
        Ok(Self {
            page_size,
            tree: RadixTree::new(page_size, policy, ledger.clone()),
            pool: PagePool::new(n_pages, page_size, ledger),
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
                let slots = self.slots_of(got.iter());
                same("evicted", evicted, got.n_tokens())?;
                self.free(got.into());
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
            .context("the pool of the test has too few pages")?;
        for (page, slots) in pages.ids().iter().zip(value.chunks(self.page_size.get())) {
            self.slots.insert(*page, slots.to_vec());
        }
        let inserted = self.tree.insert(Insert {
            namespace: &key.namespace(),
            tokens: &key.key,
            owner: None,
            pages,
            priority,
            inserted_tokens: 0,
        });
        self.free(inserted.duplicates);
        self.free(inserted.rest);
        same("prefix_len", prefix_len, inserted.prefix_tokens)
    }

    fn free(&mut self, pages: Pages) {
        for page in pages.ids() {
            self.slots.remove(page);
        }
        self.pool.free(pages);
    }

    fn slots_of(&self, pages: impl Iterator<Item = PageId>) -> Vec<u64> {
        pages
            .flat_map(|page| self.slots[&page].iter().copied())
            .collect()
    }

    /// Releases everything (also after a difference) and checks that every page is free exactly once.
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
    let mut run: Vec<(usize, Line)> = Vec::new();
    let mut n_operations = 0;
    for (index, line) in BufReader::new(lines).lines().enumerate() {
        let number = index + 1;
        let parsed = match line {
            Ok(line) if line.trim().is_empty() => continue,
            Ok(line) => serde_json::from_str::<Line>(&line).map_err(anyhow::Error::from),
            Err(error) => Err(error.into()),
        };
        let is_over = |line: &Line| {
            let last = run.last();
            last.is_some_and(|(_, last)| line.begins_run_after(last))
        };
        // An operation before an unreadable line may already differ.
        if parsed.as_ref().map_or(true, is_over) {
            replay_run(file, std::mem::take(&mut run))?;
        }
        let line = parsed.with_context(|| format!("{file}, line {number}"))?;
        run.push((number, line));
        n_operations += 1;
    }
    replay_run(file, run)?;
    Ok(n_operations)
}

fn replay_run(file: &str, lines: Vec<(usize, Line)>) -> Result<()> {
    let Some((first, line)) = lines.first() else {
        return Ok(());
    };
    let at = |number: usize| format!("{file}, line {number}");
    let mut run = Run::new(line.ps, &line.policy, &lines).with_context(|| at(*first))?;
    for (number, line) in lines {
        let applied = run.apply(line.operation);
        let sizes = (line.evictable, line.protected, line.total);
        if let Err(error) = applied.and_then(|()| run.check_sizes(sizes.0, sizes.1, sizes.2)) {
            // An error at the end of the run would only follow from the first difference.
            let _ = run.finish();
            return Err(error.context(at(number)));
        }
    }
    run.finish()
        .with_context(|| format!("{file}, end of a run"))
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
        if path.is_dir() {
            files.extend(trace_files(&path)?);
        } else if name.ends_with(".jsonl") || name.ends_with(".jsonl.gz") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}
