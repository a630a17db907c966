//! Loads the kernels' machine code: from the pack, the cache, or NVRTC.
//!
//! In this order: the **pack** in this binary (machine code of the usual architectures); the **cache** on disk of
//! images compiled earlier; **NVRTC**, if installed; the pack's **PTX**, compiled by the driver. The last two support
//! new architectures. Images not compiled from the sources in this binary are ignored.

mod archive;
mod cache;
mod nvrtc;
mod sources;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Instant;

use self::archive::Archive;
use self::archive::Entry;
use self::cache::Cache;
use self::nvrtc::Nvrtc;
use self::sources::{ALL_UNITS, SourceHash, pack_compiler, source_hash};
use super::driver::{Device, DriverError, Kernel, Module};

const ELF: &[u8] = b"\x7fELF";
/// Replaces the compiler version in the hashes that name cache files, which are read whatever version compiled them.
const ANY_COMPILER: &str = "";

/// Identifies the kernels of a GPU: changes if any source, compiler option or compiler version changes.
pub fn kernels_name(capability: (u32, u32)) -> String {
    let target = sources::target(capability);
    let hash = sources::sources_hash(&target);
    let hash: String = hash[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{target} {hash}")
}

/// Where kernels are loaded from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Places {
    pub skips_pack: bool,
    /// Folder for images compiled on this machine.
    pub cache: Option<PathBuf>,
    /// Folders of NVRTC, in order of preference.
    pub nvrtc: Vec<PathBuf>,
}

