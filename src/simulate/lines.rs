//! Reads the lines of traces, which end with a line feed, a carriage return, or both.

use std::io::{self, BufRead};

use super::error::{Place, SimulateError};

/// Reads a line of at most `limit` bytes, without the line ending; false at the end of the file.
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

pub(super) fn ends_line(byte: u8) -> bool {
    matches!(byte, b'\n' | b'\r')
}

pub(super) fn skip_line_end(reader: &mut impl BufRead, byte: u8) -> io::Result<()> {
    reader.consume(1);
    if byte == b'\r' && reader.fill_buf()?.first() == Some(&b'\n') {
        reader.consume(1);
    }
    Ok(())
}
