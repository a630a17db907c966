//! Tests of the choice of a replica: each rule, and the cached tokens of a whole trace.

mod load;
mod trace;
mod world;

use souffleur_base::ids::{IntakeId, UnitId};
use souffleur_state::cache::namespace::Namespace;
use souffleur_state::router::{BLOCK_TOKENS, HIDDEN_S, LoadBalance, Prompt, RouterState};

/// Long enough for the cache to show what was routed.
const LATER_S: f64 = 10.0 * HIDDEN_S;

/// Tokens that differ from those of every other `family`.
fn tokens(family: u32, n: usize) -> Vec<u32> {
    (0..n as u32).map(|at| family * 1_000_000 + at).collect()
}

/// The first tokens, then `n` tokens of `family`.
fn after(first: &[u32], family: u32, n: usize) -> Vec<u32> {
    [first, &tokens(family, n)].concat()
}

/// A router, with ids for its requests.
struct Desk {
    router: RouterState,
    namespace: Namespace,
    n_requests: u64,
    now_s: f64,
}

impl Desk {
    fn new(method: LoadBalance, n_replicas: u32) -> Self {
        Self {
            router: RouterState::new(method, n_replicas),
            namespace: Namespace::default(),
            n_requests: 0,
            now_s: 0.0,
        }
    }

    fn try_route(&mut self, tokens: &[u32], cached: &[Option<usize>]) -> (IntakeId, Option<u32>) {
        let request = IntakeId::new(self.n_requests);
        self.n_requests += 1;
        let prompt = Prompt {
            namespace: &self.namespace,
            tokens,
            bypasses_cache: false,
        };
        let unit = self.router.route(request, &prompt, cached, self.now_s);
        assert_eq!(self.router.unit_of(request), unit);
        (request, unit.map(UnitId::get))
    }

    /// Routes a prompt of which each replica has cached this many tokens.
    fn route(&mut self, tokens: &[u32], cached: &[usize]) -> (IntakeId, u32) {
        let cached: Vec<_> = cached.iter().copied().map(Some).collect();
        let (request, unit) = self.try_route(tokens, &cached);
        (request, unit.expect("a replica is live"))
    }

    fn run(&mut self, request: IntakeId) {
        self.router.prefilled(request, self.now_s);
        self.router.ended(request);
    }

    fn owed(&self) -> Vec<usize> {
        let loads = self.router.load().into_iter();
        loads.map(|load| load.owed_tokens).collect()
    }
}

#[test]
fn methods_have_the_names_of_the_flag() {
    for method in [
        LoadBalance::Prefix,
        LoadBalance::RoundRobin,
        LoadBalance::TotalTokens,
    ] {
        let name = serde_json::to_value(method).expect("a name");
        assert_eq!(name, method.as_str());
        let read: LoadBalance = serde_json::from_value(name).expect("it was written");
        assert_eq!(read, method);
    }
    assert_eq!(LoadBalance::default().as_str(), "prefix");
    assert_eq!(LoadBalance::RoundRobin.as_str(), "round_robin");
    assert_eq!(LoadBalance::TotalTokens.as_str(), "total_tokens");
}

#[test]
fn the_replica_that_owes_least_is_chosen_and_ties_go_to_the_lowest_number() {
    let mut desk = Desk::new(LoadBalance::Prefix, 3);
    assert_eq!(desk.route(&tokens(1, 1000), &[0; 3]).1, 0);
    assert_eq!(desk.route(&tokens(2, 600), &[0; 3]).1, 1);
    assert_eq!(desk.route(&tokens(3, 300), &[0; 3]).1, 2);
    assert_eq!(desk.route(&tokens(4, 100), &[0; 3]).1, 2);
    assert_eq!(desk.owed(), [1000, 600, 400]);
}

#[test]
fn of_equal_replicas_the_one_with_the_fewest_requests_is_chosen() {
    let mut desk = Desk::new(LoadBalance::Prefix, 2);
    let (first, _) = desk.route(&tokens(1, 10), &[0; 2]);
    let (second, unit) = desk.route(&tokens(2, 10), &[0; 2]);
    assert_eq!(unit, 1);
    desk.router.prefilled(first, desk.now_s);
    desk.run(second);
    assert_eq!(desk.route(&tokens(3, 10), &[0; 2]).1, 1);
}

#[test]
fn a_cached_prefix_is_weighed_against_owed_and_recent_work() {
    let mut desk = Desk::new(LoadBalance::Prefix, 2);
    assert_eq!(desk.route(&tokens(1, 3000), &[0, 900]).1, 1);
    let mut desk = Desk::new(LoadBalance::Prefix, 2);
    assert_eq!(desk.route(&tokens(1, 1200), &[0, 0]).1, 0);
    // A third of 1,200 owed tokens, 390 for recent work, and 50 to compute, against 1,000.
    assert_eq!(desk.route(&tokens(2, 1000), &[950, 0]).1, 0);
    // A third of 1,250, 406 and 200, against 1,000.
    assert_eq!(desk.route(&tokens(3, 1000), &[800, 0]).1, 1);
    assert_eq!(desk.owed(), [1250, 1000]);
}

