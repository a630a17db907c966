//! Parts of Python that templates expect: `json.dumps`, `strftime` and what can be looped over.

use std::fmt::Write as _;
use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind, Output, State, escape_formatter};
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

/// `tojson` as transformers overrides it: `json.dumps` without ASCII escapes, and no HTML escapes.
pub(super) fn tojson(value: &Value, kwargs: Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = kwargs.get("indent")?;
    let separators: Option<Vec<String>> = kwargs.get("separators")?;
    let ensure_ascii: Option<bool> = kwargs.get("ensure_ascii")?;
    let sort_keys: Option<bool> = kwargs.get("sort_keys")?;
    kwargs.assert_all_used()?;
    let mut json = serde_json::to_value(value).map_err(not_json)?;
    if sort_keys == Some(true) {
        json.sort_all_objects();
    }
    let text = match (indent, separators.as_deref()) {
        (Some(indent), _) => {
            let indent = " ".repeat(indent.min(64));
            dump(
                &json,
                Indented(PrettyFormatter::with_indent(indent.as_bytes())),
            )?
        }
        (None, Some([item, key])) => dump(&json, Separators { item, key })?,
        (None, _) => dump(
            &json,
            Separators {
                item: ", ",
                key: ": ",
            },
        )?,
    };
    Ok(Value::from(match ensure_ascii {
        Some(true) => ascii(&text),
        _ => text,
    }))
}

/// Writes JSON as `json.dumps` does without ASCII escapes.
pub(super) fn dumps(json: &serde_json::Value) -> String {
    let separators = Separators {
        item: ", ",
        key: ": ",
    };
    // A value in memory is always JSON.
    dump(json, separators).unwrap_or_default()
}

/// Writes a number with a fraction as Python does: with an exponent below 1e-4 and from 1e16 on.
pub(super) fn float(x: f64) -> String {
    let scientific = format!("{x:e}");
    let parts = scientific.split_once('e');
    let Some((digits, exponent)) =
        parts.and_then(|(digits, e)| Some((digits, e.parse::<i32>().ok()?)))
    else {
        return scientific;
    };
    match exponent {
        -4..16 if x.fract() == 0.0 => format!("{x:.1}"),
        -4..16 => x.to_string(),
        _ => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", exponent.abs())
        }
    }
}

/// The filter `string`, which knows how Python writes numbers.
pub(super) fn string(value: &Value) -> Value {
    match as_float(value) {
        Some(x) => Value::from(float(x)),
        None if value.as_str().is_some() => value.clone(),
        None => Value::from(value.to_string()),
    }
}

/// Writes what an expression is worth.
pub(super) fn write(
    out: &mut Output<'_>,
    state: &mut State<'_, '_>,
    value: &Value,
) -> Result<(), Error> {
    match as_float(value) {
        Some(x) => Ok(out.write_str(&float(x))?),
        None => escape_formatter(out, state, value),
    }
}

fn as_float(value: &Value) -> Option<f64> {
    let has_fraction = value.kind() == ValueKind::Number && !value.is_integer();
    f64::try_from(value.clone()).ok().filter(|_| has_fraction)
}

/// Whether Python's Jinja can loop over a value: over what is undefined, but not over none.
pub(super) fn is_iterable(value: &Value) -> bool {
    !value.is_none() && value.try_iter().is_ok()
}

/// `strftime_now(format)`, in UTC.
pub(super) fn strftime_now(format: &str) -> String {
    let since_epoch = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    strftime(format, since_epoch.as_secs())
}

fn dump(json: &serde_json::Value, formatter: impl Formatter) -> Result<String, Error> {
    let mut bytes = Vec::new();
    let mut serializer = Serializer::with_formatter(&mut bytes, formatter);
    json.serialize(&mut serializer).map_err(not_json)?;
    Ok(String::from_utf8(bytes).expect("serde_json writes UTF-8"))
}

fn not_json(error: serde_json::Error) -> Error {
    Error::new(ErrorKind::BadSerialization, "tojson").with_source(error)
}

/// Outside of strings JSON is ASCII, so every other character may become an escape.
fn ascii(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_ascii() {
            escaped.push(character);
            continue;
        }
        for unit in character.encode_utf16(&mut [0; 2]) {
            write!(escaped, "\\u{unit:04x}").expect("a string takes everything");
        }
    }
    escaped
}

/// JSON on one line with Python's separators.
struct Separators<'a> {
    item: &'a str,
    key: &'a str,
}

impl Separators<'_> {
    fn separate<W: io::Write + ?Sized>(&self, writer: &mut W, first: bool) -> io::Result<()> {
        match first {
            true => Ok(()),
            false => writer.write_all(self.item.as_bytes()),
        }
    }
}

impl Formatter for Separators<'_> {
    fn begin_array_value<W: io::Write + ?Sized>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> io::Result<()> {
        self.separate(writer, first)
    }

    fn begin_object_key<W: io::Write + ?Sized>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> io::Result<()> {
        self.separate(writer, first)
    }

    fn begin_object_value<W: io::Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(self.key.as_bytes())
    }

    fn write_f64<W: io::Write + ?Sized>(&mut self, writer: &mut W, x: f64) -> io::Result<()> {
        writer.write_all(float(x).as_bytes())
    }
}

/// JSON on many lines.
struct Indented<'a>(PrettyFormatter<'a>);

