//! Where a prefill leaves copies of its state, and whether there is memory for them.
//!
//! A row of its own comes first: a copy is a wish, and no reason to refuse or preempt anybody. Rows that could be
//! admitted still keep a state each for themselves.

use smallvec::SmallVec;

use super::{Admitted, Candidate};
use crate::state::cache::prefix_cache::{PrefixCache, Thinning};
use crate::state::pool::state_pool::{SaveReason, StateLimits};

/// Tokens with K/V beyond the state that a prompt goes on from, for a state at their end to be worth its memory.
const MIN_BRANCH_TOKENS: usize = 64;

/// A place in an extent where the row's state is to be copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SaveAt {
    /// How many tokens the state has seen: whole pages.
    pub position: usize,
    /// Why there.
    pub reason: SaveReason,
}

/// How states are shared out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateRules {
    /// The memory.
    pub limits: StateLimits,
    /// Tokens a page.
    pub page_size: usize,
}

impl StateRules {
    /// The places of an extent that other prompts are likely to leave this one at, in order of their worth; `kv_tokens`
    /// of the prompt had K/V when it was admitted, and other candidates wait for the places in `shared`.
    pub(super) fn boundaries(
        &self,
        candidate: &Candidate,
        admitted: &Admitted,
        shared: &[usize],
    ) -> SmallVec<[usize; 4]> {
        let floor = |position: usize| position - position % self.page_size;
        let branch = admitted.kv_tokens;
        let is_branch = branch >= admitted.prefix_len + MIN_BRANCH_TOKENS;
        let last = candidate.tokens.len().saturating_sub(1);
        let anchors = candidate.anchors.iter().map(|anchor| *anchor as usize);
        let wished = anchors
            .rev()
            .chain(shared.iter().copied())
            .chain(is_branch.then_some(branch))
            .chain(candidate.anchors.is_empty().then_some(last));
        let mut places = SmallVec::new();
        for place in wished.map(floor) {
            if self.is_within(place, admitted) && !places.contains(&place) {
                places.push(place);
            }
        }
        places
    }

    /// The places of the grid in an extent.
    pub(super) fn grid(&self, admitted: &Admitted) -> impl Iterator<Item = usize> + use<> {
        let grid = self.limits.grid_tokens.max(1);
        let first = (admitted.prefix_len / grid + 1).saturating_mul(grid);
        (first..=admitted.extend_end).step_by(grid)
    }

    fn is_within(&self, place: usize, admitted: &Admitted) -> bool {
        admitted.prefix_len < place && place <= admitted.extend_end
    }
}

/// The states that are there for a plan.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spare {
    /// Free, before anything is granted.
    pub(super) free: usize,
    /// Asked for by rows that begin.
    pub(super) live: usize,
    /// Rows that none has: each may need one before another comes back.
    pub(super) rows_to_come: usize,
}

impl Spare {
    /// Shares states out for copies: boundaries in turn, then the decodes' own, then the grid. Drops cached ones where
    /// they are worth less.
    pub(super) fn grant(
        self,
        cache: &mut dyn PrefixCache,
        rules: &StateRules,
        wishes: &[Wishes],
        admitted: &mut [Admitted],
    ) {
        let droppable = cache.droppable_states(Thinning::Any);
        let kept = self.live + self.rows_to_come;
        let mut left = (self.free + droppable).saturating_sub(kept);
        let mut asked = self.live;
        if cache.keeps_states() {
            let turns = wishes.iter().map(|wish| wish.boundaries.len()).max();
            for turn in 0..turns.unwrap_or(0) {
                for (wish, admitted) in wishes.iter().zip(admitted.iter_mut()) {
                    let place = wish.boundaries.get(turn).filter(|_| left > 0);
                    if let Some(&position) = place {
                        let reason = SaveReason::Boundary;
                        admitted.saves.push(SaveAt { position, reason });
                        (left, asked) = (left - 1, asked + 1);
                    }
                }
            }
            for (wish, admitted) in wishes.iter().zip(admitted.iter_mut()) {
                if wish.tail && left > 0 {
                    admitted.keeps_tail = true;
                    (left, asked) = (left - 1, asked + 1);
                }
            }
        }
        cache.thin_states(asked.saturating_sub(self.free), Thinning::Any);
        if cache.keeps_states() {
            let free = self.free.saturating_sub(asked);
            let most = left.min(free + cache.droppable_states(Thinning::Grid));
            let granted = grant_grid(rules, wishes, admitted, most);
            cache.thin_states(granted.saturating_sub(free), Thinning::Grid);
        }
        for admitted in admitted {
            admitted.saves.sort_unstable_by_key(|save| save.position);
        }
    }
}

fn grant_grid(
    rules: &StateRules,
    wishes: &[Wishes],
    admitted: &mut [Admitted],
    most: usize,
) -> usize {
    let mut granted = 0;
    let on_grid = wishes.iter().zip(admitted).filter(|(wish, _)| wish.grid);
    for (_, admitted) in on_grid {
        for position in rules.grid(admitted) {
            let is_known = admitted.saves.iter().any(|save| save.position == position);
            if is_known || granted == most {
                continue;
            }
            let reason = SaveReason::Grid;
            admitted.saves.push(SaveAt { position, reason });
            granted += 1;
        }
    }
    granted
}

/// The wishes of a candidate that is admitted.
#[derive(Debug)]
pub(super) struct Wishes {
    /// Places for copies, the best first.
    pub(super) boundaries: SmallVec<[usize; 4]>,
    /// One more, that follows its decode from page to page.
    pub(super) tail: bool,
    /// Those of the grid besides.
    pub(super) grid: bool,
}

impl Wishes {
    /// Those of a candidate of which nothing is kept.
    pub(super) fn none() -> Self {
        Self {
            boundaries: SmallVec::new(),
            tail: false,
            grid: false,
        }
    }
}
