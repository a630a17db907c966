//! Thread pool of persistent workers, with a barrier after each kernel.
//!
//! Workers spin for the next kernel while a step is in flight, yielding their core to others, and park soon afterwards.
//! The caller waits for claimed items, not for workers: a preempted worker without a claim delays nothing. Results do
//! not depend on which thread computes an item.

mod by_node;

use std::cell::{Cell, UnsafeCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, Thread};

pub use self::by_node::Order;
use super::cores::bind_this_thread;
use super::nodes::{Nodes, PerNode};
use super::seats::Seats;
use super::tensor::Shared as Parts;

/// Rounds of `spin_loop`, some tens of nanoseconds each, before an idle worker parks.
const SPINS_BEFORE_PARK: usize = 4000;
/// Rounds of `spin_loop` before the caller, which waits for the last item, yields.
const SPINS_BEFORE_YIELD: usize = 1000;

/// Multiply-adds below which a kernel runs on its caller: some microseconds of work, about the cost of sharing it, and
/// far less than the delay of a preempted thread.
const MIN_SHARED_COST: usize = 256 << 10;

const SPINS_BETWEEN_YIELDS: usize = 64;

/// Stack of a worker: grammar masks are computed here too, by recursion as deep as the grammar.
const STACK_BYTES: usize = 64 << 20;

type Item<'a> = &'a (dyn Fn(usize) + Sync);

thread_local! {
    /// This thread's number in its pool; workers have numbers from 1 on.
    static NUMBER: Cell<usize> = const { Cell::new(0) };
}

/// One kernel: the function to call for each item index below `n_items`.
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
    /// Written by the caller while no item is pending; read by the holder of a claimed item.
    job: UnsafeCell<Option<Job>>,
    ticket: AtomicU64,
    pending: AtomicUsize,
    parked: Vec<AtomicBool>,
    /// Whether a step is in flight: more kernels come soon.
    awake: AtomicBool,
    stop: AtomicBool,
    /// Whether an item of the current kernel has panicked.
    panicked: AtomicBool,
    /// The message of its first panic.
    panic: Mutex<Option<String>>,
}

// SAFETY: `job` is read only between a successful claim and the decrement of `pending` for it, and written only while
// `pending` is 0; the claim acquires the release of the ticket's store.
unsafe impl Sync for Shared {}

pub struct ThreadPool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    handles: Vec<Thread>,
    epoch: u32,
    /// Whether a kernel was shared since the last step began: then the next step is worth a wake-up.
    has_shared: bool,
    /// Each thread's remaining items in [`ThreadPool::for_each_in_runs`].
    runs: Arc<[Run]>,
    nodes: Nodes,
    own_cpus: Vec<usize>,
}

/// Consecutive items: the first in the high half, the end in the low half.
#[derive(Default)]
struct Run(AtomicU64);

impl Run {
    fn set(&self, items: std::ops::Range<u32>) {
        let items = u64::from(items.start) << 32 | u64::from(items.end);
        self.0.store(items, Ordering::Relaxed);
    }

    /// Takes the first item.
    fn claim_first(&self) -> Option<usize> {
        let before = self.claim(|first, end| (first + 1, end))?;
        Some((before >> 32) as usize)
    }

    fn has_items(&self) -> bool {
        let items = self.0.load(Ordering::Relaxed);
        (items >> 32) as u32 != items as u32
    }

    /// Takes the last item; for threads whose own runs are empty.
    fn claim_last(&self) -> Option<usize> {
        let before = self.claim(|first, end| (first, end - 1))?;
        Some(before as u32 as usize - 1)
    }

    fn claim(&self, take: impl Fn(u32, u32) -> (u32, u32)) -> Option<u64> {
        let rest = |items: u64| {
            let (first, end) = ((items >> 32) as u32, items as u32);
            (first < end).then(|| {
                let (first, end) = take(first, end);
                u64::from(first) << 32 | u64::from(end)
            })
        };
        // The kernel's ticket orders memory accesses; a run only tracks the remaining items.
        self.0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, rest)
            .ok()
    }
}

