//! Tests of plans that contradict themselves, and of the results of steps.

use std::sync::Arc;

use souffleur_base::error::StepError;
use souffleur_base::ids::{PageId, RowId};
use souffleur_executor::Executor;
use souffleur_request::PromptVectors;
use souffleur_state::pool::pages::PageRun;
use souffleur_state::sampling::LogprobWish;
use souffleur_state::sampling::SamplingParams;
use souffleur_state::step::{RowVerdict, StepPlan, TableDelta};

use crate::common::{
    append, decode, fixture, greedy, load, load_from, options, plan, prefill, start, tokens,
};

fn executor() -> impl Executor {
    load("llama", &options())
}

/// A plan that starts row 1 with ten tokens and prefills them.
fn opening() -> StepPlan {
    let mut step = plan(0);
    step.starts = vec![start(1, &tokens(3, 10, 288), 10, &greedy())];
    step.table = vec![append(1, 1..20)];
    step.rows = vec![prefill(1, 0..10, true)];
    step
}

fn run_of(pages: &[u32]) -> PageRun {
    let pages: Arc<[PageId]> = pages.iter().copied().map(PageId::new).collect();
    let mut run = PageRun::empty();
    run.push(&pages, 0..pages.len() as u32);
    run
}

type Edit = fn(&mut StepPlan);

/// A part of the expected error, and a change that contradicts the rest of the plan.
const CONTRADICTIONS: [(&str, Edit); 15] = [
    ("never started", |plan| plan.starts.clear()),
    ("outside 1 to 32", |plan| plan.starts[0].row = RowId::new(0)),
    ("outside 1 to 32", |plan| {
        plan.starts[0].row = RowId::new(33)
    }),
    ("need pages", |plan| plan.table.clear()),
    ("pages are 1 to 4096", |plan| {
        plan.table = vec![append(1, [0])]
    }),
    ("pages are 1 to 4096", |plan| {
        plan.table = vec![append(1, [4097])]
    }),
    ("pages are 1 to 4096", |plan| {
        plan.starts[0].prefix = run_of(&[0])
    }),
    ("cannot be remapped", |plan| {
        let row = RowId::new(1);
        plan.table.push(TableDelta::Remap {
            row,
            from: 18,
            pages: run_of(&[30, 31]).into(),
        });
    }),
    ("more than the", |plan| {
        plan.starts[0].prefix = run_of(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10])
    }),
    ("vocabulary size is 288", |plan| {
        plan.starts[0].tokens = [1, 288].as_slice().into()
    }),
    ("expected 2 of 64", |plan| {
        let vectors = PromptVectors::new(32, vec![0.5; 64]).unwrap();
        plan.starts[0].vectors = Some(vectors.into());
    }),
    ("two pieces of work", |plan| {
        plan.rows.push(prefill(1, 0..10, true))
    }),
    ("are empty", |plan| {
        plan.rows = vec![prefill(1, 3..3, false)]
    }),
    ("only 0 computed", |plan| {
        plan.rows = vec![prefill(1, 1..10, true)]
    }),
    ("samples after 9 of 10", |plan| {
        plan.rows = vec![prefill(1, 0..9, true)]
    }),
];

#[test]
fn contradictory_plan_is_rejected_and_leaves_no_trace() {
    let mut executor = executor();
    for (reason, break_plan) in CONTRADICTIONS {
        let mut broken = opening();
        broken.starts[0].prompt_tokens = 2; // One edit leaves two tokens.
        break_plan(&mut broken);
        match executor.run(&broken) {
            Err(StepError::Rejected(text)) => {
                assert!(text.contains(reason), "{text:?} for {reason:?}")
            }
            other => panic!("{reason}: {other:?}"),
        }
        let mut after_refusal = plan(1);
        after_refusal.rows = vec![decode(1, 10)];
        assert!(
            executor
                .run(&after_refusal)
                .unwrap_err()
                .to_string()
                .contains("never started"),
            "{reason}"
        );
    }
    assert!(executor.run(&opening()).is_ok());
}

