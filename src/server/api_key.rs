//! An API key in the server's configuration, kept as a hash.

use std::fmt;

use serde::de::{Deserializer, Error};
use serde::{Deserialize, Serialize, Serializer};
use sha2::{Digest, Sha256};

/// Only the hash is kept: printing the configuration cannot reveal the key.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiKey([u8; 32]);

impl ApiKey {
    /// # Errors
    /// The reason if an HTTP header cannot carry the key. The error does not repeat the key.
    pub fn new(key: &str) -> Result<Self, &'static str> {
        if !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_graphic()) {
            Ok(Self(hash(key.as_bytes())))
        } else {
            Err("must be one or more characters of printable ASCII, without spaces")
        }
    }

    /// Compares in constant time.
    pub(super) fn is(&self, given: &[u8]) -> bool {
        let pairs = self.0.into_iter().zip(hash(given));
        pairs.fold(0, |bits, (a, b)| std::hint::black_box(bits | (a ^ b))) == 0
    }
}

fn hash(key: &[u8]) -> [u8; 32] {
    Sha256::digest(key).into()
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApiKey(hidden)")
    }
}

impl Serialize for ApiKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str("hidden")
    }
}

impl<'de> Deserialize<'de> for ApiKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // Parsed as any JSON value: serde's own error would show a value that is not a string.
        let value = serde_json::Value::deserialize(deserializer)?;
        let key = value
            .as_str()
            .ok_or_else(|| D::Error::custom("must be a string"))?;
        Self::new(key).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_distinguished_and_never_shown() {
        let key = ApiKey::new("sk-1234").expect("it is printable");
        assert!(key.is(b"sk-1234"));
        for other in ["", "sk-123", "sk-12345", "SK-1234", "sk-1235"] {
            assert!(!key.is(other.as_bytes()), "{other:?}");
        }
        assert_eq!(format!("{key:?}"), "ApiKey(hidden)");
        let shown = serde_json::to_string(&key).expect("it serializes");
        assert_eq!(shown, "\"hidden\"");
    }

    #[test]
    fn invalid_keys_are_refused_without_being_shown() {
        for bad in ["", "two words", "tab\t", "schlüssel"] {
            let text = serde_json::json!(bad).to_string();
            let error = serde_json::from_str::<ApiKey>(&text).expect_err("the key is invalid");
            assert!(error.to_string().contains("printable ASCII"), "{error}");
            assert!(bad.is_empty() || !error.to_string().contains(bad));
        }
        let error = serde_json::from_str::<ApiKey>("123456").expect_err("a number is not a key");
        assert!(!error.to_string().contains("123456"), "{error}");
    }
}