impl Formatter for Indented<'_> {
    fn begin_array<W: io::Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.begin_array(writer)
    }

    fn end_array<W: io::Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_array(writer)
    }

    fn begin_array_value<W: io::Write + ?Sized>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> io::Result<()> {
        self.0.begin_array_value(writer, first)
    }

    fn end_array_value<W: io::Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_array_value(writer)
    }

    fn begin_object<W: io::Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.begin_object(writer)
    }

    fn end_object<W: io::Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_object(writer)
    }

    fn begin_object_key<W: io::Write + ?Sized>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> io::Result<()> {
        self.0.begin_object_key(writer, first)
    }

    fn begin_object_value<W: io::Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.begin_object_value(writer)
    }

    fn end_object_value<W: io::Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_object_value(writer)
    }

    fn write_f64<W: io::Write + ?Sized>(&mut self, writer: &mut W, x: f64) -> io::Result<()> {
        writer.write_all(float(x).as_bytes())
    }
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const WEEKDAYS: [&str; 7] = [
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
];

/// Formats seconds since the epoch (UTC) with Python's directives; unknown ones stay as they are.
fn strftime(format: &str, seconds: u64) -> String {
    let (days, second_of_day) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil_date(days);
    let (hour, minute, second) = (
        second_of_day / 3600,
        second_of_day / 60 % 60,
        second_of_day % 60,
    );
    let month_name = MONTHS[month as usize - 1];
    let weekday = WEEKDAYS[((days + 4) % 7) as usize];
    let mut text = String::new();
    let mut characters = format.chars();
    while let Some(character) = characters.next() {
        if character != '%' {
            text.push(character);
            continue;
        }
        let written = match characters.next() {
            Some('Y') => write!(text, "{year}"),
            Some('y') => write!(text, "{:02}", year % 100),
            Some('m') => write!(text, "{month:02}"),
            Some('d') => write!(text, "{day:02}"),
            Some('H') => write!(text, "{hour:02}"),
            Some('I') => write!(text, "{:02}", (hour + 11) % 12 + 1),
            Some('M') => write!(text, "{minute:02}"),
            Some('S') => write!(text, "{second:02}"),
            Some('p') => write!(text, "{}", if hour < 12 { "AM" } else { "PM" }),
            Some('B') => write!(text, "{month_name}"),
            Some('b') => write!(text, "{}", &month_name[..3]),
            Some('A') => write!(text, "{weekday}"),
            Some('a') => write!(text, "{}", &weekday[..3]),
            Some('j') => write!(text, "{:03}", days - days_before_year(year) + 1),
            Some('%') => write!(text, "%"),
            Some(other) => write!(text, "%{other}"),
            None => write!(text, "%"),
        };
        written.expect("a string takes everything");
    }
    text
}

/// Year, month and day of a number of days since 1970-01-01.
fn civil_date(days: u64) -> (u64, u64, u64) {
    let mut year = 1970 + days / 366;
    while days_before_year(year + 1) <= days {
        year += 1;
    }
    let mut day = days - days_before_year(year);
    let february = if is_leap(year) { 29 } else { 28 };
    let lengths = [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 1;
    for length in lengths {
        if day < length {
            break;
        }
        day -= length;
        month += 1;
    }
    (year, month, day + 1)
}

/// Days from 1970-01-01 to the first of January of a year.
fn days_before_year(year: u64) -> u64 {
    let leap_days = |year: u64| (year - 1) / 4 - (year - 1) / 100 + (year - 1) / 400;
    (year - 1970) * 365 + leap_days(year) - leap_days(1970)
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_written_as_in_python() {
        for (x, expected) in [
            (0.0, "0.0"),
            (-2.5, "-2.5"),
            (3.0, "3.0"),
            (0.0001, "0.0001"),
            (0.000012, "1.2e-05"),
            (-1e-300, "-1e-300"),
            (1234567890123456.0, "1234567890123456.0"),
            (1e16, "1e+16"),
            (1.5e20, "1.5e+20"),
            (f64::INFINITY, "inf"),
        ] {
            assert_eq!(float(x), expected);
        }
        let of = |value: serde_json::Value| Value::from(minijinja::value::Serde(value));
        assert_eq!(string(&of(1e-5.into())), Value::from("1e-05"));
        assert_eq!(string(&of(7.into())), Value::from("7"));
        assert_eq!(string(&of("x".into())), Value::from("x"));
        assert_eq!(dumps(&serde_json::json!([1e-5, 2.0])), "[1e-05, 2.0]");
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, expected) in [
            (0, "Thu 1970-01-01 00:00:00 AM 12 001"),
            (951_782_399, "Mon 2000-02-28 23:59:59 PM 11 059"),
            (951_868_800, "Wed 2000-03-01 00:00:00 AM 12 061"),
            (1_735_689_599, "Tue 2024-12-31 23:59:59 PM 11 366"),
            (4_107_542_400, "Mon 2100-03-01 00:00:00 AM 12 060"),
        ] {
            assert_eq!(strftime("%a %Y-%m-%d %H:%M:%S %p %I %j", seconds), expected);
        }
        assert_eq!(
            strftime("%d %b %y, %A %B %% %Q %", 1_721_995_200),
            "26 Jul 24, Friday July % %Q %"
        );
    }

    #[test]
    fn every_day_of_four_centuries_follows_the_one_before() {
        let mut last = civil_date(0);
        for days in 1..146_097 {
            let date = civil_date(days);
            let next_day = (last.0, last.1, last.2 + 1);
            let next_month = (last.0 + last.1 / 12, last.1 % 12 + 1, 1);
            assert!(date == next_day || date == next_month, "{last:?} {date:?}");
            last = date;
        }
        assert_eq!(last, (2369, 12, 31));
    }
}
