//! Roofline floors: the least time of a step, if it reads every weight once and computes every product once.
//!
//! A floor counts the matrices of the layers, the output projection (for sampled tokens only), attention's two
//! products, the products with recurrent states, reads of cached keys and values, and reads and writes of states. Only
//! chosen experts count: a step reads the expected number of distinct experts if all were equally likely. Norms,
//! activations, sampling and embedding lookups are omitted, so that a floor may be too low but not too high. A sparse
//! query (double sparsity) reads all labels, and the K/V of the chosen tokens, as if all heads chose the same tokens.

mod attention;
#[cfg(test)]
mod tests;

use souffleur::executor::cpu::LoadedMatrix;
use souffleur::kernels::cpu::WeightProduct;
use souffleur::kernels::dtype::MatrixRole;
use souffleur::kernels::sparsity::DoubleSparsity;
use souffleur::model::config::ModelConfig;
use souffleur::model::config::experts::ExpertsConfig;
use souffleur::state::pool::kv_layout::KvLayout;

use self::attention::{AttentionCost, SparseCost, label_bytes};

const PRODUCTS: [WeightProduct; 4] = [
    WeightProduct::F32,
    WeightProduct::Bf16,
    WeightProduct::Int8,
    WeightProduct::Blocks,
];
const OPS_PER_ELEMENT: u64 = 2;

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ByProduct<T> {
    pub f32: T,
    pub bf16: T,
    pub int8: T,
    pub blocks: T,
}

impl<T> ByProduct<T> {
    fn of(&mut self, product: WeightProduct) -> &mut T {
        match product {
            WeightProduct::F32 => &mut self.f32,
            WeightProduct::Bf16 => &mut self.bf16,
            WeightProduct::Int8 => &mut self.int8,
            WeightProduct::Blocks => &mut self.blocks,
        }
    }
}

impl<T: Copy> ByProduct<T> {
    pub fn all(number: T) -> Self {
        Self {
            f32: number,
            bf16: number,
            int8: number,
            blocks: number,
        }
    }

    fn to_array(self) -> [T; 4] {
        [self.f32, self.bf16, self.int8, self.blocks]
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct ModelCost {
    /// Elements of the layers' matrices, with only the experts that one token chooses.
    layer_elements: ByProduct<u64>,
    /// Elements of the output projection.
    head_elements: ByProduct<u64>,
    /// Bytes of the layers' and the output projection's matrices, without experts, with scales if quantised.
    matrix_bytes: u64,
    /// Bytes of all experts' matrices and their scales.
    expert_bytes: u64,
    experts: Option<ExpertsConfig>,
    attention: Vec<AttentionCost>,
    /// Bytes of the recurrent states of one sequence.
    state_bytes: u64,
    /// Operations of one token with recurrent states.
    state_ops: u64,
}

/// A sequence in a step; the logits of its last token are sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sequence {
    /// Tokens whose keys and values are cached.
    pub cached_tokens: u64,
    pub new_tokens: u64,
}

/// The machine's highest rates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Peak {
    pub read_bytes_per_s: f64,
    pub weight_ops_per_s: ByProduct<f64>,
    /// Operations per second in the data type of attention.
    pub attention_ops_per_s: f64,
    /// Operations per second in f32, the data type of products with states.
    pub state_ops_per_s: f64,
}

