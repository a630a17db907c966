//! Tests of memory plans against values computed by hand.

mod gpu;
mod states;

use super::reserve::HEADROOM_BYTES;
use super::*;
use souffleur_model::config::ModelConfig;

const GIB: u64 = 1 << 30;

fn budget() -> MemoryBudget {
    MemoryBudget {
        place: Place::Host,
        free_before_bytes: 16 * GIB,
        weights_bytes: 4 * GIB,
        reserve_bytes: GIB,
        page_table_bytes: 0,
        store_bytes: 0,
        vision: VisionBytes::default(),
        max_rows: u32::MAX,
    }
}

fn wish() -> MemoryWish {
    MemoryWish {
        kv_bytes_per_token: 128 << 10,
        windows: None,
        state_bytes: 0,
        page_size: 16,
        context_tokens: 8192,
        mem_fraction_static: None,
        max_total_tokens: None,
        max_running_requests: None,
        max_states: None,
        caches_prefixes: true,
        state_interval_tokens: None,
    }
}

#[test]
fn tokens_that_take_no_kv_memory_are_bounded_by_contexts() {
    for fraction in [None, Some(0.8)] {
        let mut wish = wish();
        (wish.kv_bytes_per_token, wish.mem_fraction_static) = (0, fraction);
        let plan = MemoryPlan::new(budget(), wish).expect("the plan fits");
        let limited = (plan.max_total_tokens, plan.limit);
        assert_eq!(limited, (32 * 8192, PoolLimit::DefaultContexts));
    }
}

/// Budgets, inputs, and the expected pools: their tokens, and the limits that decide them.
fn limited_pools() -> Vec<(MemoryBudget, MemoryWish, u64, PoolLimit)> {
    let slots = |bytes: u64| bytes / (128 << 10) - 16;
    let wish = wish();
    let of_tokens = |tokens| MemoryWish {
        max_total_tokens: Some(tokens),
        ..wish
    };
    let big = MemoryBudget {
        weights_bytes: 14 * GIB,
        ..budget()
    };
    vec![
        (budget(), wish, slots(4 * GIB), PoolLimit::DefaultShare),
        (
            budget(),
            MemoryWish {
                context_tokens: 100,
                ..wish
            },
            3200,
            PoolLimit::DefaultContexts,
        ),
        (big, wish, slots(GIB), PoolLimit::FreeMemory),
        (
            budget(),
            MemoryWish {
                mem_fraction_static: Some(0.5),
                ..wish
            },
            slots(4 * GIB),
            PoolLimit::Fraction,
        ),
        (budget(), of_tokens(1007), 992, PoolLimit::MaxTotalTokens),
        (
            budget(),
            of_tokens(60_000),
            60_000,
            PoolLimit::MaxTotalTokens,
        ),
        (
            budget(),
            MemoryWish {
                max_total_tokens: Some(1 << 40),
                mem_fraction_static: Some(0.5),
                ..wish
            },
            slots(4 * GIB),
            PoolLimit::Fraction,
        ),
        (
            MemoryBudget {
                free_before_bytes: u64::MAX,
                ..budget()
            },
            MemoryWish {
                kv_bytes_per_token: 1,
                page_size: 1,
                mem_fraction_static: Some(0.9),
                ..wish
            },
            MAX_PAGES,
            PoolLimit::PageIds,
        ),
    ]
}

#[test]
fn the_tightest_limit_sizes_the_pool() {
    for (budget, wish, tokens, limit) in limited_pools() {
        let plan = MemoryPlan::new(budget, wish).expect("the plan fits");
        assert_eq!(
            (plan.max_total_tokens, plan.limit),
            (tokens, limit),
            "{wish:?}"
        );
        assert_eq!(u64::from(plan.n_pages) * u64::from(wish.page_size), tokens);
        assert_eq!(
            plan.kv_bytes,
            (tokens + u64::from(wish.page_size)) * wish.kv_bytes_per_token
        );
        assert!(plan.kv_bytes <= budget.free_before_bytes - budget.weights_bytes);
    }
}

