//! Saves and loads step by step: the same bytes whether copies are late or in a hurry, other bytes as soon as a wait is
//! missing, and no wrong byte where the driver refuses a copy.

use std::any::Any;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use memmap2::MmapMut;
use souffleur_cusim::Fault;

use super::*;
use crate::error::StepError;
use crate::executor::Executor;
use crate::executor::Placement;
use crate::executor::cuda::CudaOptions;
use crate::executor::host::{LoadedPart, Wanted};
use crate::ids::{SeqId, StepId};
use crate::kernels::cuda::gemm::GemmWish;
use crate::kernels::cuda::pack::Modules;
use crate::kernels::cuda::params::ElementType;
use crate::model::loader::LoadFormat;
use crate::state::pool::pages::PageRun;
use crate::state::sampling::SamplingParams;
use crate::state::step::{BlockCopies, RowStart, RowWork, StepOutput, StepRow};

const BLOCK_TOKENS: usize = 8;
const PROMPT_TOKENS: u32 = 24;
const OUT_OF_MEMORY: i32 = 2;
const ILLEGAL_ADDRESS: i32 = 700;
const PAGE_BYTES: usize = 4096;
/// In the memory of a buffer that nobody has.
const GONE: u8 = 0xee;
const STEPS: u64 = 9;
/// The steps that save a block whose pages were just written, one that nobody waits for, and one whose pages the same step
/// writes to.
const SAVES_FRESH: u64 = 2;
const SAVES_ALONE: u64 = 3;
const SAVES_AND_REUSES: u64 = 4;
/// The step that loads two blocks; the next one saves them again.
const LOADS: u64 = 6;

/// Buffers, and what lies in them for the store or for a step.
#[derive(Default)]
struct Shelf {
    free: Mutex<Vec<Block>>,
    saved: Mutex<BTreeMap<u64, Vec<u8>>>,
    fetched: Mutex<BTreeMap<u64, Vec<Block>>>,
    in_hands: AtomicUsize,
    abandoned: AtomicUsize,
}

/// The memory of a block, in pages of its own.
struct Block {
    pages: MmapMut,
    len: usize,
}

impl Block {
    fn new(len: usize) -> Self {
        let pages = MmapMut::map_anon(len.next_multiple_of(PAGE_BYTES)).unwrap();
        let mut block = Self { pages, len };
        block.bytes_mut().fill(GONE);
        block
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.pages[..self.len]
    }
}

struct ShelfBuffer {
    /// `None` once it went back, or was abandoned.
    block: Option<Block>,
    shelf: Arc<Shelf>,
}

impl ShelfBuffer {
    fn hand_out(block: Block, shelf: &Arc<Shelf>) -> Box<dyn HostBuffer> {
        shelf.in_hands.fetch_add(1, Ordering::Relaxed);
        Box::new(Self {
            block: Some(block),
            shelf: shelf.clone(),
        })
    }

    fn block(&mut self) -> &mut Block {
        self.block.as_mut().unwrap()
    }
}

impl HostBuffer for ShelfBuffer {
    fn bytes_mut(&mut self) -> &mut [u8] {
        self.block().bytes_mut()
    }

    fn pages_mut(&mut self) -> &mut [u8] {
        &mut self.block().pages
    }

    fn owner(&self) -> Arc<dyn Any + Send + Sync> {
        self.shelf.clone()
    }

    fn keep(mut self: Box<Self>, ticket: Ticket) -> bool {
        let bytes = self.bytes_mut().to_vec();
        let mut saved = self.shelf.saved.lock().unwrap();
        saved.insert(ticket.get(), bytes);
        true
    }