impl ModelCost {
    /// Counts a model's matrices, whose size `bytes` returns, and the keys, values and states of its layers.
    pub fn new(
        config: &ModelConfig,
        matrices: &[LoadedMatrix],
        bytes: fn(&LoadedMatrix) -> u64,
        layout: &KvLayout,
    ) -> Self {
        let mut layer_elements = ByProduct::<u64>::default();
        let mut head_elements = ByProduct::<u64>::default();
        let mut matrix_bytes = 0;
        let (mut expert_elements, mut expert_bytes) = (ByProduct::<u64>::default(), 0);
        let is_expert = |name: &str| {
            config
                .experts
                .as_ref()
                .is_some_and(|all| all.has_tensor(name))
        };
        for matrix in matrices {
            let gives_logits = config.role(&matrix.name) == MatrixRole::Logits;
            let (elements, all_bytes) = match &matrix.name {
                _ if gives_logits => (&mut head_elements, &mut matrix_bytes),
                name if !name.starts_with("model.layers.") => continue,
                name if is_expert(name) => (&mut expert_elements, &mut expert_bytes),
                _ => (&mut layer_elements, &mut matrix_bytes),
            };
            *elements.of(matrix.product) += matrix.elements;
            *all_bytes += bytes(matrix);
        }
        if let Some(experts) = &config.experts {
            for product in PRODUCTS {
                let all = *expert_elements.of(product);
                *layer_elements.of(product) +=
                    all / experts.count() as u64 * experts.routing.n_used as u64;
            }
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
            head_elements,
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

    /// The cost if queries are sparse in the layers of `layout` that have labels.
    pub fn sparse(mut self, layout: &KvLayout, rules: &DoubleSparsity, n_heads: usize) -> Self {
        let pages = (0..layout.layers().len()).filter_map(|layer| layout.read_by(layer));
        for (cost, pages) in self.attention.iter_mut().zip(pages) {
            cost.sparse = (pages.labels > 0).then(|| SparseCost {
                first: rules.first_position() as u64,
                chosen_tokens: rules.tokens as u64,
                label_bytes: label_bytes(pages),
                label_elements: (n_heads * pages.labels) as u64,
            });
        }
        self
    }

    /// The operations of products with weights, by kind of product.
    pub fn weight_ops(&self, step: &[Sequence]) -> [u64; 4] {
        let tokens = new_tokens(step);
        let (layers, head) = (
            self.layer_elements.to_array(),
            self.head_elements.to_array(),
        );
        std::array::from_fn(|kind| {
            OPS_PER_ELEMENT * (layers[kind] * tokens + head[kind] * step.len() as u64)
        })
    }

    fn weight_seconds(&self, step: &[Sequence], peak: &Peak) -> f64 {
        let ops = self.weight_ops(step).into_iter();
        let rates = peak.weight_ops_per_s.to_array();
        ops.zip(rates).map(|(ops, rate)| ops as f64 / rate).sum()
    }

    pub fn attention_ops(&self, step: &[Sequence]) -> u64 {
        let ops = |sequence: &Sequence| -> u64 {
            let layers = self.attention.iter();
            layers.map(|layer| layer.elements(*sequence)).sum()
        };
        OPS_PER_ELEMENT * step.iter().map(ops).sum::<u64>()
    }

    pub fn state_ops(&self, step: &[Sequence]) -> u64 {
        self.state_ops * new_tokens(step)
    }

    /// Bytes of weights, keys and values that the step reads, and of states, which it reads and writes. Keys and values
    /// shared by sequences count once per sequence.
    pub fn bytes(&self, step: &[Sequence]) -> u64 {
        let kv = |sequence: &Sequence| -> u64 {
            let layers = self.attention.iter();
            layers.map(|layer| layer.bytes(*sequence)).sum()
        };
        let tokens = new_tokens(step);
        let states = 2 * self.state_bytes * step.len() as u64;
        self.matrix_bytes + self.chosen_bytes(tokens) + step.iter().map(kv).sum::<u64>() + states
    }

    fn chosen_bytes(&self, tokens: u64) -> u64 {
        let share = self.experts.as_ref().map_or(0.0, |experts| {
            experts.expected(tokens as f64) / experts.count() as f64
        });
        (self.expert_bytes as f64 * share) as u64
    }

    /// The least time of the step in seconds: of reading or of computing, whichever takes longer.
    pub fn step_seconds(&self, step: &[Sequence], peak: &Peak) -> f64 {
        let reading = self.bytes(step) as f64 / peak.read_bytes_per_s;
        let computing = self.weight_seconds(step, peak)
            + self.attention_ops(step) as f64 / peak.attention_ops_per_s
            + self.state_ops(step) as f64 / peak.state_ops_per_s;
        reading.max(computing)
    }

    /// The least time in seconds from the first to the last output token, if `streams` streams decode together.
    pub fn decode_seconds(
        &self,
        streams: u64,
        prompt_tokens: u64,
        output_tokens: u64,
        peak: &Peak,
    ) -> f64 {
        let step = |generated: u64| {
            let sequence = Sequence {
                cached_tokens: prompt_tokens + generated,
                new_tokens: 1,
            };
            self.step_seconds(&vec![sequence; streams as usize], peak)
        };
        (0..output_tokens.saturating_sub(1)).map(step).sum()
    }
}

fn new_tokens(step: &[Sequence]) -> u64 {
    step.iter().map(|sequence| sequence.new_tokens).sum()
}
