//! The least time that a step can take on a machine: every weight is read once, every product computed once.
//!
//! Counted are the matrices of the layers, the output projection (for sampled tokens only), attention's two products,
//! the products with states token by token, the reading of cached K/V, and the reading and writing of states. Of experts
//! those count that are chosen: a token computes with its own, and a step reads as many as so many tokens would choose if
//! all experts were as likely. Norms, activations, sampling and the embedding's rows are left out: a floor may be too low,
//! never too high. A query that is sparse reads all labels, and the K/V of as few tokens as it could if all its heads chose
//! the same.

use souffleur::kernels::dtype::{Dtype, MatrixRole, Quantization};
use souffleur::kernels::sparsity::DoubleSparsity;
use souffleur::model::config::ModelConfig;
use souffleur::model::config::experts::ExpertsConfig;
use souffleur::state::pool::kv_layout::{KvLayout, PagedKv};

/// Multiply and add.
const OPS_PER_ELEMENT: u64 = 2;

/// What decides the cost of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelCost {
    /// Elements of all layers' matrices, of experts those that a token goes through.
    layer_elements: u64,
    /// Elements of the output projection.
    head_elements: u64,
    /// All these matrices but experts, with their scales if they are quantised.
    matrix_bytes: u64,
    /// The same of all experts.
    expert_bytes: u64,
    experts: Option<ExpertsConfig>,
    /// The attention layers.
    attention: Vec<AttentionCost>,
    /// The states of one sequence in the other layers, in bytes.
    state_bytes: u64,
    /// Operations of a token with these states.
    state_ops: u64,
}

/// The sizes that decide the cost of a layer's attention.
#[derive(Clone, Copy, Debug, PartialEq)]
struct AttentionCost {
    /// K/V of one token, in bytes.
    kv_bytes: u64,
    /// Elements that a token's query heads multiply with one key and its value.
    pair_elements: u64,
    /// How many tokens a query sees, itself included.
    window: Option<u64>,
    sparse: Option<SparseCost>,
}

/// The cost of queries that attend to some tokens only.
#[derive(Clone, Copy, Debug, PartialEq)]
struct SparseCost {
    /// The first position of such a query.
    first: u64,
    /// Tokens that it attends to.
    tokens: u64,
    /// Labels of one token, in bytes.
    label_bytes: u64,
    /// Elements that a token's query heads multiply with one label.
    label_elements: u64,
}

impl AttentionCost {
    fn new(pages: &PagedKv, n_heads: usize, window: Option<usize>) -> Self {
        Self {
            kv_bytes: pages.bytes_per_token() - label_bytes(pages),
            pair_elements: (n_heads * (pages.key_dim + pages.values.dim())) as u64,
            window: window.map(|tokens| tokens as u64),
            sparse: None,
        }
    }

    /// The queries of an extent that see all they may, and those that are sparse.
    fn parts(&self, extent: Extent) -> (Extent, Option<(Extent, SparseCost)>) {
        let Some(sparse) = self.sparse else {
            return (extent, None);
        };
        let dense = Extent {
            new_tokens: sparse
                .first
                .saturating_sub(extent.cached_tokens)
                .min(extent.new_tokens),
            ..extent
        };
        let rest = Extent {
            cached_tokens: extent.cached_tokens + dense.new_tokens,
            new_tokens: extent.new_tokens - dense.new_tokens,
        };
        (dense, Some((rest, sparse)).filter(|_| rest.new_tokens > 0))
    }

    /// Elements that are multiplied with keys, values and labels.
    fn elements(&self, extent: Extent) -> u64 {
        let (dense, rest) = self.parts(extent);
        let sparse = rest.map_or(0, |(rest, sparse)| {
            let tokens = sparse.tokens.min(rest.cached_tokens + 1);
            sparse.label_elements * seen_tokens(rest, None)
                + self.pair_elements * tokens * rest.new_tokens
        });
        self.pair_elements * seen_tokens(dense, self.window) + sparse
    }

    /// Bytes of cached K/V and labels that are read.
    fn bytes(&self, extent: Extent) -> u64 {
        let (dense, rest) = self.parts(extent);
        let reach = match self.window {
            _ if dense.new_tokens == 0 => 0,
            None => u64::MAX,
            Some(window) => window.saturating_sub(1),
        };
        let chosen = rest.map_or(0, |(_, sparse)| sparse.tokens - 1);
        let labels = rest.map_or(0, |(_, sparse)| sparse.label_bytes);
        let cached = extent.cached_tokens;
        cached.min(reach.max(chosen)) * self.kv_bytes + cached * labels
    }
}

