//! Chooses the files of a repository to download for a model: only the needed ones, and never a pickle.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::error::HubError;
use super::id::{HubModel, RepoId, Wish, is_plain_path};
use super::names::{ends_with_word, towers};
pub use souffleur_model::gguf::PartName;
use souffleur_model::weights::folder::{INDEX, SINGLE};

const CONFIG: &str = "config.json";
const TOKENIZER: &str = "tokenizer.json";
const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
/// Files that are read in addition to the weights, if present.
const METADATA: [&str; 8] = [
    CONFIG,
    "generation_config.json",
    TOKENIZER,
    TOKENIZER_CONFIG,
    "chat_template.jinja",
    "chat_template.json",
    "preprocessor_config.json",
    "processor_config.json",
];
pub(super) const GGUF: &str = ".gguf";
const SAFETENSORS: &str = ".safetensors";
const MAX_TOKENIZER_BYTES: u64 = 1 << 30;
const MAX_TEXT_BYTES: u64 = 64 << 20;
/// GGUF files that are not language models: projectors of vision models, and importance matrices for quantising.
const OTHER_GGUF: [&str; 2] = ["mmproj", "imatrix"];
/// Extensions of weight files that Python unpickles: unpickling can run code in them.
const PICKLES: [&str; 5] = [".bin", ".pt", ".pth", ".ckpt", ".pkl"];
const SHOWN_NAMES: usize = 12;

/// The files of a model to download.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    Whole,
    /// Only the files that describe the architecture: no weights, except in GGUF files, which hold both.
    Shape,
    /// As `Whole`, without a vision tower in a separate file.
    Text,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Choice {
    pub metadata: Vec<&'static str>,
    pub weights: WeightFiles,
    /// The vision towers in files of their own, of which the first is preferred.
    pub towers: Vec<String>,
}

