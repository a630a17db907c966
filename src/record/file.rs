//! The message log's file format: a magic number, then compressed blocks with checksums.
//!
//! ```text
//! file    "SOUFLOG" 1 | header block (JSON) | entry blocks, with a gap block where entries are missing | end block
//! block   kind u8 | raw length u32 | stored length u32 | CRC-32 u32 of all other fields | stored bytes
//! ```
//!
//! Numbers are little-endian. An entry block is a deflated concatenation of entries in the postcard format. A truncated
//! file is readable up to its last complete block. Lengths are checked against limits before memory is allocated.

use std::io::{self, Read, Write};

use flate2::Compression;
use flate2::read::DeflateDecoder;
use flate2::write::DeflateEncoder;
use serde::{Deserialize, Serialize};

use crate::entry::Entry;
use souffleur_state::control::ControlSetup;

const MAGIC: [u8; 8] = *b"SOUFLOG\x01";
/// Incremented when an older reader would misread the entries.
pub const FORMAT_VERSION: u32 = 2;
/// The largest raw length of an entry block.
pub const MAX_BLOCK_BYTES: usize = 16 << 20;
const MAX_HEADER_BYTES: usize = 1 << 20;
/// Bytes of the block's kind and lengths, which precede the checksum.
const SUMMED_BYTES: usize = 9;
const FRAME_BYTES: usize = SUMMED_BYTES + 4;
pub const END_BYTES: usize = FRAME_BYTES + 9;
/// Deflate's fastest level: the writer shares the cores with the model.
const COMPRESSION: u32 = 1;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Header {
    /// [`FORMAT_VERSION`] of the writer.
    pub format_version: u32,
    pub engine_version: String,
    pub control: ControlSetup,
    /// The parameters of double sparsity, on which keys and values depend; `None` for full attention.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub double_sparsity: Option<String>,
}

