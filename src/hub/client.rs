//! Sends requests to the Hugging Face hub, and follows redirects to other hosts.
//!
//! Redirects are followed here and not by the HTTP client, because only the endpoint's origin may receive the token.

use serde::Deserialize;
use ureq::http::header::{
    AUTHORIZATION, CONTENT_RANGE, HeaderMap, HeaderValue, LOCATION, RANGE, USER_AGENT,
};
use ureq::http::{Response, StatusCode, Uri};
use ureq::tls::TlsConfig;
use ureq::{Agent, Body};

use super::digest::Etag;
use super::error::HubError;
use super::id::RepoId;
use super::roots;
use super::settings::HubSettings;

const CONNECT_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(10);
const MAX_REDIRECTS: usize = 8;
const MAX_LISTING_BYTES: u64 = 64 << 20;
const AGENT: &str = concat!("souffleur/", env!("CARGO_PKG_VERSION"));

/// A file of a repository, as the hub describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RemoteFile {
    pub path: String,
    pub bytes: u64,
    pub etag: Etag,
}

#[derive(Debug, Deserialize)]
pub(super) struct Listing {
    #[serde(rename = "sha")]
    pub commit: String,
    #[serde(default)]
    siblings: Vec<Sibling>,
}

#[derive(Debug, Deserialize)]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    #[serde(rename = "blobId")]
    blob_id: Option<String>,
    lfs: Option<Lfs>,
}

#[derive(Debug, Deserialize)]
struct Lfs {
    sha256: Option<String>,
    size: Option<u64>,
}

impl Listing {
    pub fn names(&self) -> std::collections::BTreeSet<String> {
        let names = self.siblings.iter().map(|file| file.rfilename.clone());
        names.collect()
    }

    /// Size and hash of a file, if the listing has both.
    fn describe(&self, path: &str) -> Option<RemoteFile> {
        let file = self.siblings.iter().find(|file| file.rfilename == path)?;
        let (bytes, etag) = match &file.lfs {
            Some(lfs) => (lfs.size.or(file.size), lfs.sha256.as_deref()),
            None => (file.size, file.blob_id.as_deref()),
        };
        Some(RemoteFile {
            path: path.to_owned(),
            bytes: bytes?,
            etag: Etag::parse(etag?)?,
        })
    }
}

/// The bytes of a file from offset `from`, which is 0 if the host does not support range requests.
pub(super) struct Part {
    pub from: u64,
    pub body: Body,
}

pub(super) struct Client<'a> {
    settings: &'a HubSettings,
    agent: Agent,
    repo: &'a RepoId,
    revision: &'a str,
}

impl<'a> Client<'a> {
    pub fn new(settings: &'a HubSettings, repo: &'a RepoId, revision: &'a str) -> Self {
        let idle = Some(settings.idle_timeout);
        let tls = TlsConfig::builder().root_certs(roots::of(settings.roots.as_deref()));
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .timeout_recv_response(idle)
            .timeout_per_read(idle)
            .tls_config(tls.build());
        Self {
            settings,
            agent: config.build().new_agent(),
            repo,
            revision,
        }
    }

    pub fn listing(&self) -> Result<Listing, HubError> {
        let (endpoint, repo) = (&self.settings.endpoint, self.repo);
        let revision = escaped(self.revision, &[]);
        let url = format!("{endpoint}/api/models/{repo}/revision/{revision}?blobs=true");
        let response = self.get(&url, None)?;
        let status = response.status();
        if status != StatusCode::OK {
            return Err(self.refusal(status, response.headers(), &repo.to_string()));
        }
        let protocol = |reason: String| HubError::Protocol {
            host: host_of(&url),
            what: repo.to_string(),
            reason,
        };
        let body = response
            .into_body()
            .into_with_config()
            .limit(MAX_LISTING_BYTES);
        let body = body
            .read_to_vec()
            .map_err(|error| unreachable_host(&url, &explained(&error)))?;
        let listing: Listing =
            serde_json::from_slice(&body).map_err(|error| protocol(error.to_string()))?;
        if super::cache::is_commit(&listing.commit) {
            Ok(listing)
        } else {
            Err(protocol(format!("{:?} is not a commit", listing.commit)))
        }
    }

