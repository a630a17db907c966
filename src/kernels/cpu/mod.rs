//! The CPU backend: weights and KV in f32, f16 or bf16, activations and sums in f32.
//!
//! Portable code with explicit lanes (`simd`), compiled for each instruction set and chosen once at run time; its own
//! thread pool (`threads`). Every reduction has an order fixed by positions.

// Kernels hand out disjoint parts of one buffer to threads and call vector intrinsics.
#![allow(unsafe_code)]
// Tiles are index loops over constant bounds.
#![allow(clippy::needless_range_loop)]

mod activations;
mod ahead;
mod attention;
mod backend;
mod batch;
mod block32;
pub mod calibration;
mod caps;
mod cores;
mod element;
mod experts;
mod format;
mod gates;
mod homes;
mod k_quants;
mod kept;
pub(crate) mod kv;
mod kv_blocks;
mod labels;
mod latent;
mod matmul;
mod matrix;
mod memory;
mod nibbles;
mod nodes;
mod norms;
mod packing;
mod panel;
mod path;
mod planes;
mod portable;
pub mod probe;
mod quantise;
mod readout;
pub mod recall;
mod recurrent;
mod residual;
mod row_source;
mod rows;
mod rowwise;
mod seats;
mod simd;
mod stack;
mod strip_product;
mod strips;
mod tensor;
mod threads;
mod tile;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;

use self::activations::PackedRows;
use self::attention::Attention;
pub use self::batch::{CpuBatch, Segment};
use self::calibration::Calibration;
pub use self::cores::{allowed_cores, default_threads};
use self::experts::routes::Routes;
pub use self::format::{FormatRule, WeightProduct};
use self::kv::{KvPool, PageTable};
use self::kv_blocks::BlockMap;
use self::matmul::{ItemRun, Product, Write, matmul};
use self::memory::WeightArena;
pub use self::path::{KernelPath, Reason as PathReason};
pub use self::readout::LOGIT_COST;
use self::recall::Recall;
use self::recurrent::pool::StatePool;
use self::row_source::Activations;
pub use self::seats::Numa;
use self::seats::Seats;
pub use self::simd::{ISA_VARIABLE, Isa, Kernel, Lanes, dispatch};
use self::stack::Stack;
use self::tensor::Scratch;
pub use self::tensor::Tensor;
use self::threads::ThreadPool;
use super::{HeadShape, Linear};
use crate::dtype::{Dtype, Quantization};
use crate::sparsity::DoubleSparsity;
use souffleur_base::ids::{PageId, RowId, StateSlot};
use souffleur_base::kv_layout::KvLayout;
use souffleur_base::row_state::StateStart;

/// Sizes of a [`CpuBackend`].
#[derive(Clone, Debug)]
pub struct CpuSizes {
    /// Element type of matrices.
    pub dtype: Dtype,
    /// The type that matrices are quantised to when they are loaded.
    pub quantization: Option<Quantization>,
    /// Threads that compute, the caller's among them.
    pub threads: usize,
    /// Binds them to cores, if they are as many as the process may use: fewer are better placed by the system.
    pub pin_threads: bool,
    /// Whether they, the weights and the pool are divided among NUMA nodes; the results are the same.
    pub numa: Numa,
    /// Instruction set.
    pub isa: Isa,
    /// The memory that each layer keeps.
    pub kv: KvLayout,
    /// Pages that can be granted; the pool has one more, the dummy.
    pub n_pages: usize,
    /// Tokens in a page.
    pub page_size: usize,
    /// Rows of the page table, row 0 among them.
    pub n_rows: usize,
    /// States that can be granted; the pool has one more, the dummy.
    pub n_state_slots: usize,
    /// Window pages that can be granted; the pool has one more, the dummy.
    pub n_window_pages: usize,
    /// Whether attention reads pages that rows of a step have in common once for all of them.
    pub shared_prefix: bool,
    /// Which queries attend to some keys only; the layout has its labels.
    pub sparsity: Option<Arc<DoubleSparsity>>,
}

/// Activations in each encoding that the products of a stack read.
pub struct Operand(SmallVec<[PackedRows; 2]>);

impl Operand {
    #[cfg(test)]
    pub(super) fn values(&self) -> Vec<f32> {
        self.0[0].values()
    }

