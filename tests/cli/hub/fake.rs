//! A fake Hugging Face Hub, and a fake CDN host that serves the large files.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};
use sha1::{Digest, Sha1};
use sha2::Sha256;

pub const COMMIT: &str = "1111111111111111111111111111111111111111";
pub const OLD_COMMIT: &str = "2222222222222222222222222222222222222222";
/// The secret part of the URLs of large files.
pub const SIGNATURE: &str = "X-Signature=s3cr3t";

#[derive(Clone)]
pub struct RepoFile {
    pub bytes: Vec<u8>,
    pub is_large: bool,
    /// The size that the hub reports, if it is not the true one.
    pub claimed_bytes: Option<u64>,
}

impl RepoFile {
    pub fn small(bytes: impl Into<Vec<u8>>) -> Self {
        Self {
            bytes: bytes.into(),
            is_large: false,
            claimed_bytes: None,
        }
    }

    pub fn large(bytes: impl Into<Vec<u8>>) -> Self {
        Self {
            is_large: true,
            ..Self::small(bytes)
        }
    }

    /// The ETag of the contents: SHA-256 for large files, git's hash for others.
    pub fn etag(&self) -> String {
        if self.is_large {
            hex(&Sha256::digest(&self.bytes))
        } else {
            let mut hash = Sha1::new_with_prefix(format!("blob {}\0", self.bytes.len()));
            hash.update(&self.bytes);
            hex(&hash.finalize())
        }
    }

    fn size(&self) -> u64 {
        self.claimed_bytes.unwrap_or(self.bytes.len() as u64)
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub type Files = BTreeMap<String, RepoFile>;

#[derive(Default)]
pub struct Behaviour {
    /// Commit and files by repository and revision; a commit is a revision too.
    pub repos: BTreeMap<(String, String), (String, Files)>,
    /// If set, the status and error code with which the hub answers every request.
    pub refusal: Option<(u16, &'static str)>,
    /// The next downloads of large files end after these numbers of bytes.
    pub cuts: Vec<usize>,
    /// One byte of each large file is changed.
    pub damages: bool,
    /// The host of large files ignores range requests and sends whole files.
    pub ignores_ranges: bool,
    /// The host of large files refuses every range request.
    pub refuses_ranges: bool,
    /// The listing of a repository has names only.
    pub lists_names_only: bool,
    /// Redirects to large files carry no metadata about them.
    pub hides_links: bool,
}

#[derive(Clone, Debug, Default)]
pub struct HubRequest {
    /// The host that received the request: `hub` or `cdn`.
    pub host: &'static str,
    pub method: String,
    pub path: String,
    pub authorization: Option<String>,
    pub range: Option<String>,
}

pub struct FakeHub {
    pub endpoint: String,
    pub behaviour: Arc<Mutex<Behaviour>>,
    requests: Arc<Mutex<Vec<HubRequest>>>,
}

impl FakeHub {
    /// A hub with one repository, at `main` and its commit.
    pub fn with(repo: &str, files: Files) -> Self {
        let hub = Self::start();
        hub.put(repo, "main", COMMIT, files);
        hub
    }

    fn start() -> Self {
        let listen = || TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let (hub, cdn) = (listen(), listen());
        let address = |listener: &TcpListener| listener.local_addr().expect("an address");
        let (hub_address, cdn_address) = (address(&hub), address(&cdn));
        let behaviour = Arc::new(Mutex::new(Behaviour::default()));
        let requests = Arc::new(Mutex::new(Vec::new()));
        for (host, listener) in [("hub", hub), ("cdn", cdn)] {
            let (behaviour, requests) = (behaviour.clone(), requests.clone());
            std::thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    let _ = answer(stream, host, cdn_address, &behaviour, &requests);
                }
            });
        }
        Self {
            endpoint: format!("http://{hub_address}"),
            behaviour,
            requests,
        }
    }

    pub fn put(&self, repo: &str, revision: &str, commit: &str, files: Files) {
        let mut behaviour = self.behaviour();
        for revision in [revision, commit] {
            let key = (repo.to_owned(), revision.to_owned());
            let value = (commit.to_owned(), files.clone());
            behaviour.repos.insert(key, value);
        }
    }

