//! Converts numbers in Python's notation to JSON.

/// Translates Python's notation of a number (`1_000`, `0x1f`, `.5`, `+3`, `007`) to JSON; JSON stays unchanged.
pub(super) fn to_json(text: &str) -> Option<String> {
    if is_json(text) {
        return Some(text.to_owned());
    }
    let (sign, digits) = match text.strip_prefix('-') {
        Some(rest) => ("-", rest),
        None => ("", text.strip_prefix('+').unwrap_or(text)),
    };
    let digits = digits.replace('_', "");
    if digits.starts_with(['+', '-']) {
        return None;
    }
    if let Some(value) = with_base(&digits) {
        return Some(format!("{sign}{value}"));
    }
    let (mantissa, exponent) = match digits.find(['e', 'E']) {
        Some(at) => digits.split_at(at),
        None => (digits.as_str(), ""),
    };
    let (whole, fraction) = match mantissa.split_once('.') {
        Some((whole, fraction)) => (whole, Some(fraction)),
        None => (mantissa, None),
    };
    let has_digits = !whole.is_empty() || fraction.is_some_and(|digits| !digits.is_empty());
    let whole = match whole.trim_start_matches('0') {
        "" => "0",
        rest => rest,
    };
    let fraction = match fraction {
        None => String::new(),
        Some("") => ".0".to_owned(),
        Some(digits) => format!(".{digits}"),
    };
    let number = format!("{sign}{whole}{fraction}{exponent}");
    (has_digits && is_json(&number)).then_some(number)
}

pub(super) fn is_json(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let (whole, rest) = digits_of(digits);
    if whole.is_empty() || (whole.len() > 1 && whole.starts_with('0')) {
        return false;
    }
    let rest = match rest.strip_prefix('.') {
        None => rest,
        Some(rest) => match digits_of(rest) {
            ("", _) => return false,
            (_, rest) => rest,
        },
    };
    match rest.strip_prefix(['e', 'E']) {
        None => rest.is_empty(),
        Some(rest) => {
            let rest = rest.strip_prefix(['+', '-']).unwrap_or(rest);
            let (exponent, rest) = digits_of(rest);
            !exponent.is_empty() && rest.is_empty()
        }
    }
}

pub(super) fn is_integer(number: &str) -> bool {
    !number.contains(['.', 'e', 'E'])
}

fn digits_of(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit());
    text.split_at(end.unwrap_or(text.len()))
}

fn with_base(text: &str) -> Option<u128> {
    let (prefix, digits) = text.split_at_checked(2)?;
    let base = match prefix {
        "0x" | "0X" => 16,
        "0o" | "0O" => 8,
        "0b" | "0B" => 2,
        _ => return None,
    };
    let is_signed = digits.starts_with('+');
    u128::from_str_radix(digits, base)
        .ok()
        .filter(|_| !is_signed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_become_json() {
        let cases = [
            ("4", "4"),
            ("-0.50", "-0.50"),
            ("1e+05", "1e+05"),
            ("+3", "3"),
            ("007", "7"),
            ("-00.5", "-0.5"),
            (".5", "0.5"),
            ("5.", "5.0"),
            ("5.e3", "5.0e3"),
            ("1_000", "1000"),
            ("0x1F", "31"),
            ("-0b11", "-3"),
            (
                "123456789012345678901234567890",
                "123456789012345678901234567890",
            ),
        ];
        for (text, json) in cases {
            assert_eq!(to_json(text).as_deref(), Some(json), "{text}");
        }
        for text in [
            "", "-", ".", "1e", "e5", "1.2.3", "--1", "0x", "1j", "nan", "+-1",
        ] {
            assert_eq!(to_json(text), None, "{text}");
        }
    }
}