    fn rows(&self) -> usize {
        self.0[0].rows()
    }
}

/// Kernels, KV pool and page table of the CPU.
pub struct CpuBackend {
    pool: ThreadPool,
    isa: Isa,
    rule: FormatRule,
    /// Where matrices are put.
    weights: WeightArena,
    scratch: Scratch,
    kv: KvPool,
    /// How blocks of tokens are copied, if any are.
    blocks: Option<BlockMap>,
    states: StatePool,
    table: PageTable,
    /// The table of the layers with window pages.
    window_table: PageTable,
    attention: Attention,
    calibration: Option<Calibration>,
    recall: Option<Recall>,
    /// Empty, reused by later steps.
    routes: Routes,
    expert_items: Vec<ItemRun>,
}

impl CpuBackend {
    /// Starts the threads and allocates the pool.
    ///
    /// # Errors
    /// When the system refuses a thread.
    pub fn new(sizes: &CpuSizes) -> std::io::Result<Self> {
        let n_slots = (sizes.n_pages + 1) * sizes.page_size;
        let n_window_slots = (sizes.n_window_pages + 1) * sizes.page_size;
        let n_window_rows = match sizes.kv.window() {
            Some(_) => sizes.n_rows,
            None => 0,
        };
        let seats = Seats::choose(sizes.threads, sizes.pin_threads, sizes.numa);
        if seats.nodes.count() > 1 {
            let (nodes, threads) = (seats.nodes.count(), seats.nodes.n_threads());
            tracing::info!(
                nodes,
                threads,
                "NUMA partitioning enabled: threads, weights and KV memory are divided among nodes"
            );
        }
        let mut pool = ThreadPool::seated(seats)?;
        let mut kv = KvPool::new(
            &sizes.kv,
            (n_slots, n_window_slots),
            sizes.sparsity.as_ref(),
        );
        kv.settle(&mut pool);
        let mut states = StatePool::new(&sizes.kv, sizes.n_state_slots);
        states.settle(&mut pool);
        Ok(Self {
            pool,
            isa: sizes.isa,
            rule: FormatRule::new(sizes.dtype, sizes.quantization),
            weights: WeightArena::default(),
            scratch: Scratch::default(),
            kv,
            blocks: None,
            states,
            table: PageTable::new(sizes.n_rows, sizes.page_size),
            window_table: PageTable::new(n_window_rows, sizes.page_size),
            attention: Attention::new(sizes.shared_prefix),
            calibration: None,
            recall: None,
            routes: Routes::default(),
            expert_items: Vec::new(),
        })
    }

    /// Binds the calling thread, which is the first of the compute threads, to its core if threads are pinned, or to its node.
    pub fn pin_caller(&self) {
        self.pool.bind_caller();
    }

    /// Begins a step: the workers wake up.
    pub fn wake(&mut self) {
        self.pool.wake();
    }

    /// Ends a step: the workers rest.
    pub fn rest(&mut self) {
        self.pool.rest();
    }

    /// Bytes of keys and values that attention has read since the start.
    pub fn kv_bytes_read(&self) -> usize {
        self.attention.kv_bytes()
    }

    /// Begins to measure how much the channels of queries and keys matter; returns the measurement until now.
    pub fn calibrate(&mut self) -> Option<Calibration> {
        self.calibration.replace(Calibration::default())
    }

    /// Sets the counter of the keys that labels find; `None` stops counting. Returns the previous counter.
    pub fn count_recall(&mut self, recall: Option<Recall>) -> Option<Recall> {
        std::mem::replace(&mut self.recall, recall)
    }

    /// For measurements: fills keys, values and labels with noise.
    pub fn fill_with_noise(&mut self) {
        self.kv.fill_with_noise();
    }

    /// For measurements: lets all queries see all keys, as if there were no labels, until it is called again.
    pub fn attend_to_all(&mut self, is_on: bool) {
        self.kv.hide_labels(is_on);
    }

    /// The page table.
    pub fn table(&self) -> &PageTable {
        &self.table
    }

    /// The page table, to edit.
    pub fn table_mut(&mut self) -> &mut PageTable {
        &mut self.table
    }

    /// The page table of the layers with window pages; without rows where no layer has any.
    pub fn window_table(&self) -> &PageTable {
        &self.window_table
    }

