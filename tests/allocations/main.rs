//! Checks that warm decode steps allocate no memory, on the CPU and on the CUDA executor.
//!
//! The binary has no test harness: the allocator counts the allocations of all threads of the process, and a thread of
//! the harness allocates whenever a test has run for a minute.

#![allow(clippy::unwrap_used)]
// The trait `GlobalAlloc` is unsafe.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};

use souffleur_base::ids::{PageId, RowId, SeqId, StateSlot, StepId};
use souffleur_executor::Executor;
use souffleur_executor::cpu::{CpuExecutor, CpuOptions};
use souffleur_executor::cuda::{CudaExecutor, CudaOptions};
use souffleur_executor::speculation::{MakeProposer, NgramProposers, Speculation};
use souffleur_kernels::cpu::Numa;
use souffleur_kernels::cuda::driver::Device;
use souffleur_kernels::cuda::gemm::GemmWish;
use souffleur_kernels::cuda::pack::Modules;
use souffleur_kernels::cuda::params::ElementType;
use souffleur_model::loader::LoadFormat;
use souffleur_state::pool::kv_layout::KvDtype;
use souffleur_state::pool::pages::PageRun;
use souffleur_state::sampling::SamplingParams;
use souffleur_state::speculation::{Proposal, Proposer};
use souffleur_state::step::{RowStart, RowWork, StateStart, StepPlan, StepRow, TableDelta};

struct CountingAllocator;

static IS_COUNTING: AtomicBool = AtomicBool::new(false);
static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

fn count() {
    if IS_COUNTING.load(Ordering::SeqCst) {
        ALLOCATIONS.fetch_add(1, Ordering::SeqCst);
    }
}

// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller upholds the contract, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller upholds the contract, which is the same.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller upholds the contract, which is the same.
        unsafe { System.realloc(block, layout, size) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the contract, which is the same.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const PROMPT_TOKENS: u32 = 10;
/// With this many rows, the bundled model is computed on several threads; small fixtures need only the calling thread.
const THREADED_ROWS: usize = 24;
const PAGES_PER_ROW: u32 = 200;
/// The first steps, in which scratch buffers grow.
const WARM_STEPS: u32 = 20;
const STEPS: u32 = 100;

/// Greedy and random sampling, with and without filters, penalties and biases.
fn samplings() -> Vec<SamplingParams> {
    let seeded = SamplingParams {
        sampling_seed: Some(7),
        max_new_tokens: 1 + WARM_STEPS + STEPS,
        ..Default::default()
    };
    let greedy = SamplingParams {
        temperature: 0.0,
        ..seeded.clone()
    };
    vec![
        greedy.clone(),
        SamplingParams {
            repetition_penalty: 1.2,
            logit_bias: [(3, 1.0)].into(),
            ..greedy
        },
        seeded.clone(),
        SamplingParams {
            top_p: 0.9,
            min_p: 0.01,
            ..seeded.clone()
        },
        SamplingParams {
            top_k: 20,
            frequency_penalty: 0.5,
            presence_penalty: 0.5,
            min_new_tokens: 50,
            ..seeded.clone()
        },
        SamplingParams {
            top_p: 0.999,
            top_k: 100,
            repetition_penalty: 0.9,
            ..seeded
        },
    ]
}

fn first_plan(n_rows: usize) -> StepPlan {
    let samplings = samplings();
    let mut plan = StepPlan {
        step: StepId::new(0),
        starts: Vec::new(),
        table: Vec::new(),
        rows: Vec::new(),
        copies: None,
        vision: None,
    };
    for (index, sampling) in samplings.iter().cycle().take(n_rows).enumerate() {
        let (row, seq) = (RowId::new(index as u32 + 1), SeqId::new(index as u64 + 1));
        let first = index as u32 * PAGES_PER_ROW + 1;
        plan.starts.push(RowStart {
            row,
            seq,
            tokens: (0..PROMPT_TOKENS).map(|i| i * 7 + index as u32).collect(),
            prompt_tokens: PROMPT_TOKENS,
            grammar: None,
            vectors: None,
            images: None,
            pooling: None,
            sampling: Arc::new(sampling.clone()),
            prefix: PageRun::empty(),
            state: None,
            draft_texts: Default::default(),
        });
        plan.table.push(TableDelta::Append {
            row,
            pages: (first..first + PROMPT_TOKENS).map(PageId::new).collect(),
        });
        plan.rows.push(StepRow {
            row,
            seq,
            work: RowWork::Prefill {
                positions: 0..PROMPT_TOKENS,
            },
            sample: true,
            logprobs: None,
            saves: Default::default(),
        });
    }
    plan
}

/// Turns a plan into the plan of the next decode step, with a new page for every row.
fn next(plan: &mut StepPlan, step: u32) {
    let position = PROMPT_TOKENS + step;
    plan.starts.clear();
    plan.table.clear();
    for (index, row) in plan.rows.iter_mut().enumerate() {
        row.work = RowWork::Decode { position, room: 1 };
        let page = PageId::new(index as u32 * PAGES_PER_ROW + 1 + position);
        plan.table.push(TableDelta::Append {
            row: row.row,
            pages: [page].into_iter().collect(),
        });
    }
}

fn model_dir(model: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join(model)
}

fn cpu_options(threads: usize, kv_dtype: Option<KvDtype>, n_window_pages: usize) -> CpuOptions {
    CpuOptions {
        dtype: None,
        kv_dtype,
        quantization: None,
        load_format: LoadFormat::Auto,
        n_pages: 8000,
        page_size: 1,
        threads,
        pin_threads: false,
        numa: Numa::Off,
        max_rows: THREADED_ROWS,
        n_state_slots: 2 * THREADED_ROWS,
        n_window_pages,
        isa: None,
        shared_prefix: true,
        eos_token_ids: [1].into(),
        sparsity: None,
        speculation: None,
    }
}

fn on_cpu(model: &str, options: &CpuOptions) -> CpuExecutor {
    CpuExecutor::load(&model_dir(model), options, &mut |_, _| {}).unwrap()
}

/// The CUDA executor on the emulated driver. The driver is a separate library, whose allocations are not counted.
fn on_gpu(model: &str, graph_rows: usize) -> CudaExecutor {
    let options = CudaOptions {
        element: ElementType::F32,
        load_format: LoadFormat::Auto,
        n_pages: 8000,
        page_size: 1,
        max_rows: 8,
        context_tokens: 256,
        step_tokens: 128,
        gemm: GemmWish::Own,
        graph_rows,
        plan: None,
        eos_token_ids: [1].into(),
    };
    souffleur_cusim::load();
    let device = Device::open(0).unwrap();
    // SAFETY: the emulated driver accepts this text as an image with every kernel.
    let modules = unsafe { Modules::from_images(&device, |_| b"cusim\0".to_vec()) }.unwrap();
    let dir = model_dir(model);
    CudaExecutor::load_with(device, &modules, &dir, &options, &mut |_, _| {}).unwrap()
}

/// A cache that a model has in addition to the pages for all tokens.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Extra {
    None,
    States,
    Windows,
}

/// Appends a window page with each page.
fn add_windows(plan: &mut StepPlan) {
    for index in 0..plan.table.len() {
        if let TableDelta::Append { row, pages } = &plan.table[index] {
            let (row, pages) = (*row, pages.clone());
            plan.table.push(TableDelta::AppendWindows { row, pages });
        }
    }
}

/// Counts the allocations in batched decode steps after the warm-up.
fn allocations(mut executor: impl Executor, n_rows: usize, extra: Extra) -> usize {
    let mut plan = first_plan(n_rows);
    if extra == Extra::Windows {
        add_windows(&mut plan);
    }
    for start in plan.starts.iter_mut().filter(|_| extra == Extra::States) {
        start.state = Some(StateStart {
            live: StateSlot::new(start.row.get()),
            from: None,
        });
    }
    let output = executor.run(&plan).unwrap();
    executor.recycle(output.rows);
    for step in 0..WARM_STEPS + STEPS {
        next(&mut plan, step);
        if extra == Extra::Windows {
            add_windows(&mut plan);
        }
        IS_COUNTING.store(step >= WARM_STEPS, Ordering::SeqCst);
        let output = executor.run(&plan).unwrap();
        let tokens = output.rows.iter().map(|row| row.tokens.len());
        assert_eq!(tokens.sum::<usize>(), plan.rows.len());
        executor.recycle(output.rows);
        IS_COUNTING.store(false, Ordering::SeqCst);
    }
    ALLOCATIONS.swap(0, Ordering::SeqCst)
}

