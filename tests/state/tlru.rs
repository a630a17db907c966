//! Tests of tail-optimised LRU eviction, with victims computed by hand.

use souffleur_state::cache::eviction::{EvictionParameters, EvictionPolicy};

use crate::Memory;

#[test]
fn tlru_evicts_the_tail_that_the_next_turn_can_compute_again_then_by_age() {
    let policy = |threshold, next_prompt_estimate| {
        let tlru = EvictionPolicy::from_name("tlru").expect("tlru exists");
        tlru.with_parameters(EvictionParameters {
            threshold,
            next_prompt_estimate,
            ..EvictionParameters::default()
        })
    };
    // An old conversation of 8 tokens in one node, a recent one of 2 in two nodes.
    let old: Vec<u32> = (1..=8).collect();
    let (head, recent) = ([20], [20, 21]);
    // (threshold, estimate, whether the recent conversation's last token is evicted first). That token starts at 1, and
    // 2 + estimate - threshold tokens of the conversation must be kept.
    for (threshold, estimate, evicts_recent) in [
        (0, 0, false),
        (4, 0, true),
        (4, 2, true),
        (4, 4, false),
        (1, 0, true),
        (8, 0, false),
    ] {
        let mut memory = Memory::with_policy(1, policy(threshold, estimate), 64);
        for key in [&old[..], &head, &recent] {
            memory.insert(key);
        }
        assert_eq!(memory.evict(1), if evicts_recent { 1 } else { 8 });
        let expected = if evicts_recent { (8, 1) } else { (0, 2) };
        assert_eq!((memory.peek(&old), memory.peek(&recent)), expected);
    }
}

#[test]
fn tlru_stops_at_the_part_of_a_conversation_that_it_must_keep() {
    let tlru = EvictionPolicy::from_name("tlru").expect("tlru exists");
    let policy = tlru.with_parameters(EvictionParameters {
        threshold: 5,
        next_prompt_estimate: 2,
        ..EvictionParameters::default()
    });
    let mut memory = Memory::with_policy(1, policy, 64);
    // Turns of one token each: every node is one token.
    let long: Vec<u32> = (1..=10).collect();
    for turn in 1..=10 {
        memory.insert(&long[..turn]);
    }
    let other: Vec<u32> = (30..=33).collect();
    memory.insert(&other);
    memory.matched(&long);
    // 10 + 2 - 5 = 7 tokens are kept, although the rest is younger than the other conversation.
    for kept in [9, 8, 7] {
        memory.evict(1);
        assert_eq!((memory.peek(&long), memory.peek(&other)), (kept, 4));
    }
    // The evicted tokens still count, so 7 tokens must be kept, and age decides.
    memory.evict(1);
    assert_eq!((memory.peek(&long), memory.peek(&other)), (7, 0));
}
