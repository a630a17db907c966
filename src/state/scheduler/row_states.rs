//! A sequence's recurrent states: the live one, and copies that are not in the cache yet.

use std::ops::Range;

use smallvec::SmallVec;

use crate::plan::saves::SaveAt;
use crate::pool::pages::PageSize;
use crate::pool::state_pool::{OwnedState, SaveReason, SavedState};
use crate::step::StateSave;
use souffleur_base::ids::StateSlot;

/// The states of an admitted sequence, if the model's layers keep any.
#[derive(Debug)]
pub struct RowStates {
    /// Read and written by the sequence's steps; covers all committed tokens.
    live: OwnedState,
    /// Copies made by the steps planned so far, until the next checkpoint.
    saved: Vec<SavedState>,
    /// The copy at the end of the last full page of prompt or output, if memory for it was granted.
    tail: Option<Tail>,
    /// Granted for copies, not used by a step yet.
    unused: Vec<OwnedState>,
    /// Tokens with cached K/V at the sequence's admission.
    pub kv_tokens: usize,
}

#[derive(Debug)]
struct Tail {
    state: OwnedState,
    /// 0 before the first copy.
    position: usize,
    previous: usize,
}

impl RowStates {
    /// The states of a new sequence, from its grant: the live one, and the tail's if `keeps_tail`.
    pub fn new(
        granted: &mut impl Iterator<Item = OwnedState>,
        keeps_tail: bool,
        kv_tokens: usize,
    ) -> Option<Self> {
        let live = granted.next()?;
        let tail = keeps_tail.then(|| granted.next()).flatten();
        Some(Self {
            live,
            saved: Vec::new(),
            tail: tail.map(|state| Tail {
                state,
                position: 0,
                previous: 0,
            }),
            unused: Vec::new(),
            kv_tokens,
        })
    }

    pub fn live(&self) -> &OwnedState {
        &self.live
    }

    /// Takes memory for copies, which later steps [make](Self::save).
    pub fn take_granted(&mut self, granted: impl Iterator<Item = OwnedState>) {
        self.unused.extend(granted);
    }

    /// The copies that a chunk of the prefill makes, ascending. The chunk in which the last whole page of all
    /// `prefill_tokens` ends also makes the tail copy there, since a short reply fills no further page.
    pub fn save_chunk(
        &mut self,
        places: &[SaveAt],
        positions: &Range<usize>,
        prefill_tokens: usize,
        page: PageSize,
    ) -> SmallVec<[StateSave; 1]> {
        let mut saves: SmallVec<_> = self.save(places).collect();
        let end = page.floor(prefill_tokens);
        let is_here = positions.start < end && end <= positions.end;
        let is_saved = self.saved.last().is_some_and(|saved| saved.position == end);
        if is_here && !is_saved {
            saves.extend(self.save_tail(end));
        }
        saves
    }

    /// The copies that a step makes at these positions, limited by the granted memory.
    fn save(&mut self, places: &[SaveAt]) -> impl Iterator<Item = StateSave> {
        let n = places.len().min(self.unused.len());
        let states = self.unused.drain(..n);
        let saved = places.iter().zip(states).map(|(place, state)| SavedState {
            position: place.position,
            reason: place.reason,
            state,
        });
        let first = self.saved.len();
        self.saved.extend(saved);
        self.saved[first..].iter().map(|saved| StateSave {
            position: saved.position as u32,
            slot: saved.state.slot(),
        })
    }

    /// The tail copy of the step that completes the page ending at `position`.
    pub fn save_tail(&mut self, position: usize) -> Option<StateSave> {
        let tail = self.tail.as_mut()?;
        tail.previous = std::mem::replace(&mut tail.position, position);
        Some(StateSave {
            position: position as u32,
            slot: tail.state.slot(),
        })
    }

    /// The tail copy of a step with drafts, whose results show whether it has reached the end of a page, at `position` or
    /// later; then [`note_tail`](Self::note_tail) records it.
    pub fn may_save_tail(&self, position: usize) -> Option<StateSave> {
        let tail = self.tail.as_ref()?;
        Some(StateSave {
            position: position as u32,
            slot: tail.state.slot(),
        })
    }

    /// A step has made the tail copy at `position`. A later step, whose result is not known yet, may overwrite it.
    pub fn note_tail(&mut self, position: usize) {
        let Some(tail) = &mut self.tail else {
            return;
        };
        if position > tail.position {
            tail.previous = std::mem::replace(&mut tail.position, position);
        } else {
            tail.previous = tail.previous.max(position);
        }
    }

    /// Reverts [`save_tail`](Self::save_tail) at `position`, as the step did not run.
    pub fn revert_tail(&mut self, position: usize) {
        if let Some(tail) = self.tail.as_mut().filter(|tail| tail.position == position) {
            tail.position = tail.previous;
        }
    }

    pub fn take_saved(&mut self) -> Vec<SavedState> {
        std::mem::take(&mut self.saved)
    }

    pub fn count(&self) -> usize {
        1 + self.saved.len() + usize::from(self.tail.is_some()) + self.unused.len()
    }

    pub fn slots(&self) -> impl Iterator<Item = StateSlot> + '_ {
        let saved = self.saved.iter().map(|saved| &saved.state);
        let tail = self.tail.iter().map(|tail| &tail.state);
        let all = saved.chain(tail).chain(&self.unused).chain([&self.live]);
        all.map(OwnedState::slot)
    }

    pub fn give_back(self) -> Vec<OwnedState> {
        let mut states = self.unused;
        states.extend(self.saved.into_iter().map(|saved| saved.state));
        states.extend(self.tail.map(|tail| tail.state));
        states.push(self.live);
        states
    }

    /// Splits the states of an ended sequence into states to cache and states to free. `committed` tokens were
    /// computed; the scheduler knows the ids of the first `n_known`, since it drops tokens sampled after the end.
    pub fn publish(
        self,
        committed: usize,
        n_known: usize,
        page_tokens: usize,
    ) -> (Vec<SavedState>, Vec<OwnedState>) {
        let Self {
            live,
            mut saved,
            tail,
            unused: mut given_back,
            kv_tokens: _,
        } = self;
        let boundary = |position, state| SavedState {
            position,
            reason: SaveReason::Boundary,
            state,
        };
        if committed <= n_known && committed.is_multiple_of(page_tokens) {
            saved.push(boundary(committed, live));
            given_back.extend(tail.map(|tail| tail.state));
        } else {
            given_back.push(live);
            match tail {
                Some(Tail {
                    state, position, ..
                }) if (1..=n_known).contains(&position) => {
                    saved.push(boundary(position, state));
                }
                tail => given_back.extend(tail.map(|tail| tail.state)),
            }
        }
        (saved, given_back)
    }
}
