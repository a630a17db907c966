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
fn kernels_that_follow_each_other_never_mix() {
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
fn runs_leave_no_item_out_and_take_none_twice() {
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
fn lanes_are_never_shared_and_no_item_is_left_out() {
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
fn a_run_has_a_lane_of_its_own() {
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
fn workers_that_wake_with_a_step_park_behind_it() {
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
