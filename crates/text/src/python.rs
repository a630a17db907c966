//! Implements Python's `strftime` for templates.

use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

/// `strftime_now(format)`, in UTC.
pub(super) fn strftime_now(format: &str) -> String {
    let since_epoch = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    strftime(format, since_epoch.as_secs())
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

/// Formats seconds since the epoch (UTC) with Python's directives; unknown directives are copied unchanged.
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
        written.expect("a string accepts any text");
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
    fn dates_match_the_calendar() {
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
