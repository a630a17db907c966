//! Tests of engine parts: accepted and refused combinations of parsers, and the header of the message log.

use std::path::Path;

use serde_json::{Value, json};

use super::*;
use souffleur_record::file::LogReader;

/// A model with tool calls in the format of Hermes and with `<think>` tags.
const AGENTS: &str = "tests/fixtures/qwen3-agents";
/// A model whose vocabulary has no tags, not even those of gpt-oss, so that it implies no format.
const PLAIN: &str = "tests/fixtures/models/gpt-oss";

fn folder(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join(name)
}

fn load_text(name: &str) -> TextModel {
    TextModel::load(&folder(name)).expect("a valid folder")
}

/// A model with gpt-oss's message tags in its vocabulary.
fn text_with_messages() -> TextModel {
    let tokenizer = std::fs::read(folder(AGENTS).join("tokenizer.json")).expect("a file");
    let mut tokenizer: Value = serde_json::from_slice(&tokenizer).expect("JSON");
    let list = tokenizer["added_tokens"].as_array_mut().expect("a list");
    let last = list.last().cloned().expect("a token");
    let next = last["id"].as_u64().expect("a number") + 1;
    for (id, tag) in (next..).zip(["<|channel|>", "<|message|>", "<|call|>"]) {
        let mut token = last.clone();
        token["id"] = json!(id);
        token["content"] = json!(tag);
        list.push(token);
    }
    let dir = tempfile::tempdir().expect("a temporary folder");
    let file = dir.path().join("tokenizer.json");
    std::fs::write(file, tokenizer.to_string()).expect("a writable folder");
    TextModel::load(dir.path()).expect("a valid folder")
}

fn formats(text: &TextModel, tool: &str, reasoning: &str) -> Result<OutputFormats, ConfigError> {
    let config = EngineConfig {
        tool_call_parser: tool.to_owned(),
        reasoning_parser: reasoning.to_owned(),
        ..EngineConfig::default()
    };
    answer_formats(&config, text).map(|formats| formats.formats())
}

/// A replay needs these parameters, because they change keys, values and output tokens.
#[test]
fn the_header_of_a_log_records_the_parameters_of_double_sparsity() {
    let (model, dir) = (folder("tests/fixtures/models/qwen3"), tempfile::tempdir());
    let dir = dir.expect("a temporary folder");
    let described = cpu::describe(&model, None, None, Default::default());
    let described = described.expect("a valid model");
    let layers = described.kv_layout.layers().iter().enumerate();
    let rows = layers.filter_map(|(layer, kv)| {
        let rows = Value::from(vec![json!([0, 1]); kv.pages()?.heads]);
        Some((format!("model.layers.{layer}.self_attn.qk_proj"), rows))
    });
    let channels = dir.path().join("channels.json");
    let file = Value::Object(rows.collect()).to_string();
    std::fs::write(&channels, file).expect("a writable folder");
    let dense = EngineConfig {
        model_path: model,
        max_total_tokens: Some(1024),
        record: Some(dir.path().join("log")),
        ..EngineConfig::default()
    };
    let header = |config: &EngineConfig| {
        let parts = EngineParts::from_model(config, Progress::silent()).expect("it can run");
        drop(parts.blueprint(config).expect("it can be recorded"));
        let log = std::fs::File::open(dir.path().join("log")).expect("a log");
        let reader = LogReader::open(log).expect("a log with its header");
        reader.header().double_sparsity.clone()
    };
    let sparse = |tokens: usize| EngineConfig {
        enable_double_sparsity: true,
        ds_channel_config_path: Some(channels.clone()),
        ds_heavy_channel_num: Some(2),
        ds_heavy_token_num: tokens,
        ..dense.clone()
    };
    let [few, more] = [8, 9].map(|tokens| header(&sparse(tokens)).expect("it is sparse"));
    assert!(
        few.starts_with("ds-qk-2-8-") && more.starts_with("ds-qk-2-9-"),
        "{few} {more}"
    );
    assert_eq!(header(&dense), None);
}

#[test]
fn a_parser_that_conflicts_with_the_models_other_format_is_refused() {
    let (agents, messages) = (load_text(AGENTS), text_with_messages());
    for (text, tool, reasoning, key, model) in [
        (&agents, "gpt-oss", "auto", "tool_call_parser", "qwen3"),
        (&agents, "auto", "gpt-oss", "reasoning_parser", "qwen25"),
        (&messages, "qwen25", "auto", "tool_call_parser", "gpt-oss"),
        (&messages, "auto", "qwen3", "reasoning_parser", "gpt-oss"),
    ] {
        let error = formats(text, tool, reasoning).expect_err("no output follows both");
        assert_eq!(error.key, key);
        for part in [tool, reasoning, model] {
            assert!(error.reason.contains(&format!("{part:?}")), "{error}");
        }
    }
}

#[test]
fn the_gpt_oss_parser_combines_with_none_and_with_models_of_unknown_formats() {
    let gpt_oss = OutputFormats {
        tool: Some(ToolFormat::GptOss),
        reasoning: Some(ReasoningFormat::GptOss),
    };
    let (calls, thoughts) = (
        OutputFormats {
            reasoning: None,
            ..gpt_oss
        },
        OutputFormats {
            tool: None,
            ..gpt_oss
        },
    );
    let (agents, plain, messages) = (load_text(AGENTS), load_text(PLAIN), text_with_messages());
    for (text, tool, reasoning, expected) in [
        (&agents, "gpt-oss", "gpt-oss", gpt_oss),
        (&agents, "gpt-oss", "none", calls),
        (&agents, "none", "gpt-oss", thoughts),
        (&plain, "gpt-oss", "auto", calls),
        (&plain, "auto", "gpt-oss", thoughts),
        (&messages, "auto", "auto", gpt_oss),
        (&messages, "gpt-oss", "auto", gpt_oss),
        (&messages, "none", "auto", thoughts),
        (&messages, "auto", "none", calls),
    ] {
        assert_eq!(formats(text, tool, reasoning).ok(), Some(expected));
    }
}
