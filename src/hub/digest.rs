//! Hashes files as the hub's etags do: SHA-256 for files in LFS, git's blob hash (SHA-1) for all others.

use sha1::{Digest, Sha1};
use sha2::Sha256;

/// The longest accepted etag: it becomes a file name in the cache.
const MAX_ETAG_BYTES: usize = 128;

/// The hub's identifier of a file's contents; also the name of the blob in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Etag(String);

impl Etag {
    /// Parses the value of an HTTP header or a JSON field; `None` if it cannot be a file name.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.strip_prefix("W/").unwrap_or(text).trim_matches('"');
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        let fits = !text.is_empty() && text.len() <= MAX_ETAG_BYTES && text.chars().all(is_name);
        fits.then(|| Self(text.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn is_hex_of(&self, digits: usize) -> bool {
        let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        self.0.len() == digits && self.0.bytes().all(is_hex)
    }
}

pub(super) enum Hasher {
    Sha256(Sha256),
    GitBlob(Sha1),
    /// Some mirrors send etags that are not hashes.
    None,
}

impl Hasher {
    pub fn new(etag: &Etag, bytes: u64) -> Self {
        if etag.is_hex_of(64) {
            Self::Sha256(Sha256::new())
        } else if etag.is_hex_of(40) {
            Self::GitBlob(Sha1::new_with_prefix(format!("blob {bytes}\0")))
        } else {
            Self::None
        }
    }

    pub fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(hash) => hash.update(bytes),
            Self::GitBlob(hash) => hash.update(bytes),
            Self::None => (),
        }
    }

    /// The name of the hash function and the digest in hex; `None` if the etag is not a hash.
    pub fn finish(self) -> Option<(&'static str, String)> {
        match self {
            Self::Sha256(hash) => Some(("SHA-256", hex(&hash.finalize()))),
            Self::GitBlob(hash) => Some(("git SHA-1", hex(&hash.finalize()))),
            Self::None => None,
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(etag: &str, text: &[u8]) -> Option<(&'static str, String)> {
        let etag = Etag::parse(etag).expect("the etag is valid");
        let mut hasher = Hasher::new(&etag, text.len() as u64);
        hasher.update(text);
        hasher.finish()
    }

    #[test]
    fn hashes_equal_those_of_git_and_lfs() {
        // `git hash-object` and `sha256sum` of "hello\n".
        let git = "ce013625030ba8dba906f756967f9e9ca394464a";
        let lfs = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03";
        assert_eq!(hash(git, b"hello\n"), Some(("git SHA-1", git.to_owned())));
        assert_eq!(hash(lfs, b"hello\n"), Some(("SHA-256", lfs.to_owned())));
        assert_eq!(hash("mirror-1", b"hello\n"), None);
    }

    #[test]
    fn etags_are_valid_file_names() {
        assert_eq!(Etag::parse("W/\"ab-1\""), Etag::parse("ab-1"));
        for etag in ["", "\"\"", "../x", "a/b", "a.b", &"a".repeat(129)] {
            assert_eq!(Etag::parse(etag), None, "{etag}");
        }
    }
}
