//! How long a step takes: the larger of the time for its bytes and the time for its FLOPs, once for the products with
//! weights and once for attention, and an overhead.
//!
//! - weights: every matrix is read once a step (the output head only if a row samples); two operations a weight and
//!   token. Looking an embedding up costs nothing. A token computes with its own experts only, and a step reads as many of
//!   them as its tokens would choose if all were as likely.
//! - attention: a row's K/V is read once and the new one written; two operations a key's element and query, and two a
//!   value's. A layer that keeps a state reads and writes it once for each row, and once more where it is copied: when a
//!   row begins from the cache, and where a step leaves a copy. Its operations count beside those of attention.
//! - double sparsity: a query with a long context reads all labels and the K/V of the tokens that its heads choose, each head
//!   its own.
//! - tensor parallelism divides bytes and FLOPs evenly and adds two all-reduces a layer.

use crate::error::LoadError;
use crate::kernels::dtype::{Dtype, MatrixRole, Quantization};
use crate::model::config::ModelConfig;
use crate::model::config::experts::ExpertsConfig;
use crate::model::sparsity::LayersToLabel;
use crate::state::pool::kv_layout::{KvDtype, KvLayout, PagedKv};
use crate::state::step::{RowWork, StepPlan};

use super::hardware::Hardware;

/// The type that the weights are stored in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Storage {
    /// Type of weights.
    pub dtype: Dtype,
    /// Type of K/V.
    pub kv_dtype: KvDtype,
    /// What matrices are quantised to.
    pub quantization: Option<Quantization>,
    /// Long contexts are read in part.
    pub sparsity: Option<Sparsity>,
}

/// Double sparsity, without its channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sparsity {
    /// Elements of a head's label.
    pub channels: usize,
    /// Tokens that each query head attends to.
    pub tokens: usize,
    /// Tokens from which on a query is sparse.
    pub threshold: usize,
}

impl Storage {
    /// The memory that each layer of a model keeps.
    ///
    /// # Errors
    /// A model that cannot be sparse.
    pub fn layout(&self, model: &ModelConfig) -> Result<KvLayout, LoadError> {
        let layout = model.kv_layout(self.dtype);
        let Some(Sparsity { channels, .. }) = self.sparsity else {
            return Ok(layout);
        };
        let layers = LayersToLabel {
            layout: &layout,
            windows: &model.windows,
            n_heads: model.num_attention_heads,
        };
        let labels = layers.labels(channels)?;
        Ok(layout.with_labels(|layer| labels[layer]))
    }
}

/// A model's steps on some devices.
#[derive(Clone, Debug)]
pub struct Roofline {
    flops_per_s: f64,
    bytes_per_s: f64,
    overhead_s: f64,
    /// Weights that every token goes through, and their bytes.
    body_weights: f64,
    body_bytes: f64,
    /// Weights of the experts that a token goes through, and the bytes of all.
    expert_weights: f64,
    expert_bytes: f64,
    experts: Option<ExpertsConfig>,
    /// Weights of the output head, and their bytes.
    head_weights: f64,
    head_bytes: f64,
    /// Attention layers, those with equal windows and K/V together.
    layers: Vec<Layers>,
    /// States of one sequence, in all layers.
    state_bytes: f64,
    /// Operations of one token with them.
    state_ops: f64,
    /// Seconds that the all-reduces of one token take.
    exchange_s: f64,
}

/// Layers with one window and the same K/V: the operations of one query and key, and the bytes of one token's K/V, in
/// all of them.
#[derive(Clone, Debug, PartialEq)]
struct Layers {
    window: Option<usize>,
    flops_per_pair: f64,
    bytes_per_token: f64,
    sparse: Option<SparseLayers>,
}

/// What queries that are sparse read instead.
#[derive(Clone, Debug, PartialEq)]
struct SparseLayers {
    /// The first position of such a query.
    first: f64,
    /// Tokens that a query attends to, and those that all its heads choose if none chooses what another does.
    tokens: f64,
    tokens_of_heads: f64,
    /// Operations of one query and label, and the bytes of one token's labels, in all layers.
    flops_per_label: f64,
    bytes_per_label: f64,
}

