//! Compares and hashes values as Python does.

use std::cmp::Ordering;
use std::hash::{Hash, Hasher};

use num_traits::ToPrimitive;

use super::error::{Fault, Result};
use super::meter;
use super::number::Number;
use super::value::{Key, Value, View};

/// Bytes of text that cost one instruction to read.
const BYTES_PER_INSTRUCTION: usize = 64;

/// Whether two values are equal. False if no instructions are left: the next step of the rendering then fails.
pub(super) fn equal(a: &Value, b: &Value) -> bool {
    use Value as V;
    if !meter::spend(1 + text_bytes(a).min(text_bytes(b)) / BYTES_PER_INSTRUCTION) {
        return false;
    }
    match (a, b) {
        (V::None, V::None) | (V::Undefined(_), V::Undefined(_)) => true,
        (V::Text(a), V::Text(b)) => a.as_str() == b.as_str(),
        (V::Bytes(a), V::Bytes(b)) => a == b,
        (V::List(a), V::List(b)) | (V::Tuple(a), V::Tuple(b)) => {
            a.len() == b.len() && a.iter().zip(b.iter()).all(|(a, b)| equal(a, b))
        }
        (V::Dict(a), V::Dict(b)) => {
            let is_there =
                |(key, value): &(Value, Value)| b.get(key).is_some_and(|other| equal(value, other));
            a.entries().len() == b.entries().len() && a.entries().iter().all(is_there)
        }
        (V::View(a, View::Keys), V::View(b, View::Keys)) => {
            let is_there = |(key, _): &(Value, Value)| b.get(key).is_some();
            a.entries().len() == b.entries().len() && a.entries().iter().all(is_there)
        }
        (V::Range(a), V::Range(b)) => {
            a.len == b.len && (a.len == 0 || a.start == b.start) && (a.len < 2 || a.step == b.step)
        }
        (V::Object(a), V::Object(b)) => a == b,
        (V::Function(a), V::Function(b)) => a == b,
        (V::Method(a), V::Method(b)) => a.1 == b.1 && is_same(&a.0, &b.0),
        _ => match (Number::of(a), Number::of(b)) {
            (Some(a), Some(b)) => a.order(&b) == Some(Ordering::Equal),
            _ => false,
        },
    }
}

/// Python's `is`. Texts and numbers are compared by value: CPython often shares equal objects, but not always.
pub(super) fn is_same(a: &Value, b: &Value) -> bool {
    use std::rc::Rc;

    use Value as V;
    match (a, b) {
        (V::List(a), V::List(b)) | (V::Tuple(a), V::Tuple(b)) => Rc::ptr_eq(a, b),
        (V::Dict(a), V::Dict(b)) => Rc::ptr_eq(a, b),
        (V::Generator(a), V::Generator(b)) => Rc::ptr_eq(a, b),
        (V::Undefined(a), V::Undefined(b)) => Rc::ptr_eq(a, b),
        (V::Bool(a), V::Bool(b)) => a == b,
        (V::Bool(_), _) | (_, V::Bool(_)) => false,
        (V::Float(_), V::Int(_) | V::Big(_)) | (V::Int(_) | V::Big(_), V::Float(_)) => false,
        _ => equal(a, b),
    }
}

/// Orders two values. Fails for types without an order, with a message that names `operator`.
pub(super) fn order(a: &Value, b: &Value, operator: &str) -> Result<Option<Ordering>> {
    use Value as V;
    if !meter::spend(1 + text_bytes(a).min(text_bytes(b)) / BYTES_PER_INSTRUCTION) {
        return Err(Fault::Instructions);
    }
    match (a, b) {
        (V::Undefined(message), _) | (_, V::Undefined(message)) => {
            Fault::other(message.to_string())
        }
        (V::Text(a), V::Text(b)) => Ok(Some(a.as_str().cmp(b.as_str()))),
        (V::Bytes(a), V::Bytes(b)) => Ok(Some(a.cmp(b))),
        (V::List(a), V::List(b)) | (V::Tuple(a), V::Tuple(b)) => {
            for (a, b) in a.iter().zip(b.iter()) {
                if !equal(a, b) {
                    return order(a, b, operator);
                }
            }
            Ok(Some(a.len().cmp(&b.len())))
        }
        _ => match (Number::of(a), Number::of(b)) {
            (Some(a), Some(b)) => Ok(a.order(&b)),
            _ => Fault::other(format!(
                "'{operator}' not supported between instances of '{}' and '{}'",
                a.type_name(),
                b.type_name()
            )),
        },
    }
}

pub(super) fn contains(container: &Value, item: &Value) -> Result<bool> {
    use Value as V;
    match container {
        V::Undefined(_) => Ok(false),
        V::Text(text) => match item {
            V::Text(part) => Ok(text.as_str().contains(part.as_str())),
            V::Undefined(message) => Fault::other(message.to_string()),
            _ => Fault::other(format!(
                "'in <string>' requires string as left operand, not {}",
                item.type_name()
            )),
        },
        V::Dict(dict) | V::View(dict, View::Keys) => {
            Key::new(item)?;
            Ok(dict.get(item).is_some())
        }
        V::Generator(_) | V::Bytes(_) | V::Range(_) | V::View(..) | V::List(_) | V::Tuple(_) => {
            if let V::List(items) | V::Tuple(items) = container {
                return Ok(items.iter().any(|other| equal(other, item)));
            }
            Ok(container.items()?.iter().any(|other| equal(other, item)))
        }
        _ => Fault::other(format!(
            "argument of type '{}' is not iterable",
            container.type_name()
        )),
    }
}

impl Key {
    pub(super) fn new(value: &Value) -> Result<Self> {
        if is_hashable(value) {
            Ok(Self(value.clone()))
        } else {
            Fault::other(format!("unhashable type: '{}'", value.type_name()))
        }
    }

    pub(super) fn is(&self, value: &Value) -> bool {
        equal(&self.0, value)
    }
}

fn is_hashable(value: &Value) -> bool {
    if !meter::spend(1) {
        // No instructions are left: the rendering must fail with that error, not with `unhashable type`.
        return true;
    }
    match value {
        Value::List(_) | Value::Dict(_) | Value::View(..) => false,
        Value::Tuple(items) => items.iter().all(is_hashable),
        _ => true,
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        equal(&self.0, &other.0)
    }
}

impl Eq for Key {}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        hash(&self.0, state);
    }
}

fn text_bytes(value: &Value) -> usize {
    value.as_str().map_or(0, str::len)
}

fn hash<H: Hasher>(value: &Value, state: &mut H) {
    if !meter::spend(1 + text_bytes(value) / BYTES_PER_INSTRUCTION) {
        return;
    }
    match value {
        Value::Text(text) => text.as_str().hash(state),
        Value::Tuple(items) => items.iter().for_each(|item| hash(item, state)),
        Value::Object(id) => id.hash(state),
        Value::Bytes(bytes) => bytes.hash(state),
        // Equal numbers of different types must have the same hash.
        _ => match Number::of(value) {
            Some(Number::Int(number)) => (number as f64).to_bits().hash(state),
            Some(Number::Big(number)) => {
                let near = number.to_f64().unwrap_or(f64::INFINITY);
                near.to_bits().hash(state);
            }
            Some(Number::Float(number)) => (number + 0.0).to_bits().hash(state),
            None => value.type_name().hash(state),
        },
    }
}
