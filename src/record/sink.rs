//! Writes the message log without blocking the scheduler: through a bounded channel, to a thread that compresses.
//!
//! If the disk is too slow or an entry too large, entries are dropped and counted, and a gap is marked in the log: a
//! replay cannot continue after the gap. The scheduler never waits.
//!
//! After a panic the writer continues with the block that it had in hand, unless it may have written a part of it.
//! Then, and after an error of the disk, the log ends with its last complete block.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};

use crate::entry::Entry;
use crate::file::{self, END_BYTES, Header, LogEnd, MAX_BLOCK_BYTES};
use souffleur_chaos::{Actor, Chaos};
use souffleur_metrics::RecordMetrics;
use souffleur_state::supervision::{Intensity, Restarts};

/// A block is sent once the buffer has this many bytes of entries.
const BLOCK_BYTES: usize = 64 << 10;
/// The largest number of bytes queued for the writer.
const MAX_WAITING_BYTES: usize = 32 << 20;
const MAX_WAITING_BLOCKS: usize = 1024;
/// A writer that panics more often ends.
const ALLOWED_RESTARTS: Intensity = Intensity {
    limit: 5,
    period_s: 60.0,
};
/// How long a stopping engine waits for a disk that does not respond.
const CLOSING_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
struct Shared {
    /// No more entries will be written.
    is_closed: AtomicBool,
    waiting_bytes: AtomicUsize,
    n_dropped: AtomicU64,
    /// The number of engine units that lost entries.
    n_gaps: AtomicU64,
}

/// An open log. The log is closed when this and its recorders are dropped.
pub struct LogSink {
    /// `None` while the log is closing.
    blocks: Option<Sender<Vec<u8>>>,
    shared: Arc<Shared>,
    /// Disconnects when the writer's thread ends.
    writer_end: Receiver<()>,
}

impl LogSink {
    /// Creates the file, readable by its owner only, and starts the writer's thread. An existing log is renamed to
    /// `FILE.old`.
    ///
    /// # Errors
    /// The system's error, or that `path` is not a regular file.
    pub fn create(
        chaos: Chaos,
        path: &Path,
        max_bytes: u64,
        header: &Header,
    ) -> io::Result<Arc<Self>> {
        Self::start_with_chaos(chaos, create_file(path)?, max_bytes, header)
    }

    /// Writes a log to any writer.
    ///
    /// # Errors
    /// The system's error from the first write or the start of the thread.
    pub fn start(
        to: impl Write + Send + 'static,
        max_bytes: u64,
        header: &Header,
    ) -> io::Result<Arc<Self>> {
        Self::start_with_chaos(Chaos::default(), to, max_bytes, header)
    }

    pub(crate) fn start_with_chaos(
        chaos: Chaos,
        mut to: impl Write + Send + 'static,
        max_bytes: u64,
        header: &Header,
    ) -> io::Result<Arc<Self>> {
        let opening = file::opening(header)?;
        to.write_all(&opening)?;
        to.flush()?;
        let shared = Arc::new(Shared::default());
        let (blocks, to_write) = crossbeam_channel::bounded(MAX_WAITING_BLOCKS);
        let (writing, writer_end) = crossbeam_channel::bounded(0);
        let mut writer = Writer {
            to,
            chaos,
            n_bytes: opening.len() as u64,
            max_bytes,
            n_gaps: 0,
            in_hand: Vec::new(),
            is_writing: false,
            shared: shared.clone(),
        };
        let metrics = RecordMetrics::register();
        std::thread::Builder::new()
            .name("souffleur-record".to_owned())
            .spawn(move || {
                // Dropped when the thread ends, even by a panic.
                let _writing: Sender<()> = writing;
                write_to_the_end(&mut writer, &to_write, &metrics);
            })?;
        Ok(Arc::new(Self {
            blocks: Some(blocks),
            shared,
            writer_end,
        }))
    }

