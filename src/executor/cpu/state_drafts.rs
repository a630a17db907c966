//! Drafts of rows with recurrent states: their number is limited, and states take the accepted ones later.

use std::ops::Range;

use smallvec::SmallVec;

use super::CpuOptions;
use souffleur_base::ids::StateSlot;
use souffleur_kernels::cpu::CpuBackend;
use souffleur_model::config::ModelConfig;
use souffleur_state::step::{StateSave, StepRow};

/// The most drafts of a row with a recurrent state in a step: memory for their inputs is allocated at load.
pub const MAX_STATE_DRAFTS: usize = 8;

/// Bytes of the drafts' inputs of `rows` rows in all layers; 0 where no layer keeps a state.
pub fn draft_log_bytes(config: &ModelConfig, rows: u64) -> u64 {
    let Some(recurrent) = &config.recurrent else {
        return 0;
    };
    let layers = (0..config.num_hidden_layers).filter(|layer| recurrent.is_in(*layer));
    let elements = layers.count() * MAX_STATE_DRAFTS * recurrent.draft_elements(config.hidden_size);
    rows.saturating_mul((elements * size_of::<f32>()) as u64)
}

/// Allocates memory for drafts if decodes have any and layers keep states.
pub(super) fn prepare(backend: &mut CpuBackend, config: &ModelConfig, options: &CpuOptions) {
    if let (Some(recurrent), Some(_)) = (&config.recurrent, &options.speculation) {
        let width = recurrent.draft_elements(config.hidden_size);
        backend.keep_drafts(options.max_rows + 1, MAX_STATE_DRAFTS, width);
    }
}

/// Notes how many drafts of a decode were accepted, and saves the state at the last page end that the row has crossed.
///
/// The step's first input was at position `first`; `accepted` tokens were sampled, at least one, so the inputs of as
/// many positions are certain now. The last token is not among the inputs: `accepted - 1` drafts were accepted. Returns
/// the number of tokens after which the state was copied to `save`, or `None` without a page end.
pub(super) fn finish_state(
    backend: &mut CpuBackend,
    live: StateSlot,
    (first, accepted): (usize, usize),
    (page_size, save): (usize, Option<StateSlot>),
) -> Option<usize> {
    backend.accept_drafts(live, accepted.saturating_sub(1));
    let end = first + accepted;
    let position = end - end % page_size;
    let slot = save.filter(|_| position > first)?;
    backend.save_state_after(live, position - first - 1, slot);
    Some(position)
}

/// The copies of a row's state while these positions are computed. A decode copies it at the last page end that it
/// reaches: its plan does not know its position if the step before had drafts.
pub(super) fn state_saves(
    work: &StepRow,
    positions: Range<usize>,
    page_size: usize,
) -> SmallVec<[StateSave; 1]> {
    let Some(save) = work.saves.first().filter(|_| work.work.is_decode()) else {
        return work.saves.clone();
    };
    let page_end = positions.end - positions.end % page_size;
    let is_reached = page_end > positions.start;
    let at_end = is_reached.then_some(StateSave {
        position: page_end as u32,
        slot: save.slot,
    });
    at_end.into_iter().collect()
}
