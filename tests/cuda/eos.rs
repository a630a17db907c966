//! Tests that EOS tokens take effect regardless of the file that names them.

use std::path::Path;

use souffleur_config::EngineConfig;
use souffleur_request::{Event, GenerateRequest, Prompt};

use crate::model::fixture;
use crate::setups::{F32_PAGES_OF_1_GRAPHS, F32_PAGES_OF_16, start_on_cpu};
use crate::world::{World, collect};

/// The end-of-sequence token of the fixture's tokenizer.
const EOS: u32 = 1;
const MIN_NEW_TOKENS: u32 = 5;

/// The fixture, with an end-of-sequence token that only its tokenizer names.
fn fixture_with_tokenizer_eos() -> tempfile::TempDir {
    let (source, dir) = (fixture("llama"), tempfile::tempdir().unwrap());
    for entry in std::fs::read_dir(&source).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, dir.path().join(path.file_name().unwrap())).unwrap();
    }
    for file in ["config.json", "generation_config.json"] {
        let file = dir.path().join(file);
        let text = std::fs::read_to_string(&file).unwrap();
        let mut json: serde_json::Value = serde_json::from_str(&text).unwrap();
        json["eos_token_id"] = serde_json::Value::Null;
        std::fs::write(file, json.to_string()).unwrap();
    }
    dir
}

fn config(setup: &crate::setups::Setup, model: &Path) -> EngineConfig {
    EngineConfig {
        skip_tokenizer_init: false,
        ..setup.config(model)
    }
}

/// Checks that a request with a bias towards the EOS token ends right after its minimum length.
async fn check_minimum_length(world: World) {
    let model = world.engine.model();
    assert_eq!(model.eos_token_ids, [EOS]);
    let mut request = GenerateRequest::new(Prompt::Tokens([7, 8, 9].into()));
    request.sampling.temperature = 0.0;
    request.sampling.min_new_tokens = MIN_NEW_TOKENS;
    request.sampling.max_new_tokens = 20;
    request.sampling.logit_bias = [(EOS, 100.0)].into();
    let outcome = collect(world.generate(request)).await;
    assert!(matches!(outcome.end, Event::Finished(_)), "{outcome:?}");
    let (banned, rest) = outcome.tokens.split_at(MIN_NEW_TOKENS as usize);
    assert!(!banned.contains(&EOS), "{outcome:?}");
    assert_eq!(rest, [EOS]);
    world.stop().await;
}

#[tokio::test]
async fn an_eos_token_that_only_the_tokenizer_names_is_not_sampled_before_the_minimum_length() {
    let model = fixture_with_tokenizer_eos();
    for setup in [F32_PAGES_OF_1_GRAPHS, F32_PAGES_OF_16] {
        let config = config(&setup, model.path());
        check_minimum_length(start_on_cpu(config.clone())).await;
        check_minimum_length(setup.start_on_gpu(config)).await;
    }
}
