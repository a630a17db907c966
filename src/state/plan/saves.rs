//! Chooses the positions at which a prefill copies its recurrent state, and grants memory for the copies.
//!
//! Rows take precedence: copies are optional, and no request is refused or preempted for one. The copies of a prefill
//! are in the cache before the next plan, which can drop them in favour of rows. The copy of a decode stays with its
//! row, so a plan grants one only if a state remains for each row that could still be admitted.
//!
//! States are saved where other prompts are likely to diverge or resume: at the request's anchors (ends of the
//! instructions, of the user's last message and of turns), at the end of cached K/V far after the resumed state, where
//! a held-back candidate resumes, one token before the end of a prompt without turns or with several outputs, and at
//! multiples of `grid_tokens`.

use smallvec::SmallVec;

use super::candidate::Candidate;
pub use super::save_rules::{SaveAt, StateRules};
use super::verdict::Admitted;
use crate::cache::prefix_cache::Thinning;
use crate::cache::radix_tree::RadixTree;
use crate::pool::state_pool::SaveReason;

/// A state at the end of cached K/V is worth its memory if it is at least this many tokens after the resumed state.
const MIN_BRANCH_TOKENS: usize = 64;
/// Fewest anchors of a chat that ends with a tool result: the ends of its instructions, of the last message of the
/// user, and of all turns.
const ANCHORS_OF_TOOL_TURNS: usize = 3;

impl StateRules {
    /// The positions in a step's prefill at which to copy the state, the most useful first. Other candidates wait for
    /// the positions in `shared`.
    pub(super) fn useful_copies(
        &self,
        candidate: &Candidate,
        admitted: &Admitted,
        shared: &[usize],
    ) -> UsefulCopies {
        let floor = |position: usize| position - position % self.grain;
        let branch = admitted.kv_tokens;
        let is_branch = branch >= admitted.extend_start() + MIN_BRANCH_TOKENS;
        let last = candidate.tokens.len().saturating_sub(1);
        let anchors = candidate.anchors.iter().map(|anchor| *anchor as usize);
        // An anchor beyond the end stands for further outputs of the prompt, which compute its last token again.
        let anchors = anchors.map(|anchor| {
            if anchor > candidate.tokens.len() {
                last
            } else {
                anchor
            }
        });
        let at = |position: usize| Place::At(floor(position));
        let tail = (self.page_size > 1 && candidate.continues_at.is_none()).then_some(Place::Tail);
        // After a tool result the next prompt resumes from the reply, and rarely from before it.
        let (early_tail, late_tail) = if candidate.n_anchors() >= ANCHORS_OF_TOOL_TURNS {
            (tail, None)
        } else {
            (None, tail)
        };
        // A state at the end of loaded blocks makes them usable for other rows.
        let loaded = admitted.load.map(|load| at(load.to));
        let useful = shared.iter().copied().map(at).chain(loaded);
        let useful = useful
            .chain(early_tail)
            .chain(anchors.rev().map(at))
            .chain(is_branch.then_some(branch).map(at))
            .chain(candidate.anchors.is_empty().then_some(last).map(at))
            .chain(late_tail);
        let mut places = UsefulCopies::new();
        for place in useful {
            if self.is_within(place, admitted) && !places.contains(&place) {
                places.push(place);
            }
        }
        places
    }

    pub(super) fn grid_positions(
        &self,
        admitted: &Admitted,
    ) -> impl Iterator<Item = usize> + use<> {
        let grid = self.limits.grid_tokens.max(1);
        let first = (admitted.extend_start() / grid + 1).saturating_mul(grid);
        (first..=admitted.extend_end).step_by(grid)
    }

