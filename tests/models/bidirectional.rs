//! Tests of models whose images attend in both directions: no bit depends on chunks, cached prefixes, pages, threads or
//! neighbours, and no step cuts an image.

use std::sync::Arc;

use serde_json::Value;
use souffleur_base::error::StepError;
use souffleur_base::ids::{PageId, RowId, SeqId};
use souffleur_executor::Executor;
use souffleur_executor::cpu::{CpuExecutor, CpuOptions};
use souffleur_kernels::dtype::Dtype;
use souffleur_state::pool::kv_layout::KvDtype;
use souffleur_state::prompt_images::PromptImages;
use souffleur_state::sampling::LogprobWish;
use souffleur_state::step::{RowStart, TableDelta};
use tempfile::TempDir;

use crate::common::{
    append, fixture, greedy, load, load_from, options, plan, prefill, start, tokens,
};
use crate::images::{Prompt, ROW, first_pages, prompt, run};
use crate::invariance::{Bits, observe};
use crate::kernel_paths::repeats_floats;

/// All layers see images in both directions in the first model, those with windows in the second.
const MODELS: [&str; 2] = ["gemma3", "gemma4-plain"];
/// The first image is longer than the models' windows.
const GRIDS: [(u32, u32); 2] = [(5, 6), (1, 4)];

/// A copy of a fixture of Gemma 4 with the key of the models whose images attend in both directions.
pub fn with_key(name: &str) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let config = std::fs::read(fixture(name).join("config.json")).unwrap();
    let mut config: Value = serde_json::from_slice(&config).unwrap();
    config["use_bidirectional_attention"] = "vision".into();
    std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    let weights = "model.safetensors";
    std::fs::copy(fixture(name).join(weights), dir.path().join(weights)).unwrap();
    dir
}

fn executor(model: &str, options: &CpuOptions) -> CpuExecutor {
    match model {
        "gemma3" => load(model, options),
        _ => load_from(with_key(model).path(), options),
    }
}

fn table(prompt: &Prompt) -> PromptImages {
    PromptImages::new(&prompt.tokens, &prompt.images).expect("valid images")
}