impl Header {
    /// The header of a new log without double sparsity.
    pub fn new(control: &ControlSetup) -> Self {
        Self {
            format_version: FORMAT_VERSION,
            engine_version: env!("CARGO_PKG_VERSION").to_owned(),
            control: control.clone(),
            double_sparsity: None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogEnd {
    Closed,
    /// The log reached its size limit.
    SizeLimit,
    /// The log is truncated: the writer was killed, or is still running.
    CutOff,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Record {
    Entry(Entry),
    /// The disk was too slow: the last entries of an engine unit are missing.
    Gap,
}

#[derive(Debug, thiserror::Error)]
pub enum LogError {
    #[error("cannot be read: {0}")]
    Io(#[from] io::Error),
    #[error("is not a message log: it does not begin with SOUFLOG and its version")]
    NoLog,
    #[error(
        "has format {found}, this engine reads format {FORMAT_VERSION}: replay it with {engine}"
    )]
    Format {
        found: u32,
        /// The version of the engine that wrote the log, if known.
        engine: String,
    },
    #[error("has a header that this version cannot read: {0}")]
    Header(String),
    #[error("is damaged at byte {at}: {reason}")]
    Damaged { at: u64, reason: String },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Kind {
    Header = 1,
    Entries = 2,
    Gap = 3,
    End = 4,
}

impl Kind {
    fn of(byte: u8) -> Option<Self> {
        let kinds = [Self::Header, Self::Entries, Self::Gap, Self::End];
        kinds.into_iter().find(|kind| *kind as u8 == byte)
    }
}

fn checksum(frame: &[u8], stored: &[u8]) -> u32 {
    let mut crc = flate2::Crc::new();
    crc.update(frame);
    crc.update(stored);
    crc.sum()
}

fn encode(kind: Kind, n_raw: u32, stored: &[u8]) -> Vec<u8> {
    let mut block = Vec::with_capacity(FRAME_BYTES + stored.len());
    block.push(kind as u8);
    block.extend(n_raw.to_le_bytes());
    block.extend((stored.len() as u32).to_le_bytes());
    block.extend(checksum(&block, stored).to_le_bytes());
    block.extend(stored);
    block
}

pub fn opening(header: &Header) -> io::Result<Vec<u8>> {
    let json = serde_json::to_vec(header)?;
    let mut bytes = MAGIC.to_vec();
    bytes.extend(encode(Kind::Header, json.len() as u32, &json));
    Ok(bytes)
}

pub fn block(raw: &[u8]) -> io::Result<Vec<u8>> {
    let mut packer = DeflateEncoder::new(Vec::new(), Compression::new(COMPRESSION));
    packer.write_all(raw)?;
    let stored = packer.finish()?;
    Ok(encode(Kind::Entries, raw.len() as u32, &stored))
}

/// Encodes a gap block, which marks missing entries even in a truncated log, without an end block.
pub fn gap() -> Vec<u8> {
    encode(Kind::Gap, 0, &[])
}

/// Encodes the end block: the reason, and the number of missing entries.
pub fn end(ending: LogEnd, n_dropped: u64) -> Vec<u8> {
    let mut stored = vec![u8::from(ending == LogEnd::SizeLimit)];
    stored.extend(n_dropped.to_le_bytes());
    encode(Kind::End, stored.len() as u32, &stored)
}

pub struct LogReader<R> {
    source: R,
    header: Header,
    /// The raw bytes of the current block, and the read position in them.
    block: Vec<u8>,
    at: usize,
    /// The file offsets of the current and the next block.
    block_at: u64,
    next_at: u64,
    ended: Option<(LogEnd, u64)>,
}

struct Frame {
    kind: Kind,
    n_raw: usize,
    stored: Vec<u8>,
}

impl<R: Read> LogReader<R> {
    /// # Errors
    /// The file is not a log, or has another format version.
    pub fn open(mut source: R) -> Result<Self, LogError> {
        let mut magic = [0; MAGIC.len()];
        source.read_exact(&mut magic).map_err(|_| LogError::NoLog)?;
        if magic != MAGIC {
            return Err(LogError::NoLog);
        }
        let mut next_at = MAGIC.len() as u64;
        let block_at = next_at;
        let damaged = |reason: String| LogError::Damaged {
            at: block_at,
            reason,
        };
        let frame = read_frame(&mut source, &mut next_at, MAX_HEADER_BYTES)?;
        let frame = frame.filter(|frame| frame.kind == Kind::Header);
        let frame = frame.ok_or_else(|| damaged("the header is missing".to_owned()))?;
        let json: serde_json::Value = serde_json::from_slice(&frame.stored)
            .map_err(|error| damaged(format!("header: {error}")))?;
        check_version(&json)?;
        // The checksum is correct, so the file is not damaged: another engine version wrote this header.
        let engine = writer_of(&json);
        let header = serde_json::from_value(json)
            .map_err(|error| LogError::Header(format!("{error}; replay it with {engine}")))?;
        Ok(Self {
            source,
            header,
            block: Vec::new(),
            at: 0,
            block_at,
            next_at,
            ended: None,
        })
    }

    pub fn header(&self) -> &Header {
        &self.header
    }

    /// How the log ended and the number of missing entries, after [`next`](Self::next) returned `None`.
    pub fn ending(&self) -> (LogEnd, u64) {
        self.ended.unwrap_or((LogEnd::CutOff, 0))
    }

    /// The next record; `None` at the end.
    ///
    /// # Errors
    /// The contents violate the format.
    #[allow(clippy::should_implement_trait)] // unlike an iterator's `next`, this may fail
    pub fn next(&mut self) -> Result<Option<Record>, LogError> {
        loop {
            if self.at < self.block.len() {
                let rest = &self.block[self.at..];
                let (entry, rest) = postcard::take_from_bytes(rest)
                    .map_err(|error| self.damaged(format!("invalid entry: {error}")))?;
                self.at = self.block.len() - rest.len();
                return Ok(Some(Record::Entry(entry)));
            }
            if self.ended.is_some() {
                return Ok(None);
            }
            self.block_at = self.next_at;
            let frame = read_frame(&mut self.source, &mut self.next_at, MAX_BLOCK_BYTES)?;
            let Some(frame) = frame else {
                self.ended = Some((LogEnd::CutOff, 0));
                return Ok(None);
            };
            match frame.kind {
                Kind::Header => return Err(self.damaged("a second header".to_owned())),
                Kind::Gap => return Ok(Some(Record::Gap)),
                Kind::Entries => {
                    self.block = self.unpack(&frame)?;
                    self.at = 0;
                }
                Kind::End => self.ended = Some(self.read_end(&frame.stored)?),
            }
        }
    }

    fn damaged(&self, reason: String) -> LogError {
        LogError::Damaged {
            at: self.block_at,
            reason,
        }
    }

    fn unpack(&self, frame: &Frame) -> Result<Vec<u8>, LogError> {
        let limit = frame.n_raw as u64 + 1;
        let mut raw = Vec::new();
        let unpacked = DeflateDecoder::new(frame.stored.as_slice())
            .take(limit)
            .read_to_end(&mut raw);
        if let Err(error) = unpacked {
            return Err(self.damaged(format!("failed to decompress a block: {error}")));
        }
        if raw.len() != frame.n_raw {
            return Err(self.damaged(format!(
                "a block does not decompress to {} bytes",
                frame.n_raw
            )));
        }
        Ok(raw)
    }

    fn read_end(&self, stored: &[u8]) -> Result<(LogEnd, u64), LogError> {
        let (reason, n_dropped) = match stored {
            [reason, n_dropped @ ..] => (*reason, <[u8; 8]>::try_from(n_dropped).ok()),
            [] => (0, None),
        };
        let n_dropped =
            n_dropped.ok_or_else(|| self.damaged("the end block is too short".to_owned()))?;
        let ending = match reason {
            0 => LogEnd::Closed,
            _ => LogEnd::SizeLimit,
        };
        Ok((ending, u64::from_le_bytes(n_dropped)))
    }
}

fn check_version(header: &serde_json::Value) -> Result<(), LogError> {
    let found = header["format_version"].as_u64();
    if found == Some(u64::from(FORMAT_VERSION)) {
        return Ok(());
    }
    Err(LogError::Format {
        found: found.map_or(0, |found| u32::try_from(found).unwrap_or(u32::MAX)),
        engine: writer_of(header),
    })
}

fn writer_of(header: &serde_json::Value) -> String {
    match header["engine_version"].as_str() {
        Some(version) => format!("souffleur {version}, which wrote it"),
        None => "the engine that wrote it".to_owned(),
    }
}

/// The next block; `None` at the end of the file, even inside a block.
fn read_frame(
    source: &mut impl Read,
    at: &mut u64,
    limit: usize,
) -> Result<Option<Frame>, LogError> {
    let damaged = |reason: String| LogError::Damaged { at: *at, reason };
    let mut frame = [0; FRAME_BYTES];
    match source.read_exact(&mut frame) {
        Ok(()) => (),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error.into()),
    }
    let number = |from: usize| {
        let bytes = <[u8; 4]>::try_from(&frame[from..from + 4]);
        u32::from_le_bytes(bytes.expect("the slice has four bytes"))
    };
    let (n_raw, n_stored, sum) = (number(1) as usize, number(5) as usize, number(SUMMED_BYTES));
    let kind = Kind::of(frame[0]);
    let kind = kind.ok_or_else(|| damaged(format!("unknown block kind {}", frame[0])))?;
    // Deflate enlarges incompressible data by a few bytes.
    if n_raw > limit || n_stored > limit + limit / 8 {
        return Err(damaged(format!(
            "a block has {n_raw} raw and {n_stored} stored bytes, the limit is {limit}"
        )));
    }
    let mut stored = Vec::new();
    source.take(n_stored as u64).read_to_end(&mut stored)?;
    if stored.len() < n_stored {
        return Ok(None);
    }
    if checksum(&frame[..SUMMED_BYTES], &stored) != sum {
        return Err(damaged("checksum mismatch in a block".to_owned()));
    }
    *at += (FRAME_BYTES + n_stored) as u64;
    Ok(Some(Frame {
        kind,
        n_raw,
        stored,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open_error(json: &str) -> String {
        let mut log = MAGIC.to_vec();
        log.extend(encode(Kind::Header, json.len() as u32, json.as_bytes()));
        let open_error = LogReader::open(log.as_slice()).err();
        open_error.expect("the header is invalid").to_string()
    }

    #[test]
    fn the_error_for_an_unreadable_header_names_the_cause() {
        for found in [0, FORMAT_VERSION + 1] {
            let header = format!(r#"{{"format_version": {found}, "engine_version": "9.8"}}"#);
            let expected = format!(
                "has format {found}, this engine reads format {FORMAT_VERSION}: replay it with souffleur 9.8, which wrote it"
            );
            assert_eq!(open_error(&header), expected);
        }
        let error = open_error("{}");
        assert!(error.ends_with("with the engine that wrote it"), "{error}");
        let error = open_error(&format!(r#"{{"format_version": {FORMAT_VERSION}}}"#));
        assert!(error.contains("missing field `engine_version`"), "{error}");
        let error = open_error("[");
        assert!(
            error.starts_with("is damaged at byte 8: header: "),
            "{error}"
        );
    }
}
