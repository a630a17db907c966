//! Tests of the prefix cache: situations that failed in other engines, one test each, and published examples.

use souffleur_base::ids::{IntakeId, PageId, SeqId, StepId};
use souffleur_base::in_hand;
use souffleur_state::cache::eviction::EvictionPolicy;
use souffleur_state::cache::namespace::Namespace;
use souffleur_state::cache::prefix_cache::Checkpoint;
use souffleur_state::cache::radix_tree::{Insert, RadixTree};
use souffleur_state::control::plan_step;
use souffleur_state::plan::{PlanStep, Settle, SettleRelease};
use souffleur_state::pool::pages::{NodeLock, Pages};

use crate::{HeldKv, Memory, panics};

fn numbers(range: std::ops::Range<u32>) -> Vec<u32> {
    range.collect()
}

fn followed_by(prefix: &[u32], rest: std::ops::Range<u32>) -> Vec<u32> {
    prefix.iter().copied().chain(rest).collect()
}

#[test]
fn disjoint_keys_share_nothing_and_a_shared_prefix_is_stored_once() {
    let (a, b, c, d, e) = (1, 2, 3, 4, 5);
    let mut memory = Memory::new(1, "lru", 32);
    assert_eq!(memory.insert(&[a, b]), 0);
    assert_eq!(memory.insert(&[c, d, e]), 0);
    assert_eq!((memory.tree.n_nodes(), memory.tree.total_size()), (2, 5));
    assert_eq!(
        (memory.matched(&[a, b, c]), memory.matched(&[c, d, e])),
        (2, 3)
    );

    assert_eq!(memory.insert(&[c, d, a, b]), 2);
    assert_eq!((memory.tree.n_nodes(), memory.tree.total_size()), (4, 7));
    assert_eq!(memory.matched(&[c, d, a]), 3);
    memory.assert_idle();
}

#[test]
fn long_key_split_inside_a_page_is_cut_at_the_page_before() {
    let mut memory = Memory::new(16, "lru", 400);
    let stored = numbers(0..2_500);
    assert_eq!(memory.insert(&stored), 0);
    assert_eq!(memory.tree.total_size(), 2_496);

    let other = followed_by(&stored[..1_587], 10_000..10_500);
    assert_eq!((memory.peek(&other), memory.tree.n_nodes()), (1_584, 1));
    assert_eq!((memory.matched(&other), memory.tree.n_nodes()), (1_584, 2));
    assert_eq!(memory.insert(&other), 1_584);
    assert_eq!(
        (memory.tree.n_nodes(), memory.tree.total_size()),
        (3, 2_496 + 2_080 - 1_584)
    );
    assert_eq!((memory.peek(&stored), memory.peek(&other)), (2_496, 2_080));
}

#[test]
fn peek_neither_touches_nor_splits_nor_locks() {
    let mut memory = Memory::new(4, "lru", 16);
    memory.insert(&numbers(0..8));
    memory.insert(&numbers(100..108));
    assert_eq!((memory.peek(&numbers(0..6)), memory.tree.n_nodes()), (4, 2));
    assert_eq!((memory.evict(1), memory.peek(&numbers(0..8))), (8, 0));
}

#[test]
fn prompt_computed_in_chunks_while_a_copy_is_cached_frees_its_duplicates_once() {
    let mut memory = Memory::new(4, "lru", 16);
    let prompt = numbers(0..10);
    let mut held = HeldKv {
        private: memory.alloc(6),
        ..HeldKv::default()
    };
    let mine: Vec<PageId> = held.private.ids().to_vec();
    memory.run_request(&prompt, prompt.len());

    let first = memory.checkpoint(&prompt[..6], prompt.len(), held);
    assert_eq!(first.duplicates.ids(), &mine[..1]);
    assert_eq!(
        (first.private.ids(), first.protected_pages),
        (&mine[1..], 1)
    );
    assert_eq!((first.remap.len(), first.inserted_tokens), (1, 4));
    memory.pool.free(first.duplicates);

    let mut private = first.private;
    private.append(memory.alloc(4));
    held = HeldKv {
        private,
        lock: first.lock,
        protected_pages: 1,
        inserted_tokens: 4,
    };
    let second = memory.checkpoint(&prompt, prompt.len(), held);
    assert_eq!(
        (second.duplicates.ids(), second.protected_pages),
        (&mine[1..], 2)
    );
    assert_eq!((second.private.len(), second.remap.len()), (1, 1));
    memory.release(second);
    memory.assert_idle();
}

