//! Defines the pre-tokenizers by name (`tokenizer.ggml.pre`), which split a text into words before merges.
//!
//! A GGUF file has only the name. The patterns are those of the models' `tokenizer.json` files.

/// The supported names, which error messages list.
pub(super) const SUPPORTED_NAMES: [&str; 38] = [
    "chatglm-bpe",
    "codeshell",
    "command-r",
    "dbrx",
    "deepseek-coder",
    "deepseek-llm",
    "deepseek-r1-qwen",
    "deepseek-v3",
    "exaone",
    "falcon",
    "falcon-h1",
    "falcon3",
    "glm4",
    "glm5",
    "gpt-2",
    "gpt-4o",
    "kormo",
    "lfm2",
    "llama-bpe",
    "llama-v3",
    "llama3",
    "llama4",
    "megrez",
    "midm-2.0",
    "minerva-7b",
    "mpt",
    "olmo",
    "phi-2",
    "pixtral",
    "qwen2",
    "qwen35",
    "refact",
    "smaug-bpe",
    "smollm",
    "stablelm2",
    "starcoder",
    "tekken",
    "trillion",
];

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Splits {
    /// Regular expressions that are applied one after the other; each match becomes a piece.
    pub(super) patterns: Vec<String>,
    /// Runs of punctuation are split off before `patterns` are applied.
    pub(super) punctuation_first: bool,
    /// GPT-2's regular expression is applied after `patterns`.
    pub(super) words_of_gpt2: bool,
    /// After the byte-level step, runs of digits are split off, and then the matches of this regular expression.
    pub(super) digits_of_bytes: Option<&'static str>,
    /// A word that is a token is encoded as that token, even if no merges produce it.
    pub(super) ignores_merges: bool,
    /// Prompts start with BOS if the file has no `add_bos_token`.
    pub(super) adds_bos: bool,
    /// Texts are normalized to NFC first.
    pub(super) uses_nfc: bool,
}

const LETTERS: &str = r"\p{L}";
const LETTERS_AND_MARKS: &str = r"\p{L}\p{M}";
const DIGIT: &str = r"\p{N}";
const UP_TO_3_DIGITS: &str = r"\p{N}{1,3}";
const CONTRACTIONS: &str = "(?i:'s|'t|'re|'ve|'m|'ll|'d)";
const BLANKS: &str = r"\s*[\r\n]+|\s+(?!\S)|\s+";

impl Splits {
    pub(super) fn named(name: &str) -> Option<Self> {
        let with = |pattern: String| Self {
            patterns: vec![pattern],
            ..Self::default()
        };
        Some(match name {
            "llama-bpe" | "llama3" | "llama-v3" | "lfm2" | "falcon3" | "falcon-h1" | "pixtral"
            | "midm-2.0" => Self {
                ignores_merges: true,
                adds_bos: true,
                ..with(regular(LETTERS, UP_TO_3_DIGITS))
            },
            "glm4" | "glm5" => Self {
                ignores_merges: true,
                ..with(regular(LETTERS, UP_TO_3_DIGITS))
            },
            "smaug-bpe" | "dbrx" | "chatglm-bpe" => with(regular(LETTERS, UP_TO_3_DIGITS)),
            "qwen2" | "deepseek-r1-qwen" | "kormo" => Self {
                uses_nfc: true,
                ..with(regular(LETTERS, DIGIT))
            },
            "stablelm2" | "megrez" => with(regular(LETTERS, DIGIT)),
            "qwen35" => Self {
                uses_nfc: true,
                ..with(regular(LETTERS_AND_MARKS, DIGIT))
            },
            "tekken" => Self {
                ignores_merges: true,
                adds_bos: true,
                ..with(by_case("", DIGIT))
            },
            "gpt-4o" | "llama4" => with(by_case(&format!("{CONTRACTIONS}?"), UP_TO_3_DIGITS)),
            "gpt-2" | "mpt" | "olmo" | "phi-2" | "trillion" => Self {
                words_of_gpt2: true,
                uses_nfc: matches!(name, "mpt" | "olmo"),
                ..Self::default()
            },
            "smollm" | "starcoder" | "command-r" | "refact" | "codeshell" | "exaone"
            | "minerva-7b" => Self {
                words_of_gpt2: true,
                uses_nfc: name == "command-r",
                ..with(DIGIT.to_owned())
            },
            "falcon" => Self {
                punctuation_first: true,
                words_of_gpt2: true,
                digits_of_bytes: Some("[0-9][0-9][0-9]"),
                ..Self::default()
            },
            "deepseek-v3" => Self::of(&[UP_TO_3_DIGITS, HAN_KANA, &words_of_deepseek_v3()]),
            "deepseek-coder" => Self::of(&DEEPSEEK_CODER),
            "deepseek-llm" => Self::of(&DEEPSEEK_LLM),
            _ => return None,
        })
    }

    fn of(patterns: &[&str]) -> Self {
        Self {
            patterns: patterns.iter().copied().map(str::to_owned).collect(),
            ..Self::default()
        }
    }
}

const HAN_KANA: &str = "[一-龥\u{3040}-ゟ゠-ヿ]+";
const HAN_KANA_HANGUL: &str = "[一-龥\u{800}-一가-\u{d7ff}]+";

const DEEPSEEK_CODER: [&str; 5] = [
    r"[\r\n]",
    r"\s?\p{L}+",
    r"\s?\p{P}+",
    HAN_KANA_HANGUL,
    DIGIT,
];

const DEEPSEEK_LLM: [&str; 6] = [
    r"[\r\n]",
    r"\s?[\p{Lu}\p{Ll}\p{Lt}]+",
    r"\s?[!-/:-~！-／：-～‘-‟\u{3000}-。]+",
    r"\s+$",
    HAN_KANA_HANGUL,
    DIGIT,
];

/// Matches ASCII punctuation with letters after it, words, other punctuation and white space.
fn words_of_deepseek_v3() -> String {
    format!(
        r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{{|}}~][A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+| ?[\p{{P}}\p{{S}}]+[\r\n]*|{BLANKS}"##
    )
}

/// Matches words of letters with at most one other character before them, numbers, punctuation and white space.
fn regular(letters: &str, numbers: &str) -> String {
    format!(
        r"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[{letters}]+|{numbers}| ?[^\s{letters}\p{{N}}]+[\r\n]*|{BLANKS}"
    )
}

/// Like `regular`, but a word ends before an upper-case letter that follows a lower-case one.
fn by_case(suffix: &str, numbers: &str) -> String {
    let before = r"[^\r\n\p{L}\p{N}]?";
    let upper = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]";
    let lower = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]";
    format!(
        r"{before}{upper}*{lower}+{suffix}|{before}{upper}+{lower}*{suffix}|{numbers}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{BLANKS}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_supported_name_has_patterns_that_compile() {
        assert!(SUPPORTED_NAMES.is_sorted());
        for name in SUPPORTED_NAMES {
            let splits = Splits::named(name).unwrap_or_else(|| panic!("{name} is listed"));
            for pattern in &splits.patterns {
                let compiled = tokenizers::utils::SysRegex::new(pattern);
                assert!(compiled.is_ok(), "{name}: {pattern}");
            }
        }
    }

    #[test]
    fn other_names_are_unknown() {
        for name in ["", "default", "gpt2", "QWEN2"] {
            assert_eq!(Splits::named(name), None, "{name:?}");
        }
    }
}
