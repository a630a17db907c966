//! Digests of the executor's step plans.

use serde::{Deserialize, Serialize};

use super::{PageRuns, Seq, Sum};
use souffleur_base::ids::{PageId, RowId, StateSlot, StepId, Ticket};
use souffleur_state::step::{
    BlockLoad, BlockSave, BlockSource, RowStart, RowWork, StateStart, StepPlan, StepRow,
    TableDelta, VisionSlice,
};

/// Digest of a [`StepPlan`], with a checksum of the tokens and a seed: the submissions determine the other parameters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepDigest {
    step: StepId,
    starts: Vec<StartDigest>,
    table: Vec<EditDigest>,
    rows: Vec<RowDigest>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct StartDigest {
    row: RowId,
    seq: Seq,
    tokens: u64,
    tokens_sum: u64,
    prompt_tokens: u32,
    seed: Option<u64>,
    prefix: PageRuns,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum EditDigest {
    /// A single appended page, the common case in a decode.
    AppendOne {
        row: RowId,
        page: PageId,
    },
    Append {
        row: RowId,
        pages: PageRuns,
    },
    Remap {
        row: RowId,
        from: u32,
        pages: PageRuns,
    },
    /// As `Append`, for window pages.
    AppendWindows {
        row: RowId,
        pages: PageRuns,
    },
    Windows {
        row: RowId,
        from: u32,
        pages: PageRuns,
    },
    /// A block saved to the KV store: not an edit, but listed after the edits.
    Save {
        ticket: Ticket,
        pages: PageRuns,
    },
    /// Blocks of the KV store that are loaded into a row.
    Load {
        ticket: Ticket,
        row: RowId,
        skip_tokens: u32,
        start: u32,
        end: u32,
        states: Vec<StateSlot>,
    },
    SaveState {
        ticket: Ticket,
        slot: StateSlot,
    },
    /// Units of the tower's work on an image.
    Encode {
        job: Ticket,
        first: u32,
        end: u32,
        n_units: u32,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct RowDigest {
    row: RowId,
    seq: Seq,
    work: WorkDigest,
    sample: bool,
    /// If the row returns log probabilities: the first prompt position that has them, if any.
    logprobs: Option<Option<u32>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum WorkDigest {
    Prefill {
        start: u32,
        end: u32,
    },
    Decode {
        position: u32,
    },
    /// A prefill that saves states: their positions and slots.
    SavingPrefill {
        start: u32,
        end: u32,
        saves: Vec<(u32, StateSlot)>,
    },
    SavingDecode {
        position: u32,
        slot: StateSlot,
    },
    /// A decode with room for drafts, and the slot of the copy that it makes of the state.
    RoomyDecode {
        position: u32,
        room: u32,
        slot: Option<StateSlot>,
    },
}

impl StepDigest {
    pub fn step(&self) -> StepId {
        self.step
    }
}

impl From<&StepPlan> for StepDigest {
    fn from(plan: &StepPlan) -> Self {
        let StepPlan {
            step,
            starts,
            table,
            rows,
            copies,
            vision,
        } = plan;
        let copies = copies.iter();
        let saves = copies.clone().flat_map(|copies| &copies.saves);
        let loads = copies.flat_map(|copies| &copies.loads);
        Self {
            step: *step,
            starts: starts.iter().map(StartDigest::from).collect(),
            table: table
                .iter()
                .map(EditDigest::from)
                .chain(saves.map(EditDigest::from))
                .chain(loads.map(EditDigest::from))
                .chain(vision.as_deref().map(EditDigest::from))
                .collect(),
            rows: rows.iter().map(RowDigest::from).collect(),
        }
    }
}

impl From<&RowStart> for StartDigest {
    fn from(start: &RowStart) -> Self {
        let RowStart {
            row,
            seq,
            tokens,
            prompt_tokens,
            sampling,
            // Copied from the submission: see `SubmitEntry`.
            grammar: _,
            vectors: _,
            images: _,
            pooling: _,
            prefix,
            state,
            draft_texts: _,
        } = start;
        let slots = state
            .iter()
            .flat_map(|StateStart { live, from }| [live.get(), from.map_or(0, |from| from.get())]);
        Self {
            row: *row,
            seq: (*seq).into(),
            tokens: tokens.len() as u64,
            tokens_sum: Sum::of(tokens.iter().copied().chain(slots)),
            prompt_tokens: *prompt_tokens,
            seed: sampling.sampling_seed,
            prefix: prefix.iter().collect(),
        }
    }
}

impl From<&TableDelta> for EditDigest {
    fn from(delta: &TableDelta) -> Self {
        match delta {
            TableDelta::Append { row, pages } => match pages.as_slice() {
                [page] => Self::AppendOne {
                    row: *row,
                    page: *page,
                },
                pages => Self::Append {
                    row: *row,
                    pages: pages.iter().copied().collect(),
                },
            },
            TableDelta::Remap { row, from, pages } => Self::Remap {
                row: *row,
                from: *from,
                pages: pages.iter().collect(),
            },
            TableDelta::AppendWindows { row, pages } => Self::AppendWindows {
                row: *row,
                pages: pages.iter().copied().collect(),
            },
            TableDelta::Windows { row, from, pages } => Self::Windows {
                row: *row,
                from: *from,
                pages: pages.iter().collect(),
            },
        }
    }
}

impl From<&BlockSave> for EditDigest {
    fn from(save: &BlockSave) -> Self {
        let BlockSave { ticket, from } = save;
        match from {
            BlockSource::Pages(pages) => Self::Save {
                ticket: *ticket,
                pages: pages.iter().copied().collect(),
            },
            BlockSource::State(slot) => Self::SaveState {
                ticket: *ticket,
                slot: *slot,
            },
        }
    }
}

impl From<&BlockLoad> for EditDigest {
    fn from(load: &BlockLoad) -> Self {
        let BlockLoad {
            ticket,
            row,
            skip_tokens,
            positions,
            states,
        } = load;
        Self::Load {
            ticket: *ticket,
            row: *row,
            skip_tokens: *skip_tokens,
            start: positions.start,
            end: positions.end,
            states: states.to_vec(),
        }
    }
}

impl From<&VisionSlice> for EditDigest {
    fn from(slice: &VisionSlice) -> Self {
        let VisionSlice {
            job,
            // The submission has its digest.
            input: _,
            units,
            n_units,
        } = slice;
        Self::Encode {
            job: *job,
            first: units.start,
            end: units.end,
            n_units: *n_units,
        }
    }
}

impl From<&StepRow> for RowDigest {
    fn from(row: &StepRow) -> Self {
        let StepRow {
            row,
            seq,
            work,
            sample,
            logprobs,
            saves,
        } = row;
        let saved = saves.iter().map(|save| (save.position, save.slot));
        let work = match work {
            RowWork::Decode { position, room } if *room > 1 => WorkDigest::RoomyDecode {
                position: *position,
                room: *room,
                slot: saves.first().map(|save| save.slot),
            },
            RowWork::Prefill { positions } if !saves.is_empty() => WorkDigest::SavingPrefill {
                start: positions.start,
                end: positions.end,
                saves: saved.collect(),
            },
            RowWork::Decode { position, .. } if !saves.is_empty() => WorkDigest::SavingDecode {
                position: *position,
                slot: saves[0].slot,
            },
            RowWork::Prefill { positions } => WorkDigest::Prefill {
                start: positions.start,
                end: positions.end,
            },
            RowWork::Decode { position, .. } => WorkDigest::Decode {
                position: *position,
            },
        };
        Self {
            row: *row,
            seq: (*seq).into(),
            work,
            sample: *sample,
            logprobs: logprobs.as_ref().map(|spec| spec.start),
        }
    }
}
