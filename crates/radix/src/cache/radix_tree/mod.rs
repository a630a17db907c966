//! The radix tree of cached token prefixes: matching, insertion, locks and eviction.
//!
//! - Nodes live in an arena; a lock names its node by index, and a locked node is never removed.
//! - A match walks the tree with one lookup and one comparison a node and allocates nothing, unless it ends
//!   inside a node, which it then splits.
//! - Nodes of a path share a buffer of tokens and page ids, so a split copies nothing. Evictions leave at most an
//!   eighth of a buffer unused. A token costs 4 bytes, a page id 4 bytes, a node about 120 bytes. A walk or an eviction
//!   touches one cache line of a node.
//! - The clock is a counter, so the same calls give the same tree and the same victims.

mod arena;
mod changes;
mod checkpoint;
mod children;
mod compare;
mod evict;
mod integrity;
mod lock;
mod matches;
mod notes;
mod queues;
mod saving;
mod states;
mod windows;

use std::fmt;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::cache::eviction::{EvictionPolicy, NodeUse};
use crate::cache::namespace::Namespace;
use crate::pool::pages::{Edge, EdgeTokens, PageRun, PageSize, Pages, PoolLedger};
use arena::{Arena, NO_NODE, Node, Stats};
use changes::Observers;
use evict::Victims;
use notes::Notes;
use queues::Queues;
use saving::Saves;
use souffleur_base::ids::PageId;
use states::States;
use windows::Windows;

pub use saving::SaveRules;

/// A cache of computed KV by token prefix.
///
/// Sizes are in tokens. Matches and keys are cut to whole pages.
pub struct RadixTree {
    page_size: PageSize,
    /// Nothing is ever inserted.
    is_disabled: bool,
    policy: EvictionPolicy,
    ledger: Arc<PoolLedger>,
    arena: Arena,
    /// The root of each namespace that has nodes. A root holds no tokens, is never locked and is removed with its last
    /// child, so that salts used once leak no memory.
    roots: FxHashMap<Namespace, u32>,
    root_names: FxHashMap<u32, Namespace>,
    victims: Victims,
    /// The queues of the policy, if it has any.
    queues: Option<Box<Queues>>,
    /// A split has made a node's key smaller than that of its entry in the eviction order.
    order_is_stale: bool,
    clock: u64,
    evictable_tokens: usize,
    protected_tokens: usize,
    /// For the diagnosis of misses, if enabled.
    notes: Option<Box<Notes>>,
    /// For observers of the cache's content, if there are any.
    observers: Option<Box<Observers>>,
    /// The states of nodes, if layers have states.
    states: Option<Box<States>>,
    /// The window pages of nodes, if layers have windows.
    windows: Option<Box<Windows>>,
    /// The record of stored blocks, if blocks are saved.
    saves: Option<Box<Saves>>,
}

#[derive(Clone, Copy)]
pub struct PrefixMatch<'a> {
    /// Length of the cached prefix in tokens, a multiple of the page size.
    pub tokens: usize,
    node: u32,
    tree: &'a RadixTree,
}

impl PrefixMatch<'_> {
    pub fn pages(&self) -> PageRun {
        self.tree.page_run(self.node, 0)
    }
}

#[derive(Debug)]
pub struct Insert<'a> {
    pub namespace: &'a Namespace,
    /// The key; cut to whole pages.
    pub tokens: &'a [u32],
    /// An array that starts with `tokens`, if the tree may keep it instead of a copy.
    pub owner: Option<&'a Arc<[u32]>>,
    /// Page `i` holds the KV of the key's tokens from `i * page_size`. May be more than the key needs.
    pub pages: Pages,
    /// Raises the priority of every node of the key.
    pub priority: i64,
    /// Nodes that end within this many tokens get no further hit.
    pub inserted_tokens: usize,
}

/// A key of whole pages.
#[derive(Clone, Copy)]
struct Key<'a> {
    namespace: &'a Namespace,
    tokens: &'a [u32],
    /// Starts with the tokens.
    owner: Option<&'a Arc<[u32]>>,
}

#[derive(Debug)]
#[must_use]
pub struct Inserted {
    /// How many tokens of the key the tree already had.
    pub prefix_tokens: usize,
    /// The given pages of that prefix, for which the tree has other pages.
    pub duplicates: Pages,
    /// The given pages after the whole pages of the key.
    pub rest: Pages,
}

/// The effect of a published key on the use counts of its nodes.
#[derive(Clone, Copy)]
struct KeyUse {
    priority: i64,
    /// Nodes that end within this many tokens have been counted for this request.
    counted_tokens: usize,
}

impl KeyUse {
    /// Updates the use counts of a node that ends at `end` in a key of `key_tokens` tokens.
    fn apply(self, (node, stats): (&mut Node, &mut Stats), end: usize, key_tokens: usize) {
        node.hits += self.hits(end);
        stats.priority = stats.priority.max(self.priority);
        stats.history_tokens = stats.history_tokens.max(key_tokens as u32);
    }

