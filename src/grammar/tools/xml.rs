//! Writes parameters between tags, as Qwen3-Coder (`<parameter=row>`, the value, `</parameter>`, each on a separate
//! line) or as GLM (`<arg_key>row</arg_key>`, `<arg_value>4</arg_value>`).
//!
//! Strings are written without quotes. The output parser reads every other value as JSON of the schema's type.

use serde_json::{Map, Value, json};

use super::schemas::{constants, options, properties, resolved, with_definitions};
use crate::part::{Free, Part};
use crate::regex;
use souffleur_base::error::FieldError;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Tags {
    before_name: &'static str,
    after_name: &'static str,
    /// The tag that values must not contain.
    close: &'static str,
    before_close: &'static str,
    after_close: &'static str,
}

impl Tags {
    pub(crate) const QWEN: Self = Self {
        before_name: "<parameter=",
        after_name: ">\n",
        close: "</parameter>",
        before_close: "\n",
        after_close: "\n",
    };

    /// GLM's tags. `line` is the text between them: a line break, or empty.
    pub(super) fn glm(line: &'static str) -> Self {
        Self {
            before_name: "<arg_key>",
            after_name: match line {
                "" => "</arg_key><arg_value>",
                _ => "</arg_key>\n<arg_value>",
            },
            close: "</arg_value>",
            before_close: "",
            after_close: line,
        }
    }

    fn begin(self, name: &str) -> String {
        format!("{}{name}{}", self.before_name, self.after_name)
    }

    fn end(self) -> String {
        format!("{}{}{}", self.before_close, self.close, self.after_close)
    }
}

/// Writes the parameters of an object's schema, in the schema's order.
///
/// # Errors
/// Names the property or keyword that the format cannot express.
pub(crate) fn parameters(field: &str, schema: &Value, tags: Tags) -> Result<Part, FieldError> {
    let properties = properties(field, schema)?;
    let mut fields = Vec::new();
    for property in properties {
        let name = property.name;
        if name.contains(['<', '>', '\n']) || name.trim() != name || name.is_empty() {
            let reason = format!(
                "{field} the property {name:?} cannot be written in XML: rename it, without <, > and line breaks, and \
                 without blanks at its ends"
            );
            return Err(FieldError::new(field, reason));
        }
        let begin = tags.begin(name);
        let value = value(field, name, property.schema, schema, tags)?;
        let part = match value {
            ValueForm::Raw(free) => Part::Tag {
                begin,
                content: Box::new(Part::Free(free)),
                ends: vec![tags.end()],
            },
            ValueForm::Whole(part) => {
                Part::Sequence(vec![Part::Text(begin), part, Part::Text(tags.end())])
            }
        };
        fields.push((part, property.presence));
    }
    Ok(Part::Fields {
        fields,
        separator: String::new(),
    })
}

pub(crate) fn any_parameters(tags: Tags) -> Part {
    let name = Part::Terminal("/[^<>\\s]+/".to_owned());
    let parameter = Part::Sequence(vec![
        Part::text(tags.before_name),
        name,
        Part::Tag {
            begin: tags.after_name.to_owned(),
            content: Box::new(Part::Free(raw(Vec::new(), tags))),
            ends: vec![tags.end()],
        },
    ]);
    Part::any_number(parameter)
}

enum ValueForm {
    Raw(Free),
    Whole(Part),
}

fn value(
    field: &str,
    name: &str,
    schema: &Value,
    root: &Value,
    tags: Tags,
) -> Result<ValueForm, FieldError> {
    let target = resolved(schema, root);
    if let Some(texts) = texts(target, tags) {
        let texts = texts.into_iter().map(Part::text).collect();
        return Ok(ValueForm::Whole(Part::Choice(texts)));
    }
    match string_terminals(target, root) {
        Some(matches) => Ok(ValueForm::Raw(raw(matches, tags))),
        None if may_be_text(target, root, 0) => {
            let reason = format!(
                "{field} the property {name:?} may be a string or another type, which XML cannot distinguish: give \
                 it one type"
            );
            Err(FieldError::new(field, reason))
        }
        None => Ok(ValueForm::Whole(Part::json(with_definitions(schema, root)))),
    }
}

fn raw(matches: Vec<String>, tags: Tags) -> Free {
    Free {
        excludes: vec![tags.close.to_owned()],
        matches,
        not_at_first: None,
        is_plain: true,
    }
}

/// The texts of an enumeration of strings; `None` if a text cannot be written between the tags.
fn texts(schema: &Value, tags: Tags) -> Option<Vec<String>> {
    let values = constants(schema.as_object()?)?.into_iter();
    let texts = values.map(|value| value.as_str().map(str::to_owned));
    let texts: Vec<String> = texts.collect::<Option<_>>()?;
    // A newline at either end would be read as part of the format.
    let is_plain = |text: &String| !text.contains(tags.close) && text.trim_matches('\n') == text;
    texts.iter().all(is_plain).then_some(texts)
}

/// The Lark terminals that a string must match. `None` unless the schema describes strings (or null, which reads like a
/// string) whose only constraints are lengths and a pattern.
pub(super) fn string_terminals(schema: &Value, root: &Value) -> Option<Vec<String>> {
    let object = schema.as_object()?;
    let is_string = match object.get("type") {
        Some(Value::String(name)) => name == "string",
        Some(Value::Array(names)) => {
            let is_text = |name: &Value| name == "string" || name == "null";
            names.iter().any(|name| name == "string") && names.iter().all(is_text)
        }
        _ => return nullable_text(object, root),
    };
    let allowed = ["type", "minLength", "maxLength", "pattern"];
    if !is_string || object.keys().any(|name| !allowed.contains(&name.as_str())) {
        return None;
    }
    let mut matches = Vec::new();
    let count = |name: &str| object.get(name).and_then(Value::as_u64);
    if let (min, max @ Some(_)) | (min @ Some(_), max) = (count("minLength"), count("maxLength")) {
        let max = max.map_or(String::new(), |max| max.to_string());
        matches.push(format!("/(?s:.{{{},{max}}})/", min.unwrap_or(0)));
    }
    if let Some(pattern) = object.get("pattern").and_then(Value::as_str) {
        matches.push(regex::search(pattern)?);
    }
    Some(matches)
}

/// `anyOf` of a string and null.
fn nullable_text(object: &Map<String, Value>, root: &Value) -> Option<Vec<String>> {
    let options = options(object)?;
    let is_null = |option: &&Value| **option == json!({"type": "null"});
    let mut texts = options.iter().filter(|option| !is_null(option));
    match (texts.next(), texts.next()) {
        (Some(text), None) => string_terminals(resolved(text, root), root),
        _ => None,
    }
}

fn may_be_text(schema: &Value, root: &Value, depth: usize) -> bool {
    let schema = resolved(schema, root);
    let Some(object) = schema.as_object().filter(|_| depth < 16) else {
        return true;
    };
    if let Some(values) = constants(object) {
        return values.into_iter().any(Value::is_string);
    }
    match object.get("type") {
        Some(Value::String(name)) => name == "string",
        Some(Value::Array(names)) => names.iter().any(|name| name == "string"),
        _ => {
            let lists = ["anyOf", "oneOf", "allOf"].map(|name| object.get(name));
            let lists = lists.into_iter().flatten().filter_map(Value::as_array);
            let mut options = lists.flatten().peekable();
            options.peek().is_none() || options.any(|option| may_be_text(option, root, depth + 1))
        }
    }
}
