//! Drafts in recurrent layers: a state has accepted tokens only, and a log has the inputs of the drafts after them.
//!
//! A state cannot go back to an earlier token, and a copy after each draft would take the memory of a state. So a step
//! stores the state after the row's last certain token, computes the drafts on a copy, and logs the inputs of their
//! changes. The next step of the row first adds the accepted ones, by the operations of a plain step: the bits are the
//! same. Until then the state owes them.

use super::conv::append_drafts;
use super::delta;
use super::pool::{StatePool, States};
use crate::cpu::CpuBackend;
use crate::cpu::batch::{CpuBatch, StateRow};
use crate::cpu::element::{Borrowed, Elements};
use crate::cpu::rows::for_rows;
use crate::cpu::simd::Isa;
use crate::cpu::tensor::{Shared, Tensor};
use crate::cpu::threads::ThreadPool;
use crate::recurrent::DeltaNetShape;
use souffleur_base::ids::{RowId, StateSlot};
use souffleur_base::row_state::StateStart;

/// The parts of a layer's state.
#[derive(Clone, Copy)]
pub struct Form {
    /// Channels of the convolution.
    pub channels: usize,
    /// Tokens whose inputs the convolution's history has.
    pub n_kept: usize,
    /// `None` if the layer is only a convolution.
    pub delta: Option<DeltaNetShape>,
}

impl Form {
    /// Elements of a draft's inputs.
    fn elements(&self) -> usize {
        let shape = self.delta.as_ref();
        shape.map_or(self.channels, DeltaNetShape::draft_elements)
    }

    /// The first element of the history in a state.
    pub fn first_kept(&self) -> usize {
        let shape = self.delta.as_ref();
        shape.map_or(0, DeltaNetShape::matrix_elements)
    }
}

/// What a layer's kernels read in a step.
pub struct StepInputs<'a> {
    /// One row per token, with the convolution's inputs in the first columns.
    pub convolved: &'a Tensor,
    /// Queries, keys and values; decays and betas.
    pub delta: Option<(&'a Tensor, &'a Tensor)>,
}

impl StepInputs<'_> {
    /// Writes `[inputs of the convolution, keys, values, decays, betas]` of a token.
    fn write(&self, form: &Form, token: usize, to: &mut [f32]) {
        let (convolved, to) = to.split_at_mut(form.channels);
        convolved.copy_from_slice(&self.convolved.row(token)[..form.channels]);
        if let (Some(shape), Some((mixed, rates))) = (&form.delta, self.delta) {
            let (key_values, to) = to.split_at_mut(shape.keys() + shape.values());
            key_values.copy_from_slice(&mixed.row(token)[shape.keys()..]);
            to.copy_from_slice(rates.row(token));
        }
    }
}

/// The drafts after the state in a slot.
#[derive(Clone, Copy, Default)]
struct Debt {
    /// The row whose part of the log has them.
    row: usize,
    /// Number of drafts in the log, until it is known how many were accepted.
    n_logged: usize,
    /// Number of accepted drafts that the state does not have yet.
    n_owed: usize,
}

/// The inputs of the last drafts of each row in one layer.
pub struct DraftLog {
    /// `[rows, max_drafts, width]`.
    inputs: Elements<f32>,
    max_drafts: usize,
    width: usize,
    /// `None` before the first drafts.
    form: Option<Form>,
    /// By slot; empty if steps have no drafts.
    debts: Vec<Debt>,
    /// By row: the slot whose drafts are in the row's part of the log.
    owners: Vec<Option<StateSlot>>,
}

impl DraftLog {
    pub fn none() -> Self {
        Self {
            inputs: Elements::zeros(0),
            max_drafts: 0,
            width: 0,
            form: None,
            debts: Vec::new(),
            owners: Vec::new(),
        }
    }

    /// For slots `0..=n_slots`; the system commits memory on first use.
    pub fn new(n_slots: usize, n_rows: usize, (max_drafts, width): (usize, usize)) -> Self {
        Self {
            inputs: Elements::zeros(n_rows * max_drafts * width),
            max_drafts,
            width,
            form: None,
            debts: vec![Debt::default(); n_slots + 1],
            owners: vec![None; n_rows],
        }
    }

