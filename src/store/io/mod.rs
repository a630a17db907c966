//! The I/O thread of the KV store: answers lookups from memory, and reads and writes blocks; reads have priority. The
//! thread polls its requests after each read and each part of a write. While the engine computes, writes mostly pause.

mod fetches;

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, select};

use crate::files::Files;
use crate::folder::Folder;
use crate::pace::{Pace, Stopwatch};
use crate::segments::WriteMode;
use crate::tier::{DiskTier, PartialWrite, TierSetup};
use crate::{
    Answer, BlockKey, BlockKind, BlockPlace, BlockPools, Commit, DRAIN_TIMEOUT, Fetch, Find,
    FingerprintParts, HostBlock, Identify, Outcome, Shared, Short, Sink, StoreError, TierState,
};
use fetches::PendingFetch;
use souffleur_base::ids::Ticket;
use souffleur_state::tiers::CostModel;

/// Headers that are read between two checks of the stop flag.
const HEADERS_AT_ONCE: usize = 64;
/// The largest number of fetches in flight; only one of them is served, the others wait.
const MAX_FETCHES: usize = 256;
/// Idle time after which the thread syncs the disk.
const IDLE: Duration = Duration::from_secs(1);

/// Timeout for a folder's lock: somewhat longer than a store takes to stop.
const LOCK_TIMEOUT: Duration = Duration::from_secs(8);
const LOCK_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Requests that are handled before reads and writes.
pub(super) enum Urgent {
    Find(Find),
    Fetch(Fetch),
    Touch(BlockKey),
    Cancel(Ticket),
}

pub(super) struct Channels {
    pub urgent: Receiver<Urgent>,
    pub commits: Receiver<Commit>,
    pub buffers_freed: Receiver<()>,
    pub sink: Sink,
    /// Dropped when the thread ends, for any reason.
    pub _running: Sender<()>,
}

pub(super) struct Startup {
    pub files: Box<dyn Files>,
    pub setup: TierSetup,
    pub identify: Identify,
    pub pools: BlockPools,
    pub shared: Arc<Shared>,
    /// The share of one core that writing may take while the engine computes.
    pub write_share: f64,
}

pub(super) fn start(startup: Startup, channels: Channels) -> Result<(), StoreError> {
    startup.setup.check()?;
    let thread = std::thread::Builder::new().name("souffleur-store".to_owned());
    let spawned = thread.spawn(move || {
        let shared = startup.shared.clone();
        let ended = catch_unwind(AssertUnwindSafe(|| serve(startup, &channels)));
        shared.is_serving.store(false, Ordering::Release);
        let panicked = ended.is_err();
        let reason = match ended {
            Ok(Ok(())) => return,
            Ok(Err(reason)) => reason,
            Err(_) => "the KV store thread panicked: please report this bug".to_owned(),
        };
        tracing::warn!(%reason, "KV store thread ended");
        (channels.sink)(Answer::State(TierState::Off { reason, panicked }));
    });
    spawned.map(drop).map_err(StoreError::Thread)
}

fn serve(startup: Startup, channels: &Channels) -> Result<(), String> {
    let Startup {
        files,
        setup,
        identify,
        pools,
        shared,
        write_share,
    } = startup;
    let report = |state| (channels.sink)(Answer::State(state));
    report(TierState::Identifying);
    let parts = identify(&shared.stop);
    if shared.stop.is_set() {
        return Ok(());
    }
    let parts = parts?;
    report(TierState::Recovering);
    let Some(folder) = wait_for_folder(&*files, &setup, &parts, &shared)? else {
        return Ok(());
    };
    let mut tier = DiskTier::open(files, folder, setup, shared.clone())?;
    let mut scan = tier.recover()?;
    while let Some(rest) = scan {
        if shared.stop.is_set() {
            return Ok(());
        }
        scan = tier.scan(rest, HEADERS_AT_ONCE)?;
    }
    shared.is_serving.store(true, Ordering::Release);
    report(TierState::Serving {
        keys: tier.keys().clone(),
        records: tier.index().len(),
    });
    let mut worker = Worker {
        tier,
        channels,
        pace: Pace::new(write_share, pools.activity().clone()),
        paused_until: None,
        pools,
        shared,
        fetches: VecDeque::new(),
        writing: None,
        cost: CostModel::default(),
    };
    worker.run();
    worker.drain();
    worker.tier.close();
    Ok(())
}

