//! Implements string methods for character classes and case, such as `isdigit` and `title`.

use super::super::characters::{
    decimal, is_alnum, is_alpha, is_blank, is_cased, is_digit, is_numeric, is_title,
};
use super::super::repr::is_printable;

pub(super) fn predicate(name: &str) -> Option<fn(&str) -> bool> {
    fn all(text: &str, is: impl Fn(char) -> bool) -> bool {
        !text.is_empty() && text.chars().all(is)
    }
    Some(match name {
        "isalnum" => |text| all(text, is_alnum),
        "isalpha" => |text| all(text, is_alpha),
        "isascii" => str::is_ascii,
        "isdecimal" => |text| all(text, |character| decimal(character).is_some()),
        "isdigit" => |text| all(text, is_digit),
        "isnumeric" => |text| {
            all(text, |character| {
                is_numeric(character) || is_digit(character)
            })
        },
        "isspace" => |text| all(text, is_blank),
        "isprintable" => |text| text.chars().all(is_printable),
        "isidentifier" => |text| {
            text.starts_with(|first: char| first == '_' || is_alpha(first))
                && text
                    .chars()
                    .all(|character| character == '_' || character.is_alphanumeric())
        },
        "islower" => |text| {
            text.chars().any(char::is_lowercase)
                && !text
                    .chars()
                    .any(|character| character.is_uppercase() || is_title(character))
        },
        "isupper" => |text| {
            text.chars().any(char::is_uppercase)
                && !text
                    .chars()
                    .any(|character| character.is_lowercase() || is_title(character))
        },
        "istitle" => is_titled,
        _ => return None,
    })
}

fn is_titled(text: &str) -> bool {
    let (mut follows_cased, mut found) = (false, false);
    for character in text.chars() {
        let is_upper = character.is_uppercase() || is_title(character);
        if (is_upper && follows_cased) || (character.is_lowercase() && !follows_cased) {
            return false;
        }
        follows_cased = is_cased(character);
        found |= follows_cased;
    }
    found
}

pub(super) fn change(name: &str) -> Option<fn(&str) -> String> {
    Some(match name {
        "lower" => str::to_lowercase,
        "upper" => str::to_uppercase,
        "capitalize" => capitalized,
        "swapcase" => swapped,
        "title" => titled,
        "casefold" => folded,
        _ => return None,
    })
}

fn title_of(character: char) -> String {
    match character {
        'ß' => "Ss".to_owned(),
        'Ǆ'..='ǆ' => "ǅ".to_owned(),
        'Ǉ'..='ǉ' => "ǈ".to_owned(),
        'Ǌ'..='ǌ' => "ǋ".to_owned(),
        'Ǳ'..='ǳ' => "ǲ".to_owned(),
        'ﬀ'..='ﬆ' => {
            let upper = character.to_uppercase().to_string();
            let first = upper.chars().next().map_or(0, char::len_utf8);
            upper[..first].to_owned() + &upper[first..].to_lowercase()
        }
        _ => character.to_uppercase().to_string(),
    }
}

/// `str.capitalize`.
pub(in super::super) fn capitalized(text: &str) -> String {
    let mut chars = text.chars();
    match chars.next() {
        // The whole text is converted, because the lower case of a sigma depends on the letters before it.
        Some(first) => {
            title_of(first) + &text.to_lowercase()[first.to_lowercase().map(char::len_utf8).sum()..]
        }
        None => String::new(),
    }
}

/// `str.swapcase`.
fn swapped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_uppercase() {
            out.extend(character.to_lowercase());
        } else if character.is_lowercase() {
            out.extend(character.to_uppercase());
        } else {
            out.push(character);
        }
    }
    out
}

fn titled(text: &str) -> String {
    let (mut out, mut follows_cased) = (String::with_capacity(text.len()), false);
    for character in text.chars() {
        if follows_cased {
            out.extend(character.to_lowercase())
        } else {
            out.push_str(&title_of(character))
        }
        follows_cased = is_cased(character);
    }
    out
}

fn folded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            'ı' => out.push(character),
            'İ' => out.push_str("i\u{307}"),
            _ => {
                let upper: String = character
                    .to_lowercase()
                    .flat_map(char::to_uppercase)
                    .collect();
                out.extend(upper.chars().flat_map(char::to_lowercase));
            }
        }
    }
    out
}

/// `str.center`.
pub(in super::super) fn centered(text: &str, width: usize, fill: char) -> String {
    let pad = width.saturating_sub(text.chars().count());
    let left = pad / 2 + (pad & width & 1);
    let mut out: String = std::iter::repeat_n(fill, left).collect();
    out.push_str(text);
    out.extend(std::iter::repeat_n(fill, pad - left));
    out
}
