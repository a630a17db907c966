//! Chooses the replica of each request.
//!
//! With [`LoadBalance::Prefix`], a request goes to the replica with the lowest cost, a sum of tokens:
//!
//! 1. a third of the prompt tokens that the replica owes to its requests, queued and running,
//! 2. the request's prompt tokens that the replica has not cached,
//! 3. an eighth of the tokens by which the replica's recent work exceeds that of the replica with the least,
//! 4. half of the tokens by which its recent work exceeds six fifths of the mean.
//!
//! Ties go to the replica with the fewest requests, then to the one with the lowest number.
//!
//! Owed tokens delay this request alone. Tokens that are computed although another replica has cached them delay all
//! later requests, and evict cached tokens, so they count three times as much.
//!
//! The last two terms bound the imbalance of load and memory. Without them, an idle replica that has cached a common
//! system prompt gets every conversation: its cache evicts them one after another, while the other replicas do nothing.
//! With them, a replica is chosen for its cache only if the cached tokens exceed the terms. A conversation in its first
//! turn has little to lose, so it moves soon; a long one stays, unless its replica's work is far above the mean. With
//! higher factors, long conversations move away from their cached tokens, and each replica computes each system prompt.
//! Recent work is counted in tokens and not in seconds, since tokens evict tokens, at any rate of requests.
//!
//! A cache shows a prefix only after the prefill of the first request that has it. Until then the prefix counts as
//! cached in the replica to which that request was routed, and not as owed there, since each other replica would have
//! to compute it, too. So a burst of requests with one prefix meets one replica.
//!
//! Nothing here reads a clock: callers pass the time in seconds, on any clock that never goes back.

mod replica;
mod routed;

use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use crate::cache::namespace::Namespace;
use crate::cache::prefix_history::PrefixHash;
use replica::Replica;
use routed::{RoutedPrefixes, Routing, block_hashes};
use souffleur_base::ids::{IntakeId, UnitId};

pub use replica::ReplicaLoad;
pub use routed::BLOCK_TOKENS;

/// Seconds after a prefill in which the cache may not show the prefill's prefix.
pub const HIDDEN_S: f64 = 2.0;
/// Owed tokens that weigh as much as one token to compute.
const OWED_PER_TOKEN: usize = 3;
/// Tokens of recent work above the least that weigh as much as one token to compute.
const RECENT_PER_TOKEN: u64 = 8;
/// Tokens of recent work above the limit that weigh as much as one token to compute.
const OVERLOAD_PER_TOKEN: u64 = 2;
/// The limit is the mean of the recent work, and this part of it.
const OVERLOAD_PART: u64 = 5;
/// The default of [`RouterState::with_window`].
const WINDOW_TOKENS: u64 = 1 << 20;
/// The window of recent work as a multiple of the tokens of all pools: caches have evicted the tokens of older work.
const POOLS_OF_RECENT_WORK: usize = 4;

/// How the Router chooses the replica of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LoadBalance {
    /// By cached prefixes and load.
    #[default]
    Prefix,
    /// Each replica in turn.
    RoundRobin,
    /// The replica with the fewest tokens of prompts and outputs.
    TotalTokens,
}

impl LoadBalance {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Prefix => "prefix",
            Self::RoundRobin => "round_robin",
            Self::TotalTokens => "total_tokens",
        }
    }
}

/// The computed tokens that count as recent work of replicas that have pools of `pool_tokens` each.
pub fn recent_window(pool_tokens: usize, n_replicas: u32) -> usize {
    let all_tokens = pool_tokens.saturating_mul(n_replicas as usize);
    all_tokens.saturating_mul(POOLS_OF_RECENT_WORK)
}

/// The prompt of a request; for a request that continues, also the tokens that its client was told.
#[derive(Clone, Copy, Debug)]
pub struct Prompt<'a> {
    pub namespace: &'a Namespace,
    pub tokens: &'a [u32],
    /// The prompt is neither read from the cache nor added to it.
    pub bypasses_cache: bool,
}

/// A request and its replica.
#[derive(Clone, Copy, Debug)]
struct Assignment {
    unit: UnitId,
    /// Prompt tokens that are part of the replica's recent work.
    own_tokens: usize,
    owed_tokens: usize,
    total_tokens: usize,
    /// The time of the first token; `None` before it.
    prefilled_s: Option<f64>,
}

