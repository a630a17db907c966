//! Formats numbers as Python's format specifications do.

use num_bigint::BigInt;

use super::super::repr::float as repr_float;

/// Formats a float without its sign, in the form `e`, `f`, `g`, `E`, `F` or `G`.
pub(super) fn float(number: f64, form: char, precision: usize, keeps_zeros: bool) -> String {
    let number = number.abs();
    let text = match form.to_ascii_lowercase() {
        _ if number.is_nan() => "nan".to_owned(),
        _ if number.is_infinite() => "inf".to_owned(),
        'f' => point(
            format!("{number:.precision$}"),
            keeps_zeros && precision == 0,
        ),
        'e' => exponential(number, precision, keeps_zeros),
        _ => general(number, precision.max(1), keeps_zeros),
    };
    if form.is_ascii_uppercase() {
        text.to_ascii_uppercase()
    } else {
        text
    }
}

fn point(mut text: String, wants_point: bool) -> String {
    if wants_point {
        text.push('.');
    }
    text
}

fn exponential(number: f64, precision: usize, keeps_point: bool) -> String {
    let text = format!("{number:.precision$e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let sign = if exponent < 0 { '-' } else { '+' };
    let digits = point(digits.to_owned(), keeps_point && precision == 0);
    format!("{digits}e{sign}{:02}", exponent.abs())
}

fn general(number: f64, precision: usize, keeps_zeros: bool) -> String {
    let text = format!("{number:.*e}", precision - 1);
    let exponent: i32 = text
        .split_once('e')
        .and_then(|(_, e)| e.parse().ok())
        .unwrap_or(0);
    if exponent < -4 || exponent >= precision as i32 {
        let text = exponential(number, precision - 1, keeps_zeros);
        let (digits, rest) = text.split_at(text.find('e').unwrap_or(text.len()));
        return if keeps_zeros {
            text
        } else {
            trimmed(digits).to_owned() + rest
        };
    }
    let decimals = (precision as i32 - 1 - exponent).max(0) as usize;
    let text = format!("{number:.decimals$}");
    if keeps_zeros {
        point(text.clone(), !text.contains('.'))
    } else {
        trimmed(&text).to_owned()
    }
}

fn trimmed(digits: &str) -> &str {
    if digits.contains('.') {
        digits.trim_end_matches('0').trim_end_matches('.')
    } else {
        digits
    }
}

/// Formats a float without a presentation type: as `g`, but with at least one digit after the point.
pub(super) fn plain(number: f64, precision: Option<usize>) -> String {
    let number = number.abs();
    let Some(precision) = precision.map(|precision| precision.max(1)) else {
        return repr_float(number);
    };
    if !number.is_finite() {
        return repr_float(number);
    }
    let text = format!("{number:.*e}", precision - 1);
    let exponent: i32 = text
        .split_once('e')
        .and_then(|(_, e)| e.parse().ok())
        .unwrap_or(0);
    if exponent < -4 || exponent >= (precision as i32 - 1).max(1) {
        let text = exponential(number, precision - 1, false);
        let (digits, rest) = text.split_at(text.find('e').unwrap_or(text.len()));
        return trimmed(digits).to_owned() + rest;
    }
    let text = general(number, precision, false);
    if text.contains('.') || precision == 1 {
        text
    } else {
        text + ".0"
    }
}

/// Formats an integer without its sign, in the base of `form`.
pub(super) fn integer(number: &BigInt, form: char) -> String {
    let number = number.magnitude();
    match form {
        'b' => number.to_str_radix(2),
        'o' => number.to_str_radix(8),
        'x' => number.to_str_radix(16),
        'X' => number.to_str_radix(16).to_uppercase(),
        _ => number.to_string(),
    }
}

/// Separates digits into groups, and adds leading zeros up to `width` characters.
pub(super) fn grouped(digits: &str, separator: char, group: usize, width: usize) -> String {
    let end = digits
        .find(|c: char| !c.is_ascii_hexdigit())
        .unwrap_or(digits.len());
    let (whole, rest) = digits.split_at(end);
    let mut reversed: Vec<char> = Vec::new();
    let mut digits = whole.chars().rev();
    let mut count = 0;
    loop {
        let digit = match digits.next() {
            Some(digit) => digit,
            None if reversed.len() + rest.len() < width => '0',
            None => break,
        };
        if count > 0 && count % group == 0 {
            reversed.push(separator);
        }
        reversed.push(digit);
        count += 1;
    }
    reversed.into_iter().rev().collect::<String>() + rest
}
