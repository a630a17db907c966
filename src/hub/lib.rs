//! Downloads models from the Hugging Face hub by id: `Qwen/Qwen3-0.6B`, `owner/name:Q4_K_M`, `owner/name/FILE.gguf`.
//!
//! A program passes its configuration through [`localise`] before it starts an engine: an id is replaced by the path
//! of the downloaded model; everything else stays unchanged.
//!
//! | part | role |
//! |---|---|
//! | `id` | which paths are ids |
//! | `settings` | the variables of `huggingface_hub`, and the token |
//! | `files`, `names` | which files of a repository make a model |
//! | `roots` | the certificates that TLS trusts |
//! | `client` | HTTP requests, redirects, and errors by status |
//! | `cache` | the cache folder, shared with `huggingface_hub` |
//! | `installed` | which models are in the cache, and their deletion |
//! | `download`, `digest` | resumable download of one file, and its hash |
//!
//! The crate hf-hub is used only for the layout of the cache: its downloads send the token to the targets of redirects,
//! do not check that a partial response starts at the requested byte, and verify neither size nor hash.

mod cache;
mod client;
mod digest;
mod download;
mod error;
mod files;
mod id;
mod installed;
mod names;
mod roots;
mod settings;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::slice;

use cache::{RepoCache, is_commit};
use client::{Client, Listing, RemoteFile};
use download::FileDownloader;
pub use error::HubError;
pub use files::Extent;
use files::{Choice, WeightFiles};
pub use id::{HubModel, RepoId, Wish};
pub use installed::ListedModel;
pub use roots::trusted_roots;
pub use settings::{HubSettings, Token};
use souffleur_config::EngineConfig;
use souffleur_model::weights::folder::{INDEX, SINGLE};

const MAIN: &str = "main";
const MAX_REVISION_BYTES: usize = 256;
const LISTING_ATTEMPTS: u32 = 3;

/// Progress of a download.
#[derive(Clone, Copy, Debug)]
pub struct Transfer<'a> {
    pub file: &'a str,
    /// Bytes of the model's weights that are already present.
    pub done_bytes: u64,
    pub all_bytes: u64,
}

/// Receives the progress of a download. Not called if nothing has to be downloaded.
pub type Watch<'a> = &'a mut dyn FnMut(Transfer<'_>);

/// Downloads the model that a configuration names by id, except for files in the cache, and replaces the id by the
/// model's path. The served name of the model is the id, unless the configuration sets another name.
///
/// # Errors
/// [`HubError`], whose message is one line.
pub fn localise(config: EngineConfig, watch: Watch<'_>) -> Result<EngineConfig, HubError> {
    let revision = config.revision.clone();
    let Some(model) = HubModel::of_path(&config.model_path) else {
        if let Some(value) = revision {
            let path = config.model_path.display();
            return Err(HubError::Setting {
                name: "--revision",
                value,
                reason: format!(
                    "but the model {path:?} is a local path, which has no revisions: leave --revision out"
                ),
            });
        }
        return Ok(config);
    };
    let id = config.model_path.to_string_lossy().into_owned();
    let hub = Hub::new(HubSettings::from_env()?);
    let extent = match (config.no_mmproj, &config.mmproj) {
        (false, None) => Extent::Whole,
        _ => Extent::Text,
    };
    let model_path = hub.fetch(&model, revision.as_deref(), extent, watch)?;
    Ok(EngineConfig {
        model_path,
        served_model_name: config.served_model_name.or(Some(id)),
        ..config
    })
}

/// The hub, or a mirror of it, and the local cache.
#[derive(Debug)]
pub struct Hub {
    settings: HubSettings,
}

impl Hub {
    pub fn new(settings: HubSettings) -> Self {
        Self { settings }
    }

    /// Makes sure that a model is in the cache. Returns the path of its folder, or of its (first) GGUF file.
    ///
    /// Queries the hub for the revision's commit, unless the revision is itself a commit and the cache certainly has
    /// its complete model. If the request fails, a complete cached model is used, unless the hub has no such revision.
    pub fn fetch(
        &self,
        model: &HubModel,
        revision: Option<&str>,
        extent: Extent,
        watch: Watch<'_>,
    ) -> Result<PathBuf, HubError> {
        let revision = revision.unwrap_or(MAIN);
        check_revision(revision)?;
        let cache = RepoCache::new(&self.settings.cache, &model.repo, revision);
        let find = || cached(&cache, model, extent);
        if self.settings.is_offline {
            let why = "HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE is set: unset it once to download the model";
            let found = find().ok_or_else(|| self.not_cached(model, revision, why))?;
            return Ok(found.chosen_without_hub());
        }
        // The content of a commit never changes.
        if let Some(found) = find().filter(|found| found.is_certain && is_commit(revision)) {
            return Ok(found.path);
        }
        let client = Client::new(&self.settings, &model.repo, revision);
        let listing = match self.listing(&client) {
            Err(error) if error.allows_cached_model() => {
                let Some(found) = find() else {
                    return Err(self.unavailable(error, model, revision));
                };
                tracing::warn!(%error, "cannot list the model's files on the hub, using the cached ones");
                return Ok(found.chosen_without_hub());
            }
            listing => listing?,
        };
        let download = Download {
            settings: &self.settings,
            model,
            listing: &listing,
            downloader: FileDownloader {
                settings: &self.settings,
                client: &client,
                cache: &cache,
                commit: &listing.commit,
            },
        };
        let path = download.run(extent, watch)?;
        cache.save_commit(&listing.commit)?;
        Ok(path)
    }

    /// Sends one request to the hub, which may answer anything.
    ///
    /// # Errors
    /// The hub cannot be reached.
    pub fn contact(&self) -> Result<(), HubError> {
        let repo = RepoId::parse("Qwen/Qwen3-0.6B").expect("an id");
        match Client::new(&self.settings, &repo, MAIN).listing() {
            Err(error @ HubError::Unreachable { .. }) => Err(error),
            _ => Ok(()),
        }
    }

    fn listing(&self, client: &Client<'_>) -> Result<Listing, HubError> {
        let mut attempts = 1;
        loop {
            match client.listing() {
                Err(error) if error.is_transient() && attempts < LISTING_ATTEMPTS => {
                    tracing::debug!(%error, "retrying the request to the hub");
                    download::wait(&self.settings, attempts);
                    attempts += 1;
                }
                listing => return listing,
            }
        }
    }

    fn unavailable(&self, error: HubError, model: &HubModel, revision: &str) -> HubError {
        if error.is_transient() {
            let why = format!("the hub is not available ({error}): try again later");
            self.not_cached(model, revision, &why)
        } else {
            error
        }
    }

    fn not_cached(&self, model: &HubModel, revision: &str, why: &str) -> HubError {
        HubError::NotCached {
            repo: model.repo.clone(),
            revision: revision.to_owned(),
            cache: self.settings.cache.clone(),
            why: why.to_owned(),
        }
    }
}

struct Download<'a> {
    settings: &'a HubSettings,
    model: &'a HubModel,
    listing: &'a Listing,
    downloader: FileDownloader<'a>,
}

