use super::*;
use crate::state::cache::namespace::Namespace;
use crate::state::tiers::{FingerprintParts, Needs};
use crate::store::files::MemoryFiles;
use crate::store::{BlockPools, BlockUse, Plane};

const PLENTY: u64 = 1 << 30;
const TOKENS: usize = 4;

/// Two layers of two buffers, whose sizes are no multiples of anything; states of two layers, if there are any.
fn geometry(state: bool) -> Geometry {
    let plane = |layer, buffer, bytes| Plane {
        layer,
        buffer,
        bytes,
    };
    let kv = [plane(0, 0, 37), plane(0, 1, 61), plane(1, 0, 37), plane(1, 1, 61)];
    let states = [plane(2, 0, 4097), plane(3, 0, 999)];
    let n_states = if state { states.len() } else { 0 };
    Geometry {
        block_tokens: TOKENS,
        needs: Needs {
            state,
            window_tokens: 0,
        },
        planes: [Arc::from(kv), Arc::default(), Arc::from(&states[..n_states])],
    }
}

/// A disk and an engine whose tiers open it one after the other.
struct World {
    files: MemoryFiles,
    setup: TierSetup,
    weights: &'static str,
    pools: BlockPools,
    now: Instant,
}

impl World {
    fn new(state: bool, disk_bytes: u64) -> Self {
        let geometry = geometry(state);
        let (freed, _) = crossbeam_channel::bounded(1);
        let pools = BlockPools::new(&geometry, 1 << 20, &freed).expect("they fit");
        Self {
            files: MemoryFiles::new(),
            setup: TierSetup {
                root: PathBuf::from("/kv"),
                disk_bytes,
                drop_behind: false,
                geometry,
            },
            weights: "first",
            pools,
            now: Instant::now(),
        }
    }

    fn try_open(&self) -> Result<DiskTier, String> {
        let parts = FingerprintParts::new().part("weights", self.weights);
        let files = Box::new(self.files.clone());
        let TierSetup { root, geometry, .. } = &self.setup;
        let folder = Folder::open(&*files, root, parts, geometry)?;
        let folder = folder.ok_or_else(|| "in use".to_owned())?;
        DiskTier::open(files, folder, self.setup.clone(), Arc::default())
    }

    /// A tier that has recovered, and whether that took a scan.
    fn open_with(&self) -> (DiskTier, bool) {
        let mut tier = self.try_open().expect("the folder is free");
        let mut scan = tier.recover().expect("the disk can be read");
        let is_scanned = scan.is_some();
        while let Some(rest) = scan {
            scan = tier.scan(rest, 3).expect("the disk can be read");
        }
        assert_eq!(tier.index.fault(), None);
        assert!(tier.bytes() <= tier.limit());
        (tier, is_scanned)
    }

    fn open(&self) -> DiskTier {
        self.open_with().0
    }

    fn slot(&self, kind: BlockKind) -> u64 {
        RecordSize::new(&self.setup.geometry, kind).slot()
    }

    fn block(&self, kind: BlockKind) -> HostBlock {
        let pool = self.pools.of(kind).expect("there is the kind");
        pool.take(BlockUse::Saving).expect("one is free")
    }

    fn save_kind(&self, tier: &mut DiskTier, place: &BlockPlace, kind: BlockKind) -> Outcome {
        let mut block = self.block(kind);
        block.bytes_mut().copy_from_slice(&content(place, kind, &self.setup.geometry));
        tier.write(place, &block, self.now)
    }

    fn save(&self, tier: &mut DiskTier, place: &BlockPlace) -> Outcome {
        self.save_kind(tier, place, BlockKind::Kv)
    }

    /// Loads a record. Whatever comes is what was saved.
    fn load_kind(
        &self,
        tier: &mut DiskTier,
        place: &BlockPlace,
        kind: BlockKind,
    ) -> Result<(), Short> {
        let mut block = self.block(kind);
        block.bytes_mut().fill(0xee);
        tier.read(place, &mut block, self.now)?;
        let expected = content(place, kind, &self.setup.geometry);
        assert!(block.bytes() == expected, "wrong bytes of {place:?}");
        Ok(())
    }