    pub fn behaviour(&self) -> MutexGuard<'_, Behaviour> {
        lock(&self.behaviour)
    }

    pub fn requests(&self) -> Vec<HubRequest> {
        std::mem::take(&mut lock(&self.requests))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads one request, answers it, and closes the connection.
fn answer(
    mut stream: TcpStream,
    host: &'static str,
    cdn: SocketAddr,
    behaviour: &Mutex<Behaviour>,
    requests: &Mutex<Vec<HubRequest>>,
) -> std::io::Result<()> {
    let request = read_request(&stream, host)?;
    lock(requests).push(request.clone());
    let reply = match host {
        "hub" => hub_reply(&request, cdn, &lock(behaviour)),
        _ => cdn_reply(&request, &mut lock(behaviour)),
    };
    let Reply {
        status,
        headers,
        body,
        sent_bytes,
    } = reply;
    let mut head = format!("HTTP/1.1 {status} X\r\nConnection: close\r\n");
    if !headers.iter().any(|(name, _)| name == "Content-Length") {
        head.push_str(&format!("Content-Length: {}\r\n", body.len()));
    }
    for (name, value) in &headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    stream.write_all(format!("{head}\r\n").as_bytes())?;
    if request.method == "GET" {
        stream.write_all(&body[..sent_bytes.unwrap_or(body.len())])?;
    }
    stream.shutdown(std::net::Shutdown::Write)?;
    // Waits until the client has closed its side, too. Closing earlier would lose data that the client has not read.
    let _ = stream.read(&mut [0]);
    Ok(())
}

fn read_request(stream: &TcpStream, host: &'static str) -> std::io::Result<HubRequest> {
    let mut lines = BufReader::new(stream).lines();
    let first = lines.next().transpose()?.unwrap_or_default();
    let mut words = first.split(' ').map(str::to_owned);
    let mut request = HubRequest {
        host,
        method: words.next().unwrap_or_default(),
        path: words.next().unwrap_or_default(),
        ..HubRequest::default()
    };
    for line in lines {
        let line = line?;
        let Some((name, value)) = line.split_once(": ") else {
            break;
        };
        match name.to_lowercase().as_str() {
            "authorization" => request.authorization = Some(value.to_owned()),
            "range" => request.range = Some(value.to_owned()),
            _ => (),
        }
    }
    Ok(request)
}

struct Reply {
    status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
    /// The connection ends after this many bytes of the body.
    sent_bytes: Option<usize>,
}

impl Reply {
    fn new(status: u16, headers: &[(&str, &str)], body: impl Into<Vec<u8>>) -> Self {
        let headers = headers
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Self {
            status,
            headers: headers.collect(),
            body: body.into(),
            sent_bytes: None,
        }
    }
}

fn hub_reply(request: &HubRequest, cdn: SocketAddr, behaviour: &Behaviour) -> Reply {
    if let Some((status, code)) = behaviour.refusal {
        return Reply::new(status, &[("X-Error-Code", code)], "{}");
    }
    let path = request.path.split('?').next().unwrap_or_default();
    let parts: Vec<&str> = path.trim_start_matches('/').splitn(5, '/').collect();
    let (repo, revision, file) = match parts.as_slice() {
        ["api", "models", owner, name, rest] => {
            let revision = ["revision/", "tree/"]
                .iter()
                .find_map(|prefix| rest.strip_prefix(prefix));
            let revision = revision.unwrap_or_default();
            (
                format!("{owner}/{name}"),
                revision.replace("%2F", "/"),
                None,
            )
        }
        [owner, name, "resolve", revision, file] => (
            format!("{owner}/{name}"),
            (*revision).to_owned(),
            Some(*file),
        ),
        _ => return Reply::new(400, &[], "no path of the hub"),
    };
    let not_found = |code| Reply::new(404, &[("X-Error-Code", code)], "{}");
    if !behaviour.repos.keys().any(|(known, _)| *known == repo) {
        return not_found("RepoNotFound");
    }
    let Some((commit, files)) = behaviour.repos.get(&(repo, revision)) else {
        return not_found("RevisionNotFound");
    };
    let Some(path) = file else {
        // The route by which huggingface_hub lists files.
        if request.path.contains("/tree/") {
            return Reply::new(200, &[], tree(files).to_string());
        }
        let listing = listing(commit, files, behaviour.lists_names_only);
        return Reply::new(200, &[], listing.to_string());
    };
    let Some(file) = files.get(path) else {
        return not_found("EntryNotFound");
    };
    let etag = file.etag();
    if !file.is_large {
        let quoted = format!("\"{etag}\"");
        let length = file.bytes.len().to_string();
        let headers = [
            ("ETag", quoted.as_str()),
            ("X-Repo-Commit", commit.as_str()),
            ("Content-Length", length.as_str()),
        ];
        return Reply::new(200, &headers, file.bytes.clone());
    }
    let port = cdn.port();
    let location = format!("http://localhost:{port}/{commit}/{etag}?{SIGNATURE}");
    if behaviour.hides_links {
        let headers = [("Location", location.as_str()), ("ETag", "\"redirect\"")];
        return Reply::new(302, &headers, "elsewhere");
    }
    let (linked_etag, linked_size) = (format!("\"{etag}\""), file.size().to_string());
    let headers = [
        ("Location", location.as_str()),
        ("X-Linked-Etag", linked_etag.as_str()),
        ("X-Linked-Size", linked_size.as_str()),
        ("X-Repo-Commit", commit.as_str()),
    ];
    Reply::new(302, &headers, "elsewhere")
}

fn listing(commit: &str, files: &Files, names_only: bool) -> Value {
    let siblings = files.iter().map(|(name, file)| {
        let (etag, size) = (file.etag(), file.size());
        match (names_only, file.is_large) {
            (true, _) => json!({"rfilename": name}),
            (false, false) => json!({"rfilename": name, "size": size, "blobId": etag}),
            (false, true) => json!({
                "rfilename": name, "size": size, "blobId": "0".repeat(40),
                "lfs": {"sha256": etag, "size": size, "pointerSize": 130},
            }),
        }
    });
    json!({"id": "x", "sha": commit, "siblings": siblings.collect::<Vec<_>>()})
}

fn tree(files: &Files) -> Value {
    let entries = files.iter().map(|(name, file)| {
        let (etag, size) = (file.etag(), file.size());
        if !file.is_large {
            json!({"type": "file", "path": name, "size": size, "oid": etag})
        } else {
            json!({
                "type": "file", "path": name, "size": size, "oid": "0".repeat(40),
                "lfs": {"oid": etag, "size": size, "pointerSize": 130},
            })
        }
    });
    entries.collect()
}

fn cdn_reply(request: &HubRequest, behaviour: &mut Behaviour) -> Reply {
    let path = request.path.split('?').next().unwrap_or_default();
    let etag = path.rsplit('/').next().unwrap_or_default();
    let all = behaviour
        .repos
        .values()
        .flat_map(|(_, files)| files.values());
    let found = all
        .filter(|file| file.is_large)
        .find(|file| file.etag() == etag);
    let Some(mut bytes) = found.map(|file| file.bytes.clone()) else {
        return Reply::new(404, &[], "");
    };
    if behaviour.damages {
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
    }
    let from = request.range.as_deref().and_then(|range| {
        let from = range.strip_prefix("bytes=")?.strip_suffix('-')?;
        from.parse::<usize>().ok()
    });
    if behaviour.refuses_ranges && from.is_some() {
        return Reply::new(416, &[], "");
    }
    let quoted = format!("\"{etag}\"");
    let all_bytes = bytes.len();
    let mut reply = match from.filter(|_| !behaviour.ignores_ranges) {
        Some(from) => {
            let range = format!("bytes {from}-{}/{all_bytes}", all_bytes - 1);
            Reply::new(206, &[("Content-Range", range.as_str())], &bytes[from..])
        }
        None => Reply::new(200, &[("ETag", quoted.as_str())], bytes),
    };
    if !behaviour.cuts.is_empty() {
        let cut = behaviour.cuts.remove(0);
        reply.sent_bytes = Some(cut.min(reply.body.len()));
    }
    reply
}
