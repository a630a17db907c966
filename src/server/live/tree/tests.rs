//! Compares mirror and pictures with a naive tree, after random changes.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::mirror::{Mirror, Sums, TreeEvent};
use super::names::{DEFAULT, SALTED};
use super::picture::{MAX_ROWS, Picture, Row};
use souffleur_state::cache::changes::{Above, TreeNote};
use souffleur_state::cache::namespace::Namespace;
use souffleur_state::scheduler::live::LivePin;

struct NaiveNode {
    parent: Option<u32>,
    tokens: u64,
    namespace: Namespace,
}

#[derive(Default)]
struct Naive {
    nodes: BTreeMap<u32, NaiveNode>,
    free: Vec<u32>,
    next: u32,
}

fn namespace(choice: u32) -> Namespace {
    match choice % 4 {
        0 => Namespace::new(None, None),
        1 => Namespace::new(Some("a"), None),
        2 => Namespace::new(Some("b"), None),
        _ => Namespace::new(Some("a"), Some(&format!("salt {choice}"))),
    }
}

impl Naive {
    /// An unused number; those of removed nodes are used again.
    fn free(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.next += 1;
            self.next - 1
        })
    }

    fn pick(&self, choice: u32, is_fit: impl Fn(u32, &NaiveNode) -> bool) -> Option<u32> {
        let fits = self.nodes.iter().filter(|(id, node)| is_fit(**id, node));
        let fits: Vec<u32> = fits.map(|(id, _)| *id).collect();
        let index = (choice as usize).checked_rem(fits.len())?;
        Some(fits[index])
    }

    /// A random change, applied to this tree.
    fn change(&mut self, (kind, choice, amount): (u8, u32, u32)) -> Option<TreeNote> {
        match kind {
            0..=69 => {
                let parent = self.pick(choice / 4, |_, _| !choice.is_multiple_of(4));
                let (id, tokens) = (self.free(), u64::from(amount % 9 + 1));
                let name = parent.map_or_else(|| namespace(amount), |_| Namespace::default());
                let above = match parent {
                    Some(parent) => Above::Node(parent),
                    None => Above::Root(name.clone()),
                };
                let node = NaiveNode {
                    parent,
                    tokens,
                    namespace: name,
                };
                self.nodes.insert(id, node);
                Some(TreeNote::Stored {
                    node: id,
                    above,
                    tokens: tokens as usize,
                })
            }
            70..=84 => {
                let lower = self.pick(choice, |_, node| node.tokens > 1)?;
                let upper = self.free();
                let node = self.nodes.get_mut(&lower)?;
                let at = u64::from(amount) % (node.tokens - 1) + 1;
                let above = NaiveNode {
                    parent: node.parent,
                    tokens: at,
                    namespace: node.namespace.clone(),
                };
                (node.parent, node.tokens) = (Some(upper), node.tokens - at);
                self.nodes.insert(upper, above);
                let at = at as usize;
                Some(TreeNote::Split { upper, lower, at })
            }
            85..=98 => {
                let parents = self.nodes.values().filter_map(|node| node.parent);
                let parents: BTreeSet<u32> = parents.collect();
                let node = self.pick(choice, |id, _| !parents.contains(&id))?;
                self.nodes.remove(&node);
                self.free.push(node);
                Some(TreeNote::Removed { node })
            }
            _ if amount.is_multiple_of(8) => {
                self.free.extend(self.nodes.keys());
                self.nodes.clear();
                Some(TreeNote::Cleared)
            }
            _ => None,
        }
    }

    /// The nodes from `id` up.
    fn path(&self, id: u32) -> Vec<u32> {
        let parent_of = |id: &u32| self.nodes[id].parent;
        std::iter::successors(Some(id), parent_of).collect()
    }

    /// The rows and sums, by a walk of all nodes: folded sums by id, and the rest.
    fn walk(&self) -> (Vec<u32>, BTreeMap<u32, (u64, Sums)>, Sums) {
        let mut sizes: BTreeMap<u32, u64> = BTreeMap::new();
        for (id, node) in &self.nodes {
            for above in self.path(*id) {
                *sizes.entry(above).or_default() += node.tokens;
            }
        }
        let mut order: Vec<u32> = self.nodes.keys().copied().collect();
        order.sort_by_key(|id| (Reverse(sizes[id]), self.path(*id).len(), *id));
        order.truncate(MAX_ROWS);
        let rows: BTreeSet<u32> = order.iter().copied().collect();
        let below = |id: &u32| (sizes[id] - self.nodes[id].tokens, Sums::default());
        let mut sums: BTreeMap<u32, _> = rows.iter().map(|id| (*id, below(id))).collect();
        let mut rest = Sums::default();
        for (id, node) in self.nodes.iter().filter(|(id, _)| !rows.contains(id)) {
            let owner = self.path(*id).into_iter().find(|id| rows.contains(id));
            let into = match owner {
                Some(owner) => &mut sums.get_mut(&owner).expect("a row").1,
                None => &mut rest,
            };
            into.nodes += 1;
            into.tokens += node.tokens;
        }
        (order, sums, rest)
    }

    fn check(&self, mirror: &Mirror, picture: &Picture) {
        let (order, sums, rest) = self.walk();
        assert_eq!(picture.ids(), order);
        assert_eq!(picture.rest, rest);
        let total = Sums {
            nodes: self.nodes.len() as u64,
            tokens: self.nodes.values().map(|node| node.tokens).sum(),
        };
        assert_eq!(picture.total, total);
        for row in &picture.rows {
            let node = &self.nodes[&row.id];
            assert_eq!((row.parent, row.tokens), (node.parent, node.tokens));
            assert_eq!((row.below, row.folded), sums[&row.id], "{row:?}");
            let expected = match (node.parent, node.namespace.extra_key()) {
                (None, _) if node.namespace.is_salted() => SALTED,
                (None, Some(name)) => {
                    assert!(row.namespace > 0);
                    let found = mirror.names().get(row.namespace);
                    assert_eq!(found.map(|found| &**found), Some(name));
                    row.namespace
                }
                _ => DEFAULT,
            };
            assert_eq!(row.namespace, expected);
        }
        let drawn = picture
            .rows
            .iter()
            .map(|row| row.tokens + row.folded.tokens);
        assert_eq!(drawn.sum::<u64>() + rest.tokens, total.tokens);
    }

    fn mark_of(&self, id: u32, pins: &[LivePin]) -> u8 {
        let holds = |pin: &&LivePin| {
            self.nodes.contains_key(&pin.node) && self.path(pin.node).contains(&id)
        };
        let marks = pins.iter().filter(holds);
        marks
            .map(|pin| if pin.is_soft { 1 } else { 2 })
            .max()
            .unwrap_or(0)
    }
}