impl Layers {
    /// The layers of a model that have K/V.
    fn of(model: &ModelConfig, layout: &KvLayout, sparsity: Option<Sparsity>) -> Vec<Self> {
        let mut kinds: Vec<(Option<usize>, PagedKv, f64)> = Vec::new();
        for (layer, window) in (0..layout.layers().len()).zip(&model.windows) {
            let Some(pages) = layout.read_by(layer) else {
                continue;
            };
            match kinds
                .iter_mut()
                .find(|kind| (kind.0, kind.1) == (*window, *pages))
            {
                Some((.., count)) => *count += 1.0,
                None => kinds.push((*window, *pages, 1.0)),
            }
        }
        let layers = kinds.into_iter().map(|(window, pages, count)| {
            let n_heads = model.num_attention_heads;
            let pair_elements = n_heads * (pages.key_dim + pages.values.dim());
            let label_bytes = pages.heads * pages.labels * pages.dtype.bytes();
            let kv_bytes = pages.bytes_per_token() - label_bytes as u64;
            let sparse = |sparsity: Sparsity| SparseLayers {
                first: sparsity.threshold.saturating_sub(1) as f64,
                tokens: sparsity.tokens as f64,
                tokens_of_heads: (sparsity.tokens * n_heads / pages.heads) as f64,
                flops_per_label: 2.0 * (n_heads * pages.labels) as f64 * count,
                bytes_per_label: label_bytes as f64 * count,
            };
            Self {
                window,
                flops_per_pair: 2.0 * pair_elements as f64 * count,
                bytes_per_token: kv_bytes as f64 * count,
                sparse: sparsity.filter(|_| pages.labels > 0).map(sparse),
            }
        });
        layers.collect()
    }

    /// Operations of the queries at `start..end`, and the bytes that they read and write.
    fn cost(&self, start: f64, end: f64) -> (f64, f64) {
        let window = self.window.map_or(f64::INFINITY, |window| window as f64);
        let Some(sparse) = self.sparse.as_ref().filter(|sparse| sparse.first < end) else {
            let context = end.min(end - start + window - 1.0);
            return (
                self.flops_per_pair * pairs(start, end, window),
                self.bytes_per_token * (context + end - start) + self.label_bytes(end - start),
            );
        };
        let first = sparse.first.max(start);
        let n = end - first;
        let dense = if start < first { first } else { 0.0 };
        let chosen = end.min(n * sparse.tokens_of_heads);
        let flops = self.flops_per_pair
            * (pairs(start, first, window) + n * sparse.tokens.min(end))
            + sparse.flops_per_label * pairs(first, end, window);
        let bytes = self.bytes_per_token * (dense.max(chosen) + end - start);
        (flops, bytes + self.label_bytes(end + end - start))
    }

    fn label_bytes(&self, tokens: f64) -> f64 {
        let sparse = self.sparse.as_ref();
        sparse.map_or(0.0, |sparse| sparse.bytes_per_label * tokens)
    }
}

/// What a step is made of.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepCost {
    /// Tokens that go through the model.
    pub tokens: u64,
    /// Operations of the products with weights.
    pub linear_flops: f64,
    /// Bytes of weights read.
    pub weight_bytes: f64,
    /// Operations of attention and with states.
    pub attention_flops: f64,
    /// Bytes of K/V and states read and written.
    pub kv_bytes: f64,
}

