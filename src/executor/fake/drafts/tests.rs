use super::*;
use crate::Executor;
use crate::fake::{FakeOptions, expected_output};
use souffleur_base::ids::{PageId, RowId, StateSlot};
use souffleur_state::pool::pages::PageRun;
use souffleur_state::pool::window_pool::WindowLimits;
use souffleur_state::sampling::SamplingParams;
use souffleur_state::step::{RowStart, RowWork, StateStart, StepPlan, TableDelta};

const PROMPT: [u32; 6] = [3, 1, 4, 1, 5, 9];
const VOCAB: u32 = 200;
const PAGE: usize = 4;
const N_PAGES: u32 = 40;
const ROW: RowId = RowId::new(1);
const SEQ: SeqId = SeqId::new(1 << 32);
const ROOM: u32 = 8;

fn executor(accept: f64) -> FakeExecutor {
    let options = FakeOptions {
        page_size: PAGE,
        n_pages: N_PAGES as usize,
        vocab_size: VOCAB,
        verify: true,
        n_states: 2,
        hidden_size: 0,
        faults: Vec::new(),
    };
    let windows = WindowLimits {
        tokens: 9,
        total_pages: N_PAGES as usize,
    };
    let drafts = FakeDrafts {
        accept,
        seed: 7,
        eos_token_ids: [VOCAB].into(),
    };
    FakeExecutor::new(options)
        .with_windows(windows)
        .with_drafts(drafts)
}

fn plan(step: u64, work: RowWork) -> StepPlan {
    StepPlan {
        step: StepId::new(step),
        starts: Vec::new(),
        table: Vec::new(),
        rows: vec![StepRow {
            row: ROW,
            seq: SEQ,
            work,
            sample: true,
            logprobs: None,
            saves: smallvec![],
        }],
        copies: None,
        vision: None,
    }
}

/// Computes the prompt of a row whose pages hold `n_pages * PAGE` tokens, and returns the first token.
fn start(executor: &mut FakeExecutor, sampling: SamplingParams, n_pages: u32) -> u32 {
    let positions = 0..PROMPT.len() as u32;
    let mut plan = plan(1, RowWork::Prefill { positions });
    plan.starts.push(RowStart {
        row: ROW,
        seq: SEQ,
        tokens: PROMPT.into(),
        prompt_tokens: PROMPT.len() as u32,
        sampling: Arc::new(sampling),
        grammar: None,
        vectors: None,
        images: None,
        pooling: None,
        draft_texts: Default::default(),
        prefix: PageRun::empty(),
        state: Some(StateStart {
            live: StateSlot::new(1),
            from: None,
        }),
    });
    let pages: SmallVec<[PageId; 2]> = (1..=n_pages).map(PageId::new).collect();
    plan.table = vec![
        TableDelta::Append {
            row: ROW,
            pages: pages.clone(),
        },
        TableDelta::AppendWindows { row: ROW, pages },
    ];
    run(executor, &plan).expect("the plan is sound").tokens[0]
}

fn run(executor: &mut FakeExecutor, plan: &StepPlan) -> Result<RowResult, StepError> {
    let mut output = executor.run(plan)?;
    Ok(output.rows.pop().expect("the row has a result"))
}

fn decode(
    executor: &mut FakeExecutor,
    step: u64,
    position: usize,
    room: u32,
) -> Result<RowResult, StepError> {
    let position = position as u32;
    run(executor, &plan(step, RowWork::Decode { position, room }))
}

fn sampling(max_new_tokens: u32) -> SamplingParams {
    SamplingParams {
        max_new_tokens,
        speculative_num_draft_tokens: Some(ROOM),
        ..SamplingParams::default()
    }
}

