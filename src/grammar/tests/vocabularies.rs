//! Loads vocabularies for the grammar tests' random walks.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use serde_json::Value;

use super::tokenizers::{byte_level, metaspace};
use super::{GrammarCompiler, GrammarLimits, compiler_within};
use souffleur_model::text::{TextModel, TokenPiece};

pub(super) struct Vocabulary {
    pub(super) text: Arc<TextModel>,
    pub(super) eos: Vec<u32>,
    /// Number of logits, larger than the number of tokens.
    pub(super) size: usize,
    pub(super) pieces: Vec<TokenPiece>,
    /// Tokens that lead a walk to its end outside of texts, in the order in which they are tried.
    pub(super) closers: Vec<u32>,
    /// The same inside of texts.
    pub(super) text_closers: Vec<u32>,
    markers: HashMap<String, u32>,
    by_bytes: HashMap<Vec<u8>, Vec<u32>>,
    compiler: OnceLock<GrammarCompiler>,
}

/// Closing brackets and quotes, then characters that finish or advance a date (`Z`, the zone), a duration (`W`, weeks),
/// a tag, an object or a number.
const CLOSERS: [&str; 10] = ["}", "]", "\"", ")", "Z", "W", ">", ":", ",", "0"];
/// The closing quote, then characters that formats require (`@` in an email address, `:` in a URI), that begin a
/// closing tag or end a line, or that bring a text to its minimum length.
const TEXT_CLOSERS: [&str; 8] = ["\"", "@", ":", "<", "/", "\n", "a", "0"];

impl Vocabulary {
    fn load(dir: &Path, eos: &[&str]) -> Self {
        let text = TextModel::load(dir).expect("the folder has a tokenizer");
        let eos = eos.iter().map(|name| text.token_id(name).expect("a token"));
        let pieces = text.pieces().expect("byte pieces");
        let mut by_bytes: HashMap<Vec<u8>, Vec<u32>> = HashMap::new();
        for (id, piece) in pieces.iter().enumerate() {
            if let TokenPiece::Bytes(bytes) = piece {
                by_bytes.entry(bytes.clone()).or_default().push(id as u32);
            }
        }
        let all = |texts: &[&str]| {
            let found = texts
                .iter()
                .filter_map(|text| by_bytes.get(text.as_bytes()));
            found.flatten().copied().collect()
        };
        Self {
            closers: all(&CLOSERS),
            text_closers: all(&TEXT_CLOSERS),
            eos: eos.collect(),
            size: text.vocab_size() + 70,
            pieces,
            markers: text.markers().into_iter().collect(),
            by_bytes,
            compiler: OnceLock::new(),
            text: Arc::new(text),
        }
    }

    /// A compiler with the default limits. All tests share it, because building the trie of a vocabulary takes longer
    /// than most tests.
    pub(super) fn compiler(&self) -> &GrammarCompiler {
        self.compiler
            .get_or_init(|| compiler_within(self, GrammarLimits::default()))
    }

    /// The text of tokens, with markers by name.
    pub(super) fn spell(&self, tokens: &[u32]) -> String {
        let mut bytes = Vec::new();
        for &token in tokens {
            match &self.pieces[token as usize] {
                TokenPiece::Bytes(piece) => bytes.extend_from_slice(piece),
                TokenPiece::Marker(name) if !self.eos.contains(&token) => {
                    bytes.extend_from_slice(name.as_bytes());
                }
                TokenPiece::Marker(_) | TokenPiece::Unknown => {}
            }
        }
        String::from_utf8(bytes).expect("grammars write whole characters")
    }

    /// The tokens that the model would write for a text.
    pub(super) fn tokens(&self, text: &str) -> Vec<u32> {
        self.text.encode_fragment(text).expect("it can be encoded")
    }

    /// The text of tokens, with U+FFFD for incomplete characters.
    pub(super) fn spell_lossy(&self, tokens: &[u32]) -> String {
        let bytes = tokens
            .iter()
            .flat_map(|&token| match &self.pieces[token as usize] {
                TokenPiece::Bytes(piece) => piece.as_slice(),
                TokenPiece::Marker(name) => name.as_bytes(),
                TokenPiece::Unknown => b"?",
            });
        String::from_utf8_lossy(&bytes.copied().collect::<Vec<u8>>()).into_owned()
    }

    /// Each token that alone is exactly this text, a marker of this name first.
    pub(super) fn single_tokens_of(&self, text: &[u8]) -> Vec<u32> {
        let name = std::str::from_utf8(text).unwrap_or_default();
        let marker = self.markers.get(name).copied();
        let plain = self.by_bytes.get(text).into_iter().flatten();
        marker.into_iter().chain(plain.copied()).collect()
    }
}

/// The vocabulary of the model in the repository.
pub(super) fn tiny() -> &'static Vocabulary {
    static TINY: OnceLock<Vocabulary> = OnceLock::new();
    TINY.get_or_init(|| {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/souffleur-tiny");
        Vocabulary::load(&dir, &["<|im_end|>", "<|endoftext|>"])
    })
}

/// A byte-level vocabulary of 150,000 tokens, some of them malformed.
pub(super) fn large() -> &'static Vocabulary {
    static LARGE: OnceLock<Vocabulary> = OnceLock::new();
    LARGE.get_or_init(|| load_json(&byte_level(150_000)))
}

/// A SentencePiece vocabulary, whose tokenizer puts a space before every text.
pub(super) fn sentence_piece() -> &'static Vocabulary {
    static PIECES: OnceLock<Vocabulary> = OnceLock::new();
    PIECES.get_or_init(|| load_json(&metaspace()))
}

/// A byte-level vocabulary with the tags of messages.
pub(super) fn messages() -> &'static Vocabulary {
    static MESSAGES: OnceLock<Vocabulary> = OnceLock::new();
    MESSAGES.get_or_init(|| {
        let mut tokenizer = byte_level(2_000);
        let tags = tokenizer["added_tokens"].as_array_mut().expect("a list");
        let names = [
            "<|return|>",
            "<|call|>",
            "<|start|>",
            "<|end|>",
            "<|channel|>",
            "<|message|>",
            "<|constrain|>",
        ];
        tags.truncate(names.len());
        for (tag, name) in tags.iter_mut().zip(names) {
            tag["content"] = name.into();
            tag["special"] = true.into();
        }
        load_json_with(&tokenizer, &["<|return|>", "<|call|>"])
    })
}

fn load_json(tokenizer: &Value) -> Vocabulary {
    load_json_with(tokenizer, &["<|end|>", "<|stop|>"])
}

fn load_json_with(tokenizer: &Value, eos: &[&str]) -> Vocabulary {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let file = dir.path().join("tokenizer.json");
    std::fs::write(file, tokenizer.to_string()).expect("the file is written");
    Vocabulary::load(dir.path(), eos)
}
