//! Schedules the simulated disk: fetches in order of arrival, and writes if no fetch can start.

use std::ops::Range;
use std::sync::Arc;

use super::{StoreAnswer, VirtualStore};
use souffleur_base::ids::Ticket;
use souffleur_state::tiers::{BlockKey, BlockKind, BlockPlace, Stored};

/// `1 / SAVES_SHARE` of the buffers, and at least one, are reserved for saves.
const SAVES_SHARE: usize = 4;
/// A fetch waits until it can take `1 / MIN_FETCH_SHARE` of the buffers for fetches, unless it needs fewer.
const MIN_FETCH_SHARE: usize = 4;
const MAX_RECORDS: usize = 1 << 20;

pub(super) struct Fetch {
    pub ticket: Ticket,
    pub path: Arc<[BlockPlace]>,
    pub blocks: Range<usize>,
    pub queued_s: f64,
    pub deadline_s: f64,
}

pub(super) struct Write {
    pub ticket: Ticket,
    pub place: BlockPlace,
    pub kind: BlockKind,
}

pub(super) struct Job {
    began_s: f64,
    pub ends_s: f64,
    work: Work,
}

enum Work {
    Read {
        fetch: Fetch,
        /// The number of blocks to read.
        blocks: usize,
        is_cancelled: bool,
    },
    Write(Write),
}

/// The next step of a fetch.
enum Next {
    /// Read the blocks before this index.
    Read(usize),
    /// Too few buffers are free.
    Wait,
    /// The store has none of the blocks.
    End,
}

