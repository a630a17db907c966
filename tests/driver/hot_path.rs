//! Tests that copies, launches and graphs allocate no host memory outside the driver.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use souffleur::kernels::cuda::driver::{DevicePtr, HostUse, Priority};
use souffleur::kernels::cuda::gemm::{GemmWish, Products};
use souffleur::kernels::cuda::params::{ElementType, GemmParams, GemmWrite};

use crate::{device, modules};

struct CountingAllocator;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // A thread that ends may free and allocate when its counter is gone.
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's guarantees are the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller's guarantees are the system allocator's.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Allocations of this thread in `work`.
fn allocations(work: impl FnOnce()) -> usize {
    let before = ALLOCATIONS.get();
    work();
    ALLOCATIONS.get() - before
}

#[test]
fn copies_launches_and_graphs_allocate_nothing() {
    let (device, _) = device(66);
    let modules = modules(&device);
    let stream = device.stream(Priority::High).unwrap();
    let other = device.stream(Priority::Low).unwrap();
    let (copied, buffer) = (device.event().unwrap(), device.alloc::<f32>(64).unwrap());
    let pinned = device.pinned::<f32>(64, HostUse::Upload).unwrap();
    let mut products = Products::new(&device, &modules, ElementType::F32, GemmWish::Own).unwrap();
    let params = GemmParams {
        out: buffer.at(32).cast(),
        x: buffer.ptr().cast(),
        w: buffer.ptr().cast(),
        bias: DevicePtr::NULL,
        partials: DevicePtr::NULL,
        m: 4,
        n: 4,
        k: 4,
        write: GemmWrite::StoreF32,
        n_splits: 1,
    };
    let graph = stream.capture(|| stream.fill(&buffer, 0..16, 0)).unwrap();
    assert!(
        allocations(|| drop(std::hint::black_box(Box::new(1)))) > 0,
        "the counter counts allocations"
    );
    let mut step = || {
        // SAFETY: arrays of these shapes; pinned memory is not touched before the stream is idle.
        unsafe {
            other.upload(&buffer, 0, &pinned, 0..64).unwrap();
            other.record(&copied).unwrap();
            stream.wait(&copied).unwrap();
            products.multiply(&stream, &params).unwrap();
            graph.launch(&stream).unwrap();
        }
        stream.synchronize().unwrap();
    };
    step();
    assert_eq!(allocations(step), 0);
}
