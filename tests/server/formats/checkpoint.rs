//! Writes a copy of the tiny checkpoint with a model family's tokens and chat template.

use std::fs;
use std::path::Path;

use serde_json::{Map, Value, json};
use tempfile::TempDir;

use super::family::{Answer, Call, Family, Form, Reasoning};
use crate::scripted;

/// The number of the tiny checkpoint's added tokens that every family keeps: the markers of turns.
const KEPT_TOKENS: usize = 3;
const FIRST_ADDED_ID: u64 = 704;
/// The exclusive end of the token ids in the checkpoint's embedding table.
const END_ID: u64 = 720;

/// Writes a checkpoint of this family, and returns its folder.
pub fn create(family: &Family) -> TempDir {
    let source = scripted::checkpoint();
    let folder = TempDir::new().expect("a folder can be made");
    let copy = |name: &str| {
        fs::copy(source.join(name), folder.path().join(name)).expect("the fixture is complete");
    };
    ["config.json", "model.safetensors"]
        .into_iter()
        .for_each(copy);
    let read = |name: &str| -> Value {
        let text = fs::read_to_string(source.join(name)).expect("the fixture is complete");
        serde_json::from_str(&text).expect("the fixture is JSON")
    };
    let mut tokenizer = read("tokenizer.json");
    add_tokens(family, &mut tokenizer);
    write(folder.path(), "tokenizer.json", &tokenizer.to_string());
    let (eos, ends) = ends(family);
    let mut config = read("tokenizer_config.json");
    config["eos_token"] = eos.into();
    write(folder.path(), "tokenizer_config.json", &config.to_string());
    let generation = json!({"eos_token_id": ends});
    write(
        folder.path(),
        "generation_config.json",
        &generation.to_string(),
    );
    write(folder.path(), "chat_template.jinja", &template(family));
    folder
}

fn write(folder: &Path, name: &str, text: &str) {
    fs::write(folder.join(name), text).expect("the folder can be written");
}

fn add_tokens(family: &Family, tokenizer: &mut Value) {
    let tokens = tokenizer["added_tokens"].as_array_mut().expect("a list");
    tokens.truncate(KEPT_TOKENS);
    let first = tokens[0].clone();
    for (id, text) in (FIRST_ADDED_ID + KEPT_TOKENS as u64..).zip(family.tokens) {
        assert!(id < END_ID, "no token id is left for {text}");
        let mut token = first.clone();
        token["id"] = id.into();
        token["content"] = (*text).into();
        token["special"] = family.has_special_tokens.into();
        tokens.push(token);
    }
}

/// The EOS token, and the ids of all tokens that end answers.
fn ends(family: &Family) -> (&'static str, Vec<u64>) {
    let id = |text: &str| {
        let place = family.tokens.iter().position(|token| *token == text);
        FIRST_ADDED_ID + (KEPT_TOKENS + place.expect("the family has the token")) as u64
    };
    match family.form {
        Form::Tagged { .. } => ("<|im_end|>", vec![FIRST_ADDED_ID + 2]),
        Form::Messages if family.ends_after_first_call => {
            ("<|return|>", vec![id("<|return|>"), id("<|call|>")])
        }
        Form::Messages => ("<|return|>", vec![id("<|return|>")]),
    }
}

/// A chat template. The engine detects the format of calls from the template's example of a call.
fn template(family: &Family) -> String {
    let (turn, end, reply) = match &family.form {
        Form::Messages => (
            "<|start|>{{ m.role }}<|message|>",
            "<|end|>",
            "<|start|>assistant",
        ),
        Form::Tagged { .. } => (
            "<|im_start|>{{ m.role }}\\n",
            "<|im_end|>\\n",
            "<|im_start|>assistant\\n",
        ),
    };
    let quoted = |text: &str| format!("{{{{- '{text}' -}}}}");
    let (system, turn, reply, end) = (
        turn.replace("{{ m.role }}", "system"),
        turn.replace("{{ m.role }}", "' ~ m.role ~ '"),
        format!("{reply}{}", opened_tag(family)),
        quoted(end),
    );
    let example = family.write(&Answer {
        reasoning: if family.can_produce(&reasoning_alone()) {
            "THOUGHTS"
        } else {
            ""
        },
        content: "",
        calls: vec![Call {
            name: "NAME",
            arguments: Map::from_iter([("KEY".to_owned(), json!("VALUE"))]),
        }],
    });
    [
        "{%- if tools -%}",
        &quoted(&system),
        "{%- for tool in tools -%}{{- tool | tojson ~ '\\n' -}}{%- endfor -%}",
        &format!("{{%- raw -%}}{example}{{%- endraw -%}}"),
        &end,
        "{%- endif -%}{%- for m in messages -%}",
        &quoted(&turn),
        "{{- m.content -}}{%- for call in m.tool_calls or [] -%}",
        "{{- call.function.name ~ call.function.arguments | tojson -}}{%- endfor -%}",
        &end,
        "{%- endfor -%}{%- if add_generation_prompt -%}",
        &quoted(&reply),
        "{%- endif -%}",
    ]
    .concat()
}

fn reasoning_alone() -> Answer {
    Answer {
        reasoning: "So.",
        ..Answer::default()
    }
}

/// The reasoning tag that ends prompts; empty for most families.
fn opened_tag(family: &Family) -> &'static str {
    match family.form {
        Form::Tagged {
            reasoning: Reasoning::Opened(tag, _),
            ..
        } => tag,
        _ => "",
    }
}