impl Choice {
    /// True if files that are missing in the cache could not change the choice.
    pub fn is_certain(&self, model: &HubModel) -> bool {
        match (&self.weights, &model.wish) {
            (WeightFiles::None, _) | (WeightFiles::Gguf(_), Wish::File(_)) => true,
            // Another program may have downloaded the weights without the tokenizer's files.
            (WeightFiles::Single | WeightFiles::Sharded, _) => {
                self.metadata.contains(&TOKENIZER) && self.metadata.contains(&TOKENIZER_CONFIG)
            }
            (WeightFiles::Gguf(files), Wish::Quantisation(name)) => {
                let first = files.first();
                first.is_some_and(|file| is_plainly_named(file, &model.repo, name))
            }
            (WeightFiles::Gguf(_), Wish::Model) => false,
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum WeightFiles {
    None,
    Single,
    Sharded,
    /// The parts of a GGUF model, in order.
    Gguf(Vec<String>),
}

pub(super) fn choose(
    repo: &RepoId,
    names: &BTreeSet<String>,
    wish: &Wish,
    extent: Extent,
) -> Result<Choice, HubError> {
    let unsuitable = |reason: String| HubError::Unsuitable {
        repo: repo.clone(),
        reason,
    };
    let gguf = |files: Vec<String>| Choice {
        metadata: Vec::new(),
        towers: match (extent, files.first()) {
            (Extent::Whole, Some(model)) => towers(names, model),
            _ => Vec::new(),
        },
        weights: WeightFiles::Gguf(files),
    };
    let models = gguf_models(names);
    match wish {
        Wish::File(file) => of_file(&models, file).map(gguf).map_err(unsuitable),
        Wish::Quantisation(name) => of_quantisation(&models, name)
            .and_then(|model| model.files())
            .map(gguf)
            .map_err(unsuitable),
        Wish::Model if names.contains(INDEX) || names.contains(SINGLE) => {
            if !names.contains(CONFIG) {
                return Err(unsuitable(format!(
                    "has safetensors, but no {CONFIG}, so it is not a whole model (perhaps an adapter): choose \
                     the repository of a whole model"
                )));
            }
            let weights = match (extent, names.contains(SINGLE)) {
                (Extent::Shape, _) => WeightFiles::None,
                (Extent::Whole | Extent::Text, true) => WeightFiles::Single,
                (Extent::Whole | Extent::Text, false) => WeightFiles::Sharded,
            };
            let wanted = match extent {
                Extent::Whole | Extent::Text => &METADATA[..],
                Extent::Shape => &METADATA[..1],
            };
            let metadata = wanted.iter().copied().filter(|name| names.contains(*name));
            Ok(Choice {
                metadata: metadata.collect(),
                weights,
                towers: Vec::new(),
            })
        }
        Wish::Model => only_model(&models, names)
            .and_then(|model| model.files())
            .map(gguf)
            .map_err(unsuitable),
    }
}

/// The size limit of a file by its name; only the disk limits weights.
pub(super) fn max_bytes(name: &str) -> u64 {
    match name {
        TOKENIZER => MAX_TOKENIZER_BYTES,
        name if name == INDEX || METADATA.contains(&name) => MAX_TEXT_BYTES,
        _ => u64::MAX,
    }
}

pub(super) fn has_safetensors(names: &BTreeSet<String>) -> bool {
    names.iter().any(|name| name.ends_with(SAFETENSORS))
}

/// The shards that an index names, each once. The error describes the fault in the index.
pub(super) fn shards(index: &[u8]) -> Result<BTreeSet<String>, String> {
    let index: Value = serde_json::from_slice(index).map_err(|error| error.to_string())?;
    let map = index["weight_map"].as_object();
    let map = map.ok_or("its weight_map is not an object")?;
    let name = |file: &Value| {
        let name = file.as_str().filter(|name| {
            is_plain_path(name) && !name.contains('/') && name.ends_with(SAFETENSORS)
        });
        let name = name.map(str::to_owned);
        name.ok_or_else(|| {
            format!(
                "its weight_map names {file}, which is not a safetensors file in the same folder"
            )
        })
    };
    map.values().map(name).collect()
}

#[derive(Debug)]
pub(super) struct GgufModel<'a> {
    /// The path without part number and extension.
    stem: String,
    pub parts: Vec<&'a str>,
    /// The number of parts of the complete model.
    pub count: usize,
}

impl GgufModel<'_> {
    /// The length of the name, then the number of parts: some repositories have a model twice, as one file and in parts.
    fn length(&self) -> (usize, usize) {
        (self.stem.len(), self.count)
    }

    fn files(&self) -> Result<Vec<String>, String> {
        if self.parts.len() == self.count {
            Ok(self.parts.iter().map(|part| (*part).to_owned()).collect())
        } else {
            Err(format!(
                "has only {} of the {} parts of {}: choose another quantisation",
                self.parts.len(),
                self.count,
                self.stem
            ))
        }
    }
}

pub(super) fn gguf_models(names: &BTreeSet<String>) -> Vec<GgufModel<'_>> {
    let mut models = BTreeMap::<(String, usize), Vec<&str>>::new();
    for path in names {
        let (folder, name) = match path.rsplit_once('/') {
            Some((folder, name)) => (format!("{folder}/"), name),
            None => (String::new(), path.as_str()),
        };
        let Some(stem) = name.strip_suffix(GGUF) else {
            continue;
        };
        let lower = stem.to_lowercase();
        if !is_plain_path(path) || OTHER_GGUF.iter().any(|other| lower.contains(other)) {
            continue;
        }
        let (stem, count) = match PartName::parse(name) {
            Some(part) => (part.stem, part.count),
            None => (stem.to_owned(), 1),
        };
        // Sorted names are sorted parts: part numbers have leading zeros.
        models
            .entry((folder + &stem, count))
            .or_default()
            .push(path);
    }
    let model = |((stem, count), parts)| GgufModel { stem, parts, count };
    models.into_iter().map(model).collect()
}

fn of_file(models: &[GgufModel<'_>], file: &str) -> Result<Vec<String>, String> {
    let found = models.iter().find(|model| model.parts.contains(&file));
    match found {
        Some(model) => model.files(),
        None => Err(format!("has no GGUF model {file}; it {}", listed(models))),
    }
}

fn of_quantisation<'a, 'b>(
    models: &'b [GgufModel<'a>],
    name: &str,
) -> Result<&'b GgufModel<'a>, String> {
    let is_named = |model: &&GgufModel<'_>| ends_with_word(&model.stem, name);
    let found: Vec<_> = models.iter().filter(is_named).collect();
    match found.as_slice() {
        [model] => Ok(*model),
        [] => Err(format!(
            "has no GGUF model whose name ends with {name}; it {}",
            listed(models)
        )),
        // `Q4_K_M` also matches `m-UD-Q4_K_M`: the shortest name is meant.
        several => {
            let shortest = several.iter().map(|model| model.length()).min();
            let mut shortest = several
                .iter()
                .filter(|model| Some(model.length()) == shortest);
            match (shortest.next(), shortest.next()) {
                (Some(model), None) => Ok(*model),
                _ => {
                    let stems: Vec<&str> =
                        several.iter().map(|model| model.stem.as_str()).collect();
                    Err(format!(
                        "has several GGUF models whose names end with {name}: {}; choose one as owner/name/FILE.gguf",
                        stems.join(", ")
                    ))
                }
            }
        }
    }
}

