//! Reads URLs strictly: a text that two parsers could read differently is refused, so that the host that is checked is
//! the host that is reached.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::error::MediaError;

/// Longer URLs are refused; servers refuse them too.
const MAX_URL_BYTES: usize = 8 << 10;
const MAX_NAME_BYTES: usize = 253;
const MAX_LABEL_BYTES: usize = 63;
const PORTS: [u16; 2] = [80, 443];

/// A host of a URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Host {
    /// A name in lower case, in its ASCII form.
    Name(String),
    /// An address in its usual notation.
    Address(IpAddr),
}

/// An `http` or `https` URL of a form that the fetcher takes.
#[derive(Clone, PartialEq, Eq)]
pub struct MediaUrl {
    is_https: bool,
    host: Host,
    port: u16,
    /// Path and query, beginning with `/`.
    path: String,
}

impl Host {
    /// Reads a host in lower case: a name, four decimal numbers, or an IPv6 address in brackets. `None` for other
    /// notations.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        if let Some(rest) = text.strip_prefix('[') {
            let address: Ipv6Addr = rest.strip_suffix(']')?.parse().ok()?;
            return Some(Self::Address(address.into()));
        }
        if let Ok(address) = text.parse::<Ipv4Addr>() {
            return Some(Self::Address(address.into()));
        }
        is_host_name(text).then(|| Self::Name(text.to_owned()))
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Address(IpAddr::V4(address)) => write!(f, "{address}"),
            Self::Address(IpAddr::V6(address)) => write!(f, "[{address}]"),
        }
    }
}

/// Whether a text is a host name in lower case. One whose last label is a number could be read as an address.
pub(crate) fn is_host_name(text: &str) -> bool {
    let is_label = |label: &str| {
        let is_inner = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_');
        let ends = [label.bytes().next(), label.bytes().next_back()];
        (1..=MAX_LABEL_BYTES).contains(&label.len())
            && label.bytes().all(is_inner)
            && !ends.contains(&Some(b'-'))
    };
    let last = text.rsplit('.').next().unwrap_or_default();
    let digits = last.strip_prefix("0x").unwrap_or(last);
    let is_number = digits.len() < last.len() || digits.bytes().all(|byte| byte.is_ascii_digit());
    text.len() <= MAX_NAME_BYTES && !is_number && text.split('.').all(is_label)
}

impl MediaUrl {
    /// Reads a URL. Its fragment is dropped.
    ///
    /// # Errors
    /// [`MediaError::BadUrl`]: too long, another scheme or port, credentials, characters that URLs do not have, or a
    /// host in another notation.
    pub fn parse(text: &str) -> Result<Self, MediaError> {
        if text.len() > MAX_URL_BYTES {
            let n_bytes = text.len();
            return Err(MediaError::bad_url(format!(
                "has {n_bytes} bytes, and the limit is {MAX_URL_BYTES}: send the image as a data: URL"
            )));
        }
        let is_plain = |byte: u8| byte.is_ascii_graphic() && !br#"\"<>^`{|}"#.contains(&byte);
        if !text.bytes().all(is_plain) {
            return Err(MediaError::bad_url(
                "has blanks, backslashes, control or non-ASCII characters: percent-encode them, and write the host in \
                 its ASCII form",
            ));
        }
        let (scheme, rest) = text.split_once("://").unwrap_or_default();
        let is_https = match scheme.to_ascii_lowercase().as_str() {
            "https" => true,
            "http" => false,
            _ => {
                return Err(MediaError::bad_url(
                    "has none of the schemes https, http and data",
                ));
            }
        };
        let rest = rest.split('#').next().unwrap_or_default();
        let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        let (host, port) = authority_of(authority, is_https)?;
        let slash = if path.starts_with('/') { "" } else { "/" };
        Ok(Self {
            is_https,
            host,
            port,
            path: format!("{slash}{path}"),
        })
    }

    /// The host.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// The port, 80 or 443.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The URL as it is requested.
    pub(crate) fn request(&self) -> String {
        let Self {
            is_https,
            host,
            port,
            path,
        } = self;
        let (scheme, default) = if *is_https {
            ("https", 443)
        } else {
            ("http", 80)
        };
        if *port == default {
            format!("{scheme}://{host}{path}")
        } else {
            format!("{scheme}://{host}:{port}{path}")
        }
    }
}

