//! Implements Python's arithmetic on integers of any size, floats and bools.

use std::cmp::Ordering;

use num_bigint::BigInt;
use num_integer::Integer as _;
use num_traits::{FromPrimitive, Pow, Signed, ToPrimitive, Zero};

use super::characters::{decimal, is_blank};
use super::error::{Fault, Result};
use super::value::Value;

/// Maximum digits of an integer: Python's limit for converting integers to text.
const MAX_DIGITS: usize = 4300;
/// Bits of an integer with `MAX_DIGITS` digits.
const MAX_BITS: u64 = 14_285;

#[derive(Clone, Debug)]
pub(super) enum Number {
    Int(i64),
    Big(BigInt),
    Float(f64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arithmetic {
    Add,
    Sub,
    Mul,
    Div,
    FloorDiv,
    Mod,
    Pow,
}

impl Arithmetic {
    pub(super) fn sign(self) -> &'static str {
        match self {
            Self::Add => "+",
            Self::Sub => "-",
            Self::Mul => "*",
            Self::Div => "/",
            Self::FloorDiv => "//",
            Self::Mod => "%",
            Self::Pow => "** or pow()",
        }
    }
}

impl Number {
    pub(super) fn of(value: &Value) -> Option<Self> {
        match value {
            Value::Bool(value) => Some(Self::Int((*value).into())),
            Value::Int(value) => Some(Self::Int(*value)),
            Value::Big(value) => Some(Self::Big(value.as_ref().clone())),
            Value::Float(value) => Some(Self::Float(*value)),
            _ => None,
        }
    }

    pub(super) fn whole(value: &Value) -> Option<BigInt> {
        match Self::of(value)? {
            Self::Int(value) => Some(value.into()),
            Self::Big(value) => Some(value),
            Self::Float(_) => None,
        }
    }

    pub(super) fn to_f64(&self) -> f64 {
        match self {
            Self::Int(value) => *value as f64,
            Self::Big(value) => value.to_f64().unwrap_or(f64::NAN),
            Self::Float(value) => *value,
        }
    }

    fn to_big(&self) -> Option<BigInt> {
        match self {
            Self::Int(value) => Some((*value).into()),
            Self::Big(value) => Some(value.clone()),
            Self::Float(value) => BigInt::from_f64(value.trunc()),
        }
    }

