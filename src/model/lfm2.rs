//! LFM2: gated short convolutions in most layers, Qwen3's attention with different tensor names in the others. The last
//! layer may be a convolution, which processes every token to update its state.

use crate::config::ModelConfig;
use crate::config::experts::{ExpertNames, ExpertsConfig, count_key};
use crate::config::limits::{EXPERTS, HEADS, INTERMEDIATE};
use crate::config::recurrent::{Recurrence, RecurrentConfig, StoredForm, layer_kinds};
use crate::family::{AttentionBias, Defaults, Family, GgufExperts, GgufFamily, KeyNames, MlpWidth};
use crate::gguf::keys::{GATING, KV_HEADS, Keys, OTHER_NORMS, WEIGHTS_SCALE};
use crate::json_file::JsonFile;
use crate::layer_spec::{AttentionSpec, FeedForwardSpec, LayerSpec, MixerSpec, QkNorm};
use souffleur_base::error::LoadError;
use souffleur_kernels::recurrent::MAX_TAPS;
use souffleur_kernels::routing::{Routing, Score, WeightSum};

/// The vision-language class, with one of these decoders.
const WITH_VISION: &str = "Lfm2VlForConditionalGeneration";

pub(crate) static FAMILY: Family = Family {
    intermediate: MlpWidth::Read(adjusted_width),
    gguf: gguf("lfm2"),
    ..hybrid("Lfm2ForCausalLM", "lfm2")
};

pub(crate) static MOE: Family = Family {
    intermediate: MlpWidth::Default(7168),
    experts,
    gguf: GgufFamily {
        experts: Some(GgufExperts {
            numbers: &[GATING, WEIGHTS_SCALE],
            routing: gguf_routing,
            corrected: true,
            ..GgufExperts::PLAIN
        }),
        ..gguf("lfm2moe")
    },
    ..hybrid("Lfm2MoeForCausalLM", "lfm2_moe")
};

const fn hybrid(name: &'static str, model_type: &'static str) -> Family {
    Family {
        decoder_of: &[WITH_VISION],
        defaults: Defaults {
            kv_heads: Some(8),
            context: 128_000,
            eps: 1e-5,
            theta: 1e6,
            ties_embeddings: true,
            ..Defaults::LLAMA
        },
        attention_bias: AttentionBias::Never,
        qk_norm: QkNorm::Heads,
        keys: KeyNames {
            eps: "norm_eps",
            ties_embeddings: Some("tie_embedding"),
            ..KeyNames::USUAL
        },
        tensor_names: NAMES,
        states,
        missing_on_cuda: Some("this family's recurrent states"),
        ..Family::new(name, model_type, layer)
    }
}

const fn gguf(name: &'static str) -> GgufFamily {
    GgufFamily {
        other_names: OTHER_NORMS,
        states: gguf_states,
        ..GgufFamily::named(Some(name))
    }
}

const NAMES: &[(&str, &str)] = &[
    ("model.embedding_norm.", "model.norm."),
    (".operator_norm.", ".input_layernorm."),
    (".ffn_norm.", ".post_attention_layernorm."),
    (".self_attn.out_proj.", ".self_attn.o_proj."),
    (".self_attn.q_layernorm.", ".self_attn.q_norm."),
    (".self_attn.k_layernorm.", ".self_attn.k_norm."),
    (".feed_forward.w1.", ".mlp.gate_proj."),
    (".feed_forward.w3.", ".mlp.up_proj."),
    (".feed_forward.w2.", ".mlp.down_proj."),
    (".feed_forward.gate.", ".mlp.gate."),
    (
        ".feed_forward.expert_bias",
        ".mlp.gate.e_score_correction_bias",
    ),
    (".feed_forward.experts.", ".mlp.experts."),
];

pub fn layer(config: &ModelConfig, layer: usize) -> LayerSpec {
    LayerSpec {
        mixer: MixerSpec::Attention(AttentionSpec::plain(config, layer)),
        feed_forward: FeedForwardSpec::Experts,
    }
}

/// The configured width is for an ungated MLP. The gated MLP has two thirds of that width, scaled and rounded up.
fn adjusted_width(json: &JsonFile) -> Result<usize, LoadError> {
    let given = match json.size("block_ff_dim", INTERMEDIATE)? {
        None => json.required_size("intermediate_size", INTERMEDIATE)?,
        Some(width) => width,
    };
    if !json.flag("block_auto_adjust_ff_dim")?.unwrap_or(true) {
        return Ok(given);
    }
    let thirds = 2 * given / 3;
    let key = "block_ffn_dim_multiplier";
    let width = if json.has(key) && json.value(key).is_none() {
        thirds
    } else {
        let factor = json.number(key, 0.0..=1024.0)?.unwrap_or(1.0);
        let multiple = json.size("block_multiple_of", INTERMEDIATE)?.unwrap_or(256);
        ((factor * thirds as f64) as usize).next_multiple_of(multiple)
    };
    if INTERMEDIATE.contains(&width) {
        Ok(width)
    } else {
        let reason = format!(
            "gives the MLP a width of {width}, expected 1 to {}",
            INTERMEDIATE.end()
        );
        Err(json.error("intermediate_size", reason))
    }
}

