//! Chooses the replica of a request by its tokens in the caches of the replicas, as the Router actor does.

use souffleur_base::ids::{IntakeId, UnitId};
use souffleur_state::cache::namespace::Namespace;
use souffleur_state::cache::radix_tree::RadixTree;
use souffleur_state::router::{Prompt, RouterState};

/// A request to be routed.
pub(super) struct Arrival<'a> {
    pub request: IntakeId,
    pub tokens: &'a [u32],
    pub now_s: f64,
}

/// Routes a request. `caches` has the cache of each replica, all of which are live.
pub(super) fn route<'a>(
    router: &mut RouterState,
    caches: impl Iterator<Item = &'a RadixTree>,
    arrival: &Arrival<'_>,
) -> UnitId {
    let namespace = Namespace::default();
    let peek = |cache: &RadixTree| Some(cache.peek(&namespace, arrival.tokens));
    let cached: Vec<Option<usize>> = if router.wants_prefixes() {
        caches.map(peek).collect()
    } else {
        Vec::new()
    };
    let prompt = Prompt {
        namespace: &namespace,
        tokens: arrival.tokens,
        bypasses_cache: false,
    };
    let unit = router.route(arrival.request, &prompt, &cached, arrival.now_s);
    unit.expect("all replicas are live")
}