/// True if the file name is only the repository's name and the quantisation, the shortest possible name.
fn is_plainly_named(file: &str, repo: &RepoId, quantisation: &str) -> bool {
    let name = file.rsplit('/').next().unwrap_or(file);
    let stem = match PartName::parse(name) {
        Some(part) => part.stem,
        None => name.strip_suffix(GGUF).unwrap_or(name).to_owned(),
    };
    let (stem, quantisation) = (stem.to_lowercase(), quantisation.to_lowercase());
    let repo = repo.as_str().to_lowercase();
    let model = repo.rsplit('/').next().unwrap_or(&repo);
    let model = model.strip_suffix("-gguf").unwrap_or(model);
    let rest = stem.strip_prefix(model);
    let between = rest.and_then(|rest| rest.strip_suffix(&quantisation));
    matches!(between, Some("-" | "."))
}

/// The only GGUF model of a repository without safetensors.
fn only_model<'a, 'b>(
    models: &'b [GgufModel<'a>],
    names: &BTreeSet<String>,
) -> Result<&'b GgufModel<'a>, String> {
    match models {
        [model] => Ok(model),
        [] => {
            let is_pickle = |name: &&String| PICKLES.iter().any(|ending| name.ends_with(ending));
            Err(match names.iter().find(is_pickle) {
                Some(pickle) => format!(
                    "has its weights only as pickles ({pickle}), which can run code and are never loaded: look for a \
                     repository with safetensors or GGUF files"
                ),
                None => format!(
                    "has neither {SINGLE} nor {INDEX} nor a GGUF file: look for a repository with safetensors or \
                     GGUF files"
                ),
            })
        }
        several => Err(format!(
            "has several GGUF models: choose one as owner/name:QUANTISATION or owner/name/FILE.gguf; it {}",
            listed(several)
        )),
    }
}

