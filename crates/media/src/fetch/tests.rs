//! Tests of the fetcher, with name servers and sockets of their own. Nothing leaves this machine.

use std::io::Write;
use std::net::TcpListener;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};

use super::*;

const GLOBAL: &str = "93.184.216.34";
const HOST: &str = "images.example";

/// Answers the first look-up with one list of addresses, and later ones with another.
#[derive(Debug)]
struct Answers {
    first: Vec<IpAddr>,
    later: Vec<IpAddr>,
    asked: AtomicUsize,
}

impl Answers {
    fn new(first: &[&str], later: &str) -> Arc<Self> {
        let address = |text: &&str| -> IpAddr { text.parse().expect("an address") };
        Arc::new(Self {
            first: first.iter().map(address).collect(),
            later: vec![address(&later)],
            asked: AtomicUsize::new(0),
        })
    }
}

impl Resolve for Answers {
    fn resolve(&self, _: &str) -> io::Result<Vec<IpAddr>> {
        Ok(match self.asked.fetch_add(1, Ordering::Relaxed) {
            0 => self.first.clone(),
            _ => self.later.clone(),
        })
    }
}

/// Connects to a server of the test, whatever the address, and notes the addresses.
#[derive(Debug, Default)]
struct Sockets {
    server: Option<SocketAddr>,
    opened: Mutex<Vec<SocketAddr>>,
}

impl Sockets {
    fn opened(&self) -> Vec<SocketAddr> {
        self.opened.lock().expect("no panic").clone()
    }
}

impl Connect for Sockets {
    fn connect(&self, address: SocketAddr, time: Duration) -> io::Result<TcpStream> {
        self.opened.lock().expect("no panic").push(address);
        let server = self.server.ok_or(io::ErrorKind::ConnectionRefused)?;
        TcpStream::connect_timeout(&server, time)
    }
}

fn limits() -> FetchLimits {
    FetchLimits {
        max_bytes: 1000,
        time: Duration::from_secs(60),
        at_once: 2,
    }
}

fn fetch(url: &str, fetcher: &Fetcher) -> Result<Vec<u8>, MediaError> {
    fetcher.fetch(&MediaUrl::parse(url)?)
}

/// Hosts and addresses that an operator might list by mistake.
const LISTED: [&str; 6] = [
    HOST,
    "*.images.example",
    "localhost",
    "127.0.0.1",
    "169.254.169.254",
    "[::1]",
];

#[track_caller]
fn opens_no_connection(url: &str, first: &[&str]) {
    let domains = AllowedDomains::parse(&LISTED).expect("hosts");
    let (answers, sockets) = (Answers::new(first, GLOBAL), Arc::new(Sockets::default()));
    let fetcher = Fetcher::with(domains, limits(), answers.clone(), sockets.clone());
    let refused = fetch(url, &fetcher).expect_err(url);
    assert!(sockets.opened().is_empty(), "{url}, {first:?}: {refused}");
    assert!(answers.asked.load(Ordering::Relaxed) <= 1, "{url}");
    let codes = [
        "media_url",
        "media_host_not_allowed",
        "media_address_not_global",
    ];
    assert!(
        codes.contains(&refused.code()),
        "{url}, {first:?}: {refused}"
    );
}

#[test]
fn no_connection_is_opened_if_the_first_answer_is_not_global() {
    for first in [
        "127.0.0.1",
        "127.8.8.8",
        "0.0.0.0",
        "10.0.0.1",
        "172.16.0.1",
        "192.168.0.1",
        "169.254.169.254",
        "100.64.0.1",
        "192.0.0.1",
        "198.18.0.1",
        "224.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::7f00:1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "::ffff:93.184.216.34",
        "64:ff9b::7f00:1",
        "64:ff9b::a9fe:a9fe",
        "2002:7f00:1::",
        "2001::1",
        "fe80::1",
        "fc00::1",
        "fd00:ec2::254",
        "ff02::1",
    ] {
        opens_no_connection("https://images.example/a.png", &[first]);
        opens_no_connection("http://a.images.example:443/a.png", &[GLOBAL, first]);
        opens_no_connection("http://localhost/a.png", &[first, GLOBAL]);
    }
}