#[test]
fn prefilled_tokens_are_no_longer_owed() {
    let mut desk = Desk::new(LoadBalance::Prefix, 2);
    let (first, _) = desk.route(&tokens(1, 1000), &[400, 0]);
    assert_eq!(desk.owed(), [600, 0]);
    desk.router.prefilled(first, 0.0);
    desk.router.prefilled(first, 0.0);
    assert_eq!(desk.owed(), [0, 0]);
    desk.router.generated(first, 3);
    assert_eq!(desk.router.load()[0].total_tokens, 1003);
    desk.router.ended(first);
    desk.router.ended(first);
    let load = desk.router.load()[0];
    assert_eq!(
        (load.requests, load.owed_tokens, load.total_tokens),
        (0, 0, 0)
    );
}

#[test]
fn tokens_that_were_evicted_before_their_request_ran_count_as_work() {
    let choose = |computed: Option<usize>| {
        let mut desk = Desk::new(LoadBalance::Prefix, 2);
        let (first, unit) = desk.route(&tokens(1, 3000), &[2900, 0]);
        assert_eq!(unit, 0);
        if let Some(computed) = computed {
            desk.router.computed(first, computed);
            desk.router.computed(first, computed);
        }
        desk.run(first);
        desk.route(&tokens(2, 1000), &[300, 0]).1
    };
    // 700 tokens to compute, 12 and 20 for the 100 tokens of recent work, against 1,000.
    assert_eq!(choose(None), 0);
    assert_eq!(choose(Some(100)), 0);
    // 700, and 375 for the 3,000 tokens of recent work, are more than 1,000.
    assert_eq!(choose(Some(3000)), 1);
}

#[test]
fn a_whole_cached_prompt_still_computes_one_token() {
    let mut desk = Desk::new(LoadBalance::Prefix, 2);
    desk.route(&tokens(1, 128), &[0, 128]);
    assert_eq!(desk.owed(), [0, 1]);
}

#[test]
fn a_common_prefix_attracts_requests_until_the_load_is_too_uneven() {
    let mut desk = Desk::new(LoadBalance::Prefix, 2);
    let system = tokens(0, 640);
    let mut cached = [0, 0];
    let mut units = Vec::new();
    for family in 1..=40 {
        let (request, unit) = desk.route(&after(&system, family, 360), &cached);
        cached[unit as usize] = system.len();
        units.push(unit);
        desk.run(request);
        desk.now_s += LATER_S;
    }
    // Each request but the first computes 360 tokens. The fifth finds replica 0 with 1,000 + 3 * 360 tokens of recent
    // work: an eighth of that, and half of its excess over the limit, are more than the 640 cached tokens.
    assert_eq!(units[..4], [0; 4]);
    assert_eq!(units[4], 1);
    let at_first = units.iter().filter(|unit| **unit == 0).count();
    assert!((16..=24).contains(&at_first), "{units:?}");
}

#[test]
fn recent_work_fades_with_the_window() {
    let route = |window: usize| {
        let mut desk = Desk::new(LoadBalance::Prefix, 3);
        desk.router = RouterState::new(LoadBalance::Prefix, 3).with_window(window);
        let (first, unit) = desk.route(&tokens(1, 10_000), &[0; 3]);
        assert_eq!(unit, 0);
        desk.run(first);
        for family in 2..12 {
            let (request, _) = desk.route(&tokens(family, 1000), &[0; 3]);
            desk.run(request);
        }
        // Replica 0 has cached 500 of 1,000 tokens.
        desk.route(&tokens(20, 1000), &[500, 0, 0]).1
    };
    assert_ne!(route(1 << 30), 0);
    assert_eq!(route(5000), 0);
}

#[test]
fn a_burst_of_one_prefix_meets_one_replica_before_its_cache_shows_it() {
    let mut desk = Desk::new(LoadBalance::Prefix, 4);
    let system = tokens(0, 32 * BLOCK_TOKENS);
    for family in 1..=8 {
        let prompt = after(&system, family, 50);
        assert_eq!(desk.route(&prompt, &[0; 4]).1, 0, "request {family}");
    }
    assert_eq!(desk.owed(), [system.len() + 8 * 50, 0, 0, 0]);
    // Another prefix goes elsewhere, and its burst follows it.
    let other = tokens(100, 32 * BLOCK_TOKENS);
    for family in 101..=108 {
        let prompt = after(&other, family, 50);
        assert_eq!(desk.route(&prompt, &[0; 4]).1, 1, "request {family}");
    }
}

