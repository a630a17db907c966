//! Rewrites `oneOf` as `anyOf` where its options exclude each other.
//!
//! llguidance detects this in few schemas, and never through a reference. This module proves it for the schemas that
//! generators write: options of different types, with different constants, or objects with a required discriminator.

use rustc_hash::FxHashSet;
use serde_json::{Map, Value};

use super::keywords::{Keyword, keyword};

/// Maximum steps of comparisons for one schema.
const MAX_STEPS: usize = 200_000;
/// Pairs of values that are compared in one step.
const PAIRS_PER_STEP: usize = 128;
/// Bytes of a text that count as one value.
const BYTES_PER_VALUE: usize = 64;
/// Maximum depth of the comparison.
const MAX_DEPTH: usize = 12;
/// Maximum number of schemas that are collected for one value.
const MAX_COMBINED: usize = 64;

const NULL: u8 = 1;
const BOOLEAN: u8 = 2;
const INTEGER: u8 = 4;
const FRACTION: u8 = 8;
const STRING: u8 = 16;
const ARRAY: u8 = 32;
const OBJECT: u8 = 64;
const EVERY: u8 = 127;

/// Writes `oneOf` as `anyOf` where no value matches two of the options.
pub(super) fn rewrite_one_ofs(schema: &mut Value) {
    let chosen = addresses_to_rewrite(schema);
    if !chosen.is_empty() {
        rewrite(schema, &chosen);
    }
}

