//! Tests of large records, which are written in parts and read in parallel.

use super::*;
use crate::segments::WriteMode;

const PLANE_BYTES: usize = 1200 << 10;
const PLANES: u32 = 2;

/// A store of blocks with two large planes, and buffers for eight blocks.
fn world() -> World {
    let planes = (0..PLANES).map(|layer| Plane {
        layer,
        buffer: 0,
        bytes: PLANE_BYTES,
    });
    let geometry = Geometry {
        block_tokens: TOKENS,
        needs: Needs::default(),
        planes: [planes.collect(), Arc::default(), Arc::default()],
    };
    let (freed, _) = crossbeam_channel::bounded(1);
    let host_bytes = 8 * geometry.payload_bytes(BlockKind::Kv) as u64;
    let pools = BlockPools::new(&geometry, host_bytes, &freed).expect("the buffers fit");
    World {
        files: MemoryFiles::new(),
        setup: TierSetup {
            root: PathBuf::from("/kv"),
            disk_bytes: PLENTY,
            drop_behind: false,
            geometry,
        },
        weights: "first",
        pools,
        now: Instant::now(),
    }
}

fn read(world: &World, tier: &mut DiskTier, places: &[BlockPlace]) -> (usize, Option<Short>) {
    let mut blocks: Vec<HostBlock> = places.iter().map(|_| world.block(BlockKind::Kv)).collect();
    blocks
        .iter_mut()
        .for_each(|block| block.bytes_mut().fill(0xee));
    let (n_good, short) = tier.read_all(places, &mut blocks, world.now);
    for (place, block) in places.iter().zip(&blocks).take(n_good) {
        let expected = content(place, BlockKind::Kv, &world.setup.geometry);
        assert!(block.bytes() == expected, "wrong bytes of {place:?}");
    }
    (n_good, short)
}

#[test]
fn parallel_reads_end_at_the_first_missing_or_damaged_record() {
    let world = world();
    let (mut tier, path) = world.filled(6);
    let beyond = super::path(&tier, 0, 8);
    assert_eq!(read(&world, &mut tier, &path[1..5]), (4, None));
    assert_eq!(
        read(&world, &mut tier, &beyond[4..8]),
        (2, Some(Short::Evicted))
    );
    let at = 2 * world.slot_bytes(BlockKind::Kv) as usize + 4096 + PLANE_BYTES + 5;
    let segment = world.files.path("seg-kv");
    world.files.change(&segment, |bytes| bytes[at] ^= 1);
    assert_eq!(
        read(&world, &mut tier, &path[..4]),
        (2, Some(Short::Damaged))
    );
    assert_eq!(tier.index.prefix(&path), 2);
    assert_eq!(tier.index.fault(), None);
    let counts = tier.shared.counts.read();
    assert_eq!((counts.read, counts.damaged), (8, 1));
}

#[test]
fn a_block_is_found_once_its_last_part_is_written() {
    let world = world();
    let (mut tier, _) = world.filled(1);
    let path = path(&tier, 0, 2);
    let mut block = world.block(BlockKind::Kv);
    let bytes = content(&path[1], BlockKind::Kv, &world.setup.geometry);
    block.bytes_mut().copy_from_slice(&bytes);
    let begun = tier.begin_write(&path[1], BlockKind::Kv, world.now);
    let mut writing = begun.unwrap_or_else(|outcome| panic!("{outcome:?}"));
    let first = tier.write_more(&mut writing, (&block, WriteMode::PastCache), world.now);
    assert_eq!(first, None);
    assert_eq!(tier.index.prefix(&path), 1);
    assert_eq!(read(&world, &mut tier, &path[..1]), (1, None));
    let outcome = tier.write_more(&mut writing, (&block, WriteMode::Cached), world.now);
    assert_eq!(outcome, Some(Outcome::Written));
    assert_eq!(read(&world, &mut tier, &path), (2, None));
}

#[test]
fn a_block_whose_parent_is_evicted_during_the_write_is_dropped() {
    let world = world();
    let (mut tier, _) = world.filled(1);
    let path = path(&tier, 0, 2);
    let block = world.block(BlockKind::Kv);
    let begun = tier.begin_write(&path[1], BlockKind::Kv, world.now);
    let mut writing = begun.unwrap_or_else(|outcome| panic!("{outcome:?}"));
    assert_eq!(
        tier.write_more(&mut writing, (&block, WriteMode::Cached), world.now),
        None
    );
    assert!(tier.forget(path[0].key, BlockKind::Kv).is_some());
    let outcome = tier.write_more(&mut writing, (&block, WriteMode::Cached), world.now);
    assert_eq!(outcome, Some(Outcome::Orphan));
    assert_eq!((tier.index.len(), tier.index.fault()), (0, None));
    let both = super::path(&tier, 1, 2);
    for place in &both {
        assert_eq!(world.save(&mut tier, place), Outcome::Written);
    }
    assert_eq!(tier.bytes(), 2 * world.slot_bytes(BlockKind::Kv));
}
