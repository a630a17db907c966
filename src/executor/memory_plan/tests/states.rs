//! Tests of memory plans for pools with recurrent states.

use super::*;

/// The 9B shape of Qwen3.5.
fn hybrid() -> MemoryWish {
    MemoryWish {
        kv_bytes_per_token: 32_768,
        state_bytes: 52_690_944,
        ..wish()
    }
}

#[test]
fn states_take_their_part_of_the_pool() {
    let plan = MemoryPlan::new(budget(), hybrid()).expect("the plan fits");
    // The pool is a quarter of 16 GiB. A fifth holds fewer cached states than the minimum, two for each of 16 rows.
    assert_eq!(
        (plan.limit, plan.state_slots),
        (PoolLimit::DefaultShare, 49)
    );
    assert_eq!(plan.max_running_requests, 16);
    let pages = 4 * GIB - 49 * 52_690_944;
    assert_eq!(plan.max_total_tokens, (pages / 32_768 - 16) / 16 * 16);
    assert!(plan.kv_bytes <= 4 * GIB && plan.kv_bytes > 4 * GIB - (1 << 20));
    let text = plan.explain().join("\n");
    assert!(
        text.contains("2.4 GiB for 49 recurrent states of 50.2 MiB each")
            && text.ends_with("requests at once      16"),
        "{text}"
    );
}

#[test]
fn requested_rows_and_tokens_size_the_states() {
    let plan = |wish| MemoryPlan::new(budget(), wish).expect("the plan fits");
    let few_rows = MemoryWish {
        max_running_requests: Some(2),
        ..hybrid()
    };
    let few = plan(few_rows);
    assert_eq!(few.max_running_requests, 2);
    // One state for each row, the dummy, and cached states in a fifth of the rest.
    let fifth = (4 * GIB - 3 * 52_690_944) / 5 / 52_690_944;
    assert_eq!(few.state_slots, 3 + fifth);
    assert!(few.kv_bytes <= 4 * GIB);
    let asked = plan(MemoryWish {
        max_total_tokens: Some(1000),
        ..few_rows
    });
    assert_eq!((asked.max_total_tokens, asked.state_slots), (992, 7));
    assert_eq!(asked.kv_bytes, 1008 * 32_768 + 7 * 52_690_944);
}

#[test]
fn a_pool_too_small_for_its_states_is_refused() {
    let small = MemoryBudget {
        free_before_bytes: 7 * GIB,
        ..budget()
    };
    let refused = |wish| {
        let error = MemoryPlan::new(small, wish).expect_err("states take 2.4 GiB");
        error.to_string()
    };
    let with_fraction = MemoryWish {
        mem_fraction_static: Some(0.8),
        ..hybrid()
    };
    for wish in [hybrid(), with_fraction] {
        let error = refused(wish);
        assert!(
            error.contains("2.4 GiB (one page, the dummy page and 49 states"),
            "{error}"
        );
        assert!(error.contains("a smaller max_running_requests"), "{error}");
    }
    let fewer = MemoryWish {
        max_running_requests: Some(4),
        ..hybrid()
    };
    MemoryPlan::new(small, fewer).expect("13 states fit");
}

#[test]
fn a_requested_number_of_states_sets_rows_and_memory() {
    let hybrid = |max_states, max_running_requests| MemoryWish {
        state_bytes: 50 << 20,
        max_total_tokens: Some(4096),
        max_states,
        max_running_requests,
        state_interval_tokens: Some(100),
        ..wish()
    };
    let plan = MemoryPlan::new(budget(), hybrid(Some(9), None)).expect("the plan fits");
    assert_eq!((plan.state_slots, plan.max_running_requests), (10, 8));
    let limits = plan.state_limits().expect("the plan has states");
    assert_eq!((limits.total_slots, limits.grid_tokens), (9, 112));
    let refused = MemoryPlan::new(budget(), hybrid(Some(9), Some(9)));
    let error = refused.expect_err("the cache has no state").to_string();
    assert!(
        error.contains("max_mamba_cache_size is 9, expected at least 10"),
        "{error}"
    );
}
