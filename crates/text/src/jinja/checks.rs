//! Implements Jinja's tests, such as `is defined`.

use super::args::Args;
use super::ast::Comparison;
use super::compare::{equal, is_same};
use super::error::{Fault, Result};
use super::eval::{Interpreter, compare};
use super::filters;
use super::number::{Arithmetic, Number};
use super::value::Value;

const NAMES: [&str; 39] = [
    "!=",
    "<",
    "<=",
    "==",
    ">",
    ">=",
    "boolean",
    "callable",
    "defined",
    "divisibleby",
    "eq",
    "equalto",
    "escaped",
    "even",
    "false",
    "filter",
    "float",
    "ge",
    "greaterthan",
    "gt",
    "in",
    "integer",
    "iterable",
    "le",
    "lessthan",
    "lower",
    "lt",
    "mapping",
    "ne",
    "none",
    "number",
    "odd",
    "sameas",
    "sequence",
    "string",
    "test",
    "true",
    "undefined",
    "upper",
];

impl Interpreter<'_> {
    pub(super) fn test(&self, name: &str, value: Value, args: Args) -> Result<bool> {
        self.charge_read(&value)?;
        if let Some(comparison) = comparison(name) {
            let [other] = args.by_position(name, 1)?;
            let other = other.unwrap_or(Value::None);
            self.charge_read(&other)?;
            return compare(comparison, &value, &other);
        }
        match name {
            "divisibleby" | "odd" | "even" => return self.divides(name, value, args),
            "sameas" => {
                let [other] = args.bind(name, ["other"], 1)?;
                return Ok(is_same(&value, &other.unwrap_or(Value::None)));
            }
            _ => args.expect_none(name)?,
        }
        Ok(match name {
            "defined" => !value.is_undefined(),
            "undefined" => value.is_undefined(),
            "none" => matches!(value, Value::None),
            "boolean" => matches!(value, Value::Bool(_)),
            "true" => matches!(value, Value::Bool(true)),
            "false" => matches!(value, Value::Bool(false)),
            "integer" => matches!(value, Value::Int(_) | Value::Big(_)),
            "float" => matches!(value, Value::Float(_)),
            "number" => Number::of(&value).is_some(),
            "string" => matches!(value, Value::Text(_)),
            "mapping" => matches!(value, Value::Dict(_)),
            "iterable" => value.is_iterable() || self.is_loop(&value),
            "sequence" => value.len().is_some() && !matches!(value, Value::View(..)),
            "callable" => {
                matches!(
                    value,
                    Value::Undefined(_) | Value::Method(_) | Value::Function(_)
                ) || self.is_callable(&value)
            }
            "escaped" => value.is_safe(),
            "lower" => self.is_cased(&value, false)?,
            "upper" => self.is_cased(&value, true)?,
            "filter" => {
                let name = self.str(&value)?;
                filters::NAMES.contains(&name.as_str()) || name == "xmlattr"
            }
            "test" => NAMES.contains(&self.str(&value)?.as_str()),
            _ => return Fault::other(format!("No test named '{name}'.")),
        })
    }

    fn is_cased(&self, value: &Value, is_upper: bool) -> Result<bool> {
        let text = self.str(value)?;
        let name = if is_upper { "isupper" } else { "islower" };
        let found = self.call_method(&Value::text(text), name, Args::default())?;
        Ok(self.truth(&found))
    }

    fn divides(&self, name: &str, value: Value, args: Args) -> Result<bool> {
        let by = match name {
            "divisibleby" => {
                let [by] = args.bind(name, ["num"], 1)?;
                by.unwrap_or(Value::None)
            }
            _ => {
                args.expect_none(name)?;
                Value::Int(2)
            }
        };
        let rest = self.arithmetic(Arithmetic::Mod, &value, &by)?;
        let wanted = Value::Int(i64::from(name == "odd"));
        Ok(equal(&rest, &wanted))
    }
}

fn comparison(name: &str) -> Option<Comparison> {
    Some(match name {
        "==" | "eq" | "equalto" => Comparison::Equal,
        "!=" | "ne" => Comparison::NotEqual,
        "<" | "lt" | "lessthan" => Comparison::Less,
        "<=" | "le" => Comparison::LessEqual,
        ">" | "gt" | "greaterthan" => Comparison::Greater,
        ">=" | "ge" => Comparison::GreaterEqual,
        "in" => Comparison::In,
        _ => return None,
    })
}