#[test]
fn a_burst_that_is_worth_a_second_copy_of_its_prefix_spreads() {
    let mut desk = Desk::new(LoadBalance::Prefix, 2);
    let system = tokens(0, 8 * BLOCK_TOKENS);
    let mut units = Vec::new();
    for family in 1..=20 {
        units.push(desk.route(&after(&system, family, 200), &[0; 2]).1);
    }
    assert_eq!(units[..2], [0; 2]);
    let at_first = units.iter().filter(|unit| **unit == 0).count();
    assert!((8..=13).contains(&at_first), "{units:?}");
}

/// The replica of a second request with the first one's prefix, which replica 0 has got, but does not show.
fn second_of_prefix(prepare: impl FnOnce(&mut Desk, IntakeId)) -> u32 {
    let mut desk = Desk::new(LoadBalance::Prefix, 2);
    let prompt = tokens(1, 10 * BLOCK_TOKENS);
    let (first, unit) = desk.route(&prompt, &[0; 2]);
    assert_eq!(unit, 0);
    prepare(&mut desk, first);
    desk.route(&after(&prompt, 2, 10), &[0; 2]).1
}

#[test]
fn a_routed_prefix_counts_until_the_cache_must_show_it() {
    let queued = second_of_prefix(|desk, _| desk.now_s = 100.0 * HIDDEN_S);
    assert_eq!(queued, 0, "its prefill has not ended");
    let just_prefilled = second_of_prefix(|desk, first| {
        desk.now_s = 100.0 * HIDDEN_S;
        desk.router.prefilled(first, desk.now_s);
        desk.now_s += 0.9 * HIDDEN_S;
    });
    assert_eq!(just_prefilled, 0);
    let evicted = second_of_prefix(|desk, first| {
        desk.router.prefilled(first, 0.0);
        desk.now_s = 1.1 * HIDDEN_S;
    });
    assert_eq!(evicted, 1, "the cache would show it, had it not evicted it");
    let ended = second_of_prefix(|desk, first| {
        desk.run(first);
        desk.now_s = 1.1 * HIDDEN_S;
    });
    assert_eq!(ended, 1);
}

#[test]
fn routed_prefixes_of_other_namespaces_and_of_uncached_prompts_do_not_count() {
    let salted = second_of_prefix(|desk, _| desk.namespace = Namespace::new(None, Some("salt")));
    assert_eq!(salted, 1);
    let mut router = RouterState::new(LoadBalance::Prefix, 2);
    let (namespace, tokens) = (Namespace::default(), tokens(1, 10 * BLOCK_TOKENS));
    let prompt = |bypasses_cache| Prompt {
        namespace: &namespace,
        tokens: &tokens,
        bypasses_cache,
    };
    let none = [Some(0), Some(0)];
    for (number, unit) in [0, 1].into_iter().enumerate() {
        let request = IntakeId::new(number as u64);
        let chosen = router.route(request, &prompt(true), &none, 0.0);
        assert_eq!(chosen, Some(UnitId::new(unit)));
    }
    router.ended(IntakeId::new(0));
    // Replica 1 owes the same tokens, and none of them counts as a prefix.
    let chosen = router.route(IntakeId::new(2), &prompt(false), &none, 0.0);
    assert_eq!(chosen, Some(UnitId::new(0)));
    let mut router = RouterState::new(LoadBalance::Prefix, 2);
    let cached = [None, Some(10 * BLOCK_TOKENS)];
    let chosen = router.route(IntakeId::new(3), &prompt(true), &cached, 0.0);
    assert_eq!(chosen, Some(UnitId::new(0)), "the cache is not read");
}

#[test]
fn a_replica_of_unknown_content_counts_as_empty() {
    let mut desk = Desk::new(LoadBalance::Prefix, 3);
    let (_, unit) = desk.try_route(&tokens(1, 1000), &[None, None, Some(500)]);
    assert_eq!(unit, Some(2));
    let (_, unit) = desk.try_route(&tokens(2, 1000), &[]);
    assert_eq!(unit, Some(0));
}

#[test]
fn round_robin_takes_turns_over_live_replicas() {
    let mut desk = Desk::new(LoadBalance::RoundRobin, 3);
    let mut next = || desk.route(&tokens(1, 100), &[0, 0, 90]).1;
    assert_eq!([next(), next(), next(), next()], [0, 1, 2, 0]);
    desk.router.died(UnitId::new(1));
    let mut next = || desk.route(&tokens(1, 100), &[0, 0, 90]).1;
    assert_eq!([next(), next(), next()], [2, 0, 2]);
}