impl VirtualStore<'_> {
    pub(super) fn queue_fetch(
        &mut self,
        ticket: Ticket,
        path: Arc<[BlockPlace]>,
        blocks: Range<usize>,
        now_s: f64,
    ) {
        let timeout = self.model.shape.prefetch_timeout;
        let timeout = timeout.of(blocks.len() * self.block_tokens());
        self.fetches.push_back(Fetch {
            ticket,
            path,
            blocks,
            queued_s: now_s,
            deadline_s: now_s + timeout.as_secs_f64(),
        });
    }

    pub(super) fn discard(&mut self, discarded: Ticket, now_s: f64) {
        self.saved_states.remove(&discarded);
        self.ready.remove(&discarded);
        let waiting = self.fetches.iter();
        let mut waiting = waiting.map(|fetch| fetch.ticket);
        if let Some(at) = waiting.position(|ticket| ticket == discarded) {
            self.fetches.remove(at);
            return self.answer_fetch(discarded, 0);
        }
        let read_s = self.read_s(BlockKind::Kv);
        let latency_s = self.model.latency_s;
        if let Some(job) = &mut self.current_job
            && let Work::Read {
                fetch,
                is_cancelled,
                ..
            } = &mut job.work
            && fetch.ticket == discarded
        {
            // The fetch ends with the block being read.
            *is_cancelled = true;
            let n_begun = ((now_s - job.began_s - latency_s) / read_s).ceil().max(0.0);
            job.ends_s = job.ends_s.min(job.began_s + latency_s + n_begun * read_s);
        }
    }

    fn answer_fetch(&mut self, ticket: Ticket, blocks: usize) {
        self.outcome.late += u64::from(blocks == 0);
        self.answers.push(StoreAnswer::Fetched { ticket, blocks });
    }

    fn read_s(&self, kind: BlockKind) -> f64 {
        self.model.payload_bytes(kind) as f64 / self.model.read_bytes_per_s
    }

    /// Ends the waiting fetches whose deadline has passed.
    pub(super) fn end_late(&mut self, now_s: f64) {
        let is_late = |fetch: &Fetch| fetch.deadline_s <= now_s;
        while let Some(at) = self.fetches.iter().position(is_late) {
            if let Some(fetch) = self.fetches.remove(at) {
                self.answer_fetch(fetch.ticket, 0);
            }
        }
    }

    pub(super) fn begin_read(&mut self, now_s: f64) -> Option<Job> {
        while let Some(fetch) = self.fetches.pop_front() {
            match self.next_of(&fetch) {
                Next::Read(end) => return Some(self.read(fetch, end, now_s)),
                Next::Wait => {
                    self.fetches.push_front(fetch);
                    return None;
                }
                Next::End => self.answer_fetch(fetch.ticket, 0),
            }
        }
        None
    }

    fn next_of(&self, fetch: &Fetch) -> Next {
        let needs = self.model.shape.geometry.needs;
        let start = fetch.blocks.start;
        let wanted = fetch.blocks.end.min(fetch.path.len());
        let n_stored = self.index.prefix(&fetch.path[..wanted]);
        let end_within = |blocks: usize| {
            let end = n_stored.min(start.saturating_add(blocks));
            let block_tokens = self.block_tokens();
            self.index.usable(&fetch.path, end, &needs, block_tokens)
        };
        let total = self.model.shape.limits.buffers;
        let fetch_buffers = total - (total / SAVES_SHARE).max(1).min(total);
        let free_buffers = fetch_buffers.saturating_sub(self.ready.values().sum());
        let min_buffers = (fetch_buffers / MIN_FETCH_SHARE).max(1);
        let min_buffers = min_buffers.min(n_stored.saturating_sub(start));
        let end = end_within(free_buffers);
        if end > start && free_buffers >= min_buffers {
            return Next::Read(end);
        }
        if end_within(fetch_buffers) > start {
            Next::Wait
        } else {
            Next::End
        }
    }

    fn read(&mut self, fetch: Fetch, end: usize, now_s: f64) -> Job {
        self.cost.note_wait(now_s - fetch.queued_s);
        let read_s = self.read_s(BlockKind::Kv);
        let in_time_s = fetch.deadline_s - now_s - self.model.latency_s;
        // The last block starts before the deadline.
        let in_time = (in_time_s / read_s).ceil().max(1.0);
        let blocks = (end - fetch.blocks.start).min(in_time as usize);
        let states_s = self.read_s(BlockKind::State);
        let took_s = self.model.latency_s + blocks as f64 * read_s + states_s;
        Job {
            began_s: now_s,
            ends_s: now_s + took_s,
            work: Work::Read {
                fetch,
                blocks,
                is_cancelled: false,
            },
        }
    }

    pub(super) fn begin_write(&mut self, now_s: f64) -> Option<Job> {
        while let Some(write) = self.writes.pop_front() {
            let Write {
                ticket,
                place,
                kind,
            } = write;
            let stored = self.index.check(&place, kind);
            let kept = matches!(stored, Stored::Known);
            let counted = match stored {
                Stored::New if self.evict_until_fits(&place, kind) => {
                    let bytes = self.model.payload_bytes(kind) as f64;
                    return Some(Job {
                        began_s: now_s,
                        ends_s: now_s + bytes / self.model.write_bytes_per_s,
                        work: Work::Write(write),
                    });
                }
                Stored::New => &mut self.outcome.no_space,
                Stored::Known => {
                    self.index.touch(place.key);
                    &mut self.outcome.known
                }
                Stored::Orphan => &mut self.outcome.orphans,
            };
            *counted += 1;
            self.answers.push(StoreAnswer::Written { ticket, kept });
        }
        None
    }

    pub(super) fn held_bytes(&self) -> u64 {
        let of = |kind| self.index.records(kind) as u64 * self.model.record_bytes(kind);
        BlockKind::ALL.into_iter().map(of).sum()
    }

    /// Evicts records until the new record fits. Returns false if that would evict the record that it depends on.
    fn evict_until_fits(&mut self, place: &BlockPlace, kind: BlockKind) -> bool {
        let needed: BlockKey = match kind {
            BlockKind::Kv => place.parent,
            BlockKind::Window | BlockKind::State => place.key,
        };
        // A touched record is evicted last.
        self.index.touch(needed);
        let bytes = self.model.record_bytes(kind);
        let is_full = |store: &Self| {
            let is_too_large = store.held_bytes() + bytes > store.model.disk_bytes;
            is_too_large || store.index.len() >= MAX_RECORDS
        };
        while is_full(self) {
            match self.index.next_victim(None) {
                Some((kind, key)) if key != needed => self.index.remove(key, kind),
                _ => return false,
            };
            self.outcome.evicted += 1;
        }
        true
    }

    pub(super) fn finish(&mut self, job: Job) {
        let took_s = job.ends_s - job.began_s;
        match job.work {
            Work::Write(Write {
                ticket,
                place,
                kind,
            }) => {
                self.outcome.write_s += took_s;
                self.outcome.written += 1;
                self.index.insert(place, kind, 0);
                let kept = true;
                self.answers.push(StoreAnswer::Written { ticket, kept });
            }
            Work::Read {
                fetch,
                blocks,
                is_cancelled,
            } => {
                self.outcome.read_s += took_s;
                if is_cancelled {
                    self.answer_fetch(fetch.ticket, 0)
                } else {
                    self.end_read(&fetch, blocks)
                }
            }
        }
    }

    fn end_read(&mut self, fetch: &Fetch, blocks: usize) {
        let read_s = self.read_s(BlockKind::Kv);
        let bytes = self.model.payload_bytes(BlockKind::Kv);
        self.cost.note_read(bytes, read_s + self.model.latency_s);
        for _ in 1..blocks {
            self.cost.note_read(bytes, read_s);
        }
        self.outcome.read += blocks as u64;
        let needs = self.model.shape.geometry.needs;
        let start = fetch.blocks.start;
        let end = start + blocks;
        let block_tokens = self.block_tokens();
        let end = self.index.usable(&fetch.path, end, &needs, block_tokens);
        let n_loaded = end.saturating_sub(start);
        if let Some(last) = end.checked_sub(1).filter(|_| n_loaded > 0) {
            self.index.touch(fetch.path[last].key);
            self.ready.insert(fetch.ticket, n_loaded);
        }
        self.answer_fetch(fetch.ticket, n_loaded);
    }
}