    /// The accepted drafts that the state in a slot does not have yet, in order.
    pub fn owed(&self, slot: StateSlot) -> DraftInputs<'_> {
        let debt = self.debts.get(slot.index());
        self.first_of(debt.copied().unwrap_or_default(), usize::MAX)
    }

    /// At most `n` of the drafts that are owed.
    fn first_of(&self, debt: Debt, n: usize) -> DraftInputs<'_> {
        let n = n.min(debt.n_owed);
        let first = debt.row * self.max_drafts * self.width;
        DraftInputs {
            inputs: &(&self.inputs).slice()[first..first + n * self.width],
            width: self.width,
            channels: self.form.map_or(0, |form| form.channels),
            len: n,
        }
    }

    /// Drops the drafts after the state in a slot.
    pub fn forget(&mut self, slot: StateSlot) {
        if let Some(debt) = self.debts.get_mut(slot.index()) {
            *debt = Debt::default();
        }
    }

    fn accept(&mut self, slot: StateSlot, n: usize) {
        let Some(debt) = self.debts.get_mut(slot.index()) else {
            return;
        };
        assert!(
            n <= debt.n_logged,
            "{n} drafts of state {slot} are accepted, expected at most {}",
            debt.n_logged
        );
        if debt.n_logged > 0 {
            debt.n_owed = n;
            debt.n_logged = 0;
        }
    }

    /// The other slot that owes drafts in the part of the log that this row's drafts will take.
    fn displaced(&self, row: RowId, live: StateSlot) -> Option<StateSlot> {
        let owner = self.owners.get(row.index()).copied().flatten();
        owner.filter(|slot| {
            let debt = self.debts[slot.index()];
            *slot != live && debt.n_owed > 0 && debt.row == row.index()
        })
    }

    /// Notes that the states of all rows have what they owed, and logs the step's drafts.
    ///
    /// # Panics
    /// If a row has more drafts than its part of the log.
    pub fn keep(
        &mut self,
        pool: &mut ThreadPool,
        form: Form,
        step: &StepInputs<'_>,
        batch: &CpuBatch,
    ) {
        for row in batch.with_states() {
            let n_drafts = row.n_drafts;
            assert!(
                n_drafts <= self.max_drafts,
                "a row with a state has {n_drafts} drafts, the limit is {}",
                self.max_drafts
            );
            row.saves.iter().for_each(|save| self.forget(save.slot));
            self.forget(row.live);
            if n_drafts > 0 {
                self.form = Some(form);
                self.keep_row(pool, step, row);
            }
        }
    }

    fn keep_row(&mut self, pool: &mut ThreadPool, step: &StepInputs<'_>, row: StateRow<'_>) {
        let Some(form) = self.form else {
            return;
        };
        let (index, elements) = (row.segment.row.index(), form.elements());
        assert!(
            elements <= self.width,
            "the inputs of a draft are {elements} elements, the log has {}",
            self.width
        );
        self.debts[row.live.index()] = Debt {
            row: index,
            n_logged: row.n_drafts,
            n_owed: 0,
        };
        self.owners[index] = Some(row.live);
        let len = self.max_drafts * self.width;
        let inputs = &mut (&mut self.inputs).slice()[index * len..][..len];
        let (shared, width) = (Shared::new(inputs), self.width);
        let first_token = row.segment.first_token + row.n_certain();
        for_rows(pool, row.n_drafts, elements, |draft| {
            // SAFETY: each draft's inputs are written by one item.
            let to = unsafe { shared.part(draft * width, elements) };
            step.write(&form, first_token + draft, to);
        });
    }
}

/// The inputs of consecutive drafts in one layer.
#[derive(Clone, Copy)]
pub struct DraftInputs<'a> {
    inputs: &'a [f32],
    width: usize,
    channels: usize,
    len: usize,
}

