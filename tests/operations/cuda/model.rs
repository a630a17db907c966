//! Test fixture: one layer, embedding and output of a model, on any backend.

use half::bf16;

use super::{Case, VOCAB};
use souffleur_kernels::dtype::{Dtype, MatrixRole};
use souffleur_kernels::rope::Rope;
use souffleur_kernels::tensor_view::TensorView;
use souffleur_kernels::{Backend, Gate, Linear, QkvWeights};

pub(super) struct Model<B: Backend> {
    embedding: B::Matrix,
    rope: B::Rope,
    norm: B::Vector,
    qkv: QkvWeights<B>,
    o: Linear<B>,
    gate_up: Linear<B>,
    down: Linear<B>,
}

pub(super) fn model<B: Backend>(backend: &mut B, case: &Case) -> Model<B> {
    let mut random = fastrand::Rng::with_seed(3);
    let (n_heads, n_kv_heads, head_dim) = case.heads;
    let (hidden, q, kv) = (case.hidden, n_heads * head_dim, n_kv_heads * head_dim);
    let mut values = |n: usize, center: f32, spread: f32| -> Vec<u8> {
        let value = |_| center + spread * (random.f32() * 2.0 - 1.0);
        // These values are exact in both element types.
        let values = (0..n)
            .map(value)
            .map(|value| bf16::from_f32(value).to_f32());
        values.flat_map(f32::to_le_bytes).collect()
    };
    let view =
        |shape: &'static [usize], bytes: &'static [u8]| TensorView::plain(Dtype::F32, shape, bytes);
    let leak = |shape: &[usize], bytes: Vec<u8>| view(shape.to_vec().leak(), bytes.leak());
    let mut matrix = |outputs: usize, inputs: usize| {
        let spread = 1.5 / (inputs as f32).sqrt();
        leak(&[outputs, inputs], values(outputs * inputs, 0.0, spread))
    };
    let (embedding, down) = (matrix(VOCAB, hidden), matrix(hidden, case.mlp));
    let (q_proj, kv_proj) = (matrix(q, hidden), matrix(2 * kv, hidden));
    let o_proj = matrix(hidden, q);
    let gate_up = [matrix(case.mlp, hidden), matrix(case.mlp, hidden)];
    let mut vector = |n: usize, center: f32| leak(&[n], values(n, center, 0.3));
    let (norm, q_norm, k_norm) = (
        vector(hidden, 1.0),
        vector(head_dim, 1.0),
        vector(head_dim, 1.0),
    );
    let biases = [
        vector(q + 2 * kv, 0.0),
        vector(hidden, 0.0),
        vector(2 * case.mlp, 0.0),
    ];
    let mut bias = |index: usize| case.bias.then(|| backend.vector(&biases[index..=index]));
    let (qkv_bias, o_bias, gate_bias) = (bias(0), bias(1), bias(2));
    Model {
        embedding: backend.matrix(&[embedding], &[MatrixRole::Logits]),
        rope: backend.rope(&rope(head_dim)),
        norm: backend.vector(&[norm]),
        qkv: QkvWeights {
            projection: Linear {
                weight: backend.matrix(&[q_proj, kv_proj], &[MatrixRole::Inner; 2]),
                bias: qkv_bias,
            },
            head_norms: case
                .head_norms
                .then(|| (backend.vector(&[q_norm]), backend.vector(&[k_norm]))),
            norms_together: false,
            norms_values: false,
            eps: 1e-5,
        },
        o: Linear {
            weight: backend.matrix(&[o_proj], &[MatrixRole::Inner]),
            bias: o_bias,
        },
        gate_up: Linear {
            weight: backend.matrix(&gate_up, &[MatrixRole::Inner; 2]),
            bias: gate_bias,
        },
        down: Linear {
            weight: backend.matrix(&[down], &[MatrixRole::Inner]),
            bias: None,
        },
    }
}

/// Unscaled RoPE frequencies of base 10000.
fn rope(head_dim: usize) -> Rope {
    let exponents = (0..head_dim / 2).map(|pair| (2 * pair) as f32 / head_dim as f32);
    Rope {
        inv_freq: exponents
            .map(|exponent| 10_000f32.powf(-exponent))
            .collect(),
        long_inv_freq: None,
        axes: None,
        attention_scale: 1.0,
    }
}

pub(super) enum OpResult<'a, B: Backend> {
    Tensor(&'a B::Tensor),
    Operand(&'a B::Operand),
}

/// Receives an operation's name and result, and whether the result is f32.
pub(super) type Observer<'a, B> = &'a mut dyn FnMut(&mut B, &'static str, OpResult<'_, B>, bool);

pub(super) fn run<B: Backend>(
    backend: &mut B,
    model: &Model<B>,
    case: &Case,
    batch: &B::Batch,
    tokens: &B::TokenList,
    observe: Observer<'_, B>,
) {
    let heads = case.layer_heads();
    let mut x = backend.embed(&model.embedding, None, batch);
    observe(backend, "embed", OpResult::Tensor(&x), true);
    let rotations = backend.rotations(&model.rope, batch);
    observe(backend, "rotations", OpResult::Tensor(&rotations), true);
    let normed = backend.rms_norm(&x, &model.norm, 1e-5, &model.qkv.projection.weight);
    observe(backend, "rms_norm", OpResult::Operand(&normed), false);
    let q = backend.project_qkv(&normed, &model.qkv, &heads, &rotations, 0, batch);
    observe(backend, "project_qkv", OpResult::Tensor(&q), false);
    let picked = backend.pick(&q, tokens);
    observe(backend, "pick of queries", OpResult::Tensor(&picked), false);
    let attended = backend.attend(&q, (&heads, None), 0, batch, &model.o.weight);
    observe(backend, "attend", OpResult::Operand(&attended), false);
    backend.project_add(&mut x, &attended, &model.o);
    observe(backend, "project_add", OpResult::Tensor(&x), true);
    let gated = backend.gated(&normed, &model.gate_up, Gate::Silu, &model.down.weight);
    observe(backend, "gated", OpResult::Operand(&gated), false);
    backend.project_add(&mut x, &gated, &model.down);
    observe(backend, "second project_add", OpResult::Tensor(&x), true);
    let picked = backend.pick(&x, tokens);
    observe(backend, "pick", OpResult::Tensor(&picked), true);
    let logits = backend.logits(&x, tokens, &model.norm, 1e-5, &model.embedding);
    observe(backend, "logits", OpResult::Tensor(&logits), true);
}
