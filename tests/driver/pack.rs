//! Tests of loading kernels: from NVRTC, from the cache, and the error if they are found nowhere.

use std::path::PathBuf;

use souffleur::kernels::cuda::launch::Embed;
use souffleur::kernels::cuda::pack::{Modules, Places};
use souffleur::kernels::cuda::params::ElementType;

use crate::{device, environment};

pub fn nvrtc() -> Option<PathBuf> {
    let python = environment::python("kernels/requirements.txt")?;
    let script = "import nvidia.cuda_nvrtc as package; print(package.__path__[0])";
    let output = std::process::Command::new(python)
        .args(["-c", script])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let folder = PathBuf::from(String::from_utf8(output.stdout).unwrap().trim());
    Some(folder.join("lib"))
}

#[test]
fn kernels_that_nvrtc_compiled_are_cached() {
    let (device, _) = device(41);
    let cache = tempfile::tempdir().unwrap();
    let places = Places {
        skips_pack: true,
        cache: Some(cache.path().join("kernels")),
        nvrtc: nvrtc().into_iter().collect(),
    };
    if places.nvrtc.is_empty() {
        return;
    }
    let compiled = Modules::load_from(&device, places.clone()).unwrap();
    assert_eq!(compiled.origins(), "nvrtc");
    let without_nvrtc = Places {
        nvrtc: Vec::new(),
        ..places.clone()
    };
    let cached = Modules::load_from(&device, without_nvrtc).unwrap();
    assert_eq!(cached.origins(), "cache");
    Embed::load(&cached, ElementType::Bf16).unwrap();
    // A truncated image is compiled again.
    let mut files = std::fs::read_dir(cache.path().join("kernels")).unwrap();
    let path = files.next().expect("a cached image").unwrap().path();
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    let repaired = Modules::load_from(&device, places).unwrap();
    assert_eq!(repaired.origins(), "cache, nvrtc");
}

#[test]
fn without_any_kernels_the_error_lists_the_tried_sources() {
    let (device, _) = device(42);
    let places = Places {
        skips_pack: true,
        cache: None,
        nvrtc: vec![PathBuf::from("/nonexistent")],
    };
    match Modules::load_from(&device, places) {
        Ok(modules) => assert_eq!(modules.origins(), "nvrtc", "the loader found NVRTC"),
        Err(error) => {
            let text = error.to_string();
            for part in [
                "sm_80",
                "pack: skipped",
                "/nonexistent",
                "SOUFFLEUR_NVRTC_DIR",
            ] {
                assert!(text.contains(part), "{part:?} is not in\n{text}");
            }
        }
    }
}
