//! Compares the host names in a request with the server's own names.

use std::net::IpAddr;

use actix_web::dev::RequestHead;
use actix_web::http::header;
use actix_web::http::uri::Authority;

use crate::config::ServerConfig;

/// The hosts that a request names, with their ports: every `Host` header, and the host of a target in absolute form.
/// Browsers always name a host; HTTP/1.0 clients may not.
pub(super) fn of(head: &RequestHead) -> impl Iterator<Item = &[u8]> {
    let named = head.headers.get_all(header::HOST);
    let target = head.uri.authority();
    let target = target.map(|authority| authority.as_str().as_bytes());
    named.map(|host| host.as_bytes()).chain(target)
}

/// Returns whether `host` is a name that other sites cannot point at this server: an IP address, `localhost`, the
/// configured host or an allowed one.
pub(super) fn is_own(host: &[u8], config: &ServerConfig) -> bool {
    let allowed = &config.allowed_hosts;
    if allowed.iter().any(|entry| entry == "*") {
        return true;
    }
    let Ok(authority) = Authority::try_from(host) else {
        return false;
    };
    if authority.as_str().contains('@') {
        return false;
    }
    let name = authority.host();
    let is_listed = |entry: &String| {
        entry.eq_ignore_ascii_case(name) || entry.eq_ignore_ascii_case(authority.as_str())
    };
    is_address(name)
        || name.eq_ignore_ascii_case("localhost")
        || name.eq_ignore_ascii_case(&config.host)
        || allowed.iter().any(is_listed)
}

fn is_address(name: &str) -> bool {
    let in_brackets = name
        .strip_prefix('[')
        .and_then(|name| name.strip_suffix(']'));
    in_brackets.unwrap_or(name).parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_known_names_are_own_hosts() {
        let config = ServerConfig {
            host: "gpu-box".to_owned(),
            allowed_hosts: vec!["Souffleur.internal".to_owned(), "proxy:8443".to_owned()],
            ..ServerConfig::default()
        };
        for own in [
            "127.0.0.1",
            "127.0.0.1:30000",
            "192.168.1.7:80",
            "[::1]",
            "[::1]:30000",
            "localhost",
            "LocalHost:5173",
            "gpu-box:30000",
            "souffleur.internal",
            "souffleur.INTERNAL:1234",
            "proxy:8443",
        ] {
            assert!(is_own(own.as_bytes(), &config), "{own}");
        }
        for other in [
            "",
            "evil.example",
            "localhost.evil.example",
            "evil.example:30000",
            "127.0.0.1.evil.example",
            "127.0.0.1@evil.example",
            "evil.example@127.0.0.1",
            "evil.example#127.0.0.1",
            "gpu-box.evil.example",
            "proxy",
            "proxy:443",
            "::1:30000",
            "a b",
            "\u{fc}.example",
        ] {
            assert!(!is_own(other.as_bytes(), &config), "{other}");
        }
        assert!(!is_own(b"\xff", &config));
        let any = ServerConfig {
            allowed_hosts: vec!["*".to_owned()],
            ..config
        };
        assert!(is_own(b"evil.example", &any));
    }
}