    /// The same, to edit.
    pub fn window_table_mut(&mut self) -> &mut PageTable {
        &mut self.window_table
    }

    /// Makes [`Self::save_block`] and [`Self::load_block`] copy blocks of `block_tokens` tokens, which are whole pages.
    /// Returns the bytes of a block.
    ///
    /// # Errors
    /// Names a layer with memory that blocks do not hold.
    pub fn carry_blocks(
        &mut self,
        layout: &KvLayout,
        n_slots: usize,
        block_tokens: usize,
    ) -> Result<usize, String> {
        let map = BlockMap::new(layout, n_slots, (block_tokens, self.table.page_size()))?;
        let bytes = map.bytes();
        self.blocks = Some(map);
        Ok(bytes)
    }

    /// Copies the K/V of a block's tokens, which are on `pages`.
    ///
    /// # Panics
    /// Without [`Self::carry_blocks`]; if pages or bytes are not those of a block.
    pub fn save_block(&mut self, pages: &[PageId], block: &mut [u8]) {
        let map = self
            .blocks
            .as_mut()
            .expect("carry_blocks was called (2 places)");
        self.kv.gather(map, &mut self.pool, pages, block);
    }

    /// Copies a part of a block to where a row has these positions, which are whole pages.
    ///
    /// # Panics
    /// As [`Self::save_block`], and if the row has no pages there.
    pub fn load_block(&mut self, row: RowId, positions: Range<usize>, block: &[u8]) {
        let map = self
            .blocks
            .as_mut()
            .expect("carry_blocks was called (2 places)");
        let first = positions.start - positions.start % map.block_tokens();
        let page_size = self.table.page_size();
        let pages = positions.start / page_size..positions.end / page_size;
        let pages = &self.table.row(row)[pages];
        let tokens = positions.start - first..positions.end - first;
        self.kv.scatter(map, &mut self.pool, (pages, tokens), block);
    }

    /// Copies a state.
    ///
    /// # Panics
    /// If there is no such slot, or `state` is not as long as a state.
    pub fn save_state(&mut self, slot: StateSlot, state: &mut [u8]) {
        self.states.gather(slot, state);
    }

    /// Copies a state back.
    ///
    /// # Panics
    /// As [`Self::save_state`].
    pub fn load_state(&mut self, slot: StateSlot, state: &[u8]) {
        self.states.scatter(slot, state);
    }

    /// Initialises the states of rows, each to a copy of another one or to zero. No slot is both read and written, and
    /// none is written twice.
    ///
    /// # Panics
    /// If there is no such slot.
    pub fn begin_states(&mut self, starts: impl Iterator<Item = StateStart>) {
        self.states.begin(&mut self.pool, starts);
    }

    /// Encodes activations as the products with `reader` read them.
    fn pack(&mut self, source: Activations<'_>, reader: &Stack) -> Operand {
        let encodings = reader.encodings().iter();
        let packed = encodings.map(|encoding| {
            let threads = (&mut self.pool, self.isa);
            PackedRows::pack(threads, &self.scratch, *encoding, source)
        });
        Operand(packed.collect())
    }

    fn attend_heads(
        &mut self,
        q: &Tensor,
        (heads, sinks): (&HeadShape, Option<&[f32]>),
        layer: usize,
        batch: &CpuBatch,
    ) -> Tensor {
        if let Some(calibration) = &mut self.calibration {
            calibration.add((layer, heads), q, self.kv.layer(layer), batch);
        }
        if let Some(recall) = &mut self.recall {
            let keys = (self.kv.layer(layer), &self.table);
            recall.add((layer, heads), q, keys, batch);
        }
        let out = self.scratch.tensor(q.rows(), heads.attended_width());
        let table = if self.kv.is_windowed(layer) {
            &self.window_table
        } else {
            &self.table
        };
        let history = (&self.kv, layer, table);
        let threads = (&mut self.pool, self.isa);
        self.attention
            .attend(threads, q, (heads, sinks), history, batch, out)
    }

    fn product(&mut self, x: &Operand, linear: &Linear<Self>, out: &mut Tensor, write: Write) {
        let product = Product {
            x: &x.0,
            weight: &linear.weight,
            bias: linear.bias.as_deref(),
            out: out.values_mut(),
            write,
        };
        matmul(&mut self.pool, self.isa, product);
    }
}
