//! The CPU backend: weights and KV in f32, f16 or bf16, activations and sums in f32.
//!
//! Portable code with explicit lanes (`simd`), compiled for each instruction set and chosen once at run time; a
//! thread pool of its own (`threads`). Every reduction has an order fixed by positions.

// Kernels hand out disjoint parts of one buffer to threads and call vector intrinsics.
#![allow(unsafe_code)]
// Index loops over constant bounds are what the tiles are made of.
#![allow(clippy::needless_range_loop)]

mod activations;
mod attention;
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
mod portable;
pub mod probe;
mod quantise;
pub(crate) mod readout;
pub mod recall;
mod recurrent;
mod residual;
mod rowwise;
mod seats;
mod simd;
mod stack;
mod strips;
pub(crate) mod tensor;
mod threads;
mod tile;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;

use self::activations::{Activations, PackedRows};
use self::attention::Attention;
pub use self::batch::{CpuBatch, Segment};
use self::calibration::Calibration;
pub use self::cores::{allowed_cores, default_threads};
use self::experts::{Experts, Routes};
use self::format::Encoding;
pub use self::format::FormatRule;
use self::kv::{KvPool, PageTable};
use self::kv_blocks::BlockMap;
use self::latent::HeadMatrices;
use self::matmul::{ItemRun, Product, Write, matmul};
use self::memory::WeightArena;
use self::recall::Recall;
use self::recurrent::StatePool;
pub use self::seats::Numa;
use self::seats::Seats;
pub use self::simd::{ISA_VARIABLE, Isa};
use self::stack::Stack;
use self::tensor::{Scratch, Tensor};
use self::threads::ThreadPool;
use super::blocks::BlockType;
use super::{Backend, Expert, Gate, HeadShape, Linear, QkvWeights, QueryWeights, Router};
use crate::ids::{PageId, RowId, StateSlot};
use crate::kernels::dtype::{Dtype, MatrixRole, Quantization};
use crate::kernels::latent::{LatentShape, LatentWeights};
use crate::kernels::recurrent::{DeltaNetWeights, GatedConvWeights};
use crate::kernels::rope::{PositionScale, Rope};
use crate::kernels::sparsity::DoubleSparsity;
use crate::kernels::tensor_view::TensorView;
use crate::state::pool::kv_layout::KvLayout;
use crate::state::step::StateStart;

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
    /// Whether they, the weights and the pool are divided among nodes of memory; the results are the same.
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
    /// Of the layers with window pages.
    window_table: PageTable,
    attention: Attention,
    calibration: Option<Calibration>,
    recall: Option<Recall>,
    /// Empty, kept for their memory.
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
                "threads, weights and KV memory are divided among NUMA nodes"
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

    /// From now on notes how much the channels of queries and keys matter; returns what was noted until now.
    pub fn calibrate(&mut self) -> Option<Calibration> {
        self.calibration.replace(Calibration::default())
    }

    /// From now on counts what labels find, or no more; returns what was counted until now.
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

    /// Makes [`Self::save_block`] and [`Self::load_block`] copy blocks of so many tokens, which are whole pages. Returns
    /// the bytes of a block.
    ///
    /// # Errors
    /// The layer that keeps something which blocks do not hold.
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

    /// Copies the K/V of a block's tokens, which stand on `pages`.
    ///
    /// # Panics
    /// Without [`Self::carry_blocks`]; if pages or bytes are not those of a block.
    pub fn save_block(&mut self, pages: &[PageId], block: &mut [u8]) {
        let map = self.blocks.as_mut().expect("blocks are carried");
        self.kv.gather(map, &mut self.pool, pages, block);
    }

    /// Copies a part of a block to where a row has these positions, which are whole pages.
    ///
    /// # Panics
    /// As [`Self::save_block`], and if the row has no pages there.
    pub fn load_block(&mut self, row: RowId, positions: Range<usize>, block: &[u8]) {
        let map = self.blocks.as_mut().expect("blocks are carried");
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
    /// If there is no such slot, or `state` has not the bytes of one.
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

    /// Begins the states of rows, each as another one is or zero. No slot is both read and written, and none is written
    /// twice.
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
        let table = match self.kv.is_windowed(layer) {
            true => &self.window_table,
            false => &self.table,
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

impl Backend for CpuBackend {
    type Tensor = Tensor;
    type Operand = Operand;
    type Matrix = Stack;
    type Vector = Vec<f32>;
    type Rope = Rope;
    type Batch = CpuBatch;
    type TokenList = [u32];
    type Experts = Experts;
    type Routes = Routes;
    type HeadMatrices = HeadMatrices;

    fn matrix(&mut self, parts: &[TensorView<'_>], roles: &[MatrixRole]) -> Stack {
        let threads = (&mut self.pool, self.isa);
        Stack::pack(threads, &mut self.weights, self.rule, (parts, roles))
    }

    fn keeps_blocks(&self, block: BlockType, role: MatrixRole) -> bool {
        self.rule.of(role).keeps(block)
    }

    fn vector(&mut self, parts: &[TensorView<'_>]) -> Vec<f32> {
        parts.iter().flat_map(TensorView::to_f32).collect()
    }

    fn rope(&mut self, rope: &Rope) -> Rope {
        rope.clone()
    }

    fn experts(&mut self, experts: Vec<Expert<Self>>, gate: Gate) -> Experts {
        Experts::new(experts, gate)
    }

    fn head_matrices(&mut self, heads: Vec<Stack>) -> HeadMatrices {
        HeadMatrices::new(heads)
    }

    fn look_up(&mut self, table: &Stack, factor: Option<f32>, batch: &CpuBatch) -> Tensor {
        let out = self.scratch.tensor(batch.n_tokens(), table.inputs);
        rowwise::look_up(&mut self.pool, table, factor, batch, out)
    }

    fn zeros_like(&mut self, x: &Tensor) -> Tensor {
        let mut out = self.scratch.tensor(x.rows(), x.width());
        out.values_mut().fill(0.0);
        out
    }

    fn embed(&mut self, table: &Stack, factor: Option<f32>, batch: &CpuBatch) -> Tensor {
        let out = self.scratch.tensor(batch.n_tokens(), table.inputs);
        let mut out = rowwise::look_up(&mut self.pool, table, factor, batch, out);
        rowwise::place_vectors(batch, &mut out);
        out
    }

    fn scale(&mut self, x: &mut Tensor, factor: f32) {
        rowwise::scale(&mut self.pool, x, |_| factor);
    }

    fn scale_by_position(&mut self, x: &mut Tensor, scale: PositionScale, batch: &CpuBatch) {
        rowwise::scale(&mut self.pool, x, |row| scale.at(batch.positions[row]));
    }

    fn rotations(&mut self, rope: &Rope, batch: &CpuBatch) -> Tensor {
        let out = self
            .scratch
            .tensor(batch.n_tokens(), 2 * rope.inv_freq.len());
        rowwise::rotations(&mut self.pool, rope, batch, out)
    }

    fn rms_norm(&mut self, x: &Tensor, weight: &Vec<f32>, eps: f32, reader: &Stack) -> Operand {
        let norm = Some((weight.as_slice(), eps));
        let rows = Activations::plain(x.values(), x.width());
        self.pack(Activations { norm, ..rows }, reader)
    }

    fn norm_rows(&mut self, x: &Tensor, weight: &Vec<f32>, eps: f32) -> Tensor {
        let out = self.scratch.tensor(x.rows(), x.width());
        rowwise::norm(&mut self.pool, self.isa, x, (weight, eps), out)
    }

    fn project_qkv(
        &mut self,
        x: &Operand,
        weights: &QkvWeights<Self>,
        heads: &HeadShape,
        rotations: &Tensor,
        layer: usize,
        batch: &CpuBatch,
    ) -> Tensor {
        let width = weights.projection.weight.outputs;
        let mut qkv = self.scratch.tensor(x.rows(), width);
        self.product(x, &weights.projection, &mut qkv, Write::Store);
        let q = self.scratch.tensor(x.rows(), heads.q_width());
        let norms = weights.head_norms.as_ref();
        let norms = norms.map(|(q, k)| (q.as_slice(), k.as_slice(), weights.eps));
        let rotation = rowwise::Rotation {
            heads,
            norms,
            value_eps: weights.norms_values.then_some(weights.eps),
            rotations,
        };
        let slots = batch.slots_in(&self.kv, layer);
        let store = (self.kv.layer_mut(layer), slots);
        let q = rowwise::rotate_and_store(&mut self.pool, self.isa, &mut qkv, &rotation, q, store);
        self.kv.store_labels(layer, heads, slots);
        q
    }

    fn project_queries(
        &mut self,
        x: &Operand,
        weights: &QueryWeights<Self>,
        heads: &HeadShape,
        rotations: &Tensor,
    ) -> Tensor {
        let mut q = self.project(x, &weights.projection);
        let norm = weights.head_norm.as_deref();
        let norm = norm.map(|norm| (norm, weights.eps));
        rowwise::rotate_queries(&mut self.pool, self.isa, &mut q, (heads, norm), rotations);
        q
    }

    fn attend(
        &mut self,
        q: &Tensor,
        (heads, sinks): (&HeadShape, Option<&Vec<f32>>),
        layer: usize,
        batch: &CpuBatch,
        reader: &Stack,
    ) -> Operand {
        let sinks = sinks.map(Vec::as_slice);
        let out = self.attend_heads(q, (heads, sinks), layer, batch);
        self.pack(Activations::plain(out.values(), out.width()), reader)
    }

    fn project_latent(
        &mut self,
        x: &Operand,
        weights: &LatentWeights<Self>,
        shape: &LatentShape,
        rotations: &Tensor,
        layer: usize,
        batch: &CpuBatch,
    ) -> Tensor {
        let slots = batch.slots_in(&self.kv, layer);
        latent::project(self, x, (weights, shape), rotations, layer, slots)
    }

    fn attend_latent(
        &mut self,
        q: &Tensor,
        values: &HeadMatrices,
        shape: &LatentShape,
        layer: usize,
        batch: &CpuBatch,
        reader: &Stack,
    ) -> Operand {
        let latents = self.attend_heads(q, (&shape.heads(), None), layer, batch);
        let out = latent::values(self, &latents, values, shape);
        self.pack(Activations::plain(out.values(), out.width()), reader)
    }

    fn attend_gated(
        &mut self,
        (q, gate): (&Tensor, &Tensor),
        heads: &HeadShape,
        layer: usize,
        batch: &CpuBatch,
        reader: &Stack,
    ) -> Operand {
        let mut out = self.attend_heads(q, (heads, None), layer, batch);
        gates::multiply(&mut self.pool, self.isa, &mut out, gate);
        self.pack(Activations::plain(out.values(), out.width()), reader)
    }

    fn project(&mut self, x: &Operand, linear: &Linear<Self>) -> Tensor {
        let mut out = self.scratch.tensor(x.rows(), linear.weight.outputs);
        self.product(x, linear, &mut out, Write::Store);
        out
    }

    fn gated(
        &mut self,
        x: &Operand,
        gate_up: &Linear<Self>,
        gate: Gate,
        reader: &Stack,
    ) -> Operand {
        let width = gate_up.weight.outputs / 2;
        if !gate_up.weight.alternates() || gate != Gate::Silu {
            let mut both = self.scratch.tensor(x.rows(), 2 * width);
            self.product(x, gate_up, &mut both, Write::Store);
            let out = self.scratch.tensor(x.rows(), width);
            let out = rowwise::gated(&mut self.pool, self.isa, gate, &both, out);
            return self.pack(Activations::plain(out.values(), width), reader);
        }
        let packed = match reader.encodings() {
            [Encoding::Bf16] => Some((Encoding::Bf16, Write::GatedPairs)),
            [Encoding::WideBf16] => Some((Encoding::WideBf16, Write::GatedRounded)),
            [Encoding::Bf16Rows] => Some((Encoding::Bf16Rows, Write::GatedRows)),
            _ => None,
        };
        if let Some((encoding, write)) = packed {
            let (scratch, isa) = (&self.scratch, self.isa);
            let mut out = PackedRows::uninit(scratch, isa, encoding, x.rows(), width);
            self.product(x, gate_up, out.words_mut(), write);
            return Operand([out].into_iter().collect());
        }
        let mut out = self.scratch.tensor(x.rows(), width);
        self.product(x, gate_up, &mut out, Write::GatedSilu);
        self.pack(Activations::plain(out.values(), width), reader)
    }

    fn project_add(&mut self, residual: &mut Tensor, x: &Operand, linear: &Linear<Self>) {
        self.product(x, linear, residual, Write::Add);
    }

    fn gated_part(
        &mut self,
        (gates, gate): (&Tensor, Gate),
        (inputs, part): (&Tensor, usize),
        reader: &Stack,
    ) -> Operand {
        let out = self.scratch.tensor(gates.rows(), gates.width());
        let gates = (gates, gate);
        let out = rowwise::gated_part(&mut self.pool, self.isa, gates, (inputs, part), out);
        self.pack(Activations::plain(out.values(), out.width()), reader)
    }

    fn add_normed(&mut self, residual: &mut Tensor, x: &Tensor, norm: &Vec<f32>, eps: f32) {
        residual::add_normed(&mut self.pool, self.isa, residual, x, (norm, eps));
    }

    fn soft_cap(&mut self, x: &mut Tensor, cap: f32) {
        caps::cap_all(&mut self.pool, self.isa, x, cap);
    }

    fn add_scaled(&mut self, residual: &mut Tensor, x: &Tensor, factor: f32) {
        rowwise::add_scaled(&mut self.pool, residual, x, factor);
    }

    fn operand(&mut self, x: &Tensor, reader: &Stack) -> Operand {
        self.pack(Activations::plain(x.values(), x.width()), reader)
    }

    fn gated_conv(
        &mut self,
        x: &Operand,
        weights: &GatedConvWeights<Self>,
        layer: usize,
        batch: &CpuBatch,
    ) -> Tensor {
        recurrent::gated_conv(self, x, weights, layer, batch)
    }

    fn delta_net(
        &mut self,
        x: &Operand,
        weights: &DeltaNetWeights<Self>,
        layer: usize,
        batch: &CpuBatch,
    ) -> Tensor {
        recurrent::delta_net(self, x, weights, layer, batch)
    }

    fn route(&mut self, x: &Tensor, router: &Router<Self>) -> Routes {
        experts::route(self, x, router)
    }

    fn add_experts(&mut self, to: &mut Tensor, x: &Tensor, routes: Routes, experts: &Experts) {
        experts::add(self, to, x, &routes, experts);
        self.routes = routes;
    }

    fn add_gated_expert(
        &mut self,
        residual: &mut Tensor,
        x: &Tensor,
        gate: &Linear<Self>,
        expert: &Expert<Self>,
    ) {
        let rows = self.operand(x, &gate.weight);
        let gate = self.project(&rows, gate);
        let rows = self.operand(x, &expert.gate_up.weight);
        let both = self.project(&rows, &expert.gate_up);
        let out = self.scratch.tensor(both.rows(), both.width() / 2);
        let mut gated = rowwise::gated(&mut self.pool, self.isa, Gate::Silu, &both, out);
        gates::multiply(&mut self.pool, self.isa, &mut gated, &gate);
        let down = self.operand(&gated, &expert.down.weight);
        self.project_add(residual, &down, &expert.down);
    }

    fn pick(&mut self, x: &Tensor, tokens: &[u32]) -> Tensor {
        let mut out = self.scratch.tensor(tokens.len(), x.width());
        for (row, token) in tokens.iter().enumerate() {
            out.row_mut(row).copy_from_slice(x.row(*token as usize));
        }
        out
    }

    fn norm_picked(&mut self, x: &Tensor, tokens: &[u32], norm: &Vec<f32>, eps: f32) -> Tensor {
        let picked = self.pick(x, tokens);
        self.norm_rows(&picked, norm, eps)
    }

    fn logits(
        &mut self,
        x: &Tensor,
        tokens: &[u32],
        norm: &Vec<f32>,
        eps: f32,
        vocab: &Stack,
    ) -> Tensor {
        let source = Activations {
            picked: Some(tokens),
            norm: Some((norm.as_slice(), eps)),
            ..Activations::plain(x.values(), x.width())
        };
        let normed = self.pack(source, vocab);
        let mut out = self.scratch.tensor(tokens.len(), vocab.outputs);
        let product = Product {
            x: &normed.0,
            weight: vocab,
            bias: None,
            out: out.values_mut(),
            write: Write::Store,
        };
        matmul(&mut self.pool, self.isa, product);
        out
    }
}
