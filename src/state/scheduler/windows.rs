//! KV pages of sliding-window layers (window pages): released once their tokens have left the attention window.
//!
//! Every granted page comes with a window page: one list of demands covers both and is granted or refused as a whole.

use smallvec::SmallVec;

use super::Scheduler;
use crate::plan::window_budget::WindowBudget;
use crate::pool::pages::{Window, WindowPages};
use crate::scheduler::sequence::Sequence;
use crate::step::PIPELINE_DEPTH;
use souffleur_base::ids::SeqId;

/// Tokens that an output may still lose at its end: a stop string, and tokens decoded while it was detected.
const LOST_AT_END: usize = 8;

impl Scheduler {
    fn window(&self) -> Option<Window> {
        let windows = self.limits.windows.as_ref()?;
        Some(windows.window(self.limits.page_size))
    }

    pub(super) fn window_budget(&self) -> Option<WindowBudget> {
        let window = self.window()?;
        let running = self.batch.running().iter();
        let running = running.map(|&seq| self.window_needs_of(seq, window));
        Some(WindowBudget::new(window, running))
    }

    /// Tokens that a sequence may still generate, and tokens of its private window pages.
    fn window_needs_of(&self, seq: SeqId, window: Window) -> (f64, usize) {
        let kv = self.requests[seq].held_kv();
        let protected = window.page_size.tokens_in(kv.protected_pages);
        let held = kv.committed.saturating_sub(protected);
        let remaining = self.reserve_of(seq).tokens(self.batch.ratio().get());
        (remaining, held)
    }

    /// Tokens of window pages that the preemption of a sequence frees: its reservation, its private pages, and the
    /// cache's pages in its window (which other sequences may share).
    pub(super) fn window_tokens_of(&self, seq: SeqId) -> f64 {
        let Some(window) = self.window() else {
            return 0.0;
        };
        let (remaining, private) = self.window_needs_of(seq, window);
        let kv = self.requests[seq].held_kv();
        let n_own = kv.windows.as_ref().map_or(0, |own| own.pages.len());
        let passed = window.passed_pages(kv.committed);
        let held = n_own + kv.protected_pages.saturating_sub(passed);
        WindowBudget::reserve(window, remaining, private) + window.page_size.tokens_in(held) as f64
    }

    /// Releases window pages that neither this step's queries nor later ones attend to. With a cache, keeps the pages
    /// that a later prompt needs to continue after the last whole page, in case the sequence ends now.
    pub(super) fn release_old_windows(&mut self, seq: SeqId) {
        let Some(window) = self.window() else {
            return;
        };
        let has_cache = self.limits.queue.eviction_policy.is_some();
        let free_windows = self.free_windows();
        let sequence = &mut self.requests[seq];
        let is_published = has_cache && !sequence.request.bypasses_cache;
        let max_room = sequence.max_room();
        let unsure = sequence.unsure as usize;
        let kv = sequence.held_kv_mut();
        let certain = kv.committed - unsure;
        // A longer tail is kept only if it takes no page that another sequence needs soon.
        let tail_pages = window.page_size.pages_for(window.tail_tokens());
        let lost_at_end = if free_windows < tail_pages {
            LOST_AT_END
        } else {
            lost_at_end(max_room)
        };
        let Some(windows) = &mut kv.windows else {
            return;
        };
        let passed = if is_published {
            window.passed_by_end(certain.saturating_sub(lost_at_end))
        } else {
            window.passed_pages(certain)
        };
        self.passed_windows.append(windows.take_below(passed));
        if window.passed_pages(certain) >= kv.protected_pages
            && let Some(lock) = kv.lock.take_windows()
        {
            self.hosts.pins_mut().release(lock);
        }
    }

    /// True if the sequence publishes nothing to the cache.
    pub(super) fn publishes_nothing(&self, seq: SeqId) -> bool {
        let has_cache = self.limits.queue.eviction_policy.is_some();
        let sequence = self.requests.get(seq);
        let sequence = sequence.filter(|sequence| sequence.kv.is_some() && !sequence.has_ended);
        sequence.is_some_and(|sequence| !has_cache || sequence.request.bypasses_cache)
    }

    pub(super) fn has_passed_windows(&self) -> bool {
        !self.passed_windows.is_empty()
    }

    pub(super) fn take_passed_windows(&mut self) -> WindowPages {
        std::mem::take(&mut self.passed_windows)
    }

    /// Appends a window page to each growing sequence.
    pub(super) fn attach_windows(&mut self, seqs: &[SeqId], windows: WindowPages) {
        let mut windows = windows.one_by_one();
        for seq in seqs {
            let sequence = self.requests.noted_mut(*seq);
            let is_live = !sequence.has_ended;
            let kv = sequence.held_kv_mut();
            let own = kv.windows.as_mut();
            let page = own.and_then(|own| own.take_next(&mut windows));
            let page = page.expect("each growing sequence was granted a window page");
            if is_live {
                self.pipeline.append_windows(kv.row, &[page]);
            }
        }
    }

    /// True if a plan can grant this many window pages, including the pages that it returns.
    pub(super) fn has_windows_for(&self, growing: usize) -> bool {
        self.limits.windows.is_none() || growing <= self.free_windows()
    }

    /// Window pages that a plan can grant, including the pages that it returns.
    pub(super) fn free_windows(&self) -> usize {
        self.memory.free_windows() + self.passed_windows.len()
    }

    /// Positions where other prompts are likely to diverge from this sequence; empty without window layers.
    pub(super) fn boundaries_of(&self, seq: SeqId) -> SmallVec<[usize; 4]> {
        match (self.limits.windows, self.requests.get(seq)) {
            (Some(_), Some(sequence)) => boundaries(sequence),
            _ => SmallVec::new(),
        }
    }
}

/// Tokens that an output may still lose at its end. While a stop string is detected, both steps in flight decode.
fn lost_at_end(room: u32) -> usize {
    LOST_AT_END + PIPELINE_DEPTH * (room as usize - 1)
}

fn boundaries(sequence: &Sequence) -> SmallVec<[usize; 4]> {
    let request = &sequence.request;
    let prompt = request.prompt.len();
    let anchors = request.anchors.iter().map(|anchor| *anchor as usize);
    let in_prompt = anchors.filter(|anchor| *anchor < prompt);
    in_prompt.chain([prompt]).collect()
}