fn listed(models: &[GgufModel<'_>]) -> String {
    let stems = models.iter().take(SHOWN_NAMES);
    let stems: Vec<&str> = stems.map(|model| model.stem.as_str()).collect();
    let more = if models.len() > SHOWN_NAMES {
        format!(" and {} more", models.len() - SHOWN_NAMES)
    } else {
        String::new()
    };
    if stems.is_empty() {
        "has no GGUF files".to_owned()
    } else {
        format!("has {}{more}", stems.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice(names: &[&str], id: &str, extent: Extent) -> Result<Choice, String> {
        let model = HubModel::parse(id).expect("the id is valid");
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        let chosen = choose(&model.repo, &names, &model.wish, extent);
        chosen.map_err(|error| error.to_string())
    }

    fn gguf(names: &[&str], id: &str) -> Result<Vec<String>, String> {
        choice(names, id, Extent::Whole).map(|choice| match choice.weights {
            WeightFiles::Gguf(files) => files,
            other => panic!("{other:?}"),
        })
    }

    #[test]
    fn only_needed_files_of_a_safetensors_repository_are_chosen() {
        let names = [
            "README.md",
            "config.json",
            "model.safetensors.index.json",
            "model-00001-of-00002.safetensors",
            "original/consolidated.00.pth",
            "pytorch_model.bin",
            "tokenizer.json",
            "vocab.json",
        ];
        let whole = choice(&names, "a/b", Extent::Whole).expect("a model");
        assert_eq!(whole.metadata, ["config.json", "tokenizer.json"]);
        assert_eq!(whole.weights, WeightFiles::Sharded);
        let shape = choice(&names, "a/b", Extent::Shape).expect("a model");
        assert_eq!(shape.metadata, ["config.json"]);
        assert_eq!(shape.weights, WeightFiles::None);
        let single = choice(&["config.json", SINGLE, INDEX], "a/b", Extent::Whole);
        assert_eq!(single.expect("a model").weights, WeightFiles::Single);
    }

    const SEVERAL: [&str; 7] = [
        "IQ4_XS/m-IQ4_XS.gguf",
        "Q8_0/m-Q8_0-00001-of-00002.gguf",
        "Q8_0/m-Q8_0-00002-of-00002.gguf",
        "m-Q4_K_M.gguf",
        "m-UD-Q4_K_M.gguf",
        "mmproj-m-F16.gguf",
        "m-Q2_K-00001-of-00002.gguf",
    ];

    #[test]
    fn a_gguf_model_is_chosen_by_quantisation_or_file_with_all_its_parts() {
        for (id, files) in [
            ("a/b:q8_0", &SEVERAL[1..3]),
            ("a/b/Q8_0/m-Q8_0-00002-of-00002.gguf", &SEVERAL[1..3]),
            ("a/b:Q4_K_M", &SEVERAL[3..4]),
            ("a/b:UD-Q4_K_M", &SEVERAL[4..5]),
            ("a/b/m-Q4_K_M.gguf", &SEVERAL[3..4]),
        ] {
            assert_eq!(
                gguf(&SEVERAL, id).as_deref(),
                Ok(&to_owned(files)[..]),
                "{id}"
            );
        }
        assert_eq!(
            gguf(&["m.gguf", "mmproj.gguf"], "a/b"),
            Ok(to_owned(&["m.gguf"]))
        );
        let twice = [
            "m-Q4_K_M-00001-of-00002.gguf",
            "m-Q4_K_M-00002-of-00002.gguf",
            "m-Q4_K_M.gguf",
        ];
        assert_eq!(gguf(&twice, "a/b:Q4_K_M"), Ok(to_owned(&twice[2..])));
    }

    #[test]
    fn only_whole_models_come_with_towers() {
        let names = ["m-Q4_K_M.gguf", "mmproj-F16.gguf"];
        let towers = |extent| {
            choice(&names, "a/b:Q4_K_M", extent)
                .expect("a model")
                .towers
        };
        assert_eq!(towers(Extent::Whole), names[1..]);
        assert!(towers(Extent::Shape).is_empty() && towers(Extent::Text).is_empty());
    }

    fn to_owned(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn a_choice_among_some_files_is_certain_if_no_other_file_could_change_it() {
        for (names, id, expected) in [
            (&["config.json", SINGLE, TOKENIZER][..], "a/m", false),
            (
                &["config.json", SINGLE, TOKENIZER, TOKENIZER_CONFIG],
                "a/m",
                true,
            ),
            (&["m.gguf"], "a/m", false),
            (&["m-UD-Q4_K_M.gguf"], "a/m-GGUF:Q4_K_M", false),
            (&["m-UD-Q4_K_M.gguf"], "a/m-GGUF:UD-Q4_K_M", true),
            (&["m-UD-Q4_K_M.gguf"], "a/m/m-UD-Q4_K_M.gguf", true),
            (&["Q8_0/m.q8_0-00001-of-00001.gguf"], "a/M-gguf:Q8_0", true),
        ] {
            let model = HubModel::parse(id).expect("the id is valid");
            let chosen = choice(names, id, Extent::Whole).expect(id);
            assert_eq!(chosen.is_certain(&model), expected, "{id}");
        }
        let shape = choice(&["config.json", SINGLE], "a/m", Extent::Shape).expect("a model");
        assert!(shape.is_certain(&HubModel::parse("a/m").expect("the id is valid")));
    }

    #[test]
    fn a_failed_choice_lists_the_available_models() {
        for (names, id, part) in [
            (
                &SEVERAL[..],
                "a/b",
                "has several GGUF models: choose one as",
            ),
            (
                &SEVERAL,
                "a/b:Q4_XS",
                "ends with Q4_XS; it has IQ4_XS/m-IQ4_XS",
            ),
            (&SEVERAL, "a/b:Q2_K", "has only 1 of the 2 parts of m-Q2_K"),
            (
                &SEVERAL,
                "a/b/other.gguf",
                "has no GGUF model other.gguf; it has IQ4_XS",
            ),
            (
                &["pytorch_model.bin"],
                "a/b",
                "(pytorch_model.bin), which can run code",
            ),
            (&["README.md"], "a/b", "nor a GGUF file"),
            (&["README.md"], "a/b:Q8_0", "has no GGUF files"),
            (&[SINGLE], "a/b", "but no config.json"),
        ] {
            let error = choice(names, id, Extent::Whole).expect_err(id);
            assert!(
                error.starts_with("a/b ") && error.contains(part),
                "{id}: {error}"
            );
        }
    }

    #[test]
    fn an_index_names_only_files_in_its_folder() {
        let names = shards(br#"{"weight_map": {"a": "x.safetensors", "b": "x.safetensors"}}"#);
        assert_eq!(names, Ok(BTreeSet::from(["x.safetensors".to_owned()])));
        for index in [
            "{",
            "{}",
            r#"{"weight_map": {"a": "../x.safetensors"}}"#,
            r#"{"weight_map": {"a": "x.bin"}}"#,
            r#"{"weight_map": {"a": 3}}"#,
        ] {
            assert!(shards(index.as_bytes()).is_err(), "{index}");
        }
    }
}