/// The output of `n_tokens` tokens, and the numbers of accepted tokens.
fn generate(accept: f64, n_tokens: u32) -> (Vec<u32>, Vec<u32>) {
    let mut executor = executor(accept);
    let mut output = vec![start(&mut executor, sampling(n_tokens), N_PAGES)];
    let mut accepted = Vec::new();
    while output.len() < n_tokens as usize {
        let position = PROMPT.len() + output.len() - 1;
        let step = 2 + accepted.len() as u64;
        let result = decode(&mut executor, step, position, ROOM).expect("the plan is sound");
        assert!(result.accepted <= 1 + result.drafts.n_tokens);
        assert_eq!(result.accepted as usize, result.tokens.len());
        output.extend(&result.tokens);
        accepted.push(result.accepted);
    }
    (output, accepted)
}

#[test]
fn drafts_change_no_output() {
    let expected = expected_output(&PROMPT, 0, 100, VOCAB);
    let n_least = 99_usize.div_ceil(ROOM as usize);
    for (accept, n_steps) in [
        (0.0, 99..100),
        (0.3, n_least + 1..99),
        (0.7, n_least + 1..99),
        (1.0, n_least..n_least + 1),
    ] {
        let (output, accepted) = generate(accept, 100);
        assert_eq!(output, expected, "{accept}");
        assert!(n_steps.contains(&accepted.len()), "{accept}: {accepted:?}");
    }
}

#[test]
fn an_output_ends_within_the_drafts() {
    let expected = expected_output(&PROMPT, 0, 20, VOCAB);
    let end = expected[5];
    let first = expected.iter().position(|token| *token == end);
    assert_eq!(first, Some(5));
    let stops = |ignore_eos| SamplingParams {
        stop_token_ids: [end].into(),
        ignore_eos,
        ..sampling(20)
    };
    for (params, n_accepted) in [(stops(false), 5), (stops(true), 8), (sampling(4), 3)] {
        let mut executor = executor(1.0);
        start(&mut executor, params, N_PAGES);
        let result = decode(&mut executor, 2, PROMPT.len(), ROOM).expect("the plan is sound");
        assert_eq!(result.tokens.as_slice(), &expected[1..1 + n_accepted]);
        assert_eq!(result.verdict, RowVerdict::Open);
    }
}

#[test]
fn plans_beyond_their_bounds_are_refused() {
    let first = PROMPT.len();
    let try_second = |lag: usize| {
        let mut executor = executor(1.0);
        start(&mut executor, sampling(60), N_PAGES);
        let result = decode(&mut executor, 2, first, ROOM).expect("the plan is sound");
        let own = first + result.tokens.len();
        decode(&mut executor, 3, own + 1 - lag, ROOM).is_ok()
    };
    // The previous step sampled eight tokens, so no plan can lag by nine.
    assert!(!try_second(0) && try_second(1) && try_second(9) && !try_second(10));
    // The prompt's two pages have room for one more token.
    for (n_pages, room, is_sound) in [(2, 2, true), (2, 3, false), (3, 6, true), (3, 7, false)] {
        let mut executor = executor(0.0);
        start(&mut executor, sampling(60), n_pages);
        assert_eq!(decode(&mut executor, 2, first, room).is_ok(), is_sound);
    }
    let mut executor = executor(0.0);
    start(&mut executor, sampling(60), N_PAGES);
    assert!(decode(&mut executor, 2, first, 0).is_err());
}

#[test]
fn the_slots_of_rejected_drafts_hold_no_tokens_kv() {
    let mut executor = executor(0.0);
    start(&mut executor, sampling(60), N_PAGES);
    let result = decode(&mut executor, 2, PROMPT.len(), ROOM).expect("the plan is sound");
    assert_eq!((result.accepted, result.drafts.n_tokens), (1, ROOM - 1));
    // The row believes that its first draft was accepted.
    let next = result.tokens[0];
    let row = executor.rows.get_mut(&ROW).expect("it has started");
    row.tokens.push(next);
    let result = decode(&mut executor, 3, PROMPT.len() + 2, ROOM);
    assert!(matches!(result, Err(StepError::Lost(_))), "{result:?}");
}
