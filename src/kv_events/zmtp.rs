//! The ZeroMQ wire protocol ZMTP 3.1 (RFC 37) and 3.0 without security, for the publisher's PUB and ROUTER sockets.
//!
//! Existing crates queue messages for each subscriber without a byte limit, and accept frames of any size. This module
//! only reads and writes frames, and the caller does the queueing.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::timeouts::IDLE_TIMEOUT;

const GREETING_BYTES: usize = 64;
const MECHANISM: &[u8; 20] = b"NULL\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
/// Flags in a frame's header: more frames of the message follow, the length has 8 bytes, the frame is a command.
const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;
/// The largest READY command: it is usually short, but its metadata may have any length.
const MAX_READY_BYTES: usize = 4096;
/// The largest context of a PING, which the PONG repeats.
const MAX_PING_BYTES: usize = 16;

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub enum ZmtpError {
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The peer violates the protocol, or exceeds a limit.
    #[error("the peer {0}")]
    Peer(&'static str),
    /// As `Peer`, with the limit that the peer exceeds.
    #[error("the peer {0}, the limit is {1}")]
    Limit(&'static str, usize),
    #[error("the peer sent a frame of more than {0} bytes")]
    LongFrame(usize),
    #[error("the peer did not read or send data within {0:?}")]
    Late(Duration),
    #[error("the peer did not answer a PING")]
    Silent,
    #[error(
        "the peer sent no request or matching subscription within {:?}",
        IDLE_TIMEOUT
    )]
    Idle,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketType {
    Pub,
    Router,
}

impl SocketType {
    fn name(self) -> &'static str {
        match self {
            Self::Pub => "PUB",
            Self::Router => "ROUTER",
        }
    }

    fn accepts(self, peer: &[u8]) -> bool {
        match self {
            Self::Pub => [&b"SUB"[..], b"XSUB"].contains(&peer),
            Self::Router => [&b"REQ"[..], b"DEALER", b"ROUTER"].contains(&peer),
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
pub struct Frame {
    /// A protocol command, not part of a message.
    pub is_command: bool,
    /// Further frames of the message follow.
    pub has_more: bool,
    pub body: Vec<u8>,
}

#[derive(Debug, PartialEq, Eq)]
pub enum SubscriberCommand<'a> {
    /// Subscribes to messages with this prefix.
    Subscribe(&'a [u8]),
    Cancel(&'a [u8]),
    /// A PING; holds the encoded PONG.
    Ping(Vec<u8>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerVersion {
    /// The peer may not support PING.
    V3_0,
    /// The peer answers PINGs.
    V3_1,
}

/// Exchanges greetings and READY commands. Returns the peer's version.
///
/// # Errors
/// [`ZmtpError::Peer`], if the peer speaks another version, requires security, or has an incompatible socket type.
pub async fn handshake(
    reader: &mut (impl AsyncRead + Unpin),
    writer: &mut (impl AsyncWrite + Unpin),
    socket: SocketType,
) -> Result<PeerVersion, ZmtpError> {
    writer.write_all(&greeting()).await?;
    let mut peer = [0; GREETING_BYTES];
    reader.read_exact(&mut peer).await?;
    let version = check_greeting(&peer)?;
    writer.write_all(&ready(socket)).await?;
    let answer = read_frame(reader, MAX_READY_BYTES).await?;
    if answer.is_command && socket.accepts(peer_type(&answer.body).unwrap_or_default()) {
        Ok(version)
    } else {
        Err(ZmtpError::Peer(match socket {
            SocketType::Pub => "has an incompatible socket type, must be SUB or XSUB",
            SocketType::Router => "has an incompatible socket type, must be REQ, DEALER or ROUTER",
        }))
    }
}

/// Reads a frame of at most `limit` bytes.
///
/// # Errors
/// [`ZmtpError::LongFrame`], or [`ZmtpError::Peer`] if the frame is malformed.
pub async fn read_frame(
    reader: &mut (impl AsyncRead + Unpin),
    limit: usize,
) -> Result<Frame, ZmtpError> {
    let flags = reader.read_u8().await?;
    if flags & !(MORE | LONG | COMMAND) != 0 {
        return Err(ZmtpError::Peer("sent an invalid frame header"));
    }
    let n_bytes = match flags & LONG {
        0 => u64::from(reader.read_u8().await?),
        _ => reader.read_u64().await?,
    };
    let n_bytes = usize::try_from(n_bytes).ok();
    let n_bytes = n_bytes.filter(|n_bytes| *n_bytes <= limit);
    let n_bytes = n_bytes.ok_or(ZmtpError::LongFrame(limit))?;
    let mut body = vec![0; n_bytes];
    reader.read_exact(&mut body).await?;
    Ok(Frame {
        is_command: flags & COMMAND != 0,
        has_more: flags & MORE != 0,
        body,
    })
}

pub fn message(frames: &[&[u8]]) -> Vec<u8> {
    let n_bytes: usize = frames.iter().map(|frame| 9 + frame.len()).sum();
    let mut bytes = Vec::with_capacity(n_bytes);
    for (at, frame) in frames.iter().enumerate() {
        let more = if at + 1 < frames.len() { MORE } else { 0 };
        push_frame(&mut bytes, more, frame);
    }
    bytes
}

/// Parses a frame from a subscriber; `None` if publishers ignore this frame.
pub fn subscriber_command(frame: &Frame) -> Option<SubscriberCommand<'_>> {
    let body = &frame.body[..];
    if !frame.is_command {
        // Peers with version 3.0 send their subscriptions as messages.
        return match body.split_first()? {
            (1, topic) => Some(SubscriberCommand::Subscribe(topic)),
            (0, topic) => Some(SubscriberCommand::Cancel(topic)),
            _ => None,
        };
    }
    let (name, rest) = command(body)?;
    match name {
        b"SUBSCRIBE" => Some(SubscriberCommand::Subscribe(rest)),
        b"CANCEL" => Some(SubscriberCommand::Cancel(rest)),
        b"PING" => pong(rest).map(SubscriberCommand::Ping),
        _ => None,
    }
}

pub fn answer_to_ping(frame: &Frame) -> Option<Vec<u8>> {
    let (name, rest) = command(&frame.body)?;
    if frame.is_command && name == b"PING" {
        pong(rest)
    } else {
        None
    }
}

/// A PING with a TTL of 0, which sets no timeout at the peer.
pub fn ping() -> Vec<u8> {
    let mut bytes = Vec::new();
    push_frame(&mut bytes, COMMAND, b"\x04PING\0\0");
    bytes
}

pub fn is_pong(frame: &Frame) -> bool {
    frame.is_command && command(&frame.body).is_some_and(|(name, _)| name == b"PONG")
}

fn greeting() -> [u8; GREETING_BYTES] {
    let mut bytes = [0; GREETING_BYTES];
    (bytes[0], bytes[9]) = (0xff, 0x7f); // the first and last byte of the signature
    // Version 3.1.
    (bytes[10], bytes[11]) = (3, 1);
    bytes[12..32].copy_from_slice(MECHANISM);
    bytes
}

fn check_greeting(peer: &[u8; GREETING_BYTES]) -> Result<PeerVersion, ZmtpError> {
    if (peer[0], peer[9]) != (0xff, 0x7f) {
        return Err(ZmtpError::Peer("sent no ZMTP greeting"));
    }
    if peer[10] < 3 {
        return Err(ZmtpError::Peer("uses a ZMTP version before 3.0"));
    }
    if &peer[12..32] != MECHANISM {
        return Err(ZmtpError::Peer(
            "requires a security mechanism, but this socket has none",
        ));
    }
    Ok(match (peer[10], peer[11]) {
        (3, 0) => PeerVersion::V3_0,
        _ => PeerVersion::V3_1,
    })
}

fn ready(socket: SocketType) -> Vec<u8> {
    let mut body = b"\x05READY".to_vec();
    for (name, value) in [("Socket-Type", socket.name()), ("Identity", "")] {
        body.push(name.len() as u8);
        body.extend(name.as_bytes());
        body.extend((value.len() as u32).to_be_bytes());
        body.extend(value.as_bytes());
    }
    let mut bytes = Vec::new();
    push_frame(&mut bytes, COMMAND, &body);
    bytes
}

fn peer_type(body: &[u8]) -> Option<&[u8]> {
    let (name, mut rest) = command(body)?;
    if name != b"READY" {
        return None;
    }
    while let Some((key, value)) = split_prefixed(rest) {
        let (n_bytes, value) = value.split_first_chunk::<4>()?;
        let n_bytes = usize::try_from(u32::from_be_bytes(*n_bytes)).ok()?;
        let (value, after) = value.split_at_checked(n_bytes)?;
        if key.eq_ignore_ascii_case(b"Socket-Type") {
            return Some(value);
        }
        rest = after;
    }
    None
}

fn command(body: &[u8]) -> Option<(&[u8], &[u8])> {
    split_prefixed(body)
}

fn split_prefixed(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (n_bytes, rest) = bytes.split_first()?;
    rest.split_at_checked(usize::from(*n_bytes))
}

/// Encodes the PONG for a PING. Its body has a TTL, and a context to repeat.
fn pong(ping: &[u8]) -> Option<Vec<u8>> {
    let (_, context) = ping.split_first_chunk::<2>()?;
    let context = &context[..context.len().min(MAX_PING_BYTES)];
    let mut bytes = Vec::new();
    push_frame(&mut bytes, COMMAND, &[b"\x04PONG", context].concat());
    Some(bytes)
}

fn push_frame(bytes: &mut Vec<u8>, flags: u8, body: &[u8]) {
    match u8::try_from(body.len()) {
        Ok(n_bytes) => bytes.extend([flags, n_bytes]),
        Err(_) => {
            bytes.push(flags | LONG);
            bytes.extend((body.len() as u64).to_be_bytes());
        }
    }
    bytes.extend(body);
}

#[cfg(test)]
#[path = "zmtp_tests.rs"]
mod tests;
