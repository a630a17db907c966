//! Short causal convolutions over tokens, channel by channel.

use super::drafts::{DraftInputs, Form};
use super::pool::{StatePool, States};
use crate::cpu::batch::{CpuBatch, Segment, StateRow};
use crate::cpu::element::{load_up_to, store_up_to};
use crate::cpu::gates::silu;
use crate::cpu::rows::for_rows;
use crate::cpu::simd::{Isa, Kernel, LANES, Lanes, dispatch};
use crate::cpu::tensor::{Shared, Tensor};
use crate::cpu::threads::ThreadPool;
use crate::recurrent::MAX_TAPS;
use souffleur_base::ids::StateSlot;

const ELEMENT_COST: usize = 64;

pub struct ConvInput<'a> {
    /// One row per token, with the channels in the first columns.
    pub x: &'a Tensor,
    pub channels: usize,
    /// `[n_taps, channels]`, the tap of the oldest token first.
    pub taps: &'a [f32],
    /// At most [`MAX_TAPS`].
    pub n_taps: usize,
    pub bias: Option<&'a [f32]>,
    pub epilogue: Epilogue,
}

#[derive(Clone, Copy)]
pub enum Epilogue {
    /// `s / (1 + e^-s)`.
    Silu,
    /// The sum times the columns of `x` from `first` on.
    Times { first: usize },
}

pub fn gate_inputs(pool: &mut ThreadPool, projected: &mut Tensor, channels: usize) {
    let (rows, width) = (projected.rows(), projected.width());
    let shared = Shared::new(projected.values_mut());
    for_rows(pool, rows, channels * ELEMENT_COST, |row| {
        // SAFETY: each row is written by one item.
        let row = unsafe { shared.part(row * width, width) };
        let (gates, rest) = row.split_at_mut(channels);
        let inputs = &rest[channels..];
        for (gate, input) in gates.iter_mut().zip(inputs) {
            *gate *= input;
        }
    });
}

/// Convolves the rows of all segments, and stores the inputs of the last `n_taps - 1` tokens that are no drafts in the
/// states of `layer`, from element `first` on. The histories first take the accepted drafts that they owe.
pub fn convolve(
    (pool, isa): (&mut ThreadPool, Isa),
    input: &ConvInput<'_>,
    (states, layer, first): (&mut StatePool, usize, usize),
    batch: &CpuBatch,
    mut out: Tensor,
) -> Tensor {
    let (states, log) = states.layer(layer);
    let store = Histories {
        states,
        first,
        n_kept: input.n_taps - 1,
        channels: input.channels,
    };
    let channels = input.channels;
    let shared = Shared::new(out.values_mut());
    for state_row in batch.with_states() {
        let StateRow { segment, live, .. } = state_row;
        store.append(log.owed(live), live);
        let cost = channels * ELEMENT_COST;
        for_rows(pool, segment.n_tokens, cost, |token| {
            let at = segment.first_token + token;
            let row = ConvRow {
                input,
                // SAFETY: histories are written after all rows are computed.
                inputs: unsafe { store.window(input, segment, live, token) },
                factors: input.x.row(at),
                // SAFETY: each row is written by one item.
                out: unsafe { shared.part(at * channels, channels) },
            };
            dispatch(isa, row);
        });
        store.keep(input, &state_row);
    }
    out
}

/// Appends the inputs of drafts to the history in a slot, as [`convolve`] does with tokens.
pub fn append_drafts(form: &Form, drafts: DraftInputs<'_>, states: States<'_>, slot: StateSlot) {
    let store = Histories {
        states,
        first: form.first_kept(),
        n_kept: form.n_kept,
        channels: form.channels,
    };
    store.append(drafts, slot);
}

/// The inputs of the last tokens of each sequence, the oldest first.
struct Histories<'a> {
    states: States<'a>,
    first: usize,
    n_kept: usize,
    channels: usize,
}