/// What a reader of the deltas knows.
#[derive(Default)]
struct Reader {
    rows: BTreeMap<u32, Row>,
    last: Picture,
}

impl Reader {
    fn take(&mut self, picture: Picture) {
        let delta = picture.since(&self.last);
        for id in delta.gone {
            assert!(self.rows.remove(&id).is_some());
        }
        for row in delta.set {
            assert_ne!(
                self.rows.insert(row.id, row),
                Some(row),
                "the row has changed"
            );
        }
        let expected: BTreeMap<u32, Row> = picture.rows.iter().map(|row| (row.id, *row)).collect();
        assert_eq!(self.rows, expected);
        self.last = picture;
    }
}

fn changes() -> impl Strategy<Value = Vec<(u8, u32, u32)>> {
    prop::collection::vec((0..100_u8, any::<u32>(), any::<u32>()), 0..1500)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn pictures_equal_a_walk_of_the_tree_and_deltas_lead_to_them(changes in changes()) {
        let mut naive = Naive::default();
        let mut mirror = Mirror::default();
        let mut reader = Reader::default();
        let every = (changes.len() / 6).max(1);
        for (index, change) in changes.into_iter().enumerate() {
            if let Some(note) = naive.change(change) {
                prop_assert!(mirror.apply(&note).is_some());
            }
            if !index.is_multiple_of(every) {
                continue;
            }
            let mut picture = Picture::of(&mirror);
            naive.check(&mirror, &picture);
            let locks: Vec<u32> = picture.ids().iter().map(|id| (id ^ change.1) % 3).collect();
            picture.set_locks(&locks);
            let pins = [change.1, change.2].map(|choice| LivePin {
                node: choice % 64,
                is_soft: choice.is_multiple_of(2),
            });
            picture.set_pins(&pins, &mirror);
            for (row, locks) in picture.rows.iter().zip(locks) {
                let expected = (locks, naive.mark_of(row.id, &pins));
                prop_assert_eq!((row.locks, row.pin), expected);
            }
            reader.take(picture);
        }
    }
}

#[test]
fn events_tell_the_sizes_of_their_nodes() {
    let mut mirror = Mirror::default();
    let stored = |node, above, tokens| TreeNote::Stored {
        node,
        above,
        tokens,
    };
    let notes = [
        stored(5, Above::Root(Namespace::default()), 10),
        TreeNote::Split {
            upper: 2,
            lower: 5,
            at: 4,
        },
        stored(7, Above::Node(2), 3),
        TreeNote::Removed { node: 5 },
        TreeNote::Removed { node: 9 },
        TreeNote::Cleared,
    ];
    let events: Vec<Option<TreeEvent>> = notes.iter().map(|note| mirror.apply(note)).collect();
    let expected = [
        Some(TreeEvent::Stored {
            node: 5,
            tokens: 10,
        }),
        Some(TreeEvent::Split {
            upper: 2,
            lower: 5,
            at: 4,
        }),
        Some(TreeEvent::Stored { node: 7, tokens: 3 }),
        Some(TreeEvent::Removed { node: 5, tokens: 6 }),
        None,
        Some(TreeEvent::Cleared),
    ];
    assert_eq!(events, expected);
    assert_eq!(Picture::of(&mirror), Picture::default());
}

#[test]
fn rows_of_large_numbers_stay_within_the_size_of_a_message() {
    const FIRST: u32 = 4_000_000;
    let mut mirror = Mirror::default();
    for node in FIRST..FIRST + 500 {
        let above = match node {
            FIRST => Above::Root(Namespace::default()),
            _ => Above::Node(node - 1),
        };
        let tokens = 1 << 54;
        mirror.apply(&TreeNote::Stored {
            node,
            above,
            tokens,
        });
    }
    let picture = Picture::of(&mirror);
    let rows: Vec<_> = picture.rows.iter().map(Row::columns).collect();
    let json = serde_json::to_string(&rows).expect("numbers");
    assert!(json.len() <= 28 << 10, "{} bytes", json.len());
    assert!(rows.len() < MAX_ROWS);
    let folded = picture.rows.last().map(|row| row.folded.nodes);
    assert_eq!(folded, Some(500 - rows.len() as u64));
}
