//! Writes a copy of the tiny checkpoint with a model family's tokens and chat template.

use std::fs;
use std::path::Path;

use serde_json::{Map, Value, json};
use tempfile::TempDir;

use super::family::{Call, Family, Form, Said, Thoughts};
use crate::scripted;

/// The number of added tokens that every family keeps from the tiny checkpoint: those around turns.
const KEPT_TOKENS: usize = 3;
const FIRST_ID: u64 = 704;
/// The end of the range of token ids that the checkpoint has room for.
const END_ID: u64 = 720;

/// Writes a checkpoint of this family, and returns its folder.
pub fn of(family: &Family) -> TempDir {
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
    for (id, text) in (FIRST_ID + KEPT_TOKENS as u64..).zip(family.tokens) {
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
        FIRST_ID + (KEPT_TOKENS + place.expect("a token of the family")) as u64
    };
    match family.form {
        Form::Tagged { .. } => ("<|im_end|>", vec![FIRST_ID + 2]),
        Form::Messages if family.calls_once => {
            ("<|return|>", vec![id("<|return|>"), id("<|call|>")])
        }
        Form::Messages => ("<|return|>", vec![id("<|return|>")]),
    }
}

/// A template with an example of a call, from which the engine detects the format, and with earlier calls.
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
        format!("{reply}{}", opened(family)),
        quoted(end),
    );
    let example = family.write(&Said {
        reasoning: if family.can_say(&thought()) {
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

fn thought() -> Said {
    Said {
        reasoning: "So.",
        ..Said::default()
    }
}

/// The reasoning tag that ends prompts; empty for most families.
fn opened(family: &Family) -> &'static str {
    match family.form {
        Form::Tagged {
            thoughts: Thoughts::Opened(tag, _),
            ..
        } => tag,
        _ => "",
    }
}
