//! Evaluates arithmetic operators, also on texts and lists.

use num_bigint::BigInt;
use num_traits::ToPrimitive;

use super::super::error::{Fault, Result};
use super::super::filters::escape;
use super::super::number::{Arithmetic, Number, arithmetic};
use super::super::value::{Text, Value};
use super::Interpreter;

/// Cost, in instructions, of an operator on integers of arbitrary length.
const LONG_ARITHMETIC: usize = 250;

impl Interpreter<'_> {
    pub(in super::super) fn arithmetic(
        &self,
        operator: Arithmetic,
        a: &Value,
        b: &Value,
    ) -> Result<Value> {
        self.charge_read(a)?;
        self.charge_read(b)?;
        let is_long = |value: &Value| matches!(value, Value::Big(_));
        if operator == Arithmetic::Pow || is_long(a) || is_long(b) {
            self.step(LONG_ARITHMETIC)?;
        }
        if let Some(result) = arithmetic(operator, a, b) {
            return result;
        }
        match (operator, a, b) {
            (Arithmetic::Mod, Value::Text(text), _) => self.printf(text, b),
            (_, Value::Undefined(message), _) | (_, _, Value::Undefined(message)) => {
                Fault::other(message.to_string())
            }
            (Arithmetic::Add, Value::Text(first), Value::Text(second)) => {
                self.joined_texts(first, second)
            }
            (Arithmetic::Add, Value::List(a), Value::List(b)) => {
                self.check_allocation(a.len() + b.len(), size_of::<Value>())?;
                Value::list([&a[..], &b[..]].concat())
            }
            (Arithmetic::Add, Value::Tuple(a), Value::Tuple(b)) => {
                self.check_allocation(a.len() + b.len(), size_of::<Value>())?;
                Value::tuple([&a[..], &b[..]].concat())
            }
            (Arithmetic::Mul, Value::Text(_) | Value::List(_) | Value::Tuple(_), _)
                if Number::whole(b).is_some() =>
            {
                self.repeat(a, b)
            }
            (Arithmetic::Mul, _, Value::Text(_) | Value::List(_) | Value::Tuple(_))
                if Number::whole(a).is_some() =>
            {
                self.repeat(b, a)
            }
            (Arithmetic::Add, Value::Text(_) | Value::List(_) | Value::Tuple(_), _) => {
                let (a, b) = (a.type_name(), b.type_name());
                Fault::other(format!("can only concatenate {a} (not \"{b}\") to {a}"))
            }
            _ => Fault::other(format!(
                "unsupported operand type(s) for {}: '{}' and '{}'",
                operator.sign(),
                a.type_name(),
                b.type_name()
            )),
        }
    }

    /// Concatenates two texts. If one of them is marked as safe, the other is escaped.
    fn joined_texts(&self, first: &Text, second: &Text) -> Result<Value> {
        let (mut text, other) = (String::new(), second.as_str());
        match (first.is_safe(), second.is_safe()) {
            (true, false) => {
                text.push_str(first.as_str());
                text.push_str(&escape(other));
            }
            (false, true) => {
                text.push_str(&escape(first.as_str()));
                text.push_str(other);
            }
            _ => {
                self.check_memory(first.as_str().len() + other.len())?;
                text.push_str(first.as_str());
                text.push_str(other);
            }
        }
        Ok(if first.is_safe() || second.is_safe() {
            Value::safe(text)
        } else {
            Value::text(text)
        })
    }

    fn repeat(&self, value: &Value, count: &Value) -> Result<Value> {
        let count = Number::whole(count).unwrap_or_default();
        let count = match count.sign() {
            num_bigint::Sign::Minus => 0,
            _ => count.to_usize().unwrap_or(usize::MAX),
        };
        let copies = |items: &[Value]| -> Result<Vec<Value>> {
            if items.is_empty() {
                return Ok(Vec::new());
            }
            self.check_allocation(size_of_val(items), count)?;
            Ok(items
                .iter()
                .cycle()
                .take(items.len() * count)
                .cloned()
                .collect())
        };
        match value {
            Value::Text(text) if text.as_str().is_empty() => Ok(value.clone()),
            Value::Text(text) => {
                self.check_allocation(text.as_str().len(), count)?;
                Ok(Value::like(value, text.as_str().repeat(count)))
            }
            Value::List(items) => Value::list(copies(items)?),
            Value::Tuple(items) => Value::tuple(copies(items)?),
            _ => Fault::other(format!("can't repeat '{}' object", value.type_name())),
        }
    }

    pub(super) fn negative(&self, value: &Value) -> Result<Value> {
        match Number::of(value) {
            Some(Number::Int(number)) => Ok(match number.checked_neg() {
                Some(negative) => Value::Int(negative),
                None => Value::big(-BigInt::from(number)),
            }),
            Some(Number::Big(number)) => Ok(Value::big(-number)),
            Some(Number::Float(number)) => Ok(Value::Float(-number)),
            None => bad_operand("-", value),
        }
    }

    pub(super) fn positive(&self, value: &Value) -> Result<Value> {
        match Number::of(value) {
            Some(Number::Int(number)) => Ok(Value::Int(number)),
            Some(_) => Ok(value.clone()),
            None => bad_operand("+", value),
        }
    }
}

fn bad_operand<T>(sign: &str, value: &Value) -> Result<T> {
    match value {
        Value::Undefined(message) => Fault::other(message.to_string()),
        _ => Fault::other(format!(
            "bad operand type for unary {sign}: '{}'",
            value.type_name()
        )),
    }
}
