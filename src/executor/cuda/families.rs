//! Which models a GPU can run.

use crate::error::LoadError;
use crate::model::config::ModelConfig;

/// Refuses a model that there are no kernels for.
///
/// # Errors
/// [`LoadError::Device`] for one of Gemma's families, one with experts or latent attention, whose layers keep states, or that
/// scales or rotates in ways of its own.
pub fn check_model(config: &ModelConfig) -> Result<(), LoadError> {
    let lacking = match (&config.recurrent, &config.latent, &config.experts) {
        _ if config.gemma.is_some() => "Gemma's gates and norms",
        (Some(_), ..) => "layers with states",
        (_, Some(_), _) => "latent attention",
        (.., Some(_)) => "experts",
        _ => match way_of_its_own(config) {
            Some(way) => way,
            None => return Ok(()),
        },
    };
    Err(LoadError::Device(format!(
        "{} runs on the CPU only so far, as there are no CUDA kernels for {lacking}: start with --device cpu",
        config.architecture.name()
    )))
}

/// What a dense family computes and other dense families do not.
fn way_of_its_own(config: &ModelConfig) -> Option<&'static str> {
    let scales = [
        config.embedding_scale,
        config.residual_scale,
        config.score_scale,
        config.logits_divisor,
    ];
    let ways = [
        (scales.iter().any(Option::is_some), "scaled activations"),
        (config.query_scale.is_some(), "queries scaled by position"),
        (config.rotated.contains(&false), "layers without rotation"),
        (
            config.rotary_dim < config.head_dim,
            "heads that rotate in part",
        ),
        (config.rope.long_above().is_some(), "rotations by length"),
    ];
    let mut ways = ways.into_iter();
    ways.find_map(|(has, way)| has.then_some(way))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn families_without_kernels_are_refused_by_name() {
        for (name, architecture) in [
            ("qwen3-moe", "Qwen3MoeForCausalLM"),
            ("mixtral", "MixtralForCausalLM"),
            ("deepseek-v2", "DeepseekV2ForCausalLM"),
            ("deepseek-v3", "DeepseekV3ForCausalLM"),
            ("glm4-moe-lite", "Glm4MoeLiteForCausalLM"),
            ("gpt-oss", "GptOssForCausalLM"),
            ("gemma2", "Gemma2ForCausalLM"),
            ("gemma3", "Gemma3ForConditionalGeneration"),
            ("gemma4", "Gemma4ForConditionalGeneration"),
            ("lfm2", "Lfm2ForCausalLM"),
            ("qwen3-next", "Qwen3NextForCausalLM"),
            ("granite", "GraniteForCausalLM"),
            ("smollm3", "SmolLM3ForCausalLM"),
            ("phi3-partial", "Phi3ForCausalLM"),
            ("phi3-longrope", "Phi3ForCausalLM"),
            ("ministral3", "Ministral3ForCausalLM"),
        ] {
            let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/models");
            let config = ModelConfig::read(&models.join(name)).expect("it is read");
            let error = check_model(&config).expect_err("it is refused").to_string();
            assert!(error.starts_with(architecture), "{error}");
            assert!(error.ends_with("start with --device cpu"), "{error}");
        }
    }
}
