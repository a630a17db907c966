//! Implements the methods of Python's lists, mappings, bytes and numbers.

use num_bigint::BigInt;

use super::super::args::Args;
use super::super::compare::equal;
use super::super::error::{Fault, Result};
use super::super::eval::Interpreter;
use super::super::eval::slice_indices;
use super::super::number::Number;
use super::super::value::{Key, Value, View};

impl Interpreter<'_> {
    pub(super) fn call_other_method(&self, value: &Value, name: &str, args: Args) -> Result<Value> {
        match (value, name) {
            (Value::Dict(dict), "get") => {
                let [key, default] = args.by_position(name, 1)?;
                let key = key.unwrap_or(Value::None);
                Key::new(&key)?;
                let found = dict.get(&key).cloned();
                Ok(found.or(default).unwrap_or(Value::None))
            }
            (Value::Dict(dict), "keys" | "values" | "items") => {
                args.expect_none(name)?;
                let view = match name {
                    "keys" => View::Keys,
                    "values" => View::Values,
                    _ => View::Items,
                };
                Ok(Value::View(dict.clone(), view))
            }
            (Value::Dict(_) | Value::List(_), "copy") => {
                args.expect_none(name)?;
                match value {
                    Value::Dict(dict) => Value::dict(dict.entries().to_vec()),
                    _ => Value::list(self.items(value)?),
                }
            }
            (Value::Dict(_) | Value::Function(_), "fromkeys") => {
                let [keys, default] = args.by_position(name, 1)?;
                let default = default.unwrap_or(Value::None);
                let keys = self.items(&keys.unwrap_or(Value::None))?.into_iter();
                Value::dict(keys.map(|key| (key, default.clone())).collect())
            }
            (Value::List(_) | Value::Tuple(_) | Value::Range(_), "count") => {
                let [wanted] = args.by_position(name, 1)?;
                let wanted = wanted.unwrap_or(Value::None);
                let items = self.items(value)?;
                let found = items.iter().filter(|item| equal(item, &wanted));
                Ok(found.count().into())
            }
            (Value::List(_) | Value::Tuple(_) | Value::Range(_), "index") => {
                self.index(value, args)
            }
            (Value::Bytes(bytes), "decode") => {
                let [_, _] = args.bind(name, ["encoding", "errors"], 0)?;
                match std::str::from_utf8(bytes) {
                    Ok(text) => Ok(Value::text(text)),
                    Err(_) => Fault::other("'utf-8' codec can't decode the bytes"),
                }
            }
            (Value::Bytes(bytes), "hex") => {
                args.expect_none(name)?;
                let digits = bytes.iter().map(|byte| format!("{byte:02x}"));
                Ok(Value::text(digits.collect::<String>()))
            }
            (Value::Float(number), "is_integer") => {
                args.expect_none(name)?;
                Ok(Value::Bool(number.is_finite() && number.fract() == 0.0))
            }
            (Value::Float(_), "conjugate") => Ok(value.clone()),
            _ => self.call_int_method(value, name, args),
        }
    }

    fn call_int_method(&self, value: &Value, name: &str, args: Args) -> Result<Value> {
        let Some(number) = Number::whole(value) else {
            let kind = value.type_name();
            return Fault::other(format!("'{kind} object' has no attribute '{name}'"));
        };
        args.expect_none(name)?;
        match name {
            "bit_length" => Ok((number.bits() as usize).into()),
            "bit_count" => {
                let ones = number.magnitude().iter_u64_digits().map(u64::count_ones);
                Ok((ones.sum::<u32>() as usize).into())
            }
            "is_integer" => Ok(Value::Bool(true)),
            "conjugate" => Ok(Value::big(number)),
            "as_integer_ratio" => {
                Value::tuple(vec![Value::big(number), Value::big(BigInt::from(1))])
            }
            _ => Fault::other(format!("'int object' has no attribute '{name}'")),
        }
    }

    fn index(&self, value: &Value, args: Args) -> Result<Value> {
        let [wanted, start, stop] = args.by_position("index", 1)?;
        let wanted = wanted.unwrap_or(Value::None);
        let items = self.items(value)?;
        let parts = [
            start.unwrap_or(Value::None),
            stop.unwrap_or(Value::None),
            Value::None,
        ];
        let (start, _, count) = slice_indices(&parts, items.len())?;
        let start = usize::try_from(start).unwrap_or(0);
        let found = items
            .iter()
            .skip(start)
            .take(count)
            .position(|item| equal(item, &wanted));
        match found {
            Some(at) => Ok((start + at).into()),
            None => {
                let wanted = self.repr(&wanted)?;
                let place = value.type_name();
                Fault::other(format!("{wanted} is not in {place}"))
            }
        }
    }
}
