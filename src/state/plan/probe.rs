//! Looks up the cached prefix of each waiting request, for policies that order the queue by it.
//!
//! Such a policy's plan begins with a probe: Scheduler -> RadixCache -> Scheduler. Before the lookups, a probe
//! publishes and releases memory as a plan does, so that the last step's pages count. Like an admission, it marks the
//! matched prefixes as used.

use rustc_hash::FxHashSet;

use crate::cache::namespace::Namespace;
use crate::cache::radix_tree::RadixTree;
use crate::plan::plan_step::plan_step;
pub use crate::plan::probe_key::ProbeKey;
use crate::plan::{CheckpointedSeq, PlanStep, Settle};
use crate::pool::pages::{Pages, WindowPages};
use crate::pool::state_pool::OwnedState;
use souffleur_base::ids::{RowId, SeqId, StepId};
use souffleur_base::in_hand;

/// A request with more cached tokens than this is not compared with other requests (SGLang's
/// `IN_BATCH_PREFIX_CACHING_CHECK_THRESHOLD`).
const CHECK_TOKENS: usize = 32;
/// A request that shares this many tokens with an earlier one is deprioritised (SGLang's
/// `IN_BATCH_PREFIX_CACHING_DEPRIORITIZE_THRESHOLD`).
const DEPRIORITISE_TOKENS: usize = 32;

#[derive(Debug)]
pub struct ProbePrefixes {
    pub step: StepId,
    /// Memory of earlier steps to publish or release before any prefix is matched.
    pub settle: Vec<Settle>,
    /// The waiting requests, by priority, then by arrival.
    pub keys: Vec<ProbeKey>,
    pub kind: ProbeKind,
}

/// Facts that a probe finds in addition to the lengths of matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeKind {
    /// Which requests share a prefix with an earlier request in the queue.
    InBatch,
    /// The path of each match in the tree.
    Paths,
}

/// A probe's result for one request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Matched {
    pub tokens: usize,
    /// An earlier request in the queue will compute a prefix of this request, which is served later from the cache.
    pub is_deprioritised: bool,
    /// The tree's nodes from the top down to where the match ended, if the policy needs them.
    pub path: Vec<u32>,
}

#[derive(Debug)]
pub struct PrefixesProbed {
    pub checkpointed: Vec<CheckpointedSeq>,
    /// Memory that the settling returned: it goes to the pools with the plan.
    pub returned: Pages,
    pub returned_rows: Vec<RowId>,
    pub returned_states: Vec<OwnedState>,
    pub returned_windows: WindowPages,
    /// One entry for each key, in the order of the keys.
    pub matches: Vec<(SeqId, Matched)>,
}

pub fn probe_prefixes(cache: &mut RadixTree, request: ProbePrefixes) -> PrefixesProbed {
    let settled = plan_step(
        cache,
        PlanStep {
            settle: request.settle,
            ..PlanStep::empty(request.step, 0, 0)
        },
    );
    debug_assert!(settled.evicted.is_empty());
    let found = match request.kind {
        ProbeKind::InBatch => match_in_batch(cache, &request.keys),
        ProbeKind::Paths => match_paths(cache, &request.keys),
    };
    let matches = request.keys.iter().zip(found).map(|(key, mut found)| {
        found.tokens = found.tokens.min(key.match_limit);
        (key.seq, found)
    });
    PrefixesProbed {
        matches: matches.collect(),
        checkpointed: settled.verdict.checkpointed,
        returned: settled.returned,
        returned_rows: settled.returned_rows,
        returned_states: settled.returned_states,
        returned_windows: settled.returned_windows,
    }
}

/// The in-batch rule: of the requests that share an uncached prefix, the first is computed and the others wait for it.
/// SGLang matches them against a scratch tree of the queue. A match there is long enough exactly if an earlier key has
/// the same first [`DEPRIORITISE_TOKENS`] tokens, so a set of first tokens replaces the scratch tree.
fn match_in_batch(cache: &mut RadixTree, keys: &[ProbeKey]) -> Vec<Matched> {
    let mut heads: FxHashSet<(&Namespace, &[u32])> = FxHashSet::default();
    let matched = keys.iter().map(|key| {
        in_hand::hold(key.intake);
        let tokens = cache.touch_prefix(&key.namespace, &key.tokens);
        let head = key.tokens.get(..DEPRIORITISE_TOKENS);
        let is_compared = tokens <= CHECK_TOKENS;
        let is_deprioritised =
            head.is_some_and(|head| is_compared && !heads.insert((&key.namespace, head)));
        Matched {
            tokens,
            is_deprioritised,
            path: Vec::new(),
        }
    });
    let matched = matched.collect();
    in_hand::clear();
    matched
}

fn match_paths(cache: &mut RadixTree, keys: &[ProbeKey]) -> Vec<Matched> {
    let prefixes = keys.iter().map(|key| (&key.namespace, &key.tokens[..]));
    let touched = cache.touch_paths(prefixes, |place| in_hand::hold(keys[place].intake));
    in_hand::clear();
    let matched = touched.into_iter().map(|(tokens, path)| Matched {
        tokens,
        is_deprioritised: false,
        path,
    });
    matched.collect()
}