    fn load(&self, tier: &mut DiskTier, place: &BlockPlace) -> Result<(), Short> {
        self.load_kind(tier, place, BlockKind::Kv)
    }

    /// A tier with a path of so many blocks.
    fn filled(&self, blocks: usize) -> (DiskTier, Vec<BlockPlace>) {
        let mut tier = self.open();
        let path = path(&tier, 0, blocks);
        for place in &path {
            assert_eq!(self.save(&mut tier, place), Outcome::Written);
        }
        (tier, path)
    }

    fn restarted(&self, files: MemoryFiles) -> Self {
        Self {
            files,
            setup: self.setup.clone(),
            pools: self.pools.clone(),
            ..*self
        }
    }
}

/// What a record holds: bytes that no other record has.
fn content(place: &BlockPlace, kind: BlockKind, geometry: &Geometry) -> Vec<u8> {
    let mut seed = [0; 8];
    seed.copy_from_slice(&place.key.0[..8]);
    let seed = u64::from_le_bytes(seed) ^ kind.index() as u64;
    let mut random = fastrand::Rng::with_seed(seed);
    let bytes = geometry.payload_bytes(kind);
    std::iter::repeat_with(|| random.u8(..)).take(bytes).collect()
}

/// The blocks of a prompt; prompts of other numbers share none.
fn path(tier: &DiskTier, prompt: u32, blocks: usize) -> Vec<BlockPlace> {
    let tokens: Vec<u32> = (0..blocks * TOKENS).map(|t| t as u32 ^ prompt << 16).collect();
    tier.keys().path(&Namespace::default(), &tokens)
}

#[test]
fn what_is_saved_is_loaded_after_a_restart_with_the_log_and_without() {
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
            world.files.remove_file(&world.files.path("index.log")).expect("it is there");
        }
        let (mut tier, is_scanned) = world.open_with();
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
    let whole = world.files.read(&segment, PLENTY).expect("it is there");
    let log = world.files.path("index.log");
    let slot = world.slot(BlockKind::Kv) as usize;
    assert_eq!(whole.len(), slot + 4096 + 196, "the last is not padded");
    // The second record: its header and its payload.
    for at in slot..whole.len() {
        let bit = 1 << (at % 8);
        for with_log in [true, false] {
            let world = world.restarted(world.files.restarted());
            world.files.change(&segment, |bytes| bytes[at] ^= bit);
            if !with_log {
                world.files.remove_file(&log).expect("it is there");
            }
            let mut tier = world.open();
            assert_eq!(world.load(&mut tier, &path[0]), Ok(()));
            let expected = match with_log || at >= slot + 4096 {
                true => Short::Damaged,
                false => Short::Evicted,
            };
            assert_eq!(world.load(&mut tier, &path[1]), Err(expected), "byte {at}");
            assert_eq!(tier.index().prefix(&path), 1);
            // It is computed again, and its slot used again.
            assert_eq!(world.save(&mut tier, &path[1]), Outcome::Written);
            assert_eq!(world.load(&mut tier, &path[1]), Ok(()));
        }
    }
}

#[test]
fn a_file_that_is_cut_anywhere_holds_what_is_before_the_cut() {
    let world = World::new(false, PLENTY);
    let (tier, path) = world.filled(3);
    tier.close();
    let segment = world.files.path("seg-kv");
    let whole = world.files.read(&segment, PLENTY).expect("it is there");
    let slot = world.slot(BlockKind::Kv) as usize;
    for len in (0..whole.len()).step_by(61) {
        let world = world.restarted(world.files.restarted());
        world.files.change(&segment, |bytes| bytes.truncate(len));
        let mut tier = world.open();
        for (block, place) in path.iter().enumerate() {
            let is_whole = len >= block * slot + 4096 + 196;
            assert_eq!(world.load(&mut tier, place).is_ok(), is_whole, "{len} {block}");
        }
    }
}

