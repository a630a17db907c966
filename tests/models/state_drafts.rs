//! Tests that drafts of rows with recurrent states change no bit, whichever of them are accepted.

use souffleur_base::ids::{PageId, RowId, StateSlot};
use souffleur_base::row_state::{StateSave, StateStart};
use souffleur_kernels::cpu::{CpuBackend, CpuBatch, CpuSizes, Isa, Numa};
use souffleur_kernels::dtype::{Dtype, Quantization};
use souffleur_model::blocks::{self, Decoder};
use souffleur_model::loader::{Checkpoint, LoadFormat, Loader};

use crate::common::{fixture, tokens};
use crate::kernel_paths::repeats_floats;

const MODELS: [&str; 6] = [
    "lfm2",
    "lfm2-bias",
    "lfm2-moe",
    "qwen3-5",
    "qwen3-5-moe",
    "qwen3-next",
];
const VOCAB: u32 = 288;
const TOKENS: usize = 70;
const PROMPT: usize = 9;
const MAX_DRAFTS: usize = 8;
const ROWS: u32 = 2;
const ROW_PAGES: u32 = 24;
const PAGE_SIZE: usize = 4;
/// Slots of saved states, after the rows' live slots.
const SAVED: StateSlot = StateSlot::new(3);
const COPIED: StateSlot = StateSlot::new(4);
const OTHER: StateSlot = StateSlot::new(5);

struct Model {
    decoder: Decoder<CpuBackend>,
    backend: CpuBackend,
    state_bytes: usize,
}

struct Work<'a> {
    row: u32,
    live: StateSlot,
    first: usize,
    tokens: &'a [u32],
    n_drafts: usize,
    saves: &'a [StateSave],
}

type Bits = Vec<u32>;

impl Model {
    fn load(
        name: &str,
        (dtype, quantization): (Dtype, Option<Quantization>),
        (threads, numa): (usize, Numa),
    ) -> Self {
        let checkpoint = Checkpoint::open(&fixture(name), Some(dtype), LoadFormat::Auto).unwrap();
        let config = &checkpoint.config;
        let recurrent = config.recurrent.as_ref().unwrap();
        let width = recurrent.draft_elements(config.hidden_size);
        let kv = checkpoint.kv_layout_in(None);
        let state_bytes = kv.state_bytes() as usize;
        let mut backend = CpuBackend::new(&CpuSizes {
            dtype,
            quantization,
            threads,
            pin_threads: false,
            numa,
            isa: Isa::chosen().unwrap(),
            kv,
            n_pages: (ROWS * ROW_PAGES) as usize,
            page_size: PAGE_SIZE,
            n_rows: ROWS as usize + 1,
            n_state_slots: 5,
            n_window_pages: 0,
            shared_prefix: false,
            sparsity: None,
        })
        .unwrap();
        backend.keep_drafts(ROWS as usize + 1, MAX_DRAFTS, width);
        let decoder = {
            let mut progress = |_: u64, _: u64| {};
            let mut loader = Loader::new(&checkpoint, &mut backend, &mut progress);
            blocks::load(&mut loader).unwrap()
        };
        for row in 1..=ROWS {
            let pages = (0..ROW_PAGES).map(|page| PageId::new(1 + (row - 1) * ROW_PAGES + page));
            backend.table_mut().row_mut(RowId::new(row)).extend(pages);
        }
        Self {
            decoder,
            backend,
            state_bytes,
        }
    }

