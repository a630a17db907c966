//! JSON schemas of requests: what is not supported is refused by name and place, before anything is compiled.
//!
//! llguidance leaves out nothing that it knows and lacks, but tells it without the place; and it takes orders from a
//! schema under `x-guidance`, which a request must not give.

mod formats;
mod keywords;
mod overlap;
mod place;

use serde_json::{Map, Value};

use super::limits::GrammarLimits;
use super::regex;
use crate::error::FieldError;
use keywords::{Keyword, keyword, lacks_format};
use place::Place;

/// The properties that objects may have beside those that are named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Objects {
    /// As the schema says; without a word, anything.
    AsWritten,
    /// Without a word of the schema, nothing.
    Closed,
}

/// Checks a schema, and returns it without what a compiler must not see.
///
/// # Errors
/// The first keyword that is not supported, or the limit that the schema reaches, with its place.
pub(super) fn checked(
    field: &str,
    schema: &Value,
    objects: Objects,
    limits: &GrammarLimits,
) -> Result<Value, FieldError> {
    let mut check = Check {
        field,
        objects,
        limits,
        nodes: 0,
    };
    match check.schema(schema, Place::root())? {
        Value::Bool(true) => Ok(Value::Object(Map::new())),
        Value::Bool(false) => Err(check.refuse(Place::root(), "false allows no value")),
        schema => match overlap::check(&schema) {
            Ok(()) => Ok(schema),
            Err(overlap::TooManyPatterns) => {
                let reason = "too many patterns may apply to one text";
                Err(check.refuse(Place::root(), reason))
            }
        },
    }
}

/// Whether a keyword says anything of the values of its schema.
pub(super) fn constrains(name: &str) -> bool {
    let is_aside = matches!(name, "$schema" | "$defs" | "definitions");
    !is_aside && keyword(name) != Keyword::Annotation
}

/// llguidance's integers would overflow.
fn is_beyond_integers(number: &serde_json::Number) -> bool {
    const LARGEST: f64 = (1_u64 << 53) as f64;
    number.as_f64().is_none_or(|number| number.abs() > LARGEST)
}

struct Check<'a> {
    field: &'a str,
    objects: Objects,
    limits: &'a GrammarLimits,
    nodes: usize,
}