    /// A recorder for one unit; its first entry is the start of the unit.
    pub fn recorder(self: &Arc<Self>, generation: u64) -> Recorder {
        let mut recorder = Recorder {
            sink: self.clone(),
            raw: Vec::with_capacity(BLOCK_BYTES),
            n_entries: 0,
            is_broken: false,
        };
        recorder.push(&Entry::Start { generation });
        recorder
    }

    /// Number of dropped entries.
    pub fn dropped(&self) -> u64 {
        self.shared.n_dropped.load(Ordering::Relaxed)
    }

    /// Returns false when the queue is full.
    fn send(&self, raw: Vec<u8>) -> bool {
        let n_bytes = raw.len();
        let waiting = &self.shared.waiting_bytes;
        let fits = waiting.fetch_add(n_bytes, Ordering::Relaxed) + n_bytes <= MAX_WAITING_BYTES;
        let blocks = self.blocks.as_ref().filter(|_| fits);
        let is_sent = blocks.is_some_and(|blocks| blocks.try_send(raw).is_ok());
        if !is_sent {
            waiting.fetch_sub(n_bytes, Ordering::Relaxed);
        }
        is_sent
    }
}

impl Drop for LogSink {
    fn drop(&mut self) {
        self.blocks = None;
        let ended = self.writer_end.recv_timeout(CLOSING_TIMEOUT);
        if ended == Err(crossbeam_channel::RecvTimeoutError::Timeout) {
            tracing::warn!(
                "the message log is incomplete: its disk did not take the last records within {CLOSING_TIMEOUT:?}"
            );
        }
    }
}