#[test]
fn two_sequences_with_one_prompt_in_one_batch_end_on_the_same_pages() {
    let mut memory = Memory::new(1, "lru", 16);
    let prompt = numbers(0..5);
    let (one, two) = (memory.alloc(5), memory.alloc(5));
    let published = one.ids().to_vec();
    let one = memory.checkpoint(
        &prompt,
        5,
        HeldKv {
            private: one,
            ..HeldKv::default()
        },
    );
    let two = memory.checkpoint(
        &prompt,
        5,
        HeldKv {
            private: two,
            ..HeldKv::default()
        },
    );
    assert!(one.duplicates.is_empty() && one.private.is_empty());
    assert_eq!(two.duplicates.len(), 5);
    assert_eq!(two.remap.iter().collect::<Vec<_>>(), published);
    memory.release(one);
    assert_eq!(memory.tree.protected_size(), 5);
    memory.release(two);
    memory.assert_idle();
}

#[test]
fn abort_before_a_checkpoint_publishes_nothing() {
    let mut memory = Memory::new(4, "lru", 8);
    memory.insert(&numbers(0..4));
    let lock = memory.lock(&numbers(0..20));
    let unwritten = memory.alloc(16);
    memory.pool.free(unwritten);
    memory.tree.unlock(lock);
    assert_eq!(
        (memory.peek(&numbers(0..20)), memory.tree.n_nodes()),
        (4, 1)
    );
    memory.assert_idle();
}

#[test]
fn split_of_a_locked_node_leaves_both_halves_locked() {
    for page_size in [1, 4] {
        let mut memory = Memory::new(page_size, "lru", 64);
        memory.insert(&numbers(0..16));
        let lock = memory.lock(&numbers(0..16));
        assert_eq!(memory.matched(&followed_by(&numbers(0..8), 90..95)), 8);
        memory.insert(&followed_by(&numbers(0..12), 80..84));
        assert_eq!(
            (memory.tree.protected_size(), memory.tree.evictable_size()),
            (16, 4)
        );
        assert_eq!((memory.evict(100), memory.peek(&numbers(0..16))), (4, 16));
        memory.tree.unlock(lock);
        assert_eq!((memory.evict(100), memory.tree.n_nodes()), (16, 0));
        memory.assert_idle();
    }
}

#[test]
fn lock_on_the_upper_half_leaves_the_lower_half_evictable() {
    let mut memory = Memory::new(4, "lru", 16);
    memory.insert(&numbers(0..16));
    let lock = memory.lock(&numbers(0..9));
    assert_eq!(
        (memory.tree.protected_size(), memory.tree.evictable_size()),
        (8, 8)
    );
    assert_eq!((memory.evict(100), memory.peek(&numbers(0..16))), (8, 8));
    memory.tree.unlock(lock);
    memory.assert_idle();
}

#[test]
fn output_can_be_evicted_without_the_prompt() {
    for policy in EvictionPolicy::names() {
        let mut memory = Memory::new(4, policy, 16);
        let sequence = numbers(0..22);
        memory.run_request(&sequence, 10);
        assert_eq!((memory.tree.n_nodes(), memory.tree.total_size()), (2, 20));
        assert_eq!(
            (memory.evict(1), memory.peek(&sequence)),
            (12, 8),
            "{policy}"
        );
    }
}

#[test]
fn priority_policy_evicts_the_output_of_a_request_before_prompts() {
    let mut memory = Memory::new(1, "priority", 32);
    memory.run_request(&numbers(0..4), 4);
    memory.run_request(&numbers(100..108), 4);
    assert_eq!((memory.evict(1), memory.peek(&numbers(100..108))), (4, 4));
    assert_eq!(memory.peek(&numbers(0..4)), 4);
}

#[test]
fn request_counts_as_one_hit_however_many_chunks_it_comes_in() {
    let mut memory = Memory::new(1, "lfu", 64);
    memory.run_request(&numbers(100..104), 4);
    memory.run_request(&numbers(100..104), 4);

    let prompt = numbers(0..8);
    let mut held = HeldKv {
        private: memory.alloc(8),
        ..HeldKv::default()
    };
    for end in 1..=8 {
        let done = memory.checkpoint(&prompt[..end], 8, held);
        assert_eq!(done.inserted_tokens, end);
        assert!(done.duplicates.is_empty());
        held = HeldKv {
            private: done.private,
            lock: done.lock,
            protected_pages: done.protected_pages,
            inserted_tokens: done.inserted_tokens,
        };
    }
    memory.tree.unlock(held.lock);
    assert_eq!((memory.evict(8), memory.peek(&prompt)), (8, 0));
    assert_eq!(memory.peek(&numbers(100..104)), 4);
}