impl Roofline {
    /// The roofline of a model on `devices` devices of a kind. A model that cannot be sparse counts as one that is not:
    /// [`Storage::layout`] refuses it.
    pub fn new(hardware: &Hardware, model: &ModelConfig, storage: Storage, devices: u32) -> Self {
        let n = f64::from(devices);
        let peak = match storage.quantization {
            // Four-bit codes are multiplied as bytes.
            Some(Quantization::Int8 | Quantization::Int4) => hardware.tflops.int8 * 1e12,
            None => hardware.peak_flops(storage.dtype),
        };
        let table = (model.vocab_size * model.hidden_size) as f64;
        let n_tables = if model.tie_word_embeddings { 1.0 } else { 2.0 };
        let (all_experts, expert_bytes) = expert_totals(model, storage);
        let used = model.experts.as_ref().map_or(0.0, |experts| {
            experts.routing.n_used as f64 / experts.count() as f64
        });
        // Of the inputs of layers each token reads a row.
        let inputs = model.layer_inputs();
        let inputs = inputs.map(|own| [own.vocab_size, model.num_hidden_layers * own.width]);
        let input_weights = inputs.map_or(0.0, |[rows, width]| rows as f64 * width as f64);
        let body_weights =
            model.parameters() as f64 - n_tables * table - all_experts - input_weights;
        let all_bytes = weights_bytes(model, storage) as f64;
        let table_bytes =
            |role| matrix_bytes(storage, role, [model.vocab_size, model.hidden_size]) as f64;
        let head_bytes = table_bytes(MatrixRole::Logits);
        let looked_up_bytes = match model.tie_word_embeddings {
            true => 0.0,
            false => table_bytes(MatrixRole::Inner),
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
            body_weights,
            body_bytes: all_bytes - head_bytes - looked_up_bytes - expert_bytes,
            expert_weights: all_experts * used,
            expert_bytes,
            experts: model.experts.clone(),
            head_weights: table,
            head_bytes,
            layers: Layers::of(model, &layout, storage.sparsity),
            state_bytes: layout.state_bytes() as f64,
            state_ops: state_ops(model),
            exchange_s: exchange_s(hardware, model, storage, n),
        }
    }