#[test]
fn swapped_slots_are_misses_by_the_log_and_hits_by_their_headers() {
    let world = World::new(false, PLENTY);
    let (tier, path) = world.filled(3);
    tier.close();
    let slot = world.slot(BlockKind::Kv) as usize;
    let segment = world.files.path("seg-kv");
    world.files.change(&segment, |bytes| {
        bytes.resize(3 * slot, 0);
        let (first, second) = bytes.split_at_mut(slot);
        first.swap_with_slice(&mut second[..slot]);
    });
    let again = world.restarted(world.files.restarted());
    let mut tier = world.open();
    for place in &path[..2] {
        assert_eq!(world.load(&mut tier, place), Err(Short::Damaged));
    }
    let log = again.files.path("index.log");
    again.files.remove_file(&log).expect("it is there");
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
        let (mut tier, is_scanned) = world.open_with();
        assert!(is_scanned);
        for place in &path {
            assert_eq!(world.load(&mut tier, place), Ok(()));
        }
    }
    // A log from before the last two: they are not found, and their slots are free.
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
    // Even with the files of the first in its folder.
    let folder = other.folder.path.clone();
    other.close();
    let bytes = world.files.read(&segment, PLENTY).expect("it is there");
    let copy = folder.join(segment.file_name().expect("it has a name"));
    world.files.change(&copy, |new| *new = bytes);
    world.files.remove_file(&folder.join("index.log")).expect("it is there");
    other = world.open();
    assert!(other.index().is_empty());
    assert_eq!(other.shared.counts.read().foreign_removed, 0);
    other.close();
    world.files.change(&PathBuf::from("/kv/secret"), |secret| secret[7] ^= 1);
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
fn the_bound_holds_and_the_least_recently_used_goes_from_its_end() {
    let world = World::new(false, 0);
    let bytes = 8 * world.slot(BlockKind::Kv);
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
    assert_eq!(kept(&tier), [3, 2, 3, 0], "the end of the second path went");
    tier.close();
    // The order outlives a restart.
    let mut tier = world.open();
    for place in &paths[3] {
        assert_eq!(world.save(&mut tier, place), Outcome::Written);
    }
    assert_eq!(kept(&tier), [2, 0, 3, 3]);
    assert_eq!(tier.shared.counts.read().evicted, 3);
    assert!(world.files.bytes() <= world.setup.disk_bytes + 4096);
    assert_eq!(tier.index.fault(), None);
}

#[test]
fn a_path_longer_than_the_disk_keeps_its_beginning() {
    let slot = World::new(false, 0).slot(BlockKind::Kv);
    let world = World::new(false, 4 * slot + 96 * 40);
    let mut tier = world.open();
    let path = path(&tier, 0, 7);
    let saved: Vec<Outcome> = path.iter().map(|place| world.save(&mut tier, place)).collect();
    assert_eq!(saved[..4], [Outcome::Written; 4]);
    assert_eq!(saved[4], Outcome::NoSpace);
    assert_eq!(saved[5], Outcome::Orphan);
    assert_eq!(tier.index().prefix(&path), 4);
}

#[test]
fn states_take_the_room_of_blocks_and_the_other_way_round() {
    let sizes = World::new(true, 0);
    let (kv, state) = (sizes.slot(BlockKind::Kv), sizes.slot(BlockKind::State));
    assert!(kv < state && state < 3 * kv);
    for can_punch in [true, false] {
        let world = World::new(true, 6 * kv + 96 * 40);
        if !can_punch {
            world.files.forbid_punching();
        }
        let (mut tier, path) = world.filled(6);
        let saved = world.save_kind(&mut tier, &path[1], BlockKind::State);
        match can_punch {
            true => {
                assert_eq!(saved, Outcome::Written);
                assert_eq!(tier.index().prefix(&path), 4);
                assert_eq!(world.load_kind(&mut tier, &path[1], BlockKind::State), Ok(()));
            }
            // Nothing of its kind could give way; one block went before that was known.
            false => assert_eq!((saved, tier.index().prefix(&path)), (Outcome::NoSpace, 5)),
        }
        assert!(tier.bytes() <= tier.limit());
        // The state went before the blocks, or there was none.
        let second = self::path(&tier, 1, 2);
        for place in &second {
            assert_eq!(world.save(&mut tier, place), Outcome::Written);
        }
        assert!(tier.bytes() <= tier.limit());
        assert_eq!(world.load(&mut tier, &second[1]), Ok(()));
    }
}

