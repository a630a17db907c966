//! Parses the number and string literals of a template.

use num_bigint::BigInt;

use super::token::Kind;

/// Parses the string literal at the start of `rest`. Also returns its length in bytes.
pub(super) fn text(rest: &str) -> Result<(Kind, usize), String> {
    let quote = rest.as_bytes()[0];
    let bytes = rest.as_bytes();
    let mut end = 1;
    loop {
        match bytes.get(end) {
            None => return Err("unterminated string literal".to_owned()),
            Some(b'\\') => end += 2,
            Some(byte) if *byte == quote => break,
            Some(_) => end += 1,
        }
    }
    Ok((Kind::Text(unescape(&rest[1..end])?), end + 1))
}

/// Replaces escape sequences as Python does; unknown sequences are kept.
fn unescape(text: &str) -> Result<String, String> {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(character) = chars.next() {
        if character != '\\' {
            out.push(character);
            continue;
        }
        let Some(escaped) = chars.next() else {
            return Err("\\ at the end of a string".to_owned());
        };
        let code = match escaped {
            'n' => '\n',
            't' => '\t',
            'r' => '\r',
            'a' => '\u{7}',
            'b' => '\u{8}',
            'f' => '\u{c}',
            'v' => '\u{b}',
            '\\' | '\'' | '"' => escaped,
            '\n' => continue,
            '0'..='7' => {
                let mut code = escaped.to_digit(8).unwrap_or(0);
                for _ in 0..2 {
                    let mut ahead = chars.clone();
                    let Some(digit) = ahead.next().and_then(|next| next.to_digit(8)) else {
                        break;
                    };
                    code = code * 8 + digit;
                    chars = ahead;
                }
                char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER)
            }
            'x' => hex(&mut chars, 'x', 2)?,
            'u' => hex(&mut chars, 'u', 4)?,
            'U' => hex(&mut chars, 'U', 8)?,
            'N' => return Err("\\N{...} is not supported: write the character".to_owned()),
            _ => {
                out.push('\\');
                escaped
            }
        };
        out.push(code);
    }
    Ok(out)
}

fn hex(chars: &mut std::str::Chars<'_>, letter: char, digits: usize) -> Result<char, String> {
    let written: String = chars.take(digits).collect();
    let code = u32::from_str_radix(&written, 16).ok();
    let code = code.filter(|_| written.len() == digits && !written.starts_with('+'));
    code.and_then(char::from_u32).ok_or_else(|| {
        format!("\\{letter}{written} is not a character: write the {digits} hex digits of its code")
    })
}

/// Parses the number at the start of `rest`. Also returns its length in bytes. After a dot, as in `a.0.1`, it is an
/// index without a fraction.
pub(super) fn number(rest: &str, follows_dot: bool) -> Result<(Kind, usize), String> {
    let bytes = rest.as_bytes();
    let digits = |from: usize, is_digit: fn(&u8) -> bool| {
        let mut end = from;
        while bytes.get(end).is_some_and(is_digit)
            || (end > from
                && bytes.get(end) == Some(&b'_')
                && bytes.get(end + 1).is_some_and(is_digit))
        {
            end += 1;
        }
        end
    };
    let radix = match bytes.get(..2) {
        Some(b"0x" | b"0X") => Some((16, u8::is_ascii_hexdigit as fn(&u8) -> bool)),
        Some(b"0o" | b"0O") => Some((8, (|byte| (b'0'..=b'7').contains(byte)) as fn(&u8) -> bool)),
        Some(b"0b" | b"0B") => Some((2, (|byte| (b'0'..=b'1').contains(byte)) as fn(&u8) -> bool)),
        _ => None,
    };
    if let Some((radix, is_digit)) = radix {
        let end = digits(2, is_digit);
        if end > 2 {
            return integer(&rest[2..end], radix).map(|kind| (kind, end));
        }
    }
    let mut end = digits(0, u8::is_ascii_digit);
    let mut is_float = false;
    if !follows_dot {
        let fraction = digits(end + 1, u8::is_ascii_digit);
        if bytes.get(end) == Some(&b'.') && fraction > end + 1 {
            end = fraction;
            is_float = true;
        }
        if matches!(bytes.get(end), Some(b'e' | b'E')) {
            let signed = usize::from(matches!(bytes.get(end + 1), Some(b'+' | b'-')));
            let exponent = digits(end + 1 + signed, u8::is_ascii_digit);
            if exponent > end + 1 + signed {
                end = exponent;
                is_float = true;
            }
        }
    }
    let written = &rest[..end];
    if is_float {
        match written.replace('_', "").parse() {
            Ok(number) => Ok((Kind::Float(number), end)),
            Err(_) => Err(format!("{written} is not a number")),
        }
    } else {
        integer(written, 10).map(|kind| (kind, end))
    }
}

fn integer(digits: &str, radix: u32) -> Result<Kind, String> {
    let digits = digits.replace('_', "");
    if digits.len() > 4300 {
        return Err("an integer has more than 4300 digits".to_owned());
    }
    let number = BigInt::parse_bytes(digits.as_bytes(), radix);
    number
        .map(|number| Kind::Int(number.to_string()))
        .ok_or_else(|| format!("{digits} is not a number"))
}