impl<'a> DraftInputs<'a> {
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn row(&self, draft: usize) -> &'a [f32] {
        &self.inputs[draft * self.width..][..self.width]
    }

    /// The inputs of the convolution.
    pub fn convolved(&self, draft: usize) -> &'a [f32] {
        &self.row(draft)[..self.channels]
    }

    /// Normalised keys, and values, of all heads.
    pub fn key_values(&self, shape: &DeltaNetShape, draft: usize) -> &'a [f32] {
        &self.row(draft)[self.channels..][..shape.keys() + shape.values()]
    }

    /// Decays and betas of the value heads.
    pub fn rates(&self, shape: &DeltaNetShape, draft: usize) -> &'a [f32] {
        let first = self.channels + shape.keys() + shape.values();
        &self.row(draft)[first..][..2 * shape.value_heads]
    }
}

/// Before a step's drafts take a row's part of the log, adds the drafts there that another slot's state owes.
pub fn settle_displaced(
    (pool, isa): (&mut ThreadPool, Isa),
    (states, layer): (&mut StatePool, usize),
    batch: &CpuBatch,
) {
    let (states, log) = states.layer(layer);
    for row in batch.with_states().filter(|row| row.n_drafts > 0) {
        if let Some(slot) = log.displaced(row.segment.row, row.live) {
            settle((&mut *pool, isa), (states, &mut *log), slot);
        }
    }
}

/// Adds the drafts that the state in a slot owes.
fn settle(
    threads: (&mut ThreadPool, Isa),
    (states, log): (States<'_>, &mut DraftLog),
    slot: StateSlot,
) {
    if let Some(form) = log.form {
        add(threads, &form, states, (log.owed(slot), slot));
    }
    log.forget(slot);
}

/// Adds drafts to the state in a slot, by the operations of a step.
fn add(
    (pool, isa): (&mut ThreadPool, Isa),
    form: &Form,
    states: States<'_>,
    (drafts, slot): (DraftInputs<'_>, StateSlot),
) {
    if drafts.is_empty() {
        return;
    }
    append_drafts(form, drafts, states, slot);
    if let Some(shape) = &form.delta {
        delta::add_drafts((pool, isa), shape, states, (drafts, slot));
    }
}

impl CpuBackend {
    /// Allocates memory for at most `max_drafts` drafts of each row in a step; a draft's inputs take at most `width`
    /// elements in a recurrent layer. Without it, rows with states have no drafts.
    pub fn keep_drafts(&mut self, n_rows: usize, max_drafts: usize, width: usize) {
        self.states.keep_drafts(n_rows, (max_drafts, width));
    }

    /// Tells that the first `n` drafts of the last step of the row with this live state were accepted. The row's next
    /// step first adds them to the state. Without this call, none of them was accepted.
    ///
    /// # Panics
    /// If the step had fewer drafts, or it was already told.
    pub fn accept_drafts(&mut self, live: StateSlot, n: usize) {
        for layer in 0..self.states.n_layers() {
            self.states.layer(layer).1.accept(live, n);
        }
    }

    /// Adds the accepted drafts to the state in a slot now. Does nothing if there are none.
    pub fn settle_state(&mut self, slot: StateSlot) {
        for layer in 0..self.states.n_layers() {
            let (states, log) = self.states.layer(layer);
            settle((&mut self.pool, self.isa), (states, log), slot);
        }
    }

    /// Copies the state after the first `n` accepted drafts of the last step to another slot; the live state still owes
    /// them all.
    ///
    /// # Panics
    /// If fewer drafts were accepted, or there is no such slot, or both are the same.
    pub fn save_state_after(&mut self, live: StateSlot, n: usize, slot: StateSlot) {
        assert_ne!(live, slot, "a state cannot be copied to itself");
        let from = Some(live);
        let start = StateStart { live: slot, from };
        self.states.begin(&mut self.pool, std::iter::once(start));
        for layer in 0..self.states.n_layers() {
            let (states, log) = self.states.layer(layer);
            let (Some(form), Some(debt)) = (log.form, log.debts.get(live.index())) else {
                assert!(log.debts.is_empty() || n == 0, "no draft was computed");
                continue;
            };
            assert!(
                n <= debt.n_owed,
                "the state after {n} drafts is to be saved, but {} are owed",
                debt.n_owed
            );
            let drafts = log.first_of(*debt, n);
            add((&mut self.pool, self.isa), &form, states, (drafts, slot));
        }
    }
}
