//! Reads traces from files, and detects their format and gzip compression from the first bytes.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;

use super::error::Place;
use super::lines::{ends_line, skip_line_end};
use super::trace::{MAX_REQUESTS, Trace};
use super::{SimulateError, azure, mooncake};

const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// Reads up to `max_requests` requests of a Mooncake trace (JSON lines) or an Azure LLM trace (CSV), gzip or plain.
///
/// # Errors
/// The error names the file and, for a fault in a line, also line, field and value.
pub fn read_trace(file: &Path, max_requests: Option<usize>) -> Result<Trace, SimulateError> {
    let opened = File::open(file).map_err(|error| SimulateError::file(file, error))?;
    let mut reader = BufReader::new(opened);
    let start = reader
        .fill_buf()
        .map_err(|error| SimulateError::file(file, error))?;
    if start.starts_with(&GZIP_MAGIC) {
        parse(
            file,
            BufReader::new(MultiGzDecoder::new(reader)),
            max_requests,
        )
    } else {
        parse(file, reader, max_requests)
    }
}

/// Like [`read_trace`], from an uncompressed reader; `file` is only used in errors.
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
            let reason = "is a single JSON list, expected one JSON object per line: convert it with `jq -c '.[]'`";
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
        return Err(SimulateError::file(file, "has no requests"));
    }
    trace.normalize();
    Ok(trace)
}

/// Skips a byte order mark and blank lines. Returns the first other byte, and its line number.
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
        if ends_line(byte) {
            skip_line_end(reader, byte)?
        } else {
            reader.consume(1)
        }
        line += u64::from(ends_line(byte));
    }
}