    /// What a step is made of.
    pub fn cost(&self, plan: &StepPlan) -> StepCost {
        let mut cost = StepCost {
            weight_bytes: self.body_bytes,
            ..StepCost::default()
        };
        let mut sampled = 0_u64;
        for start in &plan.starts {
            let is_copied = start.state.is_some_and(|state| state.from.is_some());
            // What is not copied is cleared.
            cost.kv_bytes += self.state_bytes * if is_copied { 2.0 } else { 1.0 };
        }
        for row in &plan.rows {
            let positions = match &row.work {
                RowWork::Prefill { positions } => positions.clone(),
                RowWork::Decode { position } => *position..*position + 1,
            };
            let (start, end) = (f64::from(positions.start), f64::from(positions.end));
            cost.tokens += positions.len() as u64;
            sampled += u64::from(row.sample);
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
        cost.linear_flops = 2.0 * (weights * tokens + self.head_weights * sampled as f64);
        if let Some(experts) = &self.experts {
            let share = experts.expected(tokens) / experts.count() as f64;
            cost.weight_bytes += self.expert_bytes * share;
        }
        if sampled > 0 {
            cost.weight_bytes += self.head_bytes;
        }
        cost
    }

    /// How long it takes, in seconds.
    pub fn seconds(&self, cost: &StepCost) -> f64 {
        let roof =
            |flops: f64, bytes: f64| (flops / self.flops_per_s).max(bytes / self.bytes_per_s);
        self.overhead_s
            + roof(cost.linear_flops, cost.weight_bytes)
            + roof(cost.attention_flops, cost.kv_bytes)
            + cost.tokens as f64 * self.exchange_s
    }
}

/// Bytes of all weights.
pub fn weights_bytes(model: &ModelConfig, storage: Storage) -> u64 {
    let tensors = model.tensors();
    let bytes = tensors.iter().map(|tensor| match tensor.shape[..] {
        [outputs, inputs] => matrix_bytes(storage, model.role(&tensor.name), [outputs, inputs]),
        _ => tensor.elements() * storage.dtype.bytes() as u64,
    });
    bytes.sum()
}

/// Operations of one token with the states of all layers.
fn state_ops(model: &ModelConfig) -> f64 {
    let Some(recurrent) = &model.recurrent else {
        return 0.0;
    };
    let layers = recurrent.layers.iter().filter(|keeps| **keeps).count();
    layers as f64 * recurrent.state_ops(model.hidden_size) as f64
}

/// Weights and bytes of all experts.
fn expert_totals(model: &ModelConfig, storage: Storage) -> (f64, f64) {
    let Some(experts) = &model.experts else {
        return (0.0, 0.0);
    };
    let tensors = model.tensors();
    let own = tensors
        .iter()
        .filter(|tensor| experts.has_tensor(&tensor.name));
    own.fold((0.0, 0.0), |(weights, bytes), tensor| {
        let size = match tensor.shape[..] {
            [outputs, inputs] => matrix_bytes(storage, MatrixRole::Inner, [outputs, inputs]),
            _ => 0,
        };
        (weights + tensor.elements() as f64, bytes + size as f64)
    })
}

fn matrix_bytes(storage: Storage, role: MatrixRole, shape: [usize; 2]) -> u64 {
    let shape = shape.map(|size| size as u64);
    role.bytes(storage.dtype, storage.quantization, shape)
}

/// A ring moves each result twice, all but one device's part of it; two results a layer and token.
fn exchange_s(hardware: &Hardware, model: &ModelConfig, storage: Storage, devices: f64) -> f64 {
    let Some(link_gb_s) = hardware.link_gb_s.filter(|_| devices > 1.0) else {
        return 0.0;
    };
    let results = 2.0 * model.num_hidden_layers as f64;
    let bytes = results * (model.hidden_size * storage.dtype.bytes()) as f64;
    2.0 * (devices - 1.0) / devices * bytes / (link_gb_s * 1e9 * hardware.bandwidth_efficiency)
}

/// Pairs of a query at `start..end` and a key that it sees: its own position, those before, `window` at most.
fn pairs(start: f64, end: f64, window: f64) -> f64 {
    let triangle = |n: f64| n * (n + 1.0) / 2.0;
    let full_from = window.clamp(start, end);
    triangle(full_from) - triangle(start)
        + if full_from < end {
            (end - full_from) * window
        } else {
            0.0
        }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use crate::ids::{RowId, SeqId, StateSlot, StepId};
    use crate::simulate::shape;
    use crate::state::pool::kv_layout::{KvDtype, LayerKv, Values};
    use crate::state::pool::pages::PageRun;
    use crate::state::step::{RowStart, StateSave, StateStart, StepRow};

    fn plan(works: &[(std::ops::Range<u32>, bool)]) -> StepPlan {
        let row = |(index, (positions, sample)): (usize, &(std::ops::Range<u32>, bool))| StepRow {
            row: RowId::new(index as u32 + 1),
            seq: SeqId::new(index as u64),
            work: RowWork::Prefill {
                positions: positions.clone(),
            },
            sample: *sample,
            logprobs: None,
            saves: Default::default(),
        };
        StepPlan {
            step: StepId::new(1),
            starts: Vec::new(),
            table: Vec::new(),
            rows: works.iter().enumerate().map(row).collect(),
            copies: None,
        }
    }

    fn h100(devices: u32) -> Roofline {
        let hardware = Hardware::load("h100-sxm").expect("it is compiled in");
        let model = shape::load("llama-3.1-8b").expect("it is compiled in");
        let storage = Storage {
            dtype: Dtype::BF16,
            kv_dtype: KvDtype::BF16,
            quantization: None,
            sparsity: None,
        };
        Roofline::new(&hardware, &model, storage, devices)
    }

    #[test]
    fn a_decode_reads_the_weights_once_and_each_context() {
        let cost = h100(1).cost(&plan(&[(999..1000, true), (1999..2000, true)]));
        let body = 2.0 * (8_030_261_248.0 - 2.0 * 128_256.0 * 4096.0);
        let head = 2.0 * 128_256.0 * 4096.0;
        assert_eq!(cost.weight_bytes, body + head);
        assert_eq!(cost.linear_flops, 2.0 * (body + head));
        assert_eq!(cost.kv_bytes, 131_072.0 * (1000.0 + 1.0 + 2000.0 + 1.0));
        assert_eq!(cost.attention_flops, 32.0 * 4.0 * 4096.0 * 3000.0);
        // Bound by bytes in both parts.
        let bandwidth = 3350e9 * 0.85;
        let expected = 150e-6 + cost.weight_bytes / bandwidth + cost.kv_bytes / bandwidth;
        assert!((h100(1).seconds(&cost) / expected - 1.0).abs() < 1e-12);
    }

    #[test]
    fn a_sparse_decode_reads_labels_and_some_tokens() {
        let hardware = Hardware::load("h100-sxm").expect("it is compiled in");
        let model = shape::load("llama-3.1-8b").expect("it is compiled in");
        let storage = Storage {
            dtype: Dtype::BF16,
            kv_dtype: KvDtype::BF16,
            quantization: None,
            sparsity: Some(Sparsity {
                channels: 32,
                tokens: 256,
                threshold: 4096,
            }),
        };
        let roofline = Roofline::new(&hardware, &model, storage, 1);
        let cost = |position: u32| roofline.cost(&plan(&[(position..position + 1, true)]));
        let (kv, label) = (131_072.0, 32.0 * 8.0 * 32.0 * 2.0);
        // Below the threshold labels are only written.
        assert_eq!(cost(4094).kv_bytes, kv * 4096.0 + label);
        assert_eq!(
            cost(4095).kv_bytes,
            kv * (4.0 * 256.0 + 1.0) + label * 4097.0
        );
        let flops = 32.0 * 4096.0 * 4.0 * 256.0 + 32.0 * 2.0 * 32.0 * 32.0 * 4096.0;
        assert_eq!(cost(4095).attention_flops, flops);
    }

    #[test]
    fn layers_count_with_their_own_widths_and_states() {
        let mut model = shape::load("llama-3.1-8b").expect("it is compiled in");
        model.windows[3] = Some(64);
        let pages = |key_dim, values| {
            LayerKv::Pages(PagedKv {
                heads: 2,
                key_dim,
                values,
                labels: 0,
                dtype: KvDtype::BF16,
            })
        };
        let (own, latent) = (Values::Own { dim: 16 }, Values::InKeys { dim: 16 });
        let layout = KvLayout::new(vec![
            pages(16, own),
            LayerKv::State { bytes: 1000 },
            pages(24, latent),
            pages(16, own),
            pages(16, own),
        ]);
        let layers = |window, dims, bytes_per_token| Layers {
            window,
            flops_per_pair: 2.0 * 32.0 * dims,
            bytes_per_token,
            sparse: None,
        };
        assert_eq!(
            Layers::of(&model, &layout, None),
            [
                layers(None, 2.0 * 32.0, 2.0 * 128.0),
                layers(None, 40.0, 96.0),
                layers(Some(64), 32.0, 128.0),
            ]
        );
        let mut roofline = h100(1);
        let mut plan = plan(&[(999..1000, true), (0..7, false)]);
        let without = roofline.cost(&plan);
        (roofline.state_bytes, roofline.state_ops) = (1000.0, 10.0);
        let with = roofline.cost(&plan);
        assert_eq!(with.kv_bytes, without.kv_bytes + 2.0 * 2.0 * 1000.0);
        assert_eq!(with.attention_flops, without.attention_flops + 8.0 * 10.0);
        // A copy to begin from, one that is left, and a state that is cleared.
        plan.starts = vec![start(Some(StateSlot::new(3))), start(None)];
        plan.rows[1].saves = vec![StateSave {
            position: 5,
            slot: StateSlot::new(4),
        }]
        .into();
        let copies = roofline.cost(&plan).kv_bytes - with.kv_bytes;
        assert_eq!(copies, (2.0 + 1.0 + 2.0) * 1000.0);
    }

    fn start(from: Option<StateSlot>) -> RowStart {
        RowStart {
            row: RowId::new(1),
            seq: SeqId::new(1),
            tokens: [7].into(),
            vectors: None,
            pooling: None,
            prompt_tokens: 1,
            grammar: None,
            sampling: Arc::default(),
            prefix: PageRun::empty(),
            state: Some(StateStart {
                live: StateSlot::new(1),
                from,
            }),
        }
    }

    #[test]
    fn a_hybrids_tokens_compute_with_its_states() {
        let text = r#"{"architectures": ["Lfm2ForCausalLM"], "vocab_size": 100, "hidden_size": 8,
            "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 16,
            "conv_L_cache": 3, "layer_types": ["conv", "full_attention", "conv"]}"#;
        let model = ModelConfig::parse(std::path::Path::new("config.json"), text.as_bytes());
        let model = model.expect("it can be parsed");
        assert_eq!(state_ops(&model), 2.0 * 2.0 * 3.0 * 8.0);
    }

