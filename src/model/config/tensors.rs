//! The tensors of a model: names, shapes, order and use.

use std::collections::HashSet;

use super::experts::{ExpertsConfig, mlp_tensors};
use super::gemma4::LayerInputs;
use super::latent::LatentConfig;
use super::{ModelConfig, recurrent};
use crate::layer_spec::{BlockNorms, QkNorm};
use crate::tensor_spec::TensorSpec;
use souffleur_kernels::dtype::MatrixRole;
use souffleur_kernels::tensor_view::RowOrder;

impl ModelConfig {
    /// All tensors of the model, in the order of the forward pass. A tensor that is read twice is listed twice.
    pub fn tensors(&self) -> Vec<TensorSpec> {
        let hidden = self.hidden_size;
        let mut specs = vec![TensorSpec::new(
            "model.embed_tokens.weight",
            &[self.vocab_size, hidden],
        )];
        if let Some(inputs) = self.layer_inputs() {
            let width = self.num_hidden_layers * inputs.width;
            for (name, shape) in [
                ("embed_tokens_per_layer", &[inputs.vocab_size, width][..]),
                ("per_layer_model_projection", &[width, hidden]),
                ("per_layer_projection_norm", &[inputs.width]),
            ] {
                specs.push(TensorSpec::new(format!("model.{name}.weight"), shape));
            }
        }
        for layer in 0..self.num_hidden_layers {
            let name = |name: &str| format!("model.layers.{layer}.{name}");
            if self.norms().precede() {
                specs.push(TensorSpec::new(name("input_layernorm.weight"), &[hidden]));
            }
            if let Some(states) = self.states_in(layer) {
                specs.extend(states.tensors(layer, hidden));
                self.push_feed_forward(layer, &mut specs);
                continue;
            }
            let attention = match &self.latent {
                Some(latent) => latent.tensors(self),
                None => self.attention_tensors(layer),
            };
            let attention = attention.into_iter();
            specs.extend(
                attention.map(|(part, shape)| {
                    TensorSpec::new(name(&format!("self_attn.{part}")), &shape)
                }),
            );
            self.push_feed_forward(layer, &mut specs);
        }
        specs.push(TensorSpec::new("model.norm.weight", &[hidden]));
        if !self.tie_word_embeddings {
            specs.push(TensorSpec::new(
                "lm_head.weight",
                &[self.vocab_size, hidden],
            ));
        }
        specs
    }

    fn push_feed_forward(&self, layer: usize, specs: &mut Vec<TensorSpec>) {
        let (hidden, mlp) = (self.hidden_size, self.intermediate_size);
        let named = |name: &str, shape: &[usize]| {
            TensorSpec::new(format!("model.layers.{layer}.{name}"), shape)
        };
        specs.push(named("post_attention_layernorm.weight", &[hidden]));
        if self.norms() == BlockNorms::Around {
            specs.push(named("pre_feedforward_layernorm.weight", &[hidden]));
        }
        if self.norms().follow() {
            specs.push(named("post_feedforward_layernorm.weight", &[hidden]));
        }
        if self.gemma.is_some() {
            self.push_gemma4(layer, specs);
            let mlp = self.intermediate_in(layer);
            let module = format!("model.layers.{layer}.mlp");
            specs.extend(mlp_tensors(&module, hidden, mlp, self.bias.mlp));
            return;
        }
        let shared = self.recurrent.as_ref().and_then(|own| own.shared_expert);
        let (module, width) = match self.experts.as_ref().filter(|all| all.are_in(layer)) {
            None => ("mlp", mlp),
            Some(experts) => {
                specs.extend(experts.tensors(layer, hidden, self.bias.mlp));
                let Some(width) = shared else { return };
                specs.push(named("mlp.shared_expert_gate.weight", &[1, hidden]));
                ("mlp.shared_expert", width)
            }
        };
        let bias = self.bias.mlp;
        specs.extend(mlp_tensors(
            &format!("model.layers.{layer}.{module}"),
            hidden,
            width,
            bias,
        ));
    }

    /// The tensors of a Gemma 4 layer in addition to those of Gemma 3.
    fn push_gemma4(&self, layer: usize, specs: &mut Vec<TensorSpec>) {
        if self.gemma4().is_none() {
            return;
        }
        let hidden = self.hidden_size;
        let mut push = |name: &str, shape: &[usize]| {
            specs.push(TensorSpec::new(
                format!("model.layers.{layer}.{name}"),
                shape,
            ));
        };
        push("layer_scalar", &[1]);
        if let Some(inputs) = self.layer_inputs() {
            push("per_layer_input_gate.weight", &[inputs.width, hidden]);
            push("per_layer_projection.weight", &[hidden, inputs.width]);
            push("post_per_layer_input_norm.weight", &[hidden]);
        }
        if let Some(experts) = &self.experts {
            push("post_feedforward_layernorm_1.weight", &[hidden]);
            push("pre_feedforward_layernorm_2.weight", &[hidden]);
            push("post_feedforward_layernorm_2.weight", &[hidden]);
            specs.extend(experts.tensors(layer, hidden, false));
        }
    }

