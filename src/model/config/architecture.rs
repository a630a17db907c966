//! The families by name, and the properties that all models of one share.

use crate::error::LoadError;
use crate::model::json_file::JsonFile;

/// The class of Mistral's vision-language models, which run on text only.
const MISTRAL3: &str = "Mistral3ForConditionalGeneration";

/// The families that the forward pass knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// Llama 2 and 3, and models of the same architecture.
    Llama,
    /// Mistral: sliding window in every layer, or in none.
    Mistral,
    /// Mixtral: Mistral with experts in every layer.
    Mixtral,
    /// Qwen2 and Qwen2.5: bias on q, k and v.
    Qwen2,
    /// Qwen3: norm on each head of q and k.
    Qwen3,
    /// Qwen3 with experts.
    Qwen3Moe,
    /// Qwen3.5: gated delta nets, and attention in every fourth layer.
    Qwen35,
    /// Qwen3.5 with experts.
    Qwen35Moe,
    /// Qwen3-Next: the predecessor of Qwen3.5, with fused inputs.
    Qwen3Next,
    /// LFM2: short convolutions, and attention in some layers.
    Lfm2,
    /// LFM2 with experts.
    Lfm2Moe,
    /// DeepSeek-V2: latent attention and experts.
    DeepseekV2,
    /// DeepSeek-V3: the same, with a correction bias in the router.
    DeepseekV3,
    /// GLM-4.7-Flash and its like: DeepSeek-V3's layers.
    Glm4MoeLite,
    /// gpt-oss: attention sinks, experts with biases and clamped gates.
    GptOss,
    /// Gemma 2: norms around each block, softcaps on scores and logits.
    Gemma2,
    /// Gemma 3: norms on each head of q and k, two rotations.
    Gemma3,
    /// Gemma 4: heads of two sizes, per-layer inputs, or experts in parallel with the MLPs.
    Gemma4,
    /// Granite: Llama with embedding, residual, attention and logit multipliers.
    Granite,
    /// SmolLM3: Llama with some layers without RoPE (NoPE).
    SmolLm3,
    /// Phi-3 and Phi-4-mini: fused projections, rotations for long sequences.
    Phi3,
    /// Ministral 3: Mistral whose queries grow with their positions.
    Ministral3,
}

impl Architecture {
    /// All of them.
    pub const ALL: [Self; 22] = [
        Self::Llama,
        Self::Mistral,
        Self::Mixtral,
        Self::Qwen2,
        Self::Qwen3,
        Self::Qwen3Moe,
        Self::Qwen35,
        Self::Qwen35Moe,
        Self::Qwen3Next,
        Self::Lfm2,
        Self::Lfm2Moe,
        Self::DeepseekV2,
        Self::DeepseekV3,
        Self::Glm4MoeLite,
        Self::GptOss,
        Self::Gemma2,
        Self::Gemma3,
        Self::Gemma4,
        Self::Granite,
        Self::SmolLm3,
        Self::Phi3,
        Self::Ministral3,
    ];

