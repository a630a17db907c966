//! Parameter types from a tool's JSON schema, and conversion of text values to them.

use serde_json::Value;

use super::escape::write_json_string;
use super::number;
use super::python;
use super::tools::Tool;

/// Upper bound of schema parts visited per parameter.
const MAX_VISITS: u32 = 256;
const MAX_DEPTH: u32 = 16;

/// The allowed types of a value, as a bit set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Types(u8);

const NULL: u8 = 1;
const BOOLEAN: u8 = 1 << 1;
const INTEGER: u8 = 1 << 2;
const NUMBER: u8 = 1 << 3;
const OBJECT: u8 = 1 << 4;
const ARRAY: u8 = 1 << 5;
const STRING: u8 = 1 << 6;

impl Types {
    pub(super) const STRING: Self = Self(STRING);

    pub(super) fn of_parameter(tool: &Tool, name: &str) -> Self {
        let Some(schema) = &tool.parameters else {
            return Self::STRING;
        };
        let property = schema.get("properties").and_then(|all| all.get(name));
        let Some(property) = property.or_else(|| schema.get("additionalProperties")) else {
            return Self::STRING;
        };
        let mut collector = TypeCollector {
            root: schema,
            types: 0,
            visits_left: MAX_VISITS,
        };
        collector.visit(property, MAX_DEPTH);
        match collector.types {
            0 => Self::STRING,
            types => Self(types),
        }
    }

    pub(super) fn is_string(self) -> bool {
        self == Self::STRING
    }

    pub(super) fn write(self, text: &str, to: &mut String) {
        match self.typed(text.trim()) {
            Some(value) => to.push_str(&value),
            None => write_json_string(text, to),
        }
    }

    fn typed(self, text: &str) -> Option<String> {
        let allows = |types: u8| self.0 & types != 0;
        let is = |word: &str| text.eq_ignore_ascii_case(word);
        if allows(NULL) && (is("null") || is("none")) {
            return Some("null".to_owned());
        }
        if allows(BOOLEAN) && (is("true") || is("false")) {
            return Some(text.to_ascii_lowercase());
        }
        if allows(INTEGER | NUMBER)
            && let Some(number) = number::to_json(text)
            && (allows(NUMBER) || number::is_integer(&number))
        {
            return Some(number);
        }
        let is_container = (allows(OBJECT) && text.starts_with('{'))
            || (allows(ARRAY) && text.starts_with(['[', '(']));
        match is_container {
            false => None,
            true if is_json(text) => Some(text.to_owned()),
            true => python::literal(text),
        }
    }
}

fn is_json(text: &str) -> bool {
    serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok()
}

struct TypeCollector<'a> {
    root: &'a Value,
    types: u8,
    visits_left: u32,
}

impl TypeCollector<'_> {
    /// Adds the types of a part of the schema, at most `depth` levels deep.
    fn visit(&mut self, schema: &Value, depth: u32) {
        if depth == 0 || self.visits_left == 0 {
            return;
        }
        self.visits_left -= 1;
        match schema.get("type") {
            Some(Value::String(name)) => self.add(name),
            Some(Value::Array(names)) => {
                let names = names.iter().filter_map(Value::as_str);
                names.for_each(|name| self.add(name));
            }
            _ => self.visit_untyped(schema, depth),
        }
        if schema.get("nullable") == Some(&Value::Bool(true)) {
            self.types |= NULL;
        }
    }

    fn visit_untyped(&mut self, schema: &Value, depth: u32) {
        for key in ["anyOf", "oneOf", "allOf"] {
            let parts = schema.get(key).and_then(Value::as_array);
            for part in parts.into_iter().flatten() {
                self.visit(part, depth - 1);
            }
        }
        if let Some(target) = schema.get("$ref").and_then(Value::as_str)
            && let Some(pointer) = target.strip_prefix('#')
            && let Some(target) = self.root.pointer(pointer)
        {
            self.visit(target, depth - 1);
        }
        let values = schema.get("enum").and_then(Value::as_array);
        for value in values.into_iter().flatten().chain(schema.get("const")) {
            self.types |= type_of(value);
        }
        if schema.get("properties").is_some() {
            self.types |= OBJECT;
        }
        if schema.get("items").is_some() {
            self.types |= ARRAY;
        }
    }

    fn add(&mut self, name: &str) {
        self.types |= match name {
            "null" => NULL,
            "boolean" => BOOLEAN,
            "integer" => INTEGER,
            "number" => NUMBER,
            "object" => OBJECT,
            "array" => ARRAY,
            _ => STRING,
        };
    }
}

fn type_of(value: &Value) -> u8 {
    match value {
        Value::Null => NULL,
        Value::Bool(_) => BOOLEAN,
        Value::Number(number) if number.is_f64() => NUMBER,
        Value::Number(_) => INTEGER,
        Value::String(_) => STRING,
        Value::Array(_) => ARRAY,
        Value::Object(_) => OBJECT,
    }
}
