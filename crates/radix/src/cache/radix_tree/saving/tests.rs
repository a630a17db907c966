//! Tests of the record of blocks in the KV store, and of the queue of paths whose blocks are to be saved.

use super::*;
use crate::cache::eviction::EvictionPolicy;
use crate::cache::radix_tree::Insert;
use crate::pool::pages::{PageIds, PageSize, Pages, PoolLedger};
use souffleur_base::ids::PageId;

const BLOCK: usize = 4;

struct Saver {
    tree: RadixTree,
    ledger: Arc<PoolLedger>,
    next_page: u32,
}

impl Saver {
    fn new(page_size: u32, min_hits: u32) -> Self {
        let page_size = PageSize::new(page_size).expect("the page size is positive");
        let ledger = Arc::new(PoolLedger::new(page_size));
        let tree = RadixTree::new(page_size, EvictionPolicy::default(), ledger.clone());
        let rules = SaveRules {
            block_tokens: BLOCK,
            min_hits,
        };
        Self {
            tree: tree.with_saves(rules),
            ledger,
            next_page: 1,
        }
    }

    /// Publishes a path; the store has the first `stored` tokens.
    fn publish(&mut self, tokens: &[u32], stored: usize) {
        self.publish_array(&tokens.into(), stored);
    }

    fn publish_array(&mut self, owner: &Arc<[u32]>, stored: usize) {
        let tokens = &owner[..];
        let namespace = Namespace::default();
        let n_pages = self.tree.page_size.full_pages(tokens.len()) as u32;
        let ids: Vec<PageId> = (0..n_pages)
            .map(|page| PageId::new(self.next_page + page))
            .collect();
        self.next_page += n_pages;
        let inserted = self.tree.insert(Insert {
            namespace: &namespace,
            tokens,
            owner: Some(owner),
            pages: Pages::adopt(PageIds::from_slice(&ids), &self.ledger),
            priority: 0,
            inserted_tokens: 0,
        });
        self.ledger.close();
        drop((inserted.duplicates, inserted.rest));
        let key = Key {
            namespace: &namespace,
            tokens: &tokens[..self.tree.page_size.floor(tokens.len())],
            owner: Some(owner),
        };
        let (node, _) = self.tree.match_and_split(&namespace, key.tokens);
        self.tree.queue_saves(node, key, stored);
    }

    fn take(&mut self, blocks: usize) -> Vec<(u32, Vec<u32>)> {
        self.take_with(StoreRecordChange::Keep, blocks)
    }

    fn take_with(&mut self, account: StoreRecordChange, blocks: usize) -> Vec<(u32, Vec<u32>)> {
        let blocks = self.tree.take_unsaved(SaveDemand {
            blocks,
            states: 0,
            account,
        });
        let blocks = blocks.into_iter().map(|block| match block.part {
            UnsavedPart::Pages(pages) => {
                let pages = pages.iter().map(|page| page.get()).collect();
                (block.block, pages)
            }
            UnsavedPart::State(state) => panic!("{state} of a tree without states"),
        });
        blocks.collect()
    }
}

fn tokens(n: u32) -> Vec<u32> {
    (0..n).collect()
}

#[test]
fn whole_blocks_are_taken_once_and_in_order() {
    let mut saver = Saver::new(1, 1);
    saver.publish(&tokens(10), 0);
    let expected = vec![(0, vec![1, 2, 3, 4]), (1, vec![5, 6, 7, 8])];
    assert_eq!(saver.take(9), expected);
    assert!(saver.take(9).is_empty());
    assert_eq!(saver.tree.save_counts(), SaveCounts::default());
}

#[test]
fn a_block_spans_nodes_and_a_branch_repeats_shared_pages() {
    let mut saver = Saver::new(1, 1);
    saver.publish(&tokens(6), 0);
    let other: Vec<u32> = (0..6).chain([90, 91]).collect();
    saver.publish(&other, 0);
    saver.publish(&tokens(8), 0);
    let taken = saver.take(9);
    let expected = [
        (0, vec![1, 2, 3, 4]),
        (1, vec![5, 6, 13, 14]),
        (1, vec![5, 6, 21, 22]),
    ];
    assert_eq!(taken, expected);
}

#[test]
fn at_most_the_requested_number_of_blocks_is_taken() {
    let mut saver = Saver::new(2, 1);
    saver.publish(&tokens(24), 0);
    let taken = [0, 4, 1, 4].map(|blocks| saver.take(blocks).len());
    assert_eq!(taken, [0, 4, 1, 1]);
}

