//! Writes argument values in call formats other than JSON, by decomposing their schemas.

use serde_json::Value;

use super::schemas::{constants, options, properties, resolved};
use crate::part::{Part, Presence};

pub(super) const MAX_DEPTH: usize = 8;

pub(super) struct Notation {
    /// Writes the values of a schema without decomposition. The second argument is the root schema, for references.
    pub(super) whole: fn(&Value, &Value) -> Option<Part>,
    /// Writes a constant; `None` if it cannot be written.
    pub(super) literal: fn(&Value) -> Option<String>,
    /// Writes the key before a value in an object; `None` if the name cannot be written.
    pub(super) key: fn(&str) -> Option<String>,
    pub(super) separator: &'static str,
}

impl Notation {
    /// Writes the values of a schema, which is a part of `root`; `None` if they cannot be written.
    pub(super) fn value(&self, schema: &Value, root: &Value) -> Option<Part> {
        self.at(schema, root, 0)
    }

    fn at(&self, schema: &Value, root: &Value, depth: usize) -> Option<Part> {
        if depth > MAX_DEPTH {
            return None;
        }
        if let Some(whole) = (self.whole)(schema, root) {
            return Some(whole);
        }
        let schema = resolved(schema, root);
        let object = schema.as_object()?;
        if let Some(values) = constants(object) {
            let values = values.into_iter().map(|value| self.constant(value));
            return Some(Part::Choice(values.collect::<Option<_>>()?));
        }
        if let Some(options) = options(object) {
            let options = options.iter();
            let options = options.map(|option| self.at(option, root, depth + 1));
            return Some(Part::Choice(options.collect::<Option<_>>()?));
        }
        match object.get("type")? {
            Value::String(name) => self.typed(name, schema, root, depth),
            Value::Array(names) => {
                let names = names.iter().map(|name| {
                    let mut one = object.clone();
                    one.insert("type".to_owned(), name.clone());
                    self.at(&Value::Object(one), root, depth)
                });
                Some(Part::Choice(names.collect::<Option<_>>()?))
            }
            _ => None,
        }
    }

    fn constant(&self, value: &Value) -> Option<Part> {
        (self.literal)(value).map(Part::text)
    }

    fn typed(&self, name: &str, schema: &Value, root: &Value, depth: usize) -> Option<Part> {
        match name {
            "null" => self.constant(&Value::Null),
            "boolean" => {
                let words = [true, false].map(|word| self.constant(&word.into()));
                Some(Part::Choice(words.into_iter().collect::<Option<_>>()?))
            }
            "array" => self.list(schema, root, depth),
            "object" => self.object(schema, root, depth),
            _ => None,
        }
    }

    /// Writes an array whose items have one schema.
    fn list(&self, schema: &Value, root: &Value, depth: usize) -> Option<Part> {
        let object = schema.as_object()?;
        let allowed = ["type", "items", "minItems", "maxItems"];
        if object.keys().any(|key| !allowed.contains(&key.as_str())) {
            return None;
        }
        let item = self.at(object.get("items")?, root, depth + 1)?;
        let count = |name: &str| match object.get(name) {
            None => Some(None),
            Some(count) => u32::try_from(count.as_u64()?).ok().map(Some),
        };
        let min = count("minItems")?.unwrap_or(0);
        list(item, self.separator, (min, count("maxItems")?))
    }

    fn object(&self, schema: &Value, root: &Value, depth: usize) -> Option<Part> {
        let mut fields = Vec::new();
        for property in properties("", schema).ok()? {
            let key = (self.key)(property.name)?;
            let value = self.at(property.schema, root, depth + 1)?;
            let part = Part::Sequence(vec![Part::text(key), value]);
            fields.push((part, property.presence));
        }
        let fields = Part::Fields {
            fields,
            separator: self.separator.to_owned(),
        };
        Some(Part::Sequence(vec![
            Part::text("{"),
            fields,
            Part::text("}"),
        ]))
    }
}

fn list(item: Part, separator: &str, (min, max): (u32, Option<u32>)) -> Option<Part> {
    if max.is_some_and(|max| max < min) {
        return None;
    }
    let again = Part::Repeat {
        part: Box::new(Part::Sequence(vec![Part::text(separator), item.clone()])),
        min: min.saturating_sub(1),
        max: max.map(|max| max.saturating_sub(1)),
    };
    let items = Part::Sequence(vec![item, again]);
    let items = match (min, max) {
        (_, Some(0)) => Part::Sequence(Vec::new()),
        (0, _) => Part::Fields {
            fields: vec![(items, Presence::Optional)],
            separator: String::new(),
        },
        _ => items,
    };
    Some(Part::Sequence(vec![
        Part::text("["),
        items,
        Part::text("]"),
    ]))
}