impl ThreadPool {
    /// Starts the workers, each bound to its CPUs in `seats`, and waits until they run. The caller is the first thread
    /// in `seats`, and is not bound yet. With one thread everything runs on the caller.
    ///
    /// # Errors
    /// If the system refuses a thread.
    pub fn with_seats(seats: Seats) -> std::io::Result<Self> {
        let n_workers = seats.nodes.n_threads() - 1;
        let mut cpus = seats.cpus.into_iter();
        let shared = Arc::new(Shared {
            job: UnsafeCell::new(None),
            ticket: AtomicU64::new(0),
            pending: AtomicUsize::new(0),
            parked: (0..n_workers).map(|_| AtomicBool::new(false)).collect(),
            awake: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            panicked: AtomicBool::new(false),
            panic: Mutex::default(),
        });
        let mut pool = Self {
            shared: shared.clone(),
            workers: Vec::new(),
            handles: Vec::new(),
            epoch: 0,
            has_shared: false,
            runs: (0..=n_workers).map(|_| Run::default()).collect(),
            nodes: seats.nodes,
            own_cpus: cpus.next().unwrap_or_default(),
        };
        let (started, starts) = std::sync::mpsc::channel();
        for worker in 0..n_workers {
            let shared = shared.clone();
            let started = started.clone();
            let cpus = cpus.next().unwrap_or_default();
            let handle = std::thread::Builder::new()
                .name(format!("souffleur-cpu-{}", worker + 1))
                .stack_size(STACK_BYTES)
                .spawn(move || {
                    NUMBER.set(worker + 1);
                    bind_this_thread(&cpus);
                    // The receiver exists until all workers have started.
                    let _ = started.send(());
                    drop(started);
                    work(&shared, worker);
                })?;
            pool.handles.push(handle.thread().clone());
            pool.workers.push(handle);
        }
        drop(started);
        // Thread creation allocates memory, which should not happen in the first steps.
        starts.iter().take(n_workers).for_each(drop);
        Ok(pool)
    }

    pub fn n_threads(&self) -> usize {
        self.workers.len() + 1
    }

    pub fn nodes(&self) -> &Nodes {
        &self.nodes
    }

    pub fn bind_caller(&self) {
        bind_this_thread(&self.own_cpus);
    }

    /// Begins a step: wakes the workers, which do not park before [`ThreadPool::rest`]. Does nothing if the last step
    /// shared no kernel: then a wake-up is unlikely to pay off.
    pub fn wake(&mut self) {
        if std::mem::take(&mut self.has_shared) {
            self.shared.awake.store(true, Ordering::SeqCst);
            self.unpark();
        }
    }

    /// Ends a step: workers park soon unless another step begins.
    pub fn rest(&mut self) {
        self.shared.awake.store(false, Ordering::SeqCst);
    }

    /// As [`ThreadPool::for_each`], with exclusive use of any one of `lanes` (scratch data) in each call. At most as
    /// many threads as lanes share the work.
    ///
    /// # Panics
    /// If an item panics, or if there are items but no lanes.
    pub fn for_each_with<L: Send>(
        &mut self,
        lanes: &mut [L],
        n_items: usize,
        cost: usize,
        item: &(dyn Fn(&mut L, usize) + Sync),
    ) {
        let n_lanes = lanes.len().min(self.n_threads()).min(n_items);
        assert!(
            n_lanes > 0 || n_items == 0,
            "there must be a lane for {n_items} items"
        );
        let lanes = Parts::new(lanes);
        let next = AtomicUsize::new(0);
        self.for_each(n_lanes, cost, &|lane| {
            // SAFETY: each lane is used by one item.
            let lane = &mut unsafe { lanes.part(lane, 1) }[0];
            loop {
                match next.fetch_add(1, Ordering::Relaxed) {
                    index if index < n_items => item(lane, index),
                    _ => return,
                }
            }
        });
    }

    /// As [`ThreadPool::for_each`], but each thread first takes its own consecutive items, so it reads memory as
    /// one stream, and its next item is known.
    ///
    /// # Panics
    /// As [`ThreadPool::for_each`].
    pub fn for_each_in_runs(&mut self, n_items: usize, cost: usize, item: Item<'_>) {
        self.for_each_run(n_items, cost, &|_, index| item(index));
    }

    /// As [`ThreadPool::for_each_in_runs`], with exclusive use of one of `lanes` in each call, the same within a run.
    ///
    /// # Panics
    /// As [`ThreadPool::for_each`], and with fewer lanes than threads.
    pub fn for_each_in_runs_with<L: Send>(
        &mut self,
        lanes: &mut [L],
        n_items: usize,
        cost: usize,
        item: &(dyn Fn(&mut L, usize) + Sync),
    ) {
        let lanes = Parts::new(lanes);
        self.for_each_run(n_items, cost, &|run, index| {
            // SAFETY: each run is processed by one thread and has its own lane.
            item(&mut unsafe { lanes.part(run, 1) }[0], index);
        });
    }

