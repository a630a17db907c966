//! Counts of cached prompt tokens by the memory tier that held them, in SGLang's form.

use serde::Serialize;

use super::openapi::shape::{Shape, count, object, text};
use souffleur_request::Usage;

/// SGLang's name for a KV store of files.
const BACKEND: &str = "file";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct CachedTokens {
    device: u32,
    host: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    storage: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    storage_backend: Option<&'static str>,
}

impl CachedTokens {
    pub(super) fn of(usage: &Usage) -> Self {
        let storage = usage.loaded_tokens;
        let is_stored = storage > 0;
        Self {
            device: usage.cached_tokens.saturating_sub(storage),
            host: 0,
            storage: is_stored.then_some(storage),
            storage_backend: is_stored.then_some(BACKEND),
        }
    }

    /// `None` if no token came from the KV store: the total of cached tokens is enough then.
    pub(super) fn if_stored(usage: &Usage) -> Option<Self> {
        (usage.loaded_tokens > 0).then(|| Self::of(usage))
    }

    pub(super) fn shape() -> Shape {
        let stored = count().about("if any came from the KV store");
        let cached = object().has("device", count()).has("host", count());
        let cached = cached.may_have("storage", stored);
        cached.may_have("storage_backend", text()).shape()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{json, to_value};

    use super::*;

    #[test]
    fn cached_tokens_are_counted_by_their_memory_tier() {
        let usage = |cached_tokens, loaded_tokens| Usage {
            prompt_tokens: 300,
            completion_tokens: 1,
            reasoning_tokens: 0,
            cached_tokens,
            loaded_tokens,
            num_retractions: 0,
            drafts: None,
            prediction: None,
        };
        let value = |cached| to_value(cached).expect("plain data");
        let whole = value(CachedTokens::of(&usage(200, 0)));
        assert_eq!(whole, json!({"device": 200, "host": 0}));
        assert_eq!(CachedTokens::if_stored(&usage(200, 0)), None);
        let expected = json!({"device": 72, "host": 0, "storage": 128, "storage_backend": "file"});
        assert_eq!(value(CachedTokens::of(&usage(200, 128))), expected);
        assert!(CachedTokens::if_stored(&usage(200, 128)).is_some());
    }
}