    pub fn layer_inputs(&self) -> Option<LayerInputs> {
        self.gemma4()?.inputs
    }

    fn attention_tensors(&self, layer: usize) -> Vec<(String, Vec<usize>)> {
        let (kv_heads, head_dim) = self.heads_in(layer);
        let (hidden, q) = (self.hidden_size, self.num_attention_heads * head_dim);
        let (kv, keeps_kv) = (kv_heads * head_dim, self.kv_source(layer) == layer);
        let mut specs = Vec::new();
        let mut push = |name: String, shape: &[usize]| specs.push((name, shape.to_vec()));
        let gate = ("gate_proj", q);
        let gate = self.gates_attention().then_some(gate);
        let parts = [
            ("q_proj", q),
            ("k_proj", kv),
            (self.value_projection(layer), kv),
        ];
        let parts = &parts[..if keeps_kv { 3 } else { 1 }];
        for (name, width) in parts.iter().copied().chain(gate) {
            push(format!("{name}.weight"), &[width, hidden]);
            if self.bias.qkv {
                push(format!("{name}.bias"), &[width]);
            }
        }
        let norms = match self.qk_norm {
            QkNorm::None => None,
            QkNorm::Heads => Some([head_dim, head_dim]),
            QkNorm::Whole => Some([q, kv]),
        };
        if let Some([q, kv]) = norms {
            push("q_norm.weight".to_owned(), &[q]);
            if keeps_kv {
                push("k_norm.weight".to_owned(), &[kv]);
            }
        }
        if self.sinks {
            push("sinks".to_owned(), &[self.num_attention_heads]);
        }
        push("o_proj.weight".to_owned(), &[hidden, q]);
        if self.bias.o {
            push("o_proj.bias".to_owned(), &[hidden]);
        }
        specs
    }

    /// Name of the value projection: `k_proj` if a layer's keys are also its values.
    pub fn value_projection(&self, layer: usize) -> &'static str {
        let of_keys = self.gemma4().is_some_and(|gemma4| gemma4.keys_are_values);
        if of_keys && self.windows[layer].is_none() {
            "k_proj"
        } else {
            "v_proj"
        }
    }

    /// The order of a tensor's rows in checkpoints.
    pub fn row_order(&self, tensor: &str) -> RowOrder {
        match &self.latent {
            Some(latent) => latent.row_order(tensor),
            None => RowOrder::AsNumbered,
        }
    }

    pub fn role(&self, tensor: &str) -> MatrixRole {
        let gives_logits = if self.tie_word_embeddings {
            "model.embed_tokens.weight"
        } else {
            "lm_head.weight"
        };
        if tensor == gives_logits {
            return MatrixRole::Logits;
        }
        let is_router = |experts: &ExpertsConfig| {
            let end = format!(".{}.weight", experts.names.router);
            tensor.ends_with(&end) || tensor.ends_with(".shared_expert_gate.weight")
        };
        let is_state_gate = recurrent::GATES.iter().any(|gate| tensor.ends_with(gate));
        if is_state_gate || self.experts.as_ref().is_some_and(is_router) {
            MatrixRole::Router
        } else {
            MatrixRole::Inner
        }
    }

    /// Number of parameters. A projection that keys and values share counts once.
    pub fn parameters(&self) -> u64 {
        let tensors = self.tensors();
        let mut names = HashSet::new();
        let once = tensors.iter().filter(|spec| names.insert(&spec.name));
        once.map(TensorSpec::elements).sum()
    }
}

impl LatentConfig {
    fn tensors(&self, config: &ModelConfig) -> Vec<(String, Vec<usize>)> {
        let (hidden, heads) = (config.hidden_size, config.num_attention_heads);
        let (q, v) = (heads * self.query_dim(), heads * self.value_dim);
        let mut specs = Vec::new();
        let mut push = |name: &str, shape: &[usize]| specs.push((name.to_owned(), shape.to_vec()));
        match self.query_rank {
            None => push("q_proj.weight", &[q, hidden]),
            Some(rank) => {
                push("q_a_proj.weight", &[rank, hidden]);
                if config.bias.qkv {
                    push("q_a_proj.bias", &[rank]);
                }
                push("q_a_layernorm.weight", &[rank]);
                push("q_b_proj.weight", &[q, rank]);
            }
        }
        push("kv_a_proj_with_mqa.weight", &[self.key_dim(), hidden]);
        if config.bias.qkv {
            push("kv_a_proj_with_mqa.bias", &[self.key_dim()]);
        }
        push("kv_a_layernorm.weight", &[self.rank]);
        if self.split {
            push("k_b_proj.weight", &[heads * self.rank, self.plain_dim]);
            push("v_b_proj.weight", &[v, self.rank]);
        } else {
            push(
                "kv_b_proj.weight",
                &[heads * (self.plain_dim + self.value_dim), self.rank],
            )
        }
        push("o_proj.weight", &[hidden, v]);
        if config.bias.o {
            push("o_proj.bias", &[hidden]);
        }
        specs
    }
}
