//! Tests of the thread pool.

use super::*;

#[test]
fn every_item_runs_once_for_any_number_of_threads() {
    for n_threads in [1, 2, 4] {
        let mut pool = ThreadPool::new(n_threads).expect("threads start");
        for n_items in [0, 1, 2, 7, 1000] {
            let counts: Vec<_> = (0..n_items).map(|_| AtomicUsize::new(0)).collect();
            pool.for_each(n_items, MIN_SHARED_COST, &|i| {
                counts[i].fetch_add(1, Ordering::Relaxed);
            });
            assert!(
                counts.iter().all(|c| c.load(Ordering::Relaxed) == 1),
                "{n_threads} threads, {n_items} items"
            );
        }
    }
}

#[test]
fn consecutive_kernels_never_mix() {
    let mut pool = ThreadPool::new(4).expect("threads start");
    for kernel in 0..20_000 {
        let sum = AtomicUsize::new(0);
        pool.for_each(5, MIN_SHARED_COST, &|i| {
            sum.fetch_add(kernel * 10 + i, Ordering::Relaxed);
        });
        assert_eq!(sum.load(Ordering::Relaxed), kernel * 50 + 10);
    }
}

#[test]
fn runs_take_every_item_once() {
    for n_threads in [1, 2, 3] {
        let mut pool = ThreadPool::new(n_threads).expect("threads start");
        for kernel in 0..300 {
            let n_items = [0, 1, 2, 5, 64][kernel % 5];
            let counts: Vec<_> = (0..n_items).map(|_| AtomicUsize::new(0)).collect();
            pool.for_each_in_runs(n_items, MIN_SHARED_COST, &|i| {
                counts[i].fetch_add(1, Ordering::Relaxed);
            });
            assert!(
                counts.iter().all(|c| c.load(Ordering::Relaxed) == 1),
                "{n_threads} threads, {n_items} items"
            );
        }
    }
}

#[test]
fn lanes_are_exclusive_and_every_item_runs_once() {
    let mut pool = ThreadPool::new(3).expect("threads start");
    for n_lanes in [1, 2, 5] {
        for n_items in [0, 1, 2, 100] {
            let mut lanes = vec![Vec::new(); n_lanes];
            pool.for_each_with(&mut lanes, n_items, MIN_SHARED_COST, &|lane, index| {
                lane.push(index);
            });
            let mut seen = lanes.concat();
            seen.sort_unstable();
            assert!(seen.iter().copied().eq(0..n_items), "{n_lanes} lanes");
        }
    }
}

#[test]
fn every_run_has_its_own_lane() {
    let mut pool = ThreadPool::new(3).expect("threads start");
    for n_items in [0, 1, 2, 7, 500] {
        let mut lanes = vec![Vec::new(); 3];
        pool.for_each_in_runs_with(&mut lanes, n_items, MIN_SHARED_COST, &|lane, index| {
            lane.push(index);
        });
        let mut seen = lanes.concat();
        seen.sort_unstable();
        assert!(seen.iter().copied().eq(0..n_items), "{n_items} items");
    }
}

#[test]
fn workers_wake_with_a_step_and_park_after_it() {
    let mut pool = ThreadPool::new(2).expect("threads start");
    let is_parked = |pool: &ThreadPool| pool.shared.parked[0].load(Ordering::SeqCst);
    let until_parked = |pool: &ThreadPool| {
        while !is_parked(pool) {
            std::thread::yield_now();
        }
    };
    until_parked(&pool);
    pool.wake();
    assert!(is_parked(&pool), "no kernel was ever shared");
    for _ in 0..100 {
        pool.for_each(2, MIN_SHARED_COST, &|_| {});
        pool.rest();
        until_parked(&pool);
        pool.wake();
        while is_parked(&pool) {
            std::thread::yield_now();
        }
        pool.rest();
        until_parked(&pool);
    }
}

