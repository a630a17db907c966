//! Checks JSON schemas of requests, and refuses unsupported keywords with their place before anything is compiled.
//!
//! llguidance's errors for unsupported keywords do not name the place. It also reads options from `x-guidance` in a
//! schema, which a request must not set.

mod disjoint;
mod formats;
mod keywords;
mod numbers;
mod overlap;
pub(super) mod patterns;
mod place;
mod refs;

use serde_json::{Map, Value};

use super::limits::GrammarLimits;
use super::regex;
use keywords::{Keyword, is_supported_format, is_unsupported_format, keyword};
use numbers::Multiple;
use place::Place;
use refs::References;
use souffleur_base::error::FieldError;
use souffleur_base::field::Cut;

/// The default for `additionalProperties` in a schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Objects {
    /// Additional properties are allowed by default.
    AsWritten,
    /// Additional properties are forbidden by default.
    Closed,
}

/// Checks a schema, and returns it for llguidance, without annotations.
///
/// # Errors
/// Names the first unsupported keyword, or the exceeded limit, with its place.
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
        pattern_bytes: 0,
        base: schema,
        references: References::new(schema),
    };
    let mut kept = match check.schema(schema, Place::root())? {
        Value::Bool(true) => return Ok(Value::Object(Map::new())),
        Value::Bool(false) => return Err(check.refuse(Place::root(), "false allows no value")),
        kept => kept,
    };
    check.add_targets(&mut kept)?;
    disjoint::rewrite_one_ofs(&mut kept);
    let checked = overlap::check(&kept);
    checked.map_err(|fault| check.refuse(Place::root(), &fault.reason()))?;
    Ok(kept)
}

/// Whether a keyword constrains the values of its schema.
pub(super) fn constrains(name: &str) -> bool {
    let is_metadata = matches!(name, "$schema" | "$defs" | "definitions");
    !is_metadata && keyword(name) != Keyword::Annotation
}

struct Check<'a> {
    field: &'a str,
    objects: Objects,
    limits: &'a GrammarLimits,
    nodes: usize,
    /// Bytes of all patterns as llguidance reads them.
    pattern_bytes: usize,
    /// The document against which references are resolved.
    base: &'a Value,
    references: References<'a>,
}

impl<'a> Check<'a> {
    fn schema(&mut self, schema: &'a Value, place: Place<'_>) -> Result<Value, FieldError> {
        let outer = self.base;
        self.base = self.references.base(schema, outer);
        let kept = self.schema_in_base(schema, place);
        self.base = outer;
        kept
    }

    /// Checks the referenced schemas that were not checked yet, and adds them as definitions.
    fn add_targets(&mut self, kept: &mut Value) -> Result<(), FieldError> {
        while let Some(target) = self.references.next_target() {
            self.base = target.base;
            let place = Place::root();
            let mut schema =
                self.schema(target.schema, place.under("$defs").under(&target.name))?;
            if let Some(schema) = schema.as_object_mut() {
                // Definitions inside a definition are added at the root instead.
                schema.retain(|name, _| !matches!(name.as_str(), "$defs" | "definitions"));
            }
            let definitions = kept.as_object_mut().map(|kept| kept.entry("$defs"));
            let definitions = definitions.map(|named| named.or_insert_with(|| Map::new().into()));
            if let Some(Value::Object(named)) = definitions {
                named.insert(target.name, schema);
            }
        }
        Ok(())
    }

    fn schema_in_base(&mut self, schema: &'a Value, place: Place<'_>) -> Result<Value, FieldError> {
        self.count(place)?;
        let object = match schema {
            Value::Bool(_) => return Ok(schema.clone()),
            Value::Object(object) => object,
            _ => return Err(self.refuse(place, "expected a schema: an object, true or false")),
        };
        let mut kept = Map::new();
        for (name, value) in object {
            if numbers::has_no_effect(object, name) {
                continue;
            }
            if let Some(value) = self.keyword(name, value, place.under(name))? {
                kept.insert(name.clone(), value);
            }
        }
        self.check_min_properties(object, place)?;
        self.check_exclusive(object, place)?;
        formats::replace_format(&mut kept);
        if let Some((name, reason)) = numbers::adjust_bounds(&mut kept) {
            return Err(self.refuse(place.under(name), &reason));
        }
        if self.closes(object, place) {
            kept.insert("additionalProperties".to_owned(), Value::Bool(false));
        }
        Ok(Value::Object(kept))
    }

