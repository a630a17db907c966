//! Tests of looking up and loading blocks.

use super::*;

#[test]
fn blocks_are_loaded_after_a_restart() {
    let mut world = World::dense(8);
    let path = world.path(0, 5);
    for place in &path {
        assert_eq!(world.save(*place, BlockKind::Kv), Outcome::Written);
    }
    assert_eq!(world.save(path[4], BlockKind::Kv), Outcome::Known);
    world.restart();
    let (found, blocks, worth) = world.find(0, 9, None);
    assert_eq!((&*found, blocks, worth), (&path[..], 5, 5));
    assert_eq!(world.find(1, 9, None).1, 0);
    let (loaded, short) = world.fetch(&path, 2);
    let loaded = loaded.expect("some blocks");
    assert_eq!((loaded.blocks.clone(), short), (2..5, None));
    assert_eq!(world.counts(BlockKind::Kv).ready, 3);
    drop(loaded);
    assert_eq!(world.counts(BlockKind::Kv).free, 8);
    let stats = world.store().stats();
    assert_eq!((stats.records, stats.read, stats.damaged), (5, 3, 0));
    assert_eq!(stats.read_bytes, 3 * KV_BYTES as u64);
}

#[test]
fn blocks_that_are_computed_faster_are_not_worth_loading() {
    let mut world = World::dense(4);
    let place = world.path(0, 1)[0];
    world.save(place, BlockKind::Kv);
    assert_eq!(world.find(0, 1, Some(1e9)).2, 0);
    assert_eq!(world.find(0, 1, Some(1.0)).2, 1);
    assert_eq!(world.store().stats().too_slow, 1);
}

#[test]
fn a_long_prefix_is_loaded_in_rounds_and_saves_keep_their_share() {
    let mut world = World::dense(8);
    let path = world.path(0, 9);
    for place in &path {
        world.save(*place, BlockKind::Kv);
    }
    let (first, short) = world.fetch(&path, 0);
    let first = first.expect("some blocks");
    assert_eq!((first.blocks.clone(), short), (0..6, Some(Short::Memory)));
    // The second fetch waits for buffers; the buffers for saves are still free.
    let second = world.request(&path, 6, TIMEOUT);
    let other = world.path(1, 1)[0];
    assert_eq!(world.save(other, BlockKind::Kv), Outcome::Written);
    drop(first);
    let (ticket, loaded, _) = world.wait_for_fetch(&path);
    assert_eq!(ticket, second);
    // The second fetch began with the buffers that were returned by then.
    let mut end = loaded.expect("some blocks").blocks.end;
    while end < 9 {
        let next = world.fetch(&path, end).0.expect("some blocks");
        assert_eq!(next.blocks.start, end);
        end = next.blocks.end;
    }
}

#[test]
fn a_fetch_ends_by_its_deadline_or_when_it_is_cancelled() {
    let mut world = World::dense(4);
    let path = world.path(0, 3);
    for place in &path {
        world.save(*place, BlockKind::Kv);
    }
    world.request(&path, 0, Duration::ZERO);
    let (_, late, _) = world.wait_for_fetch(&path);
    assert_eq!(late.err(), Some(Short::Deadline));
    let held = world.fetch(&path, 0).0.expect("some blocks");
    let waiting = world.request(&path, 0, TIMEOUT);
    world.store().cancel(waiting).expect("the queue has space");
    let (ticket, late, _) = world.wait_for_fetch(&path);
    assert_eq!((ticket, late.err()), (waiting, Some(Short::Cancelled)));
    drop(held);
    let gone = world.path(3, 2);
    assert_eq!(world.fetch(&gone, 0).0.err(), Some(Short::Evicted));
    assert_eq!(world.fetch(&path, 3).0.err(), Some(Short::Evicted));
    assert_eq!(world.store().stats().late, 4);
    assert_eq!(world.counts(BlockKind::Kv).free, 4);
}

