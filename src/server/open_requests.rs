//! Lists the requests of one server that are in flight, so that they can be aborted by id.

use std::sync::{Arc, Mutex, PoisonError};

use rustc_hash::FxHashMap;

use souffleur_engine::Canceller;

/// The cancellers of all requests in flight. Workers share the list, so any connection can abort any request.
#[derive(Clone, Default)]
pub(super) struct OpenRequests(Arc<Mutex<Entries>>);

#[derive(Default)]
struct Entries {
    next_key: u64,
    cancellers: FxHashMap<u64, Canceller>,
}

impl OpenRequests {
    /// Lists a request until the guard is dropped.
    pub(super) fn list(&self, canceller: Canceller) -> ListGuard {
        let key = self.with(|entries| {
            let key = entries.next_key;
            entries.next_key += 1;
            entries.cancellers.insert(key, canceller);
            key
        });
        ListGuard {
            open_requests: self.clone(),
            key,
        }
    }

    /// Cancels the requests whose ids match `id` and returns their number.
    pub(super) fn cancel(&self, id: &str) -> usize {
        self.cancel_if(|rid| matches_id(id, rid))
    }

    pub(super) fn cancel_all(&self) -> usize {
        self.cancel_if(|_| true)
    }

    fn cancel_if(&self, matches: impl Fn(&str) -> bool) -> usize {
        let matching: Vec<Canceller> = self.with(|entries| {
            let cancellers = entries.cancellers.values();
            cancellers
                .filter(|canceller| matches(canceller.rid().as_str()))
                .cloned()
                .collect()
        });
        matching.iter().for_each(Canceller::cancel);
        matching.len()
    }

    fn with<T>(&self, work: impl FnOnce(&mut Entries) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Returns whether `rid` is `id`, or the id of one of its samples or batch members: `id-1`, `id-0-1`.
pub(super) fn matches_id(id: &str, rid: &str) -> bool {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    match rid.strip_prefix(id) {
        Some("") => true,
        Some(rest) => rest
            .strip_prefix('-')
            .is_some_and(|rest| rest.split('-').all(is_number)),
        None => false,
    }
}

pub(super) struct ListGuard {
    open_requests: OpenRequests,
    key: u64,
}

impl Drop for ListGuard {
    fn drop(&mut self) {
        self.open_requests
            .with(|entries| entries.cancellers.remove(&self.key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_matches_its_samples_but_not_longer_names() {
        let rids = ["a", "a-0", "a-1-2", "ab", "a-x", "a-", "a-1-", "b"];
        let found: Vec<&str> = rids
            .into_iter()
            .filter(|rid| matches_id("a", rid))
            .collect();
        assert_eq!(found, ["a", "a-0", "a-1-2"]);
    }
}