    fn for_each_run(&mut self, n_items: usize, cost: usize, item: &(dyn Fn(usize, usize) + Sync)) {
        if n_items <= 1 {
            (0..n_items).for_each(|index| item(0, index));
            return;
        }
        if self.nodes.count() > 1 {
            let shares = self.nodes.shares(n_items).into_iter();
            let node_items: PerNode<usize> = shares.map(|share| share.len()).collect();
            return self.run_by_node(&node_items, Order::Runs, cost, item);
        }
        let runs = self.runs.clone();
        let items = u32::try_from(n_items).expect("a kernel must have fewer than 2^32 items");
        let first = |run: usize| (run as u64 * u64::from(items) / runs.len() as u64) as u32;
        for (i, run) in runs.iter().enumerate() {
            run.set(first(i)..first(i + 1));
        }
        self.for_each(runs.len(), cost, &|own| {
            while let Some(index) = runs[own].claim_first() {
                item(own, index);
            }
            let others = (1..runs.len()).map(|i| &runs[(own + i) % runs.len()]);
            for other in others {
                while let Some(index) = other.claim_last() {
                    item(own, index);
                }
            }
        });
    }

    /// Calls `item` for each index below `n_items`, on any thread, lowest first, and returns after all calls. `cost` is
    /// the total in multiply-adds.
    ///
    /// # Panics
    /// If an item panics, or if there are 2^32 items or more. The pool can be used again afterwards.
    pub fn for_each(&mut self, n_items: usize, cost: usize, item: Item<'_>) {
        if n_items <= 1 || cost < MIN_SHARED_COST || self.workers.is_empty() {
            (0..n_items).for_each(item);
            return;
        }
        self.has_shared = true;
        let claims = u32::try_from(n_items).expect("a kernel must have fewer than 2^32 items");
        // SAFETY: the borrow outlives every use, since this function returns only when no claimed item is left, and
        // only the holder of a claim calls it.
        let item = unsafe { std::mem::transmute::<Item<'_>, Item<'static>>(item) };
        // SAFETY: `pending` is 0, so no thread holds a claimed item.
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
        // Cleared first, so that the pool can run the next kernel after the caller has caught this panic.
        if self.shared.panicked.swap(false, Ordering::Relaxed) {
            self.raise();
        }
    }

    /// Panics with the message of an item's panic.
    fn raise(&self) -> ! {
        let text = self
            .shared
            .panic
            .lock()
            .ok()
            .and_then(|mut text| text.take());
        panic!("a compute kernel panicked: {}", text.unwrap_or_default());
    }

    fn publish(&mut self, claims: u32) {
        self.epoch = self.epoch.wrapping_add(1);
        let ticket = Ticket::new(self.epoch, claims);
        self.shared.ticket.store(ticket.0, Ordering::SeqCst);
        self.unpark();
    }

    fn unpark(&self) {
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
    let is_awake = || shared.awake.load(Ordering::SeqCst);
    loop {
        for _ in 0..SPINS_BEFORE_PARK {
            if is_new(Ordering::Acquire) {
                return;
            }
            std::hint::spin_loop();
        }
        while is_awake() {
            for _ in 0..SPINS_BETWEEN_YIELDS {
                if is_new(Ordering::Acquire) {
                    return;
                }
                std::hint::spin_loop();
            }
            std::thread::yield_now();
        }
        // By sequential consistency, the caller sees this store or this thread sees the caller's earlier stores.
        shared.parked[worker].store(true, Ordering::SeqCst);
        while !is_new(Ordering::SeqCst) && !is_awake() {
            std::thread::park();
        }
        shared.parked[worker].store(false, Ordering::SeqCst);
    }
}

/// Claims and runs items until none is left; returns the number of the last kernel seen.
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

/// Runs a claimed item, after which `rest` items are unclaimed.
fn run_claimed(shared: &Shared, rest: usize) {
    // SAFETY: the claim keeps `pending` above 0, so the caller does not write.
    let job = unsafe { *shared.job.get() }.expect("the job must be published before its claims");
    // The caller must reach the barrier even if an item panics: the borrow in `job` ends there.
    if let Err(payload) = catch_unwind(AssertUnwindSafe(|| (job.item)(job.n_items - 1 - rest))) {
        let text = payload.downcast_ref::<&str>().copied();
        let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
        if let Ok(mut first) = shared.panic.lock() {
            first.get_or_insert_with(|| text.unwrap_or("no message").to_owned());
        }
        // Dropping the payload could panic before the barrier.
        std::mem::forget(payload);
        shared.panicked.store(true, Ordering::Relaxed);
    }
    shared.pending.fetch_sub(1, Ordering::Release);
}

/// For tests.
impl ThreadPool {
    pub fn new(n_threads: usize) -> std::io::Result<Self> {
        Self::on_nodes(&[n_threads])
    }

    /// `threads` is the number of threads of each node; the machine need not have the nodes.
    pub fn on_nodes(threads: &[usize]) -> std::io::Result<Self> {
        Self::with_seats(Seats::anywhere(threads))
    }
}

#[cfg(test)]
mod tests;