/// Makes proposers whose drafts are followed by others, so that each step has as many as fit.
struct Filled(NgramProposers);

struct FilledRow(Box<dyn Proposer>);

impl MakeProposer for Filled {
    fn make(&self, start: &RowStart) -> Option<Box<dyn Proposer>> {
        Some(Box::new(FilledRow(self.0.make(start)?)))
    }
}

impl Proposer for FilledRow {
    fn extend(&mut self, tokens: &[u32]) {
        self.0.extend(tokens);
    }

    fn propose(&mut self, max: usize, drafts: &mut Vec<u32>) -> Proposal {
        let first = drafts.len();
        let proposal = self.0.propose(max, drafts);
        drafts.resize(first + max, 5);
        Proposal {
            n_tokens: max,
            ..proposal
        }
    }
}

/// The most query tokens of a row in a step with drafts.
const ROOM: u32 = 3;
const WARM_DRAFT_STEPS: u32 = 15;
/// Rows have pages for the tokens of as many steps.
const DRAFT_STEPS: u32 = 60;

/// Counts the allocations and the verified drafts in batched decode steps with drafts after the warm-up.
fn draft_allocations(mut executor: impl Executor, n_rows: usize) -> (usize, u32) {
    let mut plan = first_plan(n_rows);
    for (index, start) in plan.starts.iter_mut().enumerate() {
        start.sampling = Arc::new(SamplingParams {
            max_new_tokens: 1 + ROOM * DRAFT_STEPS,
            ignore_eos: true,
            speculative_num_draft_tokens: Some(ROOM),
            ..(*start.sampling).clone()
        });
        let first = index as u32 * PAGES_PER_ROW + 1;
        plan.table[index] = TableDelta::Append {
            row: start.row,
            pages: (first..first + PAGES_PER_ROW).map(PageId::new).collect(),
        };
    }
    let mut known = vec![PROMPT_TOKENS; n_rows];
    let mut n_drafts = 0;
    for step in 0..DRAFT_STEPS {
        let is_warm = step >= WARM_DRAFT_STEPS;
        IS_COUNTING.store(is_warm, Ordering::SeqCst);
        let output = executor.run(&plan).unwrap();
        IS_COUNTING.store(false, Ordering::SeqCst);
        for (known, row) in known.iter_mut().zip(&output.rows) {
            *known += row.tokens.len() as u32;
            n_drafts += row.drafts.n_tokens * u32::from(is_warm);
        }
        IS_COUNTING.store(is_warm, Ordering::SeqCst);
        executor.recycle(output.rows);
        IS_COUNTING.store(false, Ordering::SeqCst);
        plan.starts.clear();
        plan.table.clear();
        for (row, known) in plan.rows.iter_mut().zip(&known) {
            row.work = RowWork::Decode {
                position: known - 1,
                room: ROOM,
            };
        }
    }
    (ALLOCATIONS.swap(0, Ordering::SeqCst), n_drafts)
}

fn warm_verifying_steps_allocate_nothing() {
    for (model, vocab_size, n_rows) in [
        ("tests/fixtures/models/llama", 288, samplings().len()),
        ("tests/fixtures/models/gpt-oss", 288, samplings().len()),
        ("models/souffleur-tiny", 2048, THREADED_ROWS),
    ] {
        for (threads, kv_dtype) in [(1, None), (2, Some(KvDtype::Int8))] {
            let options = CpuOptions {
                speculation: Some(Speculation {
                    proposers: Arc::new(Filled(NgramProposers {
                        max_match: 12,
                        capacity: 4096,
                        vocab_size,
                    })),
                    is_controlled: false,
                }),
                ..cpu_options(threads, kv_dtype, 0)
            };
            let (allocations, n_drafts) = draft_allocations(on_cpu(model, &options), n_rows);
            let what = format!("{model}, {threads} threads, {kv_dtype:?}");
            assert_eq!(allocations, 0, "{what}, {n_drafts} drafts");
            assert!(n_drafts > 0, "{what}: no step had drafts");
        }
    }
}