    /// The name under `architectures` in `config.json`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Llama => "LlamaForCausalLM",
            Self::Mistral => "MistralForCausalLM",
            Self::Mixtral => "MixtralForCausalLM",
            Self::Qwen2 => "Qwen2ForCausalLM",
            Self::Qwen3 => "Qwen3ForCausalLM",
            Self::Qwen3Moe => "Qwen3MoeForCausalLM",
            Self::Qwen35 => "Qwen3_5ForConditionalGeneration",
            Self::Qwen35Moe => "Qwen3_5MoeForConditionalGeneration",
            Self::Qwen3Next => "Qwen3NextForCausalLM",
            Self::Lfm2 => "Lfm2ForCausalLM",
            Self::Lfm2Moe => "Lfm2MoeForCausalLM",
            Self::DeepseekV2 => "DeepseekV2ForCausalLM",
            Self::DeepseekV3 => "DeepseekV3ForCausalLM",
            Self::Glm4MoeLite => "Glm4MoeLiteForCausalLM",
            Self::GptOss => "GptOssForCausalLM",
            Self::Gemma2 => "Gemma2ForCausalLM",
            Self::Gemma3 => "Gemma3ForConditionalGeneration",
            Self::Gemma4 => "Gemma4ForConditionalGeneration",
            Self::Granite => "GraniteForCausalLM",
            Self::SmolLm3 => "SmolLM3ForCausalLM",
            Self::Phi3 => "Phi3ForCausalLM",
            Self::Ministral3 => "Ministral3ForCausalLM",
        }
    }

    /// The family of a name. Vision-language models run on text only, as the family of their decoder.
    fn named(name: &str) -> Option<Self> {
        let on_text = |known: Self| {
            let family = known.name().strip_suffix("ForConditionalGeneration");
            family.is_some_and(|family| name.strip_suffix("ForCausalLM") == Some(family))
        };
        let mut all = Self::ALL.into_iter();
        all.find(|known| known.name() == name || on_text(*known))
    }

    /// Whether it is one of Qwen's.
    pub(super) fn is_qwen(self) -> bool {
        match self {
            Self::Llama | Self::Mistral | Self::Mixtral | Self::Lfm2 | Self::Lfm2Moe => false,
            Self::DeepseekV2 | Self::DeepseekV3 | Self::Glm4MoeLite | Self::GptOss => false,
            Self::Gemma2 | Self::Gemma3 | Self::Gemma4 => false,
            Self::Granite | Self::SmolLm3 | Self::Phi3 | Self::Ministral3 => false,
            Self::Qwen2 | Self::Qwen3 | Self::Qwen3Moe => true,
            Self::Qwen35 | Self::Qwen35Moe | Self::Qwen3Next => true,
        }
    }

    /// Whether every head of q and k is normed before the rotation.
    pub fn has_qk_norm(self) -> bool {
        match self {
            Self::Gemma2 => false,
            Self::Gemma3 | Self::Gemma4 => true,
            Self::Llama | Self::Mistral | Self::Mixtral | Self::Qwen2 => false,
            Self::DeepseekV2 | Self::DeepseekV3 | Self::Glm4MoeLite | Self::GptOss => false,
            Self::Granite | Self::SmolLm3 | Self::Phi3 | Self::Ministral3 => false,
            Self::Qwen3 | Self::Qwen3Moe | Self::Lfm2 | Self::Lfm2Moe => true,
            Self::Qwen35 | Self::Qwen35Moe | Self::Qwen3Next => true,
        }
    }

    /// Whether it is one of Gemma's.
    pub(crate) fn is_gemma(self) -> bool {
        matches!(self, Self::Gemma2 | Self::Gemma3 | Self::Gemma4)
    }

    /// Whether attention is latent.
    pub fn is_latent(self) -> bool {
        matches!(
            self,
            Self::DeepseekV2 | Self::DeepseekV3 | Self::Glm4MoeLite
        )
    }

    /// The family that a `config.json` names.
    pub(super) fn read(json: &JsonFile) -> Result<Self, LoadError> {
        let names = json
            .texts("architectures")?
            .ok_or_else(|| json.error("architectures", "is missing, it names the model's class"))?;
        if names.contains(&MISTRAL3) {
            return Self::of_mistral3(json);
        }
        names
            .iter()
            .find_map(|name| Self::named(name))
            .ok_or_else(|| LoadError::UnknownArchitecture {
                file: json.file().to_owned(),
                found: names.join(", "),
                supported: Self::ALL.map(Self::name).join(", "),
            })
    }

    /// The family of the decoder in Mistral's vision-language models.
    fn of_mistral3(json: &JsonFile) -> Result<Self, LoadError> {
        let inner = json.object("text_config")?;
        let kind = inner
            .as_ref()
            .map(|inner| inner.text("model_type"))
            .transpose()?
            .flatten();
        match (kind, &inner) {
            (Some("ministral3"), _) => Ok(Self::Ministral3),
            (Some("mistral") | None, _) => Ok(Self::Mistral),
            (Some(other), inner) => {
                let inner = inner.as_ref().unwrap_or(json);
                let reason = format!("is {other:?}, supported are \"mistral\" and \"ministral3\"");
                Err(inner.error("model_type", reason))
            }
        }
    }
}
