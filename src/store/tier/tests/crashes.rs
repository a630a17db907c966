//! Tests of recovery from crashes and power failures.

use super::*;

/// Saves, uses and evicts blocks. The machine may crash during the workload.
fn run_workload(world: &World, tier: &mut DiskTier) {
    for prompt in 0..3 {
        let path = path(tier, prompt, 4);
        for place in &path {
            world.save(tier, place);
        }
        world.save_kind(tier, &path[3], BlockKind::State);
        world.save_kind(tier, &path[1], BlockKind::State);
        tier.touch(path[2].key);
    }
    tier.rewrite_log();
    for place in &path(tier, 3, 3) {
        world.save(tier, place);
    }
    tier.sync();
}

#[test]
fn a_crash_at_any_write_loses_no_indexed_record() {
    let sizes = World::new(true, 0);
    let bytes =
        10 * sizes.slot_bytes(BlockKind::Kv) + 2 * sizes.slot_bytes(BlockKind::State) + 96 * 100;
    let begin = || {
        let world = World::new(true, bytes);
        drop(world.open());
        world
    };
    let n_changes = {
        let world = begin();
        let before = world.files.changes();
        run_workload(&world, &mut world.open());
        world.files.changes() - before
    };
    assert!(n_changes > 80, "{n_changes}");
    for change in 1..=n_changes {
        let world = begin();
        world.files.crash_at(world.files.changes() + change);
        let mut tier = match world.try_open() {
            Ok(tier) => tier,
            Err(_) => continue,
        };
        let recovered = tier.recover();
        if recovered.is_ok() {
            run_workload(&world, &mut tier);
        }
        let had: Vec<StoredBlock> = tier.index().iter().collect();
        let after = world.restarted(world.files.restarted());
        let mut tier = after.open();
        for record in &had {
            let loaded = after.load_kind(&mut tier, &record.place, record.kind);
            assert_eq!(loaded, Ok(()), "change {change}: {record:?}");
        }
        drop(tier);
        check_all(&after);
    }
}

#[test]
fn records_are_correct_or_misses_after_a_power_cut() {
    for seed in 0..60 {
        let mut random = fastrand::Rng::with_seed(seed);
        let world = World::new(true, PLENTY);
        let (mut tier, path) = world.filled(4);
        // Frees two slots that hold old records.
        tier.forget(path[3].key, BlockKind::Kv);
        tier.forget(path[2].key, BlockKind::Kv);
        world.files.begin_journal();
        for place in &self::path(&tier, 1, 6) {
            world.save(&mut tier, place);
        }
        world.save_kind(&mut tier, &path[1], BlockKind::State);
        let share = random.f64();
        let files = world.files.restarted_losing(|| random.f64() < share);
        let after = world.restarted(files);
        check_all(&after);
        let mut tier = after.open();
        for place in &path[..2] {
            // The first two blocks were written before the journal began.
            assert_eq!(after.load(&mut tier, place), Ok(()));
        }
    }
}