/// The prompt tokens of a request, as a replica would compute them.
#[derive(Clone, Copy, Debug)]
struct Work {
    /// Tokens that are neither cached nor computed for another request.
    own_tokens: usize,
    /// Tokens that the replica owes to other requests, and which this request needs, too.
    shared_tokens: usize,
}

/// Leading blocks of a prompt that a replica has or will have.
struct HiddenBlocks {
    /// The number of these blocks.
    known: usize,
    /// The number of these blocks whose prefill has not ended.
    pending: usize,
}

/// The requests of all replicas, and the choice of a replica for the next request.
#[derive(Debug)]
pub struct RouterState {
    method: LoadBalance,
    /// Indexed by [`UnitId`].
    replicas: Vec<Replica>,
    requests: FxHashMap<IntakeId, Assignment>,
    routed: RoutedPrefixes,
    window_tokens: u64,
    /// The replica that round robin chose last.
    last: usize,
}

impl RouterState {
    /// A router of live replicas, numbered from 0.
    pub fn new(method: LoadBalance, n_replicas: u32) -> Self {
        let n_replicas = n_replicas as usize;
        Self {
            method,
            replicas: vec![Replica::new(); n_replicas],
            requests: FxHashMap::default(),
            routed: RoutedPrefixes::default(),
            window_tokens: WINDOW_TOKENS,
            last: n_replicas.saturating_sub(1),
        }
    }

    /// Sets how many computed tokens count as recent work; [`recent_window`] computes a good number.
    #[must_use]
    pub fn with_window(self, tokens: usize) -> Self {
        Self {
            window_tokens: (tokens as u64).max(1),
            ..self
        }
    }

    pub fn method(&self) -> LoadBalance {
        self.method
    }

