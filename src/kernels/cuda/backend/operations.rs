//! The decoder's operations as CUDA kernel launches.

mod ranks;

use std::f32::consts::LOG2_E;

use super::grids::GridRope;
use super::{CudaBackend, CudaBatch, Tensor, TokenList};
use crate::cuda::driver::DevicePtr;
use crate::cuda::params::{AttendParams, Element, GemmParams, GemmWrite, RopeStoreParams};
use crate::cuda::weights::Weights;
use crate::dtype::MatrixRole;
use crate::latent::{LatentShape, LatentWeights};
use crate::random::RandomTensor;
use crate::recurrent::{DeltaNetWeights, GatedConvWeights};
use crate::rope::{PositionScale, Rope};
use crate::shard::Shard;
use crate::tensor_view::TensorView;
use crate::{Backend, Expert, Gate, HeadShape, Linear, QkvWeights, QueryWeights, Router};

pub struct Matrix {
    /// `None` after a failure.
    elements: Option<Weights<Element>>,
    outputs: usize,
    inputs: usize,
    shard: Shard,
}

impl Matrix {
    fn ptr(&self) -> DevicePtr<Element> {
        self.elements.as_ref().map_or(DevicePtr::NULL, Weights::ptr)
    }
}

/// A norm's weight or a bias; `None` after a failure.
pub struct Vector(Option<Weights<f32>>);

impl Vector {
    fn ptr(&self) -> DevicePtr<f32> {
        self.0.as_ref().map_or(DevicePtr::NULL, Weights::ptr)
    }
}

/// Uninhabited: MoE models are refused before loading, as there are no CUDA kernels for them.
pub enum NoExperts {}

/// Uninhabited: models with latent attention are refused, as there are no CUDA kernels for them.
pub enum NoHeadMatrices {}

pub struct DeviceRope {
    inv_freq: Vector,
    half: usize,
    scale: f32,
    /// `None` without M-RoPE.
    grid: Option<GridRope>,
}

impl CudaBackend {
    /// Computes `x weight^T + bias`; `write` stores it in `out` or adds it to `out`.
    fn multiply(
        &mut self,
        x: &Tensor,
        weight: &Matrix,
        bias: Option<&Vector>,
        out: &Tensor,
        write: GemmWrite,
    ) {
        let params = GemmParams {
            out: out.start,
            x: x.elements(),
            w: weight.ptr(),
            bias: bias.map_or(DevicePtr::NULL, Vector::ptr),
            partials: DevicePtr::NULL,
            m: x.rows as u32,
            n: weight.outputs as u32,
            k: weight.inputs as u32,
            write,
            n_splits: 1,
        };
        // SAFETY: shapes are those of the tensors and matrices; all of them are used on this stream only, and memory is
        // freed when the stream has passed this launch.
        self.launch(|launches, stream| unsafe { launches.products.multiply(stream, &params) });
    }

    fn norm(&mut self, x: &Tensor, tokens: TokenList, weight: &Vector, eps: f32) -> Tensor {
        let out = self.elements(tokens.len, x.width);
        let shape = [tokens.len as u32, x.width as u32];
        // SAFETY: as in `multiply`; a list names tokens of the step.
        self.launch(|launches, stream| unsafe {
            let (out, weight) = (out.elements(), weight.ptr());
            launches
                .rms_norm
                .launch(stream, out, x.f32(), tokens.tokens, weight, shape, eps)
        });
        out
    }

    fn attend_decodes(&mut self, params: &AttendParams, n_decode: u32) {
        let attention = &self.launches.attention;
        let n_splits = attention.n_splits(n_decode, self.context_tokens as u32);
        let partials = attention.partials_len(n_decode, n_splits);
        let partials = (partials > 0).then(|| self.f32(1, partials));
        let params = AttendParams {
            partials: partials.as_ref().map_or(DevicePtr::NULL, Tensor::f32),
            n_splits,
            ..*params
        };
        // SAFETY: as in `multiply`; segments, pages and pool are those of the step.
        self.launch(|launches, stream| unsafe {
            launches.attention.decode(stream, &params, n_decode)
        });
    }
}

impl Backend for CudaBackend {
    type Tensor = Tensor;
    type Operand = Tensor;
    type Matrix = Matrix;
    type Vector = Vector;
    type Rope = DeviceRope;
    type Batch = CudaBatch;
    type TokenList = TokenList;
    type Experts = NoExperts;
    type Routes = NoExperts;
    type HeadMatrices = NoHeadMatrices;