#[test]
fn a_damaged_block_cuts_a_fetch_short() {
    let mut world = World::dense(8);
    let path = world.path(0, 4);
    for place in &path {
        world.save(*place, BlockKind::Kv);
    }
    let segment = world.files.path("seg-kv");
    world
        .files
        .change(&segment, |bytes| bytes[2 * 8192 + 4096 + 5] ^= 1);
    let (loaded, short) = world.fetch(&path, 0);
    assert_eq!(short, Some(Short::Damaged));
    assert_eq!(loaded.expect("two blocks are intact").blocks, 0..2);
    assert_eq!(world.find(0, 4, None).1, 2);
    assert_eq!(world.missed.get(), Some(StoredMiss::Damaged));
    assert_eq!(world.store().stats().damaged, 1);
    assert_eq!(world.save(path[2], BlockKind::Kv), Outcome::Written);
    assert_eq!(world.find(0, 4, None).1, 4);
    // The fifth block was never saved.
    assert_eq!(world.find(0, 5, None).1, 4);
    assert_eq!(world.missed.get(), None);
}

#[test]
fn sequences_resume_only_after_blocks_with_a_state() {
    let mut world = World::new(geometry(true, 0), 16 * PAGE_BYTES);
    let path = world.path(0, 6);
    for place in &path {
        assert_eq!(world.save(*place, BlockKind::Kv), Outcome::Written);
    }
    assert_eq!(world.find(0, 6, None).1, 0);
    for block in [1, 4] {
        assert_eq!(world.save(path[block], BlockKind::State), Outcome::Written);
    }
    let (found, blocks, worth) = world.find(0, 6, None);
    assert_eq!((found.len(), blocks, worth), (6, 5, 5));
    let (loaded, short) = world.fetch(&found[..blocks], 0);
    assert_eq!((loaded.expect("some blocks").blocks, short), (0..5, None));
    // The last state is damaged: the fetch ends at the state before it.
    let segment = world.files.path("seg-state");
    world
        .files
        .change(&segment, |bytes| bytes[8192 + 4096] ^= 1);
    let (loaded, short) = world.fetch(&found[..blocks], 0);
    let loaded = loaded.expect("an earlier block has a state");
    assert_eq!((loaded.blocks.clone(), short), (0..2, Some(Short::Damaged)));
    drop(loaded);
    assert_eq!(
        world.fetch(&found[..blocks], 2).0.err(),
        Some(Short::Evicted)
    );
    assert_eq!(
        world.counts(BlockKind::State).free,
        world.counts(BlockKind::State).total
    );
}

#[test]
fn only_the_last_blocks_windows_are_loaded() {
    let mut world = World::new(geometry(false, 6), 32 * PAGE_BYTES);
    let path = world.path(0, 5);
    for place in &path {
        world.save(*place, BlockKind::Kv);
    }
    for block in [1, 2, 3] {
        world.save(path[block], BlockKind::Window);
    }
    // The window of the next token covers the 5 tokens before it, which are in the last two of four blocks.
    assert_eq!(world.find(0, 5, None).1, 4);
    let (loaded, _) = world.fetch(&path[..4], 0);
    let loaded = loaded.expect("some blocks");
    assert_eq!((loaded.kv.len(), loaded.window.len()), (4, 2));
    drop(loaded);
    let (loaded, _) = world.fetch(&path[..4], 3);
    assert_eq!(loaded.expect("some blocks").window.len(), 1);
}

#[test]
fn the_kernel_is_advised_of_coming_reads_and_of_written_records() {
    let mut world = World::dense(8);
    let path = world.path(0, 3);
    for place in &path {
        world.save(*place, BlockKind::Kv);
    }
    let loaded = world.fetch(&path, 0).0.expect("some blocks");
    assert_eq!(loaded.blocks, 0..3);
    world.restart();
    let advised_of = |wanted: Advice| {
        let advised = world.files.advised().into_iter();
        let of = advised.filter(move |(_, advice)| *advice == wanted);
        of.map(|(range, _)| range).collect::<Vec<_>>()
    };
    let records = [0..8192, 8192..16384, 16384..24576];
    // The first record is read without advice, and shows how fast the disk is.
    assert_eq!(advised_of(Advice::WillNeed), records[1..]);
    assert_eq!(advised_of(Advice::DontNeed), records);
}
