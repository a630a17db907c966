//! Collectives of CPU ranks: sums and gathered rows over the threads that lead the ranks, in one process.
//!
//! Sums are in f32 and in rank order, so that all ranks get the same bits, which depend on the number of ranks only.
//! A rank that fails, ends, calls another collective or is absent too long ends the collectives of all ranks.
//!
//! The threads of CUDA ranks meet here too, while they are loaded.

#[cfg(test)]
mod tests;

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
    /// Called by each rank at each [`Moment`]: tests inject faults here.
    pub fault_hook: Option<Arc<FaultHook>>,
}

pub type FaultHook = dyn Fn(Rank, Moment) + Send + Sync;

/// A rank's next operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    Load,
    Collective,
    /// The rank records a CUDA graph.
    Recording,
}

impl GroupRules {
    pub fn new(count: usize, limit: Duration) -> Self {
        Self {
            count,
            limit,
            fault_hook: None,
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
    Broadcast { values: usize },
    Barrier,
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

    /// Replaces `values` by rank 0's, of which there are as many.
    ///
    /// # Errors
    /// If a rank does not take part. `values` are then this rank's own.
    pub fn broadcast(&mut self, values: &mut [f32]) -> Result<(), RanksLost> {
        let call = Call::Broadcast {
            values: values.len(),
        };
        let parity = self.meet(values, call)?;
        values.copy_from_slice(&read(&self.group.buffers[0][parity]));
        Ok(())
    }

    /// Waits for the threads of all ranks. This is none of the moments of [`GroupRules::fault_hook`].
    ///
    /// # Errors
    /// If a rank does not take part.
    pub fn barrier(&mut self) -> Result<(), RanksLost> {
        self.join_in(&[], Call::Barrier)?;
        Ok(())
    }

    /// A hook of tests ([`GroupRules::fault_hook`]), which may inject a fault at this moment.
    pub fn inject_fault(&self, moment: Moment) {
        if let Some(hook) = &self.group.rules.fault_hook {
            hook(self.rank, moment);
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
        self.inject_fault(Moment::Collective);
        self.join_in(values, call)
    }

    fn join_in(&mut self, values: &[f32], call: Call) -> Result<usize, RanksLost> {
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
        self.fail(&format!("rank {} has stopped", self.rank.index()));
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
