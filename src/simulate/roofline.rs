//! The roofline model of the duration of a step: the longer of the times for its bytes and for its FLOPs.
//!
//! The model takes this maximum separately for products with weights and for attention, and adds an overhead. Hardware
//! with an incomplete `overlap` takes a part of the shorter time, too.
//! - weights: each matrix is read once per step (the output head only if a row samples); two operations per weight
//!   and token, and the tokens of a step are rounded up to whole groups of rows if the hardware has them. All query
//!   tokens of a decode with drafts count, and each has a row of the output head. Embedding lookups cost nothing. A
//!   token computes only with its chosen experts, and a step reads the expected number of distinct experts if all were
//!   equally likely.
//! - attention: a row's keys and values are read once, and the new ones are written once. A query takes two operations
//!   per element of each key and value. A recurrent state is read and written once per row, and once more for each
//!   copy: at the start of a row with a cached prefix, and when a step saves a state. The state's operations count as
//!   attention.
//! - double sparsity: a query with a long context reads all labels, and the keys and values of the chosen tokens. All
//!   heads are assumed to choose different tokens.
//! - tensor parallelism divides bytes and FLOPs evenly and adds two all-reduces per layer.

mod attention;
mod storage;
#[cfg(test)]
mod tests;

use self::attention::Layers;
pub use self::storage::{Sparsity, Storage, weights_bytes};
use self::storage::{expert_totals, matrix_bytes};
use super::hardware::Hardware;
use souffleur_kernels::dtype::{MatrixRole, Quantization};
use souffleur_model::config::ModelConfig;
use souffleur_model::config::experts::ExpertsConfig;
use souffleur_model::weights::TensorSpec;
use souffleur_state::step::{RowResult, RowWork, StepPlan};

#[derive(Clone, Debug)]
pub struct Roofline {
    flops_per_s: f64,
    bytes_per_s: f64,
    overhead_s: f64,
    /// [`Hardware::overlap`].
    overlap: f64,
    /// The number of weights that every token uses, and their bytes.
    body_weights: f64,
    body_bytes: f64,
    /// The number of weights of the experts that a token uses, and the bytes of all experts.
    expert_weights: f64,
    expert_bytes: f64,
    experts: Option<ExpertsConfig>,
    head_weights: f64,
    head_bytes: f64,
    /// [`Hardware::group_rows`].
    group_rows: Option<f64>,
    /// Attention layers, grouped by equal window and K/V layout.
    layers: Vec<Layers>,
    /// Bytes of the recurrent states of one sequence, in all layers.
    state_bytes: f64,
    /// Operations per token on the recurrent states of all layers.
    state_ops: f64,
    /// The time of the all-reduces of one token, in seconds.
    all_reduce_s: f64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepCost {
    pub tokens: u64,
    pub linear_flops: f64,
    pub weight_bytes: f64,
    /// Operations of attention and recurrent states.
    pub attention_flops: f64,
    /// Bytes of keys, values and states that are read and written.
    pub kv_bytes: f64,
}

impl Roofline {
    /// The roofline of a model on `devices` equal devices. A model that does not support double sparsity is treated as
    /// dense; [`Storage::layout`] refuses the model.
    pub fn new(hardware: &Hardware, model: &ModelConfig, storage: Storage, devices: u32) -> Self {
        let n = f64::from(devices);
        let peak = match storage.quantization {
            // Four-bit weights are multiplied as bytes.
            Some(Quantization::Int8 | Quantization::Int4) => hardware.tflops.int8 * 1e12,
            None => hardware.peak_flops(storage.dtype),
        };
        let table = (model.vocab_size * model.hidden_size) as f64;
        let n_tables = if model.tie_word_embeddings { 1.0 } else { 2.0 };
        let (all_experts, expert_bytes) = expert_totals(model, storage);
        let used = model.experts.as_ref().map_or(0.0, |experts| {
            experts.routing.n_used as f64 / experts.count() as f64
        });
        // Per-layer input embeddings: each token reads only one row.
        let inputs = model.layer_inputs();
        let inputs = inputs.map(|own| [own.vocab_size, model.num_hidden_layers * own.width]);
        let input_weights = inputs.map_or(0.0, |[rows, width]| rows as f64 * width as f64);
        // `tensors` lists a matrix that gives both keys and values twice, as it is multiplied twice.
        let multiplied: u64 = model.tensors().iter().map(TensorSpec::elements).sum();
        let body_weights = multiplied as f64 - n_tables * table - all_experts - input_weights;
        let all_bytes = weights_bytes(model, storage) as f64;
        let table_bytes =
            |role| matrix_bytes(storage, role, [model.vocab_size, model.hidden_size]) as f64;
        let head_bytes = table_bytes(MatrixRole::Logits);
        let looked_up_bytes = if model.tie_word_embeddings {
            0.0
        } else {
            table_bytes(MatrixRole::Inner)
        };
        let looked_up_bytes = looked_up_bytes
            + inputs.map_or(0.0, |shape| {
                matrix_bytes(storage, MatrixRole::Inner, shape) as f64
            });
        let layout = storage.layout(model);
        let layout = layout.unwrap_or_else(|_| model.kv_layout(storage.kv_dtype));
        Self {
            flops_per_s: n * peak * hardware.flops_efficiency,
            bytes_per_s: n * hardware.bandwidth_gb_s * 1e9 * hardware.bandwidth_efficiency,
            overhead_s: hardware.step_overhead_us * 1e-6,
            overlap: hardware.overlap,
            body_weights,
            body_bytes: all_bytes - head_bytes - looked_up_bytes - expert_bytes,
            expert_weights: all_experts * used,
            expert_bytes,
            experts: model.experts.clone(),
            head_weights: table,
            head_bytes,
            group_rows: hardware.group_rows.map(f64::from),
            layers: Layers::of(model, &layout, storage.sparsity),
            state_bytes: layout.state_bytes() as f64,
            state_ops: state_ops(model),
            all_reduce_s: all_reduce_s(hardware, model, storage, n),
        }
    }