#[test]
fn no_connection_is_opened_for_urls_that_the_policy_refuses() {
    for url in [
        "http://127.0.0.1/",
        "http://[::1]/",
        "http://[::ffff:7f00:1]/",
        "http://169.254.169.254/latest/meta-data",
        "http://2130706433/",
        "http://0x7f000001/",
        "http://0x7f.1/",
        "http://0177.0.0.1/",
        "http://127.1/",
        "http://127.0.0.1./",
        "http://evil.example/",
        "http://evil.example/images.example",
        "http://evil.example?images.example",
        "http://images.example.evil.example/",
        "http://evilimages.example/",
        "http://images.example@127.0.0.1/",
        "http://user:password@images.example/",
        "http://127.0.0.1\\@images.example/",
        "http://images.example\\.evil.example/",
        "http://images.example%00.evil.example/",
        "http://images.example\r\nHost: evil.example/",
        "http://images.example:22/",
        "http://images.example:8080/",
        "http://images.example:0/",
        "http://images.example./",
        "http://①②⑦.0.0.1/",
        "http://ｉmages.example/",
        "file:///etc/passwd",
        "file://images.example/etc/passwd",
        "ftp://images.example/",
        "gopher://images.example:80/_GET",
        "//images.example/",
        "images.example",
    ] {
        opens_no_connection(url, &[GLOBAL]);
    }
}

#[test]
fn the_connection_goes_to_the_first_answer_and_the_name_is_asked_for_once() {
    let (server, address) = serve("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nGIF");
    let answers = Answers::new(&[GLOBAL], "127.0.0.1");
    let sockets = Arc::new(Sockets {
        server: Some(address),
        ..Sockets::default()
    });
    let domains = AllowedDomains::parse(&[HOST]).expect("a host");
    let fetcher = Fetcher::with(domains, limits(), answers.clone(), sockets.clone());
    let url = "http://images.example/a.gif?b=c#d";
    assert_eq!(fetch(url, &fetcher).as_deref(), Ok(&b"GIF"[..]));
    assert_eq!(answers.asked.load(Ordering::Relaxed), 1);
    let global: IpAddr = GLOBAL.parse().expect("an address");
    assert_eq!(sockets.opened(), [SocketAddr::new(global, 80)]);
    let request = server.join().expect("no panic").to_lowercase();
    assert!(
        request.starts_with("get /a.gif?b=c http/1.1\r\n"),
        "{request}"
    );
    assert!(
        request.contains("\r\nhost: images.example\r\n"),
        "{request}"
    );
    for name in ["authorization", "cookie", "proxy", "referer"] {
        assert!(!request.contains(name), "{request}");
    }
}

/// A server that answers one request with these bytes, and returns the request.
fn serve(answer: &'static str) -> (JoinHandle<String>, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let serving = move || {
        let (mut stream, _) = listener.accept().expect("a client");
        let mut request = Vec::new();
        let mut byte = [0];
        while !request.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|n| n == 1) {
            request.push(byte[0]);
        }
        // A client that has read enough closes the connection.
        drop(stream.write_all(answer.as_bytes()));
        String::from_utf8_lossy(&request).into_owned()
    };
    (thread::spawn(serving), address)
}

fn answered(answer: &'static str) -> MediaError {
    let (server, address) = serve(answer);
    let sockets = Arc::new(Sockets {
        server: Some(address),
        ..Sockets::default()
    });
    let domains = AllowedDomains::parse(&[HOST]).expect("a host");
    let answers = Answers::new(&[GLOBAL], GLOBAL);
    let fetcher = Fetcher::with(domains, limits(), answers, sockets.clone());
    let refused = fetch("http://images.example/secret?signature=1", &fetcher);
    server.join().expect("no panic");
    assert_eq!(sockets.opened().len(), 1);
    let refused = refused.expect_err("is refused");
    assert!(!refused.to_string().contains("signature"), "{refused}");
    refused
}

