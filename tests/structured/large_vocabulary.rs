//! Tests structured output with a vocabulary of 150,000 byte-level tokens, some of them malformed.

use std::path::Path;

use serde_json::{Value, json};
use souffleur_config::{DtypeChoice, EngineConfig};
use souffleur_model::loader::LoadFormat;

use crate::model::{Model, base_config};
use crate::schemas::schemas;
use crate::tokenizers::{MARKERS, byte_level};
use crate::validity::{Tally, check_schema};

const TOKENS: usize = 150_000;
/// Rows of the output head that belong to no token.
const SPARE: usize = 64;
/// Every sixth schema is tested.
const EVERY: usize = 6;
const REQUESTS_PER_SCHEMA: u64 = 8;

/// Writes a model without weights.
fn write_model(dir: &Path) {
    let write = |file: &str, value: &Value| {
        std::fs::write(dir.join(file), value.to_string()).expect("the folder is writable");
    };
    write("tokenizer.json", &byte_level(TOKENS));
    write(
        "tokenizer_config.json",
        &json!({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": MARKERS[0]}),
    );
    write(
        "config.json",
        &json!({
            "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3",
            "vocab_size": TOKENS + MARKERS.len() + SPARE, "hidden_size": 16, "intermediate_size": 16,
            "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 16,
            "hidden_act": "silu", "max_position_embeddings": 4096, "rms_norm_eps": 1e-6,
            "rope_theta": 10000.0, "tie_word_embeddings": true, "torch_dtype": "float32",
            "eos_token_id": [TOKENS, TOKENS + 1],
        }),
    );
}

#[tokio::test]
async fn outputs_with_150_000_tokens_to_choose_from_end_and_are_valid() {
    let dir = tempfile::tempdir().expect("a folder can be made");
    write_model(dir.path());
    let model = Model::start(EngineConfig {
        model_path: dir.path().to_owned(),
        load_format: LoadFormat::Dummy,
        dtype: DtypeChoice::Float32,
        ..base_config()
    });
    assert_eq!(model.eos, [TOKENS as u32, TOKENS as u32 + 1]);
    let mut all = Tally::default();
    let schemas = schemas();
    for schema in schemas.iter().enumerate().skip(3).step_by(EVERY) {
        all.add(&check_schema(&model, schema, 0..REQUESTS_PER_SCHEMA).await);
    }
    assert!(all.ended > 80, "{all:?}");
    all.assert_enough();
    model.stop().await;
}