/// The tokens of one sequence in a step; the last one is sampled from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Tokens whose K/V is there already.
    pub cached_tokens: u64,
    /// Tokens that go through the model.
    pub new_tokens: u64,
}

/// What the machine does at best, in the same minute.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Peak {
    /// Bytes read per second.
    pub read_bytes_per_s: f64,
    /// Operations per second on the type that weights are multiplied in.
    pub weight_ops_per_s: f64,
    /// Operations per second on the type that K/V is multiplied in.
    pub attention_ops_per_s: f64,
    /// Operations per second on f32, which states are multiplied in.
    pub state_ops_per_s: f64,
}

impl ModelCost {
    /// Counts a model's matrices, unquantised ones in `dtype`, and what its layers keep.
    pub fn new(
        config: &ModelConfig,
        dtype: Dtype,
        quantization: Option<Quantization>,
        layout: &KvLayout,
    ) -> Self {
        let bytes = |role: MatrixRole, shape| role.bytes(dtype, quantization, shape);
        let (vocab, hidden) = (config.vocab_size as u64, config.hidden_size as u64);
        let mut layer_elements = 0;
        let mut matrix_bytes = bytes(MatrixRole::Logits, [vocab, hidden]);
        let (mut expert_elements, mut expert_bytes) = (0, 0);
        let is_expert = |name: &str| {
            config
                .experts
                .as_ref()
                .is_some_and(|all| all.has_tensor(name))
        };
        for tensor in config.tensors() {
            let (true, &[outputs, inputs]) = (
                tensor.name.starts_with("model.layers."),
                tensor.shape.as_slice(),
            ) else {
                continue;
            };
            let own = bytes(config.role(&tensor.name), [outputs as u64, inputs as u64]);
            match is_expert(&tensor.name) {
                true => {
                    (expert_elements, expert_bytes) =
                        (expert_elements + tensor.elements(), expert_bytes + own)
                }
                false => {
                    (layer_elements, matrix_bytes) =
                        (layer_elements + tensor.elements(), matrix_bytes + own)
                }
            }
        }
        if let Some(experts) = &config.experts {
            layer_elements +=
                expert_elements / experts.count() as u64 * experts.routing.n_used as u64;
        }
        let layers = (0..layout.layers().len()).zip(&config.windows);
        let attention = layers.filter_map(|(layer, window)| {
            let pages = layout.read_by(layer)?;
            Some(AttentionCost::new(
                pages,
                config.num_attention_heads,
                *window,
            ))
        });
        Self {
            layer_elements,
            head_elements: vocab * hidden,
            matrix_bytes,
            expert_bytes,
            experts: config.experts.clone(),
            attention: attention.collect(),
            state_bytes: layout.state_bytes(),
            state_ops: config.recurrent.as_ref().map_or(0, |recurrent| {
                let layers = recurrent.layers.iter().filter(|keeps| **keeps);
                layers.count() as u64 * recurrent.state_ops(config.hidden_size)
            }),
        }
    }

    /// The same with queries that are sparse in the layers of `layout` that have labels.
    pub fn sparse(mut self, layout: &KvLayout, rules: &DoubleSparsity, n_heads: usize) -> Self {
        let pages = (0..layout.layers().len()).filter_map(|layer| layout.read_by(layer));
        for (cost, pages) in self.attention.iter_mut().zip(pages) {
            cost.sparse = (pages.labels > 0).then(|| SparseCost {
                first: rules.first_position() as u64,
                tokens: rules.tokens as u64,
                label_bytes: label_bytes(pages),
                label_elements: (n_heads * pages.labels) as u64,
            });
        }
        self
    }

    /// Operations of the step's products with weights.
    pub fn weight_ops(&self, step: &[Extent]) -> u64 {
        let tokens = new_tokens(step);
        OPS_PER_ELEMENT * (self.layer_elements * tokens + self.head_elements * step.len() as u64)
    }

    /// Operations of the step's products with K and V.
    pub fn attention_ops(&self, step: &[Extent]) -> u64 {
        let ops = |extent: &Extent| -> u64 {
            let layers = self.attention.iter();
            layers.map(|layer| layer.elements(*extent)).sum()
        };
        OPS_PER_ELEMENT * step.iter().map(ops).sum::<u64>()
    }

    /// Operations of the step's products with states.
    pub fn state_ops(&self, step: &[Extent]) -> u64 {
        self.state_ops * new_tokens(step)
    }

