//! Cache namespaces: prefixes are shared only inside one.

use std::sync::Arc;

/// `extra_key` (for instance a LoRA's name) and `cache_salt` (for instance a tenant's).
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Namespace {
    extra_key: Option<Arc<str>>,
    cache_salt: Option<Arc<str>>,
}

impl Namespace {
    /// A namespace; an empty salt is none, as in SGLang.
    pub fn new(extra_key: Option<Arc<str>>, cache_salt: Option<Arc<str>>) -> Self {
        Self { extra_key, cache_salt: cache_salt.filter(|salt| !salt.is_empty()) }
    }

    /// The extra key.
    pub fn extra_key(&self) -> Option<&str> {
        self.extra_key.as_deref()
    }

    /// The salt.
    pub fn cache_salt(&self) -> Option<&str> {
        self.cache_salt.as_deref()
    }
}