    #[test]
    fn a_prefill_grows_with_the_square_and_does_not_depend_on_its_chunks() {
        let whole = h100(1).cost(&plan(&[(0..4000, true)]));
        assert_eq!(
            whole.attention_flops,
            32.0 * 4.0 * 4096.0 * (4000.0 * 4001.0 / 2.0)
        );
        let chunks = [
            h100(1).cost(&plan(&[(0..1500, false)])),
            h100(1).cost(&plan(&[(1500..4000, true)])),
        ];
        let sum = |of: fn(&StepCost) -> f64| chunks.iter().map(of).sum::<f64>();
        assert_eq!(sum(|cost| cost.attention_flops), whole.attention_flops);
        assert_eq!(sum(|cost| cost.linear_flops), whole.linear_flops);
        // Bound by FLOPs.
        let expected = 150e-6 + (whole.linear_flops + whole.attention_flops) / (989.4e12 * 0.7);
        assert!((h100(1).seconds(&whole) / expected - 1.0).abs() < 1e-12);
    }

    #[test]
    fn two_devices_are_not_twice_as_fast() {
        let cost = h100(1).cost(&plan(&[(0..4000, true)]));
        let (one, two) = (h100(1).seconds(&cost), h100(2).seconds(&cost));
        assert!(two > one / 2.0 && two < one, "{one} {two}");
    }