fn create_file(path: &Path) -> io::Result<File> {
    match std::fs::symlink_metadata(path) {
        Ok(found) if !found.is_file() => {
            let reason = "it is not a regular file: give a new file or an existing log";
            return Err(io::Error::other(reason));
        }
        Ok(_) => {
            let mut old = path.as_os_str().to_owned();
            old.push(".old");
            std::fs::rename(path, PathBuf::from(old))?;
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => (),
        Err(error) => return Err(error),
    }
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

pub struct Recorder {
    sink: Arc<LogSink>,
    raw: Vec<u8>,
    n_entries: u32,
    /// Entries of this unit were dropped, so later entries cannot be replayed.
    is_broken: bool,
}

impl Recorder {
    /// False if no more entries will be written, so that callers need not build them.
    pub fn is_open(&self) -> bool {
        !self.sink.shared.is_closed.load(Ordering::Relaxed)
    }

    pub fn push(&mut self, entry: &Entry) {
        if !self.is_open() {
            return;
        }
        if self.is_broken {
            self.sink.shared.n_dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let raw = std::mem::take(&mut self.raw);
        self.n_entries += 1;
        match postcard::to_extend(entry, raw) {
            Ok(raw) if raw.len() <= MAX_BLOCK_BYTES => self.raw = raw,
            _ => self.drop_entries("an entry is too large"),
        }
        if self.raw.len() >= BLOCK_BYTES {
            self.flush();
        }
    }

    pub fn flush(&mut self) {
        if self.raw.is_empty() {
            return;
        }
        let raw = std::mem::replace(&mut self.raw, Vec::with_capacity(BLOCK_BYTES));
        if self.sink.send(raw) {
            self.n_entries = 0
        } else {
            self.drop_entries("the disk is too slow")
        }
    }

    fn drop_entries(&mut self, why: &str) {
        if !self.is_open() {
            // The log is closed: later entries do not count as dropped.
            self.raw = Vec::new();
            return;
        }
        let shared = &self.sink.shared;
        shared
            .n_dropped
            .fetch_add(u64::from(self.n_entries), Ordering::Relaxed);
        shared.n_gaps.fetch_add(1, Ordering::Relaxed);
        self.raw = Vec::new();
        self.n_entries = 0;
        self.is_broken = true;
        tracing::warn!(
            "{why}: the message log has a gap, and records nothing more until the engine is rebuilt after a failure, \
             or restarted"
        );
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.flush();
    }
}

/// Runs the writer until the log has ended, also after panics.
fn write_to_the_end(
    writer: &mut Writer<impl Write>,
    blocks: &Receiver<Vec<u8>>,
    metrics: &RecordMetrics,
) {
    let (began, mut restarts) = (Instant::now(), Restarts::default());
    loop {
        match catch_unwind(AssertUnwindSafe(|| writer.run(blocks))) {
            Ok(Ok(())) => return,
            Ok(Err(error)) => {
                metrics.failed();
                writer.shared.is_closed.store(true, Ordering::Relaxed);
                tracing::error!(%error, "failed to write the message log: recording stops");
                return;
            }
            Err(_) => metrics.died(),
        }
        let is_allowed = restarts.note(ALLOWED_RESTARTS, began.elapsed().as_secs_f64());
        if !is_allowed || writer.is_writing {
            writer.shared.is_closed.store(true, Ordering::Relaxed);
            tracing::error!(
                "the writer of the message log died: the log is cut, and recording stops"
            );
            return;
        }
        tracing::error!(
            "the writer of the message log died: it continues with the block that it had in hand"
        );
    }
}

struct Writer<W> {
    to: W,
    chaos: Chaos,
    n_bytes: u64,
    max_bytes: u64,
    n_gaps: u64,
    /// The entries of the block that is written next; empty for none.
    in_hand: Vec<u8>,
    /// A part of a block may have been written.
    is_writing: bool,
    shared: Arc<Shared>,
}

impl<W: Write> Writer<W> {
    fn run(&mut self, blocks: &Receiver<Vec<u8>>) -> io::Result<()> {
        while self.take(blocks) {
            let packed = file::block(&self.in_hand)?;
            if !self.fits(packed.len()) {
                tracing::info!(
                    max_bytes = self.max_bytes,
                    "the message log reached its size limit: recording stops"
                );
                self.shared.is_closed.store(true, Ordering::Relaxed);
                return self.end(LogEnd::SizeLimit);
            }
            self.write(&packed)?;
            if blocks.is_empty() {
                self.mark_gaps()?;
            }
        }
        self.mark_gaps()?;
        self.end(LogEnd::Closed)
    }

    /// Takes the next block in hand, unless a panic has left one there. False once there are no more.
    fn take(&mut self, blocks: &Receiver<Vec<u8>>) -> bool {
        if self.in_hand.is_empty() {
            let Ok(raw) = blocks.recv() else {
                return false;
            };
            let waiting = &self.shared.waiting_bytes;
            waiting.fetch_sub(raw.len(), Ordering::Relaxed);
            self.in_hand = raw;
        }
        true
    }

    /// Marks new gaps. Called with an empty queue, because dropped entries are newer than queued ones.
    fn mark_gaps(&mut self) -> io::Result<()> {
        let n_gaps = self.shared.n_gaps.load(Ordering::Relaxed);
        let gap = file::gap();
        if n_gaps == self.n_gaps || !self.fits(gap.len()) {
            return Ok(());
        }
        self.n_gaps = n_gaps;
        self.write(&gap)
    }

    fn fits(&self, n_bytes: usize) -> bool {
        self.n_bytes + (n_bytes + END_BYTES) as u64 <= self.max_bytes
    }

    fn end(&mut self, ending: LogEnd) -> io::Result<()> {
        let n_dropped = self.shared.n_dropped.load(Ordering::Relaxed);
        self.write(&file::end(ending, n_dropped))
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let bytes = self.chaos.before_write(Actor::Record, "write", bytes)?;
        self.n_bytes += bytes.len() as u64;
        self.is_writing = true;
        self.to.write_all(bytes)?;
        self.is_writing = false;
        // After a panic from here on, the block is not written again.
        self.in_hand.clear();
        self.to.flush()
    }
}
