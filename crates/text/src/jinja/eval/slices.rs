//! Evaluates items and slices of sequences in templates.

use num_traits::ToPrimitive;

use super::super::error::{Fault, Result};
use super::super::number::Number;
use super::super::value::Value;
use super::Interpreter;

/// The item at an index. A negative index counts from the end.
pub(super) fn at(value: &Value, index: &Value) -> Option<Value> {
    let index = match Number::of(index)? {
        Number::Int(index) => index,
        _ => return None,
    };
    if let (Value::Text(text), 0..) = (value, index) {
        let mut chars = text.as_str().chars();
        let found = chars.nth(usize::try_from(index).ok()?)?;
        return Some(Value::like(value, found.to_string()));
    }
    let len = value.len()?;
    let index = match index {
        0.. => usize::try_from(index).ok()?,
        _ => len.checked_sub(usize::try_from(index.unsigned_abs()).ok()?)?,
    };
    if index >= len {
        return None;
    }
    match value {
        Value::List(items) | Value::Tuple(items) => items.get(index).cloned(),
        Value::Text(text) => {
            let found = text.as_str().chars().nth(index)?;
            Some(Value::like(value, found.to_string()))
        }
        Value::Bytes(bytes) => Some(Value::Int(bytes[index].into())),
        Value::Range(range) => Some(range.at(index)),
        _ => None,
    }
}

/// Resolves a slice to its first index, step and number of items.
pub(in super::super) fn slice_indices(parts: &[Value; 3], len: usize) -> Result<(i64, i64, usize)> {
    let number = |value: &Value| -> Result<Option<i64>> {
        match Number::of(value) {
            None if matches!(value, Value::None) => Ok(None),
            Some(Number::Int(number)) => Ok(Some(number)),
            Some(Number::Big(number)) => Ok(Some(match number.sign() {
                num_bigint::Sign::Minus => i64::MIN / 2,
                _ => number.to_i64().unwrap_or(i64::MAX / 2),
            })),
            _ => Fault::other("slice indices must be integers or None or have an __index__ method"),
        }
    };
    let step = number(&parts[2])?.unwrap_or(1);
    if step == 0 {
        return Fault::other("slice step cannot be zero");
    }
    let len = len as i64;
    let (min, max) = if step > 0 { (0, len) } else { (-1, len - 1) };
    let clip = |place: i64| {
        let place = if place < 0 {
            place.saturating_add(len)
        } else {
            place
        };
        place.clamp(min, max)
    };
    let start = number(&parts[0])?.map_or(if step > 0 { min } else { max }, clip);
    let stop = number(&parts[1])?.map_or(if step > 0 { max } else { min }, clip);
    let distance = if step > 0 { stop - start } else { start - stop };
    let count = if distance > 0 {
        (distance as u64 - 1) / step.unsigned_abs() + 1
    } else {
        0
    };
    Ok((start, step, count as usize))
}

impl Interpreter<'_> {
    pub(super) fn slice(&self, value: &Value, parts: &[Value; 3]) -> Result<Value> {
        self.charge_read(value)?;
        if let Value::Undefined(message) = value {
            return Fault::other(message.to_string());
        }
        let len = match value {
            Value::Dict(_) => return Fault::other("unhashable type: 'slice'"),
            other => other.len(),
        };
        let Some(len) = len else {
            return not_subscriptable(value);
        };
        let (start, step, count) = slice_indices(parts, len)?;
        let chosen = (0..count).map(|index| (start + step * index as i64) as usize);
        match value {
            Value::Text(text) => {
                let text = text.as_str();
                if step == 1 {
                    let rest = text.chars().skip(start as usize);
                    return Ok(Value::like(value, rest.take(count).collect()));
                }
                let chars: Vec<char> = text.chars().collect();
                Ok(Value::like(
                    value,
                    chosen.map(|index| chars[index]).collect(),
                ))
            }
            Value::List(items) => Value::list(chosen.map(|index| items[index].clone()).collect()),
            Value::Tuple(items) => Value::tuple(chosen.map(|index| items[index].clone()).collect()),
            Value::Bytes(bytes) => Ok(Value::Bytes(chosen.map(|index| bytes[index]).collect())),
            Value::Range(range) => {
                let first = range.start + range.step * start;
                Ok(Value::Range(super::super::value::Range {
                    start: first,
                    step: range.step.saturating_mul(step),
                    len: count,
                }))
            }
            _ => not_subscriptable(value),
        }
    }
}

fn not_subscriptable(value: &Value) -> Result<Value> {
    Fault::other(format!(
        "'{}' object is not subscriptable",
        value.type_name()
    ))
}
