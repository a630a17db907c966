//! Checks a client's bytes before the WebSocket library, which would check a frame only after reading all of it.
//!
//! A frame's header is checked as soon as it arrives: no byte of a frame that is too large, alone or with the message's
//! earlier fragments, is passed on. The arrived part of an unfinished message is charged to the budget of all
//! bodies. A long frame is passed on as fragments, so that the library holds little more than the message, frees it
//! afterwards, and detects early that a text is not UTF-8.

use std::io::Cursor;
use std::time::{Duration, Instant};

use tokio_tungstenite::tungstenite;
use tokio_tungstenite::tungstenite::error::{CapacityError, ProtocolError};
use tokio_tungstenite::tungstenite::protocol::frame::FrameHeader;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{Data, OpCode};

use crate::budget::BodyCharge;
use crate::error::ApiError;

const MAX_HEADER_BYTES: usize = 14;
const MAX_CONTROL_BYTES: u64 = 125;
/// Bytes of the longest fragment that is passed on: a multiple of the mask's length, so that the mask stays aligned.
const FRAGMENT_BYTES: u64 = 16 << 10;

#[derive(Debug, thiserror::Error)]
pub(super) enum Refusal {
    /// A frame that the standard forbids, or one above the limit.
    #[error(transparent)]
    Frame(#[from] tungstenite::Error),
    /// Other bodies use the memory, or the message needs more than one body may use.
    #[error(transparent)]
    Memory(#[from] ApiError),
    #[error("the WebSocket message did not arrive in time")]
    Late,
}

pub(super) struct Inbound {
    limit_bytes: usize,
    /// Time limit of a message, from its first frame to its last byte.
    message_timeout: Duration,
    message_began: Option<Instant>,
    /// The start of a header whose rest has not arrived.
    header: Vec<u8>,
    /// The header and the length of the rest of a frame, from the next fragment on.
    rest: Option<(FrameHeader, u64)>,
    /// Bytes of the current fragment that have not arrived.
    fragment_left: usize,
    /// Bytes that the frames of the unfinished message announced so far.
    message_bytes: u64,
    /// The current frame is part of a message, not a control frame.
    is_data: bool,
    /// The charge for the arrived part of the unfinished message.
    charge: BodyCharge,
}

impl Inbound {
    pub(super) fn new(limit_bytes: usize, message_timeout: Duration, charge: BodyCharge) -> Self {
        Self {
            limit_bytes,
            message_timeout,
            message_began: None,
            header: Vec::with_capacity(MAX_HEADER_BYTES),
            rest: None,
            fragment_left: 0,
            message_bytes: 0,
            is_data: false,
            charge,
        }
    }

    /// Returns the bytes of `chunk` that are passed on, and the refusal if not all of them are.
    pub(super) fn admit(&mut self, mut chunk: &[u8]) -> (Vec<u8>, Option<Refusal>) {
        if let Some(message_began) = self.message_began
            && message_began.elapsed() > self.message_timeout
        {
            return (Vec::new(), Some(Refusal::Late));
        }
        let mut bytes = Vec::with_capacity(chunk.len() + MAX_HEADER_BYTES);
        let refused = self.pass_on(&mut chunk, &mut bytes).err();
        (bytes, refused)
    }

    fn pass_on(&mut self, chunk: &mut &[u8], bytes: &mut Vec<u8>) -> Result<(), Refusal> {
        loop {
            let (arrived, later) = chunk.split_at(self.fragment_left.min(chunk.len()));
            if self.is_data {
                self.charge.grow(arrived.len())?;
            }
            bytes.extend_from_slice(arrived);
            self.fragment_left -= arrived.len();
            *chunk = later;
            if self.fragment_left > 0 {
                return Ok(());
            }
            let frame = match self.rest.take() {
                Some(rest) => rest,
                None => {
                    self.end_frame();
                    match self.next_frame(chunk)? {
                        Some(frame) => frame,
                        None => return Ok(()),
                    }
                }
            };
            self.announce(frame, bytes)?;
        }
    }

    /// Releases the charge for a complete message. The parser of the message charges it again.
    fn end_frame(&mut self) {
        if self.message_bytes == 0 {
            self.charge.shrink_to(0);
            self.message_began = None;
        }
    }

    /// The next frame's header and length, checked; `None` if not all of the header has arrived.
    fn next_frame(&mut self, chunk: &mut &[u8]) -> tungstenite::Result<Option<(FrameHeader, u64)>> {
        let stored = self.header.len();
        let taken = chunk.len().min(MAX_HEADER_BYTES - stored);
        self.header.extend_from_slice(&chunk[..taken]);
        let mut cursor = Cursor::new(&self.header);
        let Some((header, length)) = FrameHeader::parse(&mut cursor)? else {
            *chunk = &chunk[taken..];
            return Ok(None);
        };
        *chunk = &chunk[cursor.position() as usize - stored..];
        self.header.clear();
        self.check(&header, length)?;
        Ok(Some((header, length)))
    }

    fn check(&mut self, header: &FrameHeader, length: u64) -> tungstenite::Result<()> {
        self.is_data = matches!(header.opcode, OpCode::Data(_));
        if !self.is_data {
            return if length > MAX_CONTROL_BYTES {
                Err(ProtocolError::ControlFrameTooBig.into())
            } else {
                Ok(())
            };
        }
        self.message_began = self.message_began.or_else(|| Some(Instant::now()));
        let message_bytes = self.message_bytes.saturating_add(length);
        if message_bytes > self.limit_bytes as u64 {
            return Err(CapacityError::MessageTooLong {
                size: usize::try_from(message_bytes).unwrap_or(usize::MAX),
                max_size: self.limit_bytes,
            }
            .into());
        }
        self.message_bytes = if header.is_final { 0 } else { message_bytes };
        Ok(())
    }

    /// Writes the header of a frame's next fragment and keeps the rest of the frame for later.
    fn announce(
        &mut self,
        (header, length): (FrameHeader, u64),
        bytes: &mut Vec<u8>,
    ) -> tungstenite::Result<()> {
        let fragment = length.min(FRAGMENT_BYTES);
        let is_last = fragment == length;
        let next = FrameHeader {
            is_final: header.is_final && is_last,
            ..header.clone()
        };
        next.format(fragment, bytes)?;
        self.fragment_left = fragment as usize;
        if !is_last {
            let opcode = OpCode::Data(Data::Continue);
            self.rest = Some((FrameHeader { opcode, ..header }, length - fragment));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokio_tungstenite::tungstenite::Error;

    use super::*;
    use crate::budget::BodyBudget;

    const LIMIT: usize = 100_000;
    const TIMEOUT: Duration = Duration::from_secs(60);
    const TEXT: u8 = 0x1;
    const CONTINUATION: u8 = 0x0;
    const PING: u8 = 0x9;
    const LAST: u8 = 0x80;

    fn header(first: u8, length: u64) -> Vec<u8> {
        let mut cursor = Cursor::new([first, 0x80, 1, 2, 3, 4]); // Masked with the key 1, 2, 3, 4.
        let parsed = FrameHeader::parse(&mut cursor).expect("the opcode is known");
        let (header, _) = parsed.expect("it is whole");
        let mut bytes = Vec::new();
        header.format(length, &mut bytes).expect("the header fits");
        bytes
    }

    fn frame(first: u8, length: usize) -> Vec<u8> {
        let mut bytes = header(first, length as u64);
        bytes.extend((0..length).map(|at| at as u8));
        bytes
    }

    /// Admits `stream` in chunks of `chunk_bytes`. Returns the bytes that were passed on, and the refusal.
    fn admit(stream: &[u8], chunk_bytes: usize) -> (Vec<u8>, Option<Error>) {
        let charge = BodyBudget::new(8 * LIMIT).open();
        let mut inbound = Inbound::new(LIMIT, TIMEOUT, charge);
        let mut all = Vec::new();
        for chunk in stream.chunks(chunk_bytes) {
            let (bytes, refused) = inbound.admit(chunk);
            all.extend(bytes);
            if let Some(refused) = refused {
                return (all, Some(frame_error(refused)));
            }
        }
        (all, None)
    }

    fn frame_error(refusal: Refusal) -> Error {
        match refusal {
            Refusal::Frame(error) => error,
            other => panic!("{other}"),
        }
    }

    #[test]
    fn the_time_limit_of_a_message_starts_with_its_first_frame() {
        let mut inbound = Inbound::new(LIMIT, Duration::ZERO, BodyBudget::new(LIMIT).open());
        let whole = frame(LAST | TEXT, 10);
        assert!(inbound.admit(&whole).1.is_none());
        assert!(inbound.admit(&whole).1.is_none(), "a new message");
        assert!(inbound.admit(&frame(TEXT, 10)).1.is_none());
        // Control frames do not extend the time limit.
        let (_, refused) = inbound.admit(&frame(LAST | PING, 0));
        assert!(matches!(refused, Some(Refusal::Late)), "{refused:?}");
    }

    #[test]
    fn unfinished_messages_are_charged_until_they_are_whole() {
        const PART: usize = 40_000;
        let budget = BodyBudget::new(3 * PART);
        let open = || Inbound::new(LIMIT, TIMEOUT, budget.open());
        let (mut one, mut other, mut third) = (open(), open(), open());
        let mut part = header(TEXT, PART as u64);
        part.extend([b'a'; PART]);
        let is_refused = |inbound: &mut Inbound, bytes: &[u8]| inbound.admit(bytes).1.is_some();
        assert!(!is_refused(&mut one, &part));
        for _ in 0..1000 {
            // Control frames within a message are not charged.
            assert!(!is_refused(&mut one, &frame(LAST | PING, 125)));
        }
        assert!(!is_refused(&mut other, &part));
        let (bytes, refused) = third.admit(&[&part[..], &part].concat());
        assert!(matches!(refused, Some(Refusal::Memory(_))), "{refused:?}");
        assert!(bytes.len() < part.len() + 100);
        assert!(!is_refused(&mut one, &frame(LAST | CONTINUATION, 1)));
        let mut fourth = open();
        assert!(!is_refused(&mut fourth, &part));
    }

    #[test]
    fn lengths_are_refused_before_a_byte_of_the_frame_arrives() {
        for length in [LIMIT as u64 + 1, 1 << 40, 1 << 63, u64::MAX] {
            for first in [LAST | TEXT, TEXT, LAST | CONTINUATION] {
                let (bytes, refused) = admit(&header(first, length), 64);
                assert!(bytes.is_empty(), "{bytes:?}");
                assert!(matches!(refused, Some(Error::Capacity(_))), "{refused:?}");
            }
            let (bytes, refused) = admit(&header(LAST | PING, length), 64);
            assert!(bytes.is_empty(), "{bytes:?}");
            assert!(matches!(refused, Some(Error::Protocol(_))), "{refused:?}");
        }
    }

    #[test]
    fn fragments_are_summed_and_control_frames_between_them_are_not() {
        let mut stream = frame(TEXT, LIMIT - 400);
        stream.extend(frame(LAST | PING, 125));
        stream.extend(frame(CONTINUATION, 300));
        let end = frame(LAST | CONTINUATION, 100);
        let next = frame(LAST | TEXT, LIMIT);
        let (_, refused) = admit(&[&stream[..], &end, &next].concat(), 64);
        assert!(refused.is_none(), "{refused:?}");
        stream.extend(header(LAST | CONTINUATION, 101));
        let (_, refused) = admit(&stream, 64);
        assert!(matches!(refused, Some(Error::Capacity(_))), "{refused:?}");
    }

    #[test]
    fn a_long_frame_is_passed_on_as_masked_fragments() {
        const PART: usize = FRAGMENT_BYTES as usize;
        let whole = frame(LAST | TEXT, 2 * PART + 5);
        let payload = &whole[whole.len() - 2 * PART - 5..];
        let part = |first, range: std::ops::Range<usize>| {
            [header(first, range.len() as u64), payload[range].to_vec()].concat()
        };
        let expected = [
            part(TEXT, 0..PART),
            part(CONTINUATION, PART..2 * PART),
            part(LAST | CONTINUATION, 2 * PART..2 * PART + 5),
        ];
        assert!(PART.is_multiple_of(4));
        assert!(admit(&whole, whole.len()).0 == expected.concat());
    }

    proptest! {
        #[test]
        fn the_size_of_chunks_does_not_matter(
            lengths in prop::collection::vec(0..=300_usize, 0..8),
            is_refused in prop::bool::ANY,
            chunk_bytes in 1..700_usize,
        ) {
            let frames = lengths.iter().flat_map(|length| frame(LAST | TEXT, *length));
            let mut stream: Vec<u8> = frames.collect();
            let good = stream.clone();
            if is_refused {
                stream.extend(frame(LAST | TEXT, LIMIT + 1));
            }
            let (bytes, refused) = admit(&stream, chunk_bytes);
            prop_assert_eq!(refused.is_some(), is_refused);
            prop_assert_eq!(bytes, good);
        }
    }
}