#[test]
fn other_answers_are_refused() {
    let redirect = "HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1/\r\nContent-Length: 0\r\n\r\n";
    assert_eq!(
        answered(redirect).to_string(),
        "images.example answered with status 302, must be 200: redirects are not followed, send the final URL"
    );
    for (answer, code) in [
        (
            "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
            "media_status",
        ),
        (
            "HTTP/1.1 206 Partial Content\r\nContent-Length: 0\r\n\r\n",
            "media_status",
        ),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 1001\r\n\r\n",
            "media_too_large",
        ),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 999999999999999\r\n\r\n",
            "media_too_large",
        ),
        (
            "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 1\r\n\r\na",
            "media_fetch_failed",
        ),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\ncut",
            "media_fetch_failed",
        ),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n",
            "media_fetch_failed",
        ),
        ("220 smtp.example\r\n", "media_fetch_failed"),
        ("", "media_fetch_failed"),
    ] {
        assert_eq!(answered(answer).code(), code, "{answer}");
    }
}

#[test]
fn a_body_without_a_length_is_read_up_to_the_limit() {
    for (n, code) in [
        (1000, None),
        (1001, Some("media_too_large")),
        (100_000, Some("media_too_large")),
    ] {
        let body = "a".repeat(n);
        let answer = format!("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{body}").leak();
        let (server, address) = serve(answer);
        let sockets = Sockets {
            server: Some(address),
            ..Sockets::default()
        };
        let domains = AllowedDomains::parse(&[HOST]).expect("a host");
        let answers = Answers::new(&[GLOBAL], GLOBAL);
        let fetcher = Fetcher::with(domains, limits(), answers, Arc::new(sockets));
        let read = fetch("http://images.example/", &fetcher);
        let error = read.err();
        assert_eq!(error.as_ref().map(MediaError::code), code, "{n}: {error:?}");
        server.join().expect("no panic");
    }
}

/// A name server that answers when the test lets it.
#[derive(Debug)]
struct Silent(Mutex<mpsc::Receiver<()>>);

impl Resolve for Silent {
    fn resolve(&self, _: &str) -> io::Result<Vec<IpAddr>> {
        let _ = self.0.lock().expect("no panic").recv();
        Err(io::Error::other("no such name"))
    }
}

#[test]
fn a_silent_name_server_costs_the_time_limit_and_holds_its_slot() {
    let (answer, silent) = mpsc::channel();
    let domains = AllowedDomains::parse(&[HOST]).expect("a host");
    let limits = FetchLimits {
        time: Duration::from_millis(100),
        at_once: 1,
        ..limits()
    };
    let silent = Arc::new(Silent(Mutex::new(silent)));
    let sockets = Arc::new(Sockets::default());
    let fetcher = Fetcher::with(domains, limits, silent, sockets.clone());
    for _ in 0..2 {
        let refused = fetch("http://images.example/", &fetcher).expect_err("no answer");
        assert_eq!(refused.code(), "media_fetch_timed_out");
    }
    answer.send(()).expect("the first look-up waits");
    drop(answer);
    let is_free = || {
        let refused = fetch("http://images.example/", &fetcher).expect_err("no address");
        refused.code() == "media_host_unresolved"
    };
    assert!((0..100).any(|_| is_free()), "the slot is never free again");
    assert!(sockets.opened().is_empty());
}

#[test]
fn a_server_that_does_not_answer_costs_the_time_limit() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let sockets = Sockets {
        server: Some(listener.local_addr().expect("an address")),
        ..Sockets::default()
    };
    let domains = AllowedDomains::parse(&[HOST]).expect("a host");
    let limits = FetchLimits {
        time: Duration::from_millis(100),
        ..limits()
    };
    let answers = Answers::new(&[GLOBAL], GLOBAL);
    let fetcher = Fetcher::with(domains, limits, answers, Arc::new(sockets));
    for url in ["http://images.example/", "https://images.example/"] {
        let refused = fetch(url, &fetcher).expect_err("no answer");
        assert_eq!(refused.code(), "media_fetch_timed_out", "{url}: {refused}");
    }
}
