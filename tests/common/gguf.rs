//! Converts the fixtures' tiny models to GGUF files, as llama.cpp's converter does.

#![allow(clippy::unwrap_used)]

use std::path::Path;

use safetensors::SafeTensors;
use serde_json::Value as Json;

#[path = "../../crates/gguf/src/tests/writer.rs"]
pub mod writer;

#[path = "gguf_families.rs"]
mod families;
#[path = "gguf_keys.rs"]
mod keys;

use families::Source;
use writer::{File, Tensor};

/// How files store the up projections from latents to keys and values (`kv_b_proj`).
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Latents {
    /// Two tensors, for keys and for values, as MLA with absorbed projections needs them.
    Absorbed,
    /// One matrix, as in checkpoints and older files.
    Whole,
}

/// Converts the model in a folder to a GGUF file of f32 tensors, except for MXFP4 blocks.
pub fn of_folder(dir: &Path) -> File {
    of_folder_with(dir, Latents::Absorbed)
}

/// Like [`of_folder`], with the up projections from latents in the given form.
pub fn of_folder_with(dir: &Path, latents: Latents) -> File {
    let config: Json =
        serde_json::from_slice(&std::fs::read(dir.join("config.json")).unwrap()).unwrap();
    let model = Model {
        latents,
        ..Model::new(&config)
    };
    let bytes = std::fs::read(dir.join("model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let mut names: Vec<&str> = tensors.names();
    names.sort_unstable();
    let file = names.into_iter().fold(model.metadata(), |file, name| {
        let converted = tensors_of(&model, &tensors, name);
        converted.into_iter().fold(file, File::tensor)
    });
    rope_factors(&model).fold(file, |file, (name, divisors)| {
        file.tensor(Tensor::f32(&name, &[divisors.len()], &divisors))
    })
}

/// The GGUF tensors that the converter makes of one tensor of a checkpoint.
fn tensors_of(model: &Model<'_>, tensors: &SafeTensors<'_>, name: &str) -> Vec<Tensor> {
    let view = tensors.tensor(name).unwrap();
    let mut converted = Vec::new();
    if let Some(stem) = name.strip_suffix("_blocks") {
        let scales = tensors.tensor(&format!("{stem}_scales")).unwrap();
        converted.extend(families::mxfp4(
            name,
            view.shape(),
            view.data(),
            scales.data(),
        ));
    }
    let decoder_name = name.strip_prefix("language_model.").unwrap_or(name);
    let decoder_name = decoder_name.replacen("model.language_model.", "model.", 1);
    let name = decoder_name.as_str();
    if model.leaves_out(name) {
        return converted;
    }
    let values = model.with_norm_offsets(name, widened(view.dtype(), view.data()));
    let source = Source {
        name,
        shape: view.shape(),
        values: values.clone(),
    };
    let by_family = match model.architecture {
        "gpt-oss" => families::gpt_oss(&source),
        "gemma4" => families::gemma4(&source),
        _ => families::delta_net(model, &source),
    };
    if let Some(by_family) = by_family {
        converted.extend(by_family);
    } else if let Some(experts) = experts_of(model, tensors, &source) {
        converted.extend(experts);
    } else if name.ends_with("kv_b_proj.weight") && model.latents == Latents::Absorbed {
        converted.extend(
            model
                .absorbed(&values)
                .into_iter()
                .map(|(part, shape, values)| {
                    let file_name = model.file_name(name);
                    let start = file_name.split(".attn").next().unwrap();
                    Tensor::f32(&format!("{start}.{part}.weight"), &shape, &values)
                }),
        );
    } else {
        let values = model.in_file_order(name, view.shape(), values);
        converted.push(Tensor::f32(
            &model.file_name(name),
            &without_ones(view.shape()),
            &values,
        ));
    }
    converted
}

/// The stacks that replace an expert's tensor; `None` if the tensor belongs to no expert.
fn experts_of(
    model: &Model<'_>,
    tensors: &SafeTensors<'_>,
    source: &Source<'_>,
) -> Option<Vec<Tensor>> {
    let (name, values) = (source.name, &source.values);
    let mut shape = without_ones(source.shape);
    if name.ends_with("experts.gate_up_proj") {
        let parts = halves(&shape, values).map(|(part, values)| {
            shape[1] = source.shape[1] / 2;
            let name = name.replace("gate_up_proj", part);
            Tensor::f32(&model.stack_name(&name), &shape, &values)
        });
        return Some(parts.into());
    }
    if let Some((stack, expert)) = expert_of(name) {
        // The stack of all experts is written in place of the first expert's matrix.
        if expert != 0 {
            return Some(Vec::new());
        }
        let values = stacked(tensors, &stack);
        shape.insert(0, values.len() / shape.iter().product::<usize>());
        let stack = model.stack_name(&stack);
        return Some(vec![Tensor::f32(&stack, &shape, &values)]);
    }
    let is_down = name.ends_with("experts.down_proj");
    is_down.then(|| vec![Tensor::f32(&model.stack_name(name), &shape, values)])
}

fn without_ones(shape: &[usize]) -> Vec<usize> {
    shape.iter().copied().filter(|size| *size > 1).collect()
}

/// The tensors with divisors of RoPE frequencies.
fn rope_factors(model: &Model<'_>) -> impl Iterator<Item = (String, Vec<f32>)> {
    let both = ["short", "long"].into_iter().filter_map(|length| {
        let divisors = model.rope[format!("{length}_factor")].as_array()?;
        let divisors = divisors
            .iter()
            .map(|number| number.as_f64().unwrap() as f32);
        Some((
            format!("rope_factors_{length}.weight"),
            divisors.collect::<Vec<f32>>(),
        ))
    });
    let single = model.divisors();
    let single = single.map(|divisors| ("rope_freqs.weight".to_owned(), divisors));
    both.chain(single)
}

/// The gate and up projections of a stack of experts, split.
fn halves(shape: &[usize], values: &[f32]) -> [(&'static str, Vec<f32>); 2] {
    let half = shape[1] / 2 * shape[2];
    let half_at = |skipped: usize| {
        let experts = values.chunks_exact(2 * half);
        let rows = experts.flat_map(|expert| &expert[skipped * half..][..half]);
        rows.copied().collect()
    };
    [("gate_proj", half_at(0)), ("up_proj", half_at(1))]
}

/// For an expert's matrix: the name without the expert's number, and that number.
fn expert_of(name: &str) -> Option<(String, usize)> {
    let (module, rest) = name.split_once(".experts.")?;
    let (expert, rest) = rest.split_once('.')?;
    Some((format!("{module}.experts.{rest}"), expert.parse().ok()?))
}

fn stacked(tensors: &SafeTensors<'_>, stack: &str) -> Vec<f32> {
    let experts = (0..).map_while(|expert| {
        let name = stack.replace(".experts.", &format!(".experts.{expert}."));
        let view = tensors.tensor(&name).ok()?;
        Some(widened(view.dtype(), view.data()))
    });
    experts.flatten().collect()
}

/// A model's GGUF file without tensors.
pub fn of_config(config: &Json) -> File {
    Model::new(config).metadata()
}

/// The elements of a tensor of floats, as f32.
pub fn widened(dtype: safetensors::Dtype, bytes: &[u8]) -> Vec<f32> {
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

/// Parts of tensor names in checkpoints, and their replacements in GGUF files.
const NAMES: [(&str, &str); 57] = [
    ("model.embed_tokens", "token_embd"),
    ("model.embedding_norm", "token_embd_norm"),
    ("model.norm", "output_norm"),
    ("lm_head", "output"),
    ("model.layers.", "blk."),
    ("input_layernorm", "attn_norm"),
    ("operator_norm", "attn_norm"),
    ("self_attn.q_a_proj", "attn_q_a"),
    ("self_attn.q_a_layernorm", "attn_q_a_norm"),
    ("self_attn.q_b_proj", "attn_q_b"),
    ("self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa"),
    ("self_attn.kv_a_layernorm", "attn_kv_a_norm"),
    ("self_attn.kv_b_proj", "attn_kv_b"),
    ("mlp.shared_experts.gate_proj", "ffn_gate_shexp"),
    ("mlp.shared_experts.up_proj", "ffn_up_shexp"),
    ("mlp.shared_experts.down_proj", "ffn_down_shexp"),
    ("mlp.shared_expert.gate_proj", "ffn_gate_shexp"),
    ("mlp.shared_expert.up_proj", "ffn_up_shexp"),
    ("mlp.shared_expert.down_proj", "ffn_down_shexp"),
    ("mlp.shared_expert_gate", "ffn_gate_inp_shexp"),
    ("mlp.gate.e_score_correction_bias", "exp_probs_b.bias"),
    ("feed_forward.expert_bias", "exp_probs_b.bias"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.out_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("self_attn.q_layernorm", "attn_q_norm"),
    ("self_attn.k_layernorm", "attn_k_norm"),
    ("self_attn.sinks", "attn_sinks.weight"),
    ("post_attention_layernorm", "ffn_norm"),
    ("self_attn.qkv_proj", "attn_qkv"),
    ("mlp.gate_up_proj", "ffn_up"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
    ("feed_forward.w1", "ffn_gate"),
    ("feed_forward.w3", "ffn_up"),
    ("feed_forward.w2", "ffn_down"),
    ("mlp.gate.", "ffn_gate_inp."),
    ("mlp.router.", "ffn_gate_inp."),
    ("feed_forward.gate.", "ffn_gate_inp."),
    ("block_sparse_moe.gate.", "ffn_gate_inp."),
    ("mlp.experts.gate_proj", "ffn_gate_exps"),
    ("mlp.experts.up_proj", "ffn_up_exps"),
    ("mlp.experts.down_proj", "ffn_down_exps"),
    ("block_sparse_moe.experts.w1", "ffn_gate_exps"),
    ("block_sparse_moe.experts.w3", "ffn_up_exps"),
    ("block_sparse_moe.experts.w2", "ffn_down_exps"),
    ("feed_forward.experts.w1", "ffn_gate_exps"),
    ("feed_forward.experts.w3", "ffn_up_exps"),
    ("feed_forward.experts.w2", "ffn_down_exps"),
    ("conv.in_proj", "shortconv.in_proj"),
    (".conv.conv", ".shortconv.conv"),
    ("conv.out_proj", "shortconv.out_proj"),
];

struct Model<'a> {
    config: &'a Json,
    architecture: &'static str,
    rope: &'a Json,
    latents: Latents,
}

impl<'a> Model<'a> {
    fn new(config: &'a Json) -> Self {
        let architecture = match config["architectures"][0].as_str().unwrap() {
            "LlamaForCausalLM" | "MistralForCausalLM" | "MixtralForCausalLM" => "llama",
            "Qwen2ForCausalLM" => "qwen2",
            "Qwen3ForCausalLM" => "qwen3",
            "Qwen3MoeForCausalLM" => "qwen3moe",
            "Qwen3VLForConditionalGeneration" => "qwen3vl",
            "DeepseekV2ForCausalLM" | "DeepseekV3ForCausalLM" | "Glm4MoeLiteForCausalLM" => {
                "deepseek2"
            }
            "Qwen3_5ForCausalLM" | "Qwen3_5ForConditionalGeneration" => "qwen35",
            "Qwen3_5MoeForConditionalGeneration" => "qwen35moe",
            "Qwen3NextForCausalLM" => "qwen3next",
            "Lfm2ForCausalLM" => "lfm2",
            "Lfm2MoeForCausalLM" => "lfm2moe",
            "GptOssForCausalLM" => "gpt-oss",
            "Gemma2ForCausalLM" => "gemma2",
            "Gemma3ForCausalLM" | "Gemma3ForConditionalGeneration" => "gemma3",
            "Gemma4ForCausalLM" | "Gemma4ForConditionalGeneration" => "gemma4",
            "GraniteForCausalLM" => "granite",
            "Olmo2ForCausalLM" => "olmo2",
            "SmolLM3ForCausalLM" => "smollm3",
            "Phi3ForCausalLM" => "phi3",
            "Ministral3ForCausalLM" | "Mistral3ForConditionalGeneration" => "mistral3",
            other => panic!("{other}"),
        };
        let config = match &config["text_config"] {
            Json::Null => config,
            inner => inner,
        };
        let scaling = &config["rope_scaling"];
        let parameters = &config["rope_parameters"];
        Self {
            config,
            architecture,
            rope: match (scaling, &parameters["full_attention"]) {
                (Json::Null, Json::Null) => parameters,
                (Json::Null, full) => full,
                (scaling, _) => scaling,
            },
            latents: Latents::Absorbed,
        }
    }

    /// The name in GGUF files of the tensor with this name in checkpoints.
    fn file_name(&self, name: &str) -> String {
        let rename = |name: String, (from, to): (&str, &str)| name.replace(from, to);
        let name = if self.norms_outputs() {
            families::GEMMA.into_iter().fold(name.to_owned(), rename)
        } else {
            name.to_owned()
        };
        let name = NAMES.into_iter().fold(name, rename);
        if self.has_delta_nets() || self.architecture == "gpt-oss" {
            name.replace("ffn_norm", "post_attention_norm")
        } else {
            name
        }
    }

    /// The name of a stack of experts' matrices, which have no `.weight` in some checkpoints.
    fn stack_name(&self, name: &str) -> String {
        let bare = name.strip_suffix(".weight").unwrap_or(name);
        self.file_name(&format!("{bare}.weight"))
    }

    /// Whether the outputs of attention and MLP are normed.
    fn norms_outputs(&self) -> bool {
        self.is_gemma() || self.architecture == "olmo2"
    }

    fn is_gemma(&self) -> bool {
        self.architecture.starts_with("gemma")
    }

    fn has_delta_nets(&self) -> bool {
        ["qwen35", "qwen35moe", "qwen3next"].contains(&self.architecture)
    }

    /// Whether a tensor is left out: MXFP4 blocks are written separately, layers from `num_hidden_layers` on are MTP
    /// layers, and files of some architectures have no biases.
    fn leaves_out(&self, name: &str) -> bool {
        let layer = name.strip_prefix("model.layers.");
        let layer = layer.and_then(|rest| rest.split('.').next()?.parse().ok());
        let has_no_biases = self.has_delta_nets() || self.architecture == "deepseek2";
        layer.is_some_and(|layer: usize| layer >= self.size("num_hidden_layers"))
            || name.ends_with("_blocks")
            || name.ends_with("_scales")
            || (has_no_biases && name.ends_with(".bias"))
    }

    /// Checkpoints of some families store norm weights as offsets from one; GGUF files store the sum.
    fn with_norm_offsets(&self, name: &str, mut values: Vec<f32>) -> Vec<f32> {
        let is_norm = name.ends_with("norm.weight") && !name.ends_with("linear_attn.norm.weight");
        let offsets = self.has_delta_nets() || ["gemma2", "gemma3"].contains(&self.architecture);
        if offsets && is_norm {
            values.iter_mut().for_each(|value| *value += 1.0);
        }
        values
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
        let configured = self.config["norm_topk_prob"].as_bool();
        configured.unwrap_or(self.config["model_type"] == "mixtral")
    }

    fn expert_width(&self) -> usize {
        let configured = self.config["moe_intermediate_size"].as_u64();
        configured.map_or(self.size("intermediate_size"), |width| width as usize)
    }

    fn head_dim(&self) -> usize {
        match self.config["head_dim"].as_u64() {
            Some(size) => size as usize,
            None => self.size("hidden_size") / self.size("num_attention_heads"),
        }
    }

    fn theta(&self) -> f64 {
        let configured = self.rope["rope_theta"].as_f64();
        let default = match self.config["model_type"].as_str() {
            Some("mixtral" | "lfm2" | "lfm2_moe" | "gemma3_text" | "gemma4_text") => 1e6,
            Some("smollm3") => 2e6,
            _ => 1e4,
        };
        configured
            .or(self.config["rope_theta"].as_f64())
            .unwrap_or(default)
    }

    /// The up projections from latents to keys, transposed, and to values, by head.
    fn absorbed(&self, kv_b: &[f32]) -> [(&'static str, Vec<usize>, Vec<f32>); 2] {
        let (heads, rank) = (self.size("num_attention_heads"), self.size("kv_lora_rank"));
        let (nope, value) = (self.size("qk_nope_head_dim"), self.size("v_head_dim"));
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        for head in kv_b.chunks_exact((nope + value) * rank) {
            let (head_keys, head_values) = head.split_at(nope * rank);
            for i in 0..rank {
                keys.extend(head_keys.iter().skip(i).step_by(rank));
            }
            values.extend_from_slice(head_values);
        }
        [
            ("attn_k_b", vec![heads, rank, nope], keys),
            ("attn_v_b", vec![heads, value, rank], values),
        ]
    }

    fn rope_type(&self) -> &str {
        let rope_type = self.rope["rope_type"].as_str();
        rope_type
            .or(self.rope["type"].as_str())
            .unwrap_or("default")
    }

    /// Files of architecture `llama` and similar ones interleave the two halves of each q and k head as pairs.
    fn in_file_order(&self, name: &str, shape: &[usize], values: Vec<f32>) -> Vec<f32> {
        let paired = ["llama", "granite", "smollm3", "mistral3"];
        if !paired.contains(&self.architecture)
            || !(name.contains("q_proj") || name.contains("k_proj"))
        {
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

    /// The divisors of rope frequencies of Llama 3.1 and of Gemma 4's layers with full attention.
    fn divisors(&self) -> Option<Vec<f32>> {
        if self.architecture == "gemma4" {
            // With partial rotary, the remaining pairs do not rotate.
            let part = self.rope["partial_rotary_factor"].as_f64().unwrap_or(0.25);
            let pairs = self.size("global_head_dim") / 2;
            let n_rotated = (part * pairs as f64) as usize;
            let divisor = |pair| if pair < n_rotated { 1.0 } else { 1e30 };
            return Some((0..pairs).map(divisor).collect());
        }
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
