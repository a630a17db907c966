//! Parses the ids of models on the hub, and distinguishes them from local paths.

use std::fmt;
use std::path::Path;

const MAX_ID_BYTES: usize = 96;
const GGUF: &str = ".gguf";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepoId(String);

impl RepoId {
    /// Parses `owner/name`; `None` if the hub does not allow this name.
    pub fn parse(text: &str) -> Option<Self> {
        let (owner, name) = text.split_once('/')?;
        let fits = text.len() <= MAX_ID_BYTES && is_name(owner) && is_name(name);
        fits.then(|| Self(text.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RepoId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wish {
    /// The repository's safetensors, or its only GGUF model.
    Model,
    /// The GGUF model with this quantisation in its name (`Q4_K_M`).
    Quantisation(String),
    /// The GGUF model in this file, or in all parts of a split model if the file is one of them.
    File(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubModel {
    pub repo: RepoId,
    pub wish: Wish,
}

impl HubModel {
    /// Parses the path of a model. `None` for a local path: one that exists, as in SGLang and vLLM, or does not look
    /// like `owner/name`, `owner/name:QUANTISATION` or `owner/name/FILE.gguf`.
    pub fn of_path(path: &Path) -> Option<Self> {
        if path.exists() {
            return None;
        }
        Self::parse(path.to_str()?)
    }

    pub fn parse(text: &str) -> Option<Self> {
        if let Some((repo, quantisation)) = text.split_once(':') {
            let wish = is_name(quantisation).then(|| Wish::Quantisation(quantisation.to_owned()));
            return Some(Self {
                repo: RepoId::parse(repo)?,
                wish: wish?,
            });
        }
        let (owner, rest) = text.split_once('/')?;
        let Some((name, file)) = rest.split_once('/') else {
            // A text that ends in .gguf is the path of a missing file, not a repository.
            let repo = RepoId::parse(text).filter(|_| !text.ends_with(GGUF))?;
            return Some(Self {
                repo,
                wish: Wish::Model,
            });
        };
        let is_file = file.ends_with(GGUF) && is_plain_path(file);
        Some(Self {
            repo: RepoId::parse(&format!("{owner}/{name}"))?,
            wish: is_file.then(|| Wish::File(file.to_owned()))?,
        })
    }
}

impl fmt::Display for HubModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { repo, wish } = self;
        match wish {
            Wish::Model => write!(f, "{repo}"),
            Wish::Quantisation(name) => write!(f, "{repo}:{name}"),
            Wish::File(file) => write!(f, "{repo}/{file}"),
        }
    }
}

fn is_name(text: &str) -> bool {
    let is_inner = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let is_edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric() || c == '_');
    text.chars().all(is_inner)
        && is_edge(text.chars().next())
        && is_edge(text.chars().last())
        && !text.contains("--")
        && !text.contains("..")
}

/// True for a relative path that stays within its folder.
pub(super) fn is_plain_path(path: &str) -> bool {
    let is_plain = |part: &str| !part.is_empty() && part != "." && part != "..";
    path.split('/').all(is_plain) && !path.contains(['\\', '\0', ':'])
}

#[cfg(test)]
mod tests;