impl Download<'_> {
    /// Downloads the weights last, so that a model with all its weights is complete.
    fn run(&self, extent: Extent, watch: Watch<'_>) -> Result<PathBuf, HubError> {
        let Choice {
            metadata,
            weights,
            towers,
        } = files::choose(
            &self.model.repo,
            &self.listing.names(),
            &self.model.wish,
            extent,
        )?;
        for name in metadata {
            self.downloader.ensure(&self.describe(name)?, &mut |_| ())?;
        }
        let snapshot = self.downloader.cache.snapshot(self.downloader.commit);
        let names: Vec<String> = match weights {
            WeightFiles::None => return Ok(snapshot),
            WeightFiles::Single => vec![SINGLE.to_owned()],
            WeightFiles::Sharded => {
                self.downloader
                    .ensure(&self.describe(INDEX)?, &mut |_| ())?;
                self.shards(&snapshot.join(INDEX))?.into_iter().collect()
            }
            WeightFiles::Gguf(names) => {
                self.fetch_tower(&snapshot, &towers, watch)?;
                self.fetch_weights(&names, watch)?;
                let first = names.first().map(|name| snapshot.join(name));
                return Ok(first.unwrap_or(snapshot));
            }
        };
        self.fetch_weights(&names, watch)?;
        Ok(snapshot)
    }

    fn describe(&self, name: &str) -> Result<RemoteFile, HubError> {
        let file = self.downloader.client.describe(self.listing, name)?;
        let max_bytes = files::max_bytes(name);
        if file.bytes <= max_bytes {
            Ok(file)
        } else {
            Err(self.unsuitable(format!(
                "has a {name} of {} bytes, the limit is {max_bytes}: use another repository of this model",
                file.bytes
            )))
        }
    }

    fn unsuitable(&self, reason: String) -> HubError {
        HubError::Unsuitable {
            repo: self.model.repo.clone(),
            reason,
        }
    }

    fn shards(&self, index: &Path) -> Result<BTreeSet<String>, HubError> {
        let text = read_index(index).map_err(HubError::io(index))?;
        let shards = files::shards(&text);
        let shards = shards
            .map_err(|reason| self.unsuitable(format!("has an unusable {INDEX}: {reason}")))?;
        let names = self.listing.names();
        match shards.iter().find(|shard| !names.contains(*shard)) {
            Some(absent) => {
                Err(self.unsuitable(format!("has no {absent}, which its {INDEX} names")))
            }
            None => Ok(shards),
        }
    }

    /// Downloads the preferred tower, unless the cache has one: of two the engine would take neither.
    fn fetch_tower(
        &self,
        snapshot: &Path,
        towers: &[String],
        watch: Watch<'_>,
    ) -> Result<(), HubError> {
        let is_cached = towers.iter().any(|name| snapshot.join(name).exists());
        match towers.first() {
            Some(tower) if !is_cached => self.fetch_weights(slice::from_ref(tower), watch),
            _ => Ok(()),
        }
    }

    fn fetch_weights(&self, names: &[String], watch: Watch<'_>) -> Result<(), HubError> {
        let files = names.iter().map(|name| self.describe(name));
        let files = files.collect::<Result<Vec<_>, _>>()?;
        let missing = files.iter().map(|file| self.downloader.missing_bytes(file));
        let missing_bytes = missing.fold(0u64, u64::saturating_add);
        self.check_space(missing_bytes)?;
        let all_bytes = files
            .iter()
            .fold(0u64, |sum, file| sum.saturating_add(file.bytes));
        let mut before_bytes = 0u64;
        for file in &files {
            let mut progress = |bytes: u64| {
                if missing_bytes > 0 {
                    watch(Transfer {
                        file: &file.path,
                        done_bytes: before_bytes.saturating_add(bytes),
                        all_bytes,
                    });
                }
            };
            self.downloader.ensure(file, &mut progress)?;
            before_bytes = before_bytes.saturating_add(file.bytes);
        }
        Ok(())
    }

    fn check_space(&self, needed_bytes: u64) -> Result<(), HubError> {
        let folder = &self.settings.cache;
        fs::create_dir_all(folder).map_err(HubError::io(folder))?;
        match free_bytes(folder) {
            Some(free_bytes) if free_bytes < needed_bytes => Err(HubError::NoSpace {
                folder: folder.clone(),
                needed_bytes,
                free_bytes,
            }),
            _ => Ok(()),
        }
    }
}

