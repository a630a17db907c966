//! Rejects models that the CUDA kernels do not support, by their family and their configuration fields.

use souffleur_base::error::LoadError;
use souffleur_model::config::ModelConfig;
pub use souffleur_model::layer_spec::QkNorm;

/// Rejects a model that the CUDA kernels do not support.
///
/// # Errors
/// [`LoadError::Device`] naming the family and the part that has no kernel.
pub fn check_model(config: &ModelConfig) -> Result<(), LoadError> {
    let of_family = config.architecture.missing_on_cuda();
    let Some(lacking) = field_without_kernel(config).or(of_family) else {
        return Ok(());
    };
    Err(LoadError::Device(format!(
        "{} runs only on the CPU so far, as there are no CUDA kernels for {lacking}: start with --device cpu",
        config.architecture.name()
    )))
}

/// The pattern names every field, so that a new field fails to compile until it is handled here.
fn field_without_kernel(config: &ModelConfig) -> Option<&'static str> {
    let ModelConfig {
        architecture: _,
        vocab_size: _,
        hidden_size: _,
        intermediate_size: _,
        experts,
        num_hidden_layers: _,
        num_attention_heads: _,
        num_key_value_heads: _,
        head_dim,
        latent,
        rms_norm_eps: _,
        tie_word_embeddings: _,
        bias: _,
        qk_norm,
        recurrent,
        rotary_dim,
        rotated,
        embedding_scale,
        residual_scale,
        score_scale,
        logits_divisor,
        query_scale: _,
        gemma,
        sinks,
        windows: _,
        max_position_embeddings: _,
        rope,
        mrope: _,
        deepstack: _,
        bos_token_id: _,
        eos_token_ids: _,
        dtype: _,
    } = config;
    let scales = [embedding_scale, residual_scale, score_scale, logits_divisor];
    let parts = [
        (gemma.is_some(), "Gemma's gates and norms"),
        (recurrent.is_some(), "recurrent layers"),
        (latent.is_some(), "latent attention"),
        (experts.is_some(), "experts"),
        (*sinks, "attention sinks"),
        (*qk_norm == QkNorm::Whole, "QK norms over whole projections"),
        (
            scales.into_iter().any(Option::is_some),
            "scaled activations",
        ),
        (rotated.contains(&false), "layers without RoPE"),
        (rotary_dim < head_dim, "partial rotary embeddings"),
        (
            rope.long_above().is_some(),
            "length-dependent RoPE (longrope)",
        ),
    ];
    let mut parts = parts.into_iter();
    parts.find_map(|(has, part)| has.then_some(part))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::*;
    use souffleur_model::config::Architecture;

    fn models() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/models")
    }

    fn fixture(name: &str) -> ModelConfig {
        ModelConfig::read(&models().join(name)).expect("the config parses")
    }

    #[test]
    fn a_dense_family_with_a_field_of_another_is_refused() {
        let dense = fixture("qwen3");
        check_model(&dense).expect("the model is supported");
        let with_sinks = ModelConfig {
            sinks: true,
            ..dense
        };
        let error = check_model(&with_sinks).expect_err("the model is refused");
        assert!(error.to_string().contains("attention sinks"), "{error}");
    }

    #[test]
    fn a_family_without_kernels_is_refused_whatever_its_fields() {
        let dense = fixture("qwen3");
        for architecture in Architecture::all() {
            let config = ModelConfig {
                architecture,
                ..dense.clone()
            };
            let runs = check_model(&config).is_ok();
            assert_eq!(runs, architecture.missing_on_cuda().is_none());
        }
        let config = ModelConfig {
            architecture: fixture("gpt-oss").architecture,
            ..dense
        };
        check_model(&config).expect_err("clamped gates are refused");
    }

    #[test]
    fn errors_of_unsupported_models_name_the_family_and_the_cpu() {
        let mut refused = Vec::new();
        for entry in fs::read_dir(models()).expect("the fixtures exist") {
            let name = entry.expect("the entry can be read").file_name();
            let name = name.to_str().expect("plain names").to_owned();
            let config = fixture(&name);
            let Err(error) = check_model(&config) else {
                assert_eq!(config.architecture.missing_on_cuda(), None, "{name}");
                continue;
            };
            let error = error.to_string();
            assert!(error.starts_with(config.architecture.name()), "{error}");
            assert!(error.ends_with("start with --device cpu"), "{error}");
            refused.push(name);
        }
        // Refused by their fields; other models of these families run.
        for name in ["granite", "smollm3", "phi3-partial", "phi3-longrope"] {
            assert!(refused.iter().any(|refused| refused == name), "{name}");
        }
    }
}
