//! Implements Python's format specifications: `[[fill]align][sign][#][0][width][grouping][.precision][type]`.

use num_bigint::{BigInt, Sign};

use super::super::error::{Fault, Result};
use super::super::eval::Interpreter;
use super::super::number::Number;
use super::super::value::Value;
use super::{MAX_WIDTH, numbers};

#[derive(Debug, Default)]
struct Spec {
    fill: Option<char>,
    align: Option<char>,
    sign: Option<char>,
    alternate: bool,
    has_zeros: bool,
    width: usize,
    grouping: Option<char>,
    precision: Option<usize>,
    form: Option<char>,
}

impl Spec {
    fn parse(text: &str) -> Result<Self> {
        let mut spec = Self::default();
        let mut chars = text.chars().peekable();
        let mut ahead = text.chars();
        let (first, second) = (ahead.next(), ahead.next());
        let is_align = |c: Option<char>| matches!(c, Some('<' | '>' | '^' | '='));
        if is_align(second) {
            spec.fill = chars.next();
            spec.align = chars.next();
        } else if is_align(first) {
            spec.align = chars.next();
        }
        spec.sign = chars.next_if(|c| matches!(c, '+' | '-' | ' '));
        chars.next_if_eq(&'z');
        spec.alternate = chars.next_if_eq(&'#').is_some();
        spec.has_zeros = chars.next_if_eq(&'0').is_some();
        spec.width = number(&mut chars)?.unwrap_or(0);
        spec.grouping = chars.next_if(|c| matches!(c, ',' | '_'));
        if chars.next_if_eq(&'.').is_some() {
            spec.precision = number(&mut chars)?;
            if spec.precision.is_none() {
                return Fault::other("Format specifier missing precision");
            }
        }
        spec.form = chars.next();
        match chars.next() {
            Some(_) => Fault::other("Invalid format specifier"),
            None => Ok(spec),
        }
    }
}

fn number(chars: &mut std::iter::Peekable<std::str::Chars<'_>>) -> Result<Option<usize>> {
    let mut number = None;
    while let Some(digit) = chars.peek().and_then(|c| c.to_digit(10)) {
        chars.next();
        let next = number.unwrap_or(0) * 10 + digit as usize;
        if next > MAX_WIDTH {
            return Fault::other(format!("a width or precision is above {MAX_WIDTH}"));
        }
        number = Some(next);
    }
    Ok(number)
}

fn unknown<T>(form: char, value: &Value) -> Result<T> {
    Fault::other(format!(
        "Unknown format code '{form}' for object of type '{}'",
        value.type_name()
    ))
}

impl Interpreter<'_> {
    /// `format(value, spec)`.
    pub(super) fn format_value(&self, value: &Value, spec: &str) -> Result<String> {
        if spec.is_empty() {
            return self.str(value);
        }
        let parsed = Spec::parse(spec)?;
        self.check_allocation(4, parsed.width.max(parsed.precision.unwrap_or(0)))?;
        match value {
            Value::Text(text) => match parsed.form {
                None | Some('s') => format_text(text.as_str(), &parsed),
                Some(form) => unknown(form, value),
            },
            Value::Undefined(_) => format_text("", &parsed),
            _ if Number::of(value).is_some() => format_number(value, &parsed),
            _ => Fault::other(format!(
                "unsupported format string passed to {}.__format__",
                value.type_name()
            )),
        }
    }
}

fn format_text(text: &str, spec: &Spec) -> Result<String> {
    if spec.sign.is_some() {
        return Fault::other("Sign not allowed in string format specifier");
    }
    if spec.grouping.is_some() {
        return Fault::other("Cannot specify ',' with 's'.");
    }
    if spec.align == Some('=') {
        return Fault::other("'=' alignment not allowed in string format specifier");
    }
    let text: String = match spec.precision {
        Some(max) => text.chars().take(max).collect(),
        None => text.to_owned(),
    };
    let fill = spec.fill.unwrap_or(if spec.has_zeros { '0' } else { ' ' });
    Ok(padded(
        "",
        &text,
        spec.width,
        fill,
        spec.align.unwrap_or('<'),
    ))
}

