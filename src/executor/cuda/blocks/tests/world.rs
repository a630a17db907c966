//! Set-up of the block copy tests: an executor on the emulated GPU, a KV store, and steps that save and load blocks.

use std::any::Any;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use memmap2::MmapMut;
use souffleur_cusim::Fault;

use super::super::*;
use crate::Executor;
use crate::cuda::{CudaExecutor, CudaOptions};
use crate::host::{LoadedPart, Wanted};
use souffleur_base::ids::{SeqId, StepId};
use souffleur_kernels::cuda::gemm::GemmWish;
use souffleur_kernels::cuda::pack::Modules;
use souffleur_kernels::cuda::params::ElementType;
use souffleur_model::loader::LoadFormat;
use souffleur_state::pool::pages::PageRun;
use souffleur_state::sampling::SamplingParams;
use souffleur_state::step::{
    BlockCopies, RowStart, RowWork, StepOutput, StepPlan, StepRow, TableDelta,
};

pub(super) const BLOCK_TOKENS: usize = 8;
pub(super) const PROMPT_TOKENS: u32 = 24;
pub(super) const OUT_OF_MEMORY: i32 = 2;
pub(super) const ILLEGAL_ADDRESS: i32 = 700;
pub(super) const PAGE_BYTES: usize = 4096;
pub(super) const FREED_BYTE: u8 = 0xee;
pub(super) const STEPS: u64 = 9;
/// The steps that save a block whose pages were just written, a block that no step waits for, and a block whose pages
/// the same step writes to.
pub(super) const SAVES_FRESH: u64 = 2;
pub(super) const SAVES_ALONE: u64 = 3;
pub(super) const SAVES_AND_REUSES: u64 = 4;
/// The step that loads two blocks; the next one saves them again.
pub(super) const LOADS: u64 = 6;

/// A KV store: free buffers, saved contents, and blocks fetched for a step.
#[derive(Default)]
pub(super) struct Store {
    pub(super) free: Mutex<Vec<Block>>,
    pub(super) saved: Mutex<BTreeMap<u64, Vec<u8>>>,
    pub(super) fetched: Mutex<BTreeMap<u64, Vec<Block>>>,
    pub(super) in_use: AtomicUsize,
    pub(super) abandoned: AtomicUsize,
}

/// The memory of a block, in pages of the operating system that hold nothing else.
pub(super) struct Block {
    pages: MmapMut,
    len: usize,
}

impl Block {
    fn new(len: usize) -> Self {
        let pages = MmapMut::map_anon(len.next_multiple_of(PAGE_BYTES)).unwrap();
        let mut block = Self { pages, len };
        block.bytes_mut().fill(FREED_BYTE);
        block
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.pages[..self.len]
    }
}

pub(super) struct StoreBuffer {
    /// `None` once the block was returned or abandoned.
    block: Option<Block>,
    store: Arc<Store>,
}

impl StoreBuffer {
    fn hand_out(block: Block, store: &Arc<Store>) -> Box<dyn HostBuffer> {
        store.in_use.fetch_add(1, Ordering::Relaxed);
        Box::new(Self {
            block: Some(block),
            store: store.clone(),
        })
    }

    fn block(&mut self) -> &mut Block {
        self.block.as_mut().unwrap()
    }
}

impl HostBuffer for StoreBuffer {
    fn bytes_mut(&mut self) -> &mut [u8] {
        self.block().bytes_mut()
    }

    fn pages_mut(&mut self) -> &mut [u8] {
        &mut self.block().pages
    }

    fn owner(&self) -> Arc<dyn Any + Send + Sync> {
        self.store.clone()
    }

    fn keep(mut self: Box<Self>, ticket: Ticket) -> bool {
        let bytes = self.bytes_mut().to_vec();
        let mut saved = self.store.saved.lock().unwrap();
        saved.insert(ticket.get(), bytes);
        true
    }

