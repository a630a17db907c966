//! Collects the request fields that constrain the answer, by their names in each API.

use super::{JsonOptions, Kind, Rule, must_be, unknown};
use crate::error::ApiError;
use crate::fields::Fields;
use crate::raw::Raw;
use souffleur_base::field::Field;
use souffleur_state::grammar::JsonWhitespace;

/// Maximum bytes of the regex for white space in JSON.
pub(crate) const MAX_PATTERN_BYTES: usize = 256;

/// Adds OpenAI's and SGLang's `response_format`.
pub(super) fn response_format(fields: &mut Fields, found: &mut Vec<Rule>) -> Result<(), ApiError> {
    const NAME: &str = "response_format";
    const KINDS: &str = "an object with a type: text, json_object, json_schema or structural_tag";
    let Some(raw) = fields.take_raw(NAME) else {
        return Ok(());
    };
    if !raw.is_object() {
        return must_be(NAME, &raw, KINDS);
    }
    let mut format = fields.nested(NAME, &raw)?;
    let mut add = |kind, path: &str, raw, json| {
        let path = path.to_owned();
        found.push(Rule {
            kind,
            path,
            raw,
            json,
        });
    };
    match format.text("type").as_deref() {
        Some("text") => (),
        // Some servers accept a schema here, so it is applied and not silently ignored.
        Some("json_object") => match format.take_raw("schema") {
            Some(schema) => add(
                Kind::JsonSchema,
                "response_format.schema",
                schema,
                JsonOptions::default(),
            ),
            None => add(Kind::JsonObject, NAME, raw, JsonOptions::default()),
        },
        Some("json_schema") => {
            let (schema, options) = json_schema(fields, &mut format)?;
            let path = "response_format.json_schema.schema";
            add(Kind::JsonSchema, path, schema, options);
        }
        Some("structural_tag") => add(Kind::StructuralTag, NAME, raw, JsonOptions::default()),
        Some(_) => {
            let kind = format.take_raw("type");
            let kinds = "text, json_object, json_schema or structural_tag";
            return must_be("response_format.type", kind.as_ref().unwrap_or(&raw), kinds);
        }
        None => return must_be(NAME, &raw, KINDS),
    }
    Ok(())
}

/// Adds `text.format` of the Responses API. Its `schema` is next to `type`, not inside `json_schema`.
pub(super) fn text_format(fields: &mut Fields, found: &mut Vec<Rule>) -> Result<(), ApiError> {
    const NAME: &str = "text.format";
    const KINDS: &str = "text, json_object or json_schema";
    let Some(format) = fields.object("text")?.take_raw("format") else {
        return Ok(());
    };
    let mut object = fields.nested(NAME, &format)?;
    let (kind, path, raw, json) = match object.text("type").as_deref() {
        Some("text") => return Ok(()),
        Some("json_object") => (
            Kind::JsonObject,
            NAME.to_owned(),
            format,
            JsonOptions::default(),
        ),
        Some("json_schema") => {
            let json = JsonOptions {
                is_strict: flag(&mut object, NAME, "strict")?,
                ..JsonOptions::default()
            };
            let path = format!("{NAME}.schema");
            let Some(schema) = object.take_raw("schema") else {
                let text = format!("{path} is missing: send a JSON schema");
                return Err(ApiError::field(path, text));
            };
            (Kind::JsonSchema, path, schema, json)
        }
        _ => {
            let Some(kind) = object.take_raw("type") else {
                let text = format!("text.format.type is missing: send {KINDS}");
                return Err(ApiError::field("text.format.type", text));
            };
            return must_be("text.format.type", &kind, KINDS);
        }
    };
    found.push(Rule {
        kind,
        path,
        raw,
        json,
    });
    Ok(())
}

fn json_schema(fields: &Fields, format: &mut Fields) -> Result<(Raw, JsonOptions), ApiError> {
    const NAME: &str = "response_format.json_schema";
    let missing = |path: String, send: &str| {
        let text = format!("{path} is missing: send {send}");
        ApiError::field(path, text)
    };
    let raw = format.take_raw("json_schema");
    let raw = raw.ok_or_else(|| missing(NAME.to_owned(), "an object with name and schema"))?;
    let mut object = fields.nested(NAME, &raw)?;
    let options = JsonOptions {
        is_strict: flag(&mut object, NAME, "strict")?,
        ..JsonOptions::default()
    };
    let schema = object.take_raw("schema");
    let schema = schema.ok_or_else(|| missing(format!("{NAME}.schema"), "a JSON schema"))?;
    Ok((schema, options))
}

pub(super) fn of_sglang(params: &mut Fields, found: &mut Vec<Rule>) {
    let kinds = [
        ("json_schema", Kind::JsonSchema),
        ("regex", Kind::Regex),
        ("ebnf", Kind::Ebnf),
        ("structural_tag", Kind::StructuralTag),
    ];
    add_each(params, "", kinds, &JsonOptions::default(), found);
}