    /// The bits of the logits of all tokens, in order.
    fn run(&mut self, works: &[Work<'_>]) -> Vec<Bits> {
        let mut batch = CpuBatch::default();
        for work in works {
            let row = RowId::new(work.row);
            batch.push(row, work.first, work.tokens, self.backend.table());
            batch.keep_state_with_drafts(work.live, work.saves, work.n_drafts);
        }
        self.backend.wake();
        let hidden = self.decoder.forward(&mut self.backend, &batch, None);
        let all: Vec<u32> = (0..batch.n_tokens() as u32).collect();
        let logits = self.decoder.logits(&mut self.backend, &hidden, &all);
        self.backend.rest();
        let rows = (0..all.len()).map(|token| logits.row(token));
        rows.map(|row| row.iter().map(|x| x.to_bits()).collect())
            .collect()
    }

    fn begin(&mut self, live: StateSlot, from: Option<StateSlot>) {
        self.backend
            .begin_states(std::iter::once(StateStart { live, from }));
    }

    fn state(&mut self, slot: StateSlot) -> Vec<u8> {
        let mut bytes = vec![0; self.state_bytes];
        self.backend.save_state(slot, &mut bytes);
        bytes
    }
}

/// The text of a row, and plain decoding's logits and states after each token.
struct Plain {
    text: Vec<u32>,
    logits: Vec<Bits>,
    states: Vec<Vec<u8>>,
}

fn live(row: u32) -> StateSlot {
    StateSlot::new(row)
}

fn plain(model: &mut Model, row: u32) -> Plain {
    let text = tokens(u64::from(row) + 6, TOKENS, VOCAB);
    model.begin(live(row), None);
    let mut plain = Plain {
        logits: Vec::new(),
        states: vec![model.state(live(row))],
        text,
    };
    for first in 0..TOKENS {
        let logits = model.run(&[Work {
            row,
            live: live(row),
            first,
            tokens: &plain.text[first..=first],
            n_drafts: 0,
            saves: &[],
        }]);
        plain.logits.extend(logits);
        plain.states.push(model.state(live(row)));
    }
    plain
}

struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 33) as usize % end
    }
}

/// The next step of a row that has computed `first` tokens: the inputs, and the number of right and of wrong drafts.
fn next_inputs(plain: &Plain, first: usize, random: &mut Random) -> (Vec<u32>, usize, usize) {
    let left = TOKENS - first - 1;
    let n_right = random.below(MAX_DRAFTS + 1).min(left);
    let n_wrong = random.below(MAX_DRAFTS + 1 - n_right);
    let mut inputs = plain.text[first..=first + n_right].to_vec();
    for index in 0..n_wrong {
        let right = plain.text.get(first + n_right + 1 + index).copied();
        inputs.push((right.unwrap_or(0) + 1) % VOCAB);
    }
    (inputs, n_right, n_wrong)
}

/// Checks a row after a step at `first` of which `n` drafts were right, in one of several ways.
fn check_row(model: &mut Model, plain: &Plain, (row, first, n): (u32, usize, usize), way: usize) {
    let (live, about) = (live(row), format!("row {row} at {first}, {n} right"));
    if way == 0 && n == 0 {
        return;
    }
    model.backend.accept_drafts(live, n);
    match way {
        1 => {
            let m = n / 2;
            model.backend.save_state_after(live, m, SAVED);
            assert!(
                model.state(SAVED) == plain.states[first + 1 + m],
                "{about}, saved"
            );
        }
        2 => {
            model.begin(COPIED, Some(live));
            assert!(
                model.state(COPIED) == plain.states[first + 1 + n],
                "{about}, copied"
            );
        }
        3 => model.backend.settle_state(live),
        4 => assert!(model.state(live) == plain.states[first + 1 + n], "{about}"),
        _ => {}
    }
}

