//! The CPU backend: multithreaded SIMD kernels for float and quantised weights and KV.
//!
//! Kernels are written with portable SIMD lanes (`simd`), compiled for each instruction set and dispatched at run time.
//! They run on a thread pool (`threads`). The order of every sum depends only on positions, not on threads or batches.

// Kernels hand out disjoint parts of one buffer to threads and call vector intrinsics.
#![allow(unsafe_code)]
// Tiles are index loops over constant bounds.
#![allow(clippy::needless_range_loop)]

pub mod activations;
mod ahead;
pub mod attention;
mod backend;
pub mod batch;
mod block32;
pub mod calibration;
mod caps;
mod core_sets;
mod cores;
pub mod element;
pub mod experts;
pub mod format;
mod gates;
mod homes;
mod k_quants;
pub mod kept;
pub mod kv;
mod kv_blocks;
mod labels;
mod latent;
pub mod matmul;
pub mod matrix;
pub mod memory;
mod nibbles;
pub mod nodes;
mod norms;
mod packing;
pub mod panel;
mod path;
pub mod planes;
pub mod portable;
pub mod probe;
pub mod quantise;
mod rank_backend;
pub mod ranks;
mod readout;
pub mod recall;
mod recurrent;
mod residual;
pub mod row_source;
mod rows;
pub mod rowwise;
pub mod seats;
pub mod simd;
pub mod stack;
mod strip_product;
mod strips;
pub mod tensor;
pub mod threads;
mod tile;
mod vision;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;

use self::activations::PackedRows;
use self::attention::Attention;
pub use self::batch::{CpuBatch, Segment};
use self::calibration::Calibration;
pub use self::core_sets::divide_cores;
pub use self::cores::{
    Core, allowed_cores, allowed_cores_by_node, bind_this_thread, default_threads,
};
use self::experts::routes::Routes;
pub use self::format::{FormatRule, WeightProduct};
use self::kv::{KvPool, PageTable};
use self::kv_blocks::BlockMap;
use self::matmul::{ItemRun, Product, Write, matmul};
use self::memory::WeightArena;
pub use self::path::{KernelPath, Reason as PathReason};
use self::ranks::RankLink;
pub use self::readout::LOGIT_COST;
use self::recall::Recall;
use self::recurrent::pool::StatePool;
use self::row_source::Activations;
pub use self::seats::Numa;
use self::seats::Seats;
pub use self::simd::{ISA_VARIABLE, Isa, Kernel, Lanes, dispatch};
use self::stack::Stack;
pub use self::tensor::Tensor;
use self::tensor::{LastingScratch, Scratch};
use self::threads::ThreadPool;
use super::{HeadShape, Linear};
use crate::dtype::{Dtype, Quantization};
use crate::sparsity::DoubleSparsity;
use souffleur_base::ids::{PageId, RowId, StateSlot};
use souffleur_base::kv_layout::KvLayout;
use souffleur_base::row_state::StateStart;

#[derive(Clone, Debug)]
pub struct CpuSizes {
    pub dtype: Dtype,
    pub quantization: Option<Quantization>,
    /// Compute threads, including the caller's.
    pub threads: usize,
    /// Binds threads to cores if there are as many threads as usable cores; the OS places fewer threads better.
    pub pin_threads: bool,
    /// Whether threads, weights and KV pool are divided among NUMA nodes, which does not change results.
    pub numa: Numa,
    pub isa: Isa,
    pub kv: KvLayout,
    /// Number of KV pages, not counting the dummy page.
    pub n_pages: usize,
    pub page_size: usize,
    /// Including row 0.
    pub n_rows: usize,
    /// Number of slots for recurrent states, not counting the dummy slot.
    pub n_state_slots: usize,
    /// Number of window pages, not counting the dummy page.
    pub n_window_pages: usize,
    /// Whether attention reads shared prefix pages once for all rows of a step.
    pub shared_prefix: bool,
    /// Enables sparse attention; the KV layout must include its labels.
    pub sparsity: Option<Arc<DoubleSparsity>>,
}

/// Activations in each encoding that the products of a stack read.
pub struct Operand(SmallVec<[PackedRows; 2]>);

impl Operand {
    /// For tests.
    pub fn values(&self) -> Vec<f32> {
        self.0[0].values()
    }

    fn rows(&self) -> usize {
        self.0[0].rows()
    }
}

pub struct CpuBackend {
    pool: ThreadPool,
    isa: Isa,
    rule: FormatRule,
    weights: WeightArena,
    scratch: Scratch,
    /// Memory for tensors of images that are encoded in several steps.
    image_scratch: LastingScratch,
    kv: KvPool,
    /// `None` until [`CpuBackend::prepare_blocks`] is called.
    blocks: Option<BlockMap>,
    states: StatePool,
    table: PageTable,
    window_table: PageTable,
    attention: Attention,
    calibration: Option<Calibration>,
    recall: Option<Recall>,
    routes: Routes,
    expert_items: Vec<ItemRun>,
    /// `None` if the backend has the whole model.
    link: Option<RankLink>,
}

