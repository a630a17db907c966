//! Tests of the collectives of threads.

use std::thread;

use super::*;

/// More than a rank of a test ever waits.
const LONG: Duration = Duration::from_secs(600);

fn group(count: usize, limit: Duration) -> Vec<RankLink> {
    RankLink::group(&GroupRules::new(count, limit))
}

/// Calls a collective that ends with an error.
type Lose = fn(&mut RankLink) -> RanksLost;

/// Runs `work` on a thread for each rank; returns the results in rank order.
fn on_ranks<T: Send>(
    links: Vec<RankLink>,
    work: impl Fn(&mut RankLink) -> T + Sync,
) -> Vec<(RankLink, T)> {
    let work = &work;
    thread::scope(|scope| {
        let threads = links.into_iter().map(|mut link| {
            scope.spawn(move || {
                let result = work(&mut link);
                (link, result)
            })
        });
        let threads: Vec<_> = threads.collect();
        let ended = threads.into_iter().map(|thread| thread.join());
        ended.map(|end| end.expect("no panic")).collect()
    })
}

#[test]
fn sums_are_in_rank_order_and_equal_on_all_ranks() {
    // Any other order rounds to another number.
    let terms = [1.0f32, 1e8, -1e8, 3.0];
    for count in [1, 2, 3, 4] {
        let expected = terms[..count].iter().fold(0.0, |sum, term| sum + term);
        let results = on_ranks(group(count, LONG), |link| {
            let mut values = [terms[link.rank().index()]; 5];
            link.sum(&mut values).map(|()| values)
        });
        for (_, result) in results {
            assert_eq!(result, Ok([expected; 5]));
        }
    }
}

#[test]
fn all_ranks_take_the_values_of_rank_0() {
    let results = on_ranks(group(3, LONG), |link| {
        let mut values = [link.rank().index() as f32 + 5.0; 4];
        link.broadcast(&mut values).map(|()| values)
    });
    for (_, result) in results {
        assert_eq!(result, Ok([5.0; 4]));
    }
}

#[test]
fn parts_of_rows_are_gathered_in_rank_order() {
    // The last rank has a narrower part.
    let results = on_ranks(group(3, LONG), |link| {
        let (rank, scratch) = (link.rank().index(), Scratch::default());
        let mut part = scratch.tensor(2, if rank == 2 { 1 } else { 2 });
        let values = part.values_mut().iter_mut().enumerate();
        values.for_each(|(index, value)| *value = (10 * rank + index) as f32);
        let gathered = link.gather(&part, &scratch);
        gathered.map(|gathered| gathered.values().to_vec())
    });
    let expected = [0.0, 1.0, 10.0, 11.0, 20.0, 2.0, 3.0, 12.0, 13.0, 21.0];
    for (_, result) in results {
        assert_eq!(result, Ok(expected.to_vec()));
    }
}

#[test]
fn many_collectives_of_unequal_ranks_keep_their_values_apart() {
    let results = on_ranks(group(3, LONG), |link| {
        let rank = link.rank().index();
        let mut sums = Vec::new();
        for round in 0..2000 {
            // Ranks reach the collectives at different times.
            (0..(round * (rank + 1)) % 7).for_each(|_| thread::yield_now());
            let mut values = vec![(round * rank) as f32; 1 + round % 5];
            link.sum(&mut values).expect("all take part");
            sums.push(values);
        }
        sums
    });
    for (_, sums) in results {
        for (round, values) in sums.into_iter().enumerate() {
            assert_eq!(values, vec![(3 * round) as f32; 1 + round % 5]);
        }
    }
}

#[test]
fn a_barrier_waits_for_all_and_names_an_absent_rank() {
    let results = on_ranks(group(3, LONG), |link| {
        (0..50).try_for_each(|_| link.barrier()).is_ok()
    });
    assert!(results.into_iter().all(|(_, result)| result));
    let mut links = group(2, Duration::ZERO);
    let lost = links[1].barrier().expect_err("the other rank is absent");
    assert_eq!(
        lost.to_string(),
        "rank 0 has not called Barrier, collective 0, within 0ns after rank 1"
    );
}

