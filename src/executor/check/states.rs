//! Checks a plan's state slots: a step writes each slot at most once, and restores no state from a slot that it writes.

use rustc_hash::FxHashSet;

use souffleur_base::ids::StateSlot;
use souffleur_state::step::{RowStart, StepRow};

#[derive(Default)]
pub(super) struct Slots {
    /// Slots from which rows restore a state.
    read: FxHashSet<StateSlot>,
    /// Slots of running rows, and slots that receive a copy.
    written: FxHashSet<StateSlot>,
}

impl Slots {
    pub(super) fn clear(&mut self) {
        self.read.clear();
        self.written.clear();
    }

    pub(super) fn start(&mut self, start: &RowStart, n_slots: Option<usize>) -> Result<(), String> {
        let state = match (start.state, n_slots) {
            (None, None) => return Ok(()),
            (Some(state), Some(_)) => state,
            (None, Some(_)) => {
                return Err(
                    "the row starts without a state, but layers of the model keep one".to_owned(),
                );
            }
            (Some(state), None) => {
                return Err(format!(
                    "the row starts with state {}, but no layer of the model keeps one",
                    state.live
                ));
            }
        };
        match (state.from, start.prefix.is_empty()) {
            (None, false) => {
                let reason =
                    "the row starts after cached pages without the state that follows them";
                return Err(reason.to_owned());
            }
            (Some(from), true) => {
                return Err(format!(
                    "the row starts from state {from} without cached pages"
                ));
            }
            _ => {}
        }
        self.write(state.live, n_slots)?;
        if let Some(from) = state.from {
            check_slot(from, n_slots)?;
            self.read.insert(from);
        }
        Ok(())
    }

    /// Checks the slot of a row's live state, and the slots to which the step copies this state, at positions up to `end`.
    pub(super) fn work(
        &mut self,
        work: &StepRow,
        (live, starts): (StateSlot, bool),
        end: usize,
        n_slots: Option<usize>,
    ) -> Result<(), String> {
        if !starts {
            self.write(live, n_slots)?;
        }
        let (mut last, end) = (work.work.positions().start, end as u32);
        for save in &work.saves {
            if save.position <= last || save.position > end {
                return Err(format!(
                    "the state is copied at position {}, expected more than {last} and at most {end}",
                    save.position
                ));
            }
            last = save.position;
            self.write(save.slot, n_slots)?;
        }
        Ok(())
    }

    pub(super) fn check_sources(&self) -> Result<(), String> {
        // The lowest slot, so that the error does not depend on the order of a hash set.
        match self.read.intersection(&self.written).min() {
            None => Ok(()),
            Some(slot) => Err(format!("state {slot} is read and written in one step")),
        }
    }

    pub(super) fn write(&mut self, slot: StateSlot, n_slots: Option<usize>) -> Result<(), String> {
        check_slot(slot, n_slots)?;
        if self.written.insert(slot) {
            Ok(())
        } else {
            Err(format!("state {slot} is written twice in one step"))
        }
    }
}

pub(super) fn check_slot(slot: StateSlot, n_slots: Option<usize>) -> Result<(), String> {
    let n_slots = n_slots.unwrap_or(0);
    if (1..=n_slots).contains(&slot.index()) {
        Ok(())
    } else {
        Err(format!(
            "state {slot} does not exist, states are 1 to {n_slots}"
        ))
    }
}
