//! Facts that the names of a repository's files state.

use std::collections::BTreeSet;

use super::id::is_plain_path;
use souffleur_model::gguf::is_projector;

const GGUF: &str = ".gguf";
/// The types of vision towers in files of their own, the preferred one first: the usual one.
const TOWER_TYPES: [&str; 3] = ["F16", "BF16", "F32"];

/// The files of vision towers (mmproj) in the folder of a GGUF model, the preferred one first.
pub(super) fn towers(names: &BTreeSet<String>, model: &str) -> Vec<String> {
    let of_model = folder_of(model);
    let names = names.iter().filter(|name| is_tower(name));
    let own = names.filter(|name| folder_of(name) == of_model);
    let mut towers: Vec<String> = own.cloned().collect();
    let stem = |name: &str| name.strip_suffix(GGUF).unwrap_or(name).to_owned();
    towers.sort_by_key(|name| {
        let mut types = TOWER_TYPES.iter();
        let rank = types.position(|kind| ends_with_word(&stem(name), kind));
        rank.unwrap_or(TOWER_TYPES.len())
    });
    towers
}

/// Whether a file is a vision tower with its projector, by its name.
pub(super) fn is_tower(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    is_plain_path(path) && is_projector(name)
}

/// The path of a file's folder.
fn folder_of(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(folder, _)| folder)
}

/// True if a text ends with a whole word, ignoring case: `IQ4_XS` does not end with the word `Q4_XS`.
pub(super) fn ends_with_word(text: &str, word: &str) -> bool {
    let (text, word) = (text.to_ascii_lowercase(), word.to_ascii_lowercase());
    let before = text.strip_suffix(&word);
    before.is_some_and(|before| !before.ends_with(|c: char| c.is_ascii_alphanumeric()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn towers_of_a_models_folder_are_listed_by_their_types() {
        let names = [
            "Q8_0/m-Q8_0.gguf",
            "Q8_0/mmproj-m-Q8_0.gguf",
            "m-F16.gguf",
            "mmproj-BF16.gguf",
            "mmproj-f16.gguf",
            "mmproj-m-f32.gguf",
            "mmproj-q8_0.gguf",
        ];
        let names: BTreeSet<String> = names.into_iter().map(str::to_owned).collect();
        assert_eq!(
            towers(&names, "m-F16.gguf"),
            [
                "mmproj-f16.gguf",
                "mmproj-BF16.gguf",
                "mmproj-m-f32.gguf",
                "mmproj-q8_0.gguf"
            ]
        );
        assert_eq!(
            towers(&names, "Q8_0/m-Q8_0.gguf"),
            ["Q8_0/mmproj-m-Q8_0.gguf"]
        );
        assert!(towers(&names, "other/m.gguf").is_empty());
        assert!(!is_tower("../mmproj-F16.gguf") && !is_tower("mmproj/m.gguf"));
    }
}