    pub(super) fn order(&self, other: &Self) -> Option<Ordering> {
        match (self, other) {
            (Self::Int(a), Self::Int(b)) => Some(a.cmp(b)),
            (Self::Float(a), Self::Float(b)) => a.partial_cmp(b),
            (Self::Float(a), b) => order_of_float(*a, b),
            (a, Self::Float(b)) => order_of_float(*b, a).map(Ordering::reverse),
            (a, b) => Some(a.to_big()?.cmp(&b.to_big()?)),
        }
    }
}

/// Compares a float with an integer exactly.
fn order_of_float(a: f64, b: &Number) -> Option<Ordering> {
    if a.is_nan() {
        return None;
    }
    if a.is_infinite() {
        return a.partial_cmp(&0.0);
    }
    let (whole, b) = (BigInt::from_f64(a.trunc())?, b.to_big()?);
    Some(whole.cmp(&b).then(a.fract().partial_cmp(&0.0)?))
}

/// The result of an operator on two numbers; `None` if one is not a number.
pub(super) fn arithmetic(operator: Arithmetic, a: &Value, b: &Value) -> Option<Result<Value>> {
    let (a, b) = (Number::of(a)?, Number::of(b)?);
    Some(match (&a, &b) {
        (Number::Float(_), _) | (_, Number::Float(_)) => {
            of_floats(operator, a.to_f64(), b.to_f64())
        }
        (Number::Int(a), Number::Int(b)) => match of_small(operator, *a, *b) {
            Some(value) => Ok(Value::Int(value)),
            None => of_big(operator, &BigInt::from(*a), &BigInt::from(*b)),
        },
        (a, b) => match (a.to_big(), b.to_big()) {
            (Some(a), Some(b)) => of_big(operator, &a, &b),
            _ => Fault::other("an operand is not a whole number"),
        },
    })
}

fn of_small(operator: Arithmetic, a: i64, b: i64) -> Option<i64> {
    match operator {
        Arithmetic::Add => a.checked_add(b),
        Arithmetic::Sub => a.checked_sub(b),
        Arithmetic::Mul => a.checked_mul(b),
        Arithmetic::FloorDiv if b != 0 && (a, b) != (i64::MIN, -1) => Some(I64::divmod(a, b).0),
        Arithmetic::Mod if b != 0 && b != -1 => Some(I64::divmod(a, b).1),
        Arithmetic::Pow => a.checked_pow(u32::try_from(b).ok()?),
        _ => None,
    }
}

struct I64;

impl I64 {
    /// The quotient, rounded down, and the remainder.
    fn divmod(a: i64, b: i64) -> (i64, i64) {
        let (quotient, remainder) = (a / b, a % b);
        if remainder != 0 && (remainder < 0) != (b < 0) {
            (quotient - 1, remainder + b)
        } else {
            (quotient, remainder)
        }
    }
}

fn of_big(operator: Arithmetic, a: &BigInt, b: &BigInt) -> Result<Value> {
    let divides = matches!(
        operator,
        Arithmetic::Div | Arithmetic::FloorDiv | Arithmetic::Mod
    );
    if divides && b.is_zero() {
        return Fault::other("division by zero");
    }
    let result = match operator {
        Arithmetic::Add => a + b,
        Arithmetic::Sub => a - b,
        Arithmetic::Mul => a * b,
        Arithmetic::Div => return Ok(Value::Float(quotient(a, b))),
        Arithmetic::FloorDiv => a.div_floor(b),
        Arithmetic::Mod => a.mod_floor(b),
        Arithmetic::Pow => return power(a, b),
    };
    bounded(result)
}

fn quotient(a: &BigInt, b: &BigInt) -> f64 {
    let exact = |number: &BigInt| number.bits() <= 53;
    if exact(a) && exact(b) {
        return a.to_f64().unwrap_or(f64::NAN) / b.to_f64().unwrap_or(f64::NAN);
    }
    // At least 64 bits of the quotient and a sticky bit, so that the result is rounded only once.
    let shift = 66 - (a.bits() as i64 - b.bits() as i64);
    let (wide, divisor) = if shift >= 0 {
        (a.abs() << shift as u64, b.abs())
    } else {
        (a.abs(), b.abs() << shift.unsigned_abs())
    };
    let (mut whole, rest) = wide.div_rem(&divisor);
    if !rest.is_zero() {
        whole |= BigInt::from(1);
    }
    let magnitude = whole.to_f64().unwrap_or(f64::NAN) * 2f64.powi(-(shift as i32));
    if a.is_negative() == b.is_negative() {
        magnitude
    } else {
        -magnitude
    }
}

fn power(a: &BigInt, b: &BigInt) -> Result<Value> {
    if b.is_negative() {
        let (a, b) = (
            a.to_f64().unwrap_or(f64::NAN),
            b.to_f64().unwrap_or(f64::NAN),
        );
        return of_floats(Arithmetic::Pow, a, b);
    }
    let exponent = match b.to_u32() {
        Some(exponent) => exponent,
        None if a.bits() <= 1 => 2 + u32::from(b.bit(0)),
        None => return too_long(),
    };
    if a.bits().saturating_sub(1) * u64::from(exponent) > MAX_BITS {
        return too_long();
    }
    bounded(Pow::pow(a, exponent))
}

fn of_floats(operator: Arithmetic, a: f64, b: f64) -> Result<Value> {
    let result = match operator {
        Arithmetic::Add => a + b,
        Arithmetic::Sub => a - b,
        Arithmetic::Mul => a * b,
        Arithmetic::Div | Arithmetic::FloorDiv | Arithmetic::Mod if b == 0.0 => {
            return Fault::other(match operator {
                Arithmetic::Div => "float division by zero",
                Arithmetic::FloorDiv => "float floor division by zero",
                _ => "float modulo",
            });
        }
        Arithmetic::Div => a / b,
        Arithmetic::FloorDiv => divmod(a, b).0,
        Arithmetic::Mod => divmod(a, b).1,
        Arithmetic::Pow if a == 0.0 && b < 0.0 => {
            return Fault::other("0.0 cannot be raised to a negative power");
        }
        Arithmetic::Pow if a < 0.0 && a.is_finite() && b.fract() != 0.0 => {
            return Fault::other("complex numbers are not supported");
        }
        Arithmetic::Pow => a.powf(b),
    };
    if operator == Arithmetic::Pow && result.is_infinite() && a.is_finite() && b.is_finite() {
        return Fault::other("(34, 'Numerical result out of range')");
    }
    Ok(Value::Float(result))
}

/// The quotient of floats, rounded down, and the remainder.
fn divmod(a: f64, b: f64) -> (f64, f64) {
    let mut remainder = a % b;
    let mut quotient = (a - remainder) / b;
    if remainder != 0.0 && (remainder < 0.0) != (b < 0.0) {
        remainder += b;
        quotient -= 1.0;
    } else if remainder == 0.0 {
        remainder = 0f64.copysign(b);
    }
    let floored = quotient.floor();
    let floored = if quotient - floored > 0.5 {
        floored + 1.0
    } else {
        floored
    };
    if quotient == 0.0 {
        (0f64.copysign(a / b), remainder)
    } else {
        (floored, remainder)
    }
}

pub(super) fn bounded(number: BigInt) -> Result<Value> {
    if number.bits() <= MAX_BITS {
        Ok(Value::big(number))
    } else {
        too_long()
    }
}

fn too_long<T>() -> Result<T> {
    Fault::other(format!(
        "Exceeds the limit ({MAX_DIGITS} digits) for integers"
    ))
}

/// Parses an integer as Python's `int(text, base)` does.
pub(super) fn parse_int(text: &str, base: u32) -> Option<BigInt> {
    let text = text.trim_matches(is_blank);
    let (sign, text) = match text.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let prefixed = |base: u32, text: &str| -> Option<usize> {
        let prefix = text.get(..2)?.to_ascii_lowercase();
        let named = match prefix.as_str() {
            "0x" => 16,
            "0o" => 8,
            "0b" => 2,
            _ => return None,
        };
        (named == base).then_some(2)
    };
    let (base, text) = match base {
        0 => {
            let mut named = [16, 8, 2].into_iter();
            match named.find(|base| prefixed(*base, text).is_some()) {
                Some(base) => (base, &text[2..]),
                None if text.starts_with('0') && !text.trim_matches(['0', '_']).is_empty() => {
                    return None;
                }
                None => (10, text),
            }
        }
        base => (base, &text[prefixed(base, text).unwrap_or(0)..]),
    };
    let digits: String = digits(text, base)?;
    if digits.len() > MAX_DIGITS {
        return None;
    }
    Some(BigInt::parse_bytes(digits.as_bytes(), base)? * sign)
}

/// Removes the underscores between digits, and converts digits of other scripts to ASCII.
fn digits(text: &str, base: u32) -> Option<String> {
    if text.is_empty() || text.starts_with('_') || text.ends_with('_') || text.contains("__") {
        return None;
    }
    let chars = text.chars().filter(|character| *character != '_');
    let digit = |character: char| match character.to_digit(base) {
        Some(_) => Some(character),
        None => decimal(character)
            .filter(|digit| *digit < base)
            .and_then(|digit| char::from_digit(digit, base)),
    };
    chars.map(digit).collect()
}

/// Parses a float as Python's `float(text)` does.
pub(super) fn parse_float(text: &str) -> Option<f64> {
    let text = text.trim_matches(is_blank);
    let bare = text.trim_start_matches(['+', '-']).to_ascii_lowercase();
    if text.len() - bare.len() > 1 {
        return None;
    }
    if matches!(bare.as_str(), "nan" | "inf" | "infinity") {
        return text.parse().ok();
    }
    let is_between_digits = |at: usize| {
        let bytes = text.as_bytes();
        let is_digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
        at > 0 && is_digit(at - 1) && is_digit(at + 1)
    };
    let mut underscores = text.match_indices('_');
    if !bare.starts_with(|c: char| c.is_ascii_digit() || c == '.')
        || !underscores.all(|(at, _)| is_between_digits(at))
    {
        return None;
    }
    text.replace('_', "").parse().ok()
}

/// Rounds as Python's `round` does: half to even.
pub(super) fn round(value: f64, digits: i64) -> f64 {
    if !value.is_finite() || digits > 330 {
        return value;
    }
    if digits >= 0 {
        // Formatting rounds the exact value of the float, as Python does.
        let text = format!("{value:.*}", digits as usize);
        return text.parse().unwrap_or(value);
    }
    if digits < -310 {
        return 0f64.copysign(value);
    }
    let scale = 10f64.powi(-digits as i32);
    (value / scale).round_ties_even() * scale
}