#[test]
fn contradictions_in_later_steps_are_rejected_too() {
    let mut executor = executor();
    executor.run(&opening()).unwrap();
    let mut other_sequence = plan(1);
    other_sequence.rows = vec![decode(1, 10)];
    other_sequence.rows[0].seq = souffleur_base::ids::SeqId::new(9);
    let mut skipped = plan(1);
    skipped.rows = vec![decode(1, 11)];
    let mut repeated = plan(1);
    repeated.rows = vec![decode(1, 9)];
    let mut past_end = plan(1);
    past_end.rows = vec![prefill(1, 10..11, false)];
    for (plan, reason) in [
        (other_sequence, "holds sequence 1"),
        (skipped, "computed positions"),
        (repeated, "at position 9, but the row has 11 tokens"),
        (past_end, "has 10 tokens"),
    ] {
        let error = executor.run(&plan).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn remapped_pages_give_the_same_tokens() {
    let mut executor = executor();
    let prompt = tokens(3, 10, 288);
    let mut step = opening();
    step.starts.push(start(2, &prompt, 10, &greedy()));
    step.table.push(append(2, 101..120));
    step.rows.push(prefill(2, 0..10, true));
    let output = executor.run(&step).unwrap();
    assert_eq!(output.rows[0].tokens, output.rows[1].tokens);
    let mut step = plan(1);
    step.table = vec![TableDelta::Remap {
        row: RowId::new(2),
        from: 2,
        pages: run_of(&[3, 4, 5, 6]).into(),
    }];
    step.rows = vec![decode(1, 10), decode(2, 10)];
    let output = executor.run(&step).unwrap();
    assert_eq!(output.rows[0].tokens, output.rows[1].tokens);
    assert_eq!(output.rows[1].accepted, 1);
}

#[test]
fn input_logprobs_cover_the_requested_positions_across_chunks() {
    let mut executor = executor();
    let prompt = tokens(3, 10, 288);
    let request = Arc::new(LogprobWish {
        start: Some(3),
        top: 2,
        token_ids: [5].into(),
    });
    let mut step = opening();
    let mut input = Vec::new();
    for (first, end) in [(0, 4), (4, 5), (5, 10)] {
        step.rows = vec![prefill(1, first..end, end == 10)];
        step.rows[0].logprobs = Some(request.clone());
        let mut output = executor.run(&step).unwrap();
        let logprobs = output.rows[0].logprobs.take().unwrap();
        input.extend(logprobs.input);
        assert_eq!(logprobs.output.len(), usize::from(end == 10));
        assert_eq!(output.rows[0].accepted, end - first);
        step.starts.clear();
        step.table.clear();
    }
    let scored: Vec<u32> = input.iter().map(|entry| entry.token).collect();
    assert_eq!(scored, prompt[4..]);
    for entry in &input {
        assert!(entry.logprob.unwrap() <= entry.top[0].1);
        assert_eq!(
            (entry.top.len(), entry.chosen.len(), entry.chosen[0].0),
            (2, 1, 5)
        );
    }
}

#[test]
fn seeded_samples_do_not_depend_on_the_batch() {
    let sampling = Arc::new(SamplingParams {
        sampling_seed: Some(11),
        temperature: 1.3,
        ..Default::default()
    });
    let generate = |rows: &[u32]| {
        let mut executor = executor();
        let mut step = plan(0);
        for &row in rows {
            step.starts
                .push(start(row, &tokens(3, 10, 288), 10, &sampling));
            step.table.push(append(row, row * 100..row * 100 + 50));
            step.rows.push(prefill(row, 0..10, true));
        }
        let mut outputs = vec![Vec::new(); rows.len()];
        for n in 0..20 {
            let output = executor.run(&step).unwrap();
            for (seen, row) in outputs.iter_mut().zip(&output.rows) {
                seen.extend(row.tokens.iter().copied());
            }
            step = plan(n + 1);
            step.rows = rows.iter().map(|&row| decode(row, 10 + n as u32)).collect();
        }
        outputs
    };
    let alone = generate(&[1]);
    let together = generate(&[1, 2, 3, 4, 5]);
    assert!(
        together.iter().all(|output| output == &alone[0]),
        "{alone:?} {together:?}"
    );
}

#[test]
fn nan_is_reported_for_its_row_and_reaches_no_other() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["config.json", "model.safetensors"] {
        std::fs::copy(fixture("llama").join(name), dir.path().join(name)).unwrap();
    }
    poison_embedding_of(dir.path(), 7);
    let mut executor = load_from(dir.path(), &options());
    let mut step = plan(0);
    for (row, prompt) in [(1, [3, 4, 5]), (2, [3, 7, 5]), (3, [3, 4, 5])] {
        step.starts.push(start(row, &prompt, 3, &greedy()));
        step.table.push(append(row, row * 10..row * 10 + 3));
        step.rows.push(prefill(row, 0..3, true));
    }
    let output = executor.run(&step).unwrap();
    let nan: Vec<bool> = output
        .rows
        .iter()
        .map(|row| row.verdict == RowVerdict::NanLogits)
        .collect();
    assert_eq!(nan, [false, true, false]);
    assert_eq!(output.rows[0].tokens, output.rows[2].tokens);
}

/// Makes the first element of a token's embedding NaN, in a file of f32.
fn poison_embedding_of(dir: &std::path::Path, token: usize) {
    let file = dir.join("model.safetensors");
    let mut bytes = std::fs::read(&file).unwrap();
    let header_bytes = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + header_bytes]).unwrap();
    let embedding = &header["model.embed_tokens.weight"];
    let start = embedding["data_offsets"][0].as_u64().unwrap() as usize;
    let hidden = embedding["shape"][1].as_u64().unwrap() as usize;
    let at = 8 + header_bytes + start + token * hidden * 4;
    bytes[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    std::fs::write(&file, bytes).unwrap();
}
