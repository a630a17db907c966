//! Implements Jinja's filters for numbers.

use num_bigint::BigInt;
use num_traits::{FromPrimitive, Signed};

use super::super::args::Args;
use super::super::error::{Fault, Result};
use super::super::eval::Interpreter;
use super::super::number::{Arithmetic, Number, bounded, parse_float, parse_int, round};
use super::super::value::Value;

impl Interpreter<'_> {
    pub(super) fn number_filter(&self, name: &str, value: Value, args: Args) -> Result<Value> {
        match name {
            "abs" => {
                args.expect_none(name)?;
                match (Number::of(&value), &value) {
                    (Some(Number::Int(number)), _) => Ok(Value::big(BigInt::from(number).abs())),
                    (Some(Number::Big(number)), _) => Ok(Value::big(number.abs())),
                    (Some(Number::Float(number)), _) => Ok(Value::Float(number.abs())),
                    (None, Value::Undefined(message)) => Fault::other(message.to_string()),
                    (None, other) => {
                        let kind = other.type_name();
                        Fault::other(format!("bad operand type for abs(): '{kind}'"))
                    }
                }
            }
            "int" => {
                let [default, base] = args.bind(name, ["default", "base"], 0)?;
                let base = base.map_or(Ok(10), |base| self.whole(&base))?;
                let default = default.unwrap_or(Value::Int(0));
                self.int(&value, default, base)
            }
            "float" => {
                let [default] = args.bind(name, ["default"], 0)?;
                if let Value::Undefined(message) = &value {
                    return Fault::other(message.to_string());
                }
                Ok(match float_of(&value) {
                    Some(number) => Value::Float(number),
                    None => default.unwrap_or(Value::Float(0.0)),
                })
            }
            "round" => self.round(&value, args),
            "sum" => self.sum(&value, args),
            _ => {
                let [binary] = args.bind(name, ["binary"], 0)?;
                let Some(bytes) = float_of(&value) else {
                    return Fault::other("could not convert value to float");
                };
                let binary = binary.is_some_and(|binary| self.truth(&binary));
                Ok(Value::text(file_size(bytes, binary)))
            }
        }
    }

    fn int(&self, value: &Value, default: Value, base: i64) -> Result<Value> {
        if let Value::Undefined(message) = value {
            return Fault::other(message.to_string());
        }
        if let Value::Text(text) = value {
            let Some(base) = u32::try_from(base)
                .ok()
                .filter(|base| matches!(base, 0 | 2..=36))
            else {
                return Ok(default);
            };
            self.step(text.as_str().len())?;
            if let Some(number) = parse_int(text.as_str(), base) {
                return bounded(number);
            }
        }
        match Number::of(value) {
            Some(Number::Int(number)) => return Ok(Value::Int(number)),
            Some(Number::Big(number)) => return Ok(Value::big(number)),
            _ => (),
        }
        let number = float_of(value).filter(|number| number.is_finite());
        match number.and_then(|number| BigInt::from_f64(number.trunc())) {
            Some(number) => bounded(number),
            None => Ok(default),
        }
    }

    fn round(&self, value: &Value, args: Args) -> Result<Value> {
        let [precision, method] = args.bind("round", ["precision", "method"], 0)?;
        let precision = precision.map_or(Ok(0), |precision| self.whole(&precision))?;
        let method = method.unwrap_or_else(|| Value::text("common"));
        let method = self.text_of(&method)?;
        let Some(number) = Number::of(value) else {
            return match value {
                Value::Undefined(message) => Fault::other(message.to_string()),
                other => {
                    let kind = other.type_name();
                    Fault::other(format!("type {kind} doesn't define __round__ method"))
                }
            };
        };
        match method {
            "common" => match number {
                Number::Float(number) => Ok(Value::Float(round(number, precision))),
                _ if precision >= 0 => Ok(Value::big(Number::whole(value).unwrap_or_default())),
                _ => {
                    let whole = Number::whole(value).unwrap_or_default();
                    round_whole(&whole, precision.unsigned_abs())
                }
            },
            "ceil" | "floor" => {
                // These are Python's steps, so that intermediate results are rounded in the same way.
                let scale =
                    self.arithmetic(Arithmetic::Pow, &Value::Int(10), &Value::Int(precision))?;
                let scaled = self.arithmetic(Arithmetic::Mul, value, &scale)?;
                let Some(scaled) = Number::of(&scaled) else {
                    return Fault::other("round needs a number");
                };
                let whole = match scaled {
                    Number::Float(number) => {
                        let number = if method == "ceil" {
                            number.ceil()
                        } else {
                            number.floor()
                        };
                        match BigInt::from_f64(number) {
                            Some(number) => bounded(number)?,
                            None => {
                                return Fault::other("cannot convert float infinity to integer");
                            }
                        }
                    }
                    Number::Int(number) => Value::Int(number),
                    Number::Big(number) => Value::big(number),
                };
                self.arithmetic(Arithmetic::Div, &whole, &scale)
            }
            _ => Fault::other("method must be common, ceil or floor"),
        }
    }

    fn sum(&self, value: &Value, args: Args) -> Result<Value> {
        let [attribute, start] = args.bind("sum", ["attribute", "start"], 0)?;
        let getter = self.getter(attribute)?;
        let mut sum = start.unwrap_or(Value::Int(0));
        if matches!(sum, Value::Text(_)) {
            return Fault::other("sum() can't sum strings [use ''.join(seq) instead]");
        }
        for item in self.items(value)? {
            let item = self.get(&getter, &item, None)?;
            sum = self.arithmetic(Arithmetic::Add, &sum, &item)?;
        }
        Ok(sum)
    }
}

fn float_of(value: &Value) -> Option<f64> {
    match value {
        Value::Text(text) => parse_float(text.as_str()),
        other => Number::of(other).map(|number| number.to_f64()),
    }
}

/// Rounds to a multiple of a power of ten, half to even.
fn round_whole(number: &BigInt, digits: u64) -> Result<Value> {
    use num_integer::Integer as _;
    use num_traits::{Pow, Zero};

    if digits > 4300 {
        return Ok(Value::Int(0));
    }
    let scale = Pow::pow(BigInt::from(10), digits);
    let (quotient, rest) = number.div_mod_floor(&scale);
    let twice = rest * 2;
    let rounds_up = twice > scale || (twice == scale && quotient.is_odd());
    let quotient = if rounds_up { quotient + 1 } else { quotient };
    if quotient.is_zero() {
        Ok(Value::Int(0))
    } else {
        bounded(quotient * scale)
    }
}

fn file_size(bytes: f64, binary: bool) -> String {
    let (base, infix) = if binary { (1024.0, "i") } else { (1000.0, "") };
    if bytes == 1.0 {
        return "1 Byte".to_owned();
    }
    if bytes < base {
        return format!("{} Bytes", bytes.trunc());
    }
    let prefixes = if binary {
        ["K", "M", "G", "T", "P", "E", "Z", "Y"]
    } else {
        ["k", "M", "G", "T", "P", "E", "Z", "Y"]
    };
    let mut unit = base;
    let mut text = String::new();
    for prefix in prefixes {
        unit *= base;
        text = format!("{:.1} {prefix}{infix}B", base * bytes / unit);
        if bytes < unit {
            break;
        }
    }
    text
}
