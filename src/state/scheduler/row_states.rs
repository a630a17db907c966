//! The states that a sequence holds: its own, and copies of it that are not in the cache yet.

use std::ops::Range;

use smallvec::SmallVec;

use crate::ids::StateSlot;
use crate::state::plan::saves::SaveAt;
use crate::state::pool::pages::PageSize;
use crate::state::pool::state_pool::{OwnedState, SaveReason, SavedState};
use crate::state::step::StateSave;

/// The states of an admitted sequence whose model keeps some.
#[derive(Debug)]
pub struct RowStates {
    /// The one that its steps read and write: it has seen all committed tokens.
    live: OwnedState,
    /// Copies that the steps planned so far make, until the next checkpoint.
    saved: Vec<SavedState>,
    /// The copy at the end of the last page that its prompt or its decode filled, if it has memory for one.
    tail: Option<Tail>,
    /// Granted for copies that no step makes.
    unused: Vec<OwnedState>,
    /// Tokens that had K/V in the cache when it was admitted.
    pub kv_tokens: usize,
}

#[derive(Debug)]
struct Tail {
    state: OwnedState,
    /// 0 while nothing was copied.
    position: usize,
    /// The position before that.
    previous: usize,
}

impl RowStates {
    /// The states of a sequence that begins, from its grant: its own, that of its tail if it was promised one.
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

    /// Its own state.
    pub fn live(&self) -> &OwnedState {
        &self.live
    }

    /// Takes the memory of copies. They count once a step [makes](Self::save) them.
    pub fn take_granted(&mut self, granted: impl Iterator<Item = OwnedState>) {
        self.unused.extend(granted);
    }

    /// The copies that an extent makes of a prefill of `prefill_tokens` tokens, ascending. The one with the prefill's last
    /// whole page leaves the tail's at the end of that, since a short reply fills none. Only a part of a page may be behind
    /// it, in another extent.
    pub fn save_extent(
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

    /// The copies that a step makes at these places, for as many as there is memory.
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

    /// The copy that a decode makes which fills a page with the token before `position`.
    pub fn save_tail(&mut self, position: usize) -> Option<StateSave> {
        let tail = self.tail.as_mut()?;
        tail.previous = std::mem::replace(&mut tail.position, position);
        Some(StateSave {
            position: position as u32,
            slot: tail.state.slot(),
        })
    }

    /// The step that was to copy the state at `position` did not run.
    pub fn unsave_tail(&mut self, position: usize) {
        if let Some(tail) = self.tail.as_mut().filter(|tail| tail.position == position) {
            tail.position = tail.previous;
        }
    }

    /// The copies that are to be published.
    pub fn take_saved(&mut self) -> Vec<SavedState> {
        std::mem::take(&mut self.saved)
    }

    /// All of them.
    pub fn count(&self) -> usize {
        1 + self.saved.len() + usize::from(self.tail.is_some()) + self.unused.len()
    }

    /// The slots of all of them.
    pub fn slots(&self) -> impl Iterator<Item = StateSlot> + '_ {
        let saved = self.saved.iter().map(|saved| &saved.state);
        let tail = self.tail.iter().map(|tail| &tail.state);
        let all = saved.chain(tail).chain(&self.unused).chain([&self.live]);
        all.map(OwnedState::slot)
    }

    /// Gives all of them back.
    pub fn give_back(self) -> Vec<OwnedState> {
        let mut states = self.unused;
        states.extend(self.saved.into_iter().map(|saved| saved.state));
        states.extend(self.tail.map(|tail| tail.state));
        states.push(self.live);
        states
    }

    /// Divides them at the end of the sequence: those that the cache gets, and those that go back. `committed` tokens
    /// were computed, and the first `known` of them are known.
    pub fn publish(
        self,
        committed: usize,
        known: usize,
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
        if committed <= known && committed.is_multiple_of(page_tokens) {
            saved.push(boundary(committed, live));
            given_back.extend(tail.map(|tail| tail.state));
        } else {
            given_back.push(live);
            match tail {
                Some(Tail {
                    state, position, ..
                }) if (1..=known).contains(&position) => {
                    saved.push(boundary(position, state));
                }
                tail => given_back.extend(tail.map(|tail| tail.state)),
            }
        }
        (saved, given_back)
    }
}
