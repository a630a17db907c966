//! A pool of persistent workers with a barrier after each kernel.
//!
//! Workers spin briefly for the next kernel, then park: kernels of one step follow each other within microseconds,
//! steps need not. The caller waits for items that were claimed, never for workers: one that the system has put aside
//! holds up nobody. Which thread computes an item never changes the item's result.

use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::{JoinHandle, Thread};

/// Rounds of `spin_loop` (some tens of nanoseconds each) before a worker parks.
const SPINS_BEFORE_PARK: usize = 4000;
/// Rounds of `spin_loop` before the caller, waiting for the last item, offers its core to others.
const SPINS_BEFORE_YIELD: usize = 1000;

/// Multiply-adds below which a kernel runs on its caller: some microseconds of work, about what it costs to have it
/// shared, and far less than what it costs when the system has put the other thread aside.
const MIN_SHARED_COST: usize = 256 << 10;

type Item<'a> = &'a (dyn Fn(usize) + Sync);

/// One kernel: what to do with each item index below `n_items`.
#[derive(Clone, Copy)]
struct Job {
    item: Item<'static>,
    n_items: usize,
}

/// Kernel number in the high half, unclaimed items in the low half.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Ticket(u64);

impl Ticket {
    fn new(epoch: u32, n_items: u32) -> Self {
        Self(u64::from(epoch) << 32 | u64::from(n_items))
    }

    fn epoch(self) -> u32 {
        (self.0 >> 32) as u32
    }

    fn unclaimed(self) -> u32 {
        self.0 as u32
    }
}

struct Shared {
    /// Written by the caller while every item is done; read by whoever holds a claimed item.
    job: UnsafeCell<Option<Job>>,
    ticket: AtomicU64,
    /// Items of the current kernel that are not done.
    pending: AtomicUsize,
    parked: Vec<AtomicBool>,
    stop: AtomicBool,
    panicked: AtomicBool,
}

// SAFETY: `job` is read only between a successful claim and the decrement of `pending` for it, and written only while
// `pending` is 0; the claim acquires what the ticket's store released.
unsafe impl Sync for Shared {}

/// Runs kernels over items on the calling thread and `n_threads - 1` workers.
pub struct ThreadPool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    handles: Vec<Thread>,
    epoch: u32,
}

impl ThreadPool {
    /// Starts the workers. One thread or none means that everything runs on the caller.
    ///
    /// # Errors
    /// When the system refuses a thread.
    pub fn new(n_threads: usize) -> std::io::Result<Self> {
        let n_workers = n_threads.max(1) - 1;
        let shared = Arc::new(Shared {
            job: UnsafeCell::new(None),
            ticket: AtomicU64::new(0),
            pending: AtomicUsize::new(0),
            parked: (0..n_workers).map(|_| AtomicBool::new(false)).collect(),
            stop: AtomicBool::new(false),
            panicked: AtomicBool::new(false),
        });
        let mut pool = Self {
            shared: shared.clone(),
            workers: Vec::new(),
            handles: Vec::new(),
            epoch: 0,
        };
        for worker in 0..n_workers {
            let shared = shared.clone();
            let handle = std::thread::Builder::new()
                .name(format!("souffleur-cpu-{}", worker + 1))
                .spawn(move || work(&shared, worker))?;
            pool.handles.push(handle.thread().clone());
            pool.workers.push(handle);
        }
        Ok(pool)
    }

    /// Number of threads that share the work, the caller's among them.
    pub fn n_threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `item` once for each index below `n_items`, on any thread, lowest first, and returns when all calls have.
    /// `cost` is about how many multiply-adds they take together.
    ///
    /// # Panics
    /// If an item panicked, and with 2^32 items or more.
    pub fn for_each(&mut self, n_items: usize, cost: usize, item: Item<'_>) {
        if n_items <= 1 || cost < MIN_SHARED_COST || self.workers.is_empty() {
            (0..n_items).for_each(item);
            return;
        }
        let claims = u32::try_from(n_items).expect("a kernel has fewer than 2^32 items");
        // SAFETY: the borrow outlives every use, since this function returns only when no claimed item is left, and
        // without a claim nobody calls it.
        let item = unsafe { std::mem::transmute::<Item<'_>, Item<'static>>(item) };
        // SAFETY: `pending` is 0, so nobody holds a claimed item.
        unsafe { *self.shared.job.get() = Some(Job { item, n_items }) };
        self.shared.pending.store(n_items, Ordering::Relaxed);
        self.publish(claims);
        run_items(&self.shared);
        let mut spins = 0;
        while self.shared.pending.load(Ordering::Acquire) > 0 {
            spins += 1;
            if spins < SPINS_BEFORE_YIELD {
                std::hint::spin_loop()
            } else {
                std::thread::yield_now()
            }
        }
        assert!(
            !self.shared.panicked.load(Ordering::Relaxed),
            "a kernel panicked, see the message above"
        );
    }