    /// The replicas that may be chosen.
    pub fn live(&self) -> impl Iterator<Item = UnitId> + '_ {
        self.live_indices().map(|index| UnitId::new(index as u32))
    }

    /// True if a choice depends on the prompt's tokens cached in each live replica (`PeekPrefix`).
    pub fn wants_prefixes(&self) -> bool {
        self.method == LoadBalance::Prefix && self.live_indices().nth(1).is_some()
    }

    /// Chooses a live replica; `None` if there is none. `cached[i]` is the number of the prompt's tokens in the cache
    /// of replica `i`, dead ones counted; `None`, or no entry, if it is unknown.
    pub fn route(
        &mut self,
        request: IntakeId,
        prompt: &Prompt<'_>,
        cached: &[Option<usize>],
        now_s: f64,
    ) -> Option<UnitId> {
        self.ended(request);
        let blocks = self.blocks(prompt);
        let works = self.works(prompt, &blocks, cached, now_s);
        let index = match self.method {
            LoadBalance::Prefix => self.cheapest(&works),
            LoadBalance::RoundRobin => self.next_in_turn(),
            LoadBalance::TotalTokens => self.smallest(),
        }?;
        let unit = UnitId::new(index as u32);
        let routing = Routing {
            request,
            at_s: now_s,
        };
        let own_tokens = works[index].own_tokens;
        self.assign(routing, unit, prompt.tokens.len(), own_tokens);
        let known_blocks = (prompt.tokens.len() - own_tokens) / BLOCK_TOKENS;
        let new_blocks = blocks.get(known_blocks..).unwrap_or_default();
        self.routed.record(new_blocks, unit, routing);
        Some(unit)
    }

    /// Takes note of a request that a replica has already, as after the death of another Router. Its whole prompt
    /// counts as owed until its first token. Returns false if the replica is not live.
    pub fn adopt(
        &mut self,
        request: IntakeId,
        unit: UnitId,
        prompt: &Prompt<'_>,
        now_s: f64,
    ) -> bool {
        let replica = self.replicas.get(unit.index());
        if !replica.is_some_and(|replica| replica.is_live) {
            return false;
        }
        self.ended(request);
        let routing = Routing {
            request,
            at_s: now_s,
        };
        let n_tokens = prompt.tokens.len();
        self.assign(routing, unit, n_tokens, n_tokens);
        let blocks = self.blocks(prompt);
        self.routed.record(&blocks, unit, routing);
        true
    }

    /// Takes note of how many prompt tokens a replica computed for a request. More than at the choice if the cache has
    /// evicted some since then: without this, the work of a replica that evicts much would count too little.
    pub fn computed(&mut self, request: IntakeId, tokens: usize) {
        let Some(assignment) = self.requests.get_mut(&request) else {
            return;
        };
        let expected = std::mem::replace(&mut assignment.own_tokens, tokens);
        let replica = &mut self.replicas[assignment.unit.index()];
        let recent_tokens = replica.recent_tokens + tokens as u64;
        replica.recent_tokens = recent_tokens.saturating_sub(expected as u64);
    }

    /// Takes note of a request's first token: its prefill is done. Later calls change nothing.
    pub fn prefilled(&mut self, request: IntakeId, now_s: f64) {
        let Some(assignment) = self.requests.get_mut(&request) else {
            return;
        };
        assignment.prefilled_s.get_or_insert(now_s);
        let owed = std::mem::take(&mut assignment.owed_tokens);
        self.replicas[assignment.unit.index()].owed_tokens -= owed;
    }

    /// Takes note of output tokens.
    pub fn generated(&mut self, request: IntakeId, tokens: usize) {
        let Some(assignment) = self.requests.get_mut(&request) else {
            return;
        };
        assignment.total_tokens += tokens;
        let replica = &mut self.replicas[assignment.unit.index()];
        replica.total_tokens += tokens;
        replica.recent_tokens += tokens as u64;
    }

    /// Takes note of a request's end, for any reason. An unknown request changes nothing.
    pub fn ended(&mut self, request: IntakeId) {
        let Some(assignment) = self.requests.remove(&request) else {
            return;
        };
        let replica = &mut self.replicas[assignment.unit.index()];
        replica.requests -= 1;
        replica.owed_tokens -= assignment.owed_tokens;
        replica.total_tokens -= assignment.total_tokens;
    }

    /// Removes a replica and returns its requests, oldest first, to be routed again.
    pub fn died(&mut self, unit: UnitId) -> Vec<IntakeId> {
        let Some(replica) = self.replicas.get_mut(unit.index()) else {
            return Vec::new();
        };
        replica.is_live = false;
        self.routed.forget(unit);
        let of_unit = self.requests.iter();
        let of_unit = of_unit.filter(|(_, assignment)| assignment.unit == unit);
        let mut orphans: Vec<IntakeId> = of_unit.map(|(request, _)| *request).collect();
        orphans.sort_unstable();
        for &request in &orphans {
            self.ended(request);
        }
        orphans
    }

    /// Adds a replica again, with an empty cache. Its recent work counts as the mean of the others, so that it gets its
    /// share of new requests and not all of them.
    pub fn revived(&mut self, unit: UnitId) {
        let others = self.live_indices().filter(|index| *index != unit.index());
        let others: Vec<u64> = others
            .map(|index| self.replicas[index].recent_tokens)
            .collect();
        let Some(replica) = self.replicas.get_mut(unit.index()) else {
            return;
        };
        if !replica.is_live {
            replica.is_live = true;
            replica.recent_tokens = others.iter().sum::<u64>() / others.len().max(1) as u64;
        }
    }

    /// The load of each replica, dead ones included.
    pub fn load(&self) -> Vec<ReplicaLoad> {
        let units = (0..).map(UnitId::new);
        let loads = self.replicas.iter().zip(units);
        loads.map(|(replica, unit)| replica.load(unit)).collect()
    }

    /// The replica of a request that was routed and has not ended.
    pub fn unit_of(&self, request: IntakeId) -> Option<UnitId> {
        let assignment = self.requests.get(&request)?;
        Some(assignment.unit)
    }

    fn live_indices(&self) -> impl Iterator<Item = usize> + '_ {
        let replicas = self.replicas.iter().enumerate();
        replicas
            .filter(|(_, replica)| replica.is_live)
            .map(|(index, _)| index)
    }

    /// The prompt's blocks, if they matter.
    fn blocks(&self, prompt: &Prompt<'_>) -> Vec<PrefixHash> {
        if self.wants_prefixes() && !prompt.bypasses_cache {
            block_hashes(prompt)
        } else {
            Vec::new()
        }
    }

    /// The work of the prompt in each replica. At least one token is computed, which gives the first output token.
    fn works(
        &self,
        prompt: &Prompt<'_>,
        blocks: &[PrefixHash],
        cached: &[Option<usize>],
        now_s: f64,
    ) -> SmallVec<[Work; 8]> {
        let n_tokens = prompt.tokens.len();
        let work = |index: usize| {
            let shown = cached.get(index).copied().flatten().unwrap_or(0);
            let shown = if prompt.bypasses_cache { 0 } else { shown };
            let unit = UnitId::new(index as u32);
            let hidden = self.hidden_blocks(blocks, unit, shown / BLOCK_TOKENS, now_s);
            let known = shown.max(hidden.known * BLOCK_TOKENS);
            Work {
                own_tokens: n_tokens.saturating_sub(known).max(n_tokens.min(1)),
                shared_tokens: hidden.pending * BLOCK_TOKENS,
            }
        };
        (0..self.replicas.len()).map(work).collect()
    }

    /// Follows the routed blocks after the first `n_shown` ones, which the replica's cache shows.
    fn hidden_blocks(
        &self,
        blocks: &[PrefixHash],
        unit: UnitId,
        n_shown: usize,
        now_s: f64,
    ) -> HiddenBlocks {
        let mut hidden = HiddenBlocks {
            known: n_shown,
            pending: 0,
        };
        let further = blocks.get(n_shown..).unwrap_or_default();
        for routing in self.routed.routings(further, unit) {
            let since_s = match self.requests.get(&routing.request) {
                Some(assignment) => assignment.prefilled_s,
                None => Some(routing.at_s),
            };
            if since_s.is_some_and(|since_s| now_s - since_s > HIDDEN_S) {
                break;
            }
            hidden.known += 1;
            hidden.pending += usize::from(since_s.is_none());
        }
        hidden
    }

    fn cheapest(&self, works: &[Work]) -> Option<usize> {
        let recent = self
            .live_indices()
            .map(|index| self.replicas[index].recent_tokens);
        let recent: SmallVec<[u64; 8]> = recent.collect();
        let least = recent.iter().min().copied()?;
        let mean = recent.iter().sum::<u64>() / recent.len() as u64;
        let limit = mean + mean / OVERLOAD_PART;
        // The first of equal replicas has the lowest number.
        self.live_indices().min_by_key(|index| {
            let replica = &self.replicas[*index];
            let work = works[*index];
            let owed = replica.owed_tokens.saturating_sub(work.shared_tokens);
            let excess = (replica.recent_tokens - least) / RECENT_PER_TOKEN;
            let overload = replica.recent_tokens.saturating_sub(limit) / OVERLOAD_PER_TOKEN;
            let tokens = owed / OWED_PER_TOKEN + work.own_tokens;
            let cost = tokens as u64 + excess + overload;
            (cost, replica.requests)
        })
    }

    fn smallest(&self) -> Option<usize> {
        self.live_indices().min_by_key(|index| {
            let replica = &self.replicas[*index];
            (replica.total_tokens, replica.requests)
        })
    }

    fn next_in_turn(&mut self) -> Option<usize> {
        let n_replicas = self.replicas.len();
        let mut turns = (1..=n_replicas).map(|step| (self.last + step) % n_replicas);
        let next = turns.find(|index| self.replicas[*index].is_live)?;
        self.last = next;
        Some(next)
    }

    fn assign(&mut self, routing: Routing, unit: UnitId, n_tokens: usize, owed_tokens: usize) {
        for replica in &mut self.replicas {
            replica.age(owed_tokens, self.window_tokens);
        }
        let replica = &mut self.replicas[unit.index()];
        replica.requests += 1;
        replica.owed_tokens += owed_tokens;
        replica.total_tokens += n_tokens;
        replica.recent_tokens += owed_tokens as u64;
        let assignment = Assignment {
            unit,
            own_tokens: owed_tokens,
            owed_tokens,
            total_tokens: n_tokens,
            prefilled_s: None,
        };
        self.requests.insert(routing.request, assignment);
    }
}