fn refused(executor: &mut CpuExecutor, begun: RowStart, end: u32) -> String {
    let mut step = plan(0);
    step.starts = vec![begun];
    step.table = vec![append(ROW, 70..130)];
    step.rows = vec![prefill(ROW, 0..end, false)];
    match executor.run(&step) {
        Err(StepError::Rejected(reason)) => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn chunks_and_cached_prefixes_change_no_bit_and_cut_chunks_are_refused() {
    if repeats_floats() {
        return;
    }
    for model in MODELS {
        let mut executor = executor(model, &options());
        let prompt = prompt(model, GRIDS);
        let (n_tokens, table) = (prompt.len(), table(&prompt));
        let expected = run(&mut executor, prompt.start(), 1..60, &[0, n_tokens]);
        for cut in 1..n_tokens {
            if table.cuts_run(cut) {
                let reason = refused(&mut executor, prompt.start(), cut);
                assert!(reason.contains("within an image"), "{model}: {reason}");
            } else {
                let got = run(&mut executor, prompt.start(), 70..130, &[0, cut, n_tokens]);
                assert!(got == expected, "{model}, cut at {cut}");
            }
            // A cached prefix may end within an image.
            let mut begun = prompt.start();
            begun.prefix = first_pages(cut);
            let got = run(&mut executor, begun, 140..200, &[cut, n_tokens]);
            let expected: Bits = expected.clone().split_off(&cut);
            assert!(got == expected, "{model}, cached up to {cut}");
        }
        let cuts = [0, 5, 6, 36, 39, 41, 45, n_tokens];
        let got = run(&mut executor, prompt.start(), 70..130, &cuts);
        assert!(got == expected, "{model}, in many chunks");
    }
}

#[test]
fn pages_threads_windows_and_types_of_kv_change_no_bit() {
    if repeats_floats() {
        return;
    }
    for model in MODELS {
        for kv_dtype in [None, Some(KvDtype::Int8)] {
            let base = CpuOptions {
                kv_dtype,
                n_pages: 200,
                ..options()
            };
            let prompt = prompt(model, GRIDS);
            let all = [0, prompt.len()];
            let expected = run(&mut executor(model, &base), prompt.start(), 1..60, &all);
            for (page_size, threads) in [(16, 1), (256, 3)] {
                let options = CpuOptions {
                    page_size,
                    threads,
                    n_pages: 20,
                    ..base.clone()
                };
                let got = run(&mut executor(model, &options), prompt.start(), 1..9, &all);
                assert!(
                    got == expected,
                    "{model}, {kv_dtype:?}, pages of {page_size}"
                );
            }
            // Layers with windows have pages of their own.
            let options = CpuOptions {
                n_window_pages: 100,
                ..base
            };
            let mut executor = executor(model, &options);
            let mut step = plan(0);
            step.starts = vec![prompt.start()];
            let pages = (1..60).rev().map(PageId::new).collect();
            let row = RowId::new(ROW);
            step.table = vec![append(ROW, 1..60), TableDelta::AppendWindows { row, pages }];
            let mut work = prefill(ROW, 0..prompt.len(), true);
            work.logprobs = crate::common::all_positions();
            step.rows = vec![work];
            let mut got = Bits::new();
            observe(&mut executor, &step, &mut got);
            assert_eq!(got.len() as u32, prompt.len());
            let is_same = |(position, bits): (&u32, &Vec<u32>)| *bits == expected[position];
            assert!(got.iter().all(is_same), "{model}, {kv_dtype:?}, windows");
        }
    }
}

/// The last layer computes only the positions that are read, and these see their whole image too.
#[test]
fn positions_that_are_read_alone_have_the_same_bits() {
    for model in MODELS {
        let mut executor = executor(model, &options());
        let mut prompt = prompt(model, GRIDS);
        // The prompt ends with the first image's last vector.
        prompt.tokens.truncate(36);
        prompt.images.truncate(1);
        prompt.images[0].positions.end = 36;
        let n_tokens = prompt.len();
        let expected = run(&mut executor, prompt.start(), 1..60, &[0, n_tokens]);
        for first in [None, Some(20), Some(34)] {
            let mut step = plan(0);
            step.starts = vec![prompt.start()];
            step.table = vec![append(ROW, 70..130)];
            let mut work = prefill(ROW, 0..n_tokens, true);
            work.logprobs = first.map(|first| {
                Arc::new(LogprobWish {
                    start: Some(first),
                    ..Default::default()
                })
            });
            step.rows = vec![work];
            let mut got = Bits::new();
            observe(&mut executor, &step, &mut got);
            assert!(got.contains_key(&(n_tokens - 1)), "{model}, {first:?}");
            for (position, bits) in got {
                assert!(
                    bits == expected[&position],
                    "{model}, {first:?}, {position}"
                );
            }
        }
    }
}

#[test]
fn neighbours_change_no_bit() {
    if repeats_floats() {
        return;
    }
    for model in MODELS {
        for dtype in [Dtype::F32, Dtype::BF16] {
            let options = CpuOptions {
                dtype: Some(dtype),
                ..options()
            };
            let mut executor = executor(model, &options);
            let own = prompt(model, GRIDS);
            let all = [0, own.len()];
            let expected = run(&mut executor, own.start(), 1..60, &all);
            let mut step = plan(0);
            for row in [1, 2, ROW, 8] {
                let mut begun = match row {
                    // The images of another row are at other positions.
                    1 => prompt(model, [(2, 3), (7, 4)]).start(),
                    2 => start(row, &tokens(3, 50, 240), 50, &greedy()),
                    _ => own.start(),
                };
                begun.row = RowId::new(row);
                begun.seq = SeqId::new(u64::from(row));
                let n_tokens = begun.tokens.len() as u32;
                let mut work = prefill(row, 0..n_tokens, true);
                work.logprobs = crate::common::all_positions();
                step.starts.push(begun);
                step.table.push(append(row, row * 100..row * 100 + 60));
                step.rows.push(work);
            }
            let mut got = Bits::new();
            observe(&mut executor, &step, &mut got);
            assert_eq!(got.len() as u32, own.len());
            let is_same = |(position, bits): (&u32, &Vec<u32>)| *bits == expected[position];
            assert!(got.iter().all(is_same), "{model}, {dtype:?}");
        }
    }
}