#[test]
fn pool_that_is_dropped_within_a_step_ends_its_workers() {
    let mut pool = ThreadPool::new(3).expect("threads start");
    pool.for_each(3, MIN_SHARED_COST, &|_| {});
    pool.wake();
}

#[test]
fn panic_in_an_item_reaches_the_caller() {
    let mut pool = ThreadPool::new(2).expect("threads start");
    let result = catch_unwind(AssertUnwindSafe(|| {
        pool.for_each(8, MIN_SHARED_COST, &|i| assert_ne!(i, 5, "planted"))
    }));
    assert!(result.is_err());
}

/// Runs every item of some kernels, and checks that each item ran once.
fn check_kernels(pool: &mut ThreadPool, what: &str) {
    const N_ITEMS: usize = 64;
    for cost in [0, MIN_SHARED_COST] {
        let counts: Vec<_> = (0..N_ITEMS).map(|_| AtomicUsize::new(0)).collect();
        let count = |i: usize| {
            counts[i].fetch_add(1, Ordering::Relaxed);
        };
        let mut lanes = vec![(); pool.n_threads()];
        pool.for_each(N_ITEMS, cost, &count);
        pool.for_each_with(&mut lanes, N_ITEMS, cost, &|_, i| count(i));
        pool.for_each_in_runs(N_ITEMS, cost, &count);
        let counts = counts.into_iter().map(AtomicUsize::into_inner);
        assert!(counts.eq([3; N_ITEMS]), "{what}, cost {cost}");
    }
}