#[test]
fn total_tokens_chooses_the_fewest_tokens_of_prompts_and_outputs() {
    let mut desk = Desk::new(LoadBalance::TotalTokens, 2);
    let (first, unit) = desk.route(&tokens(1, 100), &[0, 90]);
    assert_eq!(unit, 0);
    assert_eq!(desk.route(&tokens(2, 120), &[0; 2]).1, 1);
    desk.router.prefilled(first, 0.0);
    desk.router.generated(first, 30);
    assert_eq!(desk.route(&tokens(3, 1), &[0; 2]).1, 1);
    desk.router.ended(first);
    assert_eq!(desk.route(&tokens(4, 1), &[0; 2]).1, 0);
}

#[test]
fn prefixes_are_wanted_only_for_a_choice_among_several_replicas() {
    assert!(!RouterState::new(LoadBalance::Prefix, 1).wants_prefixes());
    assert!(!RouterState::new(LoadBalance::RoundRobin, 2).wants_prefixes());
    assert!(!RouterState::new(LoadBalance::TotalTokens, 2).wants_prefixes());
    let mut router = RouterState::new(LoadBalance::Prefix, 2);
    assert!(router.wants_prefixes());
    router.died(UnitId::new(0));
    assert!(!router.wants_prefixes());
    assert_eq!(router.live().collect::<Vec<_>>(), [UnitId::new(1)]);
    router.revived(UnitId::new(0));
    assert!(router.wants_prefixes());
}

#[test]
fn a_dead_replica_returns_its_requests_oldest_first_and_gets_none() {
    let mut desk = Desk::new(LoadBalance::Prefix, 2);
    let mut of_first = Vec::new();
    for family in 1..=40 {
        let (request, unit) = desk.route(&tokens(family, 100), &[0; 2]);
        if unit == 0 {
            of_first.push(request);
        }
    }
    assert!(of_first.len() > 10, "{of_first:?}");
    let orphans = desk.router.died(UnitId::new(0));
    assert_eq!(orphans, of_first);
    assert_eq!(desk.router.unit_of(of_first[0]), None);
    let load = desk.router.load()[0];
    assert!(!load.is_live);
    assert_eq!(
        (load.requests, load.owed_tokens, load.total_tokens),
        (0, 0, 0)
    );
    assert!(desk.router.died(UnitId::new(0)).is_empty());
    assert!(desk.router.died(UnitId::new(9)).is_empty());
    for family in 1..=5 {
        assert_eq!(desk.route(&tokens(family, 100), &[99, 0]).1, 1);
    }
    desk.router.died(UnitId::new(1));
    let (request, unit) = desk.try_route(&tokens(1, 100), &[]);
    assert_eq!((unit, desk.router.unit_of(request)), (None, None));
}

#[test]
fn a_revived_replica_is_empty_and_gets_its_share_of_new_requests() {
    let mut desk = Desk::new(LoadBalance::Prefix, 3);
    let prompt = tokens(1, 20 * BLOCK_TOKENS);
    assert_eq!(desk.route(&prompt, &[0; 3]).1, 0);
    desk.router.died(UnitId::new(0));
    for family in 2..=31 {
        let (request, _) = desk.route(&tokens(family, 1000), &[0; 3]);
        desk.run(request);
    }
    desk.router.revived(UnitId::new(0));
    let mut counts = [0; 3];
    for family in 40..=69 {
        let (request, unit) = desk.route(&tokens(family, 1000), &[0; 3]);
        counts[unit as usize] += 1;
        desk.run(request);
    }
    assert!(
        counts.iter().all(|count| (8..=12).contains(count)),
        "{counts:?}"
    );
}

#[test]
fn a_new_router_adopts_the_requests_of_its_replicas() {
    let mut desk = Desk::new(LoadBalance::Prefix, 2);
    let (namespace, tokens) = (Namespace::default(), tokens(1, 10 * BLOCK_TOKENS));
    let prompt = Prompt {
        namespace: &namespace,
        tokens: &tokens,
        bypasses_cache: false,
    };
    let (request, unit) = (IntakeId::new(100), UnitId::new(1));
    assert!(desk.router.adopt(request, unit, &prompt, 0.0));
    assert_eq!(desk.router.unit_of(request), Some(unit));
    assert_eq!(desk.owed(), [0, tokens.len()]);
    // Its prefix counts as cached there.
    assert_eq!(desk.route(&after(&tokens, 2, 10), &[0; 2]).1, 1);
    // Adopted again, it counts once.
    assert!(desk.router.adopt(request, unit, &prompt, 0.0));
    assert_eq!(desk.owed(), [0, tokens.len() + 10]);
    desk.router.prefilled(request, 0.0);
    assert_eq!(desk.owed(), [0, 10]);
    desk.router.died(UnitId::new(0));
    assert!(!desk.router.adopt(request, UnitId::new(0), &prompt, 0.0));
    assert!(!desk.router.adopt(request, UnitId::new(7), &prompt, 0.0));
    assert_eq!(desk.router.unit_of(request), Some(unit));
}
