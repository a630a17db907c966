//! Chooses the positions at which a prefill copies its recurrent state, and grants memory for the copies.
//!
//! Rows come first: a copy is best effort, and never refuses or preempts a request. A prefill's copies are in the cache
//! when the next plan is made, and its rows can take them over; a decode's copy stays with its row, so the plan
//! reserves a further state for each row that could still be admitted.
//!
//! States are saved where others are likely to diverge or resume: at the request's anchors (ends of the instructions,
//! of the user's last message and of turns), at the end of cached K/V well after the resumed state, where a held-back
//! candidate resumes, one token before the end of a plain prompt and of one with several outputs, and on a grid.

use smallvec::SmallVec;

use super::candidate::Candidate;
pub use super::save_rules::{SaveAt, StateRules};
use super::verdict::Admitted;
use crate::cache::prefix_cache::Thinning;
use crate::cache::radix_tree::RadixTree;
use crate::pool::state_pool::SaveReason;

/// Fewest tokens of cached K/V beyond the resumed state for which a state at their end is worth its memory.
const MIN_BRANCH_TOKENS: usize = 64;
/// Fewest anchors of a chat that ends with a tool result: the ends of its instructions, of the last message of the
/// user, and of all turns.
const ANCHORS_OF_TOOL_TURNS: usize = 3;

impl StateRules {
    /// The positions of an extent at which other prompts are likely to diverge from this one, in order of their worth;
    /// `kv_tokens` of the prompt had K/V when it was admitted, and other candidates wait for the positions in `shared`.
    pub(super) fn wishes(
        &self,
        candidate: &Candidate,
        admitted: &Admitted,
        shared: &[usize],
    ) -> Wishes {
        let floor = |position: usize| position - position % self.grain;
        let branch = admitted.kv_tokens;
        let is_branch = branch >= admitted.extend_start() + MIN_BRANCH_TOKENS;
        let last = candidate.tokens.len().saturating_sub(1);
        let anchors = candidate.anchors.iter().map(|anchor| *anchor as usize);
        // An anchor beyond the end means more outputs of the prompt, which compute its last token.
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
        let (first, second) = if candidate.n_turns() >= ANCHORS_OF_TOOL_TURNS {
            (tail, None)
        } else {
            (None, tail)
        };
        // A state at the end of loaded blocks makes them usable for other rows.
        let loaded = admitted.load.map(|load| at(load.to));
        let wished = shared.iter().copied().map(at).chain(loaded);
        let wished = wished
            .chain(first)
            .chain(anchors.rev().map(at))
            .chain(is_branch.then_some(branch).map(at))
            .chain(candidate.anchors.is_empty().then_some(last).map(at))
            .chain(second);
        let mut places = Wishes::new();
        for place in wished {
            if self.is_within(place, admitted) && !places.contains(&place) {
                places.push(place);
            }
        }
        places
    }

    pub(super) fn grid(&self, admitted: &Admitted) -> impl Iterator<Item = usize> + use<> {
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
pub(super) struct Spare {
    /// States that are free, before anything is granted.
    pub(super) free: usize,
    /// States that new rows need.
    pub(super) live: usize,
    /// Unused rows: each may need a state before another row returns its own.
    pub(super) rows_to_come: usize,
    /// Prefills from whose copies others will start: each needs a copy in addition to its own state.
    pub(super) awaited: usize,
}

impl Spare {
    /// Allocates states for copies: the requested ones in turn, then the grid. Drops cached states that are worth less.
    pub(super) fn grant(
        self,
        cache: &mut RadixTree,
        rules: &StateRules,
        wishes: &[Option<Wishes>],
        admitted: &mut [Admitted],
    ) {
        let all = self.free + cache.droppable_states(Thinning::Later);
        cache.thin_states(self.live.saturating_sub(self.free), Thinning::Any);
        if !cache.keeps_states() {
            return;
        }
        let mut free = self.free.saturating_sub(self.live);
        let mut left = Left {
            copies: free + cache.droppable_states(Thinning::Unnamed),
            tails: all.saturating_sub(self.live + self.rows_to_come + self.awaited),
        };
        let asked = left.grant(wishes, admitted);
        cache.thin_states(asked.saturating_sub(free), Thinning::Unnamed);
        free = free.saturating_sub(asked);
        let most = left
            .copies
            .min(free + cache.droppable_states(Thinning::Grid));
        let granted = grant_grid(rules, wishes, admitted, most);
        cache.thin_states(granted.saturating_sub(free), Thinning::Grid);
        for admitted in admitted {
            admitted.saves.sort_unstable_by_key(|save| save.position);
        }
    }
}

struct Left {
    /// Copies of any kind.
    copies: usize,
    /// Of these, copies that stay with their rows.
    tails: usize,
}

impl Left {
    /// Grants the first wish of each row, then the second of each, and so on. Returns the number of copies granted.
    fn grant(&mut self, wishes: &[Option<Wishes>], admitted: &mut [Admitted]) -> usize {
        let before = self.copies;
        let turns = wishes.iter().flatten().map(|wishes| wishes.len()).max();
        for turn in 0..turns.unwrap_or(0) {
            for (wishes, admitted) in wishes.iter().zip(admitted.iter_mut()) {
                match wishes.as_ref().and_then(|wishes| wishes.get(turn)) {
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
    wishes: &[Option<Wishes>],
    admitted: &mut [Admitted],
    most: usize,
) -> usize {
    let mut granted = 0;
    let on_grid = wishes
        .iter()
        .zip(admitted)
        .filter(|(wishes, _)| wishes.is_some());
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

/// The copies that an admitted candidate requests, the best position first. One that bypasses the cache requests none,
/// and gets none on the grid.
pub(super) type Wishes = SmallVec<[Place; 4]>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// After this many tokens: whole pages.
    At(usize),
    /// After the last whole page of the decode; it moves from page to page.
    Tail,
}
