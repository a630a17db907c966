//! Tests of memory plans for GPUs.

use super::*;

fn gpu() -> MemoryBudget {
    MemoryBudget {
        place: Place::Gpu(0),
        page_table_bytes: GIB / 2,
        ..budget()
    }
}

#[test]
fn a_gpu_pool_takes_most_of_the_memory_by_default() {
    let slots = |bytes: f64| (bytes / f64::from(128 << 10)) as u64 - 16;
    let plan = MemoryPlan::new(gpu(), wish()).expect("the plan fits");
    let expected = slots(0.9 * (16 * GIB) as f64 - (4 * GIB) as f64);
    assert!(plan.max_total_tokens.abs_diff(expected) <= 16);
    assert_eq!(plan.limit, PoolLimit::DefaultFraction);
    let why = plan.explain().join("\n");
    assert!(
        why.contains("free on GPU 0")
            && why.contains("0.9")
            && why.contains("512.0 MiB for the page table"),
        "{why}"
    );
    // Where 0.9 of the memory would include part of the reserve, or not even hold the weights, the pool gets the rest.
    for (weights, reserve) in [(4 * GIB, 3 * GIB), (15 * GIB, GIB / 2)] {
        let tight = MemoryBudget {
            weights_bytes: weights,
            reserve_bytes: reserve,
            ..gpu()
        };
        let plan = MemoryPlan::new(tight, wish()).expect("the plan fits");
        assert_eq!(plan.limit, PoolLimit::FreeMemory, "{weights}");
    }
    let none = MemoryBudget {
        reserve_bytes: 12 * GIB,
        ..gpu()
    };
    let text = MemoryPlan::new(none, wish()).expect_err("nothing is left");
    let text = text.to_string();
    assert!(
        text.contains("the page table takes 512.0 MiB") && text.contains("a larger page_size"),
        "{text}"
    );
}

/// A card with 16 GiB, pages of one token and a context of 131,072: half a MiB of page table for each request.
#[test]
fn a_gpu_reserves_page_tables_for_the_requests_that_its_pool_runs() {
    const TABLE_BYTES: u64 = 4 * 131_072;
    let wish = MemoryWish {
        page_size: 1,
        context_tokens: 131_072,
        ..wish()
    };
    let budget = |rows: u32| {
        let page_table_bytes = TABLE_BYTES * u64::from(rows + 1);
        Ok(MemoryBudget {
            reserve_bytes: GIB + page_table_bytes,
            page_table_bytes,
            max_rows: rows,
            ..gpu()
        })
    };
    let plan = MemoryPlan::by_rows(wish, budget).expect("the plan fits");
    assert_eq!(plan.max_running_requests, 2048, "the pool runs no more");
    assert_eq!(plan.budget.page_table_bytes, TABLE_BYTES * 2049);
    // Page tables for 2,048 requests leave no memory for a pool; tables for fewer requests do.
    let small = |rows| {
        budget(rows).map(|budget| MemoryBudget {
            free_before_bytes: 6 * GIB,
            ..budget
        })
    };
    let plan = MemoryPlan::by_rows(wish, small).expect("the plan fits with fewer requests");
    let rows = plan.max_running_requests;
    assert_eq!(plan.budget.max_rows, rows);
    let wider = MemoryPlan::new(small(rows + 1).expect("a budget"), wish);
    assert!(
        wider.is_ok_and(|wider| wider.max_running_requests < rows + 1),
        "{rows}"
    );
    let asked = MemoryWish {
        max_running_requests: Some(7),
        ..wish
    };
    let plan = MemoryPlan::by_rows(asked, budget).expect("the plan fits");
    assert_eq!(plan.budget.page_table_bytes, TABLE_BYTES * 8);
    let full = |rows| {
        budget(rows).map(|budget| MemoryBudget {
            weights_bytes: 15 * GIB,
            ..budget
        })
    };
    MemoryPlan::by_rows(wish, full).expect_err("one request does not fit");
}

#[test]
fn free_memory_after_loading_is_compared_with_the_plan() {
    let plan = MemoryPlan::new(gpu(), wish()).expect("the plan fits");
    plan.check_loaded(12 * GIB).expect("the plan fits");
    plan.check_loaded(12 * GIB - GIB / 2)
        .expect("0.1 of 16 GiB is more than the reserve");
    let text = plan
        .check_loaded(11 * GIB)
        .expect_err("too little memory is free")
        .to_string();
    assert!(text.contains("11.0 GiB are free"), "{text}");
    let fraction: f64 = text
        .split("--mem-fraction-static ")
        .nth(1)
        .and_then(|rest| rest.split(' ').next()?.parse().ok())
        .unwrap_or_else(|| panic!("no fraction in {text}"));
    let again = MemoryWish {
        mem_fraction_static: Some(fraction),
        ..wish()
    };
    let smaller = MemoryPlan::new(gpu(), again).expect("the plan fits");
    assert!(
        smaller.kv_bytes + gpu().reserve_bytes <= 11 * GIB,
        "{fraction}"
    );
    assert!(
        smaller.kv_bytes + gpu().reserve_bytes > 11 * GIB - GIB / 16,
        "{fraction}"
    );
    let none = plan
        .check_loaded(GIB / 2)
        .expect_err("too little memory is free")
        .to_string();
    assert!(none.contains("no fraction works"), "{none}");
    // A fraction that the user set may use the reserve, but no more memory than the device has.
    let most = MemoryWish {
        mem_fraction_static: Some(0.99),
        ..wish()
    };
    let most = MemoryPlan::new(gpu(), most).expect("the plan fits");
    most.check_loaded(12 * GIB).expect("the pool fits");
    most.check_loaded(11 * GIB)
        .expect_err("the pool alone is larger");
}
