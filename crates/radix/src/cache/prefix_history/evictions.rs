//! The history of evicted pages, keyed by the hash of the prefix up to the end of the page.

use rustc_hash::FxHashMap;

use super::{Cause, EvictedEdge, PrefixHash};
use crate::cache::namespace::Namespace;
use crate::pool::pages::PageSize;
use souffleur_base::ids::StepId;

/// Evicted pages in two generations. A full generation is kept until the next one is full, then dropped as a whole:
/// this is cheap, and at least half of the allowed pages are remembered.
#[derive(Debug)]
pub(super) struct Evictions {
    page_size: PageSize,
    /// Bounds each generation.
    max_pages: usize,
    young: Generation,
    old: Generation,
    flushed: Generation,
    forgotten_until: Option<StepId>,
}

#[derive(Debug, Default)]
struct Generation {
    pages: FxHashMap<PrefixHash, Eviction>,
    /// The step of its last eviction.
    until: Option<StepId>,
}

#[derive(Clone, Copy, Debug)]
struct Eviction {
    step: StepId,
    at_s: f64,
}

/// The eviction of a part of a prompt.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct FoundEviction {
    /// The step that evicted the first missing page.
    pub(super) step: StepId,
    pub(super) at_s: f64,
    /// As far as recorded, the prompt was once cached up to this position.
    pub(super) until: usize,
    pub(super) cause: Cause,
}

impl Evictions {
    pub(super) fn new(page_size: PageSize, max_pages: usize) -> Self {
        Self {
            page_size,
            max_pages: (max_pages / 2).max(1),
            young: Generation::default(),
            old: Generation::default(),
            flushed: Generation::default(),
            forgotten_until: None,
        }
    }

    /// Number of evicted pages, without flushed ones.
    pub(super) fn n_pages(&self) -> usize {
        self.young.pages.len() + self.old.pages.len()
    }

    /// The last step whose evictions were dropped from the history, at least in part.
    pub(super) fn forgotten_until(&self) -> Option<StepId> {
        self.forgotten_until
    }

    /// Records at most the first `max_pages` pages of an edge.
    pub(super) fn remember(&mut self, edge: &EvictedEdge, step: StepId, at_s: f64) {
        let mut hash = edge.above;
        let mut pages = edge.tokens().chunks_exact(self.page_size.get());
        for page in pages.by_ref().take(self.max_pages) {
            hash = hash.then(page);
            if self.young.pages.len() >= self.max_pages {
                self.rotate();
            }
            self.young.pages.insert(hash, Eviction { step, at_s });
            self.young.until = Some(step);
        }
        if pages.next().is_some() {
            self.forgotten_until = Some(step);
        }
    }

    /// Records the first pages that a flush dropped, replacing the previous flush's.
    pub(super) fn remember_flush(&mut self, edges: &[EvictedEdge], step: StepId, at_s: f64) {
        let before = std::mem::take(&mut self.flushed);
        self.forgotten_until = self.forgotten_until.max(before.until);
        for edge in edges {
            let mut hash = edge.above;
            for page in edge.tokens().chunks_exact(self.page_size.get()) {
                if self.flushed.pages.len() >= self.max_pages {
                    self.forgotten_until = Some(step);
                    return;
                }
                hash = hash.then(page);
                self.flushed.pages.insert(hash, Eviction { step, at_s });
                self.flushed.until = Some(step);
            }
        }
    }

    /// The last eviction of the page with this hash, and its reason.
    fn last_of(&self, hash: PrefixHash) -> Option<(Eviction, Cause)> {
        let evictions = [&self.young, &self.old];
        let evicted = evictions.iter().find_map(|part| part.pages.get(&hash));
        let flushed = self.flushed.pages.get(&hash);
        match (evicted, flushed) {
            (Some(evicted), Some(flushed)) if flushed.at_s <= evicted.at_s => {
                Some((*evicted, Cause::Evicted))
            }
            (_, Some(flushed)) => Some((*flushed, Cause::Flushed)),
            (evicted, None) => Some((*evicted?, Cause::Evicted)),
        }
    }

    fn rotate(&mut self) {
        let full = std::mem::take(&mut self.young);
        let forgotten = std::mem::replace(&mut self.old, full);
        self.forgotten_until = self.forgotten_until.max(forgotten.until);
    }

    /// Finds the eviction of the first missing page, at token `missing`, and counts the evicted pages after it.
    pub(super) fn find(
        &self,
        namespace: &Namespace,
        tokens: &[u32],
        missing: usize,
    ) -> Option<FoundEviction> {
        if self.n_pages() + self.flushed.pages.len() == 0 {
            return None;
        }
        let mut hash = PrefixHash::empty(namespace).then(&tokens[..missing]);
        let mut found: Option<FoundEviction> = None;
        for page in tokens[missing..].chunks_exact(self.page_size.get()) {
            hash = hash.then(page);
            let Some((eviction, cause)) = self.last_of(hash) else {
                break;
            };
            let first = found.get_or_insert(FoundEviction {
                step: eviction.step,
                at_s: eviction.at_s,
                until: missing,
                cause,
            });
            first.until += page.len();
        }
        found
    }
}
