//! Tests of pinned buffers: which ones are pinned, for how long, and which are lost with a CUDA context.

use std::sync::atomic::Ordering;

use souffleur_cusim::Fault;

use super::world::*;
use crate::Executor;
use souffleur_base::error::StepError;
use souffleur_state::step::{BlockCopies, RowWork, StepPlan};

#[test]
fn a_lost_context_loses_only_the_buffers_that_it_may_still_use() {
    for (last, n_lost) in [(SAVES_FRESH, 1), (LOADS, 2)] {
        let mut run = Run::new(28);
        for step in 0..last {
            run.executor.launch(&plan(step)).unwrap();
            run.finish_all();
        }
        if last == LOADS {
            run.fetch();
        }
        run.emulated.plan(Fault::Kernel(ILLEGAL_ADDRESS), 1);
        let launched = run.executor.launch(&plan(last));
        let ended = launched.and_then(|_| run.executor.finish());
        let error = ended.map(drop).unwrap_err();
        assert!(matches!(&error, StepError::Lost(_)), "{error}");
        assert_eq!(run.in_use(), 0);
        assert_eq!(run.store.abandoned.load(Ordering::Relaxed), n_lost);
        // Earlier saves shared one buffer, which is free again.
        let n_free = run.store.free.lock().unwrap().len();
        assert_eq!(n_free, usize::from(last == LOADS));
        drop(run);
        let mut next = Run::new(28);
        for step in 0..=SAVES_FRESH {
            next.executor.launch(&plan(step)).unwrap();
            next.finish_all();
        }
        assert_eq!(next.saved().len(), 1);
    }
}

#[test]
fn buffers_stay_pinned_as_long_as_the_executor_lives() {
    let mut run = Run::new(25);
    let device = run.executor.device.clone();
    let pinned_before = device.pinned_bytes();
    let block_bytes = run.executor.backend.block_bytes(BLOCK_TOKENS).unwrap();
    for step in 0..=SAVES_AND_REUSES {
        run.executor.launch(&plan(step)).unwrap();
        run.finish_all();
    }
    // Three blocks were saved one after the other, in one buffer, which is pinned in whole pages.
    let pages_bytes = block_bytes.next_multiple_of(PAGE_BYTES) as u64;
    assert_eq!(device.pinned_bytes() - pinned_before, pages_bytes);
    run.executor.launch(&plan(5)).unwrap();
    let Run {
        executor, emulated, ..
    } = run;
    drop(executor);
    assert_eq!(device.pinned_bytes(), 0);
    drop(device);
    assert_eq!(emulated.counts().n_allocations_held, 0);
}

#[test]
fn a_launch_pins_one_buffer_and_copies_the_others_from_pageable_memory() {
    let (_, expected) = outcome(29, DEFAULT_CASE);
    for hurries_copies in [false, true] {
        let mut run = Run::new(29);
        run.emulated.hurry_copies(hurries_copies);
        let device = run.executor.device.clone();
        let block_bytes = run.executor.backend.block_bytes(BLOCK_TOKENS).unwrap();
        let pages_bytes = block_bytes.next_multiple_of(PAGE_BYTES) as u64;
        let pinned_before = device.pinned_bytes();
        let n_pinned = || (device.pinned_bytes() - pinned_before) / pages_bytes;
        let step_alone = |run: &mut Run, plan: &StepPlan| {
            run.executor.launch(plan).unwrap();
            run.finish_all();
            n_pinned()
        };
        for step in 0..LOADS {
            let n_pinned = step_alone(&mut run, &plan(step));
            assert_eq!(n_pinned, u64::from(step >= SAVES_FRESH));
        }
        run.fetch();
        assert_eq!(step_alone(&mut run, &plan(LOADS)), 2);
        let pinned = std::mem::take(&mut *run.store.free.lock().unwrap());
        assert_eq!(step_alone(&mut run, &plan(LOADS + 1)), 3);
        assert!(run.saved() == expected, "hurries_copies: {hurries_copies}");
        // The buffer that stayed pageable is pinned by the next launch.
        for step in LOADS + 2..LOADS + 4 {
            let mut plan = empty_plan(step);
            let position = (step - LOADS) as u32 + 23;
            work(&mut plan, 3, RowWork::Decode { position, room: 1 }, true);
            let mut copies = BlockCopies::default();
            copies.saves.extend([save(step, 61), save(100 + step, 69)]);
            plan.copies = Some(Box::new(copies));
            assert_eq!(step_alone(&mut run, &plan), 4);
            let saved = run.saved();
            assert!(saved[&step] == saved[&4] && saved[&(100 + step)] == saved[&5]);
        }
        run.store.free.lock().unwrap().extend(pinned);
        run.emulated.hurry_copies(false);
    }
}