    pub fn describe(&self, listing: &Listing, path: &str) -> Result<RemoteFile, HubError> {
        if let Some(file) = listing.describe(path) {
            return Ok(file);
        }
        let mut url = self.url(&listing.commit, path);
        let (mut etag, mut bytes) = (None, None);
        for _ in 0..=MAX_REDIRECTS {
            let response = self.call(self.agent.head(&url), &url, None)?;
            let (status, headers) = (response.status(), response.headers());
            if !status.is_success() && !status.is_redirection() {
                return Err(self.refusal(status, headers, path));
            }
            let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
            let size = |name: &str| text(name).and_then(|size| size.parse::<u64>().ok());
            etag = etag.or_else(|| text("x-linked-etag").and_then(Etag::parse));
            bytes = bytes.or_else(|| size("x-linked-size"));
            // The length and etag of a redirect are not those of the file.
            if status.is_success() {
                etag = etag.or_else(|| text("etag").and_then(Etag::parse));
                bytes = bytes.or_else(|| size("content-length"));
            }
            if let (Some(etag), Some(bytes)) = (&etag, bytes) {
                return Ok(RemoteFile {
                    path: path.to_owned(),
                    bytes,
                    etag: etag.clone(),
                });
            }
            let Some(next) = redirection(&url, &response)? else {
                break;
            };
            url = next;
        }
        Err(HubError::Protocol {
            host: host_of(&url),
            what: path.to_owned(),
            reason: "the response lacks the size or the hash of the file".to_owned(),
        })
    }

    pub fn part(&self, commit: &str, file: &RemoteFile, from: u64) -> Result<Part, HubError> {
        let url = self.url(commit, &file.path);
        let response = self.get(&url, (from > 0).then_some(from))?;
        let status = response.status();
        let from = match status {
            StatusCode::OK => 0,
            StatusCode::PARTIAL_CONTENT if begins_at(response.headers(), from) => from,
            StatusCode::PARTIAL_CONTENT => {
                return Err(HubError::Protocol {
                    host: host_of(&url),
                    what: file.path.clone(),
                    reason: format!("the response does not start at byte {from}"),
                });
            }
            _ => return Err(self.refusal(status, response.headers(), &file.path)),
        };
        Ok(Part {
            from,
            body: response.into_body(),
        })
    }

    fn url(&self, commit: &str, path: &str) -> String {
        let (endpoint, repo) = (&self.settings.endpoint, self.repo);
        format!(
            "{endpoint}/{repo}/resolve/{commit}/{}",
            escaped(path, &['/'])
        )
    }

    /// Sends a GET request, and follows redirects.
    fn get(&self, url: &str, from: Option<u64>) -> Result<Response<Body>, HubError> {
        let mut url = url.to_owned();
        for _ in 0..=MAX_REDIRECTS {
            let response = self.call(self.agent.get(&url), &url, from)?;
            let Some(next) = redirection(&url, &response)? else {
                return Ok(response);
            };
            url = next;
        }
        let reason = format!("it redirects more than {MAX_REDIRECTS} times");
        Err(unreachable_host(&url, &reason))
    }

    /// Sends one request, with the token if the URL has the endpoint's origin.
    fn call(
        &self,
        request: ureq::RequestBuilder<ureq::typestate::WithoutBody>,
        url: &str,
        from: Option<u64>,
    ) -> Result<Response<Body>, HubError> {
        let mut request = request.header(USER_AGENT, AGENT);
        if let Some(from) = from {
            request = request.header(RANGE, format!("bytes={from}-"));
        }
        let token = self.settings.token.as_ref();
        if let Some(token) = token.filter(|_| is_same_origin(url, &self.settings.endpoint)) {
            let bearer = HeaderValue::try_from(token.bearer());
            let mut bearer = bearer.expect("a token is printable");
            bearer.set_sensitive(true);
            request = request.header(AUTHORIZATION, bearer);
        }
        let called = request.call();
        called.map_err(|error| unreachable_host(url, &explained(&error)))
    }

    /// Maps an HTTP status, and the hub's `x-error-code` if there is one, to an error.
    fn refusal(&self, status: StatusCode, headers: &HeaderMap, what: &str) -> HubError {
        let code = headers
            .get("x-error-code")
            .and_then(|code| code.to_str().ok());
        let repo = self.repo.clone();
        let endpoint = self.settings.endpoint.clone();
        let has_token = self.settings.token.is_some();
        match (status.as_u16(), code) {
            (401 | 403, Some("GatedRepo")) => HubError::Gated {
                repo,
                endpoint,
                has_token,
            },
            // The hub hides private repositories from clients without access.
            (401 | 403, _) => HubError::NoAccess {
                repo,
                endpoint,
                has_token,
            },
            (404, Some("RevisionNotFound")) => HubError::NoRevision {
                repo,
                revision: self.revision.to_owned(),
            },
            (404, Some("EntryNotFound")) => HubError::Unsuitable {
                repo,
                reason: format!("does not contain {what}"),
            },
            (404, _) => HubError::NoRepository {
                repo,
                endpoint,
                has_token,
            },
            (status, _) => HubError::Status {
                host: host_of(&endpoint),
                status,
                what: what.to_owned(),
            },
        }
    }
}

