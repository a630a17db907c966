//! Tests that each synchronisation of the executor's streams is needed: without it, tokens of the emulated GPU differ.

use std::path::Path;

use souffleur_cusim::Fault;

use super::*;
use souffleur_base::ids::{PageId, RowId, SeqId};
use souffleur_kernels::cuda::gemm::GemmWish;
use souffleur_model::loader::LoadFormat;
use souffleur_state::pool::pages::PageRun;
use souffleur_state::sampling::SamplingParams;
use souffleur_state::step::{RowStart, RowWork, TableDelta};

const ROWS: u32 = 2;
const PROMPT_TOKENS: u32 = 8;
const STEPS: u64 = 12;
/// From this step on, every slot of a ring holds the lists of a decode, so kernels can read stale lists without faults.
const FIRST_FAULTY_STEP: u64 = 5;

fn options() -> CudaOptions {
    CudaOptions {
        element: ElementType::F32,
        load_format: LoadFormat::Auto,
        n_pages: 256,
        page_size: 1,
        max_rows: ROWS as usize,
        context_tokens: 64,
        step_tokens: 32,
        gemm: GemmWish::Own,
        // Without graphs, kernels read the uploaded lists themselves; graphs read copies.
        graph_rows: 0,
        plan: None,
        eos_token_ids: [].into(),
    }
}

fn executor(ordinal: usize) -> CudaExecutor {
    // The emulated driver has devices up to the highest ordinal requested.
    souffleur_cusim::Device::new(ordinal);
    let device = Device::open(ordinal).unwrap();
    // SAFETY: the emulated driver accepts this text as an image with every kernel.
    let modules = unsafe { Modules::from_images(&device, |_| b"cusim\0".to_vec()) }.unwrap();
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/models/llama");
    CudaExecutor::load_with(device, &modules, &dir, &options(), &mut |_, _| {}).unwrap()
}

/// Step 0 prefills all rows, which get all of their pages; later steps decode.
fn plan(step: u64) -> StepPlan {
    let mut plan = StepPlan {
        step: StepId::new(step),
        starts: Vec::new(),
        table: Vec::new(),
        rows: Vec::new(),
        copies: None,
        vision: None,
    };
    for row in 1..=ROWS {
        let (id, seq) = (RowId::new(row), SeqId::new(u64::from(row)));
        let work = match step {
            0 => RowWork::Prefill {
                positions: 0..PROMPT_TOKENS,
            },
            _ => RowWork::Decode {
                position: PROMPT_TOKENS + step as u32 - 1,
                room: 1,
            },
        };
        plan.rows.push(StepRow {
            row: id,
            seq,
            work,
            sample: true,
            logprobs: None,
            saves: Default::default(),
        });
        if step > 0 {
            continue;
        }
        let tokens: Vec<u32> = (0..PROMPT_TOKENS).map(|i| 20 + i * 7 + row * 31).collect();
        plan.starts.push(RowStart {
            row: id,
            seq,
            tokens: tokens.into(),
            prompt_tokens: PROMPT_TOKENS,
            grammar: None,
            vectors: None,
            images: None,
            pooling: None,
            // The high temperature makes it unlikely that a token repeats.
            sampling: Arc::new(SamplingParams {
                sampling_seed: Some(u64::from(row)),
                temperature: 2.0,
                ..SamplingParams::default()
            }),
            prefix: PageRun::empty(),
            state: None,
            draft_texts: Default::default(),
        });
        plan.table.push(TableDelta::Append {
            row: id,
            pages: (row * 100..row * 100 + 50).map(PageId::new).collect(),
        });
    }
    plan
}

/// The synchronisation that is removed from each step.
#[derive(Clone, Copy, Debug, PartialEq)]
enum SkippedWait {
    None,
    /// The nth wait of a stream for an event. 1: the upload waits for the slot's last readers. 2: the kernels wait for
    /// the upload. 3: the readback waits for the kernels.
    StreamWait(u64),
    /// The host writes to pinned memory that was not copied yet.
    UploadWait,
    /// The host reads pinned memory that was not copied to yet.
    ReadbackWait,
}

#[derive(Clone, Copy, Debug)]
struct Case {
    upload_slots: usize,
    readback_slots: usize,
    hurries_copies: bool,
    skipped: SkippedWait,
}

/// All synchronisations in place, copies as late as possible.
const DEFAULT_CASE: Case = Case {
    upload_slots: N_SLOTS,
    readback_slots: N_SLOTS,
    hurries_copies: false,
    skipped: SkippedWait::None,
};

