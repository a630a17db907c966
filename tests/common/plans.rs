//! Helpers that build step plans, and options for the CPU executor.

use std::sync::Arc;

use souffleur_base::ids::{PageId, RowId, SeqId, StepId};
use souffleur_executor::cpu::CpuOptions;
use souffleur_kernels::cpu::Numa;
use souffleur_model::loader::LoadFormat;
use souffleur_state::pool::pages::PageRun;
use souffleur_state::sampling::LogprobWish;
use souffleur_state::sampling::SamplingParams;
use souffleur_state::step::{RowStart, RowWork, StepPlan, StepRow, TableDelta};

/// The CPU executor's options for a few short sequences.
pub fn cpu_options() -> CpuOptions {
    CpuOptions {
        dtype: None,
        kv_dtype: None,
        quantization: None,
        load_format: LoadFormat::Auto,
        n_pages: 4096,
        page_size: 1,
        threads: 1,
        pin_threads: false,
        numa: Numa::Off,
        max_rows: 32,
        n_state_slots: 64,
        n_window_pages: 0,
        isa: None,
        shared_prefix: true,
        eos_token_ids: [].into(),
        sparsity: None,
        speculation: None,
    }
}

pub fn greedy() -> Arc<SamplingParams> {
    Arc::new(SamplingParams {
        temperature: 0.0,
        ..Default::default()
    })
}

pub fn plan(step: u64) -> StepPlan {
    StepPlan {
        step: StepId::new(step),
        starts: Vec::new(),
        table: Vec::new(),
        rows: Vec::new(),
        copies: None,
        vision: None,
    }
}

/// Starts row `row` with sequence `row` and no cached prefix.
pub fn start(
    row: u32,
    tokens: &[u32],
    prompt_tokens: usize,
    sampling: &Arc<SamplingParams>,
) -> RowStart {
    RowStart {
        row: RowId::new(row),
        seq: SeqId::new(u64::from(row)),
        tokens: tokens.into(),
        prompt_tokens: prompt_tokens as u32,
        grammar: None,
        vectors: None,
        images: None,
        pooling: None,
        sampling: sampling.clone(),
        prefix: PageRun::empty(),
        state: None,
        draft_texts: Default::default(),
    }
}

pub fn append(row: u32, pages: impl IntoIterator<Item = u32>) -> TableDelta {
    let pages = pages.into_iter().map(PageId::new).collect();
    TableDelta::Append {
        row: RowId::new(row),
        pages,
    }
}

/// Prefills positions of a row. Set `sample` if the positions end the row's tokens.
pub fn prefill(row: u32, positions: std::ops::Range<u32>, sample: bool) -> StepRow {
    work(row, RowWork::Prefill { positions }, sample)
}

/// Decodes one token of a row.
pub fn decode(row: u32, position: u32) -> StepRow {
    work(row, RowWork::Decode { position, room: 1 }, true)
}

fn work(row: u32, work: RowWork, sample: bool) -> StepRow {
    StepRow {
        row: RowId::new(row),
        seq: SeqId::new(u64::from(row)),
        work,
        sample,
        logprobs: None,
        saves: Default::default(),
    }
}

/// Requests log probabilities of all prompt positions, so that the executor computes the logits of all positions.
pub fn all_positions() -> Option<Arc<LogprobWish>> {
    Some(Arc::new(LogprobWish {
        start: Some(0),
        ..Default::default()
    }))
}

/// Pseudo-random tokens, the same for the same seed.
pub fn tokens(seed: u64, count: usize, vocab: u32) -> Vec<u32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 33) as u32 % vocab
    };
    (0..count).map(|_| next()).collect()
}