/// Adds vLLM's `structured_outputs`.
pub(super) fn structured_outputs(
    fields: &mut Fields,
    found: &mut Vec<Rule>,
) -> Result<(), ApiError> {
    const NAME: &str = "structured_outputs";
    const KNOWN: [&str; 9] = [
        "json",
        "regex",
        "choice",
        "grammar",
        "json_object",
        "structural_tag",
        "whitespace_pattern",
        "disable_any_whitespace",
        "disable_additional_properties",
    ];
    let Some(raw) = fields.take_raw(NAME) else {
        return Ok(());
    };
    let mut object = fields.nested(NAME, &raw)?;
    let pattern = whitespace_pattern(&mut object, "whitespace_pattern", NAME)?;
    let is_compact = flag(&mut object, NAME, "disable_any_whitespace")?;
    let whitespace = match (pattern, is_compact) {
        (Some(_), true) => {
            let (other, path) = (
                "whitespace_pattern",
                format!("{NAME}.disable_any_whitespace"),
            );
            let text = format!("{path} and {other} contradict each other: send one of them");
            return Err(ApiError::field(path, text));
        }
        (Some(pattern), false) => pattern,
        (None, true) => JsonWhitespace::Compact,
        (None, false) => JsonWhitespace::default(),
    };
    let options = JsonOptions {
        whitespace,
        is_strict: flag(&mut object, NAME, "disable_additional_properties")?,
    };
    check_flag(&object, NAME, "json_object")?;
    let kinds = [
        ("json", Kind::JsonSchema),
        ("regex", Kind::Regex),
        ("choice", Kind::Choice),
        ("grammar", Kind::Ebnf),
        ("json_object", Kind::JsonObject),
        ("structural_tag", Kind::StructuralTag),
    ];
    add_each(&mut object, "structured_outputs.", kinds, &options, found);
    // These fields select vLLM's constraint library and are ignored.
    object.take_raw("disable_fallback");
    object.take_raw("_backend");
    object.take_raw("_backend_was_auto");
    match object.first_unread() {
        Some(name) => Err(unknown(NAME, &name, &KNOWN)),
        None => Ok(()),
    }
}

/// Adds vLLM's older fields.
pub(super) fn guided(fields: &mut Fields, found: &mut Vec<Rule>) -> Result<(), ApiError> {
    let pattern = whitespace_pattern(fields, "guided_whitespace_pattern", "")?;
    let options = JsonOptions {
        whitespace: pattern.unwrap_or_default(),
        is_strict: false,
    };
    check_flag(fields, "", "guided_json_object")?;
    // This field selects vLLM's constraint library and is ignored.
    fields.string("guided_decoding_backend")?;
    let kinds = [
        ("guided_json", Kind::JsonSchema),
        ("guided_regex", Kind::Regex),
        ("guided_choice", Kind::Choice),
        ("guided_grammar", Kind::Ebnf),
        ("guided_json_object", Kind::JsonObject),
    ];
    add_each(fields, "", kinds, &options, found);
    Ok(())
}

fn add_each<const N: usize>(
    fields: &mut Fields,
    prefix: &str,
    kinds: [(&str, Kind); N],
    json: &JsonOptions,
    found: &mut Vec<Rule>,
) {
    for (name, kind) in kinds {
        let raw = fields.take_raw(name);
        if let Some(raw) = raw.filter(|raw| !raw.has_no_effect()) {
            found.push(Rule {
                kind,
                path: format!("{prefix}{name}"),
                raw,
                json: json.clone(),
            });
        }
    }
}

fn whitespace_pattern(
    fields: &mut Fields,
    name: &str,
    parent: &str,
) -> Result<Option<JsonWhitespace>, ApiError> {
    let path = path(parent, name);
    let raw = fields.take_raw(name);
    let Some(raw) = raw.filter(|raw| !raw.has_no_effect()) else {
        return Ok(None);
    };
    let value = raw.shallow(&path)?;
    match value.as_str() {
        Some(pattern) if pattern.len() <= MAX_PATTERN_BYTES => {
            Ok(Some(JsonWhitespace::Pattern(pattern.into())))
        }
        _ => {
            let wanted = format!("a string of at most {MAX_PATTERN_BYTES} bytes");
            must_be(&path, &raw, &wanted)
        }
    }
}

fn flag(object: &mut Fields, parent: &str, name: &str) -> Result<bool, ApiError> {
    match object.take_raw(name) {
        None => Ok(false),
        Some(raw) => {
            let path = path(parent, name);
            Ok(Field::new(&path, &raw.shallow(&path)?).boolean()?)
        }
    }
}

/// Checks that a field is true or false, without taking it out.
fn check_flag(object: &Fields, parent: &str, name: &str) -> Result<(), ApiError> {
    let Some(raw) = object.peek(name) else {
        return Ok(());
    };
    let path = path(parent, name);
    Field::new(&path, &raw.shallow(&path)?).boolean()?;
    Ok(())
}

fn path(parent: &str, name: &str) -> String {
    match parent {
        "" => name.to_owned(),
        parent => format!("{parent}.{name}"),
    }
}
