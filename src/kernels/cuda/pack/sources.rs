//! The kernels' embedded sources, compiler options, and hashes of both.

use sha2::{Digest, Sha256};

use souffleur_cuda_sources::{COMPILER, HEADERS, PACK, UNITS};

/// The `.cu` files: name and text.
pub const ALL_UNITS: &[(&str, &str)] = UNITS;
/// The headers: name and text.
pub const ALL_HEADERS: &[(&str, &str)] = HEADERS;
/// Empty in a binary built without a pack.
pub const EMBEDDED_PACK: &[u8] = PACK;

/// The target of PTX, which every GPU since Ampere can run.
pub const PTX_TARGET: &str = "compute_80";

pub type SourceHash = [u8; 32];

pub fn pack_compiler() -> &'static str {
    COMPILER.lines().next().unwrap_or_default()
}

pub fn options(target: &str) -> Vec<String> {
    let architecture = format!("--gpu-architecture={target}");
    let others = COMPILER.lines().skip(1).filter(|line| !line.is_empty());
    [architecture]
        .into_iter()
        .chain(others.map(str::to_owned))
        .collect()
}

/// Hashes a unit with all headers, the options and the compiler's version.
pub fn source_hash(unit: &str, target: &str, compiler: &str) -> SourceHash {
    let text = ALL_UNITS.iter().filter(|(name, _)| *name == unit);
    let mut hash = Sha256::new();
    for (name, text) in text.chain(ALL_HEADERS) {
        hash.update(name.as_bytes());
        hash.update([0]);
        hash.update((text.len() as u64).to_le_bytes());
        hash.update(text.as_bytes());
    }
    for line in options(target) {
        hash.update(line.as_bytes());
        hash.update([0]);
    }
    hash.update(format!("nvrtc {compiler}\0").as_bytes());
    hash.finalize().into()
}

/// Hashes all inputs of a target's kernels: identifies anything that depends on their bits.
pub fn sources_hash(target: &str) -> SourceHash {
    let mut hash = Sha256::new();
    for (unit, _) in ALL_UNITS {
        hash.update(source_hash(unit, target, pack_compiler()));
    }
    hash.finalize().into()
}

/// The compilation target of a GPU; for capability 9.0 `sm_90a`, whose features no other capability has.
pub fn target((major, minor): (u32, u32)) -> String {
    match (major, minor) {
        (9, 0) => "sm_90a".to_owned(),
        (major, minor) => format!("sm_{major}{minor}"),
    }
}

/// How far a GPU is from machine code for `target`; `None` if the code does not run on the GPU. Code needs the same
/// major version and no higher minor version; a target that ends in a letter runs only on its own capability.
pub fn distance(target: &str, (major, minor): (u32, u32)) -> Option<u32> {
    if target == self::target((major, minor)) {
        return Some(0);
    }
    let number: u32 = target.strip_prefix("sm_")?.parse().ok()?;
    let (of_major, of_minor) = (number / 10, number % 10);
    (of_major == major && of_minor <= minor).then(|| 1 + minor - of_minor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_code_runs_on_later_chips_of_its_generation() {
        let table = [
            ("sm_80", (8, 0), Some(0)),
            ("sm_80", (8, 6), Some(7)),
            ("sm_86", (8, 9), Some(4)),
            ("sm_89", (8, 6), None),
            ("sm_90a", (9, 0), Some(0)),
            ("sm_120", (12, 1), Some(2)),
            ("sm_100", (12, 0), None),
            ("compute_80", (8, 0), None),
        ];
        for (target, capability, expected) in table {
            assert_eq!(
                distance(target, capability),
                expected,
                "{target} {capability:?}"
            );
        }
    }

    #[test]
    fn the_hash_depends_on_target_and_compiler() {
        let hash = |unit, target, compiler| source_hash(unit, target, compiler);
        let first = hash("gemm.cu", "sm_80", "12.9.86");
        assert_eq!(first, hash("gemm.cu", "sm_80", "12.9.86"));
        assert_ne!(first, hash("gemm.cu", "sm_89", "12.9.86"));
        assert_ne!(first, hash("gemm.cu", "sm_80", "13.0.88"));
        assert_ne!(sources_hash("sm_80"), sources_hash("sm_89"));
        assert_eq!(pack_compiler().split('.').count(), 3);
        assert_eq!(options("sm_80")[0], "--gpu-architecture=sm_80");
    }
}
