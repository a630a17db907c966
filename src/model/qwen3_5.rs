//! Qwen3.5, dense or MoE, and Qwen3-Next: three layers of gated delta net, then one of gated attention with partial
//! rotary. Norm weights are stored minus one.

use crate::config::ModelConfig;
use crate::config::experts::{ExpertNames, ExpertsConfig, count_key, softmax};
use crate::config::limits::{EXPERTS, HEADS, INTERMEDIATE, check_kv_heads};
use crate::config::recurrent::{DELTA_DIM, Recurrence, RecurrentConfig, StoredForm, layer_kinds};
use crate::family::{Defaults, Family, GgufExperts, GgufFamily, MlpWidth};
use crate::gguf::keys::{Keys, OTHER_NORMS, SHARED_EXPERT};
use crate::json_file::JsonFile;
use crate::layer_spec::{AttentionSpec, FeedForwardSpec, LayerSpec, MixerSpec, QkNorm};
use crate::qwen2;
use crate::qwen3_moe;
use crate::rope::MropeSections;
use souffleur_base::error::LoadError;
use souffleur_kernels::recurrent::{DeltaNetShape, HeadOrder, MAX_TAPS};

pub(crate) static FAMILY: Family = Family {
    defaults: Defaults {
        kv_heads: Some(4),
        ..DEFAULTS
    },
    states: |json, layers| states(json, layers, &DENSE),
    mrope: Some(MROPE),
    gguf: GgufFamily {
        states: |keys, layers| gguf_states(keys, layers, &DENSE),
        other_names: OTHER_NORMS,
        ..GgufFamily::named(Some("qwen35"))
    },
    ..hybrid("Qwen3_5ForConditionalGeneration", "qwen3_5")
};

pub(crate) static MOE: Family = Family {
    intermediate: MlpWidth::Default(0),
    experts: moe_experts,
    states: |json, layers| states(json, layers, &SPARSE),
    mrope: Some(MROPE),
    gguf: GgufFamily {
        states: |keys, layers| gguf_states(keys, layers, &SPARSE),
        ..gguf_with_experts("qwen35moe")
    },
    ..hybrid("Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe")
};

/// Qwen3-Next, Qwen3.5's predecessor, with fused input projections.
pub(crate) static NEXT: Family = Family {
    intermediate: MlpWidth::Default(5632),
    experts: next_experts,
    states: |json, layers| states(json, layers, &FUSED),
    gguf: GgufFamily {
        states: |keys, layers| gguf_states(keys, layers, &FUSED),
        ..gguf_with_experts("qwen3next")
    },
    ..hybrid("Qwen3NextForCausalLM", "qwen3_next")
};

const fn hybrid(name: &'static str, model_type: &'static str) -> Family {
    Family {
        defaults: DEFAULTS,
        partial_rotary: Some(0.25),
        qk_norm: QkNorm::Heads,
        missing_on_cuda: Some("this family's recurrent states"),
        ..Family::new(name, model_type, layer)
    }
}

const MROPE: MropeSections = MropeSections {
    rows: 11,
    columns: 10,
};

const DEFAULTS: Defaults = Defaults {
    kv_heads: Some(2),
    head_dim: Some(256),
    ..qwen2::DEFAULTS
};

const fn gguf_with_experts(name: &'static str) -> GgufFamily {
    GgufFamily {
        experts: Some(GgufExperts {
            // The gated shared expert is read with the states.
            numbers: SHARED_EXPERT,
            ..GgufExperts::PLAIN
        }),
        other_names: OTHER_NORMS,
        ..GgufFamily::named(Some(name))
    }
}

/// Differences between the families of this file.
struct HybridKind {
    has_shared_expert: bool,
    /// Whether checkpoints have two fused projections to a delta net's inputs.
    fused: bool,
    gguf_order: HeadOrder,
}

const DENSE: HybridKind = HybridKind {
    has_shared_expert: false,
    fused: false,
    gguf_order: HeadOrder::Tiled,
};
const SPARSE: HybridKind = HybridKind {
    has_shared_expert: true,
    ..DENSE
};
const FUSED: HybridKind = HybridKind {
    has_shared_expert: true,
    fused: true,
    gguf_order: HeadOrder::Grouped,
};

pub fn layer(config: &ModelConfig, layer: usize) -> LayerSpec {
    LayerSpec {
        mixer: MixerSpec::Attention(AttentionSpec::plain(config, layer)),
        feed_forward: FeedForwardSpec::Experts,
    }
}

/// Reads the experts of Qwen3-Next: the keys of Qwen3-MoE with other defaults.
fn next_experts(json: &JsonFile, layers: usize) -> Result<Option<ExpertsConfig>, LoadError> {
    let Some(experts) = qwen3_moe::experts(json, layers)? else {
        return Ok(None);
    };
    let count = json.size(count_key(json), EXPERTS)?.unwrap_or(512);
    let renormalised = json.flag("norm_topk_prob")?.unwrap_or(true);
    Ok(Some(ExpertsConfig {
        routing: softmax(json, count, 10, renormalised)?,
        width: json
            .size("moe_intermediate_size", INTERMEDIATE)?
            .unwrap_or(512),
        ..experts
    }))
}

