//! Implements [`Backend`] for the CPU: calls the kernels of each operation.

use super::activations::PackedRows;
use super::experts::Experts;
use super::experts::routes::Routes;
use super::format::Encoding;
use super::latent::HeadMatrices;
use super::matmul::{Product, Write, matmul};
use super::row_source::Activations;
use super::stack::Stack;
use super::tensor::Tensor;
use super::{
    CpuBackend, CpuBatch, Operand, caps, experts, gates, latent, norms, recurrent, residual,
    rowwise,
};
use crate::blocks::BlockType;
use crate::dtype::MatrixRole;
use crate::latent::{LatentShape, LatentWeights};
use crate::recurrent::{DeltaNetWeights, GatedConvWeights};
use crate::rope::{PositionScale, Rope};
use crate::shard::Shard;
use crate::tensor_view::TensorView;
use crate::{Backend, Expert, Gate, HeadShape, Linear, QkvWeights, QueryWeights, Router};

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

    fn mark_sharded(&mut self, mut matrix: Stack, shard: Shard) -> Stack {
        matrix.shard = shard;
        matrix
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
        rowwise::place_prompt_embeddings(batch, &mut out);
        out
    }

    fn add_image_vectors(&mut self, x: &mut Tensor, set: usize, batch: &CpuBatch) {
        rowwise::add_image_vectors(batch, set, x);
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
        norms::norm(&mut self.pool, self.isa, x, (weight, eps), out)
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
        let norms = match norms {
            Some((q, k, eps)) if weights.norms_together && self.has_ranks() => {
                self.norm_over_ranks(&mut qkv, &[q, k], eps);
                None
            }
            own => own,
        };
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
        let norm = match weights.head_norm.as_deref() {
            Some(norm) if weights.norms_together && self.has_ranks() => {
                self.norm_over_ranks(&mut q, &[norm], weights.eps);
                None
            }
            own => own.map(|norm| (norm, weights.eps)),
        };
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
        if linear.weight.shard == Shard::Inputs {
            self.sum_over_ranks(&mut out);
        }
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
        match linear.weight.shard {
            Shard::Whole | Shard::Outputs => self.product(x, linear, residual, Write::Add),
            Shard::Inputs => {
                let sum = self.project(x, linear);
                rowwise::add_scaled(&mut self.pool, residual, &sum, 1.0);
            }
        }
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
        match experts.shard() {
            Shard::Whole | Shard::Outputs => experts::add(self, to, x, &routes, experts),
            Shard::Inputs => {
                let mut sum = self.zeros_like(to);
                experts::add(self, &mut sum, x, &routes, experts);
                self.sum_over_ranks(&mut sum);
                rowwise::add_scaled(&mut self.pool, to, &sum, 1.0);
            }
        }
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
        match vocab.shard {
            Shard::Outputs => self.gather_from_ranks(&out),
            Shard::Whole | Shard::Inputs => out,
        }
    }
}
