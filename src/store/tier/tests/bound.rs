//! Tests of the bound on disk space (`96 * 40` bytes of it are for log entries), and of the order of evictions.

use super::*;

#[test]
fn the_least_recently_used_path_is_evicted_from_its_end() {
    let world = World::new(false, 0);
    let bytes = 8 * world.slot_bytes(BlockKind::Kv);
    let world = World::new(false, bytes + 96 * 40);
    let mut tier = world.open();
    let paths: Vec<Vec<BlockPlace>> = (0..4).map(|prompt| path(&tier, prompt, 3)).collect();
    for place in paths[..2].iter().flatten() {
        assert_eq!(world.save(&mut tier, place), Outcome::Written);
    }
    tier.touch(paths[0][2].key);
    for place in &paths[2] {
        assert_eq!(world.save(&mut tier, place), Outcome::Written);
    }
    let kept = |tier: &DiskTier| -> Vec<usize> {
        paths.iter().map(|path| tier.index().prefix(path)).collect()
    };
    // The end of the second path was evicted.
    assert_eq!(kept(&tier), [3, 2, 3, 0]);
    tier.close();
    // A restart keeps the order of use.
    let mut tier = world.open();
    for place in &paths[3] {
        assert_eq!(world.save(&mut tier, place), Outcome::Written);
    }
    assert_eq!(kept(&tier), [2, 0, 3, 3]);
    assert_eq!(tier.shared.counts.read().evicted, 3);
    let gone = [paths[0][2], paths[1][1], paths[3][0]].map(|place| tier.dropped.why(place.key));
    let evicted = Some(StoredMiss::Evicted);
    assert_eq!(gone, [evicted, evicted, None]);
    assert!(world.files.bytes() <= world.setup.disk_bytes + 4096);
    assert_eq!(tier.index.fault(), None);
}

#[test]
fn a_path_that_does_not_fit_keeps_its_beginning() {
    let slot_bytes = World::new(false, 0).slot_bytes(BlockKind::Kv);
    let world = World::new(false, 4 * slot_bytes + 96 * 40);
    let mut tier = world.open();
    let path = path(&tier, 0, 7);
    let saved: Vec<Outcome> = path
        .iter()
        .map(|place| world.save(&mut tier, place))
        .collect();
    assert_eq!(saved[..4], [Outcome::Written; 4]);
    assert_eq!(saved[4], Outcome::NoSpace);
    assert_eq!(saved[5], Outcome::Orphan);
    assert_eq!(tier.index().prefix(&path), 4);
}

#[test]
fn states_and_blocks_evict_each_other() {
    let sizes = World::new(true, 0);
    let (kv, state) = (
        sizes.slot_bytes(BlockKind::Kv),
        sizes.slot_bytes(BlockKind::State),
    );
    assert!(kv < state && state < 3 * kv);
    for can_punch in [true, false] {
        let world = World::new(true, 6 * kv + 96 * 40);
        if !can_punch {
            world.files.forbid_punching();
        }
        let (mut tier, path) = world.filled(6);
        let saved = world.save_kind(&mut tier, &path[1], BlockKind::State);
        if can_punch {
            assert_eq!(saved, Outcome::Written);
            assert_eq!(tier.index().prefix(&path), 4);
            assert_eq!(
                world.load_kind(&mut tier, &path[1], BlockKind::State),
                Ok(())
            );
        } else {
            assert_eq!((saved, tier.index().prefix(&path)), (Outcome::NoSpace, 5))
        }
        assert!(tier.bytes() <= tier.limit());
        // The new blocks replace the state, if it was written, and blocks of the first path.
        let second = self::path(&tier, 1, 2);
        for place in &second {
            assert_eq!(world.save(&mut tier, place), Outcome::Written);
        }
        assert!(tier.bytes() <= tier.limit());
        assert_eq!(world.load(&mut tier, &second[1]), Ok(()));
    }
}

#[test]
fn blocks_above_a_smaller_bound_are_removed_when_the_tier_opens() {
    for can_punch in [true, false] {
        let mut world = World::new(false, PLENTY);
        if !can_punch {
            world.files.forbid_punching();
        }
        let (tier, path) = world.filled(6);
        tier.close();
        world.setup.disk_bytes = 3 * world.slot_bytes(BlockKind::Kv) + 96 * 40;
        let mut tier = world.open();
        let expected = if can_punch { 3 } else { 0 };
        assert_eq!(tier.index().prefix(&path), expected);
        for place in &path[..expected] {
            assert_eq!(world.load(&mut tier, place), Ok(()));
        }
    }
}

#[test]
fn a_full_disk_stops_saves_but_not_loads() {
    let mut world = World::new(false, PLENTY);
    let (mut tier, path) = world.filled(3);
    world.files.set_capacity(Some(world.files.bytes()));
    let other = self::path(&tier, 1, 2);
    assert_eq!(world.save(&mut tier, &other[0]), Outcome::NoSpace);
    world.files.set_capacity(None);
    assert_eq!(
        world.save(&mut tier, &other[0]),
        Outcome::NoSpace,
        "saves are still paused"
    );
    for place in &path {
        assert_eq!(world.load(&mut tier, place), Ok(()));
    }
    world.now += PAUSE;
    assert_eq!(world.save(&mut tier, &other[0]), Outcome::Written);
    tier.close();
    let mut tier = world.open();
    assert_eq!(world.load(&mut tier, &other[0]), Ok(()));
    assert_eq!(tier.index().prefix(&path), 3);
}

#[test]
fn folders_of_other_fingerprints_are_removed_before_own_records_oldest_first() {
    let world = World::new(false, PLENTY);
    let slot_bytes = world.slot_bytes(BlockKind::Kv);
    let mut others = Vec::new();
    for (weights, time) in [("old", 1), ("older", 0), ("used", 0)] {
        let mut other = world.restarted(world.files.clone());
        other.weights = weights;
        let (tier, _) = other.filled(3);
        let folder = tier.folder.path.clone();
        // The length of this file is the time of the folder's last write.
        other
            .files
            .change(&folder.join("time"), |bytes| bytes.resize(time, 0));
        // The engine of the last folder is still running.
        others.push((folder, (weights == "used").then_some(tier)));
    }
    let mut world = world.restarted(world.files.clone());
    world.setup.disk_bytes = 10 * slot_bytes;
    let mut tier = world.open();
    let there = |at: usize| {
        world
            .files
            .paths()
            .iter()
            .any(|p| p.starts_with(&others[at].0))
    };
    let path = path(&tier, 0, 12);
    let mut saved = path.iter().map(|place| world.save(&mut tier, place));
    assert_eq!(saved.next(), Some(Outcome::Written));
    assert_eq!([0, 1, 2].map(there), [true, true, true]);
    assert_eq!(saved.nth(1), Some(Outcome::Written));
    assert_eq!([0, 1, 2].map(there), [true, false, true]);
    assert!(saved.any(|outcome| outcome == Outcome::NoSpace));
    drop(saved);
    assert_eq!([0, 1, 2].map(there), [false, false, true]);
    assert_eq!(tier.shared.counts.read().foreign_removed, 2);
    assert!(tier.index().len() >= 6, "the rest is this folder's");
}