/// The tokens of all steps; each step is launched before the results of the previous one are read.
fn tokens(ordinal: usize, case: Case) -> Vec<Vec<u32>> {
    let mut executor = executor(ordinal);
    let emulated = souffleur_cusim::Device::new(ordinal);
    executor.uploads = UploadRing::new(&executor.device, case.upload_slots, 1024).unwrap();
    executor.readbacks = ReadbackRing::new(&executor.device, case.readback_slots, 1024).unwrap();
    emulated.hurry_copies(case.hurries_copies);
    let mut outputs = Vec::new();
    for step in 0..STEPS {
        let is_faulty = step >= FIRST_FAULTY_STEP;
        let inject = |fault, nth| emulated.plan(fault, if is_faulty { nth } else { 0 });
        match case.skipped {
            SkippedWait::StreamWait(nth) => inject(Fault::StreamWait, nth),
            SkippedWait::UploadWait => inject(Fault::HostWait, 1),
            _ => {}
        }
        executor.launch(&plan(step)).unwrap();
        if case.skipped == SkippedWait::ReadbackWait {
            inject(Fault::HostWait, 1);
        }
        if step > 0 {
            outputs.push(executor.finish().unwrap());
        }
    }
    emulated.plan(Fault::HostWait, 0);
    outputs.push(executor.finish().unwrap());
    emulated.hurry_copies(false);
    let tokens = |output: StepOutput| output.rows.into_iter().flat_map(|row| row.tokens).collect();
    outputs.into_iter().map(tokens).collect()
}

#[test]
fn rings_of_any_length_are_guarded_by_their_events() {
    let expected = tokens(11, DEFAULT_CASE);
    for (upload_slots, hurries_copies) in [(N_SLOTS, true), (1, false), (1, true)] {
        let case = Case {
            upload_slots,
            hurries_copies,
            ..DEFAULT_CASE
        };
        assert_eq!(tokens(11, case), expected, "{case:?}");
    }
}

#[test]
fn every_missing_wait_of_a_step_is_detected() {
    let expected = tokens(12, DEFAULT_CASE);
    let one_upload_slot = Case {
        upload_slots: 1,
        ..DEFAULT_CASE
    };
    let cases = [
        Case {
            skipped: SkippedWait::UploadWait,
            ..one_upload_slot
        },
        Case {
            skipped: SkippedWait::StreamWait(1),
            hurries_copies: true,
            ..one_upload_slot
        },
        Case {
            skipped: SkippedWait::StreamWait(2),
            ..DEFAULT_CASE
        },
        Case {
            skipped: SkippedWait::StreamWait(3),
            ..DEFAULT_CASE
        },
        Case {
            skipped: SkippedWait::ReadbackWait,
            ..DEFAULT_CASE
        },
        // With one slot, a step in flight overwrites the results of the previous step.
        Case {
            readback_slots: 1,
            ..DEFAULT_CASE
        },
    ];
    for case in cases {
        assert_ne!(tokens(12, case), expected, "{case:?} is not detected");
    }
}

#[test]
fn a_third_step_in_flight_is_refused() {
    let mut executor = executor(13);
    executor.launch(&plan(0)).unwrap();
    executor.launch(&plan(1)).unwrap();
    let refused = executor.launch(&plan(2)).unwrap_err();
    assert!(matches!(&refused, StepError::Rejected(_)), "{refused}");
    executor.finish().unwrap();
    executor.launch(&plan(2)).unwrap();
}

/// A rejected plan may be launched again, but not one whose rows have advanced: a step without upload memory is lost.
#[test]
fn an_upload_without_memory_loses_the_step() {
    let expected = tokens(14, DEFAULT_CASE);
    let mut executor = executor(14);
    executor.run(&plan(0)).unwrap();
    executor.uploads = UploadRing::new(&executor.device, N_SLOTS, 1).unwrap();
    souffleur_cusim::Device::new(14).plan(Fault::Allocation, 1);
    let error = executor.run(&plan(1)).unwrap_err();
    assert!(matches!(&error, StepError::Lost(_)), "{error}");
    let again = (0..STEPS).map(|step| executor.run(&plan(step)).unwrap());
    let tokens = |output: StepOutput| output.rows.into_iter().flat_map(|row| row.tokens).collect();
    assert_eq!(again.map(tokens).collect::<Vec<Vec<u32>>>(), expected);
}

#[test]
fn float16_runs_in_bfloat16_unless_it_was_requested() {
    for (dtype, origin, expected) in [
        (Dtype::F32, DtypeOrigin::Requested, Some(ElementType::F32)),
        (Dtype::BF16, DtypeOrigin::Requested, Some(ElementType::Bf16)),
        (Dtype::F16, DtypeOrigin::Stored, Some(ElementType::Bf16)),
        (Dtype::F16, DtypeOrigin::Requested, None),
    ] {
        let found = element_of(dtype, origin);
        assert_eq!(found.ok(), expected, "{dtype:?}, {origin:?}");
    }
}
