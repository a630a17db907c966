//! Tests of the tree's allocations and of the memory that it retains.

use std::sync::Arc;

use souffleur_state::cache::namespace::Namespace;
use souffleur_state::cache::radix_tree::Insert;

use crate::Memory;
use crate::counting_allocator::{allocations_of, live_bytes};

/// A path of 64 nodes of 16 tokens each, and its key.
fn deep_tree(page_size: u32) -> (Memory, Vec<u32>) {
    let mut memory = Memory::new(page_size, "lru", 4_096);
    let key: Vec<u32> = (0..1_024).collect();
    for end in (16..=key.len()).step_by(16) {
        memory.insert(&key[..end]);
    }
    assert_eq!(memory.tree.n_nodes(), 64);
    (memory, key)
}

#[test]
fn match_that_needs_no_split_allocates_nothing() {
    let salted = Namespace::new(Some("lora"), Some("salt"));
    for page_size in [1, 16] {
        let (mut memory, mut key) = deep_tree(page_size);
        memory.insert_in(&salted, &key);
        key.push(7);
        for namespace in [Namespace::default(), salted.clone()] {
            let matches = || memory.tree.match_prefix(&namespace, &key).tokens;
            assert_eq!(allocations_of(matches), (1_024, 0));
            let peeks = || memory.tree.peek(&namespace, &key);
            assert_eq!(allocations_of(peeks), (1_024, 0));
        }
        let nothing = || memory.tree.touch_prefix(&Namespace::default(), &[9, 9, 9]);
        assert_eq!(allocations_of(nothing), (0, 0));
    }
}

#[test]
fn match_with_lock_and_unlock_of_a_short_path_allocates_nothing() {
    let (mut memory, key) = deep_tree(16);
    let cycle = || {
        let locked = memory.tree.lock_prefix(&Namespace::default(), &key[..64]);
        memory.tree.unlock(locked.lock);
        locked.tokens
    };
    assert_eq!(allocations_of(cycle), (64, 0));
}

#[test]
fn short_half_of_a_split_does_not_keep_the_memory_of_the_long_half() {
    let before = live_bytes();
    let mut memory = Memory::new(1, "lru", 100_100);
    let empty = live_bytes();
    let long: Vec<u32> = (0..100_000).collect();
    memory.insert(&long);
    drop(long);
    assert!(live_bytes() - empty >= 800_000);
    memory.matched(&[0, 1, 2, 3, 4]);
    assert_eq!(memory.evict(1), 99_995);
    assert_eq!(memory.tree.total_size(), 5);
    assert!(
        live_bytes() - empty < 10_000,
        "{} bytes are kept",
        live_bytes() - empty
    );
    drop(memory);
    assert_eq!(live_bytes(), before);
}

fn insert_owned(memory: &mut Memory, owner: &Arc<[u32]>, n_tokens: usize) {
    let pages = memory.alloc(n_tokens);
    let inserted = memory.tree.insert(Insert {
        namespace: &Namespace::default(),
        tokens: &owner[..n_tokens],
        owner: Some(owner),
        pages,
        priority: 0,
        inserted_tokens: 0,
    });
    memory.pool.free(inserted.duplicates);
    memory.pool.free(inserted.rest);
    memory.check();
}

#[test]
fn prompt_is_shared_with_the_tree_if_most_of_it_is_in_the_new_node() {
    let mut memory = Memory::new(1, "lru", 100_000);
    let prompt: Arc<[u32]> = (0..10_000).collect();
    insert_owned(&mut memory, &prompt, 9_000);
    assert_eq!(Arc::strong_count(&prompt), 2);
    insert_owned(&mut memory, &prompt, 10_000);
    assert_eq!(
        Arc::strong_count(&prompt),
        2,
        "a node of a tenth of the prompt does not retain the prompt"
    );
    assert_eq!(memory.peek(&prompt), 10_000);

    let other: Arc<[u32]> = (100..10_100).rev().collect();
    insert_owned(&mut memory, &other, 8_000);
    assert_eq!(
        Arc::strong_count(&other),
        1,
        "a fifth of the prompt is not cached, so it is copied"
    );

    memory.matched(&prompt[..600]);
    assert_eq!((memory.tree.n_nodes(), Arc::strong_count(&prompt)), (4, 2));
    let longer: Arc<[u32]> = prompt[..50].iter().copied().chain(0..9_000).collect();
    insert_owned(&mut memory, &longer, longer.len());
    assert_eq!(
        Arc::strong_count(&longer),
        2,
        "few tokens precede the new node, so the prompt is not copied"
    );
    assert_eq!(memory.peek(&longer), longer.len());

    memory.evict(usize::MAX);
    let counts = [&prompt, &other, &longer].map(Arc::strong_count);
    assert_eq!(counts, [1; 3]);
}

#[test]
fn cached_tokens_cost_at_most_ten_bytes_each_after_many_splits_and_evictions() {
    const CAPACITY: usize = 60_000;
    let mut memory = Memory::new(1, "lru", 100_000);
    let mut random = 1u64;
    let mut below = |n: u64| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % n
    };
    let empty = live_bytes();
    let mut key: Vec<u32> = Vec::new();
    for _ in 0..400 {
        // A conversation continues, restarts from an earlier point, or a new one begins.
        let kept = [0, key.len() as u64, below(key.len() as u64 + 1)][below(3) as usize];
        key.truncate(kept as usize);
        let n_new = 100 + below(700);
        key.extend((0..n_new).map(|_| below(50_000) as u32));
        let needed = memory.tree.total_size() + key.len();
        memory.evict(needed.saturating_sub(CAPACITY));
        memory.insert(&key);
        key.truncate(8_000);
    }
    let n_tokens = memory.tree.total_size();
    assert!(n_tokens > CAPACITY / 2);
    let per_token = (live_bytes() - empty) as f64 / n_tokens as f64;
    assert!(
        per_token <= 10.0,
        "{per_token:.2} bytes a token in {} nodes",
        memory.tree.n_nodes()
    );
}