#[test]
fn namespaces_never_share_and_keep_their_own_splits() {
    let spaces = [
        Namespace::default(),
        Namespace::new(Some("lora"), None),
        Namespace::new(None, Some("lora")),
        Namespace::new(Some("lora"), Some("salt")),
    ];
    let mut memory = Memory::new(4, "lru", 64);
    for space in &spaces {
        assert_eq!(memory.insert_in(space, &numbers(0..16)), 0);
    }
    assert_eq!(
        memory.tree.match_prefix(&spaces[1], &numbers(0..9)).tokens,
        8
    );
    assert_eq!(memory.tree.n_nodes(), 5);
    assert_eq!(
        memory.insert_in(&Namespace::new(Some("lora"), Some("")), &numbers(0..16)),
        16
    );
    for space in &spaces {
        assert_eq!(memory.tree.peek(space, &numbers(0..16)), 16);
    }
    assert_eq!(memory.evict(1_000), 64);
    memory.assert_idle();
}

#[test]
fn empty_salt_is_no_salt_but_an_empty_extra_key_is_a_key() {
    assert_eq!(Namespace::new(None, Some("")), Namespace::default());
    assert!(Namespace::new(None, Some("")).is_default());
    assert_ne!(Namespace::new(Some(""), None), Namespace::default());
}

#[test]
fn match_without_the_last_token_ends_with_a_whole_page() {
    for (page_size, expected) in [(1, 15), (4, 12), (16, 0)] {
        let mut memory = Memory::new(page_size, "lru", 32);
        let prompt = numbers(0..16);
        memory.insert(&prompt);
        assert_eq!(memory.matched(&prompt[..15]), expected);
    }
}

#[test]
fn eviction_takes_whole_nodes_and_continues_with_parents_that_became_leaves() {
    for policy in EvictionPolicy::names() {
        let mut memory = Memory::new(4, policy, 32);
        let base = numbers(0..8);
        memory.insert(&followed_by(&base, 100..112));
        memory.insert(&followed_by(&base, 200..204));
        assert_eq!((memory.tree.n_nodes(), memory.evict(0)), (3, 0));
        let first = memory.evict(1);
        assert!(first == 12 || first == 4, "{policy} evicted {first}");
        assert_eq!(memory.evict(17 - first), 24 - first, "{policy}");
        memory.assert_idle();
    }
}

#[test]
fn checkpoint_shorter_than_the_locked_prefix_keeps_lock_and_pages() {
    let mut memory = Memory::new(4, "lru", 16);
    let sequence = numbers(0..16);
    memory.insert(&sequence);
    let lock = memory.lock(&sequence);
    let held = HeldKv {
        private: memory.alloc(2),
        lock,
        protected_pages: 4,
        inserted_tokens: 16,
    };
    let done = memory.checkpoint(&sequence[..6], 3, held);
    assert_eq!((done.protected_pages, done.inserted_tokens), (4, 16));
    assert_eq!(
        (done.private.len(), done.duplicates.len(), done.remap.len()),
        (1, 0, 0)
    );
    memory.release(done);
    memory.assert_idle();
}

#[test]
fn nodes_used_by_a_checkpoint_are_evicted_last() {
    let mut memory = Memory::new(1, "lru", 32);
    memory.run_request(&numbers(0..8), 4);
    memory.insert(&numbers(100..104));
    memory.run_request(&numbers(0..8), 4);
    assert_eq!((memory.evict(1), memory.peek(&numbers(100..104))), (4, 0));
}

#[test]
fn clear_returns_everything_that_no_lock_protects() {
    let mut memory = Memory::new(4, "lru", 32);
    memory.insert(&numbers(0..16));
    memory.insert(&numbers(100..116));
    let lock = memory.lock(&numbers(0..8));
    let cleared = memory.tree.clear();
    assert_eq!((cleared.len(), memory.tree.total_size()), (6, 8));
    memory.pool.free(cleared);
    memory.check();
    memory.tree.unlock(lock);
    let cleared = memory.tree.clear();
    assert_eq!((cleared.len(), memory.tree.n_nodes()), (2, 0));
    memory.pool.free(cleared);
    assert_eq!(memory.insert(&numbers(0..16)), 0);
    memory.assert_idle();
}

#[test]
fn lock_of_an_empty_prefix_may_be_dropped_or_unlocked() {
    let mut memory = Memory::new(4, "lru", 8);
    let locked = memory
        .tree
        .lock_prefix(&Namespace::default(), &numbers(0..16));
    assert_eq!((locked.tokens, locked.pages.len()), (0, 0));
    memory.tree.unlock(locked.lock);
    drop(memory.lock(&numbers(0..3)));
    memory.tree.unlock(NodeLock::root());
    memory.assert_idle();
}