#[test]
fn stored_blocks_and_blocks_used_too_rarely_are_not_taken() {
    let mut saver = Saver::new(1, 1);
    saver.publish(&tokens(12), 8);
    assert_eq!(saver.take(9), [(2, vec![9, 10, 11, 12])]);
    let mut saver = Saver::new(1, 2);
    saver.publish(&tokens(8), 0);
    assert!(saver.take(9).is_empty());
    saver.publish(&tokens(12), 0);
    let blocks: Vec<u32> = saver.take(9).into_iter().map(|taken| taken.0).collect();
    assert_eq!(blocks, [0, 1]);
}

#[test]
fn tokens_evicted_before_their_turn_are_counted() {
    let mut saver = Saver::new(1, 1);
    saver.publish(&tokens(9), 0);
    drop(Pages::from(saver.tree.evict(9)));
    assert!(saver.take(9).is_empty());
    let counts = SaveCounts {
        queued: 0,
        dropped_tokens: 8,
    };
    assert_eq!(saver.tree.save_counts(), counts);
    // A new node reuses the index, and none of its blocks is stored.
    saver.publish(&tokens(4), 0);
    assert_eq!(saver.take(9).len(), 1);
}

#[test]
fn blocks_are_taken_again_at_the_next_publish_after_a_reset() {
    let mut saver = Saver::new(1, 1);
    saver.publish(&tokens(8), 0);
    let first = saver.take(9);
    assert_eq!(first.len(), 2);
    saver.publish(&tokens(8), 0);
    assert!(saver.take(9).is_empty());
    // The reset alone queues nothing.
    assert!(saver.take_with(StoreRecordChange::Forget, 9).is_empty());
    saver.publish(&tokens(8), 0);
    assert_eq!(saver.take(9), first);
    saver.publish(&tokens(8), 0);
    assert!(saver.take(9).is_empty());
}

#[test]
fn a_store_that_refuses_everything_is_offered_a_path_once() {
    let mut saver = Saver::new(1, 1);
    saver.publish(&tokens(16), 0);
    assert_eq!(saver.take(1).len(), 1);
    let taken: Vec<u32> = (0..9)
        .flat_map(|_| saver.take_with(StoreRecordChange::Forget, 1))
        .map(|(block, _)| block)
        .collect();
    assert_eq!(taken, [1, 2, 3]);
    assert_eq!(saver.tree.save_counts().queued, 0);
}

#[test]
fn equal_arrays_are_taken_like_one_array() {
    let prompt: Arc<[u32]> = tokens(16).into();
    let taken = [prompt.clone(), tokens(16).into()].map(|second| {
        let mut saver = Saver::new(1, 1);
        saver.publish_array(&prompt, 0);
        let mut taken = saver.take(1);
        taken.extend(saver.take_with(StoreRecordChange::Forget, 0));
        saver.publish_array(&second, 0);
        taken.extend(saver.take(2));
        (taken, saver.tree.save_counts())
    });
    assert_eq!(taken[0], taken[1]);
}

#[test]
fn the_queue_keeps_no_more_tokens_than_its_bound() {
    let mut saver = Saver::new(1, 1);
    let namespace = Namespace::default();
    let whole: Arc<[u32]> = vec![0; MAX_QUEUED_TOKENS].into();
    let saves = saver.tree.saves.as_mut().expect("the tree saves blocks");
    for owner in [whole, tokens(8).into()] {
        saves.push(Key {
            namespace: &namespace,
            tokens: &owner[..8],
            owner: Some(&owner),
        });
    }
    let counts = saver.tree.save_counts();
    assert_eq!((counts.queued, counts.dropped_tokens), (1, 8));
    // Taking the long path makes space in the queue.
    assert!(saver.take(9).is_empty());
    saver.publish(&tokens(8), 0);
    assert_eq!(saver.take(9).len(), 2);
}

#[test]
fn nothing_is_queued_after_the_store_has_stopped() {
    let mut saver = Saver::new(1, 1);
    saver.publish(&tokens(8), 0);
    assert!(saver.take_with(StoreRecordChange::End, 0).is_empty());
    assert_eq!(saver.tree.save_counts(), SaveCounts::default());
    saver.publish(&tokens(12), 0);
    assert_eq!(saver.tree.save_counts(), SaveCounts::default());
    // A new store starts.
    assert!(saver.take_with(StoreRecordChange::Forget, 0).is_empty());
    saver.publish(&tokens(12), 0);
    assert_eq!(saver.take(9).len(), 3);
}
