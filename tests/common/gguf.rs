//! The tiny models of the fixtures as GGUF files, as llama.cpp's converter would write them.

#![allow(clippy::unwrap_used)]

use std::path::Path;

use safetensors::SafeTensors;
use serde_json::Value as Json;

#[path = "../../src/model/gguf/tests/writer.rs"]
pub mod writer;

use writer::{File, Tensor, Value};

/// A model in a folder as a GGUF file of f32.
pub fn of_folder(dir: &Path) -> File {
    let config: Json =
        serde_json::from_slice(&std::fs::read(dir.join("config.json")).unwrap()).unwrap();
    let model = Model::new(&config);
    let bytes = std::fs::read(dir.join("model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let mut file = model.metadata();
    let mut names: Vec<&str> = tensors.names();
    names.sort_unstable();
    for name in names {
        let view = tensors.tensor(name).unwrap();
        let values = widened(view.dtype(), view.data());
        let mut shape = view.shape().to_vec();
        if name.ends_with("experts.gate_up_proj") {
            for (part, values) in halves(&shape, &values) {
                shape[1] = view.shape()[1] / 2;
                let name = name.replace("gate_up_proj", part);
                file = file.tensor(Tensor::f32(&stack_name(&name), &shape, &values));
            }
            continue;
        }
        if let Some((stack, expert)) = expert_of(name) {
            // All experts' at the place of the first one's.
            if expert == 0 {
                let values = stacked(&tensors, &stack);
                shape.insert(0, values.len() / shape.iter().product::<usize>());
                file = file.tensor(Tensor::f32(&stack_name(&stack), &shape, &values));
            }
            continue;
        }
        if name.ends_with("experts.down_proj") {
            file = file.tensor(Tensor::f32(&stack_name(name), &shape, &values));
            continue;
        }
        if name.ends_with("kv_b_proj.weight") {
            for (part, shape, values) in model.absorbed(&values) {
                let name = format!(
                    "{}.{part}.weight",
                    file_name(name).split(".self").next().unwrap()
                );
                file = file.tensor(Tensor::f32(&name, &shape, &values));
            }
            continue;
        }
        let values = model.in_file_order(name, view.shape(), values);
        file = file.tensor(Tensor::f32(&file_name(name), view.shape(), &values));
    }
    match model.divisors() {
        Some(divisors) => file.tensor(Tensor::f32(
            "rope_freqs.weight",
            &[divisors.len()],
            &divisors,
        )),
        None => file,
    }
}

/// The name of a stack of experts' matrices: those have no `.weight` in some checkpoints.
fn stack_name(ours: &str) -> String {
    let bare = ours.strip_suffix(".weight").unwrap_or(ours);
    file_name(&format!("{bare}.weight"))
}

/// Gates, and what they let through.
fn halves(shape: &[usize], values: &[f32]) -> [(&'static str, Vec<f32>); 2] {
    let half = shape[1] / 2 * shape[2];
    let of = |skipped: usize| {
        let experts = values.chunks_exact(2 * half);
        let own = experts.flat_map(|expert| &expert[skipped * half..][..half]);
        own.copied().collect()
    };
    [("gate_proj", of(0)), ("up_proj", of(1))]
}

/// Of a matrix of an expert: its name without the expert, and the expert.
fn expert_of(name: &str) -> Option<(String, usize)> {
    let (module, rest) = name.split_once(".experts.")?;
    let (expert, rest) = rest.split_once('.')?;
    Some((format!("{module}.experts.{rest}"), expert.parse().ok()?))
}

/// The matrices of all experts.
fn stacked(tensors: &SafeTensors<'_>, stack: &str) -> Vec<f32> {
    let experts = (0..).map_while(|expert| {
        let name = stack.replace(".experts.", &format!(".experts.{expert}."));
        let view = tensors.tensor(&name).ok()?;
        Some(widened(view.dtype(), view.data()))
    });
    experts.flatten().collect()
}

/// A file of a model without its tensors.
pub fn of_config(config: &Json) -> File {
    Model::new(config).metadata()
}

fn widened(dtype: safetensors::Dtype, bytes: &[u8]) -> Vec<f32> {
    let pairs = bytes
        .chunks_exact(2)
        .map(|b| u16::from_le_bytes([b[0], b[1]]));
    match dtype {
        safetensors::Dtype::F32 => bytes
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
            .collect(),
        safetensors::Dtype::BF16 => pairs.map(|x| half::bf16::from_bits(x).to_f32()).collect(),
        safetensors::Dtype::F16 => pairs.map(|x| half::f16::from_bits(x).to_f32()).collect(),
        other => panic!("{other:?}"),
    }
}

/// The name that a tensor has in a GGUF file.
fn file_name(ours: &str) -> String {
    let names = [
        ("model.embed_tokens", "token_embd"),
        ("model.norm", "output_norm"),
        ("lm_head", "output"),
        ("model.layers.", "blk."),
        ("input_layernorm", "attn_norm"),
        ("self_attn.q_a_proj", "attn_q_a"),
        ("self_attn.q_a_layernorm", "attn_q_a_norm"),
        ("self_attn.q_b_proj", "attn_q_b"),
        ("self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa"),
        ("self_attn.kv_a_layernorm", "attn_kv_a_norm"),
        ("mlp.shared_experts.gate_proj", "ffn_gate_shexp"),
        ("mlp.shared_experts.up_proj", "ffn_up_shexp"),
        ("mlp.shared_experts.down_proj", "ffn_down_shexp"),
        ("mlp.gate.e_score_correction_bias", "exp_probs_b.bias"),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("self_attn.q_norm", "attn_q_norm"),
        ("self_attn.k_norm", "attn_k_norm"),
        ("post_attention_layernorm", "ffn_norm"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
        ("mlp.gate.", "ffn_gate_inp."),
        ("block_sparse_moe.gate.", "ffn_gate_inp."),
        ("mlp.experts.gate_proj", "ffn_gate_exps"),
        ("mlp.experts.up_proj", "ffn_up_exps"),
        ("mlp.experts.down_proj", "ffn_down_exps"),
        ("block_sparse_moe.experts.w1", "ffn_gate_exps"),
        ("block_sparse_moe.experts.w3", "ffn_up_exps"),
        ("block_sparse_moe.experts.w2", "ffn_down_exps"),
    ];
    let rename = |name: String, (from, to): (&str, &str)| name.replace(from, to);
    names.into_iter().fold(ours.to_owned(), rename)
}

struct Model<'a> {
    config: &'a Json,
    architecture: &'static str,
    rope: &'a Json,
}

impl<'a> Model<'a> {
    fn new(config: &'a Json) -> Self {
        let architecture = match config["architectures"][0].as_str().unwrap() {
            "LlamaForCausalLM" | "MistralForCausalLM" | "MixtralForCausalLM" => "llama",
            "Qwen2ForCausalLM" => "qwen2",
            "Qwen3ForCausalLM" => "qwen3",
            "Qwen3MoeForCausalLM" => "qwen3moe",
            "Glm4MoeLiteForCausalLM" => "deepseek2",
            other => panic!("{other}"),
        };
        let scaling = &config["rope_scaling"];
        Self {
            config,
            architecture,
            rope: if scaling.is_null() {
                &config["rope_parameters"]
            } else {
                scaling
            },
        }
    }

    fn size(&self, key: &str) -> usize {
        self.config[key].as_u64().unwrap() as usize
    }

    fn experts(&self) -> Option<usize> {
        let keys = ["num_experts", "num_local_experts", "n_routed_experts"];
        let count = keys.iter().find_map(|key| self.config[*key].as_u64())?;
        Some(count as usize)
    }

    fn renormalises(&self) -> bool {
        let own = self.config["norm_topk_prob"].as_bool();
        own.unwrap_or(self.config["model_type"] == "mixtral")
    }

    fn expert_width(&self) -> usize {
        let own = self.config["moe_intermediate_size"].as_u64();
        own.map_or(self.size("intermediate_size"), |width| width as usize)
    }

    fn head_dim(&self) -> usize {
        match self.config["head_dim"].as_u64() {
            Some(size) => size as usize,
            None => self.size("hidden_size") / self.size("num_attention_heads"),
        }
    }

    fn theta(&self) -> f64 {
        let own = self.rope["rope_theta"].as_f64();
        let default = match self.config["model_type"].as_str() {
            Some("mixtral") => 1e6,
            _ => 1e4,
        };
        own.or(self.config["rope_theta"].as_f64())
            .unwrap_or(default)
    }

    fn metadata(&self) -> File {
        let key = |name: &str| format!("{}.{name}", self.architecture);
        let eps = self.config["rms_norm_eps"].as_f64().unwrap();
        let eos = &self.config["eos_token_id"];
        let eos = eos.as_u64().or(eos[0].as_u64()).unwrap();
        let file = File::default()
            .text("general.architecture", self.architecture)
            .text("general.type", "model")
            .size(&key("block_count"), self.size("num_hidden_layers"))
            .size(&key("context_length"), self.size("max_position_embeddings"))
            .size(&key("embedding_length"), self.size("hidden_size"))
            .size(&key("feed_forward_length"), self.size("intermediate_size"))
            .size(
                &key("attention.head_count"),
                self.size("num_attention_heads"),
            )
            .size(
                &key("attention.head_count_kv"),
                self.size("num_key_value_heads"),
            )
            .size(&key("attention.key_length"), self.head_dim())
            .size(&key("attention.value_length"), self.head_dim())
            .number(&key("attention.layer_norm_rms_epsilon"), eps as f32)
            .number(&key("rope.freq_base"), self.theta() as f32)
            .pair("tokenizer.ggml.eos_token_id", Value::U32(eos as u32));
        let file = match self.experts() {
            None => file,
            Some(count) => file
                .size(&key("expert_count"), count)
                .size(&key("expert_used_count"), self.size("num_experts_per_tok"))
                .size(&key("expert_feed_forward_length"), self.expert_width())
                .pair(
                    &key("expert_weights_norm"),
                    Value::Flag(self.renormalises()),
                ),
        };
        let factor = self.rope["factor"].as_f64().unwrap_or(1.0) as f32;
        let file = match self.architecture {
            "deepseek2" => self.latent(file),
            _ => file,
        };
        match self.rope_type() {
            "linear" => file
                .text(&key("rope.scaling.type"), "linear")
                .number(&key("rope.scaling.factor"), factor),
            "yarn" => {
                let original = self.rope["original_max_position_embeddings"]
                    .as_u64()
                    .unwrap();
                file.text(&key("rope.scaling.type"), "yarn")
                    .number(&key("rope.scaling.factor"), factor)
                    .size(
                        &key("rope.scaling.original_context_length"),
                        original as usize,
                    )
            }
            _ => file,
        }
    }

    /// The keys of latent attention and of the experts beside it.
    fn latent(&self, file: File) -> File {
        let (rope, rank) = (self.size("qk_rope_head_dim"), self.size("kv_lora_rank"));
        let query = self.size("qk_nope_head_dim") + rope;
        let sizes = [
            ("attention.q_lora_rank", self.size("q_lora_rank")),
            ("attention.kv_lora_rank", rank),
            ("attention.key_length_mla", query),
            ("attention.value_length_mla", self.size("v_head_dim")),
            ("rope.dimension_count", rope),
            ("expert_shared_count", self.size("n_shared_experts")),
            ("expert_gating_func", 2),
            ("expert_group_count", 1),
            ("expert_group_used_count", 1),
        ];
        let scale = self.config["routed_scaling_factor"].as_f64().unwrap();
        let file = sizes.into_iter().fold(file, |file, (name, size)| {
            file.size(&format!("deepseek2.{name}"), size)
        });
        file.number("deepseek2.expert_weights_scale", scale as f32)
    }

    /// The ways from latents to keys, transposed, and to values, by head.
    fn absorbed(&self, kv_b: &[f32]) -> [(&'static str, Vec<usize>, Vec<f32>); 2] {
        let (heads, rank) = (self.size("num_attention_heads"), self.size("kv_lora_rank"));
        let (plain, value) = (self.size("qk_nope_head_dim"), self.size("v_head_dim"));
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        for head in kv_b.chunks_exact((plain + value) * rank) {
            let (own_keys, own_values) = head.split_at(plain * rank);
            for i in 0..rank {
                keys.extend(own_keys.iter().skip(i).step_by(rank));
            }
            values.extend_from_slice(own_values);
        }
        [
            ("attn_k_b", vec![heads, rank, plain], keys),
            ("attn_v_b", vec![heads, value, rank], values),
        ]
    }

    fn rope_type(&self) -> &str {
        let rope_type = self.rope["rope_type"].as_str();
        rope_type
            .or(self.rope["type"].as_str())
            .unwrap_or("default")
    }

    /// Files of arch llama hold the two halves of a head of q and k as pairs.
    fn in_file_order(&self, name: &str, shape: &[usize], values: Vec<f32>) -> Vec<f32> {
        if self.architecture != "llama" || !(name.contains("q_proj") || name.contains("k_proj")) {
            return values;
        }
        let (head, width) = (self.head_dim(), values.len() / shape[0]);
        let rows = (0..shape[0]).flat_map(|row| {
            let (h, pair, half) = (row / head, row % head / 2, row % 2);
            let from = h * head + half * head / 2 + pair;
            &values[from * width..(from + 1) * width]
        });
        rows.copied().collect()
    }

    /// The numbers by which the converter divides the frequencies of Llama 3.1.
    fn divisors(&self) -> Option<Vec<f32>> {
        if self.rope_type() != "llama3" {
            return None;
        }
        let number = |key: &str| self.rope[key].as_f64().unwrap();
        let original = number("original_max_position_embeddings");
        let (low, high) = (number("low_freq_factor"), number("high_freq_factor"));
        let divisor = |pair: usize| {
            let exponent = (2 * pair) as f64 / self.head_dim() as f64;
            let wavelength = std::f64::consts::TAU * self.theta().powf(exponent);
            let smooth = ((original / wavelength - low) / (high - low)).clamp(0.0, 1.0);
            (1.0 / ((1.0 - smooth) / number("factor") + smooth)) as f32
        };
        Some((0..self.head_dim() / 2).map(divisor).collect())
    }
}
