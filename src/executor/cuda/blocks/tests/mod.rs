//! Tests of block copies on the emulated GPU: the bytes do not depend on timing, a missing wait changes them, and no
//! wrong byte is saved where the driver refuses a copy.

mod pinning;
mod world;

use std::path::Path;

use souffleur_cusim::Fault;

use super::*;
use crate::Executor;
use souffleur_base::error::StepError;
use souffleur_model::loader::LoadFormat;
use world::*;

#[test]
fn loaded_blocks_equal_saved_ones_at_any_timing_of_copies() {
    let expected = outcome(21, DEFAULT_CASE);
    let (tokens, saved) = &expected;
    assert_eq!(saved.keys().copied().collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
    let is_written = |block: &Vec<u8>| block.iter().any(|byte| *byte != FREED_BYTE);
    assert!(saved.values().all(is_written));
    assert!(saved[&1] != saved[&2] && saved[&2] != saved[&3]);
    // Row 3 has loaded the bytes that row 1 had computed, and continues with the same tokens.
    assert!(saved[&4] == saved[&2] && saved[&5] == saved[&3]);
    assert_eq!(tokens[LOADS as usize..], tokens[1..4]);
    for (load_slots, hurries_copies) in [(LOAD_SLOTS, true), (1, false), (1, true)] {
        let case = Case {
            load_slots,
            hurries_copies,
            ..DEFAULT_CASE
        };
        assert!(outcome(21, case) == expected, "{case:?}");
    }
}

#[test]
fn every_missing_wait_of_a_copy_is_detected() {
    let expected = outcome(22, DEFAULT_CASE);
    let skipped = |skipped| Case {
        skipped,
        ..DEFAULT_CASE
    };
    let cases = [
        // The gather does not wait for the step that writes the block.
        skipped(SkippedWait::StreamWait(SAVES_FRESH, 3)),
        // The step does not wait for the gather of pages that it writes to.
        skipped(SkippedWait::StreamWait(SAVES_AND_REUSES, 4)),
        // The store gets a buffer that nothing was copied to.
        skipped(SkippedWait::HostWait(SAVES_ALONE, 2)),
        // The scatters do not wait for the copies.
        skipped(SkippedWait::StreamWait(LOADS, 4)),
        skipped(SkippedWait::StreamWait(LOADS, 6)),
        // The second copy does not wait for the first scatter.
        Case {
            load_slots: 1,
            hurries_copies: true,
            skipped: SkippedWait::StreamWait(LOADS, 5),
        },
    ];
    for case in cases {
        assert!(outcome(22, case) != expected, "{case:?} is not detected");
    }
}

#[test]
fn a_refused_copy_loses_only_its_save() {
    let (expected, _) = outcome(23, DEFAULT_CASE);
    let mut run = Run::new(23);
    for step in 0..LOADS {
        // The first copy uploads the step's lists.
        let nth = if step == SAVES_ALONE { 2 } else { 0 };
        run.emulated.plan(Fault::Copy(OUT_OF_MEMORY), nth);
        run.executor.launch(&plan(step)).unwrap();
        run.finish_all();
    }
    assert_eq!(run.tokens, expected[..LOADS as usize]);
    assert_eq!(run.saved().keys().copied().collect::<Vec<_>>(), [1, 3]);
    assert_eq!(run.in_use(), 0);
}

#[test]
fn a_load_whose_copy_fails_or_whose_blocks_are_missing_loses_the_step() {
    let (expected, _) = outcome(24, DEFAULT_CASE);
    for is_fetched in [true, false] {
        let mut run = Run::new(24);
        for step in 0..LOADS {
            run.executor.launch(&plan(step)).unwrap();
            run.finish_all();
        }
        if is_fetched {
            run.fetch();
            // The third copy fails, after those of the lists and the first of two blocks.
            run.emulated.plan(Fault::Copy(OUT_OF_MEMORY), 3);
        }
        let error = run.executor.launch(&plan(LOADS)).unwrap_err();
        run.emulated.plan(Fault::Copy(OUT_OF_MEMORY), 0);
        assert!(matches!(&error, StepError::Lost(_)), "{error}");
        let reason = if is_fetched {
            "cuMemcpyHtoDAsync"
        } else {
            "no longer has the blocks"
        };
        assert!(error.to_string().contains(reason), "{error}");
        assert_eq!(run.in_use(), 0);
        run.tokens.clear();
        for step in 0..LOADS {
            run.executor.launch(&plan(step)).unwrap();
            run.finish_all();
        }
        assert_eq!(run.tokens, expected[..LOADS as usize]);
    }
}

#[test]
fn block_sizes_that_cannot_be_copied_are_refused() {
    let port = || {
        Box::new(Port {
            store: Arc::default(),
            block_bytes: 0,
        })
    };
    let refusals = [
        (0, "a positive multiple of page_size, 1"),
        (65, "more than 64 pages of 1"),
    ];
    for (block_tokens, reason) in refusals {
        let refused = plain_executor(26).with_store(block_tokens, port());
        let error = refused.err().unwrap().to_string();
        assert!(error.contains(reason), "{error}");
        assert!(error.contains("the KV store cannot be used"), "{error}");
    }
}

#[test]
fn staging_memory_fits_the_blocks_in_flight() {
    let executor = plain_executor(27);
    let block = executor.backend.block_bytes(64).unwrap() as u64;
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/models/llama");
    let described = crate::cpu::describe(&dir, None, None, LoadFormat::Auto);
    let layout = described.unwrap().kv_layout;
    assert_eq!(staging_bytes(&layout, 64), (LOAD_SLOTS as u64 + 1) * block);
}
