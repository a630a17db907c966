//! Tests that damaged records are cache misses and nothing worse.

use super::*;

#[test]
fn records_survive_a_restart_with_and_without_the_log() {
    let world = World::new(true, PLENTY);
    let (mut tier, path) = world.filled(5);
    for place in &path[3..] {
        let saved = world.save_kind(&mut tier, place, BlockKind::State);
        assert_eq!(saved, Outcome::Written);
    }
    assert_eq!(world.save(&mut tier, &path[2]), Outcome::Known);
    tier.close();
    for with_log in [true, false] {
        if !with_log {
            world
                .files
                .remove_file(&world.files.path("index.log"))
                .expect("the file exists");
        }
        let (mut tier, is_scanned) = world.open_recovered();
        assert_eq!(is_scanned, !with_log);
        assert_eq!(tier.index().prefix(&path), 5);
        let needs = world.setup.geometry.needs;
        assert_eq!(tier.index().usable(&path, 5, &needs, TOKENS), 5);
        assert_eq!(tier.index().usable(&path, 3, &needs, TOKENS), 0);
        for place in &path {
            assert_eq!(world.load(&mut tier, place), Ok(()));
        }
        let state = world.load_kind(&mut tier, &path[4], BlockKind::State);
        assert_eq!(state, Ok(()));
        tier.close();
    }
}

#[test]
fn a_record_with_any_changed_bit_is_a_miss() {
    let world = World::new(false, PLENTY);
    let (tier, path) = world.filled(2);
    tier.close();
    let segment = world.files.path("seg-kv");
    let whole = world.files.read(&segment, PLENTY).expect("the file exists");
    let log = world.files.path("index.log");
    let slot_bytes = world.slot_bytes(BlockKind::Kv) as usize;
    // The last record is not padded.
    assert_eq!(whole.len(), slot_bytes + 4096 + 196);
    // Changes the second record: each byte of its header and payload.
    for at in slot_bytes..whole.len() {
        let bit = 1 << (at % 8);
        for with_log in [true, false] {
            let world = world.restarted(world.files.restarted());
            world.files.change(&segment, |bytes| bytes[at] ^= bit);
            if !with_log {
                world.files.remove_file(&log).expect("the file exists");
            }
            let mut tier = world.open();
            assert_eq!(world.load(&mut tier, &path[0]), Ok(()));
            let expected = if with_log || at >= slot_bytes + 4096 {
                Short::Damaged
            } else {
                Short::Evicted
            };
            assert_eq!(world.load(&mut tier, &path[1]), Err(expected), "byte {at}");
            assert_eq!(tier.index().prefix(&path), 1);
            // The block is saved again, in the same slot.
            assert_eq!(world.save(&mut tier, &path[1]), Outcome::Written);
            assert_eq!(world.load(&mut tier, &path[1]), Ok(()));
        }
    }
}

#[test]
fn a_truncated_file_keeps_the_records_before_the_cut() {
    let world = World::new(false, PLENTY);
    let (tier, path) = world.filled(3);
    tier.close();
    let segment = world.files.path("seg-kv");
    let whole = world.files.read(&segment, PLENTY).expect("the file exists");
    let slot_bytes = world.slot_bytes(BlockKind::Kv) as usize;
    for len in (0..whole.len()).step_by(61) {
        let world = world.restarted(world.files.restarted());
        world.files.change(&segment, |bytes| bytes.truncate(len));
        let mut tier = world.open();
        for (block, place) in path.iter().enumerate() {
            let is_whole = len >= block * slot_bytes + 4096 + 196;
            assert_eq!(
                world.load(&mut tier, place).is_ok(),
                is_whole,
                "{len} {block}"
            );
        }
    }
}

#[test]
fn swapped_slots_are_misses_with_the_log_and_hits_after_a_scan() {
    let world = World::new(false, PLENTY);
    let (tier, path) = world.filled(3);
    tier.close();
    let slot_bytes = world.slot_bytes(BlockKind::Kv) as usize;
    let segment = world.files.path("seg-kv");
    world.files.change(&segment, |bytes| {
        bytes.resize(3 * slot_bytes, 0);
        let (first, second) = bytes.split_at_mut(slot_bytes);
        first.swap_with_slice(&mut second[..slot_bytes]);
    });
    let again = world.restarted(world.files.restarted());
    let mut tier = world.open();
    for place in &path[..2] {
        assert_eq!(world.load(&mut tier, place), Err(Short::Damaged));
    }
    let log = again.files.path("index.log");
    again.files.remove_file(&log).expect("the file exists");
    let mut tier = again.open();
    for place in &path {
        assert_eq!(again.load(&mut tier, place), Ok(()));
    }
}

