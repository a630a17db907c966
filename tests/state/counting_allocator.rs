//! Counts the allocations of the current thread, for tests of allocation-free code.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    static LIVE_BYTES: Cell<i64> = const { Cell::new(0) };
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

struct Counting;

// SAFETY: every call goes to the system's allocator unchanged; the counters are plain thread-local cells
// without destructors, so touching them neither allocates nor fails after the thread's end began.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        LIVE_BYTES.set(LIVE_BYTES.get() + layout.size() as i64);
        // SAFETY: the caller keeps the contract of `alloc`, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE_BYTES.set(LIVE_BYTES.get() - layout.size() as i64);
        // SAFETY: `pointer` came from `alloc` above, that is from the system, with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// Returns the result of `run` and the number of allocations that it made on this thread.
pub fn allocations_of<T>(run: impl FnOnce() -> T) -> (T, u64) {
    let before = ALLOCATIONS.get();
    let result = run();
    (result, ALLOCATIONS.get() - before)
}

/// Bytes that this thread allocated and did not free.
pub fn live_bytes() -> i64 {
    LIVE_BYTES.get()
}
