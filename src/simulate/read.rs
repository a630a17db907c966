//! Traces from files: the format is told by the first byte, gzip by its magic number.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;

use super::error::Place;
use super::trace::{MAX_REQUESTS, MAX_TOKENS, Trace};
use super::{SimulateError, azure, mooncake};

const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// Reads a Mooncake trace (JSON lines) or an Azure LLM trace (CSV), gzip or not; of `max_requests` the first ones.
///
/// # Errors
/// Names file, line, field and value of the first thing that cannot be used.
pub fn read_trace(file: &Path, max_requests: Option<usize>) -> Result<Trace, SimulateError> {
    let opened = File::open(file).map_err(|error| SimulateError::file(file, error))?;
    let mut reader = BufReader::new(opened);
    let start = reader
        .fill_buf()
        .map_err(|error| SimulateError::file(file, error))?;
    match start.starts_with(&GZIP_MAGIC) {
        true => parse(
            file,
            BufReader::new(MultiGzDecoder::new(reader)),
            max_requests,
        ),
        false => parse(file, reader, max_requests),
    }
}

/// As [`read_trace`], of a text; `file` is for the errors.
///
/// # Errors
/// As [`read_trace`].
pub fn parse(
    file: &Path,
    mut reader: impl BufRead,
    max_requests: Option<usize>,
) -> Result<Trace, SimulateError> {
    let (start, line) =
        skip_to_text(&mut reader).map_err(|error| SimulateError::file(file, error))?;
    let limit = max_requests.unwrap_or(MAX_REQUESTS + 1);
    let start_at = Place { file, line };
    let mut trace = match start {
        Some(b'{') => mooncake::parse(start_at, reader, limit)?,
        Some(b'[') => {
            let reason =
                "is one JSON list, expected a JSON object a line: `jq -c '.[]'` makes them of it";
            return Err(SimulateError::file(file, reason));
        }
        Some(_) => azure::parse(start_at, reader, limit)?,
        None => {
            return Err(SimulateError::file(
                file,
                "is empty, expected a Mooncake or an Azure LLM trace",
            ));
        }
    };
    if trace.requests.len() > MAX_REQUESTS {
        let reason = format!(
            "has more than {MAX_REQUESTS} requests: simulate the first of them with --max-requests"
        );
        return Err(SimulateError::file(file, reason));
    }
    if trace.requests.is_empty() {
        return Err(SimulateError::file(file, "holds no request"));
    }
    trace.settle();
    Ok(trace)
}

/// The first byte that means something, and its line: a byte order mark and blank lines do not.
fn skip_to_text(reader: &mut impl BufRead) -> io::Result<(Option<u8>, u64)> {
    let mut line = 1;
    if reader.fill_buf()?.starts_with(BYTE_ORDER_MARK) {
        reader.consume(BYTE_ORDER_MARK.len());
    }
    loop {
        let Some(&byte) = reader.fill_buf()?.first() else {
            return Ok((None, line));
        };
        if !byte.is_ascii_whitespace() {
            return Ok((Some(byte), line));
        }
        match ends_line(byte) {
            true => skip_line_end(reader, byte)?,
            false => reader.consume(1),
        }
        line += u64::from(ends_line(byte));
    }
}

/// Reads a line of at most `limit` bytes, without its end; false at the end of the file.
pub(super) fn read_line(
    reader: &mut impl BufRead,
    line: &mut Vec<u8>,
    limit: usize,
    place: Place<'_>,
) -> Result<bool, SimulateError> {
    let unreadable = |error| place.error("line", format!("cannot be read: {error}"));
    line.clear();
    loop {
        let bytes = reader.fill_buf().map_err(unreadable)?;
        if bytes.is_empty() {
            return Ok(!line.is_empty());
        }
        let end = bytes.iter().position(|byte| ends_line(*byte));
        let n_bytes = end.unwrap_or(bytes.len());
        if line.len() + n_bytes > limit {
            return Err(place.error("line", format!("has more than {limit} bytes")));
        }
        line.extend_from_slice(&bytes[..n_bytes]);
        let ending = end.map(|end| bytes[end]);
        reader.consume(n_bytes);
        if let Some(byte) = ending {
            skip_line_end(reader, byte).map_err(unreadable)?;
            return Ok(true);
        }
    }
}

/// A line feed, or a carriage return, with or without a line feed behind it.
fn ends_line(byte: u8) -> bool {
    matches!(byte, b'\n' | b'\r')
}

fn skip_line_end(reader: &mut impl BufRead, byte: u8) -> io::Result<()> {
    reader.consume(1);
    if byte == b'\r' && reader.fill_buf()?.first() == Some(&b'\n') {
        reader.consume(1);
    }
    Ok(())
}

/// A whole number that a program wrote as a fraction.
pub(super) fn whole(number: f64) -> Option<u64> {
    let is_whole = number.fract() == 0.0 && (0.0..=9e15).contains(&number);
    is_whole.then_some(number as u64)
}

/// Checks a number of tokens.
pub(super) fn tokens(place: Place<'_>, field: &str, value: u64) -> Result<u32, SimulateError> {
    let tokens = u32::try_from(value)
        .ok()
        .filter(|tokens| *tokens <= MAX_TOKENS);
    tokens.ok_or_else(|| place.error(field, format!("is {value}, must be at most {MAX_TOKENS}")))
}
