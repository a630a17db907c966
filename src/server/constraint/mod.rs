//! Reads the fields of SGLang, OpenAI and vLLM that constrain the answer, such as a JSON schema or a regex.

mod names;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use serde_json::Value;

use super::error::ApiError;
use super::fields::Fields;
use super::raw::Raw;
pub(super) use names::MAX_PATTERN_BYTES;
use souffleur_base::field::{Cut, Field, Shallow};
use souffleur_state::grammar::{Constraint, JsonWhitespace};

const MAX_BYTES: usize = 1 << 20;

/// Reads the constraint of a call to one of OpenAI's endpoints.
///
/// # Errors
/// An error that names both fields if two fields constrain the answer, or the field whose value is invalid.
pub(super) fn of_openai_call(fields: &mut Fields) -> Result<Option<Arc<Constraint>>, ApiError> {
    let mut found = Vec::new();
    names::response_format(fields, &mut found)?;
    names::of_sglang(fields, &mut found);
    names::structured_outputs(fields, &mut found)?;
    names::guided(fields, &mut found)?;
    read_single(found, fields)
}

/// As [`of_openai_call`], for the Responses API, which has the format in `text.format`.
pub(super) fn of_responses_call(fields: &mut Fields) -> Result<Option<Arc<Constraint>>, ApiError> {
    let mut found = Vec::new();
    names::text_format(fields, &mut found)?;
    names::response_format(fields, &mut found)?;
    names::of_sglang(fields, &mut found);
    names::structured_outputs(fields, &mut found)?;
    names::guided(fields, &mut found)?;
    read_single(found, fields)
}

/// As [`of_openai_call`], for SGLang's sampling parameters in the object `raw`. Memory is charged to `fields`.
pub(super) fn of_sampling_params(
    fields: &mut Fields,
    name: &str,
    raw: &Raw,
) -> Result<Option<Arc<Constraint>>, ApiError> {
    let mut found = Vec::new();
    names::of_sglang(&mut fields.nested(name, raw)?, &mut found);
    read_single(found, fields)
}

/// Reads the JSON schema `raw` at `path` as a constraint. Errors name the path.
pub(super) fn of_schema(
    fields: &mut Fields,
    path: &str,
    raw: Raw,
) -> Result<Option<Arc<Constraint>>, ApiError> {
    let rule = Rule {
        kind: Kind::JsonSchema,
        path: path.to_owned(),
        raw,
        json: JsonOptions::default(),
    };
    read_single(vec![rule], fields)
}

fn read_single(found: Vec<Rule>, fields: &mut Fields) -> Result<Option<Arc<Constraint>>, ApiError> {
    let mut found = found.into_iter();
    let Some(only) = found.next() else {
        return Ok(None);
    };
    if let Some(second) = found.next() {
        let (one, other) = (only.path, second.path);
        let text = format!("{one} and {other} both constrain the answer: send one of them");
        return Err(ApiError::field(other, text));
    }
    let limit = MAX_BYTES;
    let bytes = only.raw.bytes().len();
    if bytes > limit {
        let text = format!("{} has {bytes} bytes, limit is {limit}", only.path);
        return Err(ApiError::field(only.path, format!("{text}: shorten it")));
    }
    only.read(fields)
        .map(|constraint| Some(Arc::new(constraint)))
}

/// A field that constrains the answer.
struct Rule {
    kind: Kind,
    path: String,
    raw: Raw,
    json: JsonOptions,
}

#[derive(Clone, Copy)]
enum Kind {
    JsonObject,
    JsonSchema,
    Regex,
    Ebnf,
    Choice,
    StructuralTag,
}

/// Options of constraints that require JSON.
#[derive(Clone, Default)]
struct JsonOptions {
    whitespace: JsonWhitespace,
    is_strict: bool,
}

impl Rule {
    fn read(self, fields: &mut Fields) -> Result<Constraint, ApiError> {
        match self.kind {
            Kind::JsonObject => Ok(Constraint::JsonObject(self.json.whitespace)),
            Kind::JsonSchema => Ok(Constraint::JsonSchema {
                schema: self.object(fields, "a JSON schema")?,
                whitespace: self.json.whitespace,
                is_strict: self.json.is_strict,
            }),
            Kind::Regex => Ok(Constraint::Regex(self.text(fields)?)),
            Kind::Ebnf => Ok(Constraint::Ebnf(self.text(fields)?)),
            Kind::Choice => Ok(Constraint::Choice(self.texts(fields)?)),
            Kind::StructuralTag => Ok(Constraint::StructuralTag(
                self.object(fields, "a structural tag")?,
            )),
        }
    }

    /// An object, or a string with the object's JSON, as SGLang's clients send it.
    fn object(&self, fields: &mut Fields, name: &str) -> Result<Arc<Value>, ApiError> {
        let wanted = format!("{name}: an object, or a string with its JSON");
        let in_text;
        let raw = if self.raw.is_text() {
            fields.charge_request(&self.raw)?;
            in_text = Raw::in_text(&self.raw.parse::<String>(&self.path)?);
            &in_text
        } else {
            &self.raw
        };
        if raw.is_object() {
            fields.request_tree(&self.path, raw).map(Arc::new)
        } else {
            self.must_be(&wanted)
        }
    }

    fn text(&self, fields: &mut Fields) -> Result<Arc<str>, ApiError> {
        if !self.raw.is_text() {
            return self.must_be("a string");
        }
        fields.charge_request(&self.raw)?;
        let text: String = self.raw.parse(&self.path)?;
        Ok(text.into())
    }

    fn texts(&self, fields: &mut Fields) -> Result<Arc<[String]>, ApiError> {
        if !self.raw.is_list() {
            return self.must_be("a list of strings");
        }
        let Value::Array(items) = fields.request_tree(&self.path, &self.raw)? else {
            return self.must_be("a list of strings");
        };
        let text = |(index, item)| match item {
            Value::String(text) => Ok(text),
            other => Err(
                Field::new(&format!("{}[{index}]", self.path), &Shallow::of(&other))
                    .must_be("a string")
                    .into(),
            ),
        };
        items.into_iter().enumerate().map(text).collect()
    }

    fn must_be<T>(&self, wanted: &str) -> Result<T, ApiError> {
        must_be(&self.path, &self.raw, wanted)
    }
}

fn must_be<T>(path: &str, raw: &Raw, wanted: &str) -> Result<T, ApiError> {
    let value = raw.shallow(path)?;
    Err(Field::new(path, &value).must_be(wanted).into())
}

fn unknown(path: &str, name: &str, known: &[&str]) -> ApiError {
    let shown = Cut(name);
    let text = format!(
        "{path} has an unknown field {shown}: use one of {}",
        known.join(", ")
    );
    ApiError::field(path, text)
}