    fn is_within(&self, place: Place, admitted: &Admitted) -> bool {
        match place {
            Place::At(place) => {
                let is_loaded = admitted.load.is_some_and(|load| load.to == place);
                let is_computed = admitted.extend_start() < place && place <= admitted.extend_end;
                is_loaded || is_computed
            }
            Place::Tail => true,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct StateBudget {
    /// States that are free, before anything is granted.
    pub(super) free: usize,
    /// States that new rows need.
    pub(super) new_rows: usize,
    /// Unused rows: each may need a state before another row returns its own.
    pub(super) unused_rows: usize,
    /// Prefills whose copies other candidates will start from: each needs a copy in addition to its own state.
    pub(super) awaited_prefills: usize,
}

impl StateBudget {
    /// Allocates states for useful copies, then for those at multiples of `grid_tokens`. Drops less useful cached ones.
    pub(super) fn grant(
        self,
        cache: &mut RadixTree,
        rules: &StateRules,
        wanted: &[Option<UsefulCopies>],
        admitted: &mut [Admitted],
    ) {
        let all = self.free + cache.droppable_states(Thinning::Later);
        cache.thin_states(self.new_rows.saturating_sub(self.free), Thinning::Any);
        if !cache.keeps_states() {
            return;
        }
        let mut free = self.free.saturating_sub(self.new_rows);
        let mut left = CopyBudget {
            copies: free + cache.droppable_states(Thinning::Unnamed),
            tails: all.saturating_sub(self.new_rows + self.unused_rows + self.awaited_prefills),
        };
        let taken = left.grant(wanted, admitted);
        cache.thin_states(taken.saturating_sub(free), Thinning::Unnamed);
        free = free.saturating_sub(taken);
        let max_copies = left
            .copies
            .min(free + cache.droppable_states(Thinning::Grid));
        let granted = grant_grid(rules, wanted, admitted, max_copies);
        cache.thin_states(granted.saturating_sub(free), Thinning::Grid);
        for admitted in admitted {
            admitted.saves.sort_unstable_by_key(|save| save.position);
        }
    }
}

struct CopyBudget {
    copies: usize,
    /// The part of `copies` that may stay with their rows.
    tails: usize,
}

impl CopyBudget {
    /// Grants the first useful copy of each row, then the second of each, and so on. Returns the number granted.
    fn grant(&mut self, wanted: &[Option<UsefulCopies>], admitted: &mut [Admitted]) -> usize {
        let before = self.copies;
        let n_ranks = wanted.iter().flatten().map(|wanted| wanted.len()).max();
        for rank in 0..n_ranks.unwrap_or(0) {
            for (wanted, admitted) in wanted.iter().zip(admitted.iter_mut()) {
                match wanted.as_ref().and_then(|wanted| wanted.get(rank)) {
                    Some(Place::At(position)) if self.copies > 0 => {
                        admitted.saves.push(SaveAt {
                            position: *position,
                            reason: SaveReason::Boundary,
                        });
                        self.copies -= 1;
                    }
                    Some(Place::Tail) if self.copies.min(self.tails) > 0 => {
                        admitted.keeps_tail = true;
                        self.copies -= 1;
                        self.tails -= 1;
                    }
                    _ => (),
                }
            }
        }
        before - self.copies
    }
}

fn grant_grid(
    rules: &StateRules,
    wanted: &[Option<UsefulCopies>],
    admitted: &mut [Admitted],
    max_copies: usize,
) -> usize {
    let mut granted = 0;
    let on_grid = wanted
        .iter()
        .zip(admitted)
        .filter(|(wanted, _)| wanted.is_some());
    for (_, admitted) in on_grid {
        for position in rules.grid_positions(admitted) {
            let is_saved = admitted.saves.iter().any(|save| save.position == position);
            if is_saved || granted == max_copies {
                continue;
            }
            let reason = SaveReason::Grid;
            admitted.saves.push(SaveAt { position, reason });
            granted += 1;
        }
    }
    granted
}

/// The useful copies of an admitted candidate, the best position first.
pub(super) type UsefulCopies = SmallVec<[Place; 4]>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// After this many tokens: whole pages.
    At(usize),
    /// At the end of the last whole page of the sequence; decodes move the copy from page to page.
    Tail,
}
