//! Tests of the store's buffers: their memory and life cycle.

use super::*;

fn pools(bytes: usize, host_bytes: u64) -> BlockPools {
    let plane = Plane {
        layer: 0,
        buffer: 0,
        bytes,
    };
    let geometry = Geometry {
        planes: [Arc::from([plane]), Arc::default(), Arc::default()],
        ..geometry(false, 0)
    };
    let (freed, _) = crossbeam_channel::bounded(1);
    BlockPools::new(&geometry, host_bytes, &freed).expect("the buffers fit")
}

fn pool(bytes: usize, host_bytes: u64) -> BlockPool {
    let pools = pools(bytes, host_bytes);
    pools.of(BlockKind::Kv).expect("the pool exists").clone()
}

#[test]
fn buffers_share_no_page() {
    for bytes in [1, 1000, 4096, 4097, 3 * 4096] {
        let pool = pool(bytes, 1 << 20);
        let take = |_| pool.take(BlockUse::Saving).expect("a buffer is free");
        let mut blocks: Vec<HostBlock> = (0..9).map(take).collect();
        let mut ranges = Vec::new();
        for block in &mut blocks {
            assert_eq!(block.bytes(), vec![0; bytes]);
            let start = block.bytes().as_ptr();
            let pages = block.pages_mut().as_ptr_range();
            assert_eq!(pages.start, start);
            assert_eq!(pages.start.addr() % 4096, 0);
            assert_eq!(block.pages_mut().len(), bytes.next_multiple_of(4096));
            ranges.push(pages.start.addr()..pages.end.addr());
        }
        ranges.sort_by_key(|range| range.start);
        let is_apart = |two: &[std::ops::Range<usize>]| two[0].end <= two[1].start;
        assert!(ranges.windows(2).all(is_apart), "{ranges:?}");
    }
}

#[test]
fn buffers_stay_within_the_memory_bound() {
    let total = |host_bytes| pool(4097, host_bytes).counts().total;
    assert_eq!(total(6 * PAGE_BYTES - 1), 2);
    assert_eq!(total(6 * PAGE_BYTES), 3);
}

#[test]
fn an_abandoned_buffer_is_replaced() {
    let pool = pool(1000, 3 * PAGE_BYTES);
    let take = || pool.take(BlockUse::Saving);
    let mut taken: Vec<HostBlock> = std::iter::from_fn(take).collect();
    assert_eq!(taken.len(), 3);
    let pool_memory = Arc::downgrade(&taken[0].owner());
    let mut leaked = Vec::new();
    for block in taken.drain(..2) {
        leaked.push(block.bytes().as_ptr());
        block.abandon();
    }
    let counts = pool.counts();
    assert_eq!((counts.free, counts.saving, counts.total), (2, 1, 3));
    let again: Vec<HostBlock> = std::iter::from_fn(take).collect();
    assert_eq!(again.len(), 2);
    let is_leak = |block: &HostBlock| leaked.contains(&block.bytes().as_ptr());
    assert!(!again.iter().any(is_leak), "an abandoned buffer is reused");
    drop((taken, again));
    assert_eq!(pool.counts().free, 3);
    drop(pool);
    assert!(pool_memory.upgrade().is_none(), "the pool is not freed");
}

#[test]
fn large_buffers_are_made_before_they_are_needed() {
    let pools = pools(1 << 20, 4 << 20);
    let taken = pools
        .of(BlockKind::Kv)
        .and_then(|pool| pool.take(BlockUse::Saving));
    assert!(taken.is_some());
    let n_made = (0..9).filter(|_| pools.make_ahead()).count();
    assert_eq!(n_made, 3);
    let counts = pools.of(BlockKind::Kv).map(BlockPool::counts);
    assert_eq!(
        counts.map(|counts| (counts.free, counts.saving)),
        Some((3, 1))
    );
}

#[test]
fn a_failed_allocation_gives_no_buffer() {
    // More than the address space.
    let pools = pools(1 << 60, 1 << 62);
    let pool = pools.of(BlockKind::Kv).expect("the pool exists");
    assert!(pool.take(BlockUse::Saving).is_none());
    assert!(!pools.make_ahead());
    let counts = pool.counts();
    assert_eq!((counts.free, counts.total), (4, 4));
}