#[test]
fn an_absent_rank_is_named_and_the_others_end() {
    let mut links = group(2, Duration::ZERO);
    let lost = links[0]
        .sum(&mut [1.0, 2.0])
        .expect_err("the other rank is absent");
    assert_eq!(
        lost.to_string(),
        "rank 1 has not called Sum { values: 2 }, collective 0, within 0ns after rank 0"
    );
    assert_eq!(links[1].sum(&mut [1.0, 2.0]), Err(lost));
}

#[test]
fn calls_that_differ_are_named_with_both_ranks() {
    let calls: [(Lose, &str); 2] = [
        (
            |link| link.sum(&mut [0.0; 3]).expect_err("fewer values"),
            "Sum { values: 3 }",
        ),
        (
            |link| {
                let scratch = Scratch::default();
                let part = scratch.tensor(4, 1);
                let gathered = link.gather(&part, &scratch).map(|out| out.rows());
                gathered.expect_err("not a sum")
            },
            "Gather { rows: 4 }",
        ),
    ];
    for (call, text) in calls {
        let mut links = group(2, Duration::ZERO);
        let first = &links[0];
        let arrived = first.group.arrive(first.rank, (Call::Sum { values: 4 }, 1));
        assert_eq!(arrived, Ok(ControlFlow::Continue(())));
        let lost = call(&mut links[1]).to_string();
        let expected = "as collective 0, rank 0 calls Sum { values: 4 }";
        assert_eq!(lost, format!("rank 1 calls {text} {expected}"));
    }
}

#[test]
fn a_rank_that_ends_or_panics_ends_the_others() {
    for panics in [false, true] {
        let mut links = group(2, LONG);
        let last = links.pop().expect("there are two");
        let ended = thread::spawn(move || {
            let _last = last;
            assert!(!panics, "planted");
        });
        // Waits until the other thread ends, and not until the limit.
        let lost = links[0].sum(&mut [1.0]).expect_err("the other has ended");
        assert_eq!(lost.to_string(), "rank 1 has stopped");
        assert_eq!(ended.join().is_err(), panics);
    }
}

#[test]
fn a_fault_in_any_collective_ends_all_ranks() {
    const CALLS: usize = 20;
    for seed in 0..200 {
        let mut random = fastrand::Rng::with_seed(seed);
        let count = random.usize(2..5);
        let (faulty, at, fault) = (
            random.usize(..count),
            random.usize(..CALLS),
            random.usize(..3),
        );
        let results = on_ranks(group(count, LONG), |link| {
            let is_faulty = link.rank().index() == faulty;
            for number in 0..CALLS {
                let mut values = [1.0; 4];
                match fault {
                    _ if !is_faulty || number != at => link.sum(&mut values)?,
                    0 => link.fail("planted"),
                    1 => link.sum(&mut values[..3])?,
                    // The rank ends.
                    _ => *link = group(1, LONG).remove(0),
                }
                if is_faulty && number == at {
                    return Ok(());
                }
                assert_eq!(values, [count as f32; 4]);
            }
            Ok::<(), RanksLost>(())
        });
        for (rank, (_, result)) in results.into_iter().enumerate() {
            assert!(
                rank == faulty || result.is_err(),
                "seed {seed}, rank {rank}"
            );
        }
    }
}

#[test]
fn ranks_go_on_after_they_rejoin() {
    let mut links = group(2, LONG);
    // One rank has called more collectives than the other.
    let first = &links[0];
    let arrived = first.group.arrive(first.rank, (Call::Sum { values: 1 }, 1));
    assert_eq!(arrived, Ok(ControlFlow::Continue(())));
    links[1].fail("planted");
    assert!(links[0].sum(&mut [1.0]).is_err());
    links.iter_mut().for_each(RankLink::rejoin);
    for (_, result) in on_ranks(links, |link| {
        let mut values = [2.0];
        link.sum(&mut values).map(|()| values)
    }) {
        assert_eq!(result, Ok([4.0]));
    }
}