    fn hits(self, end: usize) -> u32 {
        u32::from(end > self.counted_tokens)
    }
}

struct Walk {
    /// The deepest node whose whole edge matched.
    node: u32,
    /// Matched tokens, including those inside the next edge.
    tokens: usize,
    /// Set when the walk ended inside the edge of this child, after this many of its tokens.
    inside: Option<(u32, usize)>,
    /// The tag of a child of `node` that would continue the key, unless the walk ended inside an edge.
    tag: Option<u32>,
}

impl RadixTree {
    /// Makes an empty tree. `ledger` counts locks that are dropped instead of released.
    ///
    /// # Panics
    /// If the ledger has another page size.
    pub fn new(page_size: PageSize, policy: EvictionPolicy, ledger: Arc<PoolLedger>) -> Self {
        assert_eq!(
            ledger.page_size(),
            page_size,
            "the ledger must have the pool's page size"
        );
        Self {
            page_size,
            is_disabled: false,
            policy,
            ledger,
            arena: Arena::new(page_size),
            roots: FxHashMap::default(),
            root_names: FxHashMap::default(),
            victims: Victims::default(),
            queues: policy.queues().map(|policy| Box::new(Queues::new(policy))),
            order_is_stale: false,
            clock: 0,
            evictable_tokens: 0,
            protected_tokens: 0,
            notes: None,
            observers: None,
            states: None,
            windows: None,
            saves: None,
        }
    }

    /// Makes a tree that keeps nothing: every page stays private to its sequence.
    pub fn disabled(page_size: PageSize, ledger: Arc<PoolLedger>) -> Self {
        Self {
            is_disabled: true,
            ..Self::new(page_size, EvictionPolicy::default(), ledger)
        }
    }

    /// True if nothing is ever cached: scheduling policies that order by cached length then have no effect.
    pub fn is_disabled(&self) -> bool {
        self.is_disabled
    }

    pub fn policy(&self) -> EvictionPolicy {
        self.policy
    }

    pub fn page_size(&self) -> PageSize {
        self.page_size
    }

    /// Tokens that [`evict`](Self::evict) could free.
    pub fn evictable_size(&self) -> usize {
        self.evictable_tokens
    }

    pub fn protected_size(&self) -> usize {
        self.protected_tokens
    }

    pub fn total_size(&self) -> usize {
        self.evictable_tokens + self.protected_tokens
    }

    /// Number of nodes that hold tokens.
    pub fn n_nodes(&self) -> usize {
        self.arena.n_live() - self.roots.len()
    }