impl Places {
    /// The places that this user's environment variables, CUDA toolkits and Python packages provide.
    pub fn of_user() -> Self {
        Self {
            skips_pack: false,
            cache: cache::folder_of_user(),
            nvrtc: nvrtc::folders_of_user(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no CUDA kernels of {unit} for {target}: {}; set SOUFFLEUR_NVRTC_DIR to the folder of libnvrtc.so in a CUDA toolkit 12 or newer", tried.join("; "))]
pub struct KernelsUnavailable {
    pub unit: &'static str,
    pub target: String,
    pub tried: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    Pack,
    Cache,
    Nvrtc,
    /// PTX in this binary, compiled by the driver.
    Ptx,
    Given,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pack => "pack",
            Self::Cache => "cache",
            Self::Nvrtc => "nvrtc",
            Self::Ptx => "ptx",
            Self::Given => "given",
        })
    }
}

#[derive(Clone, Debug)]
pub struct Modules(BTreeMap<&'static str, (Module, Origin)>);

impl Modules {
    /// Loads the kernels from `Places::of_user`.
    ///
    /// # Errors
    /// If no place has the kernels; the error lists the attempts.
    pub fn load(device: &Device) -> Result<Self, KernelsUnavailable> {
        Self::load_from(device, Places::of_user())
    }

    /// # Errors
    /// If no place has the kernels; the error lists the attempts.
    pub fn load_from(device: &Device, places: Places) -> Result<Self, KernelsUnavailable> {
        let began = Instant::now();
        let mut finder = Finder::new(device, places);
        let mut modules = BTreeMap::new();
        for (unit, _) in ALL_UNITS {
            modules.insert(*unit, finder.load(unit)?);
        }
        let modules = Self(modules);
        tracing::info!(
            arch = finder.target,
            files = ALL_UNITS.len(),
            from = modules.origins(),
            ms = began.elapsed().as_millis() as u64,
            "CUDA kernels loaded"
        );
        Ok(modules)
    }

    /// Loads given images, for tests.
    ///
    /// # Safety
    /// As for [`Device::load_module`].
    pub unsafe fn from_images(
        device: &Device,
        mut image: impl FnMut(&'static str) -> Vec<u8>,
    ) -> Result<Self, DriverError> {
        let load = |(unit, _): &(&'static str, &str)| {
            // SAFETY: guaranteed by the caller.
            let module = unsafe { device.load_module(&image(unit)) }?;
            Ok((*unit, (module, Origin::Given)))
        };
        ALL_UNITS
            .iter()
            .map(load)
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// Finds a kernel of a unit, such as `gemm.cu`.
    ///
    /// # Errors
    /// If the unit has no kernel of this name.
    pub fn kernel(&self, unit: &str, name: &str) -> Result<Kernel, DriverError> {
        match self.0.get(unit) {
            Some((module, _)) => module.kernel(name),
            None => Err(DriverError::unsupported(format!(
                "kernel {name}: unknown kernel file {unit}"
            ))),
        }
    }

    /// Such as `pack` or `cache, nvrtc`.
    pub fn origins(&self) -> String {
        let mut origins: Vec<_> = self.0.values().map(|(_, origin)| *origin).collect();
        origins.sort_unstable();
        origins.dedup();
        let names: Vec<_> = origins.iter().map(Origin::to_string).collect();
        names.join(", ")
    }
}

/// Tries one place after the other; each is opened on first use.
struct Finder<'a> {
    device: &'a Device,
    target: String,
    archive: Result<Archive, String>,
    cache: Cache,
    nvrtc_folders: Vec<PathBuf>,
    nvrtc: Option<Result<Nvrtc, String>>,
}

impl<'a> Finder<'a> {
    fn new(device: &'a Device, places: Places) -> Self {
        let archive = if places.skips_pack {
            Err("skipped".to_owned())
        } else {
            Archive::embedded()
        };
        Self {
            device,
            target: sources::target(device.info().capability),
            archive,
            cache: Cache(places.cache),
            nvrtc_folders: places.nvrtc,
            nvrtc: None,
        }
    }

    fn load(&mut self, unit: &'static str) -> Result<(Module, Origin), KernelsUnavailable> {
        let device = self.device;
        let mut tried = Vec::new();
        for origin in [Origin::Pack, Origin::Cache, Origin::Nvrtc, Origin::Ptx] {
            let loaded = self.image(unit, origin).and_then(|image| {
                if !image.starts_with(ELF) && !image.ends_with(b"\0") {
                    return Err("the image is neither machine code nor PTX".to_owned());
                }
                // SAFETY: images of the pack, of the cache (whose files carry a hash) and of NVRTC are whole, and PTX
                // ends in NUL, as was just checked.
                let module = unsafe { device.load_module(&image) };
                module.map_err(|error| error.to_string())
            });
            match loaded {
                Ok(module) => return Ok((module, origin)),
                Err(reason) => tried.push(format!("{origin}: {reason}")),
            }
        }
        Err(KernelsUnavailable {
            unit,
            target: self.target.clone(),
            tried,
        })
    }

    fn image(&mut self, unit: &str, origin: Origin) -> Result<Cow<'_, [u8]>, String> {
        let capability = self.device.info().capability;
        match origin {
            Origin::Pack => {
                let archive = self.archive.as_ref().map_err(String::clone)?;
                let entry = archive.machine_code(unit, capability);
                let entry = entry.ok_or_else(|| format!("no code for {}", self.target))?;
                checked_image(archive, entry)
            }
            Origin::Ptx => {
                let archive = self.archive.as_ref().map_err(String::clone)?;
                let entry = archive.ptx(unit).ok_or("no PTX in the pack")?;
                checked_image(archive, entry)
            }
            Origin::Cache => {
                let sources = source_hash(unit, &self.target, ANY_COMPILER);
                self.cache.read(&sources).map(Cow::Owned)
            }
            Origin::Nvrtc => {
                let target = self.target.clone();
                let nvrtc = self.nvrtc()?;
                let image = nvrtc.compile(unit, &target)?;
                let compiler = nvrtc.version().to_owned();
                let sources = source_hash(unit, &target, ANY_COMPILER);
                if let Err(reason) = self.cache.write(&sources, &compiler, &image) {
                    tracing::warn!(
                        reason,
                        "failed to cache a compiled kernel: the next start compiles it again; set \
                         SOUFFLEUR_CACHE_DIR to a writable folder to avoid this"
                    );
                }
                Ok(Cow::Owned(image))
            }
            Origin::Given => Err("no image was given".to_owned()),
        }
    }

    fn nvrtc(&mut self) -> Result<&Nvrtc, String> {
        let folders = &self.nvrtc_folders;
        let nvrtc = self.nvrtc.get_or_insert_with(|| Nvrtc::find(folders));
        nvrtc.as_ref().map_err(String::clone)
    }
}

/// The image of an entry, if compiled from the sources in this binary.
fn checked_image<'a>(archive: &'a Archive, entry: &Entry) -> Result<Cow<'a, [u8]>, String> {
    let sources: SourceHash = source_hash(&entry.unit, &entry.target, pack_compiler());
    if sources == entry.sources {
        Ok(Cow::Borrowed(archive.image(entry)))
    } else {
        Err(format!(
            "{} for {} was compiled from other sources than those in this binary: build the binary again",
            entry.unit, entry.target
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_embedded_pack_was_compiled_from_these_sources() {
        let Ok(archive) = Archive::embedded() else {
            eprintln!("skipped: this binary was built without a pack");
            return;
        };
        for (unit, _) in ALL_UNITS {
            let code = archive.machine_code(unit, (8, 0));
            let code = code.unwrap_or_else(|| panic!("no machine code of {unit} for 8.0"));
            let ptx = archive
                .ptx(unit)
                .unwrap_or_else(|| panic!("no PTX of {unit}"));
            for entry in [code, ptx] {
                let image = checked_image(&archive, entry);
                let image = image.unwrap_or_else(|reason| panic!("{reason}: run kernels/pack.py"));
                assert!(!image.is_empty(), "{entry:?}");
            }
            let ptx = archive.image(ptx);
            assert!(ptx.ends_with(b"\0"), "PTX of {unit} does not end in NUL");
        }
    }
}