#[test]
fn kernels_run_after_one_that_panics() {
    type Kernel = fn(&mut ThreadPool, usize, Item<'_>);
    let kernels: [(&str, Kernel); 3] = [
        ("for_each", |pool, cost, item| pool.for_each(8, cost, item)),
        ("for_each_with", |pool, cost, item| {
            let mut lanes = vec![(); pool.n_threads()];
            pool.for_each_with(&mut lanes, 8, cost, &|_, i| item(i));
        }),
        ("for_each_in_runs", |pool, cost, item| {
            pool.for_each_in_runs(8, cost, item);
        }),
    ];
    let nodes: [&[usize]; 3] = [&[1], &[3], &[1, 2]];
    for threads in nodes {
        let mut pool = ThreadPool::on_nodes(threads).expect("threads start");
        for (name, kernel) in kernels {
            // At cost 0 a kernel runs on its caller only.
            for cost in [0, MIN_SHARED_COST] {
                let what = format!("{name} at cost {cost} on {threads:?}");
                // The panics of two kernels in succession both reach the caller.
                for planted in [5, 0] {
                    let item = |i: usize| assert_ne!(i, planted, "planted");
                    let run = AssertUnwindSafe(|| kernel(&mut pool, cost, &item));
                    assert!(catch_unwind(run).is_err(), "{what}");
                }
                check_kernels(&mut pool, &what);
                pool.wake();
                check_kernels(&mut pool, &what);
                pool.rest();
            }
        }
    }
}

const DIVISIONS: [(&[usize], &[usize]); 5] = [
    (&[1, 1], &[3, 4]),
    (&[2, 1], &[0, 9]),
    (&[1, 2], &[64, 1]),
    (&[1, 1, 2], &[5, 0, 40]),
    (&[1, 1, 1, 1], &[1, 1, 1, 1]),
];

#[test]
fn items_divided_among_nodes_run_once_with_exclusive_lanes() {
    for (threads, node_items) in DIVISIONS {
        let mut pool = ThreadPool::on_nodes(threads).expect("threads start");
        let n_items: usize = node_items.iter().sum();
        for kernel in 0..300 {
            let counts: Vec<_> = (0..n_items).map(|_| AtomicUsize::new(0)).collect();
            pool.for_each_by_node(node_items, MIN_SHARED_COST, &|i| {
                counts[i].fetch_add(1, Ordering::Relaxed);
            });
            assert!(
                counts.iter().all(|c| c.load(Ordering::Relaxed) == 1),
                "{threads:?}"
            );
            for order in [Order::Runs, Order::First] {
                let mut lanes = vec![Vec::new(); pool.n_threads()];
                let cost = MIN_SHARED_COST * (kernel % 2);
                pool.for_each_by_node_with(
                    (&mut lanes, order),
                    node_items,
                    cost,
                    &|lane, index| {
                        lane.push(index);
                    },
                );
                let mut seen = lanes.concat();
                seen.sort_unstable();
                assert!(seen.into_iter().eq(0..n_items), "{threads:?}, {order:?}");
            }
            let sum = AtomicUsize::new(0);
            pool.for_each_in_runs(n_items, MIN_SHARED_COST, &|i| {
                sum.fetch_add(i + 1, Ordering::Relaxed);
            });
            assert_eq!(sum.into_inner(), n_items * (n_items + 1) / 2, "{threads:?}");
        }
    }
}

#[test]
fn items_without_an_owner_run_on_any_node() {
    let mut pool = ThreadPool::on_nodes(&[1, 1]).expect("threads start");
    for order in [Order::Runs, Order::First] {
        let mut lanes = vec![Vec::new(); 2];
        pool.for_each_by_node_with((&mut lanes, order), &[50], MIN_SHARED_COST, &|lane, i| {
            lane.push(i);
        });
        let mut seen = lanes.concat();
        seen.sort_unstable();
        assert!(seen.into_iter().eq(0..50), "{order:?}");
    }
}

#[test]
fn threads_take_the_items_of_their_node_first() {
    let mut pool = ThreadPool::on_nodes(&[1, 1, 1]).expect("threads start");
    for order in [Order::Runs, Order::First] {
        // No thread ends its item before all have one.
        let all_have_one = std::sync::Barrier::new(3);
        let owners: Vec<_> = (0..3).map(|_| AtomicUsize::new(usize::MAX)).collect();
        let item = |_: &mut (), i: usize| {
            owners[i].store(NUMBER.get(), Ordering::Relaxed);
            all_have_one.wait();
        };
        pool.for_each_by_node_with((&mut [(); 3], order), &[1; 3], MIN_SHARED_COST, &item);
        let owners: Vec<_> = owners.into_iter().map(AtomicUsize::into_inner).collect();
        assert_eq!(owners, [0, 1, 2], "{order:?}");
    }
}

#[test]
fn for_each_on_own_node_runs_every_item_on_its_node() {
    for (threads, node_items) in DIVISIONS {
        let mut pool = ThreadPool::on_nodes(threads).expect("threads start");
        let nodes = pool.nodes().clone();
        let n_items: usize = node_items.iter().sum();
        for _ in 0..100 {
            let owners: Vec<_> = (0..n_items).map(|_| AtomicUsize::new(usize::MAX)).collect();
            pool.for_each_on_own_node(node_items, 0, &|i| {
                let before = owners[i].swap(nodes.of_thread(NUMBER.get()), Ordering::Relaxed);
                assert_eq!(before, usize::MAX, "item {i} runs twice");
            });
            let owners: Vec<_> = owners.into_iter().map(AtomicUsize::into_inner).collect();
            let homes = node_items
                .iter()
                .enumerate()
                .flat_map(|(node, n)| vec![node; *n]);
            assert!(homes.eq(owners), "{threads:?}");
        }
        pool.for_each_on_own_node(&vec![0; node_items.len()], 0, &|_| unreachable!("no item"));
    }
}

#[test]
fn panic_in_for_each_on_own_node_reaches_the_caller() {
    for planted in 0..4 {
        let mut pool = ThreadPool::on_nodes(&[1, 1]).expect("threads start");
        let result = catch_unwind(AssertUnwindSafe(|| {
            pool.for_each_on_own_node(&[2, 2], 0, &|i| assert_ne!(i, planted, "planted"));
        }));
        assert!(result.is_err());
    }
}
