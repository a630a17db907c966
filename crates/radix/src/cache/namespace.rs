//! Cache namespaces: requests share cached KV only within one namespace.

use std::fmt;
use std::sync::Arc;

use souffleur_base::error::RequestError;
use souffleur_base::request_limits::RequestLimits;

/// The part of a cache key before the tokens. Namespaces never share nodes of the tree.
///
/// Weights and settings that also determine K/V are constant in an engine, so a namespace omits them. Stored K/V may
/// outlive the engine: its keys include a [`Fingerprint`](crate::tiers::Fingerprint).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Namespace {
    extra_key: Option<Arc<str>>,
    cache_salt: Option<Arc<str>>,
    long_rotation: bool,
}

impl Namespace {
    /// An empty salt is the same as none; an empty extra key differs from none.
    pub fn new(extra_key: Option<&str>, cache_salt: Option<&str>) -> Self {
        let cache_salt = cache_salt.filter(|salt| !salt.is_empty());
        Self {
            extra_key: extra_key.map(Arc::from),
            cache_salt: cache_salt.map(Arc::from),
            long_rotation: false,
        }
    }

    /// The namespace of sequences with the long rotary embedding of LongRoPE, or of all other sequences: keys cached
    /// with one embedding are invalid with the other.
    pub fn with_long_rotation(self, long_rotation: bool) -> Self {
        Self {
            long_rotation,
            ..self
        }
    }

    pub fn has_long_rotation(&self) -> bool {
        self.long_rotation
    }

    /// The namespaces of both embeddings, for callers that know a prefix but not the length of its sequences.
    pub fn with_and_without_long_rotation(&self) -> [Self; 2] {
        [false, true].map(|is_long| self.clone().with_long_rotation(is_long))
    }

    /// Checks the lengths, because the tree keeps the names as long as anything is cached under them.
    ///
    /// # Errors
    /// [`RequestError::Invalid`] with the name, its length, the limit and what to do.
    pub fn validate(&self, limits: &RequestLimits) -> Result<(), RequestError> {
        let names = [
            ("extra_key", self.extra_key()),
            ("cache_salt", self.cache_salt()),
        ];
        let limit = limits.max_extra_key_bytes;
        for (name, value) in names {
            let bytes = value.map_or(0, str::len);
            if bytes > limit {
                let text = format!("{name} has {bytes} bytes, limit is {limit}: shorten it");
                return Err(RequestError::Invalid(text));
            }
        }
        Ok(())
    }

    /// True for requests without `extra_key` and `cache_salt`, unless their sequences have the long embedding.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    pub fn is_salted(&self) -> bool {
        self.cache_salt.is_some()
    }

    /// The client's `extra_key`, including the adapter's name.
    pub fn extra_key(&self) -> Option<&str> {
        self.extra_key.as_deref()
    }

    /// The client's `cache_salt`, never empty.
    pub fn cache_salt(&self) -> Option<&str> {
        self.cache_salt.as_deref()
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = |part: Option<&str>| part.map_or_else(|| "-".to_owned(), |p| format!("{p:?}"));
        write!(f, "{}/{}", part(self.extra_key()), part(self.cache_salt()))?;
        if self.long_rotation {
            f.write_str("/long")
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_and_other_rotary_embeddings_have_different_namespaces() {
        let plain = Namespace::new(Some("key"), Some("salt"));
        let [short, long] = plain.with_and_without_long_rotation();
        assert_eq!(short, plain);
        assert_ne!(long, plain);
        assert_eq!(long.clone().with_long_rotation(false), plain);
        assert_eq!(
            (long.extra_key(), long.cache_salt()),
            (Some("key"), Some("salt"))
        );
        assert_eq!(long.to_string(), "\"key\"/\"salt\"/long");
        let default = Namespace::default().with_long_rotation(true);
        assert!(!default.is_default() && !default.is_salted());
    }
}