/// Omits the path and the query, which may have a signature.
impl fmt::Debug for MediaUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MediaUrl({}:{})", self.host, self.port)
    }
}

fn authority_of(text: &str, is_https: bool) -> Result<(Host, u16), MediaError> {
    if text.contains('@') {
        return Err(MediaError::bad_url("has credentials: send one without"));
    }
    let text = text.to_ascii_lowercase();
    // An IPv6 address has colons too, in its brackets.
    let after_brackets = text.rfind(']').map_or(0, |end| end + 1);
    let (host, port) = match text[after_brackets..].find(':') {
        Some(colon) => {
            let (host, port) = text.split_at(after_brackets + colon);
            let digits = &port[1..];
            let is_decimal = digits.bytes().all(|byte| byte.is_ascii_digit());
            let port = digits.parse::<u16>().ok().filter(|_| is_decimal);
            (host, port.filter(|port| PORTS.contains(port)))
        }
        None => (text.as_str(), Some(if is_https { 443 } else { 80 })),
    };
    let port = port.ok_or_else(|| {
        let [http, https] = PORTS;
        MediaError::bad_url(format!("has another port than {http} and {https}"))
    })?;
    let host = Host::parse(host).ok_or_else(|| {
        MediaError::bad_url(
            "has no host, or one in an unusual notation: write a name, four decimal numbers, or an IPv6 address in \
             brackets",
        )
    })?;
    Ok((host, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usual_urls_are_requested_as_they_are() {
        for (text, expected) in [
            (
                "https://a.example/b.png?c=%20d&e=f/g#h",
                "https://a.example/b.png?c=%20d&e=f/g",
            ),
            ("HTTP://A.Example", "http://a.example/"),
            ("http://a.example?b", "http://a.example/?b"),
            ("http://a.example:80/b", "http://a.example/b"),
            ("http://a.example:443/b", "http://a.example:443/b"),
            ("https://a_b.example/~c:d@e", "https://a_b.example/~c:d@e"),
            ("https://1.1.1.1/a", "https://1.1.1.1/a"),
            (
                "https://[2606:4700:0:0::1111]:443/a",
                "https://[2606:4700::1111]/a",
            ),
            (
                "https://xn--bcher-kva.example/a",
                "https://xn--bcher-kva.example/a",
            ),
        ] {
            let url = MediaUrl::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(url.request(), expected);
        }
    }

    #[test]
    fn ambiguous_urls_are_refused() {
        let long = format!("https://a.example/{}", "a".repeat(MAX_URL_BYTES));
        let label = format!("https://{}.example/", "a".repeat(64));
        for text in [
            "",
            "a.example/b.png",
            "/etc/passwd",
            "file:///etc/passwd",
            "ftp://a.example/",
            "gopher://a.example:80/",
            "https:/a.example/",
            "https:///b",
            "https://",
            "https://:443/",
            "https://a.example:8080/",
            "https://a.example:/",
            "https://a.example:+443/",
            "https://a.example:443:80/",
            "https://a.example:65979/",
            "https://user@a.example/",
            "https://user:password@a.example/",
            "https://a.example@evil.example/",
            "https://a.example\\@evil.example/",
            "https://a.example /",
            "https://a.example\t/",
            "https://a.example\r\nHost: b/",
            "https://bücher.example/",
            "https://１２７.0.0.1/",
            "https://a.example/ä",
            "https://a%2eexample/",
            "https://.a.example/",
            "https://a..example/",
            "https://a.example./",
            "https://-a.example/",
            "https://2130706433/",
            "https://0x7f000001/",
            "https://0x7f.1/",
            "https://127.1/",
            "https://127.0.0.01/",
            "https://0177.0.0.1/",
            "https://1.2.3.4.5/",
            "https://a.0x1/",
            "https://[::1/",
            "https://[::1%25eth0]/",
            "https://::1/",
            "https://[v1.a]/",
            &long,
            &label,
        ] {
            let refused = MediaUrl::parse(text).expect_err(text);
            assert_eq!(refused.code(), "media_url", "{text}");
        }
    }
}
