//! The hosts from which an operator lets requests fetch media.

use crate::error::MediaError;
use crate::url::{Host, is_host_name};

/// A list of host names, and of `*.` suffixes for the names below a host. Empty: nothing is fetched.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllowedDomains {
    /// In lower case.
    names: Vec<String>,
    /// With the dot before the name.
    suffixes: Vec<String>,
}

impl AllowedDomains {
    /// Reads entries such as `images.example.com` and `*.example.com`, which has the names below `example.com` but not
    /// `example.com`. Addresses may be listed too.
    ///
    /// # Errors
    /// [`MediaError::BadDomain`].
    pub fn parse(entries: &[impl AsRef<str>]) -> Result<Self, MediaError> {
        let mut domains = Self::default();
        for entry in entries {
            domains.add(entry.as_ref())?;
        }
        Ok(domains)
    }

    fn add(&mut self, entry: &str) -> Result<(), MediaError> {
        let bad = |reason: &'static str| MediaError::BadDomain {
            entry: entry.to_owned(),
            reason,
        };
        let lower = entry.trim().to_ascii_lowercase();
        if !lower.is_ascii() {
            return Err(bad("write it in its ASCII form, with xn--"));
        }
        let name = lower.strip_prefix("*.").unwrap_or(&lower);
        let is_suffix = name.len() < lower.len();
        if is_suffix && !name.contains('.') {
            return Err(bad(
                "a wildcard needs a name with a dot, such as *.example.com",
            ));
        }
        if is_suffix && is_host_name(name) {
            self.suffixes.push(format!(".{name}"));
            return Ok(());
        }
        match Host::parse(name) {
            Some(host) if !is_suffix => self.names.push(host.to_string()),
            _ => {
                return Err(bad(
                    "write a name alone, such as images.example.com, without scheme, port and path",
                ));
            }
        }
        Ok(())
    }

    /// Whether nothing is allowed.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty() && self.suffixes.is_empty()
    }

    pub(crate) fn allows(&self, host: &Host) -> bool {
        let is_below = |name: &str| self.suffixes.iter().any(|suffix| name.ends_with(suffix));
        let text = host.to_string();
        self.names.contains(&text) || matches!(host, Host::Name(name) if is_below(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_match_whole_and_suffixes_below() {
        let domains = [
            "Images.example.com",
            "*.cdn.example.net",
            "1.1.1.1",
            "[2606:4700::1111]",
        ];
        let domains = AllowedDomains::parse(&domains).expect("hosts");
        for (host, expected) in [
            ("images.example.com", true),
            ("a.images.example.com", false),
            ("example.com", false),
            ("evilimages.example.com", false),
            ("images.example.com.evil.org", false),
            ("a.cdn.example.net", true),
            ("a.b.cdn.example.net", true),
            ("cdn.example.net", false),
            ("evilcdn.example.net", false),
            ("1.1.1.1", true),
            ("1.1.1.2", false),
            ("[2606:4700:0::1111]", true),
        ] {
            let parsed = Host::parse(host).expect("a host");
            assert_eq!(domains.allows(&parsed), expected, "{host}");
        }
        assert!(!domains.is_empty());
        let none: [&str; 0] = [];
        assert!(AllowedDomains::parse(&none).expect("none").is_empty());
    }

    #[test]
    fn other_entries_are_refused() {
        for entry in [
            "",
            "*",
            "*.com",
            "*.",
            "**.example.com",
            "a.*.example.com",
            "https://example.com",
            "example.com:443",
            "example.com/a",
            "user@example.com",
            "example.com.",
            "bücher.example",
            "0x7f.1",
            "127.1",
            "*.1.1.1.1",
        ] {
            let error = AllowedDomains::parse(&[entry]).expect_err(entry);
            assert!(error.to_string().contains(entry), "{error}");
        }
    }
}