    fn abandon(mut self: Box<Self>) {
        std::mem::forget(self.block.take());
        self.shelf.abandoned.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for ShelfBuffer {
    fn drop(&mut self) {
        if let Some(mut block) = self.block.take() {
            block.bytes_mut().fill(GONE);
            self.shelf.free.lock().unwrap().push(block);
        }
        self.shelf.in_hands.fetch_sub(1, Ordering::Relaxed);
    }
}

struct Port {
    shelf: Arc<Shelf>,
    block_bytes: usize,
}

impl BlockPort for Port {
    fn save(&mut self, _: Ticket, _: BlockKind, _: &mut dyn FnMut(&mut [u8])) -> bool {
        panic!("a device fills buffers by itself")
    }

    fn load(&mut self, _: Ticket, _: Wanted, _: &mut dyn FnMut(LoadedPart<'_>)) -> bool {
        panic!("a device reads buffers by itself")
    }

    fn take_buffer(&mut self, kind: BlockKind) -> Option<Box<dyn HostBuffer>> {
        assert_eq!(kind, BlockKind::Kv);
        let free = self.shelf.free.lock().unwrap().pop();
        let block = free.unwrap_or_else(|| Block::new(self.block_bytes));
        Some(ShelfBuffer::hand_out(block, &self.shelf))
    }

    fn take_run(&mut self, ticket: Ticket, n_blocks: usize) -> Option<Vec<Box<dyn HostBuffer>>> {
        let run = self.shelf.fetched.lock().unwrap().remove(&ticket.get())?;
        assert_eq!(run.len(), n_blocks);
        let buffers = run.into_iter();
        let buffers = buffers.map(|block| ShelfBuffer::hand_out(block, &self.shelf));
        Some(buffers.collect())
    }
}

fn plain_executor(ordinal: usize) -> CudaExecutor {
    let options = CudaOptions {
        element: ElementType::F32,
        load_format: LoadFormat::Auto,
        n_pages: 256,
        page_size: 1,
        max_rows: 3,
        context_tokens: 64,
        step_tokens: 32,
        gemm: GemmWish::Own,
        graph_rows: 0,
        placement: Placement::WHOLE,
        plan: None,
        eos_token_ids: [].into(),
    };
    // The driver has as many devices as were asked for.
    souffleur_cusim::Device::new(ordinal);
    let device = Device::open(ordinal).unwrap();
    // SAFETY: to the emulated driver this text is an image that has every kernel.
    let modules = unsafe { Modules::from_images(&device, |_| b"cusim\0".to_vec()) }.unwrap();
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/models/llama");
    CudaExecutor::load_with(device, &modules, &dir, &options, &mut |_, _| {}).unwrap()
}

fn executor(ordinal: usize) -> (CudaExecutor, Arc<Shelf>) {
    let executor = plain_executor(ordinal);
    let shelf = Arc::new(Shelf::default());
    let port = Port {
        block_bytes: executor.backend.block_bytes(BLOCK_TOKENS).unwrap(),
        shelf: shelf.clone(),
    };
    let executor = executor.with_store(BLOCK_TOKENS, Box::new(port));
    (executor.unwrap(), shelf)
}

/// A row that starts with a prompt of its seed, on pages of its own.
fn begin(plan: &mut StepPlan, row: u32, seed: u32, pages: impl IntoIterator<Item = u32>) {
    let tokens: Vec<u32> = (0..PROMPT_TOKENS).map(|i| 20 + i * 7 + seed * 31).collect();
    plan.starts.push(RowStart {
        row: RowId::new(row),
        seq: SeqId::new(u64::from(row)),
        tokens: tokens.into(),
        prompt_tokens: PROMPT_TOKENS,
        grammar: None,
        vectors: None,
        pooling: None,
        sampling: Arc::new(SamplingParams {
            sampling_seed: Some(u64::from(seed)),
            temperature: 2.0,
            ..SamplingParams::default()
        }),
        prefix: PageRun::empty(),
        state: None,
    });
    plan.table.push(TableDelta::Append {
        row: RowId::new(row),
        pages: pages.into_iter().map(PageId::new).collect(),
    });
}

fn work(plan: &mut StepPlan, row: u32, work: RowWork, sample: bool) {
    plan.rows.push(StepRow {
        row: RowId::new(row),
        seq: SeqId::new(u64::from(row)),
        work,
        sample,
        logprobs: None,
        saves: Default::default(),
    });
}

fn save(ticket: u64, first_page: u32) -> BlockSave {
    let pages = first_page..first_page + BLOCK_TOKENS as u32;
    BlockSave {
        ticket: Ticket::new(ticket),
        from: BlockSource::Pages(pages.map(PageId::new).collect()),
    }
}

fn empty_plan(step: u64) -> StepPlan {
    StepPlan {
        step: StepId::new(step),
        starts: Vec::new(),
        table: Vec::new(),
        rows: Vec::new(),
        copies: None,
    }
}

/// Row 1 is computed and its blocks are saved; row 2 gets pages that are being saved; row 3 loads what row 1 had.
fn plan(step: u64) -> StepPlan {
    let mut plan = empty_plan(step);
    let prefill = |positions| RowWork::Prefill { positions };
    let decode = |position| RowWork::Decode { position };
    let mut copies = BlockCopies::default();
    match step {
        0 => {
            begin(&mut plan, 1, 1, 1..=40);
            work(&mut plan, 1, prefill(0..16), false);
        }
        1 => work(&mut plan, 1, prefill(16..24), true),
        SAVES_FRESH => {
            work(&mut plan, 1, decode(24), true);
            copies.saves.push(save(1, 17));
        }
        SAVES_ALONE => {
            work(&mut plan, 1, decode(25), true);
            copies.saves.push(save(2, 1));
        }
        SAVES_AND_REUSES => {
            copies.saves.push(save(3, 9));
            begin(&mut plan, 2, 2, (9..=16).chain(41..=60));
            work(&mut plan, 2, prefill(0..24), true);
        }
        5 => work(&mut plan, 2, decode(24), true),
        LOADS => {
            begin(&mut plan, 3, 1, 61..=100);
            copies.loads.push(BlockLoad {
                ticket: Ticket::new(9),
                row: RowId::new(3),
                skip_tokens: 0,
                positions: 0..16,
                states: Default::default(),
            });
            work(&mut plan, 3, prefill(16..24), true);
        }
        7 => {
            work(&mut plan, 3, decode(24), true);
            copies.saves.extend([save(4, 61), save(5, 69)]);
        }
        _ => work(&mut plan, 3, decode(25), true),
    }
    plan.copies = (!copies.is_empty()).then(|| Box::new(copies));
    plan
}

/// The wait that is taken away.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Planted {
    Nothing,
    /// The nth wait of a stream for an event in the launch of a step. The first two are those for the step's lists.
    StreamWait(u64, u64),
    /// The nth wait of the host for an event at the end of a step. The first one is that for its results.
    HostWait(u64, u64),
}

#[derive(Clone, Copy, Debug)]
struct Case {
    load_slots: usize,
    hurries_copies: bool,
    planted: Planted,
}

const AS_IT_IS: Case = Case {
    load_slots: LOAD_SLOTS,
    hurries_copies: false,
    planted: Planted::Nothing,
};

/// Tokens of each step, and the bytes of each save.
type Outcome = (Vec<Vec<u32>>, BTreeMap<u64, Vec<u8>>);

struct Run {
    executor: CudaExecutor,
    shelf: Arc<Shelf>,
    emulated: souffleur_cusim::Device,
    tokens: Vec<Vec<u32>>,
}

impl Run {
    fn new(ordinal: usize) -> Self {
        let (executor, shelf) = executor(ordinal);
        let mut run = Self {
            executor,
            shelf,
            emulated: souffleur_cusim::Device::new(ordinal),
            tokens: Vec::new(),
        };
        run.warm_up();
        run
    }

    /// Steps of each shape on pages that nobody else uses: buffers that grew later would be freed, which waits for everything.
    fn warm_up(&mut self) {
        for step in 0..3 {
            let mut plan = empty_plan(step);
            let row_work = match step {
                0 => {
                    begin(&mut plan, 2, 3, 101..=140);
                    RowWork::Prefill { positions: 0..24 }
                }
                _ => RowWork::Decode {
                    position: 23 + step as u32,
                },
            };
            work(&mut plan, 2, row_work, true);
            self.executor.launch(&plan).unwrap();
            self.finish();
        }
        self.tokens.clear();
    }

    fn finish(&mut self) {
        let output = self.executor.finish().unwrap();
        let of = |output: StepOutput| output.rows.into_iter().flat_map(|row| row.tokens);
        self.tokens.push(of(output).collect());
    }

    fn finish_all(&mut self) {
        while !self.executor.under_way.is_empty() {
            self.finish();
        }
    }

    /// Puts what was saved of row 1 where row 3 finds it.
    fn fetch(&self) {
        let saved = self.shelf.saved.lock().unwrap();
        let run = [2, 3].map(|ticket| {
            let mut block = Block::new(saved[&ticket].len());
            block.bytes_mut().copy_from_slice(&saved[&ticket]);
            block
        });
        let mut fetched = self.shelf.fetched.lock().unwrap();
        fetched.insert(9, run.into());
    }

    /// Looks at a save until it has ended, as an executor's thread does that waits for a step.
    fn glance(&self) {
        let step = self.executor.under_way.back().unwrap();
        for _ in 0..1000 {
            if step.blocks.are_copied().unwrap() {
                return;
            }
        }
        panic!("the save does not end");
    }

    fn saved(&self) -> BTreeMap<u64, Vec<u8>> {
        self.shelf.saved.lock().unwrap().clone()
    }

    fn in_hands(&self) -> usize {
        self.shelf.in_hands.load(Ordering::Relaxed)
    }
}

/// All steps, each launched before the one before is read.
fn outcome(ordinal: usize, case: Case) -> Outcome {
    let mut run = Run::new(ordinal);
    let (emulated, device) = (run.emulated, run.executor.device.clone());
    let block_bytes = run.executor.backend.block_bytes(BLOCK_TOKENS).unwrap();
    let copier = run.executor.blocks.as_mut().unwrap();
    copier.loading = LoadRing::new(&device, case.load_slots, block_bytes).unwrap();
    emulated.hurry_copies(case.hurries_copies);
    for step in 0..STEPS {
        if step == LOADS {
            run.finish_all();
            run.fetch();
        }
        if let Planted::StreamWait(at, nth) = case.planted {
            emulated.plan(Fault::StreamWait, if at == step { nth } else { 0 });
        }
        run.executor.launch(&plan(step)).unwrap();
        emulated.plan(Fault::StreamWait, 0);
        if step == SAVES_FRESH {
            run.glance();
        }
        if run.executor.under_way.len() < 2 {
            continue;
        }
        let oldest = run.executor.under_way[0].step.get();
        if let Planted::HostWait(at, nth) = case.planted {
            emulated.plan(Fault::HostWait, if at == oldest { nth } else { 0 });
        }
        run.finish();
        emulated.plan(Fault::HostWait, 0);
    }
    run.finish_all();
    emulated.hurry_copies(false);
    assert_eq!(run.in_hands(), 0, "every buffer was given back");
    (run.tokens.clone(), run.saved())
}

#[test]
fn what_is_saved_is_loaded_whenever_copies_run() {
    let expected = outcome(21, AS_IT_IS);
    let (tokens, saved) = &expected;
    assert_eq!(saved.keys().copied().collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
    let is_written = |block: &Vec<u8>| block.iter().any(|byte| *byte != GONE);
    assert!(saved.values().all(is_written));
    assert!(saved[&1] != saved[&2] && saved[&2] != saved[&3]);
    // Row 3 has loaded the bytes that row 1 had computed, and goes on with the same tokens.
    assert!(saved[&4] == saved[&2] && saved[&5] == saved[&3]);
    assert_eq!(tokens[LOADS as usize..], tokens[1..4]);
    for (load_slots, hurries_copies) in [(LOAD_SLOTS, true), (1, false), (1, true)] {
        let case = Case {
            load_slots,
            hurries_copies,
            ..AS_IT_IS
        };
        assert!(outcome(21, case) == expected, "{case:?}");
    }
}

#[test]
fn whatever_a_copy_does_not_wait_for_shows() {
    let expected = outcome(22, AS_IT_IS);
    let planted = |planted| Case {
        planted,
        ..AS_IT_IS
    };
    let cases = [
        // The gather does not wait for the step that writes the block.
        planted(Planted::StreamWait(SAVES_FRESH, 3)),
        // The step does not wait for the gather of pages that it writes to.
        planted(Planted::StreamWait(SAVES_AND_REUSES, 4)),
        // The store gets a buffer that nothing was copied to.
        planted(Planted::HostWait(SAVES_ALONE, 2)),
        // The scatters do not wait for the copies.
        planted(Planted::StreamWait(LOADS, 4)),
        planted(Planted::StreamWait(LOADS, 6)),
        // The second copy does not wait for the first scatter.
        Case {
            load_slots: 1,
            hurries_copies: true,
            planted: Planted::StreamWait(LOADS, 5),
        },
    ];
    for case in cases {
        assert!(outcome(22, case) != expected, "{case:?} does not show");
    }
}

#[test]
fn a_refused_copy_of_a_save_costs_the_save_alone() {
    let (expected, _) = outcome(23, AS_IT_IS);
    let mut run = Run::new(23);
    for step in 0..LOADS {
        // The first copy is that of the step's lists.
        let nth = if step == SAVES_ALONE { 2 } else { 0 };
        run.emulated.plan(Fault::Copy(OUT_OF_MEMORY), nth);
        run.executor.launch(&plan(step)).unwrap();
        run.finish_all();
    }
    assert_eq!(run.tokens, expected[..LOADS as usize]);
    assert_eq!(run.saved().keys().copied().collect::<Vec<_>>(), [1, 3]);
    assert_eq!(run.in_hands(), 0);
}

#[test]
fn a_load_without_a_copy_or_without_its_blocks_loses_the_step() {
    let (expected, _) = outcome(24, AS_IT_IS);
    for is_there in [true, false] {
        let mut run = Run::new(24);
        for step in 0..LOADS {
            run.executor.launch(&plan(step)).unwrap();
            run.finish_all();
        }
        if is_there {
            run.fetch();
            // Behind the lists and the first of two blocks.
            run.emulated.plan(Fault::Copy(OUT_OF_MEMORY), 3);
        }
        let error = run.executor.launch(&plan(LOADS)).unwrap_err();
        run.emulated.plan(Fault::Copy(OUT_OF_MEMORY), 0);
        assert!(matches!(&error, StepError::Lost(_)), "{error}");
        let reason = match is_there {
            true => "cuMemcpyHtoDAsync",
            false => "are not there",
        };
        assert!(error.to_string().contains(reason), "{error}");
        assert_eq!(run.in_hands(), 0);
        // Everything is computed again.
        run.tokens.clear();
        for step in 0..LOADS {
            run.executor.launch(&plan(step)).unwrap();
            run.finish_all();
        }
        assert_eq!(run.tokens, expected[..LOADS as usize]);
    }
}

#[test]
fn a_lost_context_costs_the_buffers_that_it_may_still_use_and_no_others() {
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
        assert_eq!(run.in_hands(), 0);
        assert_eq!(run.shelf.abandoned.load(Ordering::Relaxed), n_lost);
        // Those of earlier steps lie on the shelf.
        let n_free = run.shelf.free.lock().unwrap().len();
        assert_eq!(n_free, usize::from(last == LOADS));
        drop(run);
        // The next executor pins what it likes.
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
    // Three blocks were saved one after the other, in one buffer, which is pinned by the page.
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
fn a_launch_pins_one_buffer_and_copies_the_others_as_they_are() {
    let (_, expected) = outcome(29, AS_IT_IS);
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
        // Two blocks in buffers that were not seen before.
        run.fetch();
        assert_eq!(step_alone(&mut run, &plan(LOADS)), 2);
        // And two that are saved again, to other ones.
        let seen = std::mem::take(&mut *run.shelf.free.lock().unwrap());
        assert_eq!(step_alone(&mut run, &plan(LOADS + 1)), 3);
        assert!(run.saved() == expected, "in a hurry: {hurries_copies}");
        // The one that was left out is pinned by the next launch.
        for step in LOADS + 2..LOADS + 4 {
            let mut plan = empty_plan(step);
            let position = (step - LOADS) as u32 + 23;
            work(&mut plan, 3, RowWork::Decode { position }, true);
            let mut copies = BlockCopies::default();
            copies.saves.extend([save(step, 61), save(100 + step, 69)]);
            plan.copies = Some(Box::new(copies));
            assert_eq!(step_alone(&mut run, &plan), 4);
            let saved = run.saved();
            assert!(saved[&step] == saved[&4] && saved[&(100 + step)] == saved[&5]);
        }
        run.shelf.free.lock().unwrap().extend(seen);
        run.emulated.hurry_copies(false);
    }
}

#[test]
fn blocks_that_cannot_be_copied_are_refused_by_their_size() {
    let port = || {
        Box::new(Port {
            shelf: Arc::default(),
            block_bytes: 0,
        })
    };
    for (block_tokens, reason) in [(0, "not whole pages of 1"), (65, "more than 64 pages of 1")] {
        let refused = plain_executor(26).with_store(block_tokens, port());
        let error = refused.err().unwrap().to_string();
        assert!(error.contains(reason), "{error}");
        assert!(error.contains("no K/V can be stored"), "{error}");
    }
}

#[test]
fn staging_has_room_for_the_blocks_that_are_under_way() {
    let executor = plain_executor(27);
    let block = executor.backend.block_bytes(64).unwrap() as u64;
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/models/llama");
    let described = crate::executor::cpu::describe(&dir, None, None, LoadFormat::Auto);
    let layout = described.unwrap().kv_layout;
    assert_eq!(staging_bytes(&layout, 64), (LOAD_SLOTS as u64 + 1) * block);
}
