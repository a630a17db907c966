//! A pool of persistent workers with a barrier after each kernel.
//!
//! Workers spin briefly for the next kernel, then park: kernels of one step follow each other within microseconds,
//! steps need not. Which worker computes an item never changes the item's result.

use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{JoinHandle, Thread};

/// Rounds of `spin_loop` (some tens of nanoseconds each) before a worker parks.
const SPINS_BEFORE_PARK: usize = 4000;
/// Rounds of `spin_loop` before the caller, waiting for the last worker, offers its core to others.
const SPINS_BEFORE_YIELD: usize = 1000;

type Item<'a> = &'a (dyn Fn(usize) + Sync);

/// One kernel: what to do with each item index below `n_items`.
#[derive(Clone, Copy)]
struct Job {
    item: Item<'static>,
    n_items: usize,
}

struct Shared {
    /// Written by the caller before `epoch` moves, read by workers after.
    job: UnsafeCell<Option<Job>>,
    epoch: AtomicUsize,
    next_item: AtomicUsize,
    busy_workers: AtomicUsize,
    parked: Vec<AtomicBool>,
    stop: AtomicBool,
    panicked: AtomicBool,
}

// SAFETY: `job` is written only while no worker is busy and read only between an epoch's start and the worker's
// decrement of `busy_workers`; both are ordered by the atomics.
unsafe impl Sync for Shared {}

/// Runs kernels over items on the calling thread and `n_threads - 1` workers.
pub struct ThreadPool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    handles: Vec<Thread>,
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
            epoch: AtomicUsize::new(0),
            next_item: AtomicUsize::new(0),
            busy_workers: AtomicUsize::new(0),
            parked: (0..n_workers).map(|_| AtomicBool::new(false)).collect(),
            stop: AtomicBool::new(false),
            panicked: AtomicBool::new(false),
        });
        let mut pool = Self {
            shared: shared.clone(),
            workers: Vec::new(),
            handles: Vec::new(),
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

    /// Calls `item` once for each index below `n_items`, on any thread, and returns when all calls have.
    ///
    /// # Panics
    /// If an item panicked.
    pub fn for_each(&mut self, n_items: usize, item: Item<'_>) {
        if n_items <= 1 || self.workers.is_empty() {
            (0..n_items).for_each(item);
            return;
        }
        // SAFETY: the borrow outlives every use, since this function returns only after all workers are done.
        let item = unsafe { std::mem::transmute::<Item<'_>, Item<'static>>(item) };
        let job = Job { item, n_items };
        // SAFETY: no worker is busy, so none reads it.
        unsafe { *self.shared.job.get() = Some(job) };
        self.shared.next_item.store(0, Ordering::Relaxed);
        self.shared
            .busy_workers
            .store(self.workers.len(), Ordering::Relaxed);
        self.shared.epoch.fetch_add(1, Ordering::SeqCst);
        for (parked, handle) in self.shared.parked.iter().zip(&self.handles) {
            if parked.load(Ordering::SeqCst) {
                handle.unpark();
            }
        }
        run_items(&self.shared, job);
        let mut spins = 0;
        while self.shared.busy_workers.load(Ordering::Acquire) > 0 {
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
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.epoch.fetch_add(1, Ordering::SeqCst);
        for handle in &self.handles {
            handle.unpark();
        }
        for worker in self.workers.drain(..) {
            // Workers catch panics, so there is nothing to learn from the result.
            let _ = worker.join();
        }
    }
}

fn work(shared: &Shared, worker: usize) {
    let mut seen = 0;
    loop {
        seen = next_epoch(shared, worker, seen);
        if shared.stop.load(Ordering::SeqCst) {
            return;
        }
        // SAFETY: written before the epoch moved, and not again before this worker reports below.
        let job = unsafe { *shared.job.get() };
        run_items(shared, job.expect("a job is set before the epoch moves"));
        shared.busy_workers.fetch_sub(1, Ordering::Release);
    }
}

fn next_epoch(shared: &Shared, worker: usize, seen: usize) -> usize {
    for _ in 0..SPINS_BEFORE_PARK {
        let epoch = shared.epoch.load(Ordering::Acquire);
        if epoch != seen {
            return epoch;
        }
        std::hint::spin_loop();
    }
    shared.parked[worker].store(true, Ordering::SeqCst);
    loop {
        let epoch = shared.epoch.load(Ordering::SeqCst);
        if epoch != seen {
            shared.parked[worker].store(false, Ordering::SeqCst);
            return epoch;
        }
        std::thread::park();
    }
}

fn run_items(shared: &Shared, job: Job) {
    let run = || {
        loop {
            let item = shared.next_item.fetch_add(1, Ordering::Relaxed);
            if item >= job.n_items {
                return;
            }
            (job.item)(item);
        }
    };
    // The others must reach the barrier even if this thread's item panics: the borrow in `job` ends there.
    if catch_unwind(AssertUnwindSafe(run)).is_err() {
        shared.next_item.store(job.n_items, Ordering::Relaxed);
        shared.panicked.store(true, Ordering::Relaxed);
    }
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
                pool.for_each(n_items, &|i| {
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
    fn panic_in_an_item_reaches_the_caller() {
        let mut pool = ThreadPool::new(2).expect("threads start");
        let result = catch_unwind(AssertUnwindSafe(|| {
            pool.for_each(8, &|i| assert_ne!(i, 5, "planted"))
        }));
        assert!(result.is_err());
    }
}