/// Opens the folder, waiting for a previous engine that may still be writing to it. `None` if the thread should stop.
fn wait_for_folder(
    files: &dyn Files,
    setup: &TierSetup,
    parts: &FingerprintParts,
    shared: &Shared,
) -> Result<Option<Folder>, String> {
    let until = Instant::now() + LOCK_TIMEOUT;
    while !shared.stop.is_set() {
        let opened = Folder::open(files, &setup.root, parts.clone(), &setup.geometry)?;
        if opened.is_some() {
            return Ok(opened);
        }
        if Instant::now() >= until {
            let shown = setup.root.display();
            return Err(format!(
                "another engine uses the KV store in {shown} for the same model: set another kv_disk_path for this \
                engine, or run it without a store"
            ));
        }
        std::thread::sleep(LOCK_POLL_INTERVAL);
    }
    Ok(None)
}

struct Worker<'a> {
    tier: DiskTier,
    channels: &'a Channels,
    pools: BlockPools,
    shared: Arc<Shared>,
    /// In order of arrival; the first one is served.
    fetches: VecDeque<PendingFetch>,
    writing: Option<OngoingWrite>,
    pace: Pace,
    /// Nothing is written before this time.
    paused_until: Option<Instant>,
    cost: CostModel,
}

struct OngoingWrite {
    ticket: Ticket,
    block: HostBlock,
    writing: PartialWrite,
}