#[test]
fn dropped_lock_is_counted_and_panics_in_debug_builds() {
    let mut memory = Memory::new(4, "lru", 8);
    memory.insert(&numbers(0..8));
    let lock = memory.lock(&numbers(0..8));
    assert_eq!(panics(|| drop(lock)), cfg!(debug_assertions));
    assert_eq!(memory.ledger.lost_locks(), 1);
}

#[test]
fn unknown_policy_error_lists_the_names() {
    let error = EvictionPolicy::from_name("LRU").expect_err("names are lower case");
    let names: Vec<_> = EvictionPolicy::names().collect();
    let expected = format!(
        "unknown eviction policy \"LRU\", choose one of {}",
        names.join(", ")
    );
    assert_eq!(error.to_string(), expected);
    assert_eq!(EvictionPolicy::CHOICES, names.join("|"));
    assert_eq!(EvictionPolicy::default().name(), "lru");
}

#[test]
fn a_disabled_tree_keeps_nothing_and_gives_everything_back() {
    let mut memory = Memory::new(4, "lru", 8);
    let mut plain = RadixTree::disabled(memory.page_size, memory.ledger.clone());
    let namespace = &Namespace::default();
    let tokens = numbers(0..8);
    let private = memory.alloc(8);
    let locked = plain.lock_prefix(namespace, &tokens);
    let done = plain.checkpoint(Checkpoint {
        namespace,
        tokens: &tokens,
        owner: None,
        prompt_tokens: 8,
        protected_pages: 0,
        private,
        lock: locked.lock,
        inserted_tokens: 0,
        priority: 0,
        states: Vec::new(),
        windows: None,
        boundaries: &[],
        stored_tokens: 0,
    });
    assert!(plain.is_disabled() && !memory.tree.is_disabled());
    assert_eq!(
        (
            done.private.len(),
            done.protected_pages,
            done.duplicates.len()
        ),
        (2, 0, 0)
    );
    assert_eq!(
        (
            plain.peek(namespace, &tokens),
            plain.evict(8).n_tokens(),
            plain.clear().len()
        ),
        (0, 0, 0)
    );
    plain.unlock(done.lock);
    let inserted = plain.insert(Insert {
        namespace,
        tokens: &tokens,
        owner: None,
        pages: done.private,
        priority: 0,
        inserted_tokens: 0,
    });
    assert_eq!((inserted.rest.len(), plain.n_nodes()), (2, 0));
    memory.pool.free(inserted.rest);
    memory.assert_idle();
}

#[test]
fn a_panic_at_a_lock_of_no_request_does_not_name_the_request_before() {
    let tokens = numbers(0..8);
    let [mut memory, mut other] = [(); 2].map(|()| Memory::new(1, "lru", 32));
    memory.insert(&tokens);
    other.insert(&tokens);
    let release = SettleRelease {
        seq: SeqId::new(1),
        intake: IntakeId::new(1),
        row: None,
        key: None,
        protected_pages: 0,
        private: Pages::empty(),
        lock: NodeLock::default(),
        states: Vec::new(),
        returned_states: Vec::new(),
        windows: None,
    };
    // The tree has not counted this lock, which is of the other tree.
    let foreign = other.lock(&tokens);
    let plan = PlanStep {
        settle: vec![Settle::Release(Box::new(release)), Settle::Unlock(foreign)],
        ..PlanStep::empty(StepId::new(1), 24, 1)
    };
    assert!(panics(|| drop(plan_step(&mut memory.tree, plan))));
    assert_eq!(in_hand::take(), None);
}

#[test]
fn each_key_of_several_is_announced_whenever_the_tree_works_on_it() {
    let mut memory = Memory::new(1, "lru", 8);
    memory.insert(&[1, 2, 3]);
    let namespace = Namespace::default();
    let keys: [&[u32]; 2] = [&[1, 2], &[1, 2, 3]];
    let mut begun = Vec::new();
    let prefixes = keys.iter().map(|key| (&namespace, *key));
    let touched = memory.tree.touch_paths(prefixes, |place| begun.push(place));
    let lengths: Vec<(usize, usize)> = touched
        .iter()
        .map(|(tokens, path)| (*tokens, path.len()))
        .collect();
    assert_eq!(lengths, [(2, 1), (3, 2)]);
    assert_eq!(begun, [0, 1, 0, 1]);
    memory.assert_idle();
}