    /// Opens the next kernel's items to claims and wakes who is parked.
    fn publish(&mut self, claims: u32) {
        self.epoch = self.epoch.wrapping_add(1);
        let ticket = Ticket::new(self.epoch, claims);
        self.shared.ticket.store(ticket.0, Ordering::SeqCst);
        for (parked, handle) in self.shared.parked.iter().zip(&self.handles) {
            if parked.load(Ordering::SeqCst) {
                handle.unpark();
            }
        }
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.publish(0);
        for worker in self.workers.drain(..) {
            // Workers catch panics, so there is nothing to learn from the result.
            let _ = worker.join();
        }
    }
}

fn work(shared: &Shared, worker: usize) {
    let mut seen = 0;
    while !shared.stop.load(Ordering::SeqCst) {
        wait_for_epoch_after(seen, shared, worker);
        seen = run_items(shared);
    }
}

fn wait_for_epoch_after(seen: u32, shared: &Shared, worker: usize) {
    let is_new = |order| Ticket(shared.ticket.load(order)).epoch() != seen;
    for _ in 0..SPINS_BEFORE_PARK {
        if is_new(Ordering::Acquire) {
            return;
        }
        std::hint::spin_loop();
    }
    // Either this store is seen by the caller's load behind its ticket, or the ticket is seen here.
    shared.parked[worker].store(true, Ordering::SeqCst);
    while !is_new(Ordering::SeqCst) {
        std::thread::park();
    }
    shared.parked[worker].store(false, Ordering::SeqCst);
}

/// Claims and runs items until none is left; returns the kernel that the last look was at.
fn run_items(shared: &Shared) -> u32 {
    let mut ticket = Ticket(shared.ticket.load(Ordering::Acquire));
    while ticket.unclaimed() > 0 {
        let rest = Ticket::new(ticket.epoch(), ticket.unclaimed() - 1);
        let claim = shared.ticket.compare_exchange_weak(
            ticket.0,
            rest.0,
            Ordering::AcqRel,
            Ordering::Acquire,
        );
        match claim {
            Ok(_) => {
                run_claimed(shared, rest.unclaimed() as usize);
                ticket = Ticket(shared.ticket.load(Ordering::Acquire));
            }
            Err(current) => ticket = Ticket(current),
        }
    }
    ticket.epoch()
}

/// Runs the item that this thread has claimed; `rest` are left behind it.
fn run_claimed(shared: &Shared, rest: usize) {
    // SAFETY: the claim keeps `pending` above 0, so the caller does not write.
    let job = unsafe { *shared.job.get() }.expect("a job is set before claims are open");
    // The caller must reach the barrier even if an item panics: the borrow behind `job` ends there.
    if let Err(payload) = catch_unwind(AssertUnwindSafe(|| (job.item)(job.n_items - 1 - rest))) {
        // Its drop could panic in front of the barrier.
        std::mem::forget(payload);
        shared.panicked.store(true, Ordering::Relaxed);
    }
    shared.pending.fetch_sub(1, Ordering::Release);
}

#[cfg(test)]
mod tests {
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
    fn panic_in_an_item_reaches_the_caller() {
        let mut pool = ThreadPool::new(2).expect("threads start");
        let result = catch_unwind(AssertUnwindSafe(|| {
            pool.for_each(8, MIN_SHARED_COST, &|i| assert_ne!(i, 5, "planted"))
        }));
        assert!(result.is_err());
    }
}
