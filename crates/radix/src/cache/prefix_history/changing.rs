//! Detects that two prompts diverge in a value that changes with every request: a hash, an id or a date.
//!
//! Such a value early in a prompt ends the shared prefix of all requests, and prompt authors rarely notice.

/// Shorter hexadecimal texts may be words.
const MIN_HASH_CHARS: usize = 5;
/// Shorter numbers may be counts.
const MIN_ID_CHARS: usize = 8;
/// Words with fewer digits may be names or versions.
const MIN_ID_DIGITS: usize = 3;
const MONTHS_AND_DAYS: [&str; 19] = [
    "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec", "mon",
    "tue", "wed", "thu", "fri", "sat", "sun",
];

/// Kinds of values that change with every request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangingValue {
    /// Hexadecimal digits.
    Hash,
    /// Letters and digits, or a long number.
    Id,
    /// A date or a time of day.
    Date,
}

impl ChangingValue {
    pub fn hint(self) -> &'static str {
        match self {
            Self::Hash => {
                "the prompts differ in a value that looks like a changing hash: remove it, or move it after the shared text"
            }
            Self::Id => {
                "the prompts differ in a value that looks like a changing id: remove it, or move it after the shared text"
            }
            Self::Date => {
                "the prompts differ in a value that looks like a date or a time: remove it, or move it after the shared text"
            }
        }
    }
}

/// Classifies the words in which two texts diverge after the common text `before`; `None` for ordinary words.
pub fn changing_value(before: &str, one: &str, other: &str) -> Option<ChangingValue> {
    let shared = one
        .char_indices()
        .zip(other.chars())
        .find(|((_, a), b)| a != b)
        .map_or(one.len().min(other.len()), |((at, _), _)| at);
    let before = format!("{before}{}", one.get(..shared)?);
    let start = before.rfind(|c| !is_word_char(c));
    let start = start.map_or(0, |at| before.ceil_char_boundary(at + 1));
    let (earlier, head) = before.split_at(start);
    let word = |text: &str| {
        let rest = text.get(shared..).unwrap_or_default();
        let end = rest.find(|c| !is_word_char(c)).unwrap_or(rest.len());
        let word = format!("{head}{}", &rest[..end]);
        word.trim_end_matches(['.', ':', '-', '/', '_']).to_owned()
    };
    kind_of(earlier, &word(one), &word(other))
}

fn is_word_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | ':' | '.' | '/' | '+')
}

fn kind_of(earlier: &str, one: &str, other: &str) -> Option<ChangingValue> {
    let both = |is: &dyn Fn(&str) -> bool| is(one) && is(other);
    let last = earlier
        .trim_end()
        .rsplit(|c: char| !c.is_ascii_alphabetic())
        .next();
    let is_day = |word: &str| is_digits(word) && word.len() <= 2;
    if both(&is_date)
        || both(&is_calendar_name)
        || (both(&is_day) && last.is_some_and(is_calendar_name))
    {
        return Some(ChangingValue::Date);
    }
    let has_digit = |word: &str| word.bytes().any(|byte| byte.is_ascii_digit());
    let is_hex = |word: &str| word.bytes().all(|byte| byte.is_ascii_hexdigit());
    let is_long = |word: &str| word.len() >= MIN_HASH_CHARS;
    let one_has_digits = has_digit(one) || has_digit(other);
    let are_digits = both(&is_digits);
    if both(&is_hex) && both(&is_long) && one.len() == other.len() && one_has_digits && !are_digits
    {
        return Some(ChangingValue::Hash);
    }
    let n_digits = |word: &str| word.bytes().filter(u8::is_ascii_digit).count();
    let is_id = |word: &str| word.len() >= MIN_ID_CHARS && n_digits(word) >= MIN_ID_DIGITS;
    both(&is_id).then_some(ChangingValue::Id)
}

fn is_digits(word: &str) -> bool {
    !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit())
}

/// Numbers separated as in a date or a time.
fn is_date(word: &str) -> bool {
    let parts: Vec<&str> = word
        .split(['-', '/', ':', '.', '+', 'T', 'Z'])
        .filter(|part| !part.is_empty())
        .collect();
    let is_part = |part: &&str| is_digits(part) && part.len() <= 9;
    let has_mark = word.contains(['-', '/', ':']);
    has_mark && (2..=9).contains(&parts.len()) && parts.iter().all(is_part)
}

fn is_calendar_name(word: &str) -> bool {
    let lower = word.to_ascii_lowercase();
    let is_whole = [
        "january",
        "february",
        "march",
        "april",
        "june",
        "july",
        "august",
        "september",
        "october",
        "november",
        "december",
    ]
    .contains(&lower.as_str())
        || lower.ends_with("day");
    MONTHS_AND_DAYS
        .iter()
        .any(|name| lower == *name || (is_whole && lower.starts_with(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(before: &str, one: &str, other: &str, expected: Option<ChangingValue>) {
        assert_eq!(changing_value(before, one, other), expected);
        assert_eq!(changing_value(before, other, one), expected);
        // The shared tokens may end inside the word that differs.
        let (head, tail) = one.split_at(one.ceil_char_boundary(1));
        if let Some(other) = other.strip_prefix(head) {
            check_moved(&format!("{before}{head}"), tail, other, expected);
        }
    }

    #[track_caller]
    fn check_moved(before: &str, one: &str, other: &str, expected: Option<ChangingValue>) {
        assert_eq!(changing_value(before, one, other), expected);
    }

    #[test]
    fn changing_values_are_distinguished_from_words() {
        use ChangingValue::{Date, Hash, Id};
        check(
            "version=2.1; cch=",
            "a81f0; You are",
            "a9c13; You are",
            Some(Hash),
        );
        check("commit ", "deadbeef0 and", "deadbeef1 and", Some(Hash));
        let (one, other) = (
            "123e4567-e89b-12d3-a456-426614174000",
            "123e4567-e89b-12d3-a456-426614174999",
        );
        check("session ", one, other, Some(Id));
        check("\"id\": \"", "req_011CX9abc\"", "req_011CYbd41\"", Some(Id));
        check("now: ", "1764043200123", "1764043999456", Some(Id));
        check("Today is ", "2026-11-25.", "2026-11-26.", Some(Date));
        check("It is ", "04:14:09 now", "04:15:11 now", Some(Date));
        check(
            "at ",
            "2026-11-25T04:14:09Z",
            "2026-11-25T05:00:00Z",
            Some(Date),
        );
        check("Today is ", "Monday, and", "Friday, and", Some(Date));
        check("Today is November ", "25, 2026", "26, 2026", Some(Date));
        check("You are ", "a teacher", "a doctor", None);
        check("In row ", "4 there", "5 there", None);
        check("They are ", "maybe here", "marching on", None);
        check("", "", "", None);
        check("ä", "ü word", "é word", None);
    }
}
