//! Keeps the blocks of each node of the radix tree, and turns changes of the tree into block events.
//!
//! A block belongs to the node of its last token. If blocks span several pages, a block may start in an ancestor of
//! that node. Removing a node removes its blocks.

use std::borrow::Cow;
use std::sync::Arc;

use super::batch::EventBatches;
use super::config::IdFormat;
use super::hash::{BlockHash, IdSpace};
use souffleur_state::cache::changes::{Above, CacheChange};
use souffleur_state::pool::pages::PageSize;

/// The blocks of each node. Memory: 32 bytes per block, about 150 bytes per node and, if blocks span several pages,
/// 4 bytes per token.
#[derive(Debug)]
pub struct BlockMirror {
    block_size: usize,
    format: IdFormat,
    /// True if a node may end inside a block: hashing this block then needs the tokens of several nodes.
    keeps_tokens: bool,
    nodes: Vec<Option<Node>>,
}

#[derive(Debug)]
struct Node {
    space: Arc<IdSpace>,
    /// The last block, on the path from the root, that ends before this node.
    before: Option<BlockHash>,
    /// The tokens of the path between `before` and this node: fewer than a block.
    head: Vec<u32>,
    /// Empty if all nodes end at block boundaries.
    tokens: Vec<u32>,
    blocks: Vec<BlockHash>,
}

impl Node {
    /// The last block that ends in this node or before it.
    fn last_block(&self) -> Option<BlockHash> {
        self.blocks.last().copied().or(self.before)
    }

    fn tokens_after_blocks(&self, block_size: usize) -> Vec<u32> {
        let in_blocks = self.blocks.len() * block_size;
        match in_blocks.checked_sub(self.head.len()) {
            Some(at) => self.tokens.get(at..).unwrap_or_default().to_vec(),
            None => [&self.head[..], &self.tokens].concat(),
        }
    }
}

impl BlockMirror {
    pub fn new(page_size: PageSize, block_size: usize, format: IdFormat) -> Self {
        Self {
            block_size,
            format,
            keeps_tokens: block_size > page_size.get(),
            nodes: Vec::new(),
        }
    }

    pub fn n_blocks(&self) -> usize {
        let nodes = self.nodes.iter().flatten();
        nodes.map(|node| node.blocks.len()).sum()
    }

    /// Applies a change, and appends the resulting block events to `events`.
    pub fn apply(&mut self, change: &CacheChange, events: &mut EventBatches) {
        match change {
            CacheChange::Stored {
                node,
                above,
                tokens,
            } => self.store(*node, above, tokens.get(), events),
            CacheChange::Split { upper, lower, at } => self.split(*upper, *lower, *at),
            CacheChange::Removed { node } => {
                let slot = self.nodes.get_mut(*node as usize);
                if let Some(node) = slot.and_then(Option::take) {
                    events.removed(node.blocks.iter().map(|block| node.space.id(block)));
                }
            }
            CacheChange::Cleared => {
                self.nodes = Vec::new();
                events.cleared();
            }
        }
    }

    fn store(&mut self, index: u32, above: &Above, tokens: &[u32], events: &mut EventBatches) {
        let (space, before, head) = match above {
            Above::Root(namespace) => {
                let space = Arc::new(IdSpace::new(namespace, self.format));
                (space, None, Vec::new())
            }
            Above::Node(above) => {
                let Some(above) = self.node(*above) else {
                    debug_assert!(false, "unknown parent node {above}");
                    return;
                };
                let tokens_after_blocks = above.tokens_after_blocks(self.block_size);
                (above.space.clone(), above.last_block(), tokens_after_blocks)
            }
        };
        let path = if head.is_empty() {
            Cow::Borrowed(tokens)
        } else {
            Cow::Owned([&head[..], tokens].concat())
        };
        let whole_blocks = path.chunks_exact(self.block_size);
        let mut last = before;
        let blocks: Vec<BlockHash> = whole_blocks
            .map(|tokens| *last.insert(space.hash(last.as_ref(), tokens)))
            .collect();
        let ids: Vec<i64> = blocks.iter().map(|block| space.id(block)).collect();
        let parent = before.map(|block| space.id(&block));
        let in_blocks = &path[..blocks.len() * self.block_size];
        let names = (space.cache_salt(), space.is_named());
        events.stored(parent, &ids, in_blocks, names);
        let node = Node {
            space,
            before,
            head,
            tokens: if self.keeps_tokens {
                tokens.to_vec()
            } else {
                Vec::new()
            },
            blocks,
        };
        self.put(index, node);
    }

