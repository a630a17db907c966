//! Models that are split into several files `NAME-00001-of-00003.gguf` in one folder.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rustc_hash::FxHashSet;

use crate::file::GgufFile;
use crate::metadata::Metadata;
use crate::tensors::MAX_TENSORS;
use souffleur_base::error::{LoadError, load_error};

const EXTENSION: &str = ".gguf";
const DIGITS: usize = 5;
const MAX_PARTS: usize = 1000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartName {
    pub stem: String,
    /// Counted from 1.
    pub number: usize,
    pub count: usize,
}

impl PartName {
    /// `None` if the name has another form.
    pub fn parse(name: &str) -> Option<Self> {
        let rest = name.strip_suffix(EXTENSION)?;
        let (rest, count) = rest.rsplit_once("-of-")?;
        let (stem, number) = rest.rsplit_once('-')?;
        let digits = |text: &str| {
            let all = text.len() == DIGITS && text.bytes().all(|byte| byte.is_ascii_digit());
            all.then(|| text.parse().ok()).flatten()
        };
        Some(Self {
            stem: stem.to_owned(),
            number: digits(number)?,
            count: digits(count)?,
        })
    }

    fn name_of(&self, number: usize) -> String {
        format!("{}-{number:05}-of-{:05}{EXTENSION}", self.stem, self.count)
    }
}

/// The file name without part number and suffix.
pub fn model_name(file_name: &str) -> &str {
    match PartName::parse(file_name) {
        Some(part) => &file_name[..part.stem.len()],
        None => file_name.strip_suffix(EXTENSION).unwrap_or(file_name),
    }
}

/// Whether a file is a vision tower or an audio encoder with its projector (mmproj), by the name that converters give it.
pub fn is_projector(file_name: &str) -> bool {
    file_name.ends_with(EXTENSION) && file_name.to_ascii_lowercase().contains("mmproj")
}

/// The file of the only GGUF model in a folder (the first part of a split one). `None` if there is no GGUF file, except
/// for projectors.
///
/// # Errors
/// If there are several models, or if the folder cannot be read.
pub fn only_model_in(dir: &Path) -> Result<Option<PathBuf>, LoadError> {
    let io = |source| LoadError::Io {
        file: dir.to_owned(),
        source,
    };
    let mut models = BTreeMap::<String, String>::new();
    for entry in std::fs::read_dir(dir).map_err(io)? {
        let name = entry.map_err(io)?.file_name();
        let is_model = |name: &&str| name.ends_with(EXTENSION) && !is_projector(name);
        let Some(name) = name.to_str().filter(is_model) else {
            continue;
        };
        match PartName::parse(name) {
            Some(part) => models.insert(part.name_of(0), part.name_of(1)),
            None => models.insert(name.to_owned(), name.to_owned()),
        };
    }
    match models.len() {
        0 => Ok(None),
        1 => Ok(models.into_values().next().map(|name| dir.join(name))),
        several => {
            let names: Vec<&str> = models.values().take(8).map(String::as_str).collect();
            let reason = format!(
                "holds {several} GGUF models, including {}: set --model-path to the file of one of them",
                names.join(", ")
            );
            Err(load_error(dir, reason))
        }
    }
}

/// The paths of a model's files, derived from the name of `file`, the only or first one.
pub fn files_of(file: &Path) -> Vec<PathBuf> {
    let name = file.file_name().and_then(|name| name.to_str());
    match name.and_then(PartName::parse) {
        Some(part) if part.number == 1 && part.count <= MAX_PARTS => (1..=part.count)
            .map(|number| file.with_file_name(part.name_of(number)))
            .collect(),
        _ => vec![file.to_owned()],
    }
}

/// Opens all files of a model; `file` is the only or first one.
pub(super) fn open_all(file: &Path) -> Result<Vec<GgufFile>, LoadError> {
    refuse_missing_first(file)?;
    let first = GgufFile::open(file.to_owned())?;
    let count = part_count(&first)?;
    if count <= 1 {
        return Ok(vec![first]);
    }
    let name = part_name(&first, count)?;
    let mut files = vec![first];
    for number in 2..=count {
        let path = file.with_file_name(name.name_of(number));
        if !path.exists() {
            let reason = format!(
                "is part 1 of {count}, but {} is not in the same folder: download it too",
                name.name_of(number)
            );
            return Err(load_error(file, reason));
        }
        let part = GgufFile::open(path)?;
        check_part(&part, number, count)?;
        files.push(part);
    }
    check_tensors(&files)?;
    Ok(files)
}

