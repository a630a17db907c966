//! Collectives of CPU ranks: sums and gathered rows over the threads that lead the ranks, in one process.
//!
//! Sums are in f32 and in rank order, so that all ranks get the same bits, which depend on the number of ranks only.
//! A rank that fails, ends, calls another collective or is absent too long ends the collectives of all ranks.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use super::tensor::{Scratch, Tensor};
use crate::shard::Rank;

/// Rounds of `spin_loop`, some tens of nanoseconds each, before a rank that waits for the others sleeps.
const SPINS_BEFORE_SLEEP: usize = 4000;

/// Why ranks cannot go on together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct RanksLost(Arc<str>);

/// How ranks form a group.
#[derive(Clone)]
pub struct GroupRules {
    pub count: usize,
    /// How long a rank waits in a collective for the others.
    pub limit: Duration,
    /// For tests, which plant faults there: called by each rank at each of these moments.
    pub strike: Option<Arc<Strike>>,
}

pub type Strike = dyn Fn(Rank, Moment) + Send + Sync;

/// What a rank does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    Load,
    Collective,
}

impl GroupRules {
    pub fn new(count: usize, limit: Duration) -> Self {
        Self {
            count,
            limit,
            strike: None,
        }
    }
}

/// A rank's access to the collectives. All ranks must call the same collectives in the same order.
pub struct RankLink {
    rank: Rank,
    group: Arc<Group>,
    /// Collectives that this rank has called.
    n_calls: u64,
}

struct Group {
    /// For each rank two buffers, used in turn: a rank that has left a collective may fill its buffer of the next one
    /// while others still read those of this one.
    buffers: Vec<[RwLock<Vec<f32>>; 2]>,
    rules: GroupRules,
    /// Collectives that all ranks have reached.
    n_complete: AtomicU64,
    meeting: Mutex<Meeting>,
    changed: Condvar,
}

/// The collective that some ranks have reached.
struct Meeting {
    present: Vec<bool>,
    /// The first rank there, and its call.
    first: Option<(usize, Call)>,
    lost: Option<RanksLost>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Sum { values: usize },
    Gather { rows: usize },
}

impl RankLink {
    /// Links of all ranks, in rank order.
    pub fn group(rules: &GroupRules) -> Vec<Self> {
        let count = rules.count;
        let group = Arc::new(Group {
            buffers: (0..count).map(|_| Default::default()).collect(),
            rules: rules.clone(),
            n_complete: AtomicU64::new(0),
            meeting: Mutex::new(Meeting {
                present: vec![false; count],
                first: None,
                lost: None,
            }),
            changed: Condvar::new(),
        });
        let link = |rank| Self {
            rank,
            group: group.clone(),
            n_calls: 0,
        };
        Rank::all(count).map(link).collect()
    }

    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// Replaces `values` by the sum of all ranks' values, in rank order.
    ///
    /// # Errors
    /// If a rank does not take part. `values` are then this rank's own.
    pub fn sum(&mut self, values: &mut [f32]) -> Result<(), RanksLost> {
        let call = Call::Sum {
            values: values.len(),
        };
        let parity = self.meet(values, call)?;
        let (first, others) = self
            .group
            .buffers
            .split_first()
            .expect("a group must have a rank");
        values.copy_from_slice(&read(&first[parity]));
        for buffer in others {
            let added = read(&buffer[parity]);
            let pairs = values.iter_mut().zip(added.iter());
            pairs.for_each(|(sum, value)| *sum += value);
        }
        Ok(())
    }

    /// Puts the ranks' parts of each row side by side, in rank order.
    ///
    /// # Errors
    /// If a rank does not take part.
    pub fn gather(&mut self, part: &Tensor, scratch: &Scratch) -> Result<Tensor, RanksLost> {
        let rows = part.rows();
        let parity = self.meet(part.values(), Call::Gather { rows })?;
        if rows == 0 {
            return Ok(scratch.tensor(0, part.width()));
        }
        let buffers = self.group.buffers.iter().map(|both| &both[parity]);
        let width = buffers.clone().map(|buffer| read(buffer).len() / rows);
        let mut out = scratch.tensor(rows, width.sum());
        let mut first = 0;
        for buffer in buffers {
            let part = read(buffer);
            let columns = part.len() / rows;
            for (row, part) in part.chunks_exact(columns).enumerate() {
                out.row_mut(row)[first..first + columns].copy_from_slice(part);
            }
            first += columns;
        }
        Ok(out)
    }