fn begins_at(headers: &HeaderMap, from: u64) -> bool {
    let range = headers
        .get(CONTENT_RANGE)
        .and_then(|range| range.to_str().ok());
    let start = range.and_then(|range| range.strip_prefix("bytes ")?.split('-').next());
    start.and_then(|start| start.trim().parse().ok()) == Some(from)
}

fn redirection(url: &str, response: &Response<Body>) -> Result<Option<String>, HubError> {
    if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
        return Ok(None);
    }
    let location = response.headers().get(LOCATION);
    let location = location.and_then(|location| location.to_str().ok());
    let next = location.and_then(|location| resolved(url, location));
    let next = next.ok_or_else(|| unreachable_host(url, "it redirects to an invalid URL"))?;
    if url.starts_with("https://") && !next.starts_with("https://") {
        Err(unreachable_host(
            url,
            &format!("it redirects from https to http, to {}", host_of(&next)),
        ))
    } else {
        Ok(Some(next))
    }
}

fn resolved(url: &str, location: &str) -> Option<String> {
    if location.starts_with("http://") || location.starts_with("https://") {
        return Some(location.to_owned());
    }
    let uri: Uri = url.parse().ok()?;
    let (scheme, authority) = (uri.scheme_str()?, uri.authority()?);
    if let Some(rest) = location.strip_prefix("//") {
        return Some(format!("{scheme}://{rest}"));
    }
    let is_path = location.starts_with('/');
    is_path.then(|| format!("{scheme}://{authority}{location}"))
}

fn is_same_origin(url: &str, endpoint: &str) -> bool {
    let origin = |text: &str| {
        let uri: Uri = text.parse().ok()?;
        let scheme = uri.scheme_str()?.to_ascii_lowercase();
        let port = uri
            .port_u16()
            .unwrap_or(if scheme == "https" { 443 } else { 80 });
        Some((scheme, uri.host()?.to_ascii_lowercase(), port))
    };
    origin(url).is_some_and(|url| Some(url) == origin(endpoint))
}

/// Host and port of a URL. Errors omit the rest: signed URLs and passwords are secrets.
fn host_of(url: &str) -> String {
    let uri = url.parse::<Uri>().unwrap_or_default();
    match (uri.host(), uri.port_u16()) {
        (Some(host), Some(port)) => format!("{host}:{port}"),
        (Some(host), None) => host.to_owned(),
        (None, _) => "the hub".to_owned(),
    }
}

pub(super) fn unreachable_host(url: &str, reason: &str) -> HubError {
    HubError::Unreachable {
        host: host_of(url),
        reason: reason.to_owned(),
    }
}

/// The text of a client error without the URL, which may be signed.
fn explained(error: &ureq::Error) -> String {
    match error {
        ureq::Error::BadUri(_) => "its URL is invalid".to_owned(),
        error => error.to_string(),
    }
}

/// Percent-encodes a text for a path, except for unreserved characters and those in `kept`.
fn escaped(text: &str, kept: &[char]) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        let c = char::from(byte);
        if c.is_ascii_alphanumeric() || "-_.~".contains(c) || kept.contains(&c) {
            escaped.push(c);
        } else {
            escaped.push_str(&format!("%{byte:02X}"));
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_is_for_one_origin() {
        let hub = "https://hub.example/mirror";
        for (url, expected) in [
            ("https://hub.example/a", true),
            ("https://HUB.example:443/a", true),
            ("http://hub.example/a", false),
            ("https://hub.example:8443/a", false),
            ("https://cdn.hub.example/a", false),
            ("https://hub.example.evil/a", false),
            ("https://hub.example@evil/a", false),
        ] {
            assert_eq!(is_same_origin(url, hub), expected, "{url}");
        }
    }

    #[test]
    fn locations_are_resolved_against_the_previous_url() {
        let url = "http://h:1/a/b";
        assert_eq!(resolved(url, "/c?d").as_deref(), Some("http://h:1/c?d"));
        assert_eq!(resolved(url, "//i/c").as_deref(), Some("http://i/c"));
        assert_eq!(resolved(url, "https://i/c").as_deref(), Some("https://i/c"));
        assert_eq!(resolved(url, "ftp://i/c"), None);
    }

    #[test]
    fn errors_show_host_and_port_only() {
        for (url, expected) in [
            ("https://me:pw@hub.example:8443/a?b", "hub.example:8443"),
            ("https://me@hub.example/a", "hub.example"),
            ("http://[::1]:80/a", "[::1]:80"),
            ("/a", "the hub"),
            ("a b", "the hub"),
        ] {
            assert_eq!(host_of(url), expected, "{url}");
        }
    }

    #[test]
    fn paths_are_escaped() {
        assert_eq!(escaped("refs/pr/1", &[]), "refs%2Fpr%2F1");
        assert_eq!(escaped("a b/c#é.gguf", &['/']), "a%20b/c%23%C3%A9.gguf");
    }
}