fn padded(sign: &str, text: &str, width: usize, fill: char, align: char) -> String {
    let pad = width.saturating_sub(sign.chars().count() + text.chars().count());
    let (before, between, after) = match align {
        '<' => (0, 0, pad),
        '^' => (pad / 2, 0, pad - pad / 2),
        '=' => (0, pad, 0),
        _ => (pad, 0, 0),
    };
    let fill = |count| std::iter::repeat_n(fill, count);
    let mut out: String = fill(before).collect();
    out.push_str(sign);
    out.extend(fill(between));
    out.push_str(text);
    out.extend(fill(after));
    out
}

fn format_number(value: &Value, spec: &Spec) -> Result<String> {
    let Some(number) = Number::of(value) else {
        return unknown('d', value);
    };
    let whole = match &number {
        Number::Int(number) => Some(BigInt::from(*number)),
        Number::Big(number) => Some(number.clone()),
        Number::Float(_) => None,
    };
    let (is_negative, digits, prefix) = match (whole, spec.form) {
        (Some(whole), None | Some('b' | 'c' | 'd' | 'n' | 'o' | 'x' | 'X')) => {
            whole_digits(&whole, spec)?
        }
        (_, form) => {
            let float = number.to_f64();
            (
                float.is_sign_negative() && !float.is_nan(),
                float_digits(float, form, spec, value)?,
                "",
            )
        }
    };
    let sign = match (is_negative, spec.sign) {
        (true, _) => "-",
        (false, Some('+')) => "+",
        (false, Some(' ')) => " ",
        _ => "",
    };
    let sign = [sign, prefix].concat();
    let has_zeros = spec.has_zeros && spec.align.is_none();
    let digits = match spec.grouping {
        Some(separator) => {
            let group = if matches!(spec.form, Some('b' | 'o' | 'x' | 'X')) {
                4
            } else {
                3
            };
            let width = if has_zeros {
                spec.width.saturating_sub(sign.len())
            } else {
                0
            };
            numbers::grouped(&digits, separator, group, width)
        }
        None => digits,
    };
    let fill = spec.fill.unwrap_or(if spec.has_zeros { '0' } else { ' ' });
    let align = spec.align.unwrap_or(if spec.has_zeros { '=' } else { '>' });
    Ok(padded(&sign, &digits, spec.width, fill, align))
}

fn whole_digits(number: &BigInt, spec: &Spec) -> Result<(bool, String, &'static str)> {
    if spec.precision.is_some() {
        return Fault::other("Precision not allowed in integer format specifier");
    }
    let form = spec.form.unwrap_or('d');
    if form == 'c' {
        let code = u32::try_from(number).ok().and_then(char::from_u32);
        return match code {
            Some(code) => Ok((false, code.to_string(), "")),
            None => Fault::other("%c arg not in range(0x110000)"),
        };
    }
    let prefix = match (spec.alternate, form) {
        (true, 'b') => "0b",
        (true, 'o') => "0o",
        (true, 'x') => "0x",
        (true, 'X') => "0X",
        _ => "",
    };
    let is_negative = number.sign() == Sign::Minus;
    Ok((is_negative, numbers::integer(number, form), prefix))
}

fn float_digits(number: f64, form: Option<char>, spec: &Spec, value: &Value) -> Result<String> {
    Ok(match form {
        None => numbers::plain(number, spec.precision),
        Some('%') => {
            let digits = spec.precision.unwrap_or(6);
            numbers::float(number * 100.0, 'f', digits, spec.alternate) + "%"
        }
        Some(form @ ('e' | 'E' | 'f' | 'F' | 'g' | 'G')) => {
            numbers::float(number, form, spec.precision.unwrap_or(6), spec.alternate)
        }
        Some('n') => numbers::float(number, 'g', spec.precision.unwrap_or(6), spec.alternate),
        Some(form) => return unknown(form, value),
    })
}
