//! Tests of the KV store's disk tier, and helpers that they share.

mod bound;
mod crashes;
mod damage;
mod parts;

use super::*;
use crate::files::MemoryFiles;
use crate::{BlockPools, BlockUse, HostBlock, Plane, Short};
use souffleur_state::cache::namespace::Namespace;
use souffleur_state::tiers::{FingerprintParts, Needs};

const PLENTY: u64 = 1 << 30;
const TOKENS: usize = 4;

/// Two layers of two buffers with odd sizes; if `state`, states of two more layers.
fn geometry(state: bool) -> Geometry {
    let plane = |layer, buffer, bytes| Plane {
        layer,
        buffer,
        bytes,
    };
    let kv = [
        plane(0, 0, 37),
        plane(0, 1, 61),
        plane(1, 0, 37),
        plane(1, 1, 61),
    ];
    let states = [plane(2, 0, 4097), plane(3, 0, 999)];
    let n_states = if state { states.len() } else { 0 };
    Geometry {
        block_tokens: TOKENS,
        needs: Needs {
            state,
            window_tokens: 0,
        },
        planes: [
            Arc::from(kv),
            Arc::default(),
            Arc::from(&states[..n_states]),
        ],
    }
}

/// A disk, and the setup of an engine that opens tiers on it one after the other.
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
        let pools = BlockPools::new(&geometry, 1 << 20, &freed).expect("the buffers fit");
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

    /// Opens and recovers a tier. The flag is true if the recovery needed a scan.
    fn open_recovered(&self) -> (DiskTier, bool) {
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
        self.open_recovered().0
    }

    fn slot_bytes(&self, kind: BlockKind) -> u64 {
        RecordSize::new(&self.setup.geometry, kind).slot_bytes()
    }

    fn block(&self, kind: BlockKind) -> HostBlock {
        let pool = self.pools.of(kind).expect("the pool exists");
        pool.take(BlockUse::Saving).expect("a buffer is free")
    }

    fn save_kind(&self, tier: &mut DiskTier, place: &BlockPlace, kind: BlockKind) -> Outcome {
        let mut block = self.block(kind);
        block
            .bytes_mut()
            .copy_from_slice(&content(place, kind, &self.setup.geometry));
        tier.write(place, &block, self.now)
    }

    fn save(&self, tier: &mut DiskTier, place: &BlockPlace) -> Outcome {
        self.save_kind(tier, place, BlockKind::Kv)
    }

    /// Loads a record, and checks that its bytes are the saved ones.
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

/// The content of a record: bytes that no other record has.
fn content(place: &BlockPlace, kind: BlockKind, geometry: &Geometry) -> Vec<u8> {
    let mut seed = [0; 8];
    seed.copy_from_slice(&place.key.0[..8]);
    let seed = u64::from_le_bytes(seed) ^ kind.index() as u64;
    let mut random = fastrand::Rng::with_seed(seed);
    let bytes = geometry.payload_bytes(kind);
    std::iter::repeat_with(|| random.u8(..))
        .take(bytes)
        .collect()
}

/// The blocks of a prompt; prompts with different numbers share no block.
fn path(tier: &DiskTier, prompt: u32, blocks: usize) -> Vec<BlockPlace> {
    let tokens: Vec<u32> = (0..blocks * TOKENS)
        .map(|t| t as u32 ^ prompt << 16)
        .collect();
    tier.keys().path(&Namespace::default(), &tokens)
}

/// Checks that each record loads as it was saved, or is a miss. Returns the number of records left.
fn check_all(world: &World) -> usize {
    let mut tier = world.open();
    let records: Vec<StoredBlock> = tier.index().iter().collect();
    for record in &records {
        let loaded = world.load_kind(&mut tier, &record.place, record.kind);
        // A record that is damaged, or was dropped with a damaged one, is a miss.
        assert_ne!(loaded, Err(Short::Deadline));
    }
    tier.index().len()
}