    /// Checks a keyword, and returns its value for llguidance; `None` if the keyword is removed.
    fn keyword(
        &mut self,
        name: &str,
        value: &'a Value,
        place: Place<'_>,
    ) -> Result<Option<Value>, FieldError> {
        Ok(match (keyword(name), value) {
            (Keyword::Annotation, _) => None,
            (Keyword::Unique, Value::Bool(false)) => None,
            (Keyword::Unsupported | Keyword::Unique, _) => {
                return Err(self.refuse(place, &format!("the keyword {name:?} is not supported")));
            }
            (Keyword::Format, Value::String(format)) if is_unsupported_format(format) => {
                let reason = format!("the format {format:?} is not supported");
                return Err(self.refuse(place, &reason));
            }
            (Keyword::Format, Value::String(format)) if !is_supported_format(format) => None,
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
            (Keyword::Reference, Value::String(reference)) => {
                let found = self.references.resolve(reference, self.base);
                let found = found.map_err(|reason| self.refuse(place, &reason))?;
                Some(found.into())
            }
            (Keyword::Multiple, value) => {
                let multiple = Multiple::new(value);
                multiple.map_err(|reason| self.refuse(place, &reason))?;
                Some(value.clone())
            }
            (Keyword::Count, value) => {
                let count = numbers::count(name, value);
                count.map_err(|reason| self.refuse(place, &reason))?
            }
            _ => {
                self.data(value, place)?;
                Some(value.clone())
            }
        })
    }

    fn list(&mut self, items: &'a [Value], place: Place<'_>) -> Result<Value, FieldError> {
        self.count(place)?;
        let items = items.iter().enumerate().map(|(at, item)| {
            let at = at.to_string();
            self.schema(item, place.under(&at))
        });
        Ok(Value::Array(items.collect::<Result<_, _>>()?))
    }

    fn map(
        &mut self,
        named: &'a Map<String, Value>,
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

    /// Checks a value that is not a schema: a constant or a bound.
    fn data(&mut self, value: &Value, place: Place<'_>) -> Result<(), FieldError> {
        self.count(place)?;
        match value {
            Value::Array(items) => items
                .iter()
                .try_for_each(|item| self.data(item, place.under("…"))),
            Value::Object(fields) => fields
                .iter()
                .try_for_each(|(name, value)| self.data(value, place.under(name))),
            Value::Number(number) => match numbers::fault(number) {
                None => Ok(()),
                Some(reason) => Err(self.refuse(place, &reason)),
            },
            _ => Ok(()),
        }
    }

    /// Checks that the integer next to an exclusive bound is also an exact double.
    fn check_exclusive(
        &self,
        schema: &Map<String, Value>,
        place: Place<'_>,
    ) -> Result<(), FieldError> {
        for (name, exclusive) in [
            ("minimum", "exclusiveMinimum"),
            ("maximum", "exclusiveMaximum"),
        ] {
            let (name, bound) = match schema.get(exclusive) {
                Some(Value::Bool(true)) => (name, schema.get(name)),
                bound => (exclusive, bound),
            };
            let fault = match bound {
                Some(Value::Number(number)) if !numbers::has_no_effect(schema, name) => {
                    numbers::fault_of_exclusive(number)
                }
                _ => None,
            };
            if let Some(reason) = fault {
                return Err(self.refuse(place.under(name), &reason));
            }
        }
        Ok(())
    }

    fn pattern(&mut self, pattern: &str, place: Place<'_>) -> Result<(), FieldError> {
        let limit = self.limits.source_bytes;
        let checked = regex::check(pattern, self.limits).and_then(|bytes| {
            self.pattern_bytes += bytes;
            if self.pattern_bytes > limit {
                Err(format!(
                    "all patterns of the schema together have more than {limit} bytes, with classes such as \\w \
                     expanded"
                ))
            } else {
                Ok(())
            }
        });
        checked
            .map_err(|fault| self.refuse(place, &format!("the pattern {}: {fault}", Cut(pattern))))
    }

    fn count(&mut self, place: Place<'_>) -> Result<(), FieldError> {
        self.nodes += 1;
        if self.nodes > self.limits.schema_nodes {
            let limit = self.limits.schema_nodes;
            return Err(self.refuse(
                Place::root(),
                &format!("the schema has more than {limit} values"),
            ));
        }
        if place.depth() > self.limits.schema_depth {
            let limit = self.limits.schema_depth;
            return Err(self.refuse(
                place,
                &format!("the schema is nested more than {limit} levels deep"),
            ));
        }
        Ok(())
    }

    /// Checks `minProperties`: a grammar cannot count the optional properties of an object.
    fn check_min_properties(
        &self,
        schema: &Map<String, Value>,
        place: Place<'_>,
    ) -> Result<(), FieldError> {
        let at_least = schema.get("minProperties").and_then(Value::as_f64);
        let required = schema.get("required").and_then(Value::as_array);
        let required = required.map_or(0, Vec::len) as f64;
        match at_least {
            Some(at_least) if at_least > required + 1.0 => Err(self.refuse(
                place.under("minProperties"),
                "the keyword \"minProperties\" is supported only up to the number of required properties plus one",
            )),
            _ => Ok(()),
        }
    }

    /// Whether strict mode forbids additional properties: not within an `allOf`, whose parts describe the same object.
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
        let reason = format!("{field} at {place}: {reason}; change the schema");
        FieldError::new(field, reason)
    }
}

#[cfg(test)]
mod tests;
