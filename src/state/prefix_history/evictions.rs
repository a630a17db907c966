//! The last evicted edges, found by any prefix that runs through them.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use super::{EvictedEdge, PrefixHash};
use crate::ids::StepId;
use crate::state::namespace::Namespace;
use crate::state::pages::PageSize;

/// Edges remembered at most, however short: bounds what each of them costs besides its tokens.
const MAX_EDGES: usize = 1 << 16;

/// Evicted edges by the hash of everything above them and their first page, the oldest forgotten first.
#[derive(Debug)]
pub(super) struct Evictions {
    page_size: PageSize,
    max_tokens: usize,
    edges: FxHashMap<PrefixHash, Remembered>,
    /// Every eviction remembered, oldest first. One whose edge was evicted again since names an older number.
    order: VecDeque<(PrefixHash, u64)>,
    next_number: u64,
    tokens: usize,
    forgotten_until: Option<StepId>,
}

#[derive(Debug)]
struct Remembered {
    tokens: Box<[u32]>,
    number: u64,
    step: StepId,
    at_s: f64,
}

/// When a part of a prompt was evicted that was cached once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Found {
    /// The eviction of the first page that is missing.
    pub(super) step: StepId,
    pub(super) at_s: f64,
    /// The prompt was cached up to this position, as far as is remembered.
    pub(super) until: usize,
}

impl Evictions {
    pub(super) fn new(page_size: PageSize, max_tokens: usize) -> Self {
        Self {
            page_size,
            max_tokens,
            edges: FxHashMap::default(),
            order: VecDeque::new(),
            next_number: 0,
            tokens: 0,
            forgotten_until: None,
        }
    }

    pub(super) fn tokens(&self) -> usize {
        self.tokens
    }

    /// The last step whose evictions are forgotten, at least in part.
    pub(super) fn forgotten_until(&self) -> Option<StepId> {
        self.forgotten_until
    }

    pub(super) fn remember(&mut self, edge: &EvictedEdge, step: StepId, at_s: f64) {
        let tokens = edge.tokens();
        let page = self.page_size.get();
        if tokens.len() < page {
            return;
        }
        let key = edge.above.then(&tokens[..page]);
        let tokens: Box<[u32]> = tokens[..tokens.len().min(self.max_tokens)].into();
        self.next_number += 1;
        self.tokens += tokens.len();
        let remembered = Remembered {
            tokens,
            number: self.next_number,
            step,
            at_s,
        };
        if let Some(before) = self.edges.insert(key, remembered) {
            self.tokens -= before.tokens.len();
        }
        self.order.push_back((key, self.next_number));
        while self.tokens > self.max_tokens || self.order.len() > MAX_EDGES {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        let Some((key, number)) = self.order.pop_front() else {
            return;
        };
        if self
            .edges
            .get(&key)
            .is_none_or(|edge| edge.number != number)
        {
            return;
        }
        if let Some(edge) = self.edges.remove(&key) {
            self.tokens -= edge.tokens.len();
            self.forgotten_until = self.forgotten_until.max(Some(edge.step));
        }
    }

    /// Looks for the eviction of the page at `missing`, the first that is not cached. An edge that began above it
    /// counts as well: the tree may have got back its upper part.
    pub(super) fn find(
        &self,
        namespace: &Namespace,
        tokens: &[u32],
        missing: usize,
    ) -> Option<Found> {
        if self.edges.is_empty() {
            return None;
        }
        let page = self.page_size.get();
        let mut hash = PrefixHash::empty(namespace);
        let mut found: Option<Found> = None;
        let pages = tokens.chunks_exact(page).enumerate();
        for (start, chunk) in pages.map(|(i, chunk)| (i * page, chunk)) {
            let reached = found.map_or(missing, |found| found.until);
            if start > reached {
                break;
            }
            hash = hash.then(chunk);
            let Some(edge) = self.edges.get(&hash) else {
                continue;
            };
            let shared = edge.tokens.iter().zip(&tokens[start..]);
            let shared = shared.take_while(|(a, b)| a == b).count();
            let until = start + self.page_size.floor(shared);
            if until <= missing {
                continue;
            }
            found = Some(match found {
                // Below the missing page the edges only tell how far it went on.
                Some(found) if start > missing => Found {
                    until: found.until.max(until),
                    ..found
                },
                Some(found) if found.step > edge.step => Found {
                    until: found.until.max(until),
                    ..found
                },
                before => Found {
                    step: edge.step,
                    at_s: edge.at_s,
                    until: before.map_or(until, |before| before.until.max(until)),
                },
            });
        }
        found
    }
}