/// Runs both rows to the end of their texts with random drafts; returns the numbers of right and wrong drafts.
fn run_with_drafts(model: &mut Model, rows: &[Plain; 2], seed: u64) -> [usize; 2] {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut counts = [0; 2];
    let mut computed = [PROMPT; 2];
    for (row, plain) in (1..).zip(rows) {
        model.begin(live(row), None);
        model.run(&[Work {
            row,
            live: live(row),
            first: 0,
            tokens: &plain.text[..PROMPT],
            n_drafts: 0,
            saves: &[],
        }]);
    }
    while computed.iter().any(|computed| *computed < TOKENS) {
        let active: Vec<usize> = (0..2).filter(|index| computed[*index] < TOKENS).collect();
        let inputs: Vec<_> = active
            .iter()
            .map(|index| next_inputs(&rows[*index], computed[*index], &mut random))
            .collect();
        let saves = [StateSave {
            position: computed[active[0]] as u32 + 1,
            slot: OTHER,
        }];
        let works = active.iter().zip(&inputs).enumerate();
        let works: Vec<Work<'_>> = works
            .map(|(place, (index, (tokens, n_right, n_wrong)))| Work {
                row: *index as u32 + 1,
                live: live(*index as u32 + 1),
                first: computed[*index],
                tokens,
                n_drafts: n_right + n_wrong,
                saves: if place == 0 { &saves[..] } else { &[] },
            })
            .collect();
        let mut logits = model.run(&works).into_iter();
        let after_certain = &rows[active[0]].states[computed[active[0]] + 1];
        assert!(model.state(OTHER) == *after_certain, "saved by the step");
        for (index, (tokens, n_right, n_wrong)) in active.iter().zip(&inputs) {
            let (plain, first) = (&rows[*index], computed[*index]);
            let own: Vec<Bits> = logits.by_ref().take(tokens.len()).collect();
            let expected = &plain.logits[first..=first + n_right];
            assert!(own[..=*n_right] == *expected, "row {index} at {first}");
            let place = (*index as u32 + 1, first, *n_right);
            check_row(model, plain, place, random.below(8));
            computed[*index] = first + 1 + n_right;
            counts[0] += n_right;
            counts[1] += n_wrong;
        }
    }
    counts
}

fn check(name: &str, types: (Dtype, Option<Quantization>), threads: (usize, Numa)) {
    let mut model = Model::load(name, types, threads);
    let rows = [1, 2].map(|row| plain(&mut model, row));
    for seed in 1..=4 {
        let [right, wrong] = run_with_drafts(&mut model, &rows, seed);
        assert!(
            right > 10 && wrong > 10,
            "{name}: {right} right, {wrong} wrong"
        );
        for (row, plain) in (1..).zip(&rows) {
            let end = model.state(live(row));
            assert!(end == plain.states[TOKENS], "{name}, {types:?}, row {row}");
        }
    }
}

#[test]
fn drafts_of_rows_with_states_change_no_bit() {
    if repeats_floats() {
        return;
    }
    for name in MODELS {
        for dtype in [Dtype::F32, Dtype::BF16] {
            check(name, (dtype, None), (2, Numa::Off));
        }
    }
}

#[test]
fn drafts_change_no_bit_of_quantised_models() {
    for name in ["lfm2", "qwen3-next"] {
        let types = (Dtype::BF16, Some(Quantization::Int8));
        check(name, types, (3, Numa::Off));
    }
}

#[test]
fn drafts_change_no_bit_on_several_nodes() {
    for name in ["lfm2", "qwen3-5"] {
        check(name, (Dtype::BF16, None), (4, Numa::Simulated(2)));
    }
}

#[test]
fn a_state_keeps_its_accepted_drafts_when_its_row_has_another_sequence() {
    for name in MODELS {
        let mut model = Model::load(name, (Dtype::BF16, None), (2, Numa::Off));
        let plain = plain(&mut model, 1);
        model.begin(live(1), None);
        let work = |live, first, end, n_drafts| Work {
            row: 1,
            live,
            first,
            tokens: &plain.text[first..end],
            n_drafts,
            saves: &[],
        };
        model.run(&[work(live(1), 0, PROMPT, 0)]);
        model.run(&[work(live(1), PROMPT, PROMPT + 6, 5)]);
        model.backend.accept_drafts(live(1), 3);
        // Another sequence in the same row, whose drafts take the place of the former ones.
        model.begin(COPIED, None);
        model.run(&[work(COPIED, 0, PROMPT, 2)]);
        model.backend.accept_drafts(COPIED, 2);
        let former = model.state(live(1));
        assert!(former == plain.states[PROMPT + 4], "{name}, former");
        assert!(model.state(COPIED) == plain.states[PROMPT], "{name}, new");
        // A slot that begins anew owes nothing.
        model.run(&[work(COPIED, PROMPT, PROMPT + 4, 3)]);
        model.backend.accept_drafts(COPIED, 3);
        model.begin(COPIED, None);
        assert!(model.state(COPIED) == plain.states[0], "{name}, begun anew");
    }
}