impl Check<'_> {
    fn schema(&mut self, schema: &Value, place: Place<'_>) -> Result<Value, FieldError> {
        self.count(place)?;
        let object = match schema {
            Value::Bool(_) => return Ok(schema.clone()),
            Value::Object(object) => object,
            _ => return Err(self.refuse(place, "a schema is an object, true or false")),
        };
        let mut kept = Map::new();
        for (name, value) in object {
            if let Some(value) = self.keyword(name, value, place.under(name))? {
                kept.insert(name.clone(), value);
            }
        }
        self.check_counts(object, place)?;
        formats::spell_out(&mut kept);
        if self.closes(object, place) {
            kept.insert("additionalProperties".to_owned(), Value::Bool(false));
        }
        Ok(Value::Object(kept))
    }

    /// The value of a keyword as a compiler may see it; `None`: not at all.
    fn keyword(
        &mut self,
        name: &str,
        value: &Value,
        place: Place<'_>,
    ) -> Result<Option<Value>, FieldError> {
        Ok(match (keyword(name), value) {
            (Keyword::Annotation, _) => None,
            (Keyword::Unique, Value::Bool(false)) => None,
            (Keyword::Unsupported | Keyword::Unique, _) => {
                return Err(self.refuse(place, &format!("the keyword {name:?} is not supported")));
            }
            (Keyword::Format, Value::String(format)) if lacks_format(format) => {
                let reason = format!("the format {format:?} is not supported");
                return Err(self.refuse(place, &reason));
            }
            (Keyword::Format, Value::String(format)) if !keywords::has_format(format) => None,
            (Keyword::Pattern, Value::String(pattern)) => {
                self.pattern(pattern, place)?;
                Some(value.clone())
            }
            (Keyword::Schema, Value::Object(_) | Value::Bool(_)) => {
                Some(self.schema(value, place)?)
            }
            (Keyword::Schema | Keyword::SchemaList, Value::Array(items)) => {
                Some(self.list(items, place)?)
            }
            (Keyword::SchemaMap, Value::Object(named)) => {
                let has_patterns = name == "patternProperties";
                Some(self.map(named, has_patterns, place)?)
            }
            (Keyword::Data, Value::Number(number)) if is_beyond_integers(number) => {
                let reason = "numbers beyond 9007199254740992 (2^53) are not supported";
                return Err(self.refuse(place.under(name), reason));
            }
            _ => {
                self.data(value, place)?;
                Some(value.clone())
            }
        })
    }

    fn list(&mut self, items: &[Value], place: Place<'_>) -> Result<Value, FieldError> {
        self.count(place)?;
        let items = items.iter().enumerate().map(|(at, item)| {
            let at = at.to_string();
            self.schema(item, place.under(&at))
        });
        Ok(Value::Array(items.collect::<Result<_, _>>()?))
    }

    fn map(
        &mut self,
        named: &Map<String, Value>,
        has_patterns: bool,
        place: Place<'_>,
    ) -> Result<Value, FieldError> {
        self.count(place)?;
        let mut kept = Map::new();
        for (name, schema) in named {
            let place = place.under(name);
            if has_patterns {
                self.pattern(name, place)?;
            }
            kept.insert(name.clone(), self.schema(schema, place)?);
        }
        Ok(Value::Object(kept))
    }

    /// A value that is no schema: a constant, a bound.
    fn data(&mut self, value: &Value, place: Place<'_>) -> Result<(), FieldError> {
        self.count(place)?;
        match value {
            Value::Array(items) => items
                .iter()
                .try_for_each(|item| self.data(item, place.under("…"))),
            Value::Object(fields) => fields
                .iter()
                .try_for_each(|(name, value)| self.data(value, place.under(name))),
            _ => Ok(()),
        }
    }

    fn pattern(&self, pattern: &str, place: Place<'_>) -> Result<(), FieldError> {
        let checked = regex::check(self.field, pattern, self.limits);
        checked.map_err(|error| self.refuse(place, &format!("in this pattern, {error}")))
    }

    fn count(&mut self, place: Place<'_>) -> Result<(), FieldError> {
        self.nodes += 1;
        if self.nodes > self.limits.schema_nodes {
            let limit = self.limits.schema_nodes;
            return Err(self.refuse(Place::root(), &format!("it has more than {limit} values")));
        }
        if place.depth() > self.limits.schema_depth {
            let limit = self.limits.schema_depth;
            return Err(self.refuse(place, &format!("it is nested more than {limit} deep")));
        }
        Ok(())
    }

    /// How many different names an object has cannot be counted, except for those that must be there.
    fn check_counts(
        &self,
        schema: &Map<String, Value>,
        place: Place<'_>,
    ) -> Result<(), FieldError> {
        let at_least = schema.get("minProperties").and_then(Value::as_u64);
        let required = schema.get("required").and_then(Value::as_array);
        let required = required.map_or(0, Vec::len) as u64;
        match at_least {
            Some(at_least) if at_least > required + 1 => Err(self.refuse(
                place.under("minProperties"),
                "the keyword \"minProperties\" is not supported beyond the required properties and one more",
            )),
            _ => Ok(()),
        }
    }

    /// Whether strict mode adds that nothing else is allowed. The parts of an `allOf` describe the same object.
    fn closes(&self, schema: &Map<String, Value>, place: Place<'_>) -> bool {
        let has = |name: &str| schema.contains_key(name);
        let is_object = has("properties")
            || match schema.get("type") {
                Some(Value::String(name)) => name == "object",
                Some(Value::Array(names)) => names.iter().any(|name| name == "object"),
                _ => false,
            };
        self.objects == Objects::Closed
            && is_object
            && !has("additionalProperties")
            && !place.is_inside("allOf")
    }

    fn refuse(&self, place: Place<'_>, reason: &str) -> FieldError {
        let field = self.field;
        let reason = format!("{field} at {place}: {reason}: leave it out or write it differently");
        FieldError::new(field, reason)
    }
}

#[cfg(test)]
mod tests;