/// Fails if the file does not exist and is a part of a split model whose other parts are in the folder.
fn refuse_missing_first(file: &Path) -> Result<(), LoadError> {
    let file_name = file.file_name().and_then(|name| name.to_str());
    let Some(name) = file_name
        .and_then(PartName::parse)
        .filter(|_| !file.exists())
    else {
        return Ok(());
    };
    let present = (1..=name.count.min(MAX_PARTS)).filter(|number| {
        let part = file.with_file_name(name.name_of(*number));
        part.is_file()
    });
    let present: Vec<String> = present.map(|number| number.to_string()).collect();
    let (number, count) = (name.number, name.count);
    let reason = match present.as_slice() {
        [] => return Ok(()),
        [only] => {
            format!(
                "part {number} of {count} is missing, only part {only} is in the folder: download part {number} too"
            )
        }
        [begin @ .., last] => format!(
            "part {number} of {count} is missing, parts {} and {last} are in the folder: download part {number} too",
            begin.join(", ")
        ),
    };
    Err(load_error(file, reason))
}

fn part_count(file: &GgufFile) -> Result<usize, LoadError> {
    Ok(file
        .metadata()
        .size("split.count", 0..=MAX_PARTS)?
        .unwrap_or(1))
}

/// Counted from 1.
fn part_number(metadata: Metadata<'_>) -> Result<usize, LoadError> {
    let index = metadata.required_size("split.no", 0..=MAX_PARTS)?;
    Ok(index + 1)
}

fn part_name(first: &GgufFile, count: usize) -> Result<PartName, LoadError> {
    let file_name = first.path().file_name().and_then(|name| name.to_str());
    let name = file_name.and_then(PartName::parse);
    let number = part_number(first.metadata())?;
    match name {
        Some(name) if number == 1 && name.number == 1 && name.count == count => Ok(name),
        Some(name) if number > 1 && name.number == number => {
            let reason = format!(
                "is part {number} of {count}: set --model-path to the first part, {}",
                name.name_of(1)
            );
            Err(load_error(first.path(), reason))
        }
        _ => {
            let reason = format!(
                "is part {number} of {count} according to split.no and split.count, but its name is not \
                 NAME-{number:05}-of-{count:05}.gguf: restore the parts' original names"
            );
            Err(load_error(first.path(), reason))
        }
    }
}

fn check_part(part: &GgufFile, number: usize, count: usize) -> Result<(), LoadError> {
    let (found_number, found_count) = (part_number(part.metadata())?, part_count(part)?);
    if (found_number, found_count) == (number, count) {
        return Ok(());
    }
    let reason = format!(
        "is part {found_number} of {found_count} according to split.no and split.count, expected part {number} of \
         {count}: download it again"
    );
    Err(load_error(part.path(), reason))
}

/// Rejects duplicate tensors, more than [`MAX_TENSORS`], and a number other than `split.tensors.count`.
fn check_tensors(files: &[GgufFile]) -> Result<(), LoadError> {
    let mut names = FxHashSet::default();
    for file in files {
        for tensor in file.tensors() {
            if !names.insert(tensor.name.as_str()) {
                let reason = format!(
                    "holds the tensor {}, which an earlier part holds too: download the parts again",
                    crate::metadata::shown(&tensor.name)
                );
                return Err(load_error(file.path(), reason));
            }
        }
    }
    if names.len() as u64 > MAX_TENSORS {
        let reason = format!(
            "has {} tensors together with its other parts, the limit is {MAX_TENSORS}: the parts are broken, download \
             them again",
            names.len()
        );
        return Err(load_error(files[0].path(), reason));
    }
    let key = "split.tensors.count";
    let first = files[0].metadata();
    let declared = first.size(key, 0..=MAX_TENSORS as usize)?;
    match declared {
        Some(declared) if declared != names.len() => {
            let found = names.len();
            let reason =
                format!("is {declared}, the parts hold {found} tensors: download the parts again");
            Err(first.error(key, reason))
        }
        _ => Ok(()),
    }
}