    /// The cost of a step with these results, one for each row of the plan in its order. A decode costs the query tokens
    /// that it has computed, the last token and its drafts; a row that the step skipped costs nothing.
    pub fn cost(&self, plan: &StepPlan, results: &[RowResult]) -> StepCost {
        let mut cost = StepCost {
            weight_bytes: self.body_bytes,
            ..StepCost::default()
        };
        let mut sampled = 0_u64;
        for start in &plan.starts {
            let is_copied = start.state.is_some_and(|state| state.from.is_some());
            // A copied state is read and written; a cleared state is only written.
            cost.kv_bytes += self.state_bytes * if is_copied { 2.0 } else { 1.0 };
        }
        for (row, result) in plan.rows.iter().zip(results) {
            if result.accepted == 0 {
                continue;
            }
            let (positions, outputs) = match &row.work {
                RowWork::Prefill { positions } => (positions.clone(), 1),
                RowWork::Decode { position, .. } => {
                    let queries = 1 + result.drafts.n_tokens;
                    (*position..*position + queries, queries)
                }
            };
            let (start, end) = (f64::from(positions.start), f64::from(positions.end));
            cost.tokens += positions.len() as u64;
            if row.sample {
                sampled += u64::from(outputs);
            }
            let moves = 1 + row.saves.len();
            cost.kv_bytes += 2.0 * self.state_bytes * moves as f64;
            cost.attention_flops += self.state_ops * positions.len() as f64;
            for layers in &self.layers {
                let (flops, bytes) = layers.cost(start, end);
                cost.attention_flops += flops;
                cost.kv_bytes += bytes;
            }
        }
        let tokens = cost.tokens as f64;
        let weights = self.body_weights + self.expert_weights;
        let head = self.head_weights * self.product_rows(sampled as f64);
        cost.linear_flops = 2.0 * (weights * self.product_rows(tokens) + head);
        if let Some(experts) = &self.experts {
            let share = experts.expected(tokens) / experts.count() as f64;
            cost.weight_bytes += self.expert_bytes * share;
        }
        if sampled > 0 {
            cost.weight_bytes += self.head_bytes;
        }
        cost
    }

    /// The rows of a product for which a step with this number of rows takes time.
    fn product_rows(&self, rows: f64) -> f64 {
        match self.group_rows {
            Some(group) if rows > group => (rows / group).ceil() * group,
            _ => rows,
        }
    }

    pub fn seconds(&self, cost: &StepCost) -> f64 {
        let roof = |flops: f64, bytes: f64| {
            let (flops_s, bytes_s) = (flops / self.flops_per_s, bytes / self.bytes_per_s);
            flops_s.max(bytes_s) + (1.0 - self.overlap) * flops_s.min(bytes_s)
        };
        self.overhead_s
            + roof(cost.linear_flops, cost.weight_bytes)
            + roof(cost.attention_flops, cost.kv_bytes)
            + cost.tokens as f64 * self.all_reduce_s
    }
}

fn state_ops(model: &ModelConfig) -> f64 {
    let Some(recurrent) = &model.recurrent else {
        return 0.0;
    };
    let layers = recurrent.layers.iter().filter(|keeps| **keeps).count();
    layers as f64 * recurrent.state_ops(model.hidden_size) as f64
}

/// The time per token of two ring all-reduces per layer, each of which moves `2 (n - 1) / n` of a hidden state.
fn all_reduce_s(hardware: &Hardware, model: &ModelConfig, storage: Storage, devices: f64) -> f64 {
    let Some(link_gb_s) = hardware.link_gb_s.filter(|_| devices > 1.0) else {
        return 0.0;
    };
    let n_reductions = 2.0 * model.num_hidden_layers as f64;
    let bytes = n_reductions * (model.hidden_size * storage.dtype.bytes()) as f64;
    2.0 * (devices - 1.0) / devices * bytes / (link_gb_s * 1e9 * hardware.bandwidth_efficiency)
}
