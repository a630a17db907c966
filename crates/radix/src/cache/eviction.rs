//! Eviction policies: the order in which cached nodes are evicted.
//!
//! A stateless policy orders nodes by a key computed from their use. A stateful policy is a [`QueuePolicy`].

pub mod queues;
mod s3fifo;

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use queues::QueuePolicy;

/// The use of a node. Times are readings of the tree's logical clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeUse {
    /// When a match or an insert last passed through the node.
    pub last_access: u64,
    /// When the node was created. The upper half of a split is new, the lower half keeps its time.
    pub created: u64,
    /// How many requests inserted a key that contains the node.
    pub hits: u32,
    /// The highest priority among the requests that inserted the node.
    pub priority: i64,
    /// Tokens of the path before the node.
    pub start_tokens: u32,
    /// Tokens of the longest key ever inserted through the node, even if that key's end was evicted since.
    pub history_tokens: u32,
}

/// The settings of policies that have any; names as SGLang's `--radix-eviction-policy-config`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EvictionParameters {
    /// slru protects a node once this many requests have used it.
    pub protected_threshold: u32,
    /// tlru: prompt tokens that a conversation's next turn may have to compute.
    pub threshold: u32,
    /// tlru: tokens that a conversation's next turn is expected to add.
    pub next_prompt_estimate: u32,
}

impl EvictionParameters {
    const DEFAULT: Self = Self {
        protected_threshold: 2,
        threshold: 0,
        next_prompt_estimate: 0,
    };
}

impl Default for EvictionParameters {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Order of eviction: the smaller key is evicted first.
pub type EvictionKey = (i64, i64);

/// How use changes a node's key. The tree maintains the eviction order accordingly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyTrend {
    /// Use never makes the key smaller: the order is maintained incrementally, in O(log n) per victim. (In rare cases a
    /// split makes a key smaller; the next eviction then rebuilds the order.)
    Grows,
    /// Use makes the key smaller: each eviction rebuilds the order, in O(n).
    Shrinks,
}

pub trait RankNode: Sync {
    /// Ties cannot occur: keys contain a time, and no two evictable leaves have the same time.
    fn key(&self, node: &NodeUse, parameters: &EvictionParameters) -> EvictionKey;
}

impl<F: Fn(&NodeUse, &EvictionParameters) -> EvictionKey + Sync> RankNode for F {
    fn key(&self, node: &NodeUse, parameters: &EvictionParameters) -> EvictionKey {
        self(node, parameters)
    }
}

#[derive(Clone, Copy)]
pub struct EvictionPolicy {
    name: &'static str,
    order: Order,
    parameters: EvictionParameters,
}

#[derive(Clone, Copy)]
enum Order {
    Key(KeyTrend, &'static dyn RankNode),
    Queues(fn() -> Box<dyn QueuePolicy>),
}

const POLICIES: &[EvictionPolicy] = &[
    policy(
        "lru",
        KeyTrend::Grows,
        &|n: &NodeUse, _: &EvictionParameters| (0, time(n.last_access)),
    ),
    policy(
        "lfu",
        KeyTrend::Grows,
        &|n: &NodeUse, _: &EvictionParameters| (i64::from(n.hits), time(n.last_access)),
    ),
    policy(
        "fifo",
        KeyTrend::Grows,
        &|n: &NodeUse, _: &EvictionParameters| (0, time(n.created)),
    ),
    policy(
        "mru",
        KeyTrend::Shrinks,
        &|n: &NodeUse, _: &EvictionParameters| (0, -time(n.last_access)),
    ),
    policy(
        "filo",
        KeyTrend::Grows,
        &|n: &NodeUse, _: &EvictionParameters| (0, -time(n.created)),
    ),
    policy(
        "priority",
        KeyTrend::Grows,
        &|n: &NodeUse, _: &EvictionParameters| (n.priority, time(n.last_access)),
    ),
    policy(
        "slru",
        KeyTrend::Grows,
        &|n: &NodeUse, p: &EvictionParameters| {
            (
                i64::from(n.hits >= p.protected_threshold),
                time(n.last_access),
            )
        },
    ),
    policy(
        "tlru",
        KeyTrend::Grows,
        &|n: &NodeUse, p: &EvictionParameters| {
            (-i64::from(is_dispensable(n, p)), time(n.last_access))
        },
    ),
    EvictionPolicy::with_queues("s3fifo", || Box::<s3fifo::S3Fifo>::default()),
];

/// Tail-optimised LRU (Zhang et al. 2025, arXiv:2510.15152): true if a conversation's next turn would have at most
/// `threshold` tokens to compute without the node.
fn is_dispensable(node: &NodeUse, parameters: &EvictionParameters) -> bool {
    let next_turn = u64::from(node.history_tokens) + u64::from(parameters.next_prompt_estimate);
    let to_keep = next_turn.saturating_sub(u64::from(parameters.threshold));
    u64::from(node.start_tokens) >= to_keep
}

const fn policy(
    name: &'static str,
    trend: KeyTrend,
    rank: &'static dyn RankNode,
) -> EvictionPolicy {
    EvictionPolicy {
        name,
        order: Order::Key(trend, rank),
        parameters: EvictionParameters::DEFAULT,
    }
}

const fn time(reading: u64) -> i64 {
    reading as i64
}

impl EvictionPolicy {
    /// All names, separated by `|`, for a flag's help text.
    pub const CHOICES: &str = match std::str::from_utf8(&choices::<{ choices_len() }>()) {
        Ok(choices) => choices,
        Err(_) => panic!("names are UTF-8"),
    };

