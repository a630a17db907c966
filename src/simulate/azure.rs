//! Parses Azure LLM inference traces (CSV with `TIMESTAMP,ContextTokens,GeneratedTokens`).
//!
//! The traces have only the lengths of the prompts, so no two prompts share a prefix.

use std::io::BufRead;
use std::time::SystemTime;

use csv_core::{ReadRecordResult, Reader};

use super::SimulateError;
use super::counts::{tokens, whole};
use super::error::Place;
use super::lines::read_line;
use super::trace::{Blocks, Prompt, Segment, Trace, TraceRequest, blocks_for};

const COLUMNS: [&str; 3] = ["TIMESTAMP", "ContextTokens", "GeneratedTokens"];
const MAX_LINE_BYTES: usize = 4096;
const MAX_FIELDS: usize = 64;
const SHOWN_CHARS: usize = 80;
/// The length of a timestamp without the optional fraction and time zone.
const SECONDS_BYTES: usize = "2023-11-16 18:17:03".len();
/// The largest offset of a time zone, in hours.
const MAX_ZONE_HOURS: i64 = 23;

pub(super) fn parse(
    start: Place<'_>,
    mut reader: impl BufRead,
    limit: usize,
) -> Result<Trace, SimulateError> {
    let (mut trace, mut blocks) = (Trace::default(), Blocks::default());
    let mut text = Vec::new();
    let mut columns = None;
    for line in start.line.. {
        let place = Place { line, ..start };
        if trace.requests.len() >= limit
            || !read_line(&mut reader, &mut text, MAX_LINE_BYTES, place)?
        {
            break;
        }
        if text.trim_ascii().is_empty() {
            continue;
        }
        let fields = fields(place, &text)?;
        let Some(columns) = columns else {
            columns = Some(find_columns(place, &fields)?);
            continue;
        };
        let row = Row {
            place,
            fields: &fields,
            columns,
        };
        match row.request(&mut blocks)? {
            Some(request) => trace.requests.push(request),
            None => trace.empty_prompts += 1,
        }
    }
    trace.n_blocks = blocks.count();
    Ok(trace)
}

/// Splits a line into fields, without quotes and surrounding blanks.
fn fields(place: Place<'_>, line: &[u8]) -> Result<Vec<String>, SimulateError> {
    let (mut output, mut ends) = ([0; MAX_LINE_BYTES], [0; MAX_FIELDS]);
    let mut reader = Reader::new();
    let (result, _, _, n_fields) = reader.read_record(line, &mut output, &mut ends);
    // An empty input tells the CSV reader that the line has ended.
    let (at_end, _, _, last) = reader.read_record(&[], &mut [], &mut ends[n_fields..]);
    if [result, at_end].contains(&ReadRecordResult::OutputEndsFull) {
        return Err(place.error("line", format!("has more than {MAX_FIELDS} fields")));
    }
    let n_fields = n_fields + last;
    let starts = std::iter::once(0).chain(ends.iter().copied());
    let ranges = starts.zip(&ends[..n_fields]);
    let text = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes);
        text.trim_matches(|c: char| c == '\u{feff}' || c.is_whitespace())
            .to_owned()
    };
    Ok(ranges
        .map(|(start, &end)| text(&output[start..end]))
        .collect())
}

fn find_columns(place: Place<'_>, header: &[String]) -> Result<[usize; 3], SimulateError> {
    let mut columns = [0; 3];
    for (column, name) in columns.iter_mut().zip(COLUMNS) {
        let found = header.iter().position(|field| field == name);
        *column = found.ok_or_else(|| {
            let shown: String = header.join(",").chars().take(SHOWN_CHARS).collect();
            let reason = format!(
                "{shown:?} has no column {name}, expected {} or a Mooncake trace (one JSON object per line)",
                COLUMNS.join(",")
            );
            place.error("header", reason)
        })?;
    }
    Ok(columns)
}

struct Row<'a> {
    place: Place<'a>,
    fields: &'a [String],
    columns: [usize; 3],
}

impl Row<'_> {
    fn request(&self, blocks: &mut Blocks) -> Result<Option<TraceRequest>, SimulateError> {
        let arrival_s = self.seconds()?;
        let prompt_tokens = self.tokens(1)?;
        let output_tokens = self.tokens(2)?;
        if prompt_tokens == 0 {
            return Ok(None);
        }
        let first_block = blocks.reserve(blocks_for(prompt_tokens)).ok_or_else(|| {
            let reason = "brings the prompts to more than 2^31 blocks: simulate fewer requests (--max-requests)";
            self.place.error(COLUMNS[1], reason)
        })?;
        let mut prompt = Prompt::default();
        prompt.push(Segment {
            first_block,
            tokens: prompt_tokens,
        });
        Ok(Some(TraceRequest {
            arrival_s,
            prompt,
            output_tokens,
        }))
    }

    fn field(&self, index: usize) -> Result<&str, SimulateError> {
        let field = self.fields.get(self.columns[index]);
        field
            .map(String::as_str)
            .ok_or_else(|| self.place.error(COLUMNS[index], "is missing"))
    }

    fn tokens(&self, index: usize) -> Result<u32, SimulateError> {
        let field = self.field(index)?;
        let fraction = || field.parse().ok().and_then(whole);
        let count = field.parse().ok().or_else(fraction).ok_or_else(|| {
            let reason = format!("is {field:?}, expected a number of tokens");
            self.place.error(COLUMNS[index], reason)
        })?;
        tokens(self.place, COLUMNS[index], count)
    }

    /// The arrival time, in seconds since 1970.
    fn seconds(&self) -> Result<f64, SimulateError> {
        let field = self.field(0)?;
        unix_seconds(field).ok_or_else(|| {
            let reason = format!(
                "is {field:?}, expected a time such as 2023-11-16 18:17:03.9799600, optionally with a zone such as +00:00"
            );
            self.place.error(COLUMNS[0], reason)
        })
    }
}

/// Parses a timestamp into seconds since 1970. The traces of 2024 have a time zone, those of 2023 do not.
fn unix_seconds(field: &str) -> Option<f64> {
    let field = field.strip_suffix(" UTC").unwrap_or(field);
    let zone = field.get(SECONDS_BYTES..)?.find(['+', '-']);
    let (moment, zone) = field.split_at(zone.map_or(field.len(), |at| SECONDS_BYTES + at));
    let moment = humantime::parse_rfc3339_weak(moment).ok()?;
    let since = moment.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    Some(since.as_secs_f64() - zone_s(zone)? as f64)
}

/// Parses the offset of a time zone in seconds: `+02:00`, `+0200`, `+02` or an empty text.
fn zone_s(zone: &str) -> Option<i64> {
    let (sign, digits) = match zone.split_at_checked(1) {
        None => return Some(0),
        Some(("-", digits)) => (-1, digits),
        Some((_, digits)) => (1, digits),
    };
    let (hours, minutes) = match digits.split_once(':') {
        Some(split) => split,
        None if digits.len() == 2 => (digits, "00"),
        None => digits.split_at_checked(2)?,
    };
    let number = |text: &str, limit: i64| {
        let is_number = text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit());
        let number: i64 = text.parse().ok().filter(|_| is_number)?;
        (number <= limit).then_some(number)
    };
    Some(sign * (number(hours, MAX_ZONE_HOURS)? * 3600 + number(minutes, 59)? * 60))
}
