//! An HTTP client on raw sockets, which can also violate the protocol.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// Maximum time that a test waits for a server's next byte.
const READ_TIMEOUT: Duration = Duration::from_secs(60);

pub struct Response {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: String,
}

impl Response {
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| value.as_str())
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        let parsed = serde_json::from_str(&self.body);
        parsed.unwrap_or_else(|error| panic!("{error}: {:?}", self.body))
    }

    /// The JSON of a response that must be a success.
    #[track_caller]
    pub fn ok(&self) -> Value {
        assert_eq!(self.status, 200, "{}", self.body);
        self.json()
    }
}

pub fn get(addr: SocketAddr, path: &str) -> Response {
    send(
        addr,
        &format!("GET {path} HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n\r\n"),
    )
}

pub fn delete(addr: SocketAddr, path: &str) -> Response {
    send(
        addr,
        &format!("DELETE {path} HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n\r\n"),
    )
}

pub fn post(addr: SocketAddr, path: &str, body: &Value) -> Response {
    post_text(addr, path, &body.to_string())
}

pub fn post_text(addr: SocketAddr, path: &str, body: &str) -> Response {
    send(addr, &post_head(addr, path, body))
}

fn post_head(addr: SocketAddr, path: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    )
}

/// Sends raw bytes and reads a response to its end.
pub fn send(addr: SocketAddr, request: &str) -> Response {
    let mut stream = connect(addr);
    stream
        .write_all(request.as_bytes())
        .expect("the server reads");
    read_response(stream)
}

/// Opens a POST whose response the caller may read.
pub fn open(addr: SocketAddr, path: &str, body: &Value) -> TcpStream {
    let mut stream = connect(addr);
    let request = post_head(addr, path, &body.to_string());
    stream
        .write_all(request.as_bytes())
        .expect("the server reads");
    stream
}

pub fn connect(addr: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(addr).expect("the server listens");
    stream
        .set_read_timeout(Some(READ_TIMEOUT))
        .expect("the timeout is not zero");
    stream
}

/// The response; of a stream without an end, only the head.
pub fn read_response(stream: TcpStream) -> Response {
    let mut reader = BufReader::new(stream);
    let (status, headers) = read_head(&mut reader);
    let mut response = Response {
        status,
        headers,
        body: String::new(),
    };
    if is_endless(&response) {
        return response;
    }
    let mut body = Vec::new();
    if response.header("transfer-encoding") == Some("chunked") {
        while let Some(chunk) = read_chunk(&mut reader) {
            body.extend(chunk);
        }
    } else {
        let length = response
            .header("content-length")
            .map(|length| length.parse::<u64>());
        let length = length.map_or(u64::MAX, |length| length.expect("a number"));
        reader
            .take(length)
            .read_to_end(&mut body)
            .expect("the body arrives");
    }
    response.body = String::from_utf8(body).expect("bodies are text");
    response
}

/// Events that may be stored end; those of the console do not.
fn is_endless(response: &Response) -> bool {
    let kind = response.header("content-type");
    kind == Some("text/event-stream") && response.header("cache-control") == Some("no-store")
}

/// The head of a response; the body is left unread.
pub fn read_head_of(stream: TcpStream) -> Response {
    let (status, headers) = read_head(&mut BufReader::new(stream));
    Response {
        status,
        headers,
        body: String::new(),
    }
}

fn read_head(reader: &mut BufReader<TcpStream>) -> (u16, Vec<(String, String)>) {
    let mut line = String::new();
    reader.read_line(&mut line).expect("a status line arrives");
    let status = line
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok());
    let status = status.unwrap_or_else(|| panic!("no status in {line:?}"));
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).expect("headers arrive");
        match line.trim_end().split_once(": ") {
            Some((name, value)) => headers.push((name.to_lowercase(), value.to_owned())),
            None => return (status, headers),
        }
    }
}

/// The next chunk; `None` after the last one.
fn read_chunk(reader: &mut BufReader<TcpStream>) -> Option<Vec<u8>> {
    let mut size = String::new();
    reader.read_line(&mut size).expect("a chunk arrives");
    let size = usize::from_str_radix(size.trim_end(), 16).expect("a chunk has a size");
    let mut chunk = vec![0; size + 2];
    reader.read_exact(&mut chunk).expect("the chunk is whole");
    chunk.truncate(size);
    (size > 0).then_some(chunk)
}

/// A stream of server-sent events, read one by one.
pub struct Events {
    reader: BufReader<TcpStream>,
    text: String,
}

/// Opens a stream that must be a success.
#[track_caller]
pub fn stream(addr: SocketAddr, path: &str, body: &Value) -> Events {
    events_of(open(addr, path, body))
}

/// Like [`stream`], by GET; `header` is a line of the request, or empty.
#[track_caller]
pub fn listen(addr: SocketAddr, path: &str, header: &str) -> Events {
    let mut stream = connect(addr);
    let head = format!("GET {path} HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n{header}\r\n");
    stream.write_all(head.as_bytes()).expect("the server reads");
    events_of(stream)
}

/// The events of a response that must be a success.
#[track_caller]
pub fn events_of(stream: TcpStream) -> Events {
    let mut reader = BufReader::new(stream);
    let (status, headers) = read_head(&mut reader);
    let kind = headers.iter().find(|(name, _)| name == "content-type");
    assert_eq!(
        (status, kind.map(|kind| kind.1.as_str())),
        (200, Some("text/event-stream"))
    );
    Events {
        reader,
        text: String::new(),
    }
}

impl Events {
    /// The next event's data; `None` after the last chunk. Comments are skipped.
    pub fn next_data(&mut self) -> Option<String> {
        loop {
            if let Some(data) = self.next_event()?.strip_prefix("data: ") {
                return Some(data.to_owned());
            }
        }
    }

    /// The next event or comment as it is; `None` after the last chunk.
    pub fn next_event(&mut self) -> Option<String> {
        loop {
            if let Some((event, rest)) = self.text.split_once("\n\n") {
                let (event, rest) = (event.to_owned(), rest.to_owned());
                self.text = rest;
                return Some(event);
            }
            let chunk = read_chunk(&mut self.reader)?;
            self.text
                .push_str(std::str::from_utf8(&chunk).expect("events are text"));
        }
    }

    #[track_caller]
    pub fn next_json(&mut self) -> Value {
        let data = self.next_data().expect("another event");
        serde_json::from_str(&data).unwrap_or_else(|error| panic!("{error}: {data}"))
    }

    /// All events up to `[DONE]`, which must be the last.
    #[track_caller]
    pub fn rest(mut self) -> Vec<Value> {
        let mut events = Vec::new();
        while let Some(data) = self.next_data() {
            if data == "[DONE]" {
                assert_eq!(self.next_data(), None);
                return events;
            }
            events.push(serde_json::from_str(&data).expect("data is JSON"));
        }
        panic!("no [DONE] after {events:?}");
    }
}