    /// A policy that keeps queues; `make` returns its state for an empty tree.
    pub const fn with_queues(name: &'static str, make: fn() -> Box<dyn QueuePolicy>) -> Self {
        Self {
            name,
            order: Order::Queues(make),
            parameters: EvictionParameters::DEFAULT,
        }
    }

    /// # Errors
    /// [`UnknownPolicy`], which lists the known names.
    pub fn from_name(name: &str) -> Result<Self, UnknownPolicy> {
        let found = POLICIES.iter().find(|policy| policy.name == name);
        found.copied().ok_or_else(|| UnknownPolicy {
            name: name.to_owned(),
        })
    }

    pub fn name(self) -> &'static str {
        self.name
    }

    pub fn names() -> impl Iterator<Item = &'static str> {
        POLICIES.iter().map(|policy| policy.name)
    }

    /// The same policy with these parameters; those that it does not use have no effect.
    pub fn with_parameters(self, parameters: EvictionParameters) -> Self {
        Self { parameters, ..self }
    }

    pub fn parameters(self) -> EvictionParameters {
        self.parameters
    }

    pub fn trend(self) -> KeyTrend {
        match self.order {
            Order::Key(trend, _) => trend,
            Order::Queues(_) => KeyTrend::Grows,
        }
    }

    /// The node with the smallest key is evicted first. Policies with queues need no keys: all nodes have the same.
    pub fn key(self, node: &NodeUse) -> EvictionKey {
        match self.order {
            Order::Key(_, rank) => rank.key(node, &self.parameters),
            Order::Queues(_) => (0, 0),
        }
    }

    /// Makes the policy's state for a tree, if it keeps queues.
    pub fn queues(self) -> Option<Box<dyn QueuePolicy>> {
        match self.order {
            Order::Key(..) => None,
            Order::Queues(make) => Some(make()),
        }
    }
}

const fn choices_len() -> usize {
    // One separator fewer than names.
    let (mut len, mut at) = (POLICIES.len() - 1, 0);
    while at < POLICIES.len() {
        len += POLICIES[at].name.len();
        at += 1;
    }
    len
}

const fn choices<const LEN: usize>() -> [u8; LEN] {
    let mut text = [b'|'; LEN];
    let (mut end, mut at) = (0, 0);
    while at < POLICIES.len() {
        let name = POLICIES[at].name.as_bytes();
        let mut i = 0;
        while i < name.len() {
            text[end + i] = name[i];
            i += 1;
        }
        end += name.len() + 1;
        at += 1;
    }
    text
}

#[derive(Serialize, Deserialize)]
struct NamedPolicy {
    name: String,
    parameters: EvictionParameters,
}

impl Serialize for EvictionPolicy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let named = NamedPolicy {
            name: self.name.to_owned(),
            parameters: self.parameters,
        };
        named.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for EvictionPolicy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let named = NamedPolicy::deserialize(deserializer)?;
        let policy = Self::from_name(&named.name).map_err(serde::de::Error::custom)?;
        Ok(policy.with_parameters(named.parameters))
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

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown eviction policy {name:?}, choose one of {}", joined_names())]
pub struct UnknownPolicy {
    pub name: String,
}

impl UnknownPolicy {
    /// The error without the setting's name, which the caller puts before it.
    pub fn reason(&self) -> String {
        format!("is {:?}, must be one of {}", self.name, joined_names())
    }
}

fn joined_names() -> String {
    EvictionPolicy::names().collect::<Vec<_>>().join(", ")
}