/// Addresses of the objects whose `oneOf` means the same as `anyOf`.
fn addresses_to_rewrite(schema: &Value) -> FxHashSet<usize> {
    let mut proof = Proof {
        root: schema,
        steps: MAX_STEPS,
    };
    let mut chosen = FxHashSet::default();
    let mut waiting = vec![schema];
    while let Some(value) = waiting.pop() {
        match value {
            Value::Array(items) => waiting.extend(items),
            Value::Object(object) => {
                if proof.can_rewrite(object) {
                    chosen.insert(address(object));
                }
                for (name, value) in object {
                    match (keyword(name), value) {
                        (Keyword::Schema | Keyword::SchemaList, value) => waiting.push(value),
                        (Keyword::SchemaMap, Value::Object(named)) => {
                            waiting.extend(named.values());
                        }
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    chosen
}

/// Writes `oneOf` as `anyOf` in the objects with these addresses. Recursive: checked schemas have a limited depth.
///
/// Rewriting an object moves its entries, so inner objects come first.
fn rewrite(value: &mut Value, chosen: &FxHashSet<usize>) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(|item| rewrite(item, chosen)),
        Value::Object(object) => {
            object.values_mut().for_each(|value| rewrite(value, chosen));
            if chosen.contains(&address(object)) {
                let named = std::mem::take(object).into_iter();
                let named = named.map(|(name, value)| match name.as_str() {
                    "oneOf" => ("anyOf".to_owned(), value),
                    _ => (name, value),
                });
                *object = named.collect();
            }
        }
        _ => {}
    }
}

fn address(object: &Map<String, Value>) -> usize {
    std::ptr::from_ref(object).addr()
}

/// Schemas that all apply to one value, with references and `allOf` resolved.
struct Combined<'a> {
    objects: Vec<&'a Map<String, Value>>,
    /// Whether one of the schemas allows no value.
    is_never: bool,
}

struct Proof<'a> {
    root: &'a Value,
    steps: usize,
}

impl<'a> Proof<'a> {
    /// Whether an object has a `oneOf` that means the same as `anyOf`.
    fn can_rewrite(&mut self, object: &'a Map<String, Value>) -> bool {
        let options = object.get("oneOf").and_then(Value::as_array);
        let Some(options) = options.filter(|_| !object.contains_key("anyOf")) else {
            return false;
        };
        let mut pairs = options.iter().enumerate().flat_map(|(at, one)| {
            let others = options[at + 1..].iter();
            others.map(move |other| (one, other))
        });
        pairs.all(|(one, other)| self.exclude(&[one], &[other], 0))
    }

    /// Whether no value matches both.
    fn exclude(&mut self, one: &[&'a Value], other: &[&'a Value], depth: usize) -> bool {
        let (one, other) = (self.combined(one), self.combined(other));
        self.combined_exclude(&one, &other, depth)
    }

    fn combined_exclude(&mut self, one: &Combined<'a>, other: &Combined<'a>, depth: usize) -> bool {
        let work = 1 + one.weight().saturating_mul(other.weight()) / PAIRS_PER_STEP;
        let Some(rest) = self.steps.checked_sub(work) else {
            return false;
        };
        self.steps = rest;
        if one.is_never || other.is_never {
            return true;
        }
        if depth > MAX_DEPTH {
            return false;
        }
        let types = one.types() & other.types();
        types == 0
            || other.refuses_constants_of(one)
            || one.refuses_constants_of(other)
            || self.types_exclude(types, one, other, depth)
            || self.options_exclude(one, other, depth)
            || self.options_exclude(other, one, depth)
    }

    /// Collects the schemas, and the schemas that they include by reference or `allOf`.
    fn combined(&self, schemas: &[&'a Value]) -> Combined<'a> {
        let mut combined = Combined {
            objects: Vec::new(),
            is_never: false,
        };
        let mut waiting = schemas.to_vec();
        let mut seen: Vec<*const Value> = Vec::new();
        while let Some(schema) = waiting.pop() {
            let pointer = std::ptr::from_ref(schema);
            if seen.len() >= MAX_COMBINED {
                break;
            }
            if seen.contains(&pointer) {
                continue;
            }
            seen.push(pointer);
            match schema {
                Value::Bool(false) => {
                    combined.is_never = true;
                    break;
                }
                Value::Object(object) => {
                    let all = object.get("allOf").and_then(Value::as_array);
                    waiting.extend(all.into_iter().flatten().take(MAX_COMBINED));
                    let target = object.get("$ref").and_then(Value::as_str);
                    let target = target.and_then(|target| target.strip_prefix('#'));
                    waiting.extend(target.and_then(|target| self.root.pointer(target)));
                    combined.objects.push(object);
                }
                _ => {}
            }
        }
        combined
    }

    /// Whether no value of any of `types` matches both.
    fn types_exclude(
        &mut self,
        types: u8,
        one: &Combined<'a>,
        other: &Combined<'a>,
        depth: usize,
    ) -> bool {
        let apart = |min: &str, max: &str| one.has_disjoint_range(other, min, max);
        (types & (NULL | BOOLEAN) == 0)
            && (types & (INTEGER | FRACTION) == 0 || apart("minimum", "maximum"))
            && (types & STRING == 0 || apart("minLength", "maxLength"))
            && (types & ARRAY == 0 || apart("minItems", "maxItems"))
            && (types & OBJECT == 0 || self.properties_exclude(one, other, depth))
    }

    /// Whether no value of some required property matches both.
    fn properties_exclude(
        &mut self,
        one: &Combined<'a>,
        other: &Combined<'a>,
        depth: usize,
    ) -> bool {
        let names = one.required().chain(other.required());
        let names: Vec<&str> = names.collect();
        names.into_iter().any(|name| {
            let (here, there) = (one.property(name), other.property(name));
            self.exclude(&here, &there, depth + 1)
        })
    }

    /// Whether all options of an `anyOf` or `oneOf` in `one` exclude `other`.
    fn options_exclude(&mut self, one: &Combined<'a>, other: &Combined<'a>, depth: usize) -> bool {
        let lists = one.objects.iter().flat_map(|object| {
            let lists = ["anyOf", "oneOf"].into_iter();
            lists.filter_map(|name| object.get(name)?.as_array())
        });
        lists.collect::<Vec<_>>().into_iter().any(|options| {
            options.iter().all(|option| {
                let option = self.combined(&[option]);
                self.combined_exclude(&option, other, depth + 1)
            })
        })
    }
}

impl<'a> Combined<'a> {
    /// Maximum number of values that a comparison examines.
    fn weight(&self) -> usize {
        let lists = self.objects.iter().flat_map(|object| {
            let lists = ["type", "required"].into_iter();
            let lists = lists.filter_map(|name| object.get(name)?.as_array());
            lists.map(Vec::as_slice).chain(constants(object))
        });
        1 + lists.flatten().map(weight_of).sum::<usize>()
    }

    fn types(&self) -> u8 {
        let types = self.objects.iter().map(|object| {
            let named = match object.get("type") {
                Some(Value::String(name)) => types_of_name(name),
                Some(Value::Array(names)) => {
                    let names = names.iter().filter_map(Value::as_str);
                    names.fold(0, |types, name| types | types_of_name(name))
                }
                _ => EVERY,
            };
            let values = constants(object);
            let of_values = values.map(|values| {
                values
                    .iter()
                    .fold(0, |types, value| types | type_of_value(value))
            });
            named & of_values.unwrap_or(EVERY)
        });
        types.fold(EVERY, |all, types| all & types)
    }

    /// Whether `other` has constants, and none of them matches `self`.
    fn refuses_constants_of(&self, other: &Self) -> bool {
        let constants = other.objects.iter().find_map(|object| constants(object));
        let types = self.types();
        constants.is_some_and(|values| {
            let mut values = values.iter();
            values.all(|value| types & type_of_value(value) == 0 || self.refuses(value))
        })
    }

    /// Whether the value certainly does not match, regardless of its type.
    fn refuses(&self, value: &Value) -> bool {
        let refuses_property = |object: &&Map<String, Value>| {
            let Some(fields) = value.as_object() else {
                return false;
            };
            let required = object.get("required").and_then(Value::as_array);
            let mut required = required.into_iter().flatten().filter_map(Value::as_str);
            required.any(|name| !fields.contains_key(name))
        };
        self.objects.iter().any(refuses_property)
            || self.objects.iter().any(|object| {
                let values = constants(object);
                values.is_some_and(|values| !values.iter().any(|other| are_equal(other, value)))
            })
    }

    fn required(&self) -> impl Iterator<Item = &'a str> {
        let lists = self
            .objects
            .iter()
            .filter_map(|object| object.get("required")?.as_array());
        lists.flatten().filter_map(Value::as_str)
    }

    fn property(&self, name: &str) -> Vec<&'a Value> {
        let schemas = self.objects.iter().filter_map(|object| {
            let named = object.get("properties").and_then(|named| named.get(name));
            let others = || {
                if object.contains_key("patternProperties") {
                    None
                } else {
                    object.get("additionalProperties")
                }
            };
            named.or_else(others)
        });
        schemas.collect()
    }

    /// Whether the two ranges, from `min` to `max`, are disjoint.
    fn has_disjoint_range(&self, other: &Self, min: &str, max: &str) -> bool {
        let above = |one: &Self, other: &Self| match (one.bound(min), other.bound(max)) {
            (Some(min), Some(max)) => min > max,
            _ => false,
        };
        above(self, other) || above(other, self)
    }

    fn bound(&self, name: &str) -> Option<f64> {
        self.objects
            .iter()
            .find_map(|object| object.get(name)?.as_f64())
    }
}

fn constants(object: &Map<String, Value>) -> Option<&[Value]> {
    match (object.get("const"), object.get("enum")) {
        (Some(value), _) => Some(std::slice::from_ref(value)),
        (None, Some(Value::Array(values))) => Some(values),
        _ => None,
    }
}

/// The number of values that a value counts as: long texts count more.
fn weight_of(value: &Value) -> usize {
    1 + value.as_str().map_or(0, str::len) / BYTES_PER_VALUE
}

fn are_equal(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => one.as_f64() == other.as_f64(),
        // Treated as equal, because equal numbers inside may be written differently.
        (Value::Array(_), Value::Array(_)) | (Value::Object(_), Value::Object(_)) => true,
        _ => one == other,
    }
}

fn types_of_name(name: &str) -> u8 {
    match name {
        "null" => NULL,
        "boolean" => BOOLEAN,
        "integer" => INTEGER,
        "number" => INTEGER | FRACTION,
        "string" => STRING,
        "array" => ARRAY,
        "object" => OBJECT,
        _ => EVERY,
    }
}

fn type_of_value(value: &Value) -> u8 {
    match value {
        Value::Null => NULL,
        Value::Bool(_) => BOOLEAN,
        Value::Number(number) => {
            let is_whole = number.as_f64().is_some_and(|number| number.fract() == 0.0);
            if is_whole { INTEGER } else { FRACTION }
        }
        Value::String(_) => STRING,
        Value::Array(_) => ARRAY,
        Value::Object(_) => OBJECT,
    }
}
