//! Fields of every endpoint that takes prompts: the cache namespace, the priority and the timeouts.

use super::call::CallLimits;
use super::error::ApiError;
use super::openapi::facts::Facts;
use super::openapi::shape::{Shape, seconds, text};
use super::table::Table;
use souffleur_request::RequestTimeouts;
use souffleur_state::cache::namespace::Namespace;

/// The keys of the cache namespace: only prompts with the same keys share cached prefixes.
#[derive(Default)]
pub(super) struct CacheKeys {
    extra_key: Option<String>,
    cache_salt: Option<String>,
}

#[derive(Debug, Default)]
pub(super) struct Scheduling {
    pub(super) priority: Option<i64>,
    pub(super) timeouts: RequestTimeouts,
}

#[derive(Default)]
pub(super) struct Options {
    keys: CacheKeys,
    pub(super) scheduling: Scheduling,
}

impl CacheKeys {
    pub(super) fn table() -> Table<Self> {
        let names = |about: &'static str| {
            move |facts: &Facts| text().up_to(facts.limits.max_extra_key_bytes).about(about)
        };
        Table::new()
            .text(
                "extra_key",
                names("prompts share the prefix cache with those of the same key only"),
                |keys: &mut Self, key| keys.extra_key = key,
            )
            .text(
                "cache_salt",
                names("a secret: prompts share the prefix cache with those of the same salt only"),
                |keys, salt| keys.cache_salt = salt,
            )
    }
}

impl Scheduling {
    pub(super) fn table() -> Table<Self> {
        let priority = "larger values are served first, where the server runs with priorities";
        let waiting =
            "seconds that the request may wait for its first step: then it fails with 503";
        let running = "seconds that the request may run: then it fails with 503";
        Table::new()
            .integer(
                "priority",
                move |shape: Shape| shape.about(priority),
                |scheduling: &mut Self, priority| scheduling.priority = priority,
            )
            .takes(
                "waiting_timeout",
                move |_| seconds().about(waiting),
                |fields, name, _| fields.seconds(name),
                |scheduling, seconds| scheduling.timeouts.waiting_s = seconds,
            )
            .takes(
                "running_timeout",
                move |_| seconds().about(running),
                |fields, name, _| fields.seconds(name),
                |scheduling, seconds| scheduling.timeouts.running_s = seconds,
            )
    }
}

impl Options {
    pub(super) fn table() -> Table<Self> {
        Table::new()
            .and(CacheKeys::table(), |options: &mut Self| &mut options.keys)
            .and(Scheduling::table(), |options| &mut options.scheduling)
    }

    /// The namespace of the call's prompts. Fails for a key longer than the limit.
    pub(super) fn namespace(&self, limits: CallLimits<'_>) -> Result<Namespace, ApiError> {
        let CacheKeys {
            extra_key,
            cache_salt,
        } = &self.keys;
        let namespace = Namespace::new(extra_key.as_deref(), cache_salt.as_deref());
        namespace.validate(limits.request).map_err(ApiError::from)?;
        Ok(namespace)
    }
}