impl CpuBackend {
    /// # Errors
    /// If the system refuses a thread.
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
        let mut pool = ThreadPool::with_seats(seats)?;
        let mut kv = KvPool::new(
            &sizes.kv,
            (n_slots, n_window_slots),
            sizes.sparsity.as_ref(),
        );
        kv.place_on_nodes(&mut pool);
        let mut states = StatePool::new(&sizes.kv, sizes.n_state_slots);
        states.place_on_nodes(&mut pool);
        Ok(Self {
            pool,
            isa: sizes.isa,
            rule: FormatRule::new(sizes.dtype, sizes.quantization),
            weights: WeightArena::default(),
            scratch: Scratch::default(),
            image_scratch: LastingScratch::default(),
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
            link: None,
        })
    }

    /// Binds the calling thread, the first compute thread, to its core if threads are pinned, or to its node.
    pub fn pin_caller(&self) {
        self.pool.bind_caller();
    }

    pub fn wake(&mut self) {
        self.pool.wake();
    }

    pub fn rest(&mut self) {
        self.pool.rest();
    }

    /// Runs items on the compute threads, the last of which panics as a faulty kernel does.
    ///
    /// # Panics
    /// Always.
    pub fn run_faulty_item(&mut self, cause: &str) {
        let last = self.pool.n_threads();
        self.pool.for_each(last + 1, usize::MAX, &|item| {
            assert!(item != last, "{cause}");
        });
    }

    pub fn kv_bytes_read(&self) -> usize {
        self.attention.kv_bytes()
    }

    /// Starts measuring channel magnitudes of queries and keys; returns the previous measurement.
    pub fn calibrate(&mut self) -> Option<Calibration> {
        self.calibration.replace(Calibration::default())
    }

    /// Sets the counter of label recall; `None` stops counting. Returns the previous counter.
    pub fn count_recall(&mut self, recall: Option<Recall>) -> Option<Recall> {
        std::mem::replace(&mut self.recall, recall)
    }

    pub fn fill_with_noise(&mut self) {
        self.kv.fill_with_noise();
    }

    /// For measurements: disables sparse attention, or enables it again.
    pub fn disable_sparse_attention(&mut self, disables: bool) {
        self.kv.hide_labels(disables);
    }

    pub fn table(&self) -> &PageTable {
        &self.table
    }

    pub fn table_mut(&mut self) -> &mut PageTable {
        &mut self.table
    }

    /// Has no rows if no layer has window pages.
    pub fn window_table(&self) -> &PageTable {
        &self.window_table
    }

    pub fn window_table_mut(&mut self) -> &mut PageTable {
        &mut self.window_table
    }

    /// Prepares [`Self::save_block`] and [`Self::load_block`] for blocks of `block_tokens` tokens, which must be whole
    /// pages. Returns the bytes of a block.
    ///
    /// # Errors
    /// If a layer has memory that blocks cannot hold.
    pub fn prepare_blocks(
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
    /// If [`Self::prepare_blocks`] was not called, or `pages` or `block` are not as long as a block.
    pub fn save_block(&mut self, pages: &[PageId], block: &mut [u8]) {
        let map = self
            .blocks
            .as_mut()
            .expect("prepare_blocks must be called before");
        self.kv.gather(map, &mut self.pool, pages, block);
    }

    /// Copies a part of a block to these positions of a row, which must be whole pages.
    ///
    /// # Panics
    /// As [`Self::save_block`], and if the row has no pages at these positions.
    pub fn load_block(&mut self, row: RowId, positions: Range<usize>, block: &[u8]) {
        let map = self
            .blocks
            .as_mut()
            .expect("prepare_blocks must be called before");
        let first = positions.start - positions.start % map.block_tokens();
        let page_size = self.table.page_size();
        let pages = positions.start / page_size..positions.end / page_size;
        let pages = &self.table.row(row)[pages];
        let tokens = positions.start - first..positions.end - first;
        self.kv.scatter(map, &mut self.pool, (pages, tokens), block);
    }

    /// # Panics
    /// If there is no such slot, or `state` is not as long as a state.
    pub fn save_state(&mut self, slot: StateSlot, state: &mut [u8]) {
        self.settle_state(slot);
        self.states.gather(slot, state);
    }

    /// # Panics
    /// As [`Self::save_state`].
    pub fn load_state(&mut self, slot: StateSlot, state: &[u8]) {
        self.states.scatter(slot, state);
    }

    /// Initialises states of rows to zero or to copies of other states, with their accepted drafts. No slot may be both
    /// read and written, or written twice.
    ///
    /// # Panics
    /// If there is no such slot.
    pub fn begin_states(&mut self, starts: impl Iterator<Item = StateStart> + Clone) {
        for from in starts.clone().filter_map(|start| start.from) {
            self.settle_state(from);
        }
        self.states.begin(&mut self.pool, starts);
    }

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
