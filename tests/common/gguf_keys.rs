//! The GGUF metadata that llama.cpp's converter writes for a model.

use super::writer::{self, File, Value};
use super::{Latents, Model};

impl Model<'_> {
    /// A GGUF file with the metadata and no tensors.
    pub fn metadata(&self) -> File {
        let file = self.expert_keys(self.common_keys());
        let file = self.head_keys(file);
        self.rope_keys(self.family_keys(file))
    }

    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }

    fn common_keys(&self) -> File {
        let key = |name: &str| self.key(name);
        let eps = ["rms_norm_eps", "norm_eps"].map(|key| self.config[key].as_f64());
        let eps = eps.into_iter().flatten().next().unwrap();
        let eos = &self.config["eos_token_id"];
        let eos = eos.as_u64().or(eos[0].as_u64()).unwrap();
        File::default()
            .text("general.architecture", self.architecture)
            .text("general.type", "model")
            .size(&key("block_count"), self.size("num_hidden_layers"))
            .size(&key("context_length"), self.size("max_position_embeddings"))
            .size(&key("embedding_length"), self.size("hidden_size"))
            .pair(&key("feed_forward_length"), self.feed_forwards())
            .size(
                &key("attention.head_count"),
                self.size("num_attention_heads"),
            )
            .number(&key("attention.layer_norm_rms_epsilon"), eps as f32)
            .number(&key("rope.freq_base"), self.theta() as f32)
            .pair("tokenizer.ggml.eos_token_id", Value::U32(eos as u32))
    }

    fn expert_keys(&self, file: File) -> File {
        let Some(count) = self.experts() else {
            return file;
        };
        let file = file
            .size(&self.key("expert_count"), count)
            .size(&self.key("expert_used_count"), self.experts_used())
            .size(&self.key("expert_feed_forward_length"), self.expert_width());
        let has_norm_key = ["llama", "qwen3moe", "deepseek2"].contains(&self.architecture);
        if !has_norm_key {
            return file;
        }
        let renormalises = Value::Flag(self.renormalises());
        file.pair(&self.key("expert_weights_norm"), renormalises)
    }

    fn head_keys(&self, file: File) -> File {
        match self.architecture {
            "deepseek2" => self.latent_attention(file),
            "gemma4" => self.gemma4(file),
            "phi3" => self.phi3(file),
            architecture if architecture.starts_with("lfm2") => self.short_conv(file),
            _ => file
                .size(
                    &self.key("attention.head_count_kv"),
                    self.size("num_key_value_heads"),
                )
                .size(&self.key("attention.key_length"), self.head_dim())
                .size(&self.key("attention.value_length"), self.head_dim()),
        }
    }

    fn family_keys(&self, file: File) -> File {
        match self.architecture {
            "gpt-oss" => file.size(
                &self.key("attention.sliding_window"),
                self.size("sliding_window"),
            ),
            "granite" => self.factors(file),
            "qwen3vl" => {
                let sections = self.rope["mrope_section"].as_array().unwrap().iter();
                let sections = sections.map(|n| n.as_i64().unwrap() as i32).chain([0]);
                let sections = Value::I32s(sections.collect());
                // `deepstack_visual_indexes` is in the other part of the configuration; the fixture has two.
                file.pair(&self.key("rope.dimension_sections"), sections)
                    .size(&self.key("n_deepstack_layers"), 2)
            }
            "mistral3" => {
                let slope = self.rope["llama_4_scaling_beta"].as_f64().unwrap();
                file.number(&self.key("attention.temperature_scale"), slope as f32)
            }
            _ if self.has_delta_nets() => self.delta_net(file),
            _ if self.is_gemma() => self.gemma(file),
            _ => file,
        }
    }

    fn rope_keys(&self, file: File) -> File {
        let factor = self.rope["factor"].as_f64().unwrap_or(1.0) as f32;
        match self.rope_type() {
            "linear" => file
                .text(&self.key("rope.scaling.type"), "linear")
                .number(&self.key("rope.scaling.factor"), factor),
            "yarn" => self.yarn_keys(file, factor),
            _ => file,
        }
    }

    fn yarn_keys(&self, file: File, factor: f32) -> File {
        let original = self.rope["original_max_position_embeddings"].as_u64();
        let file = file
            .text(&self.key("rope.scaling.type"), "yarn")
            .number(&self.key("rope.scaling.factor"), factor)
            .size(
                &self.key("rope.scaling.original_context_length"),
                original.unwrap() as usize,
            );
        let weight = if self.architecture == "mistral3" {
            1.0
        } else {
            0.1
        };
        let mut numbers = vec![
            ("beta_fast", "yarn_beta_fast", 1.0),
            ("beta_slow", "yarn_beta_slow", 1.0),
        ];
        if ["deepseek2", "mistral3"].contains(&self.architecture) {
            numbers.push(("mscale_all_dim", "yarn_log_multiplier", weight));
        }
        numbers
            .into_iter()
            .fold(file, |file, (config_key, file_key, times)| {
                let Some(number) = self.rope[config_key].as_f64() else {
                    return file;
                };
                let key = self.key(&format!("rope.scaling.{file_key}"));
                file.number(&key, (times * number) as f32)
            })
    }

    fn feed_forwards(&self) -> Value {
        let width = self.feed_forward();
        if self.config["use_double_wide_mlp"] != true {
            return Value::U32(width as u32);
        }
        let (layers, sharing) = (
            self.size("num_hidden_layers"),
            self.size("num_kv_shared_layers"),
        );
        let widths = (0..layers).map(|layer| {
            if layer + sharing < layers {
                width as i32
            } else {
                2 * width as i32
            }
        });
        Value::I32s(widths.collect())
    }

    fn experts_used(&self) -> usize {
        match self.config["top_k_experts"].as_u64() {
            Some(used) => used as usize,
            None => self.size("num_experts_per_tok"),
        }
    }

    /// The keys of Gemma 4: head sizes with and without sliding windows, and layers that share keys and values.
    fn gemma4(&self, file: File) -> File {
        let key = |name: &str| format!("gemma4.{name}");
        let (wide, narrow) = (self.size("global_head_dim"), self.head_dim());
        let heads = self.size("num_key_value_heads");
        let kinds = self.config["layer_types"].as_array().unwrap();
        let global = self.config["num_global_key_value_heads"].as_u64();
        let of_kind = |kind: &serde_json::Value| match (kind == "sliding_attention", global) {
            (false, Some(global)) => global as i32,
            _ => heads as i32,
        };
        let last = kinds.len() - 1;
        let full = serde_json::json!("full_attention");
        let kinds = kinds.iter().enumerate();
        // The last layer has full attention regardless of its configuration.
        let kinds = kinds.map(|(i, kind)| if i == last { &full } else { kind });
        let inputs = self.config["hidden_size_per_layer_input"]
            .as_u64()
            .unwrap_or(0);
        let sharing = self.config["num_kv_shared_layers"].as_u64().unwrap_or(0);
        let sizes = [
            ("attention.key_length", wide),
            ("attention.value_length", wide),
            ("attention.key_length_swa", narrow),
            ("attention.value_length_swa", narrow),
            ("attention.shared_kv_layers", sharing as usize),
            ("embedding_length_per_layer_input", inputs as usize),
            ("rope.dimension_count", wide),
            ("rope.dimension_count_swa", narrow),
        ];
        let heads = Value::I32s(kinds.map(of_kind).collect());
        let file = file.pair(&key("attention.head_count_kv"), heads);
        sizes
            .into_iter()
            .fold(file, |file, (name, size)| file.size(&key(name), size))
    }

    /// The keys of Granite's multipliers that the configuration has.
    fn factors(&self, file: File) -> File {
        let factors = [
            ("attention.scale", "attention_multiplier"),
            ("embedding_scale", "embedding_multiplier"),
            ("residual_scale", "residual_multiplier"),
            ("logit_scale", "logits_scaling"),
        ];
        let given = factors
            .into_iter()
            .filter_map(|(name, key)| Some((name, self.config[key].as_f64()?)));
        given.fold(file, |file, (name, factor)| {
            file.number(&format!("granite.{name}"), factor as f32)
        })
    }

    /// The keys of Phi-3, whose files contain no head size.
    fn phi3(&self, file: File) -> File {
        let part = self.config["partial_rotary_factor"].as_f64().unwrap_or(1.0);
        let heads = self.size("num_attention_heads");
        let rotary = (part * self.size("hidden_size") as f64) as usize / heads;
        let context = self.size("max_position_embeddings");
        let original = self.config["original_max_position_embeddings"].as_u64();
        let original = original.map_or(4096, |original| original as usize);
        let window = self.config["sliding_window"].as_u64().unwrap_or(0);
        let file = file
            .size(
                "phi3.attention.head_count_kv",
                self.size("num_key_value_heads"),
            )
            .size("phi3.rope.scaling.original_context_length", original)
            .size("phi3.rope.dimension_count", rotary)
            .size("phi3.attention.sliding_window", window as usize);
        if self.rope["long_factor"].is_null() {
            return file;
        }
        let scale = context as f64 / original as f64;
        let factor = (1.0 + scale.ln() / (original as f64).ln()).sqrt();
        file.number("phi3.rope.scaling.attn_factor", factor as f32)
    }

    /// The MLP width of dense layers; LFM2 takes two thirds of the configured width, times a factor, rounded up.
    fn feed_forward(&self) -> usize {
        let whole = self.size("intermediate_size");
        if self.architecture != "lfm2" || self.config["block_auto_adjust_ff_dim"] != true {
            return whole;
        }
        let times = self.config["block_ffn_dim_multiplier"].as_f64().unwrap();
        let width = (times * (2 * whole / 3) as f64) as usize;
        width.next_multiple_of(self.size("block_multiple_of"))
    }

    /// The keys of LFM2, whose layers with short convolutions have zero key heads.
    fn short_conv(&self, file: File) -> File {
        let key = |name: &str| format!("{}.{name}", self.architecture);
        let heads = self.size("num_key_value_heads") as i32;
        let kinds = self.config["layer_types"].as_array().unwrap().iter();
        let heads = kinds.map(|kind| if kind == "conv" { 0 } else { heads });
        let taps = self.config["conv_L_cache"].as_u64().unwrap_or(3);
        let file = file
            .pair(
                &key("attention.head_count_kv"),
                Value::I32s(heads.collect()),
            )
            .size(&key("shortconv.l_cache"), taps as usize)
            .size(&key("vocab_size"), self.size("vocab_size"));
        match self.config["num_dense_layers"].as_u64() {
            None => file,
            Some(dense) => file
                .size(&key("leading_dense_block_count"), dense as usize)
                .size(&key("expert_gating_func"), 2),
        }
    }

    /// The keys of models with delta nets, which describe the nets, attention and experts.
    fn delta_net(&self, file: File) -> File {
        let key = |name: &str| format!("{}.{name}", self.architecture);
        let taps = self.config["linear_conv_kernel_dim"].as_u64().unwrap_or(4);
        let value_heads = self.size("linear_num_value_heads");
        let nested = self.rope["partial_rotary_factor"].as_f64();
        let part = nested.or(self.config["partial_rotary_factor"].as_f64());
        let rotary = (self.head_dim() as f64 * part.unwrap_or(0.25)) as usize;
        let interval = self.config["full_attention_interval"].as_u64().unwrap_or(4);
        let sizes = [
            ("ssm.conv_kernel", taps as usize),
            ("ssm.state_size", self.size("linear_key_head_dim")),
            ("ssm.group_count", self.size("linear_num_key_heads")),
            ("ssm.time_step_rank", value_heads),
            (
                "ssm.inner_size",
                value_heads * self.size("linear_value_head_dim"),
            ),
            ("full_attention_interval", interval as usize),
            ("rope.dimension_count", rotary),
        ];
        let file = sizes
            .into_iter()
            .fold(file, |file, (name, size)| file.size(&key(name), size));
        let file = match self.config["layer_types"].as_array() {
            None => file,
            Some(kinds) => {
                let states = kinds
                    .iter()
                    .map(|kind| u8::from(kind == "linear_attention"));
                let states: Vec<u8> = states.collect();
                let flags = writer::list(7, states.len() as u64, &states);
                file.pair(&key("attention.recurrent_layers"), flags)
            }
        };
        let file = match self.architecture {
            "qwen3next" => file,
            _ => {
                let sections = Value::I32s(vec![11, 11, 10, 0]);
                file.pair(&key("rope.dimension_sections"), sections)
            }
        };
        match self.config["shared_expert_intermediate_size"].as_u64() {
            None => file,
            Some(width) => file.size(&key("expert_shared_feed_forward_length"), width as usize),
        }
    }

    /// The keys of the Gemma families. The pattern of sliding windows and the rope base of their layers are written
    /// only if the configuration contains them.
    fn gemma(&self, file: File) -> File {
        let key = |name: &str| format!("{}.{name}", self.architecture);
        let mut file = file.size(
            &key("attention.sliding_window"),
            self.size("sliding_window"),
        );
        // Gemma 3 does not softcap scores, and its multimodal class does not softcap logits.
        let caps: &[&str] = match self.architecture {
            "gemma3" => &[],
            _ => &["attn_logit_softcapping", "final_logit_softcapping"],
        };
        for name in caps {
            if let Some(cap) = self.config[*name].as_f64() {
                file = file.number(&key(name), cap as f32);
            }
        }
        if self.architecture == "gemma2" {
            return file;
        }
        let pattern = key("attention.sliding_window_pattern");
        if let Some(period) = self.config["sliding_window_pattern"].as_u64() {
            file = file.size(&pattern, period as usize);
        }
        if let Some(kinds) = self.config["layer_types"].as_array() {
            let slides = kinds
                .iter()
                .map(|kind| u8::from(kind == "sliding_attention"));
            let mut slides: Vec<u8> = slides.collect();
            if let Some(last) = slides.last_mut().filter(|_| self.architecture == "gemma4") {
                *last = 0;
            }
            file = file.pair(&pattern, writer::list(7, slides.len() as u64, &slides));
        }
        match self.config["rope_parameters"]["sliding_attention"]["rope_theta"].as_f64() {
            Some(theta) => file.number(&key("rope.freq_base_swa"), theta as f32),
            None => file,
        }
    }

    /// The keys of multi-head latent attention (MLA) and of experts.
    fn latent_attention(&self, file: File) -> File {
        let (rope, rank) = (self.size("qk_rope_head_dim"), self.size("kv_lora_rank"));
        let query = self.size("qk_nope_head_dim") + rope;
        let value = self.size("v_head_dim");
        let softmax = self.config["model_type"] == "deepseek_v2";
        let sizes = [
            ("attention.kv_lora_rank", rank),
            ("rope.dimension_count", rope),
            ("expert_shared_count", self.size("n_shared_experts")),
            ("expert_gating_func", if softmax { 1 } else { 2 }),
        ];
        let of_heads = match self.latents {
            Latents::Absorbed => vec![
                ("attention.head_count_kv", 1),
                ("attention.key_length", rank + rope),
                ("attention.value_length", rank),
                ("attention.key_length_mla", query),
                ("attention.value_length_mla", value),
            ],
            Latents::Whole => vec![
                ("attention.head_count_kv", self.size("num_attention_heads")),
                ("attention.key_length", query),
                ("attention.value_length", value),
            ],
        };
        let given = [
            ("attention.q_lora_rank", "q_lora_rank"),
            ("expert_group_count", "n_group"),
            ("expert_group_used_count", "topk_group"),
            ("leading_dense_block_count", "first_k_dense_replace"),
        ];
        let given = given
            .into_iter()
            .filter_map(|(name, key)| Some((name, self.config[key].as_u64()? as usize)));
        let scale = self.config["routed_scaling_factor"].as_f64().unwrap();
        let sizes = sizes.into_iter().chain(of_heads).chain(given);
        let file = sizes.fold(file, |file, (name, size)| {
            file.size(&format!("deepseek2.{name}"), size)
        });
        file.number("deepseek2.expert_weights_scale", scale as f32)
    }
}
