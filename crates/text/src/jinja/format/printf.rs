//! Implements Python's `%` formatting: `text % values`.

use std::iter::Peekable;
use std::str::Chars;

use num_bigint::{BigInt, Sign};
use num_traits::FromPrimitive;

use super::super::error::{Fault, Result};
use super::super::eval::Interpreter;
use super::super::filters::escape;
use super::super::number::Number;
use super::super::value::{Text, Value};
use super::{MAX_WIDTH, numbers};

#[derive(Debug, Default)]
struct Conversion {
    alternate: bool,
    has_zeros: bool,
    is_left: bool,
    has_blank: bool,
    has_sign: bool,
    width: usize,
    precision: Option<usize>,
}

/// The values of a format string, taken in order or by name.
struct Values<'a> {
    items: &'a [Value],
    next: usize,
    /// The right operand of `%`, which may be a mapping.
    all: &'a Value,
}

impl Values<'_> {
    fn next(&mut self) -> Result<Value> {
        let item = self.items.get(self.next).cloned();
        self.next += 1;
        match item {
            Some(item) => Ok(item),
            None => Fault::other("not enough arguments for format string"),
        }
    }
}

impl Interpreter<'_> {
    pub(in super::super) fn printf(&self, text: &Text, values: &Value) -> Result<Value> {
        let single = [values.clone()];
        let mut values = Values {
            items: match values {
                Value::Tuple(items) => items,
                _ => &single,
            },
            next: 0,
            all: values,
        };
        let mut out = String::new();
        let mut chars = text.as_str().chars().peekable();
        let mut by_name = false;
        while let Some(character) = chars.next() {
            if character != '%' {
                out.push(character);
                continue;
            }
            by_name |= self.convert(&mut out, &mut chars, &mut values, text.is_safe())?;
            self.step(1)?;
            self.check_memory(out.len())?;
        }
        let is_taken = values.next >= values.items.len();
        let is_mapping = matches!(
            values.all,
            Value::Dict(_) | Value::List(_) | Value::Undefined(_)
        );
        if !is_taken && !by_name && !is_mapping {
            return Fault::other("not all arguments converted during string formatting");
        }
        Ok(if text.is_safe() {
            Value::safe(out)
        } else {
            Value::text(out)
        })
    }

    /// Writes a conversion, and returns whether its value was named.
    fn convert(
        &self,
        out: &mut String,
        chars: &mut Peekable<Chars<'_>>,
        values: &mut Values<'_>,
        escapes: bool,
    ) -> Result<bool> {
        let named = named_value(chars, values)?;
        let conversion = self.conversion(chars, values)?;
        chars.next_if(|c| matches!(c, 'h' | 'l' | 'L'));
        let Some(form) = chars.next() else {
            return Fault::other("incomplete format");
        };
        let is_bare = conversion.width == 0 && conversion.precision.is_none();
        if form == '%' && is_bare {
            out.push('%');
            return Ok(named.is_some());
        }
        let by_name = named.is_some();
        let value = match named {
            Some(value) => value,
            None => values.next()?,
        };
        self.check_allocation(1, conversion.width + conversion.precision.unwrap_or(0))?;
        let (sign, mut text) = self.converted(&value, form, &conversion)?;
        if escapes && !value.is_safe() && form == 's' {
            text = escape(&text);
        }
        put(
            out,
            &sign,
            &text,
            &conversion,
            !matches!(form, 's' | 'r' | 'a' | 'c'),
        );
        Ok(by_name)
    }

    /// Parses the flags, the width and the precision of a conversion.
    fn conversion(
        &self,
        chars: &mut Peekable<Chars<'_>>,
        values: &mut Values<'_>,
    ) -> Result<Conversion> {
        let mut conversion = Conversion::default();
        while let Some(flag) = chars.next_if(|c| matches!(c, '#' | '0' | '-' | ' ' | '+')) {
            match flag {
                '#' => conversion.alternate = true,
                '0' => conversion.has_zeros = true,
                '-' => conversion.is_left = true,
                ' ' => conversion.has_blank = true,
                _ => conversion.has_sign = true,
            }
        }
        if let Some(width) = self.size(chars, values)? {
            conversion.is_left |= width < 0;
            conversion.width = width.unsigned_abs() as usize;
        }
        if chars.next_if_eq(&'.').is_some() {
            let precision = self.size(chars, values)?.unwrap_or(0);
            conversion.precision = Some(usize::try_from(precision).unwrap_or(0));
        }
        Ok(conversion)
    }

    fn size(
        &self,
        chars: &mut Peekable<Chars<'_>>,
        values: &mut Values<'_>,
    ) -> Result<Option<i64>> {
        let size = if chars.next_if_eq(&'*').is_some() {
            Some(self.whole(&values.next()?)?)
        } else {
            let mut size = None;
            while let Some(digit) = chars.peek().and_then(|c| c.to_digit(10)) {
                chars.next();
                size = Some((size.unwrap_or(0) * 10 + i64::from(digit)).min(i64::from(u32::MAX)));
            }
            size
        };
        if size.is_none_or(|size| size.unsigned_abs() <= MAX_WIDTH as u64) {
            Ok(size)
        } else {
            Fault::other(format!("a width or precision is above {MAX_WIDTH}"))
        }
    }

    fn converted(
        &self,
        value: &Value,
        form: char,
        conversion: &Conversion,
    ) -> Result<(String, String)> {
        let cut = |text: String| match conversion.precision {
            Some(max) => text.chars().take(max).collect(),
            None => text,
        };
        let sign = |is_negative: bool| {
            match (is_negative, conversion.has_sign, conversion.has_blank) {
                (true, ..) => "-",
                (_, true, _) => "+",
                (_, _, true) => " ",
                _ => "",
            }
            .to_owned()
        };
        match form {
            's' => Ok((String::new(), cut(self.str(value)?))),
            'r' => Ok((String::new(), cut(self.repr(value)?))),
            'a' => Ok((String::new(), cut(ascii(&self.repr(value)?)))),
            'c' => {
                let text = match value {
                    Value::Text(text) if text.as_str().chars().count() == 1 => {
                        text.as_str().to_owned()
                    }
                    Value::Int(code) => match u32::try_from(*code).ok().and_then(char::from_u32) {
                        Some(code) => code.to_string(),
                        None => return Fault::other("%c arg not in range(0x110000)"),
                    },
                    _ => return Fault::other("%c requires int or char"),
                };
                Ok((String::new(), text))
            }
            'd' | 'i' | 'u' | 'o' | 'x' | 'X' => {
                let number = whole(value, form)?;
                let is_negative = number.sign() == Sign::Minus;
                let digits = numbers::integer(&number, form);
                let zeros = conversion
                    .precision
                    .unwrap_or(0)
                    .saturating_sub(digits.len());
                let prefix = match (conversion.alternate, form) {
                    (true, 'o') => "0o",
                    (true, 'x') => "0x",
                    (true, 'X') => "0X",
                    _ => "",
                };
                Ok((sign(is_negative) + prefix, "0".repeat(zeros) + &digits))
            }
            'e' | 'E' | 'f' | 'F' | 'g' | 'G' => {
                let Some(number) = Number::of(value) else {
                    let kind = value.type_name();
                    return Fault::other(format!("must be real number, not {kind}"));
                };
                let number = number.to_f64();
                let precision = conversion.precision.unwrap_or(6);
                let text = numbers::float(number, form, precision, conversion.alternate);
                Ok((sign(number.is_sign_negative() && !number.is_nan()), text))
            }
            _ => Fault::other(format!("unsupported format character '{form}'")),
        }
    }
}