/// Checks that the allocations of all threads are counted, but only while counting is on.
fn check_counting() {
    let turn = Barrier::new(2);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Counting begins after the allocations of the start of the thread.
            turn.wait();
            turn.wait();
            drop(std::hint::black_box(Box::new(1)));
            turn.wait();
            turn.wait();
        });
        turn.wait();
        IS_COUNTING.store(true, Ordering::SeqCst);
        turn.wait();
        drop(std::hint::black_box(Box::new(1)));
        turn.wait();
        IS_COUNTING.store(false, Ordering::SeqCst);
        turn.wait();
    });
    let counted = ALLOCATIONS.swap(0, Ordering::SeqCst);
    assert_eq!(counted, 2, "each of two threads allocates once");
}

fn warm_decode_steps_allocate_nothing() {
    let (few, fixtures) = (samplings().len(), "tests/fixtures/models");
    for (model, n_rows) in [
        (format!("{fixtures}/llama"), few),
        (format!("{fixtures}/qwen3"), few),
        (format!("{fixtures}/qwen3-moe"), few),
        (format!("{fixtures}/qwen3-moe"), THREADED_ROWS),
        (format!("{fixtures}/deepseek-v2"), few),
        (format!("{fixtures}/deepseek-v3"), THREADED_ROWS),
        (format!("{fixtures}/gpt-oss"), few),
        (format!("{fixtures}/gemma3"), THREADED_ROWS),
        (format!("{fixtures}/gemma4"), THREADED_ROWS),
        (format!("{fixtures}/gemma4-experts"), few),
        (format!("{fixtures}/lfm2"), few),
        (format!("{fixtures}/lfm2-moe"), THREADED_ROWS),
        (format!("{fixtures}/qwen3-5"), THREADED_ROWS),
        (format!("{fixtures}/qwen3-next"), few),
        ("models/souffleur-tiny".to_owned(), THREADED_ROWS),
    ] {
        let int8 = Some(KvDtype::Int8);
        for (threads, kv_dtype) in [(1, None), (2, None), (3, None), (2, int8)] {
            let executor = on_cpu(&model, &cpu_options(threads, kv_dtype, 0));
            let extra = if executor.keeps_states() {
                Extra::States
            } else {
                Extra::None
            };
            let allocations = allocations(executor, n_rows, extra);
            assert_eq!(
                allocations, 0,
                "{model}, {threads} threads, {kv_dtype:?}, {STEPS} steps"
            );
        }
    }
    for model in ["gpt-oss", "mistral"] {
        let options = cpu_options(2, None, 8000);
        let executor = on_cpu(&format!("{fixtures}/{model}"), &options);
        let allocations = allocations(executor, few, Extra::Windows);
        assert_eq!(allocations, 0, "{model} with window pages, {STEPS} steps");
    }
    for graph_rows in [0, 8] {
        let executor = on_gpu(&format!("{fixtures}/llama"), graph_rows);
        let allocations = allocations(executor, few, Extra::None);
        assert_eq!(allocations, 0, "graphs of {graph_rows} rows, {STEPS} steps");
    }
}

/// Behaves like the test harness: lists the test on request, and runs the test unless the arguments name another one.
#[allow(clippy::print_stdout)]
fn main() {
    const NAME: &str = "warm_decode_steps_allocate_nothing";
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--list") {
        if !arguments.iter().any(|argument| argument == "--ignored") {
            println!("{NAME}: test");
        }
        return;
    }
    let wanted = arguments.first().filter(|first| !first.starts_with('-'));
    if wanted.is_some_and(|part| !NAME.contains(part.as_str())) {
        return;
    }
    check_counting();
    warm_decode_steps_allocate_nothing();
    warm_verifying_steps_allocate_nothing();
    println!("test {NAME} ... ok");
}
