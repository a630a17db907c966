//! Lists and deletes the models in the cache.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use super::cache::{RepoCache, is_commit};
use super::error::HubError;
use super::files::{self, Extent};
use super::id::{HubModel, RepoId, Wish};
use super::names::is_tower;
use super::{Hub, cached};

const FOLDER_PREFIX: &str = "models--";

/// A model in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedModel {
    /// `owner/name`, or `owner/name/FILE.gguf`: the value of `--model-path` for this model.
    pub id: String,
    /// Size of its files on the disk.
    pub bytes: u64,
    /// False after an interrupted download.
    pub is_complete: bool,
}

impl Hub {
    /// The models in the cache, sorted by id. Sends no request.
    ///
    /// # Errors
    /// [`HubError::Io`] if the cache cannot be read.
    pub fn models(&self) -> Result<Vec<ListedModel>, HubError> {
        let mut models = BTreeMap::new();
        for repo in self.repositories()? {
            for commit in self.commits(&repo) {
                for model in self.models_of(&repo, &commit) {
                    models.insert(model.id.clone(), model);
                }
            }
        }
        Ok(models.into_values().collect())
    }

    /// Deletes a model from the cache: the whole repository, or one GGUF model of it. Returns the freed bytes.
    ///
    /// # Errors
    /// [`HubError::Absent`], [`HubError::Downloading`] or [`HubError::Io`].
    pub fn remove(&self, model: &HubModel) -> Result<u64, HubError> {
        let absent = || HubError::Absent {
            model: model.clone(),
            cache: self.settings.cache.clone(),
        };
        let folder = self.folder(&model.repo);
        if !folder.is_dir() {
            return Err(absent());
        }
        let _locks = self.lock_all(&model.repo)?;
        if model.wish == Wish::Model {
            let bytes = blob_bytes(&folder);
            fs::remove_dir_all(&folder).map_err(HubError::io(&folder))?;
            return Ok(bytes);
        }
        let mut links = Vec::new();
        for commit in self.commits(&model.repo) {
            let cache = RepoCache::new(&self.settings.cache, &model.repo, &commit);
            let names = cache.files_of(&commit);
            let choice = files::choose(&model.repo, &names, &model.wish, Extent::Whole);
            if let Ok(files::WeightFiles::Gguf(own)) = choice.map(|choice| choice.weights) {
                let snapshot = cache.snapshot(&commit);
                links.extend(own.iter().map(|name| snapshot.join(name)));
                let others = names.into_iter().filter(|name| !own.contains(name));
                let others: BTreeSet<String> = others.collect();
                // The last model takes the vision towers with it.
                if files::gguf_models(&others).is_empty() {
                    let towers = others.iter().filter(|name| is_tower(name));
                    links.extend(towers.map(|name| snapshot.join(name)));
                }
            }
        }
        if links.is_empty() {
            return Err(absent());
        }
        self.remove_links(&model.repo, &links)
    }

    fn folder(&self, repo: &RepoId) -> PathBuf {
        let name = repo.as_str().replace('/', "--");
        self.settings.cache.join(format!("{FOLDER_PREFIX}{name}"))
    }

    fn repositories(&self) -> Result<Vec<RepoId>, HubError> {
        let cache = &self.settings.cache;
        let entries = match fs::read_dir(cache) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(HubError::io(cache))?,
        };
        let names = entries
            .flatten()
            .filter_map(|entry| entry.file_name().into_string().ok());
        let repos = names.filter_map(|name| {
            let (owner, name) = name.strip_prefix(FOLDER_PREFIX)?.split_once("--")?;
            RepoId::parse(&format!("{owner}/{name}"))
        });
        Ok(repos.collect())
    }

    fn commits(&self, repo: &RepoId) -> BTreeSet<String> {
        let entries = fs::read_dir(self.folder(repo).join("snapshots"));
        let names = entries
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| entry.file_name().into_string().ok());
        names.filter(|name| is_commit(name)).collect()
    }

    fn models_of(&self, repo: &RepoId, commit: &str) -> Vec<ListedModel> {
        let cache = RepoCache::new(&self.settings.cache, repo, commit);
        let (names, snapshot) = (cache.files_of(commit), cache.snapshot(commit));
        let bytes = |name: &str| fs::metadata(snapshot.join(name)).map_or(0, |data| data.len());
        let mut models: Vec<_> = files::gguf_models(&names)
            .into_iter()
            .map(|model| ListedModel {
                id: format!("{repo}/{}", model.parts[0]),
                bytes: model.parts.iter().map(|part| bytes(part)).sum(),
                is_complete: model.parts.len() == model.count,
            })
            .collect();
        if files::has_safetensors(&names) {
            let whole = HubModel {
                repo: repo.clone(),
                wish: Wish::Model,
            };
            models.push(ListedModel {
                id: repo.to_string(),
                bytes: names
                    .iter()
                    .filter(|name| !name.ends_with(files::GGUF))
                    .map(|name| bytes(name))
                    .sum(),
                is_complete: cached(&cache, &whole, Extent::Whole).is_some(),
            });
        }
        models
    }

    /// Takes the locks of all downloads of a repository, so that no process downloads its files meanwhile.
    fn lock_all(&self, repo: &RepoId) -> Result<Vec<File>, HubError> {
        let name = repo.as_str().replace('/', "--");
        let folder = self.settings.cache.join(".locks");
        let folder = folder.join(format!("{FOLDER_PREFIX}{name}"));
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let lock = |path: PathBuf| {
            let file = File::open(&path).map_err(HubError::io(&path))?;
            match file.try_lock() {
                Ok(()) => Ok(file),
                Err(TryLockError::WouldBlock) => Err(HubError::Downloading { repo: repo.clone() }),
                Err(TryLockError::Error(error)) => Err(HubError::io(&path)(error)),
            }
        };
        entries.map(|entry| lock(entry.path())).collect()
    }

    /// Deletes links, and the blobs to which no other link of the repository leads.
    fn remove_links(&self, repo: &RepoId, links: &[PathBuf]) -> Result<u64, HubError> {
        let mut blobs = BTreeMap::new();
        for link in links {
            let blob = link.canonicalize().map_err(HubError::io(link))?;
            let bytes = fs::metadata(&blob).map_or(0, |data| data.len());
            fs::remove_file(link).map_err(HubError::io(link))?;
            blobs.insert(blob, bytes);
        }
        for commit in self.commits(repo) {
            let cache = RepoCache::new(&self.settings.cache, repo, &commit);
            for name in cache.files_of(&commit) {
                if let Ok(blob) = cache.snapshot(&commit).join(name).canonicalize() {
                    blobs.remove(&blob);
                }
            }
        }
        // A link that someone led out of the cache goes, its target stays.
        let folder = self.folder(repo).join("blobs");
        let folder = folder.canonicalize().map_err(HubError::io(&folder))?;
        blobs.retain(|blob, _| blob.starts_with(&folder));
        for blob in blobs.keys().filter(|blob| blob.exists()) {
            fs::remove_file(blob).map_err(HubError::io(blob))?;
        }
        Ok(blobs.into_values().sum())
    }
}

fn blob_bytes(folder: &Path) -> u64 {
    let blobs = fs::read_dir(folder.join("blobs")).into_iter().flatten();
    let sizes = blobs.flatten().filter_map(|blob| blob.metadata().ok());
    sizes.map(|data| data.len()).sum()
}