/// Parses a name in parentheses, if there is one, and returns its value.
fn named_value(chars: &mut Peekable<Chars<'_>>, values: &Values<'_>) -> Result<Option<Value>> {
    if chars.next_if_eq(&'(').is_none() {
        return Ok(None);
    }
    let mut name = String::new();
    let mut open = 1;
    for character in chars.by_ref() {
        match character {
            '(' => open += 1,
            ')' => open -= 1,
            _ => (),
        }
        if open == 0 {
            break;
        }
        name.push(character);
    }
    if open > 0 {
        return Fault::other("incomplete format key");
    }
    let Value::Dict(dict) = values.all else {
        return Fault::other("format requires a mapping");
    };
    match dict.get_text(&name) {
        Some(value) => Ok(Some(value.clone())),
        None => Fault::other(format!("'{name}'")),
    }
}

fn whole(value: &Value, form: char) -> Result<BigInt> {
    let is_decimal = matches!(form, 'd' | 'i' | 'u');
    match Number::of(value) {
        Some(Number::Int(number)) => Ok(number.into()),
        Some(Number::Big(number)) => Ok(number),
        Some(Number::Float(number)) if is_decimal && number.is_finite() => {
            Ok(BigInt::from_f64(number.trunc()).unwrap_or_default())
        }
        _ => Fault::other(format!(
            "%{form} format: {} is required, not {}",
            if is_decimal {
                "a real number"
            } else {
                "an integer"
            },
            value.type_name()
        )),
    }
}

fn ascii(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match u32::from(character) {
            0..0x80 => out.push(character),
            code @ 0x80..0x100 => out.push_str(&format!("\\x{code:02x}")),
            code @ 0x100..0x1_0000 => out.push_str(&format!("\\u{code:04x}")),
            code => out.push_str(&format!("\\U{code:08x}")),
        }
    }
    out
}

fn put(out: &mut String, sign: &str, text: &str, conversion: &Conversion, is_number: bool) {
    let used = sign.chars().count() + text.chars().count();
    let pad = conversion.width.saturating_sub(used);
    let fill = |fill: char| std::iter::repeat_n(fill, pad);
    if conversion.is_left {
        out.push_str(sign);
        out.push_str(text);
        out.extend(fill(' '));
    } else if conversion.has_zeros && is_number {
        out.push_str(sign);
        out.extend(fill('0'));
        out.push_str(text);
    } else {
        out.extend(fill(' '));
        out.push_str(sign);
        out.push_str(text);
    }
}