/// Softmax over all experts, renormalised.
fn moe_experts(json: &JsonFile, layers: usize) -> Result<Option<ExpertsConfig>, LoadError> {
    let count = json.size(count_key(json), EXPERTS)?.unwrap_or(256);
    let routing = softmax(json, count, 8, true)?;
    Ok(Some(ExpertsConfig {
        width: json
            .size("moe_intermediate_size", INTERMEDIATE)?
            .unwrap_or(512),
        layers: vec![true; layers],
        ..ExpertsConfig::plain(routing, ExpertNames::QWEN)
    }))
}

fn states(
    json: &JsonFile,
    layers: usize,
    kind: &HybridKind,
) -> Result<Option<RecurrentConfig>, LoadError> {
    if json.flag("attn_output_gate")? == Some(false) {
        let reason = "is false, supported: true (attention's output has a gate)";
        return Err(json.error("attn_output_gate", reason));
    }
    let interval = json.size("full_attention_interval", 1..=usize::MAX)?;
    let interval = interval.unwrap_or(4);
    let by_interval = || (1..=layers).map(|n| !n.is_multiple_of(interval)).collect();
    let size =
        |key, default, limits| Ok::<usize, LoadError>(json.size(key, limits)?.unwrap_or(default));
    let shape = DeltaNetShape {
        key_heads: size("linear_num_key_heads", 16, HEADS)?,
        value_heads: size("linear_num_value_heads", 32, HEADS)?,
        key_dim: size("linear_key_head_dim", 128, DELTA_DIM)?,
        value_dim: size("linear_value_head_dim", 128, DELTA_DIM)?,
        n_taps: size("linear_conv_kernel_dim", 4, 2..=MAX_TAPS)?,
        order: HeadOrder::Grouped,
    };
    check_kv_heads(
        shape.key_heads,
        ("linear_num_value_heads", shape.value_heads),
    )
    .map_err(|reason| json.error("linear_num_key_heads", reason))?;
    let shared = if kind.has_shared_expert {
        Some(size("shared_expert_intermediate_size", 512, INTERMEDIATE)?)
    } else {
        None
    };
    Ok(Some(RecurrentConfig {
        layers: layer_kinds(json, layers, "linear_attention")?.unwrap_or_else(by_interval),
        recurrence: Recurrence::DeltaNet {
            shape,
            fused: kind.fused,
        },
        stored_form: StoredForm::MinusOne,
        gated_attention: true,
        shared_expert: shared,
    }))
}

fn gguf_states(
    keys: &Keys<'_>,
    layers: usize,
    kind: &HybridKind,
) -> Result<Option<RecurrentConfig>, LoadError> {
    let interval = keys.size("full_attention_interval", 1..=usize::MAX >> 1)?;
    let interval = interval.unwrap_or(4);
    let by_interval = || (1..=layers).map(|n| !n.is_multiple_of(interval)).collect();
    let key_heads = keys.required("ssm.group_count", HEADS)?;
    let value_heads = keys.required("ssm.time_step_rank", HEADS)?;
    let heads_key = keys.key("ssm.time_step_rank");
    check_kv_heads(key_heads, (&heads_key, value_heads))
        .map_err(|reason| keys.error("ssm.group_count", reason))?;
    let values = keys.required("ssm.inner_size", INTERMEDIATE)?;
    let value_dim = values / value_heads;
    if value_dim * value_heads != values || !DELTA_DIM.contains(&value_dim) {
        let reason = format!(
            "is {values}, expected {heads_key} ({value_heads}) times a head size of {} to {}",
            DELTA_DIM.start(),
            DELTA_DIM.end()
        );
        return Err(keys.error("ssm.inner_size", reason));
    }
    let shape = DeltaNetShape {
        key_heads,
        value_heads,
        key_dim: keys.required("ssm.state_size", DELTA_DIM)?,
        value_dim,
        n_taps: keys.required("ssm.conv_kernel", 2..=MAX_TAPS)?,
        order: kind.gguf_order,
    };
    Ok(Some(RecurrentConfig {
        layers: keys
            .flags("attention.recurrent_layers", layers)?
            .unwrap_or_else(by_interval),
        recurrence: Recurrence::DeltaNet {
            shape,
            fused: false,
        },
        stored_form: StoredForm::Gguf,
        gated_attention: true,
        shared_expert: if kind.has_shared_expert {
            Some(keys.required("expert_shared_feed_forward_length", INTERMEDIATE)?)
        } else {
            None
        },
    }))
}