    /// Bytes of weights and cached K/V that the step reads, and those of states, which it reads and writes; K/V that
    /// sequences share counts for each of them.
    pub fn bytes(&self, step: &[Extent]) -> u64 {
        let kv = |extent: &Extent| -> u64 {
            let layers = self.attention.iter();
            layers.map(|layer| layer.bytes(*extent)).sum()
        };
        let tokens = new_tokens(step);
        let states = 2 * self.state_bytes * step.len() as u64;
        self.matrix_bytes + self.chosen_bytes(tokens) + step.iter().map(kv).sum::<u64>() + states
    }

    /// Bytes of the experts that so many tokens choose.
    fn chosen_bytes(&self, tokens: u64) -> u64 {
        let share = self.experts.as_ref().map_or(0.0, |experts| {
            experts.expected(tokens as f64) / experts.count() as f64
        });
        (self.expert_bytes as f64 * share) as u64
    }

    /// The least seconds that the step can take: reading or computing, whichever takes longer.
    pub fn step_seconds(&self, step: &[Extent], peak: &Peak) -> f64 {
        let reading = self.bytes(step) as f64 / peak.read_bytes_per_s;
        let computing = self.weight_ops(step) as f64 / peak.weight_ops_per_s
            + self.attention_ops(step) as f64 / peak.attention_ops_per_s
            + self.state_ops(step) as f64 / peak.state_ops_per_s;
        reading.max(computing)
    }

    /// The least seconds from the first to the last of `output_tokens` tokens of `streams` streams, behind prompts
    /// of `prompt_tokens`.
    pub fn decode_seconds(
        &self,
        streams: u64,
        prompt_tokens: u64,
        output_tokens: u64,
        peak: &Peak,
    ) -> f64 {
        let step = |generated: u64| {
            let extent = Extent {
                cached_tokens: prompt_tokens + generated,
                new_tokens: 1,
            };
            self.step_seconds(&vec![extent; streams as usize], peak)
        };
        (0..output_tokens.saturating_sub(1)).map(step).sum()
    }
}

fn label_bytes(pages: &PagedKv) -> u64 {
    (pages.heads * pages.labels * pages.dtype.bytes()) as u64
}

fn new_tokens(step: &[Extent]) -> u64 {
    step.iter().map(|extent| extent.new_tokens).sum()
}