#[test]
fn too_small_a_fraction_names_the_smallest_that_works() {
    let try_fraction = |fraction| {
        MemoryPlan::new(
            budget(),
            MemoryWish {
                mem_fraction_static: Some(fraction),
                ..wish()
            },
        )
    };
    let error = try_fraction(0.2)
        .expect_err("weights alone take 0.25")
        .to_string();
    assert!(
        error.ends_with("the smallest that works is 0.251"),
        "{error}"
    );
    assert!(try_fraction(0.251).is_ok());
    assert!(try_fraction(0.250).is_err());
    for outside in [0.0, 1.0, -1.0, f64::NAN] {
        let error = try_fraction(outside).expect_err("out of range").to_string();
        assert!(
            error.contains("expected more than 0 and less than 1"),
            "{error}"
        );
    }
}

#[test]
fn plans_that_do_not_fit_are_refused_with_numbers() {
    let refusals = [
        (
            MemoryBudget {
                weights_bytes: 17 * GIB,
                ..budget()
            },
            wish(),
            "the weights take 17.0 GiB, but 16.0 GiB",
        ),
        (
            MemoryBudget {
                reserve_bytes: 12 * GIB,
                ..budget()
            },
            wish(),
            "activations and headroom 12.0 GiB",
        ),
        (
            budget(),
            MemoryWish {
                page_size: 0,
                ..wish()
            },
            "page_size is 0, expected at least 1",
        ),
        (
            budget(),
            MemoryWish {
                max_total_tokens: Some(15),
                ..wish()
            },
            "at least one page of 16 tokens",
        ),
        (
            MemoryBudget {
                weights_bytes: 16 * GIB - 1,
                ..budget()
            },
            MemoryWish {
                mem_fraction_static: Some(0.9),
                ..wish()
            },
            "no fraction works",
        ),
    ];
    for (budget, wish, expected) in refusals {
        let error = MemoryPlan::new(budget, wish)
            .expect_err(expected)
            .to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn max_total_tokens_is_clamped_to_the_fraction() {
    for place in [Place::Host, Place::Gpu(0)] {
        let budget = MemoryBudget { place, ..budget() };
        for asked in [100_000, u64::MAX] {
            let wish = MemoryWish {
                max_total_tokens: Some(asked),
                mem_fraction_static: Some(0.5),
                ..wish()
            };
            let plan = MemoryPlan::new(budget, wish).expect("the plan is clamped");
            let expected = (PoolLimit::Fraction, Some(asked));
            assert_eq!((plan.limit, plan.clamped_request()), expected);
            assert!(plan.kv_bytes <= budget.free_before_bytes - budget.weights_bytes);
            let text = plan.explain().join("\n");
            let warning = format!("warning: --max-total-tokens {asked} would take");
            assert!(text.contains(&warning), "{text}");
        }
    }
}

#[test]
fn too_many_tokens_are_refused_with_the_number_that_fits() {
    let with = |place, max_total_tokens| {
        let wish = MemoryWish {
            max_total_tokens: Some(max_total_tokens),
            ..wish()
        };
        MemoryPlan::new(MemoryBudget { place, ..budget() }, wish)
    };
    for place in [Place::Host, Place::Gpu(0)] {
        for asked in [90_112, 100_000, u64::MAX] {
            let error = with(place, asked).expect_err("too many tokens").to_string();
            let expected = [&format!("max_total_tokens is {asked}"), "90096 tokens fit"];
            for part in expected {
                assert!(error.contains(part), "{part:?} is not in {error}");
            }
        }
        let all = with(place, 90_096).expect("the tokens fit");
        assert_eq!(
            (all.max_total_tokens, all.limit),
            (90_096, PoolLimit::FreeMemory)
        );
        // Rounding down to whole pages does not count as clamping.
        let fits = with(place, 1007).expect("the plan fits");
        assert_eq!((fits.max_total_tokens, fits.clamped_request()), (992, None));
    }
}

#[test]
fn the_limit_of_running_requests_depends_on_the_pool() {
    let running = |asked, tokens| {
        running_requests(
            &budget(),
            &MemoryWish {
                max_running_requests: asked,
                ..wish()
            },
            tokens,
        )
    };
    assert_eq!(running(None, 1 << 20), 4096);
    assert_eq!(running(None, 50_000), 3125);
    assert_eq!(running(None, 10_000), 2048);
    assert_eq!(running(None, 1000), 500);
    assert_eq!(running(None, 1), 1);
    assert_eq!(running(Some(8), 1000), 8);
}

#[test]
fn the_explanation_names_the_reason() {
    let text = |wish| {
        MemoryPlan::new(budget(), wish)
            .expect("the plan fits")
            .explain()
            .join("\n")
    };
    let by_default = text(wish());
    assert!(
        by_default.contains("4.0 GiB: 32752 tokens in 2047 pages of 16"),
        "{by_default}"
    );
    assert!(
        by_default.contains("25 % of the available memory"),
        "{by_default}"
    );
    assert!(
        by_default.contains("--mem-fraction-static is 0.937"),
        "{by_default}"
    );
    let greedy = text(MemoryWish {
        mem_fraction_static: Some(0.99),
        ..wish()
    });
    assert!(
        greedy.contains("warning: --mem-fraction-static 0.99"),
        "{greedy}"
    );
}

#[test]
fn available_memory_is_more_than_this_test_uses() {
    assert!(available_bytes().expect("the system reports its memory") > 1 << 20);
}

#[test]
fn the_reserve_grows_with_the_step_and_the_vocabulary() {
    let models =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/models");
    let config = ModelConfig::read(&models.join("llama")).expect("fixtures are supported");
    // 3 * 64 hidden, 2 * (64 + 32) heads, 3 * 112 in the MLP; 288 tokens in the vocabulary.
    assert_eq!(
        reserve_bytes(&config, 10, 3) - HEADROOM_BYTES,
        4 * (10 * 720 + 3 * 288)
    );
    assert_eq!(reserve_bytes(&config, u64::MAX, 1), u64::MAX);
}

#[test]
fn the_explanation_and_the_error_name_the_buffers_of_the_store() {
    let with_store = MemoryBudget {
        store_bytes: GIB / 2,
        ..budget()
    };
    let plan = MemoryPlan::new(with_store, wish()).expect("the plan fits");
    let why = plan.explain().join("\n");
    assert!(
        why.contains("512.0 MiB for buffers of the KV store"),
        "{why}"
    );
    let too_large = MemoryBudget {
        reserve_bytes: 1000 * GIB,
        store_bytes: 999 * GIB,
        ..budget()
    };
    let text = MemoryPlan::new(too_large, wish()).expect_err("nothing is left");
    assert!(text.to_string().contains("kv_host_bytes"), "{text}");
}

#[test]
fn the_explanation_names_the_memory_of_a_vision_tower() {
    let without = MemoryPlan::new(budget(), wish()).expect("the plan fits");
    assert!(!without.explain().join("\n").contains("image"));
    let with_tower = MemoryBudget {
        vision: VisionBytes {
            tower: GIB / 2,
            images: GIB / 4,
        },
        ..budget()
    };
    let plan = MemoryPlan::new(with_tower, wish()).expect("the plan fits");
    let why = plan.explain().join("\n");
    assert!(
        why.contains("512.0 MiB for the vision tower")
            && why.contains("256.0 MiB for an image that is encoded, and for vectors of images"),
        "{why}"
    );
    let on_gpu = MemoryBudget {
        place: Place::Gpu(0),
        ..with_tower
    };
    let plan = MemoryPlan::new(on_gpu, wish()).expect("the plan fits");
    let lines = plan.explain();
    let named: Vec<&String> = lines.iter().filter(|line| line.contains("image")).collect();
    assert!(
        named.len() == 1
            && named[0].starts_with("host memory           512.0 MiB for the vision tower"),
        "{lines:?}"
    );
}
