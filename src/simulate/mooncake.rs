//! Parses Mooncake traces (one JSON object per line).
//!
//! An object has `timestamp` (ms), `input_length`, `output_length` and `hash_ids`, with one id for each block of 512
//! prompt tokens; equal ids mean equal blocks.

use std::io::BufRead;

use serde_json::{Map, Value};

use super::SimulateError;
use super::counts::{tokens, whole};
use super::error::Place;
use super::lines::read_line;
use super::trace::{BLOCK_TOKENS, Blocks, Prompt, Segment, Trace, TraceRequest, blocks_for};

/// The longest line. The longest prompt has 32,768 ids.
const MAX_LINE_BYTES: usize = 1 << 20;

/// The largest timestamp: three centuries. Milliseconds since 1970 are smaller, nanoseconds since 1970 are larger.
const MAX_TIMESTAMP_MS: f64 = 1e13;

pub(super) fn parse(
    start: Place<'_>,
    mut reader: impl BufRead,
    limit: usize,
) -> Result<Trace, SimulateError> {
    let (mut trace, mut blocks) = (Trace::default(), Blocks::default());
    let mut text = Vec::new();
    for line in start.line.. {
        let place = Place { line, ..start };
        if trace.requests.len() >= limit
            || !read_line(&mut reader, &mut text, MAX_LINE_BYTES, place)?
        {
            break;
        }
        let text = text.trim_ascii();
        if text.is_empty() {
            continue;
        }
        match request(place, text, &mut blocks)? {
            Some(request) => trace.requests.push(request),
            None => trace.empty_prompts += 1,
        }
    }
    trace.n_blocks = blocks.count();
    Ok(trace)
}

fn request(
    place: Place<'_>,
    text: &[u8],
    blocks: &mut Blocks,
) -> Result<Option<TraceRequest>, SimulateError> {
    let fields: Map<String, Value> =
        serde_json::from_slice(text).map_err(|error| not_an_object(place, &error))?;
    let timestamp_ms = milliseconds(place, &fields)?;
    let input_length = number(place, &fields, "input_length")?;
    let output_tokens = number(place, &fields, "output_length")?;
    let prompt = prompt(place, &fields, input_length, blocks)?;
    Ok((input_length > 0).then_some(TraceRequest {
        arrival_s: timestamp_ms / 1000.0,
        prompt,
        output_tokens,
    }))
}

/// The error for a line that is not a JSON object. Drops the parser's line number, which is always 1.
fn not_an_object(place: Place<'_>, error: &serde_json::Error) -> SimulateError {
    let text = error.to_string();
    let what = text.split(" at line ").next().unwrap_or_default();
    let at = error.column();
    place.error("line", format!("is not a JSON object: {what} (byte {at})"))
}

fn field<'a>(
    place: Place<'_>,
    fields: &'a Map<String, Value>,
    name: &str,
) -> Result<&'a Value, SimulateError> {
    fields
        .get(name)
        .ok_or_else(|| place.error(name, "is missing"))
}

fn milliseconds(place: Place<'_>, fields: &Map<String, Value>) -> Result<f64, SimulateError> {
    let value = field(place, fields, "timestamp")?;
    let timestamp_ms = value
        .as_f64()
        .filter(|ms| (0.0..=MAX_TIMESTAMP_MS).contains(ms));
    timestamp_ms.ok_or_else(|| {
        place.error(
            "timestamp",
            format!("is {value}, expected milliseconds from 0 to {MAX_TIMESTAMP_MS}"),
        )
    })
}

fn number(place: Place<'_>, fields: &Map<String, Value>, name: &str) -> Result<u32, SimulateError> {
    let value = field(place, fields, name)?;
    let count = value
        .as_u64()
        .or_else(|| value.as_f64().and_then(whole))
        .ok_or_else(|| place.error(name, format!("is {value}, expected a number of tokens")))?;
    tokens(place, name, count)
}

/// Converts the ids of the blocks into a prompt; the last block may be partly filled.
fn prompt(
    place: Place<'_>,
    fields: &Map<String, Value>,
    input_length: u32,
    blocks: &mut Blocks,
) -> Result<Prompt, SimulateError> {
    let value = field(place, fields, "hash_ids")?;
    let ids = value.as_array().ok_or_else(|| {
        place.error(
            "hash_ids",
            format!("is {value}, expected a list of numbers"),
        )
    })?;
    let expected = blocks_for(input_length) as usize;
    if ids.len() != expected {
        let reason = format!(
            "has {} ids, expected {expected} for an input_length of {input_length} in blocks of {BLOCK_TOKENS}",
            ids.len()
        );
        return Err(place.error("hash_ids", reason));
    }
    let mut prompt = Prompt::default();
    let mut left = input_length;
    for id in ids {
        let signed = || id.as_i64().map(i128::from);
        let hash_id = id.as_u64().map(i128::from).or_else(signed);
        let hash_id = hash_id.ok_or_else(|| {
            let reason = format!("holds {id}, expected whole numbers of 64 bits");
            place.error("hash_ids", reason)
        })?;
        let first_block = blocks.of(hash_id).ok_or_else(|| {
            let reason = "brings the trace to more than 2^31 different ids: simulate fewer requests (--max-requests)";
            place.error("hash_ids", reason)
        })?;
        let tokens = left.min(BLOCK_TOKENS as u32);
        prompt.push(Segment {
            first_block,
            tokens,
        });
        left -= tokens;
    }
    Ok(prompt)
}
