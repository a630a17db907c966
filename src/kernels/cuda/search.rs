//! Finds NVIDIA libraries that are not part of the driver (NVRTC, cuBLASLt, NCCL).

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

pub(super) fn variable(name: &str) -> Option<PathBuf> {
    let value = env::var_os(name).filter(|value| !value.is_empty());
    value.map(PathBuf::from)
}

/// Existing library folders, best first: of CUDA toolkits, then of `package` in the active Python environment. The
/// Python packages of CUDA 13 share the folder `nvidia/cu13`.
pub(super) fn folders(package: &str) -> Vec<PathBuf> {
    let toolkits = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(variable);
    let toolkits = toolkits.chain([PathBuf::from("/usr/local/cuda")]);
    let mut folders: Vec<_> = toolkits.map(|toolkit| toolkit.join("lib64")).collect();
    let environments = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter();
    for environment in environments.filter_map(variable) {
        for python in entries(&environment.join("lib"), "python3") {
            let nvidia = python.join("site-packages/nvidia");
            folders.extend(["cu13", package].map(|package| nvidia.join(package).join("lib")));
        }
    }
    folders.retain(|folder| folder.is_dir());
    folders
}

/// The entries whose names begin with `prefix`, sorted, except `.alt.` variants.
pub(super) fn entries(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Vec::new();
    };
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let named = paths.filter(|path| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with(prefix) && !name.contains(".alt."))
    });
    let mut named: Vec<_> = named.collect();
    named.sort();
    named
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_found_by_the_beginning_of_their_name() {
        let dir = tempfile::tempdir().expect("a temporary folder can be made");
        for name in [
            "libnvrtc.so.13",
            "libnvrtc.so.12",
            "libnvrtc.alt.so.12",
            "libother.so",
        ] {
            fs::write(dir.path().join(name), "").expect("the file can be written");
        }
        let found = entries(dir.path(), "libnvrtc.so");
        let expected = ["libnvrtc.so.12", "libnvrtc.so.13"].map(|name| dir.path().join(name));
        assert_eq!(found, expected);
        assert!(entries(&dir.path().join("none"), "lib").is_empty());
    }
}