    fn matrix(&mut self, parts: &[TensorView<'_>], roles: &[MatrixRole]) -> Matrix {
        let element = self.element;
        let outputs: usize = parts.iter().map(|part| part.shape[0]).sum();
        let inputs = parts.first().map_or(0, |part| part.shape[1]);
        let padding = self.padding(outputs, roles);
        Matrix {
            elements: self.upload(|loader| loader.elements(parts, padding * inputs, element)),
            outputs: outputs + padding,
            inputs,
            shard: Shard::Whole,
        }
    }

    fn mark_sharded(&mut self, matrix: Matrix, shard: Shard) -> Matrix {
        Matrix { shard, ..matrix }
    }

    fn random_matrix(&mut self, parts: &[RandomTensor], _: &[MatrixRole]) -> Matrix {
        let element = self.element;
        let sizes = parts.iter().map(RandomTensor::elements);
        let elements = self.upload(|loader| loader.uninit(sizes.clone().sum(), element));
        let mut start = elements.as_ref().map_or(DevicePtr::NULL, Weights::ptr);
        for (part, len) in parts.iter().zip(sizes) {
            let (seed, unit) = (part.seed, RandomTensor::unit());
            // SAFETY: `elements` is as long as all parts together, and is used on this stream only.
            self.launch(|launches, stream| unsafe {
                let fill = &launches.fill_random;
                fill.launch(stream, start, len as u64, seed, unit)
            });
            start = start.cast::<u8>().add(len * element.bytes()).cast();
        }
        Matrix {
            elements,
            outputs: parts.iter().map(|part| part.shape[0]).sum(),
            inputs: parts.first().map_or(0, |part| part.shape[1]),
            shard: Shard::Whole,
        }
    }

    fn head_matrices(&mut self, _: Vec<Matrix>) -> NoHeadMatrices {
        unreachable!("models with latent attention must be refused")
    }

    fn experts(&mut self, _: Vec<Expert<Self>>, _: Gate) -> NoExperts {
        unreachable!("models with experts must be refused")
    }

    fn norm_rows(&mut self, x: &Tensor, weight: &Vector, eps: f32) -> Tensor {
        let all = TokenList {
            tokens: DevicePtr::NULL,
            len: x.rows,
        };
        self.norm(x, all, weight, eps)
    }

    fn operand(&mut self, _: &Tensor, _: &Matrix) -> Tensor {
        unreachable!("models with recurrent states must be refused")
    }

    fn attend_gated(
        &mut self,
        _: (&Tensor, &Tensor),
        _: &HeadShape,
        _: usize,
        _: &CudaBatch,
        _: &Matrix,
    ) -> Tensor {
        unreachable!("models with recurrent states must be refused")
    }

    fn project(&mut self, _: &Tensor, _: &Linear<Self>) -> Tensor {
        unreachable!(
            "models with recurrent states, scaled activations or post-norms must be refused"
        )
    }

    fn add_normed(&mut self, _: &mut Tensor, _: &Tensor, _: &Vector, _: f32) {
        unreachable!("models with post-norms must be refused")
    }

    fn soft_cap(&mut self, _: &mut Tensor, _: f32) {
        unreachable!("models with softcaps must be refused")
    }

    fn add_image_vectors(&mut self, x: &mut Tensor, set: usize, _: &CudaBatch) {
        self.add_set(x, set);
    }

    fn scale(&mut self, _: &mut Tensor, _: f32) {
        unreachable!("models with scaled activations must be refused")
    }

    fn scale_by_position(&mut self, x: &mut Tensor, _: PositionScale, batch: &CudaBatch) {
        self.scale_heads(x, batch);
    }

    fn add_scaled(&mut self, _: &mut Tensor, _: &Tensor, _: f32) {
        unreachable!("models with scaled activations must be refused")
    }

    fn add_gated_expert(&mut self, _: &mut Tensor, _: &Tensor, _: &Linear<Self>, _: &Expert<Self>) {
        unreachable!("models with experts must be refused")
    }

    fn gated_conv(
        &mut self,
        _: &Tensor,
        _: &GatedConvWeights<Self>,
        _: usize,
        _: &CudaBatch,
    ) -> Tensor {
        unreachable!("models with recurrent states must be refused")
    }

    fn delta_net(
        &mut self,
        _: &Tensor,
        _: &DeltaNetWeights<Self>,
        _: usize,
        _: &CudaBatch,
    ) -> Tensor {
        unreachable!("models with recurrent states must be refused")
    }

    fn project_latent(
        &mut self,
        _: &Tensor,
        weights: &LatentWeights<Self>,
        _: &LatentShape,
        _: &Tensor,
        _: usize,
        _: &CudaBatch,
    ) -> Tensor {
        match weights.keys {}
    }

    fn attend_latent(
        &mut self,
        _: &Tensor,
        values: &NoHeadMatrices,
        _: &LatentShape,
        _: usize,
        _: &CudaBatch,
        _: &Matrix,
    ) -> Tensor {
        match *values {}
    }

    fn route(&mut self, _: &Tensor, _: &Router<Self>) -> NoExperts {
        unreachable!("models with experts must be refused")
    }

    fn add_experts(&mut self, _: &mut Tensor, _: &Tensor, routes: NoExperts, _: &NoExperts) {
        match routes {}
    }

    fn vector(&mut self, parts: &[TensorView<'_>]) -> Vector {
        Vector(self.upload(|loader| loader.f32(parts)))
    }

    fn rope(&mut self, rope: &Rope) -> DeviceRope {
        DeviceRope {
            inv_freq: Vector(self.upload(|loader| loader.f32_values(&rope.inv_freq))),
            half: rope.inv_freq.len(),
            scale: rope.attention_scale,
            grid: GridRope::of(rope),
        }
    }

    fn look_up(&mut self, _: &Matrix, _: Option<f32>, _: &CudaBatch) -> Tensor {
        unreachable!("models with per-layer inputs must be refused")
    }

    fn zeros_like(&mut self, _: &Tensor) -> Tensor {
        unreachable!("models with experts must be refused")
    }

    fn project_queries(
        &mut self,
        _: &Tensor,
        _: &QueryWeights<Self>,
        _: &HeadShape,
        _: &Tensor,
    ) -> Tensor {
        unreachable!("models whose layers share keys and values must be refused")
    }

    fn gated_part(&mut self, _: (&Tensor, Gate), _: (&Tensor, usize), _: &Matrix) -> Tensor {
        unreachable!("models with per-layer inputs must be refused")
    }

    fn embed(&mut self, table: &Matrix, factor: Option<f32>, batch: &CudaBatch) -> Tensor {
        assert!(
            factor.is_none(),
            "models that scale embeddings must be refused"
        );
        let out = self.f32(batch.n_tokens, table.inputs);
        let shape = [batch.n_tokens as u32, table.inputs as u32];
        // SAFETY: as in `multiply`; tokens are below the vocabulary's size.
        self.launch(|launches, stream| unsafe {
            launches
                .embed
                .embed(stream, out.f32(), table.ptr(), batch.tokens, shape)
        });
        self.upload_embeddings(&out);
        out
    }

    fn rotations(&mut self, rope: &DeviceRope, batch: &CudaBatch) -> Tensor {
        let out = self.f32(batch.n_tokens, 2 * rope.half);
        let shape = [batch.n_tokens as u32, rope.half as u32];
        let inv_freq = rope.inv_freq.ptr();
        // SAFETY: as in `multiply`.
        self.launch(|launches, stream| unsafe {
            let (out, positions) = (out.f32(), batch.positions);
            launches
                .embed
                .rotations(stream, out, inv_freq, positions, shape, rope.scale)
        });
        if let Some(grid) = &rope.grid {
            self.rotate_grids(grid, &out);
        }
        out
    }

    fn rms_norm(&mut self, x: &Tensor, weight: &Vector, eps: f32, _: &Matrix) -> Tensor {
        self.norm_rows(x, weight, eps)
    }

    fn project_qkv(
        &mut self,
        x: &Tensor,
        weights: &QkvWeights<Self>,
        heads: &HeadShape,
        rotations: &Tensor,
        layer: usize,
        batch: &CudaBatch,
    ) -> Tensor {
        assert!(
            !weights.norms_values,
            "models with value norms must be refused"
        );
        let linear = &weights.projection;
        let qkv = self.elements(x.rows, linear.weight.outputs);
        self.multiply(
            x,
            &linear.weight,
            linear.bias.as_ref(),
            &qkv,
            GemmWrite::Store,
        );
        let q = self.elements(x.rows, heads.q_width());
        let norms = weights.head_norms.as_ref();
        let params = RopeStoreParams {
            q: q.elements(),
            k_pool: self.kv.keys(layer),
            v_pool: self.kv.values(layer),
            qkv: qkv.elements(),
            q_norm: norms.map_or(DevicePtr::NULL, |norms| norms.0.ptr()),
            k_norm: norms.map_or(DevicePtr::NULL, |norms| norms.1.ptr()),
            rotations: rotations.f32(),
            slots: batch.slots,
            n_heads: heads.n_heads as u32,
            n_kv_heads: heads.n_kv_heads as u32,
            head_dim: heads.key_dim as u32,
            eps: weights.eps,
        };
        let n_tokens = x.rows as u32;
        // SAFETY: as in `multiply`; slots are of pages that the step's rows own, or of the dummy page.
        self.launch(|launches, stream| unsafe {
            launches.rope_store.launch(stream, &params, n_tokens)
        });
        q
    }

    fn attend(
        &mut self,
        q: &Tensor,
        (heads, sinks): (&HeadShape, Option<&Vector>),
        layer: usize,
        batch: &CudaBatch,
        _: &Matrix,
    ) -> Tensor {
        assert!(
            sinks.is_none() && heads.score_cap.is_none(),
            "models with attention sinks or softcapped scores must be refused"
        );
        let out = self.elements(q.rows, q.width);
        let params = AttendParams {
            out: out.elements(),
            q: q.elements(),
            k_pool: self.kv.keys(layer),
            v_pool: self.kv.values(layer),
            page_table: self.page_table.ptr(),
            segments: batch.decode_segments,
            tiles: DevicePtr::NULL,
            partials: DevicePtr::NULL,
            table_stride: self.table_stride as u32,
            page_size: self.page_size as u32,
            n_heads: heads.n_heads as u32,
            n_kv_heads: heads.n_kv_heads as u32,
            head_dim: heads.key_dim as u32,
            window: heads.window.map_or(0, |window| window as u32),
            n_splits: 1,
            scale_log2: heads.scale * LOG2_E,
        };
        if batch.n_decode > 0 {
            self.attend_decodes(&params, batch.n_decode as u32);
        }
        if batch.n_tiles > 0 {
            let params = AttendParams {
                segments: batch.prefill_segments,
                tiles: batch.tiles,
                ..params
            };
            // SAFETY: as in `attend_decodes`.
            self.launch(|launches, stream| unsafe {
                launches
                    .attention
                    .prefill(stream, &params, batch.n_tiles as u32)
            });
        }
        out
    }

    fn gated(&mut self, x: &Tensor, gate_up: &Linear<Self>, gate: Gate, _: &Matrix) -> Tensor {
        assert_eq!(gate, Gate::Silu, "models with other gates must be refused");
        let both = self.elements(x.rows, gate_up.weight.outputs);
        let bias = gate_up.bias.as_ref();
        self.multiply(x, &gate_up.weight, bias, &both, GemmWrite::Store);
        let out = self.elements(x.rows, gate_up.weight.outputs / 2);
        let shape = [out.rows as u32, out.width as u32];
        // SAFETY: as in `multiply`.
        self.launch(|launches, stream| unsafe {
            let (out, both) = (out.elements(), both.elements());
            launches.silu_mul.launch(stream, out, both, shape)
        });
        out
    }

    fn project_add(&mut self, residual: &mut Tensor, x: &Tensor, linear: &Linear<Self>) {
        let bias = linear.bias.as_ref();
        match linear.weight.shard {
            Shard::Inputs => self.add_over_ranks(residual, x, linear),
            Shard::Whole | Shard::Outputs => {
                self.multiply(x, &linear.weight, bias, residual, GemmWrite::AddF32);
            }
        }
    }

    fn pick(&mut self, x: &Tensor, tokens: &TokenList) -> Tensor {
        let out = self.tensor(tokens.len, x.width, x.value_bytes);
        // Heads have an even size, so a row of either element type is a whole number of words.
        let words = x.width * x.value_bytes / size_of::<f32>();
        let shape = [tokens.len as u32, words as u32];
        if tokens.len > 0 {
            // SAFETY: as in `multiply`; a list names tokens of the step.
            self.launch(|launches, stream| unsafe {
                let embed = &launches.embed;
                embed.pick(stream, out.f32(), x.f32(), tokens.tokens, shape)
            });
        }
        out
    }

    fn norm_picked(&mut self, x: &Tensor, tokens: &TokenList, norm: &Vector, eps: f32) -> Tensor {
        self.norm(x, *tokens, norm, eps)
    }

    fn logits(
        &mut self,
        x: &Tensor,
        tokens: &TokenList,
        norm: &Vector,
        eps: f32,
        vocab: &Matrix,
    ) -> Tensor {
        let normed = self.norm(x, *tokens, norm, eps);
        let out = self.f32(tokens.len, vocab.outputs);
        self.multiply(&normed, vocab, None, &out, GemmWrite::StoreF32);
        match vocab.shard {
            Shard::Outputs => self.gather_from_ranks(&out),
            Shard::Whole | Shard::Inputs => out,
        }
    }
}