    #[test]
    fn a_token_computes_with_its_experts_and_a_step_reads_those_of_all_its_tokens() {
        let text = r#"{"architectures": ["Qwen3MoeForCausalLM"], "vocab_size": 100, "hidden_size": 8,
            "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4,
            "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}"#;
        let model = ModelConfig::parse(std::path::Path::new("config.json"), text.as_bytes());
        let model = model.expect("it can be parsed");
        let storage = Storage {
            dtype: Dtype::BF16,
            kv_dtype: KvDtype::BF16,
            quantization: None,
            sparsity: None,
        };
        let hardware = Hardware::load("h100-sxm").expect("it is compiled in");
        let roofline = Roofline::new(&hardware, &model, storage, 1);
        let of = |tokens: u32| roofline.cost(&plan(&[(0..tokens, false)]));
        let expert = 2.0 * 3.0 * 8.0 * 16.0;
        let all = weights_bytes(&model, storage) as f64 - 2.0 * 2.0 * 800.0;
        assert_eq!(of(200).weight_bytes, all);
        assert_eq!(of(1).weight_bytes, all - 2.0 * 2.0 * expert);
        assert_eq!(of(2).weight_bytes, all - 2.0 * expert);
        let weights = model.parameters() as f64 - 2.0 * 800.0 - 2.0 * expert;
        assert_eq!(of(3).linear_flops, 2.0 * 3.0 * weights);
    }

    #[test]
    fn windows_bound_the_keys_of_a_query() {
        let counted = |start: usize, end: usize, window: usize| {
            (start..end)
                .map(|position| (position + 1).min(window))
                .sum::<usize>() as f64
        };
        for (start, end, window) in [
            (0, 10, 4),
            (0, 3, 4),
            (2, 9, 4),
            (7, 9, 4),
            (3, 5, 4),
            (4, 5, 4),
        ] {
            let got = pairs(start as f64, end as f64, window as f64);
            assert_eq!(got, counted(start, end, window), "{start}..{end}, {window}");
        }
        assert_eq!(pairs(0.0, 10.0, f64::INFINITY), 55.0);
    }
}