    fn abandon(mut self: Box<Self>) {
        std::mem::forget(self.block.take());
        self.store.abandoned.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for StoreBuffer {
    fn drop(&mut self) {
        if let Some(mut block) = self.block.take() {
            block.bytes_mut().fill(FREED_BYTE);
            self.store.free.lock().unwrap().push(block);
        }
        self.store.in_use.fetch_sub(1, Ordering::Relaxed);
    }
}

pub(super) struct Port {
    pub(super) store: Arc<Store>,
    pub(super) block_bytes: usize,
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
        let free = self.store.free.lock().unwrap().pop();
        let block = free.unwrap_or_else(|| Block::new(self.block_bytes));
        Some(StoreBuffer::hand_out(block, &self.store))
    }

    fn take_run(&mut self, ticket: Ticket, n_blocks: usize) -> Option<Vec<Box<dyn HostBuffer>>> {
        let run = self.store.fetched.lock().unwrap().remove(&ticket.get())?;
        assert_eq!(run.len(), n_blocks);
        let buffers = run.into_iter();
        let buffers = buffers.map(|block| StoreBuffer::hand_out(block, &self.store));
        Some(buffers.collect())
    }
}

pub(super) fn plain_executor(ordinal: usize) -> CudaExecutor {
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
        plan: None,
        eos_token_ids: [].into(),
    };
    // The emulated driver has devices up to the highest ordinal requested.
    souffleur_cusim::Device::new(ordinal);
    let device = Device::open(ordinal).unwrap();
    // SAFETY: the emulated driver accepts this text as an image with every kernel.
    let modules = unsafe { Modules::from_images(&device, |_| b"cusim\0".to_vec()) }.unwrap();
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/models/llama");
    CudaExecutor::load_with(device, &modules, &dir, &options, &mut |_, _| {}).unwrap()
}

pub(super) fn executor(ordinal: usize) -> (CudaExecutor, Arc<Store>) {
    let executor = plain_executor(ordinal);
    let store = Arc::new(Store::default());
    let port = Port {
        block_bytes: executor.backend.block_bytes(BLOCK_TOKENS).unwrap(),
        store: store.clone(),
    };
    let executor = executor.with_store(BLOCK_TOKENS, Box::new(port));
    (executor.unwrap(), store)
}

/// Adds to the plan a row that starts with a prompt generated from `seed`.
pub(super) fn begin(
    plan: &mut StepPlan,
    row: u32,
    seed: u32,
    pages: impl IntoIterator<Item = u32>,
) {
    let tokens: Vec<u32> = (0..PROMPT_TOKENS).map(|i| 20 + i * 7 + seed * 31).collect();
    plan.starts.push(RowStart {
        row: RowId::new(row),
        seq: SeqId::new(u64::from(row)),
        tokens: tokens.into(),
        prompt_tokens: PROMPT_TOKENS,
        grammar: None,
        vectors: None,
        images: None,
        pooling: None,
        sampling: Arc::new(SamplingParams {
            sampling_seed: Some(u64::from(seed)),
            temperature: 2.0,
            ..SamplingParams::default()
        }),
        prefix: PageRun::empty(),
        state: None,
        draft_texts: Default::default(),
    });
    plan.table.push(TableDelta::Append {
        row: RowId::new(row),
        pages: pages.into_iter().map(PageId::new).collect(),
    });
}

pub(super) fn work(plan: &mut StepPlan, row: u32, work: RowWork, sample: bool) {
    plan.rows.push(StepRow {
        row: RowId::new(row),
        seq: SeqId::new(u64::from(row)),
        work,
        sample,
        logprobs: None,
        saves: Default::default(),
    });
}

pub(super) fn save(ticket: u64, first_page: u32) -> BlockSave {
    let pages = first_page..first_page + BLOCK_TOKENS as u32;
    BlockSave {
        ticket: Ticket::new(ticket),
        from: BlockSource::Pages(pages.map(PageId::new).collect()),
    }
}

pub(super) fn empty_plan(step: u64) -> StepPlan {
    StepPlan {
        step: StepId::new(step),
        starts: Vec::new(),
        table: Vec::new(),
        rows: Vec::new(),
        copies: None,
        vision: None,
    }
}