#[test]
fn a_smaller_bound_holds_from_the_start_on() {
    for can_punch in [true, false] {
        let mut world = World::new(false, PLENTY);
        if !can_punch {
            world.files.forbid_punching();
        }
        let (tier, path) = world.filled(6);
        tier.close();
        world.setup.disk_bytes = 3 * world.slot(BlockKind::Kv) + 96 * 40;
        let mut tier = world.open();
        let expected = if can_punch { 3 } else { 0 };
        assert_eq!(tier.index().prefix(&path), expected);
        for place in &path[..expected] {
            assert_eq!(world.load(&mut tier, place), Ok(()));
        }
    }
}

#[test]
fn a_full_disk_stops_saves_and_no_loads() {
    let mut world = World::new(false, PLENTY);
    let (mut tier, path) = world.filled(3);
    world.files.set_room(Some(world.files.bytes()));
    let other = self::path(&tier, 1, 2);
    assert_eq!(world.save(&mut tier, &other[0]), Outcome::NoSpace);
    world.files.set_room(None);
    assert_eq!(world.save(&mut tier, &other[0]), Outcome::NoSpace, "not at once");
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
fn a_disk_that_does_not_read_is_a_miss() {
    let world = World::new(false, PLENTY);
    let (mut tier, path) = world.filled(2);
    world.files.make_unreadable();
    assert_eq!(world.load(&mut tier, &path[0]), Err(Short::Damaged));
    assert_eq!(tier.index().prefix(&path), 0);
    assert_eq!(tier.shared.counts.read().damaged, 1);
}

#[test]
fn folders_of_others_go_first_the_oldest_whole() {
    let world = World::new(false, PLENTY);
    let slot = world.slot(BlockKind::Kv);
    let mut others = Vec::new();
    for (weights, time) in [("old", 1), ("older", 0), ("used", 0)] {
        let mut other = world.restarted(world.files.clone());
        other.weights = weights;
        let (tier, _) = other.filled(3);
        let folder = tier.folder.path.clone();
        other.files.change(&folder.join("time"), |bytes| bytes.resize(time, 0));
        // The engine of the last one runs.
        others.push((folder, (weights == "used").then_some(tier)));
    }
    let mut world = world.restarted(world.files.clone());
    world.setup.disk_bytes = 10 * slot;
    let mut tier = world.open();
    let there = |at: usize| world.files.paths().iter().any(|p| p.starts_with(&others[at].0));
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
    assert!(tier.index().len() >= 6, "the rest is its own");
}

/// Saves, uses and gives way, until the machine dies.
fn live(world: &World, tier: &mut DiskTier) {
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

/// Everything that is found is what was saved. Returns how many records that are.
fn check_all(world: &World) -> usize {
    let mut tier = world.open();
    let records: Vec<StoredBlock> = tier.index().iter().collect();
    for record in &records {
        let loaded = world.load_kind(&mut tier, &record.place, record.kind);
        // A record that is not what it should be is a miss, or was dropped with a damaged one.
        assert_ne!(loaded, Err(Short::Deadline));
    }
    tier.index().len()
}

#[test]
fn a_machine_that_dies_at_any_write_finds_everything_that_it_had() {
    let sizes = World::new(true, 0);
    let bytes = 10 * sizes.slot(BlockKind::Kv) + 2 * sizes.slot(BlockKind::State) + 96 * 100;
    let begin = || {
        let world = World::new(true, bytes);
        drop(world.open());
        world
    };
    let n_changes = {
        let world = begin();
        let before = world.files.changes();
        live(&world, &mut world.open());
        world.files.changes() - before
    };
    assert!(n_changes > 80, "{n_changes}");
    for change in 1..=n_changes {
        let world = begin();
        world.files.die_at(world.files.changes() + change);
        let mut tier = match world.try_open() {
            Ok(tier) => tier,
            Err(_) => continue,
        };
        let recovered = tier.recover();
        if recovered.is_ok() {
            live(&world, &mut tier);
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
fn a_power_cut_that_loses_any_writes_loses_no_correctness() {
    for seed in 0..60 {
        let mut random = fastrand::Rng::with_seed(seed);
        let world = World::new(true, PLENTY);
        let (mut tier, path) = world.filled(4);
        // Slots that held something else before.
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
            assert_eq!(after.load(&mut tier, place), Ok(()), "synced long ago");
        }
    }
}
