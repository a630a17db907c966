//! Fetches blocks from the disk. The I/O thread serves one fetch at a time: it reads some records, while the operating
//! system reads ahead, then polls its requests.
//!
//! A fetch takes as many free buffers as its blocks need, but leaves a quarter of all buffers to saves; a later fetch
//! loads the remaining blocks. If too few buffers are free, the fetch waits for buffers until its deadline.

use std::ops::Range;
use std::time::{Duration, Instant};

use super::{MAX_FETCHES, Worker};
use crate::tier::AT_ONCE;
use crate::{Answer, BlockKind, BlockPlace, BlockUse, Fetch, HostBlock, Loaded, Short};

/// Fetches leave `1 / SAVES_SHARE` of the buffers of a kind to saves, and at least one buffer.
const SAVES_SHARE: usize = 4;
/// A fetch waits until it can take `1 / ROUND_SHARE` of the buffers for fetches, unless it needs fewer.
const ROUND_SHARE: usize = 4;
/// Readahead distance in bytes: enough to keep a disk busy, and little enough that the advice does not block.
const AHEAD_BYTES: usize = 64 << 20;

/// Bytes to read between two polls of the requests, but at least one block: a slow disk takes 0.2 s.
const POLL_BYTES: usize = 32 << 20;

/// Number of checks during a fetch's timeout: a fetch that will miss its deadline ends early.
const CHECKS_PER_TIMEOUT: u32 = 8;

pub(super) struct PendingFetch {
    pub fetch: Fetch,
    requested: Instant,
    pub deadline: Instant,
    /// `None` while the fetch waits for buffers.
    begun: Option<FetchProgress>,
}

struct FetchProgress {
    /// When the fetch took its buffers.
    at: Instant,
    /// The end of the blocks to fetch.
    end: usize,
    /// Why `end` is before the requested end.
    short: Option<Short>,
    /// The kernel was advised to read ahead the blocks before this index.
    ahead: usize,
    kv: Vec<HostBlock>,
    window: Vec<HostBlock>,
    state: Option<HostBlock>,
}

enum Step {
    Read,
    /// No buffer is free.
    Waits,
    /// The fetch is over; the reason if it was cut short.
    Ends(Option<Short>),
}

#[derive(Clone, Copy)]
struct Available {
    now: usize,
    /// The largest number of buffers that all fetches together may have.
    limit: usize,
}