    fn split(&mut self, upper: u32, lower: u32, at: usize) {
        let slot = self.nodes.get_mut(lower as usize);
        let Some(mut below) = slot.and_then(Option::take) else {
            debug_assert!(false, "unknown node {lower} is split");
            return;
        };
        let n_blocks = (below.head.len() + at) / self.block_size;
        let rest = below.blocks.split_off(n_blocks.min(below.blocks.len()));
        let rest_tokens = below.tokens.split_off(at.min(below.tokens.len()));
        let above = Node {
            space: below.space.clone(),
            before: below.before,
            head: below.head,
            tokens: below.tokens,
            blocks: below.blocks,
        };
        let below = Node {
            space: below.space,
            before: above.last_block(),
            head: above.tokens_after_blocks(self.block_size),
            tokens: rest_tokens,
            blocks: rest,
        };
        self.put(upper, above);
        self.put(lower, below);
    }

    fn node(&self, index: u32) -> Option<&Node> {
        self.nodes.get(index as usize)?.as_ref()
    }

    fn put(&mut self, index: u32, node: Node) {
        let index = index as usize;
        if index >= self.nodes.len() {
            self.nodes.resize_with(index + 1, || None);
        }
        self.nodes[index] = Some(node);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::KvEvent;
    use souffleur_state::cache::changes::NodeTokens;
    use souffleur_state::cache::namespace::Namespace;

    fn page(tokens: u32) -> PageSize {
        PageSize::new(tokens).expect("positive")
    }

    fn store(node: u32, above: Option<u32>, tokens: &[u32]) -> CacheChange {
        CacheChange::Stored {
            node,
            above: match above {
                Some(above) => Above::Node(above),
                None => Above::Root(Namespace::default()),
            },
            tokens: NodeTokens::new(tokens),
        }
    }

    fn events(mirror: &mut BlockMirror, changes: &[CacheChange]) -> Vec<KvEvent> {
        let mut batches = EventBatches::new(mirror.block_size);
        for change in changes {
            mirror.apply(change, &mut batches);
        }
        batches.take().into_iter().flatten().collect()
    }

    fn texts(events: &[KvEvent]) -> Vec<String> {
        let text = |event: &KvEvent| match event {
            KvEvent::Stored(blocks) => {
                let parent = blocks.parent.map_or("root", |_| "block");
                format!("{:?} below {parent}", blocks.tokens)
            }
            KvEvent::Removed(ids) => format!("{} removed", ids.len()),
            KvEvent::Cleared => "cleared".to_owned(),
        };
        events.iter().map(text).collect()
    }

    #[test]
    fn a_block_belongs_to_the_node_of_its_last_token() {
        let mut mirror = BlockMirror::new(page(1), 4, IdFormat::Default);
        let first = events(&mut mirror, &[store(0, None, &[1, 2, 3, 4, 5, 6])]);
        assert_eq!(texts(&first), ["[1, 2, 3, 4] below root"]);
        // Both blocks start with the tokens 5 and 6 of the parent node.
        let second = events(
            &mut mirror,
            &[store(1, Some(0), &[7, 8, 9]), store(2, Some(0), &[70, 80])],
        );
        let expected = ["[5, 6, 7, 8] below block", "[5, 6, 70, 80] below block"];
        assert_eq!(texts(&second), expected);
        let third = events(&mut mirror, &[store(3, Some(1), &[10, 11])]);
        assert_eq!(texts(&third), Vec::<String>::new());
        let fourth = events(&mut mirror, &[store(4, Some(3), &[12])]);
        assert_eq!(texts(&fourth), ["[9, 10, 11, 12] below block"]);
        assert_eq!(mirror.n_blocks(), 4);
        let gone = [4, 3, 1].map(|node| CacheChange::Removed { node });
        assert_eq!(texts(&events(&mut mirror, &gone)), ["2 removed"]);
        let cleared = events(&mut mirror, &[CacheChange::Cleared]);
        assert_eq!(
            (texts(&cleared), mirror.n_blocks()),
            (vec!["cleared".to_owned()], 0)
        );
    }

    #[test]
    fn splits_add_no_event_and_change_no_id() {
        let tokens: Vec<u32> = (1..=24).collect();
        for (page_size, block) in [(1, 4), (1, 5), (2, 4), (4, 4), (2, 8), (1, 1)] {
            let mut whole = BlockMirror::new(page(page_size), block, IdFormat::Default);
            let all = events(&mut whole, &[store(0, None, &tokens)]);
            let step = page_size as usize;
            for at in (step..24).step_by(step) {
                for again in (step..24).step_by(step).filter(|again| *again != at) {
                    let mut mirror = BlockMirror::new(page(page_size), block, IdFormat::Default);
                    let (upper, lower) = (7, 0);
                    let first_split = CacheChange::Split { upper, lower, at };
                    let second_split = if again < at {
                        CacheChange::Split {
                            upper: 3,
                            lower: upper,
                            at: again,
                        }
                    } else {
                        CacheChange::Split {
                            upper: 3,
                            lower,
                            at: again - at,
                        }
                    };
                    let changes = [store(0, None, &tokens), first_split, second_split];
                    assert_eq!(events(&mut mirror, &changes), all);
                    assert_eq!(mirror.n_blocks(), 24 / block);
                    // A branch at each split gets the ids of an unsplit path.
                    let (short, long) = (at.min(again), at.max(again));
                    let nodes = if again < at {
                        [(3, short), (7, long), (0, 24)]
                    } else {
                        [(7, short), (3, long), (0, 24)]
                    };
                    for (node, end) in nodes {
                        let branch: Vec<u32> = (100..100 + 2 * block.max(step) as u32).collect();
                        let after = events(&mut mirror, &[store(9, Some(node), &branch)]);
                        let path = [&tokens[..end], &branch].concat();
                        let mut fresh = BlockMirror::new(page(page_size), block, IdFormat::Default);
                        let straight = events(&mut fresh, &[store(0, None, &path)]);
                        let ids = |events: &[KvEvent]| match events {
                            [KvEvent::Stored(blocks)] => blocks.ids.clone(),
                            other => panic!("{other:?}"),
                        };
                        let new = ids(&after);
                        let straight = ids(&straight);
                        assert_eq!(straight[end / block..], new, "{node} of {at} and {again}");
                        events(&mut mirror, &[CacheChange::Removed { node: 9 }]);
                    }
                }
            }
        }
    }

    #[test]
    fn blocks_are_removed_with_the_ids_they_were_stored_with() {
        let names = [
            (None, None),
            (Some("a"), None),
            (None, Some("s")),
            (Some("a"), Some("s")),
        ];
        for format in [IdFormat::Default, IdFormat::Dynamo] {
            for (extra_key, salt) in names {
                let mut mirror = BlockMirror::new(page(2), 2, format);
                let namespace = Namespace::new(extra_key, salt);
                let change = CacheChange::Stored {
                    node: 5,
                    above: Above::Root(namespace),
                    tokens: NodeTokens::new(&[1, 2, 3, 4]),
                };
                let stored = events(&mut mirror, &[change]);
                let gone = events(&mut mirror, &[CacheChange::Removed { node: 5 }]);
                match (&stored[..], &gone[..]) {
                    ([KvEvent::Stored(blocks)], [KvEvent::Removed(ids)]) => {
                        assert_eq!(&blocks.ids, ids);
                        assert_eq!(blocks.cache_salt.as_deref(), salt);
                        assert_eq!(blocks.is_named, (extra_key, salt) != (None, None));
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
    }
}