    /// Matches the longest cached prefix of `tokens`.
    ///
    /// Touches the matched path and, where the match ends inside a node, splits it. The pages are not locked: the
    /// borrow prevents changes while the caller reads them.
    pub fn match_prefix(&mut self, namespace: &Namespace, tokens: &[u32]) -> PrefixMatch<'_> {
        let (node, tokens) = self.match_and_split(namespace, tokens);
        PrefixMatch {
            tokens,
            node,
            tree: self,
        }
    }

    /// Adds a key with its pages. A part that the tree already had is only touched. The given pages that the tree does
    /// not take are returned.
    ///
    /// # Panics
    /// If there are fewer pages than the key has whole pages.
    pub fn insert(&mut self, insert: Insert<'_>) -> Inserted {
        let key = Key {
            namespace: insert.namespace,
            tokens: self.kept_part(insert.tokens),
            owner: insert.owner,
        };
        let mut pages = insert.pages;
        let rest = pages.split_off(self.page_size.full_pages(key.tokens.len()));
        let key_use = KeyUse {
            priority: insert.priority,
            counted_tokens: insert.inserted_tokens,
        };
        let (_, prefix_tokens) = self.insert_key(key, 0, &mut pages, key_use);
        Inserted {
            prefix_tokens,
            duplicates: pages,
            rest,
        }
    }

    /// The cached pages, in no order.
    pub fn iter_pages(&self) -> impl Iterator<Item = PageId> + '_ {
        self.arena
            .iter()
            .flat_map(|(_, node)| node.edge.pages(self.page_size))
    }

    /// The part of a published key that the tree keeps: its whole pages.
    fn kept_part<'a>(&self, tokens: &'a [u32]) -> &'a [u32] {
        if self.is_disabled {
            return &[];
        }
        &tokens[..self.page_size.floor(tokens.len())]
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Follows `key` from `root` and touches every child whose edge it enters. Calls `visit` for each child whose whole
    /// edge matches, with the end of the match.
    fn walk(
        &mut self,
        root: u32,
        key: &[u32],
        now: u64,
        mut visit: impl FnMut((&mut Node, &mut Stats), usize),
    ) -> Walk {
        let mut walk = Walk {
            node: root,
            tokens: 0,
            inside: None,
            tag: self.arena.tag_below(root, key),
        };
        while let Some(step) = self.arena.step(walk.node, walk.tag, &key[walk.tokens..]) {
            let (node, stats) = self.arena.mark_used(step.child);
            walk.tokens += step.common;
            node.last_access = now;
            if step.common < node.edge.len() {
                walk.inside = Some((step.child, step.common));
                walk.tag = None;
                break;
            }
            visit((node, stats), walk.tokens);
            (walk.node, walk.tag) = (step.child, step.tag);
        }
        walk
    }

    /// Cuts a node in two; the upper half is new.
    fn split(&mut self, lower: u32, at: usize, now: u64) -> u32 {
        let before = self.rank(lower);
        let upper = self.arena.split(lower, at, now);
        self.note_split(upper, lower);
        self.record_split(upper, lower);
        self.split_windows(upper, lower);
        self.split_saves(upper, lower);
        self.split_queued(upper, lower);
        let after = self.rank(lower);
        self.order_is_stale |= self.arena[lower].is_queued && after < before;
        upper
    }

    fn match_and_split(&mut self, namespace: &Namespace, tokens: &[u32]) -> (u32, usize) {
        let now = self.tick();
        let Some(&root) = self.roots.get(namespace) else {
            return (NO_NODE, 0);
        };
        let key = &tokens[..self.page_size.floor(tokens.len())];
        let walk = self.walk(root, key, now, |_, _| ());
        let deepest = match walk.inside {
            Some((child, at)) => self.split(child, at, self.clock),
            None => walk.node,
        };
        (deepest, walk.tokens)
    }

    /// Adds `key`. `pages` cover the key from its page `first_page` to its end; pages that the tree does not take stay
    /// in `pages`. Returns the key's node and how many of its tokens the tree already had.
    #[inline(always)]
    fn insert_key(
        &mut self,
        key: Key<'_>,
        first_page: usize,
        pages: &mut Pages,
        key_use: KeyUse,
    ) -> (u32, usize) {
        let Key {
            namespace,
            tokens,
            owner,
        } = key;
        if tokens.is_empty() {
            return (NO_NODE, 0);
        }
        let now = self.tick();
        self.arena.prefetch_free();
        let root = self.root_or_new(namespace);
        let walk = self.walk(root, tokens, now, |node, end| {
            key_use.apply(node, end, tokens.len());
        });
        let deepest = match walk.inside {
            Some((child, at)) => {
                let created = self.tick();
                let upper = self.split(child, at, created);
                key_use.apply(self.arena.mark_used(upper), walk.tokens, tokens.len());
                upper
            }
            None => walk.node,
        };
        if walk.tokens == tokens.len() {
            return (deepest, walk.tokens);
        }
        let n_held = self.page_size.full_pages(walk.tokens);
        let n_given = n_held
            .checked_sub(first_page)
            .expect("pages under a lock are in the tree");
        let new = EdgeTokens {
            tokens: &tokens[walk.tokens..],
            array: owner.map(|owner| (owner, walk.tokens)),
        };
        let edge = Edge::new(new, pages, n_given, self.page_size);
        let leaf = self.add_leaf(deepest, walk.tag, edge, key_use, tokens.len());
        if self.windows.is_some() {
            self.lower_window_priority(deepest);
        }
        (leaf, walk.tokens)
    }

    #[inline(always)]
    fn add_leaf(
        &mut self,
        parent: u32,
        tag: Option<u32>,
        edge: Edge,
        key_use: KeyUse,
        end: usize,
    ) -> u32 {
        let now = self.tick();
        let usage = NodeUse {
            last_access: now,
            created: now,
            hits: key_use.hits(end),
            priority: key_use.priority,
            start_tokens: (end - edge.len()) as u32,
            history_tokens: end as u32,
        };
        self.evictable_tokens += edge.len();
        let leaf = self.arena.add(parent, tag, edge, usage);
        self.note_child(parent, leaf);
        self.note_unsaved(leaf);
        self.record_stored(leaf);
        self.enter_queue(leaf);
        self.offer_new(leaf, &usage);
        leaf
    }

    fn root_or_new(&mut self, namespace: &Namespace) -> u32 {
        if let Some(&root) = self.roots.get(namespace) {
            return root;
        }
        let root = self.arena.add_root();
        self.roots.insert(namespace.clone(), root);
        self.root_names.insert(root, namespace.clone());
        root
    }

    #[inline(never)]
    fn drop_root(&mut self, root: u32) {
        self.arena.remove_root(root);
        self.forget_note(root);
        let namespace = self
            .root_names
            .remove(&root)
            .expect("every root has a namespace");
        self.roots.remove(&namespace);
    }
}

impl fmt::Debug for RadixTree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RadixTree")
            .field("page_size", &self.page_size.get())
            .field("policy", &self.policy)
            .field("n_nodes", &self.n_nodes())
            .field("evictable_tokens", &self.evictable_tokens)
            .field("protected_tokens", &self.protected_tokens)
            .finish()
    }
}