/// Row 1 is computed and its blocks are saved; row 2 gets pages that are being saved; row 3 loads the blocks of row 1.
pub(super) fn plan(step: u64) -> StepPlan {
    let mut plan = empty_plan(step);
    let prefill = |positions| RowWork::Prefill { positions };
    let decode = |position| RowWork::Decode { position, room: 1 };
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

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum SkippedWait {
    None,
    /// A step, and n: the nth wait of a stream for an event in the step's launch. The first two wait for its lists.
    StreamWait(u64, u64),
    /// A step, and n: the nth wait of the host for an event at the step's end. The first one waits for its results.
    HostWait(u64, u64),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Case {
    pub(super) load_slots: usize,
    pub(super) hurries_copies: bool,
    pub(super) skipped: SkippedWait,
}

pub(super) const DEFAULT_CASE: Case = Case {
    load_slots: LOAD_SLOTS,
    hurries_copies: false,
    skipped: SkippedWait::None,
};

/// Tokens of each step, and the bytes of each save.
pub(super) type Outcome = (Vec<Vec<u32>>, BTreeMap<u64, Vec<u8>>);

pub(super) struct Run {
    pub(super) executor: CudaExecutor,
    pub(super) store: Arc<Store>,
    pub(super) emulated: souffleur_cusim::Device,
    pub(super) tokens: Vec<Vec<u32>>,
}

impl Run {
    pub(super) fn new(ordinal: usize) -> Self {
        let (executor, store) = executor(ordinal);
        let mut run = Self {
            executor,
            store,
            emulated: souffleur_cusim::Device::new(ordinal),
            tokens: Vec::new(),
        };
        run.warm_up();
        run
    }

    /// Runs steps of each shape on unused pages, so that no buffer grows later: freeing a buffer waits for the device.
    pub(super) fn warm_up(&mut self) {
        for step in 0..3 {
            let mut plan = empty_plan(step);
            let row_work = match step {
                0 => {
                    begin(&mut plan, 2, 3, 101..=140);
                    RowWork::Prefill { positions: 0..24 }
                }
                _ => RowWork::Decode {
                    position: 23 + step as u32,
                    room: 1,
                },
            };
            work(&mut plan, 2, row_work, true);
            self.executor.launch(&plan).unwrap();
            self.finish();
        }
        self.tokens.clear();
    }

    pub(super) fn finish(&mut self) {
        let output = self.executor.finish().unwrap();
        let of = |output: StepOutput| output.rows.into_iter().flat_map(|row| row.tokens);
        self.tokens.push(of(output).collect());
    }

    pub(super) fn finish_all(&mut self) {
        while !self.executor.in_flight.is_empty() {
            self.finish();
        }
    }

    /// Provides the saved blocks of row 1 to the load of row 3.
    pub(super) fn fetch(&self) {
        let saved = self.store.saved.lock().unwrap();
        let run = [2, 3].map(|ticket| {
            let mut block = Block::new(saved[&ticket].len());
            block.bytes_mut().copy_from_slice(&saved[&ticket]);
            block
        });
        let mut fetched = self.store.fetched.lock().unwrap();
        fetched.insert(9, run.into());
    }

    /// Polls a save until it has ended, as an executor's thread does while it waits for a step.
    pub(super) fn poll_save(&self) {
        let step = self.executor.in_flight.back().unwrap();
        for _ in 0..1000 {
            if step.blocks.are_saves_copied().unwrap() {
                return;
            }
        }
        panic!("the save does not end");
    }

    pub(super) fn saved(&self) -> BTreeMap<u64, Vec<u8>> {
        self.store.saved.lock().unwrap().clone()
    }

    pub(super) fn in_use(&self) -> usize {
        self.store.in_use.load(Ordering::Relaxed)
    }
}

/// Runs all steps; each is launched before the results of the previous one are read.
pub(super) fn outcome(ordinal: usize, case: Case) -> Outcome {
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
        if let SkippedWait::StreamWait(at, nth) = case.skipped {
            emulated.plan(Fault::StreamWait, if at == step { nth } else { 0 });
        }
        run.executor.launch(&plan(step)).unwrap();
        emulated.plan(Fault::StreamWait, 0);
        if step == SAVES_FRESH {
            run.poll_save();
        }
        if run.executor.in_flight.len() < 2 {
            continue;
        }
        let oldest = run.executor.in_flight[0].step.get();
        if let SkippedWait::HostWait(at, nth) = case.skipped {
            emulated.plan(Fault::HostWait, if at == oldest { nth } else { 0 });
        }
        run.finish();
        emulated.plan(Fault::HostWait, 0);
    }
    run.finish_all();
    emulated.hurry_copies(false);
    assert_eq!(run.in_use(), 0, "every buffer was given back");
    (run.tokens.clone(), run.saved())
}