impl Worker<'_> {
    pub(super) fn begin_fetch(&mut self, fetch: Fetch) {
        let requested = Instant::now();
        let pending = PendingFetch {
            deadline: requested + fetch.timeout,
            fetch,
            requested,
            begun: None,
        };
        if self.fetches.len() < MAX_FETCHES {
            self.fetches.push_back(pending)
        } else {
            self.end(pending, Some(Short::Memory))
        }
    }

    /// Reads some records, or ends a fetch. False if there is nothing to do for now.
    pub(super) fn fetch_some(&mut self) -> bool {
        let now = Instant::now();
        let is_late = |pending: &PendingFetch| pending.deadline <= now;
        if let Some(at) = self.fetches.iter().position(is_late) {
            if let Some(pending) = self.fetches.remove(at) {
                self.end(pending, Some(Short::Deadline));
            }
            return true;
        }
        let Some(mut pending) = self.fetches.pop_front() else {
            return false;
        };
        match self.advance(&mut pending, now) {
            Step::Read => self.fetches.push_front(pending),
            Step::Waits => {
                self.fetches.push_front(pending);
                return false;
            }
            Step::Ends(short) => self.end(pending, short),
        }
        true
    }

    fn advance(&mut self, pending: &mut PendingFetch, now: Instant) -> Step {
        let fetch = &pending.fetch;
        let begun = match &mut pending.begun {
            Some(begun) => begun,
            none => {
                let waited = now.saturating_duration_since(pending.requested);
                match self.begin(fetch) {
                    Ok(begun) => none.insert(begun),
                    Err(step) => return step,
                };
                self.cost.note_wait(waited.as_secs_f64());
                return Step::Read;
            }
        };
        let at = fetch.blocks.start + begun.kv.len();
        if at >= begun.end {
            return Step::Ends(begun.short);
        }
        // While the engine computes, one block is read at a time, which takes one core.
        let block_bytes = self.tier.geometry().payload_bytes(BlockKind::Kv).max(1);
        let next_check = blocks_until_check(begun.kv.len(), begun.at.elapsed(), fetch.timeout);
        let max_blocks = if self.pace.is_busy() {
            1
        } else {
            (POLL_BYTES / block_bytes).min(next_check).clamp(1, AT_ONCE)
        };
        let kv = self.pools.of(BlockKind::Kv);
        let take = |_| kv.and_then(|pool| pool.take(BlockUse::Fetching));
        let wanted = (begun.end - at).min(max_blocks);
        let mut blocks: Vec<HostBlock> = (0..wanted).map_while(take).collect();
        if blocks.is_empty() {
            return Step::Ends(Some(Short::Memory));
        }
        let end = at + blocks.len();
        // Not before the first read: its speed shows whether more reads will follow.
        if !begun.kv.is_empty() {
            self.read_ahead(fetch, begun, end);
        }
        let (n_good, short) = self.read_all(&fetch.path[at..end], &mut blocks);
        blocks.truncate(n_good);
        begun.kv.append(&mut blocks);
        let progress = (begun.kv.len(), begun.end - fetch.blocks.start);
        match short {
            None if will_be_late(progress, begun.at.elapsed(), fetch.timeout) => {
                Step::Ends(Some(Short::Deadline))
            }
            None => Step::Read,
            short => Step::Ends(short),
        }
    }

    /// Advises the kernel to read ahead the blocks that are read now, up to `end`, and the blocks after them.
    fn read_ahead(&mut self, fetch: &Fetch, begun: &mut FetchProgress, end: usize) {
        let block_bytes = self.tier.geometry().payload_bytes(BlockKind::Kv).max(1);
        let until = end.saturating_add((AHEAD_BYTES / block_bytes).max(1));
        let until = until.min(begun.end);
        let from = begun.ahead.max(fetch.blocks.start + begun.kv.len());
        for place in fetch.path.get(from..until).unwrap_or_default() {
            self.tier.read_ahead(place.key, BlockKind::Kv);
        }
        begun.ahead = begun.ahead.max(until);
    }

    /// Decides how many blocks to fetch, and takes the window and state buffers that the last block needs.
    fn begin(&mut self, fetch: &Fetch) -> Result<FetchProgress, Step> {
        let geometry = self.tier.geometry();
        let (needs, block_tokens) = (geometry.needs, geometry.block_tokens);
        let path = &fetch.path;
        let start = fetch.blocks.start;
        let wanted = fetch.blocks.end.min(path.len());
        let index = self.tier.index();
        let stored = index.prefix(&path[..wanted]);
        let available = self.available(BlockKind::Kv);
        let end_within = |blocks: usize| {
            let end = stored.min(start.saturating_add(blocks));
            index.usable(path, end, &needs, block_tokens)
        };
        let enough = (available.limit / ROUND_SHARE)
            .max(1)
            .min(stored.saturating_sub(start));
        let end = end_within(available.now);
        if end <= start || available.now < enough {
            if end_within(available.limit) > start {
                return Err(Step::Waits);
            }
            let is_there = end_within(usize::MAX) > start;
            let short = if is_there {
                Short::Memory
            } else {
                Short::Evicted
            };
            return Err(Step::Ends(Some(short)));
        }
        let mut window_blocks = needs.window_blocks(end, block_tokens);
        window_blocks.start = window_blocks.start.max(start);
        let window = self.take_all(BlockKind::Window, window_blocks.len())?;
        let state = self.take_all(BlockKind::State, usize::from(needs.state))?;
        let short = if end_within(usize::MAX) > end {
            Some(Short::Memory)
        } else {
            (end < fetch.blocks.end).then_some(Short::Evicted)
        };
        Ok(FetchProgress {
            at: Instant::now(),
            end,
            short,
            ahead: start,
            kv: Vec::with_capacity(end - start),
            window,
            state: state.into_iter().next(),
        })
    }

    fn available(&self, kind: BlockKind) -> Available {
        let counts = self.pools.of(kind).map(|pool| pool.counts());
        let counts = counts.unwrap_or_default();
        let limit = counts.total - (counts.total / SAVES_SHARE).max(1).min(counts.total);
        let used = counts.fetching + counts.ready;
        Available {
            now: limit.saturating_sub(used).min(counts.free),
            limit,
        }
    }

    /// Takes `n` buffers, or no buffer.
    fn take_all(&self, kind: BlockKind, n: usize) -> Result<Vec<HostBlock>, Step> {
        let available = self.available(kind);
        if n > available.limit {
            return Err(Step::Ends(Some(Short::Memory)));
        }
        // Checks the number first: a buffer that is taken and returned at once would wake this thread again.
        if n > available.now {
            return Err(Step::Waits);
        }
        let pool = self.pools.of(kind);
        let take = |_| pool.and_then(|pool| pool.take(BlockUse::Fetching));
        let taken: Vec<HostBlock> = (0..n).map_while(take).collect();
        if taken.len() == n {
            Ok(taken)
        } else {
            Err(Step::Waits)
        }
    }

    fn read(&mut self, place: &BlockPlace, block: &mut HostBlock) -> Result<(), Short> {
        let places = std::slice::from_ref(place);
        let (_, short) = self.read_all(places, std::slice::from_mut(block));
        short.map_or(Ok(()), Err)
    }

    /// Reads consecutive records and measures the rate. Returns the number read before a failure, and its reason.
    fn read_all(
        &mut self,
        places: &[BlockPlace],
        blocks: &mut [HostBlock],
    ) -> (usize, Option<Short>) {
        let begun = Instant::now();
        let (n_good, short) = self.tier.read_all(places, blocks, begun);
        if short.is_none() {
            let seconds = begun.elapsed().as_secs_f64();
            let bytes: usize = blocks.iter().map(|block| block.bytes().len()).sum();
            self.cost.note_read(bytes as u64, seconds);
            let rate = self.cost.bytes_per_s().unwrap_or(0.0);
            self.shared.counts.read_bytes_per_s.set(rate as u64);
        }
        (n_good, short)
    }

    /// Ends a fetch. The answer has the read blocks after which a sequence can resume; none if the fetch was cancelled.
    pub(super) fn end(&mut self, pending: PendingFetch, mut short: Option<Short>) {
        let PendingFetch { fetch, begun, .. } = pending;
        let is_cancelled = short == Some(Short::Cancelled);
        let begun = begun.filter(|_| !is_cancelled);
        let loaded = begun.and_then(|begun| self.finish(&fetch, begun, &mut short));
        let (seq, ticket) = (fetch.seq, fetch.ticket);
        let answer = match loaded {
            Some(loaded) => {
                let is_whole = loaded.blocks.end >= fetch.blocks.end;
                Answer::Fetched {
                    seq,
                    ticket,
                    loaded,
                    short: short.filter(|_| !is_whole),
                }
            }
            None => {
                self.shared.counts.late.add(1);
                let reason = short.unwrap_or(Short::Evicted);
                Answer::Late {
                    seq,
                    ticket,
                    reason,
                }
            }
        };
        self.send_answer(answer);
    }

    /// Reads the window and state records needed to resume after the last block, or after an earlier one that has them.
    fn finish(
        &mut self,
        fetch: &Fetch,
        mut begun: FetchProgress,
        short: &mut Option<Short>,
    ) -> Option<Loaded> {
        let geometry = self.tier.geometry();
        let (needs, block_tokens) = (geometry.needs, geometry.block_tokens);
        let path = &fetch.path;
        let start = fetch.blocks.start;
        loop {
            let got = start + begun.kv.len();
            let index = self.tier.index();
            let end = index.usable(path, got, &needs, block_tokens);
            if end <= start {
                return None;
            }
            begun.kv.truncate(end - start);
            let mut window_blocks = needs.window_blocks(end, block_tokens);
            window_blocks.start = window_blocks.start.max(start);
            begun.window.truncate(window_blocks.len());
            let windows = begun.window.iter_mut().zip(&path[window_blocks.clone()]);
            let state = begun.state.iter_mut().zip(&path[end - 1..end]);
            let mut tail = windows.chain(state);
            // A record that failed was removed from the index: the next round ends at another block.
            match tail.try_for_each(|(block, place)| self.read(place, block)) {
                Ok(()) => return Some(self.ready(fetch, begun, start..end)),
                Err(failed) => *short = short.or(Some(failed)),
            }
        }
    }

    fn ready(&mut self, fetch: &Fetch, begun: FetchProgress, blocks: Range<usize>) -> Loaded {
        let used = blocks.end - begun.window.len().max(1)..blocks.end;
        for place in &fetch.path[used] {
            self.tier.touch(place.key);
        }
        let FetchProgress {
            mut kv,
            mut window,
            mut state,
            ..
        } = begun;
        for block in kv.iter_mut().chain(&mut window).chain(&mut state) {
            block.set_usage(BlockUse::Ready);
        }
        Loaded {
            blocks,
            kv,
            window,
            state,
        }
    }
}

