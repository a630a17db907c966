//! The window pages of sequences: given back as soon as nobody sees them any more.

use smallvec::SmallVec;

use super::Scheduler;
use crate::ids::SeqId;
use crate::state::plan::window_budget::WindowBudget;
use crate::state::pool::pages::{Window, WindowPages};
use crate::state::scheduler::sequence::Sequence;

/// Tokens that an output may still lose at its end: a stop string, and what was decoded while it was found.
const LOST_AT_END: usize = 8;

impl Scheduler {
    fn window(&self) -> Option<Window> {
        let windows = self.limits.windows.as_ref()?;
        Some(windows.window(self.limits.page_size))
    }

    /// The budget of window pages of an admission.
    pub(super) fn window_budget(&self) -> Option<WindowBudget> {
        let window = self.window()?;
        let running = self.batch.running().iter();
        let running = running.map(|&seq| self.window_needs_of(seq, window));
        Some(WindowBudget::new(window, running))
    }

    /// Tokens that a sequence may still generate, and those of pages of its own.
    fn window_needs_of(&self, seq: SeqId, window: Window) -> (f64, usize) {
        let kv = self.requests[seq].held_kv();
        let protected = window.page_size.tokens_in(kv.protected_pages);
        let own = kv.committed.saturating_sub(protected);
        let to_come = self.reserve_of(seq).tokens(self.batch.ratio().get());
        (to_come, own)
    }

    /// Tokens of window pages that others can have when a sequence leaves: what is reserved for it, what it owns, and what
    /// it sees of the cache's, unless others see that too.
    pub(super) fn window_tokens_of(&self, seq: SeqId) -> f64 {
        let Some(window) = self.window() else {
            return 0.0;
        };
        let (to_come, own) = self.window_needs_of(seq, window);
        let kv = self.requests[seq].held_kv();
        let n_own = kv.windows.as_ref().map_or(0, |own| own.pages.len());
        let passed = window.passed_pages(kv.committed);
        let held = n_own + kv.protected_pages.saturating_sub(passed);
        WindowBudget::reserve(window, to_come, own) + window.page_size.tokens_in(held) as f64
    }

    /// Takes the window pages of a sequence that no query of the step being planned sees, nor any later one. With a cache
    /// those stay that a prompt would see which goes on from its last whole page, if it ended now.
    pub(super) fn leave_windows(&mut self, seq: SeqId) {
        let Some(window) = self.window() else {
            return;
        };
        let has_cache = self.limits.queue.eviction_policy.is_some();
        let sequence = &mut self.requests[seq];
        let is_published = has_cache && !sequence.request.bypasses_cache;
        let kv = sequence.held_kv_mut();
        let Some(windows) = &mut kv.windows else {
            return;
        };
        let passed = match is_published {
            true => window.passed_by_end(kv.committed.saturating_sub(LOST_AT_END)),
            false => window.passed_pages(kv.committed),
        };
        self.left_windows.append(windows.take_below(passed));
        if window.passed_pages(kv.committed) >= kv.protected_pages
            && let Some(lock) = kv.lock.take_windows()
        {
            self.hosts.pins_mut().release(lock);
        }
    }

    /// Nothing of what a sequence computes goes to the cache.
    pub(super) fn is_kept_from_cache(&self, seq: SeqId) -> bool {
        let has_cache = self.limits.queue.eviction_policy.is_some();
        let holder = self.requests.get(seq);
        let holder = holder.filter(|sequence| sequence.kv.is_some() && !sequence.has_ended);
        holder.is_some_and(|sequence| !has_cache || sequence.request.bypasses_cache)
    }

    /// Sequences have left some that no plan has given back.
    pub(super) fn has_left_windows(&self) -> bool {
        !self.left_windows.is_empty()
    }

    /// Takes what sequences have left since this was last asked.
    pub(super) fn take_left_windows(&mut self) -> WindowPages {
        std::mem::take(&mut self.left_windows)
    }

    /// Gives those that grow the window page that comes with their page.
    pub(super) fn attach_windows(&mut self, seqs: &[SeqId], windows: WindowPages) {
        let mut windows = windows.one_by_one();
        for seq in seqs {
            let sequence = &mut self.requests[*seq];
            let is_alive = !sequence.has_ended;
            let kv = sequence.held_kv_mut();
            let own = kv.windows.as_mut();
            let page = own.and_then(|own| own.take_next(&mut windows));
            let page = page.expect("a window page was granted to each");
            if is_alive {
                self.pipeline.append_windows(kv.row, &[page]);
            }
        }
    }

    /// Window pages that a plan could be granted now, beside those that it gives back.
    pub(super) fn has_windows_for(&self, growing: usize) -> bool {
        let free = self.memory.free_windows() + self.left_windows.len();
        self.limits.windows.is_none() || growing <= free
    }

    /// Where other prompts are likely to leave that of a sequence.
    pub(super) fn boundaries_of(&self, seq: SeqId) -> SmallVec<[usize; 4]> {
        match (self.limits.windows, self.requests.get(seq)) {
            (Some(_), Some(sequence)) => boundaries(sequence),
            _ => SmallVec::new(),
        }
    }
}

fn boundaries(sequence: &Sequence) -> SmallVec<[usize; 4]> {
    let request = &sequence.request;
    let prompt = request.prompt.len();
    let anchors = request.anchors.iter().map(|anchor| *anchor as usize);
    let inside = anchors.filter(|anchor| *anchor < prompt);
    inside.chain([prompt]).collect()
}