impl Histories<'_> {
    /// The inputs of `token` of a segment and of the tokens before it, the oldest first.
    ///
    /// # Safety
    /// No thread writes the history of `live`.
    unsafe fn window<'x>(
        &'x self,
        input: &'x ConvInput<'_>,
        segment: &Segment,
        live: StateSlot,
        token: usize,
    ) -> [&'x [f32]; MAX_TAPS] {
        let mut inputs: [&[f32]; MAX_TAPS] = [&[]; MAX_TAPS];
        for (j, inputs) in inputs[..=self.n_kept].iter_mut().enumerate() {
            // SAFETY: guaranteed by the caller.
            *inputs = unsafe { self.input(input, segment, live, token + j) };
        }
        inputs
    }

    /// The input `after_oldest` tokens after the oldest stored input.
    ///
    /// # Safety
    /// No thread writes the history of `live`.
    unsafe fn input<'x>(
        &'x self,
        input: &'x ConvInput<'_>,
        segment: &Segment,
        live: StateSlot,
        after_oldest: usize,
    ) -> &'x [f32] {
        match after_oldest.checked_sub(self.n_kept) {
            Some(token) => &input.x.row(segment.first_token + token)[..self.channels],
            None => {
                let first = self.first + after_oldest * self.channels;
                // SAFETY: guaranteed by the caller.
                unsafe { self.states.read(live, first, self.channels) }
            }
        }
    }

    /// Moves the history in a slot on by the inputs of drafts.
    fn append(&self, drafts: DraftInputs<'_>, slot: StateSlot) {
        if drafts.is_empty() {
            return;
        }
        for kept in 0..self.n_kept {
            // SAFETY: only the calling thread uses histories now. Drafts are at least one, so an input overwrites one
            // that was already copied, and source and destination do not overlap.
            unsafe {
                let place = |kept: usize| self.first + kept * self.channels;
                let after_oldest = kept + drafts.len();
                let from = match after_oldest.checked_sub(self.n_kept) {
                    Some(draft) => drafts.convolved(draft),
                    None => self.states.read(slot, place(after_oldest), self.channels),
                };
                let to = self.states.part(slot, place(kept), self.channels);
                to.copy_from_slice(from);
            }
        }
    }

    fn keep(&self, input: &ConvInput<'_>, row: &StateRow<'_>) {
        let StateRow { segment, live, .. } = *row;
        for save in row.saves {
            let end_token = save.position as usize - segment.first_position;
            self.write(input, segment, live, (save.slot, end_token));
        }
        self.write(input, segment, live, (live, row.n_certain()));
    }

    /// Writes the inputs of the last tokens before token `end_token` of the segment to a slot.
    fn write(
        &self,
        input: &ConvInput<'_>,
        segment: &Segment,
        live: StateSlot,
        (slot, end_token): (StateSlot, usize),
    ) {
        for kept in 0..self.n_kept {
            // SAFETY: only the calling thread uses histories now. In the live slot, an input overwrites one that was
            // already copied; `end_token` is not 0, so source and destination do not overlap.
            unsafe {
                let from = self.input(input, segment, live, kept + end_token);
                let to = self
                    .states
                    .part(slot, self.first + kept * self.channels, self.channels);
                to.copy_from_slice(from);
            }
        }
    }
}

struct ConvRow<'a> {
    input: &'a ConvInput<'a>,
    inputs: [&'a [f32]; MAX_TAPS],
    factors: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for ConvRow<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self) {
        let Self { input, .. } = self;
        let channels = input.channels;
        for at in (0..channels).step_by(LANES) {
            let here = at..channels.min(at + LANES);
            // SAFETY: `load_up_to` and `store_up_to` stay within their slices; `dispatch` detected the instruction set.
            unsafe {
                let load = load_up_to::<S>;
                let mut sum = match input.bias {
                    Some(bias) => load(&bias[here.clone()]),
                    None => S::splat(0.0),
                };
                for j in 0..input.n_taps {
                    let taps = &input.taps[j * channels..][here.clone()];
                    sum = S::mul_add(load(taps), load(&self.inputs[j][here.clone()]), sum);
                }
                let out = match input.epilogue {
                    Epilogue::Silu => silu::<S>(sum),
                    Epilogue::Times { first } => {
                        S::mul(sum, load(&self.factors[first..][here.clone()]))
                    }
                };
                store_up_to::<S>(out, &mut self.out[here]);
            }
        }
    }
}