/// Blocks to read before the deadline is checked again, from the rate so far: few on a slow disk.
fn blocks_until_check(done: usize, elapsed: Duration, timeout: Duration) -> usize {
    let check_interval_s = timeout.as_secs_f64() / f64::from(CHECKS_PER_TIMEOUT);
    (check_interval_s * done as f64 / elapsed.as_secs_f64().max(1e-9)) as usize
}

/// True if a fetch with `done` of `all` blocks will miss its deadline at the rate so far, and should end early.
fn will_be_late((done, all): (usize, usize), elapsed: Duration, timeout: Duration) -> bool {
    let all_s = elapsed.as_secs_f64() * all as f64 / done.max(1) as f64;
    done < all && elapsed * CHECKS_PER_TIMEOUT > timeout && all_s > timeout.as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fetch_that_will_miss_its_deadline_is_late() {
        let late = |progress, spent_ms, timeout_ms| {
            let [elapsed, timeout] = [spent_ms, timeout_ms].map(Duration::from_millis);
            will_be_late(progress, elapsed, timeout)
        };
        // 18 blocks of 7 MiB at 25 MB/s, and at 110 MB/s.
        assert!(late((1, 18), 290, 1280));
        assert!(!late((1, 18), 65, 1280));
        assert!(!late((4, 18), 270, 1280));
        assert!(!late((1, 18), 150, 1280));
        assert!(!late((0, 18), 150, 1280));
        assert!(!late((18, 18), 1279, 1280));
    }

    #[test]
    fn on_a_slow_disk_the_deadline_is_checked_after_each_block() {
        let blocks = |done, spent_ms| {
            let [elapsed, timeout] = [spent_ms, 1280].map(Duration::from_millis);
            blocks_until_check(done, elapsed, timeout)
        };
        assert_eq!((blocks(0, 0), blocks(1, 150), blocks(1, 300)), (0, 1, 0));
        assert!(blocks(1, 5) > 30 && blocks(4, 0) > 1000);
    }
}
