//! Which cached node goes first: the eviction policies, one line each, in one table.

use std::fmt;

/// What a policy may look at. Times are readings of the tree's logical clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeUse {
    /// When a match or an insert last passed through the node.
    pub last_access: u64,
    /// When the node came to be. The upper half of a split is new, the lower half keeps its time.
    pub created: u64,
    /// How many requests inserted a key that contains the node.
    pub hits: u32,
    /// The highest priority among the requests that inserted it.
    pub priority: i64,
}

/// Order of eviction: the smaller key goes first.
pub type EvictionKey = (i64, i64);

/// How a key moves while a node is used: it decides how the tree keeps its victims in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyTrend {
    /// Use never makes the key smaller: the order is kept up to date, O(log n) a victim.
    Grows,
    /// Use makes the key smaller: the order is rebuilt by each eviction, O(n) a call.
    Shrinks,
}

/// Ranks nodes for eviction.
pub trait RankNode: Sync {
    /// Returns the node's key. No two evictable leaves share a time, so ties need no rule.
    fn key(&self, node: &NodeUse) -> EvictionKey;
}

impl<F: Fn(&NodeUse) -> EvictionKey + Sync> RankNode for F {
    fn key(&self, node: &NodeUse) -> EvictionKey {
        self(node)
    }
}

/// An eviction policy: a name and a ranking.
#[derive(Clone, Copy)]
pub struct EvictionPolicy {
    name: &'static str,
    trend: KeyTrend,
    rank: &'static dyn RankNode,
}

/// SLRU protects a node once this many requests have used it.
const SLRU_PROTECTED_HITS: u32 = 2;

const POLICIES: [EvictionPolicy; 7] = [
    policy("lru", KeyTrend::Grows, &|n: &NodeUse| {
        (0, time(n.last_access))
    }),
    policy("lfu", KeyTrend::Grows, &|n: &NodeUse| {
        (i64::from(n.hits), time(n.last_access))
    }),
    policy("fifo", KeyTrend::Grows, &|n: &NodeUse| (0, time(n.created))),
    policy("mru", KeyTrend::Shrinks, &|n: &NodeUse| {
        (0, -time(n.last_access))
    }),
    policy("filo", KeyTrend::Grows, &|n: &NodeUse| {
        (0, -time(n.created))
    }),
    policy("priority", KeyTrend::Grows, &|n: &NodeUse| {
        (n.priority, time(n.last_access))
    }),
    policy("slru", KeyTrend::Grows, &|n: &NodeUse| {
        (
            i64::from(n.hits >= SLRU_PROTECTED_HITS),
            time(n.last_access),
        )
    }),
];

const fn policy(
    name: &'static str,
    trend: KeyTrend,
    rank: &'static dyn RankNode,
) -> EvictionPolicy {
    EvictionPolicy { name, trend, rank }
}

const fn time(reading: u64) -> i64 {
    reading as i64
}

impl EvictionPolicy {
    /// Returns the policy called `name`.
    ///
    /// # Errors
    /// [`UnknownPolicy`], which lists the names there are.
    pub fn from_name(name: &str) -> Result<Self, UnknownPolicy> {
        let found = POLICIES.iter().find(|policy| policy.name == name);
        found.copied().ok_or_else(|| UnknownPolicy {
            name: name.to_owned(),
        })
    }

    /// The policy's name.
    pub fn name(self) -> &'static str {
        self.name
    }

    /// The names of all policies.
    pub fn names() -> impl Iterator<Item = &'static str> {
        POLICIES.iter().map(|policy| policy.name)
    }

    /// How keys move under use.
    pub fn trend(self) -> KeyTrend {
        self.trend
    }

    /// Returns the node's place in the order: the smallest goes first.
    pub fn key(self, node: &NodeUse) -> EvictionKey {
        self.rank.key(node)
    }
}

impl Default for EvictionPolicy {
    fn default() -> Self {
        POLICIES[0]
    }
}

impl fmt::Debug for EvictionPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// No eviction policy has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown eviction policy {name:?}, choose one of {}", names_in_a_row())]
pub struct UnknownPolicy {
    /// The name that was asked for.
    pub name: String,
}

fn names_in_a_row() -> String {
    EvictionPolicy::names().collect::<Vec<_>>().join(", ")
}
