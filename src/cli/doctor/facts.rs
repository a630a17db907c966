//! Reads the facts of the machine that decide whether and how fast an engine runs.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use souffleur::bundled;
use souffleur::config::EngineConfig;
use souffleur::engine::{EngineParts, Progress};
use souffleur::executor::memory_plan::available_bytes;
use souffleur::hub::{Hub, HubModel, HubSettings};
use souffleur::kernels::cpu::{Isa, default_threads};
#[cfg(feature = "cuda")]
use souffleur::kernels::cuda::driver::{self, CudaUnavailable};

use crate::cli::serve;
use crate::cli::settings::Settings;

/// Each fact as the system reports it; errors are texts.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    /// The instruction set of the kernels, and the ones that the CPU supports.
    pub isa: Result<(Isa, Vec<Isa>), String>,
    /// Whether `/proc` is mounted; `None` on systems other than Linux.
    pub has_proc: Option<bool>,
    /// Physical cores that this process may use.
    pub cores: usize,
    /// CPUs' worth of time that the cgroup grants; `None` without a limit.
    pub quota: Option<f64>,
    pub memory_bytes: Result<u64, String>,
    /// The kernel's setting of transparent huge pages; `None` if it reports none.
    pub huge_pages: Option<String>,
    /// The folder into which the bundled model is unpacked.
    pub bundled: Result<PathBuf, String>,
    /// The folder of downloads, and its free bytes.
    pub downloads: Result<(PathBuf, u64), String>,
    /// The folder of the KV store, if one is configured, its free bytes and its configured size.
    pub kv_store: Option<Result<(PathBuf, u64, u64), String>>,
    pub gpu: Gpu,
    pub hub: HubFact,
    /// The address to listen on, or why it cannot be used.
    pub port: Result<String, String>,
    /// The name and the memory plan of the configured model.
    pub model: ModelFact,
}

#[derive(Clone, Debug)]
pub(super) enum Gpu {
    #[cfg(not(feature = "cuda"))]
    NotBuilt,
    NoDriver,
    Found(String),
    Unusable(String),
}

#[derive(Clone, Debug)]
pub(super) enum HubFact {
    Offline,
    Reached(String),
    Failed(String),
}

#[derive(Clone, Debug)]
pub(super) enum ModelFact {
    Planned { name: String, tokens: usize },
    NotDownloaded(String),
    Failed(String),
}

impl Facts {
    pub fn read(settings: Settings) -> Self {
        let Settings { engine, server, .. } = settings;
        let address = format!("{}:{}", server.host, server.port);
        Self {
            isa: Isa::chosen().map(|isa| (isa, Isa::available())),
            has_proc: cfg!(target_os = "linux").then(|| Path::new("/proc/self").exists()),
            cores: default_threads(),
            quota: quota(Path::new("/")),
            memory_bytes: available_bytes().map_err(text),
            huge_pages: fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").ok(),
            bundled: bundled::unpacked().map_err(text),
            downloads: downloads(),
            kv_store: engine.kv_disk_path.as_ref().map(|folder| {
                let free_bytes = writable_bytes(folder)?;
                Ok((folder.clone(), free_bytes, engine.kv_disk_bytes))
            }),
            gpu: gpu(),
            hub: hub(),
            port: serve::listen(&server)
                .map(|_| address)
                .map_err(|error| error.to_string()),
            model: model(engine),
        }
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// The CPU limit of this process's cgroup (version 2) and the groups around it, in CPUs.
fn quota(root: &Path) -> Option<f64> {
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let group = groups.lines().find_map(|line| line.strip_prefix("0::/"));
    let top = root.join("sys/fs/cgroup");
    let folder = top.join(group.unwrap_or_default());
    let folders = folder.ancestors().take_while(|one| one.starts_with(&top));
    let limits = folders.filter_map(|one| limit_of(&fs::read_to_string(one.join("cpu.max")).ok()?));
    limits.reduce(f64::min)
}

/// The number of CPUs in the file `cpu.max`: the time per period, over the period.
fn limit_of(cpu_max: &str) -> Option<f64> {
    let mut words = cpu_max.split_whitespace();
    let time: f64 = words.next()?.parse().ok()?;
    let period: f64 = words.next()?.parse().ok()?;
    Some(time / period)
}

fn downloads() -> Result<(PathBuf, u64), String> {
    let settings = HubSettings::from_env().map_err(text)?;
    let free_bytes = writable_bytes(&settings.cache)?;
    Ok((settings.cache, free_bytes))
}

/// The free bytes on the disk of a folder, in which a file was just made.
fn writable_bytes(folder: &Path) -> Result<u64, String> {
    let probe = folder.join(format!(".souffleur-doctor-{}", std::process::id()));
    let written = fs::create_dir_all(folder).and_then(|()| fs::write(&probe, "x"));
    let _ = fs::remove_file(&probe);
    let free_bytes = written.and_then(|()| free_bytes(folder));
    free_bytes.map_err(|error| format!("{}: {error}", folder.display()))
}

#[cfg(unix)]
fn free_bytes(folder: &Path) -> io::Result<u64> {
    let system = rustix::fs::statvfs(folder)?;
    Ok(system.f_bavail.saturating_mul(system.f_frsize))
}

#[cfg(not(unix))]
fn free_bytes(_: &Path) -> io::Result<u64> {
    Ok(u64::MAX)
}

#[cfg(feature = "cuda")]
fn gpu() -> Gpu {
    match driver::probe(0) {
        Ok(info) => Gpu::Found(info.to_string()),
        Err(CudaUnavailable::NoDriver) => Gpu::NoDriver,
        Err(error) => Gpu::Unusable(error.to_string()),
    }
}

#[cfg(not(feature = "cuda"))]
fn gpu() -> Gpu {
    Gpu::NotBuilt
}

fn hub() -> HubFact {
    let settings = match HubSettings::from_env() {
        Ok(settings) if settings.is_offline => return HubFact::Offline,
        Ok(settings) => settings,
        Err(error) => return HubFact::Failed(error.to_string()),
    };
    let endpoint = settings.endpoint.clone();
    match Hub::new(settings).contact() {
        Ok(()) => HubFact::Reached(endpoint),
        Err(error) => HubFact::Failed(error.to_string()),
    }
}

/// Plans the memory of the model, if its files are on this machine.
fn model(mut config: EngineConfig) -> ModelFact {
    if config.model_path.as_os_str().is_empty() {
        match bundled::unpacked() {
            Ok(path) => config.model_path = path,
            Err(error) => return ModelFact::Failed(error.to_string()),
        }
    }
    if HubModel::of_path(&config.model_path).is_some() {
        return ModelFact::NotDownloaded(config.model_path.display().to_string());
    }
    config.skip_tokenizer_init = true;
    match EngineParts::from_model(&config, Progress::silent()) {
        Ok(parts) => ModelFact::Planned {
            name: parts.info.served_model_name,
            tokens: parts.info.max_total_tokens,
        },
        Err(error) => ModelFact::Failed(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quota_is_the_least_limit_of_the_groups_around_the_process() {
        let root = tempfile::tempdir().expect("temporary folder");
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("writable");
            fs::write(path, text).expect("writable");
        };
        assert_eq!(quota(root.path()), None);
        write("proc/self/cgroup", "0::/a/b\n");
        write("sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
        assert_eq!(quota(root.path()), None);
        write("sys/fs/cgroup/a/cpu.max", "50000 100000\n");
        assert_eq!(quota(root.path()), Some(0.5));
        write("sys/fs/cgroup/cpu.max", "200000 100000\n");
        assert_eq!(quota(root.path()), Some(0.5));
    }
}