impl Worker<'_> {
    fn run(&mut self) {
        while !self.shared.stop.is_set() {
            while let Ok(urgent) = self.channels.urgent.try_recv() {
                self.handle(urgent);
            }
            if !self.fetch_some() && !self.work_in_background() {
                self.wait();
            }
        }
    }

    /// Waits for work, or for the end of a pause.
    fn wait(&mut self) {
        let deadlines = self.fetches.iter().map(|pending| pending.deadline);
        let moments = deadlines.chain(self.paused_until);
        let first = moments
            .min()
            .map(|at| at.saturating_duration_since(Instant::now()));
        let timeout = first.unwrap_or(IDLE).min(IDLE);
        let channels = self.channels;
        let none = crossbeam_channel::never();
        let commits = match self.paused_until {
            Some(_) => &none,
            None => &channels.commits,
        };
        select! {
            recv(channels.urgent) -> urgent => if let Ok(urgent) = urgent {
                self.handle(urgent);
            },
            recv(commits) -> commit => if let Ok(commit) = commit {
                self.begin_write(commit);
            },
            recv(channels.buffers_freed) -> _ => (),
            default(timeout) => if timeout == IDLE && self.paused_until.is_none() {
                let watch = Stopwatch::start();
                self.tier.sync();
                self.pause_after(&watch);
            },
        }
    }

    /// Does a piece of background work: writes a part of a block, or allocates a buffer before it is needed. False if
    /// there is nothing to do, or while background work pauses.
    fn work_in_background(&mut self) -> bool {
        let now = Instant::now();
        self.paused_until = self.paused_until.filter(|until| now < *until);
        if self.paused_until.is_some() {
            return false;
        }
        let watch = Stopwatch::start();
        let has_worked = self.write_some() || self.pools.make_ahead();
        if has_worked {
            self.pause_after(&watch);
        }
        has_worked
    }

    /// Schedules a pause after work, if the engine computes.
    fn pause_after(&mut self, watch: &Stopwatch) {
        let pause = self.pace.pause_after(watch.spent());
        self.paused_until = (!pause.is_zero()).then(|| Instant::now() + pause);
    }

    fn handle(&mut self, urgent: Urgent) {
        match urgent {
            Urgent::Find(find) => self.find(&find),
            Urgent::Fetch(fetch) => self.begin_fetch(fetch),
            Urgent::Touch(key) => self.tier.touch(key),
            Urgent::Cancel(ticket) => {
                let mut fetches = self.fetches.iter();
                let found = fetches.position(|pending| pending.fetch.ticket == ticket);
                if let Some(pending) = found.and_then(|at| self.fetches.remove(at)) {
                    self.end(pending, Some(Short::Cancelled));
                }
            }
        }
    }

    fn find(&mut self, find: &Find) {
        let geometry = self.tier.geometry();
        let (block_tokens, needs) = (geometry.block_tokens, geometry.needs);
        let bytes = |kind| geometry.payload_bytes(kind) as u64;
        let [kv, window, state] = BlockKind::ALL.map(bytes);
        let index = self.tier.index();
        let mut chain = self.tier.keys().chain(&find.namespace);
        let places = find.tokens.chunks_exact(block_tokens);
        let mut places = places.map(|tokens| chain.push(tokens));
        let is_there = |place: &BlockPlace| index.prefix(std::slice::from_ref(place)) == 1;
        let mut path: Vec<BlockPlace> = Vec::new();
        let next = loop {
            match places.next() {
                Some(place) if is_there(&place) => path.push(place),
                next => break next,
            }
        };
        let blocks = index.usable(&path, path.len(), &needs, block_tokens);
        let is_all_usable = |_: &BlockPlace| blocks == path.len();
        let miss = next.filter(is_all_usable);
        let miss = miss.and_then(|place| self.tier.dropped.why(place.key));
        let n_new = blocks.saturating_sub(find.from);
        let n_windows = needs.window_blocks(blocks, block_tokens).len();
        let bytes = n_new as u64 * kv + n_windows as u64 * window + state;
        let rate = find.prefill_tokens_per_s;
        let pays = n_new > 0 && self.cost.pays(n_new * block_tokens, bytes, rate);
        if n_new > 0 && !pays {
            self.shared.counts.too_slow.add(1);
        }
        self.send_answer(Answer::Found {
            seq: find.seq,
            path: path.into(),
            blocks,
            worth: if pays { blocks } else { 0 },
            miss,
        });
    }

    /// Writes a part of the current or the next commit. False if there is no commit.
    fn write_some(&mut self) -> bool {
        if self.writing.is_none() {
            let Ok(commit) = self.channels.commits.try_recv() else {
                return false;
            };
            self.begin_write(commit);
        }
        self.write_part();
        true
    }

    fn begin_write(&mut self, commit: Commit) {
        let Commit {
            ticket,
            place,
            block,
        } = commit;
        let writing = self.tier.begin_write(&place, block.kind(), Instant::now());
        match writing {
            Ok(writing) => {
                self.writing = Some(OngoingWrite {
                    ticket,
                    block,
                    writing,
                });
            }
            Err(outcome) => self.finish_write(ticket, block, outcome),
        }
    }

    fn write_part(&mut self) {
        let Some(mut begun) = self.writing.take() else {
            return;
        };
        let OngoingWrite { writing, block, .. } = &mut begun;
        // While the engine computes on the CPU, copying into the kernel's page cache is too expensive.
        let mode = if self.pace.was_busy() {
            WriteMode::PastCache
        } else {
            WriteMode::Cached
        };
        let done = self.tier.write_more(writing, (block, mode), Instant::now());
        match done {
            Some(outcome) => self.finish_write(begun.ticket, begun.block, outcome),
            None => self.writing = Some(begun),
        }
    }

    fn write_rest(&mut self) {
        while self.writing.is_some() {
            self.write_part();
        }
    }

    fn finish_write(&self, ticket: Ticket, block: HostBlock, outcome: Outcome) {
        // Frees the buffer before the answer is sent.
        drop(block);
        self.answer_commit(ticket, outcome);
    }

    fn answer_commit(&self, ticket: Ticket, outcome: Outcome) {
        let counts = &self.shared.counts;
        match outcome {
            Outcome::Written | Outcome::Ended => (),
            Outcome::Known => counts.known.add(1),
            Outcome::Orphan => counts.orphans.add(1),
            Outcome::NoSpace => counts.no_space.add(1),
            Outcome::Failed => counts.failed_writes.add(1),
        }
        self.send_answer(Answer::Committed { ticket, outcome });
    }

    /// Answers all pending requests: cancels fetches, and writes commits until [`DRAIN_TIMEOUT`] has passed.
    fn drain(&mut self) {
        let deadline = Instant::now() + DRAIN_TIMEOUT;
        self.shared.is_serving.store(false, Ordering::Release);
        while let Ok(urgent) = self.channels.urgent.try_recv() {
            self.handle(urgent);
        }
        while let Some(pending) = self.fetches.pop_front() {
            self.end(pending, Some(Short::Cancelled));
        }
        self.write_rest();
        while let Ok(commit) = self.channels.commits.try_recv() {
            if Instant::now() < deadline {
                self.begin_write(commit);
                self.write_rest();
            } else {
                self.answer_commit(commit.ticket, Outcome::Ended)
            }
        }
    }

    fn send_answer(&self, answer: Answer) {
        (self.channels.sink)(answer);
    }
}