/// Sigmoid scores, with an optional correction bias when experts are chosen; the first layers have no experts.
fn experts(json: &JsonFile, layers: usize) -> Result<Option<ExpertsConfig>, LoadError> {
    let count = json.size(count_key(json), EXPERTS)?.unwrap_or(32);
    let n_used = json.size("num_experts_per_tok", EXPERTS)?.unwrap_or(4);
    let dense = json.size("num_dense_layers", 0..=usize::MAX)?.unwrap_or(2);
    let scale = json.number("routed_scaling_factor", 0.0..=1e6)?;
    let routing = Routing {
        score: Score::Sigmoid,
        sum: if json.flag("norm_topk_prob")?.unwrap_or(true) {
            WeightSum::One { added: 1e-6 }
        } else {
            WeightSum::AsScored
        },
        scale: scale.unwrap_or(1.0) as f32,
        ..Routing::softmax(count, n_used, false)
    };
    Ok(Some(ExpertsConfig {
        width: json
            .size("moe_intermediate_size", INTERMEDIATE)?
            .unwrap_or(1792),
        layers: (0..layers).map(|layer| layer >= dense).collect(),
        corrected: json.flag("use_expert_bias")?.unwrap_or(true),
        ..ExpertsConfig::plain(routing, ExpertNames::QWEN)
    }))
}

fn gguf_routing(keys: &Keys<'_>, routing: Routing) -> Result<Routing, LoadError> {
    const NAME: &str = "expert_gating_func";
    const SIGMOID: f64 = 2.0;
    let function = keys.number(NAME, f64::MIN..=f64::MAX)?;
    if let Some(function) = function.filter(|function| *function != SIGMOID) {
        let reason = format!("is {function}, supported: {SIGMOID} (sigmoid)");
        return Err(keys.error(NAME, reason));
    }
    let scale = keys.number("expert_weights_scale", 0.0..=1e6)?;
    Ok(Routing {
        score: Score::Sigmoid,
        sum: match routing.sum {
            WeightSum::AsScored => WeightSum::AsScored,
            WeightSum::One { .. } => WeightSum::One { added: 1e-6 },
        },
        // 0 means no scale, as in llama.cpp.
        scale: scale.filter(|scale| *scale != 0.0).unwrap_or(1.0) as f32,
        ..routing
    })
}

/// Reads which layers are convolutions from `layer_types`, or from the list of attention layers.
fn states(json: &JsonFile, layers: usize) -> Result<Option<RecurrentConfig>, LoadError> {
    let kinds = layer_kinds(json, layers, "conv")?;
    let attention = json.numbers("full_attn_idxs", "layers")?;
    let by_index = |attention: Vec<usize>| (0..layers).map(|i| !attention.contains(&i)).collect();
    let layers = kinds
        .or(attention.map(by_index))
        .unwrap_or_else(|| vec![false; layers]);
    Ok(Some(RecurrentConfig {
        layers,
        recurrence: Recurrence::GatedConv {
            n_taps: json.size("conv_L_cache", 2..=MAX_TAPS)?.unwrap_or(3),
            bias: json.flag("conv_bias")?.unwrap_or(false),
        },
        stored_form: StoredForm::AsFactors,
        gated_attention: false,
        shared_expert: None,
    }))
}

/// Layers with 0 KV heads are convolutions.
fn gguf_states(keys: &Keys<'_>, layers: usize) -> Result<Option<RecurrentConfig>, LoadError> {
    let heads = keys
        .metadata
        .integers(&keys.key(KV_HEADS), 0..=*HEADS.end() as i64)?
        .unwrap_or_default();
    if heads.len() != layers {
        let reason = format!(
            "has {} entries, expected one for each of {layers} layers: convert the model again",
            heads.len()
        );
        return Err(keys.error(KV_HEADS, reason));
    }
    Ok(Some(RecurrentConfig {
        layers: heads.into_iter().map(|heads| heads == 0).collect(),
        recurrence: Recurrence::GatedConv {
            n_taps: keys.required("shortconv.l_cache", 2..=MAX_TAPS)?,
            bias: false,
        },
        stored_form: StoredForm::Gguf,
        gated_attention: false,
        shared_expert: None,
    }))
}