struct CachedModel {
    path: PathBuf,
    /// True if the full list of the repository's files could not change the choice.
    is_certain: bool,
}

impl CachedModel {
    /// The path of a model chosen without the hub. Warns if the hub might choose another GGUF file.
    fn chosen_without_hub(self) -> PathBuf {
        if !self.is_certain && self.path.is_file() {
            tracing::warn!(
                file = %self.path.display(),
                "using this cached GGUF file; the hub was not asked, and may have one that fits the name better"
            );
        }
        self.path
    }
}

/// Chooses among the files in the cache, which may be only some of the commit's files.
fn cached(cache: &RepoCache, model: &HubModel, extent: Extent) -> Option<CachedModel> {
    let commit = cache.known_commit()?;
    let snapshot = cache.snapshot(&commit);
    let names = cache.files_of(&commit);
    let choice = files::choose(&model.repo, &names, &model.wish, extent).ok()?;
    let is_certain = choice.is_certain(model);
    let path = match choice.weights {
        WeightFiles::None | WeightFiles::Single => snapshot,
        // The cache has safetensors, which are preferred, but not their index.
        WeightFiles::Gguf(_) if model.wish == Wish::Model && files::has_safetensors(&names) => {
            return None;
        }
        WeightFiles::Gguf(files) => snapshot.join(files.first()?),
        WeightFiles::Sharded => {
            let index = read_index(&snapshot.join(INDEX)).ok()?;
            let shards = files::shards(&index).ok()?;
            shards.is_subset(&names).then_some(snapshot)?
        }
    };
    Some(CachedModel { path, is_certain })
}

/// Reads an index up to the size limit: the cache is shared, and its files may be of any size.
fn read_index(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = File::open(path)?;
    file.take(files::max_bytes(INDEX)).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Checks a revision, which becomes part of URLs and of paths in the cache.
fn check_revision(revision: &str) -> Result<(), HubError> {
    let is_char = |c: char| c.is_ascii_alphanumeric() || "-_./+".contains(c);
    let fits = revision.len() <= MAX_REVISION_BYTES
        && revision.chars().all(is_char)
        && id::is_plain_path(revision);
    if fits {
        Ok(())
    } else {
        Err(HubError::Setting {
            name: "--revision",
            value: revision.to_owned(),
            reason: format!(
                "must be a branch, a tag or a commit of at most {MAX_REVISION_BYTES} letters, digits, -, _, ., / or +, \
                 with no part between slashes that is empty, . or .."
            ),
        })
    }
}

/// Free bytes for this user on the disk of a folder, if known.
#[cfg(unix)]
fn free_bytes(folder: &Path) -> Option<u64> {
    let disk = rustix::fs::statvfs(folder).ok()?;
    Some(disk.f_bavail.saturating_mul(disk.f_frsize))
}

#[cfg(not(unix))]
fn free_bytes(_: &Path) -> Option<u64> {
    None
}
