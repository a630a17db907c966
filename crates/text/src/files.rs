//! Reads the files next to `tokenizer.json`: `tokenizer_config.json` and the chat templates.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::SpecialTokens;
use souffleur_base::error::LoadError;

#[derive(Debug, Default)]
pub(super) struct TokenizerConfig {
    pub(super) special: SpecialTokens,
    pub(super) add_bos_token: Option<bool>,
    templates: Option<TemplateSources>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TemplateSources {
    /// The file that contains the templates, for error messages.
    pub(super) file: PathBuf,
    pub(super) default: String,
    /// The template for requests with tools, if it differs.
    pub(super) tool_use: Option<String>,
}

pub(super) fn read(file: &Path) -> Result<Vec<u8>, LoadError> {
    std::fs::read(file).map_err(|source| LoadError::Io {
        file: file.to_owned(),
        source,
    })
}

/// Returns the chat templates: a separate file takes precedence over the configuration.
pub(super) fn template_sources(
    dir: &Path,
    config: &TokenizerConfig,
) -> Result<Option<TemplateSources>, LoadError> {
    let jinja = dir.join("chat_template.jinja");
    if jinja.is_file() {
        let default = String::from_utf8(read(&jinja)?)
            .map_err(|_| malformed(&jinja, "is not UTF-8".to_owned()))?;
        return Ok(Some(TemplateSources {
            file: jinja,
            default,
            tool_use: None,
        }));
    }
    let json = dir.join("chat_template.json");
    if json.is_file() {
        let object = read_object(&json)?;
        if let Some(sources) = templates_of(&json, object.get("chat_template"))? {
            return Ok(Some(sources));
        }
    }
    Ok(config.templates.clone())
}

impl TokenizerConfig {
    pub(super) fn load(dir: &Path) -> Result<Self, LoadError> {
        let file = dir.join("tokenizer_config.json");
        if !file.is_file() {
            return Ok(Self::default());
        }
        let object = read_object(&file)?;
        let token = |name: &str| token_of(&file, name, object.get(name));
        Ok(Self {
            special: SpecialTokens {
                bos: token("bos_token")?,
                eos: token("eos_token")?,
                pad: token("pad_token")?,
                unk: token("unk_token")?,
            },
            add_bos_token: object.get("add_bos_token").and_then(Value::as_bool),
            templates: templates_of(&file, object.get("chat_template"))?,
        })
    }
}

fn read_object(file: &Path) -> Result<Map<String, Value>, LoadError> {
    serde_json::from_slice(&read(file)?)
        .map_err(|error| malformed(file, format!("not a JSON object: {error}")))
}

/// A token is written as its text or as an object with the text under `content`.
fn token_of(file: &Path, name: &str, value: Option<&Value>) -> Result<Option<String>, LoadError> {
    match value {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(Value::Object(object)) => match object.get("content") {
            Some(Value::String(text)) => Ok(Some(text.clone())),
            _ => Err(malformed(file, format!("{name}.content is not a string"))),
        },
        Some(_) => Err(malformed(
            file,
            format!("{name} is neither a string nor an object"),
        )),
    }
}

/// `chat_template` is one text or a list of named templates.
fn templates_of(file: &Path, value: Option<&Value>) -> Result<Option<TemplateSources>, LoadError> {
    let sources = |default: String, tool_use| TemplateSources {
        file: file.to_owned(),
        default,
        tool_use,
    };
    match value {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(sources(text.clone(), None))),
        Some(Value::Array(entries)) => {
            let named = |name: &str| {
                let entry = entries.iter().find(|entry| entry["name"] == name)?;
                entry["template"].as_str().map(str::to_owned)
            };
            match named("default") {
                Some(default) => Ok(Some(sources(default, named("tool_use")))),
                None => Err(malformed(
                    file,
                    "chat_template is a list without a template named \"default\": add one of this name, or the file \
                     chat_template.jinja to the same folder"
                        .to_owned(),
                )),
            }
        }
        Some(_) => Err(malformed(
            file,
            "chat_template is neither a string nor a list: correct it, or add the file chat_template.jinja to the same \
             folder"
                .to_owned(),
        )),
    }
}

fn malformed(file: &Path, reason: String) -> LoadError {
    LoadError::Format {
        file: file.to_owned(),
        reason,
    }
}