/// Keys that the extent's queries see together: a query sees itself and what is before it, at most `window` tokens.
fn seen_tokens(extent: Extent, window: Option<u64>) -> u64 {
    let Extent {
        cached_tokens,
        new_tokens,
    } = extent;
    let all = |tokens: u64| tokens * (tokens + 1) / 2;
    let end = cached_tokens + new_tokens;
    let window = window.unwrap_or(u64::MAX);
    // Queries at positions below `full` see everything before them.
    let full = end.min(window).max(cached_tokens);
    let unlimited = all(full) - all(cached_tokens);
    match end - full {
        0 => unlimited,
        limited => unlimited + limited * window,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;
    use souffleur::state::pool::kv_layout::{KvDtype, Values};

    use super::*;

    /// Layers of hidden 8, MLP 16, 4 heads of 4 elements over 2 K/V heads: matrices of 8x16, twice 8x8, 16x8 and
    /// three of 8x16 are 768 elements.
    fn cost(window: Option<u64>) -> ModelCost {
        ModelCost {
            layer_elements: 2 * 768,
            head_elements: 100 * 8,
            matrix_bytes: (2 * 768 + 100 * 8) * 2,
            expert_bytes: 0,
            experts: None,
            attention: vec![
                AttentionCost {
                    kv_bytes: 2 * 8 * 2,
                    pair_elements: 2 * 16,
                    window,
                    sparse: None,
                };
                2
            ],
            state_bytes: 0,
            state_ops: 0,
        }
    }

    /// With K/V in the type of the weights.
    fn of(config: &ModelConfig, dtype: Dtype, quantization: Option<Quantization>) -> ModelCost {
        ModelCost::new(config, dtype, quantization, &config.kv_layout(dtype))
    }

    fn extent(cached_tokens: u64, new_tokens: u64) -> Extent {
        Extent {
            cached_tokens,
            new_tokens,
        }
    }

    #[test]
    fn a_configuration_gives_the_sizes_of_its_matrices() {
        let config = json!({
            "architectures": ["Qwen3ForCausalLM"], "vocab_size": 100, "hidden_size": 8,
            "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4,
            "num_key_value_heads": 2, "head_dim": 4, "tie_word_embeddings": true,
        });
        let text = config.to_string();
        let config = ModelConfig::parse(Path::new("config.json"), text.as_bytes());
        let config = config.expect("it can be parsed");
        assert_eq!(of(&config, Dtype::BF16, None), cost(None));
        let wide = of(&config, Dtype::F32, None);
        assert!(wide.attention.iter().all(|layer| layer.kv_bytes == 64));
        let layout = config.kv_layout(KvDtype::Int8);
        let kept = ModelCost::new(&config, Dtype::BF16, None, &layout);
        // Sixteen bytes and four scales a token, in each layer.
        assert!(
            kept.attention
                .iter()
                .all(|layer| layer.kv_bytes == 16 + 4 * 2)
        );
        assert_eq!(kept.matrix_bytes, cost(None).matrix_bytes);
        let int8 = of(&config, Dtype::BF16, Some(Quantization::Int8));
        // A byte an element, and a scale of 4 bytes for each output: of q, k, v, o, gate, up and down, and the head.
        let scales = 2 * (16 + 8 + 8 + 8 + 16 + 16 + 8) + 100;
        assert_eq!(int8.matrix_bytes, 2 * 768 + 100 * 8 + 4 * scales);
    }

    #[test]
    fn experts_count_as_far_as_they_are_chosen() {
        let config = json!({
            "architectures": ["Qwen3MoeForCausalLM"], "vocab_size": 100, "hidden_size": 8,
            "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4,
            "tie_word_embeddings": true, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
        });
        let text = config.to_string();
        let config = ModelConfig::parse(Path::new("config.json"), text.as_bytes());
        let cost = of(&config.expect("it can be parsed"), Dtype::BF16, None);
        // Each expert is as large as the MLP of `cost`; the router's 4x8 elements are f32.
        let (attention, router, expert) = (384, 32, 384);
        assert_eq!(cost.layer_elements, 2 * (attention + router + 2 * expert));
        assert_eq!(
            cost.matrix_bytes,
            2 * (2 * attention + 4 * router) + 2 * 800
        );
        assert_eq!(cost.expert_bytes, 2 * 4 * 2 * expert);
        // One token reads half of the experts, two read three quarters of them, many all.
        let read = |tokens| cost.bytes(&[extent(0, tokens)]) - cost.matrix_bytes;
        let all = cost.expert_bytes;
        assert_eq!([read(1), read(2), read(200)], [all / 2, all * 3 / 4, all]);
    }

    #[test]
    fn a_prefill_computes_every_layer_for_each_token_and_the_head_for_one() {
        let step = [extent(0, 3)];
        assert_eq!(cost(None).weight_ops(&step), 2 * (3 * 1536 + 800));
        // Queries see 1, 2 and 3 keys, in two layers, over 16 elements, for scores and for values.
        assert_eq!(cost(None).attention_ops(&step), (1 + 2 + 3) * 2 * 16 * 4);
        assert_eq!(cost(None).bytes(&step), (1536 + 800) * 2);
    }

    #[test]
    fn decodes_read_their_own_cache_and_share_the_weights() {
        let step = [extent(10, 1), extent(20, 1)];
        assert_eq!(cost(None).bytes(&step), (1536 + 800) * 2 + 30 * 2 * 32);
        assert_eq!(cost(None).weight_ops(&step), 2 * 2 * (1536 + 800));
        assert_eq!(cost(None).attention_ops(&step), (11 + 21) * 2 * 64);
    }

    #[test]
    fn windows_bound_what_is_seen_and_read() {
        let windowed = cost(Some(4));
        assert_eq!(
            windowed.bytes(&[extent(10, 1)]),
            (1536 + 800) * 2 + 3 * 2 * 32
        );
        for (step, seen) in [
            (extent(0, 3), 1 + 2 + 3),
            (extent(0, 6), 1 + 2 + 3 + 4 + 4 + 4),
            (extent(2, 3), 3 + 4 + 4),
            (extent(10, 2), 4 + 4),
            (extent(4, 1), 4),
        ] {
            assert_eq!(seen_tokens(step, Some(4)), seen, "{step:?}");
        }
        assert_eq!(seen_tokens(extent(2, 3), None), 3 + 4 + 5);
    }

    #[test]
    fn keys_and_values_of_other_widths_count_with_their_own() {
        let pages = PagedKv {
            heads: 1,
            key_dim: 6,
            values: Values::InKeys { dim: 4 },
            labels: 0,
            dtype: KvDtype::BF16,
        };
        let mut cost = cost(None);
        cost.attention[1] = AttentionCost::new(&pages, 4, Some(8));
        let step = [extent(10, 1)];
        assert_eq!(cost.bytes(&step), (1536 + 800) * 2 + 10 * 32 + 7 * 12);
        assert_eq!(cost.attention_ops(&step), 2 * (11 * 32 + 8 * 40));
        cost.state_bytes = 1000;
        let both = [extent(10, 1), extent(0, 5)];
        assert_eq!(
            cost.bytes(&both),
            (1536 + 800) * 2 + 10 * 32 + 7 * 12 + 2 * 2 * 1000
        );
    }

    #[test]
    fn sparse_queries_read_labels_and_the_tokens_that_they_choose() {
        let mut cost = cost(None);
        cost.attention[1].sparse = Some(SparseCost {
            first: 10,
            tokens: 4,
            label_bytes: 8,
            label_elements: 8,
        });
        let (dense, weights) = (cost.attention[0], (1536 + 800) * 2);
        assert_eq!(cost.bytes(&[extent(9, 1)]), weights + 2 * 9 * 32);
        assert_eq!(
            cost.bytes(&[extent(10, 1)]),
            weights + 10 * 32 + 3 * 32 + 10 * 8
        );
        // The first query of the chunk sees everything.
        assert_eq!(cost.bytes(&[extent(9, 2)]), weights + 2 * 9 * 32 + 9 * 8);
        let step = extent(9, 3);
        assert_eq!(
            cost.attention_ops(&[step]),
            2 * (dense.elements(step) + 10 * 32 + (11 + 12) * 8 + 2 * 4 * 32)
        );
    }

    #[test]
    fn states_are_multiplied_once_a_token_and_moved_twice_a_step() {
        let config = json!({
            "architectures": ["Qwen3_5ForCausalLM"], "vocab_size": 100, "hidden_size": 8, "intermediate_size": 16,
            "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
            "tie_word_embeddings": true, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
            "linear_key_head_dim": 8, "linear_value_head_dim": 16, "linear_conv_kernel_dim": 4,
        });
        let text = config.to_string();
        let config = ModelConfig::parse(Path::new("config.json"), text.as_bytes());
        let cost = of(&config.expect("it can be parsed"), Dtype::BF16, None);
        let (channels, matrices) = (2 * 2 * 8 + 4 * 16, 4 * 8 * 16);
        assert_eq!(cost.state_bytes, 3 * 4 * (matrices + 3 * channels));
        let step = [extent(10, 2), extent(0, 5)];
        assert_eq!(
            cost.state_ops(&step),
            7 * 3 * (7 * matrices + 2 * 4 * channels)
        );
        let stateless = ModelCost {
            state_bytes: 0,
            ..cost.clone()
        };
        assert_eq!(
            cost.bytes(&step) - stateless.bytes(&step),
            2 * 2 * cost.state_bytes
        );
    }

    #[test]
    fn the_larger_of_reading_and_computing_decides() {
        let step = [extent(0, 3)];
        let peak = |read_bytes_per_s, weight_ops_per_s| Peak {
            read_bytes_per_s,
            weight_ops_per_s,
            attention_ops_per_s: 768.0,
            state_ops_per_s: 10.0,
        };
        let seconds = |peak| cost(None).step_seconds(&step, &peak);
        assert_eq!(seconds(peak(467.2, 1e12)), 10.0);
        assert_eq!(seconds(peak(1e12, 5408.0)), 2.0 + 1.0);
    }

    #[test]
    fn a_model_of_600_million_has_the_floors_that_were_worked_out_by_hand() {
        let qwen = ModelCost {
            layer_elements: 28 * 15_728_640,
            head_elements: 151_936 * 1024,
            matrix_bytes: 2 * (28 * 15_728_640 + 151_936 * 1024),
            expert_bytes: 0,
            experts: None,
            attention: vec![
                AttentionCost {
                    kv_bytes: 2 * 1024 * 2,
                    pair_elements: 2 * 2048,
                    window: None,
                    sparse: None,
                };
                28
            ],
            state_bytes: 0,
            state_ops: 0,
        };
        let peak = Peak {
            read_bytes_per_s: 47e9,
            weight_ops_per_s: 442e9,
            attention_ops_per_s: 442e9,
            state_ops_per_s: 221e9,
        };
        let prefill = 512.0 / qwen.step_seconds(&[extent(0, 512)], &peak);
        assert_eq!(prefill.round(), 470.0);
        let decode = qwen.step_seconds(&[extent(512, 1)], &peak).recip();
        assert_eq!(decode.round(), 38.0);
        let steps = [512, 513].map(|context| qwen.step_seconds(&[extent(context, 1)], &peak));
        let both = qwen.decode_seconds(1, 512, 3, &peak);
        assert!((both - steps.iter().sum::<f64>()).abs() < 1e-12);
        assert_eq!(qwen.decode_seconds(4, 512, 1, &peak), 0.0);
    }
}
