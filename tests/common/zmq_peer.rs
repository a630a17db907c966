//! A ZeroMQ client that writes and reads ZMTP byte by byte.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::Value;

/// Far longer than any correct wait.
const TIMEOUT: Duration = Duration::from_secs(60);

pub struct Peer {
    pub stream: TcpStream,
}

/// A message from a publisher.
pub struct Message {
    pub topic: String,
    pub seq: i64,
    pub payload: Value,
}

impl Peer {
    pub fn connect(port: u16, socket_type: &str) -> Self {
        Self::shake(TcpStream::connect(("127.0.0.1", port)), socket_type)
    }

    pub fn shake(stream: std::io::Result<TcpStream>, socket_type: &str) -> Self {
        let stream = stream.expect("a connection");
        stream.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
        let mut peer = Self { stream };
        let mut greeting = b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\x01NULL".to_vec();
        greeting.resize(64, 0);
        peer.write(&greeting);
        let mut received = [0; 64];
        peer.stream.read_exact(&mut received).expect("a greeting");
        assert_eq!(&received[10..17], b"\x03\x01NULL\0");
        let mut ready = b"\x05READY\x0bSocket-Type".to_vec();
        ready.extend((socket_type.len() as u32).to_be_bytes());
        ready.extend(socket_type.as_bytes());
        peer.write(&[&[4, ready.len() as u8], &ready[..]].concat());
        let (flags, received) = peer.read_frame();
        assert_eq!((flags, &received[..6]), (4, &b"\x05READY"[..]));
        peer
    }

    /// Subscribes, and returns once the publisher has handled the subscription.
    pub fn subscribe(&mut self, topic: &str) {
        let subscription = [b"\x01", topic.as_bytes()].concat();
        self.write(&[&[0, subscription.len() as u8], &subscription[..]].concat());
        self.write(b"\x04\x0a\x04PING\0\x0aabc");
        assert_eq!(self.read_frame(), (4, b"\x04PONGabc".to_vec()));
    }

    pub fn write(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the peer reads");
    }

    fn read_frame(&mut self) -> (u8, Vec<u8>) {
        let mut head = [0; 2];
        self.stream.read_exact(&mut head).expect("a frame");
        let n_bytes = match head[0] & 2 {
            0 => u64::from(head[1]),
            _ => {
                let mut rest = [0; 7];
                self.stream.read_exact(&mut rest).expect("a length");
                let bytes = [&head[1..], &rest[..]].concat();
                u64::from_be_bytes(bytes.try_into().expect("a length has eight bytes"))
            }
        };
        let mut body = vec![0; n_bytes as usize];
        self.stream.read_exact(&mut body).expect("a frame");
        (head[0] & !2, body)
    }

    fn read_frames(&mut self) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        loop {
            let (flags, body) = self.read_frame();
            frames.push(body);
            if flags == 0 {
                return frames;
            }
        }
    }

    pub fn read_message(&mut self) -> Message {
        message(&self.read_frames())
    }

    /// Requests a replay from batch `first` on, and returns the answers.
    pub fn ask(&mut self, first: u64) -> Vec<Message> {
        self.write(b"\x01\0\0\x08");
        self.write(&first.to_be_bytes());
        let mut answers = Vec::new();
        loop {
            let frames = self.read_frames();
            assert_eq!(frames[0], b"", "an empty first frame");
            if frames[2] == (-1_i64).to_be_bytes() {
                assert_eq!(
                    (&frames[1], &frames[3], frames.len()),
                    (&vec![], &vec![], 4)
                );
                return answers;
            }
            answers.push(message(&frames[1..]));
        }
    }

    pub fn is_closed(&mut self) -> bool {
        let mut rest = Vec::new();
        let _ = self.stream.read_to_end(&mut rest);
        self.stream.read(&mut [0]).is_ok_and(|n_bytes| n_bytes == 0)
    }
}

fn message(frames: &[Vec<u8>]) -> Message {
    let [topic, seq, payload] = frames else {
        panic!("{frames:?}");
    };
    Message {
        topic: String::from_utf8(topic.clone()).expect("UTF-8"),
        seq: i64::from_be_bytes(seq.clone().try_into().expect("eight bytes")),
        payload: rmp_serde::from_slice(payload).expect("MessagePack"),
    }
}