#[test]
fn a_bad_log_costs_a_scan_and_nothing_else() {
    let world = World::new(false, PLENTY);
    let (tier, path) = world.filled(4);
    tier.close();
    let log = world.files.path("index.log");
    let damages: [fn(&mut Vec<u8>); 4] = [
        |bytes| bytes[3] ^= 1,
        |bytes| bytes[200] ^= 1,
        |bytes| bytes.truncate(bytes.len() - 1),
        |bytes| bytes.extend([0; 96]),
    ];
    for damage in damages {
        let world = world.restarted(world.files.restarted());
        world.files.change(&log, damage);
        let (mut tier, is_scanned) = world.open_recovered();
        assert!(is_scanned);
        for place in &path {
            assert_eq!(world.load(&mut tier, place), Ok(()));
        }
    }
    // Records that are not in the log are not found, and their slots are free.
    let old = world.restarted(world.files.restarted());
    old.files.change(&log, |bytes| bytes.truncate(3 * 96));
    let mut tier = old.open();
    assert_eq!(tier.index().prefix(&path), 2);
    assert_eq!(old.save(&mut tier, &path[2]), Outcome::Written);
    assert_eq!(old.load(&mut tier, &path[2]), Ok(()));
}

#[test]
fn another_fingerprint_and_another_secret_find_nothing() {
    let mut world = World::new(false, PLENTY);
    let (tier, path) = world.filled(2);
    tier.close();
    let segment = world.files.path("seg-kv");
    world.weights = "second";
    let mut other = world.open();
    assert!(other.index().is_empty());
    // A copy of the first folder's files is not used either.
    let folder = other.folder.path.clone();
    other.close();
    let bytes = world.files.read(&segment, PLENTY).expect("the file exists");
    let copy = folder.join(segment.file_name().expect("the file has a name"));
    world.files.change(&copy, |new| *new = bytes);
    world
        .files
        .remove_file(&folder.join("index.log"))
        .expect("the file exists");
    other = world.open();
    assert!(other.index().is_empty());
    assert_eq!(other.shared.counts.read().foreign_removed, 0);
    other.close();
    world
        .files
        .change(&PathBuf::from("/kv/secret"), |secret| secret[7] ^= 1);
    world.weights = "first";
    let tier = world.open();
    assert_ne!(self::path(&tier, 0, 2), path);
    assert!(tier.index().is_empty());
    let counts = tier.shared.counts.read();
    assert_eq!((counts.foreign_removed, counts.foreign_bytes), (1, 0));
    assert!(!world.files.paths().contains(&segment));
}

#[test]
fn a_folder_is_for_one_engine() {
    let world = World::new(false, PLENTY);
    let (tier, _) = world.filled(1);
    assert_eq!(world.try_open().err().as_deref(), Some("in use"));
    drop(tier);
    assert_eq!(world.open().index().len(), 1);
}

#[test]
fn a_failed_read_is_a_miss() {
    let world = World::new(false, PLENTY);
    let (mut tier, path) = world.filled(2);
    world.files.make_unreadable();
    assert_eq!(world.load(&mut tier, &path[0]), Err(Short::Damaged));
    assert_eq!(tier.index().prefix(&path), 0);
    assert_eq!(tier.shared.counts.read().damaged, 1);
}

#[test]
fn arbitrary_file_damage_never_returns_wrong_bytes() {
    let world = World::new(true, PLENTY);
    let (mut tier, path) = world.filled(4);
    world.save_kind(&mut tier, &path[3], BlockKind::State);
    tier.close();
    for seed in 0..300 {
        let mut random = fastrand::Rng::with_seed(seed);
        let world = world.restarted(world.files.restarted());
        let paths = world.files.paths();
        for _ in 0..random.usize(1..4) {
            let path = random.choice(&paths).expect("the store has files");
            let other = random.choice(&paths).expect("the store has files");
            let bytes = world.files.read(other, PLENTY).expect("the file exists");
            world.files.change(path, |file| match random.u8(0..4) {
                0 => file.truncate(random.usize(..=file.len())),
                1 => file.extend(std::iter::repeat_n(random.u8(..), random.usize(..9000))),
                2 => *file = bytes,
                _ if file.is_empty() => (),
                _ => {
                    let at = random.usize(..file.len());
                    file[at] = random.u8(..);
                }
            });
        }
        check_all(&world);
        let mut tier = world.open();
        let new = self::path(&tier, 9, 2);
        for place in &new {
            assert_eq!(
                world.save(&mut tier, place),
                Outcome::Written,
                "seed {seed}"
            );
            assert_eq!(world.load(&mut tier, place), Ok(()), "seed {seed}");
        }
    }
}