    /// See [`GroupRules::strike`].
    pub fn strike(&self, moment: Moment) {
        if let Some(strike) = &self.group.rules.strike {
            strike(self.rank, moment);
        }
    }

    /// Ends the collectives of all ranks, with the reason.
    pub fn fail(&self, reason: &str) {
        let mut meeting = self.group.meeting();
        self.group.lose(&mut meeting, reason.to_owned());
    }

    /// Begins anew after a failure. Every rank must call it before any rank calls a collective, and while none is in
    /// one.
    pub fn rejoin(&mut self) {
        self.n_calls = 0;
        let mut meeting = self.group.meeting();
        meeting.present.fill(false);
        meeting.first = None;
        meeting.lost = None;
        self.group.n_complete.store(0, Ordering::Release);
    }

    /// Shows `values` to the others, and waits until all ranks are in the same collective. Returns the index of the
    /// ranks' buffers.
    fn meet(&mut self, values: &[f32], call: Call) -> Result<usize, RanksLost> {
        self.strike(Moment::Collective);
        let parity = (self.n_calls % 2) as usize;
        {
            let own = &self.group.buffers[self.rank.index()][parity];
            let mut own = own.write().unwrap_or_else(PoisonError::into_inner);
            own.clear();
            own.extend_from_slice(values);
        }
        self.n_calls += 1;
        match self.group.arrive(self.rank, (call, self.n_calls))? {
            ControlFlow::Break(()) => {}
            ControlFlow::Continue(()) => self.group.wait(self.n_calls)?,
        }
        Ok(parity)
    }
}

impl Drop for RankLink {
    fn drop(&mut self) {
        self.fail(&format!("rank {} has ended", self.rank.index()));
    }
}

impl Group {
    fn meeting(&self) -> MutexGuard<'_, Meeting> {
        let meeting = self.meeting.lock();
        meeting.unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the rank completes the collective, the `number`-th, or must wait for others.
    fn arrive(
        &self,
        rank: Rank,
        (call, number): (Call, u64),
    ) -> Result<ControlFlow<()>, RanksLost> {
        let mut meeting = self.meeting();
        if let Some(lost) = &meeting.lost {
            return Err(lost.clone());
        }
        let (other, first) = *meeting.first.get_or_insert((rank.index(), call));
        if first != call {
            let (rank, number) = (rank.index(), number - 1);
            let reason = format!(
                "rank {rank} calls {call:?} as collective {number}, rank {other} calls {first:?}"
            );
            return Err(self.lose(&mut meeting, reason));
        }
        meeting.present[rank.index()] = true;
        if !meeting.present.iter().all(|is_present| *is_present) {
            return Ok(ControlFlow::Continue(()));
        }
        meeting.present.fill(false);
        meeting.first = None;
        self.n_complete.store(number, Ordering::Release);
        drop(meeting);
        self.changed.notify_all();
        Ok(ControlFlow::Break(()))
    }

    /// Waits until `number` collectives are complete.
    fn wait(&self, number: u64) -> Result<(), RanksLost> {
        let is_complete = || self.n_complete.load(Ordering::Acquire) >= number;
        for _ in 0..SPINS_BEFORE_SLEEP {
            if is_complete() {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        let deadline = Instant::now() + self.rules.limit;
        let mut meeting = self.meeting();
        loop {
            if is_complete() {
                return Ok(());
            }
            if let Some(lost) = &meeting.lost {
                return Err(lost.clone());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let reason = self.absence(&meeting, number - 1);
                return Err(self.lose(&mut meeting, reason));
            }
            let waited = self.changed.wait_timeout(meeting, left);
            (meeting, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn absence(&self, meeting: &Meeting, number: u64) -> String {
        let absent = meeting.present.iter().position(|is_present| !is_present);
        let absent = absent.unwrap_or_default();
        match meeting.first {
            Some((first, call)) => format!(
                "rank {absent} has not called {call:?}, collective {number}, within {:?} after rank {first}",
                self.rules.limit
            ),
            None => format!("rank {absent} has not called collective {number}"),
        }
    }

    /// Ends the collectives of all ranks; an earlier reason stays.
    fn lose(&self, meeting: &mut MutexGuard<'_, Meeting>, reason: String) -> RanksLost {
        let lost = meeting.lost.get_or_insert(RanksLost(reason.into())).clone();
        self.changed.notify_all();
        lost
    }
}

fn read(buffer: &RwLock<Vec<f32>>) -> std::sync::RwLockReadGuard<'_, Vec<f32>> {
    buffer.read().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
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
            assert_eq!(lost.to_string(), "rank 1 has ended");
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
}
