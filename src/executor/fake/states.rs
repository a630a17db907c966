//! The recurrent states of the fake executor: a hash per slot.

use super::hashes::mix;
use super::refusal::rejected;
use souffleur_base::error::StepError;
use souffleur_base::ids::{SeqId, StateSlot};
use souffleur_state::step::{RowStart, StateSave, StateStart};

pub(super) struct FakeStates {
    /// `None` before anything is written. No state has the first slot.
    slots: Vec<Option<u64>>,
}

/// A row's state, and tokens of the row.
pub(super) struct RowTokens<'a> {
    pub(super) seq: SeqId,
    pub(super) live: Option<StateSlot>,
    /// All tokens up to the last one that a step feeds to the state.
    pub(super) tokens: &'a [u32],
}

impl FakeStates {
    pub(super) fn new(n_states: usize) -> Self {
        Self {
            slots: vec![None; n_states + 1],
        }
    }

    pub(super) fn read(&self, slot: StateSlot) -> Option<u64> {
        self.slots.get(slot.index()).copied().flatten()
    }

    /// # Panics
    /// If the slot does not exist.
    pub(super) fn write(&mut self, slot: StateSlot, state: Option<u64>) {
        self.slots[slot.index()] = state;
    }

    /// Copies or clears the state of a row that starts.
    pub(super) fn begin(&mut self, start: &RowStart) -> Result<Option<StateSlot>, StepError> {
        let Some(StateStart { live, from }) = start.state else {
            let keeps = self.slots.len() > 1;
            return if keeps {
                Err(rejected(start.seq, "starts without a state"))
            } else {
                Ok(None)
            };
        };
        let state = match from {
            Some(from) if from == live => {
                return Err(rejected(start.seq, "starts from its own state"));
            }
            Some(from) => *self.state(start.seq, from)?,
            None if !start.prefix.is_empty() => {
                return Err(rejected(start.seq, "starts a prefix without its state"));
            }
            None => Some(0),
        };
        *self.state(start.seq, live)? = state;
        Ok(Some(live))
    }

    fn state(&mut self, seq: SeqId, slot: StateSlot) -> Result<&mut Option<u64>, StepError> {
        let state = self.slots.get_mut(slot.index());
        let state = state.filter(|_| slot.index() > 0);
        state.ok_or_else(|| rejected(seq, "names a state that does not exist"))
    }

    /// Checks that a row's state is the hash of its first `n_tokens` tokens.
    pub(super) fn verify(&mut self, row: &RowTokens, n_tokens: usize) -> Result<(), StepError> {
        let Some(slot) = row.live else {
            return Ok(());
        };
        let seen = row.tokens[..n_tokens].iter();
        let expected = seen.fold(0, |hash, token| mix(hash, *token));
        let found = *self.state(row.seq, slot)?;
        if found == Some(expected) {
            Ok(())
        } else {
            Err(StepError::Lost(format!(
                "state {slot} of sequence {} is not the state after {n_tokens} tokens",
                row.seq
            )))
        }
    }

    /// Feeds the row's tokens from position `first` on to its state, and copies the state at the positions of `saves`.
    pub(super) fn feed(
        &mut self,
        row: &RowTokens,
        first: usize,
        saves: &[StateSave],
    ) -> Result<(), StepError> {
        let Some(live) = row.live else {
            return if saves.is_empty() {
                Ok(())
            } else {
                Err(rejected(row.seq, "saves a state that it does not have"))
            };
        };
        let mut saves = saves.iter().peekable();
        for (position, token) in row.tokens.iter().enumerate().skip(first) {
            let state = self.state(row.seq, live)?;
            *state = state.map(|hash| mix(hash, *token));
            let state = *state;
            if let Some(save) = saves.next_if(|save| save.position as usize == position + 1) {
                if save.slot == live {
                    return Err(rejected(row.seq, "saves its state to its own slot"));
                }
                *self.state(row.seq, save.slot)? = state;
            }
        }
        match saves.next() {
            None => Ok(()),
            Some(_) => Err(rejected(row.seq, "saves a state outside of its work")),
        }
    }
}
