//! Vocabularies to walk with.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use serde_json::{Map, Value, json};

use crate::model::text::{TextModel, TokenPiece};

/// A tokenizer, and what the walks need of it.
pub(super) struct Vocabulary {
    pub(super) text: Arc<TextModel>,
    pub(super) eos: Vec<u32>,
    /// Entries of the model's logits, more than there are tokens.
    pub(super) size: usize,
    pub(super) pieces: Vec<TokenPiece>,
    /// The tokens that close something, the outermost first.
    pub(super) closers: Vec<u32>,
    /// The tokens that close a text, or bring its end nearer.
    pub(super) text_closers: Vec<u32>,
    markers: HashMap<String, u32>,
    by_bytes: HashMap<Vec<u8>, Vec<u32>>,
}

const CLOSERS: [&str; 10] = ["}", "]", "\"", ")", "Z", "W", ">", ":", ",", "0"];
const TEXT_CLOSERS: [&str; 8] = ["\"", "@", ":", "<", "/", "\n", "a", "0"];

impl Vocabulary {
    fn load(dir: &Path, eos: &[&str]) -> Self {
        let text = TextModel::load(dir).expect("it is whole");
        let eos = eos
            .iter()
            .map(|name| text.token_id(name).expect("it is there"));
        let pieces = text.pieces().expect("it spells bytes");
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
            text: Arc::new(text),
        }
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

    /// The text of tokens that need not end with a whole character.
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

    /// The tokens that add exactly this text, markers of this name first.
    pub(super) fn tokens_of(&self, text: &[u8]) -> Vec<u32> {
        let name = std::str::from_utf8(text).unwrap_or_default();
        let marker = self.markers.get(name).copied();
        let plain = self.by_bytes.get(text).into_iter().flatten();
        marker.into_iter().chain(plain.copied()).collect()
    }
}

/// The tokenizer of the model that comes with the repository.
pub(super) fn tiny() -> &'static Vocabulary {
    static TINY: OnceLock<Vocabulary> = OnceLock::new();
    TINY.get_or_init(|| {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/souffleur-tiny");
        Vocabulary::load(&dir, &["<|im_end|>", "<|endoftext|>"])
    })
}

/// The tags of tool calls and reasoning that are tokens in [`large`] and [`sentence_piece`].
const MARKERS: [&str; 10] = [
    "<|end|>",
    "<|stop|>",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "<|python_tag|>",
    "    ",
];

/// A byte-level vocabulary of 150,000 tokens, some of them spelt wrongly.
pub(super) fn large() -> &'static Vocabulary {
    static LARGE: OnceLock<Vocabulary> = OnceLock::new();
    LARGE.get_or_init(|| written(&byte_level(150_000)))
}

/// A SentencePiece vocabulary that puts a blank before every text.
pub(super) fn sentence_piece() -> &'static Vocabulary {
    static PIECES: OnceLock<Vocabulary> = OnceLock::new();
    PIECES.get_or_init(|| written(&metaspace()))
}

fn written(tokenizer: &Value) -> Vocabulary {
    let dir = tempfile::tempdir().expect("there is room");
    let file = dir.path().join("tokenizer.json");
    std::fs::write(file, tokenizer.to_string()).expect("there is room");
    Vocabulary::load(dir.path(), &["<|end|>", "<|stop|>"])
}

fn byte_level(n_tokens: usize) -> Value {
    let mut words = Words::default();
    for byte in 0..=255_u8 {
        words.add(&letter_of(byte).to_string());
    }
    // Entries with raw controls, which no text has that GPT-2's table spells.
    for word in ["\n", "\t", "a\u{1}", "\"\n", "{\u{0}", " \u{7f}", "x y"] {
        words.add(word);
    }
    for text in fragments() {
        words.add(&text.bytes().map(letter_of).collect::<String>());
    }
    let mut random = fastrand::Rng::with_seed(7);
    while words.0.len() < n_tokens {
        let blank = if random.bool() { " " } else { "" };
        let length = random.usize(2..9);
        let letters: String = (0..length).map(|_| random.lowercase()).collect();
        let text = format!("{blank}{letters}");
        words.add(&text.bytes().map(letter_of).collect::<String>());
    }
    tokenizer(
        words,
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true}),
        json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true}),
        Value::Null,
    )
}

fn metaspace() -> Value {
    let mut words = Words::default();
    for word in ["<unk>", "<s>", "</s>"] {
        words.add(word);
    }
    for byte in 0..=255_u8 {
        words.add(&format!("<0x{byte:02X}>"));
    }
    for code in (0x21..0x7f_u8)
        .map(char::from)
        .chain(['é', '日', '本', '\u{2581}'])
    {
        words.add(&code.to_string());
    }
    for text in fragments() {
        words.add(&text.replace(' ', "\u{2581}"));
    }
    tokenizer(
        words,
        Value::Null,
        json!({"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "\u{2581}"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}),
        json!({"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "\u{2581}"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"}]}),
    )
}

/// What tokens of real vocabularies look like in JSON, numbers, code and text.
fn fragments() -> Vec<String> {
    let mut texts: Vec<String> = [
        "{\"",
        "\":",
        "\": ",
        "\": \"",
        "\",",
        "\", \"",
        "\"}",
        "\"]",
        "\"}]",
        "}}",
        "}]",
        "]}",
        "],",
        "},",
        "[[",
        "[{",
        "{}",
        "[]",
        "\n\n",
        "  ",
        "   ",
        "\n  ",
        "\n    ",
        "\\n",
        "\\\"",
        "\\\\",
        "\\u",
        "\\u00",
        "true",
        "false",
        "null",
        " true",
        " null",
        "name",
        "arguments",
        "\"name",
        " \"",
        "e+",
        "E-",
        "0.",
        "-1",
        "</",
        "<t",
        "tool",
        "_call",
        ">\n",
        "://",
        "()",
        "('",
        "')",
        "=\"",
        "<function",
        "parameter",
        "é",
        "ü",
        "日本",
        "語",
        "\u{1f600}",
        " é",
    ]
    .map(str::to_owned)
    .into();
    texts.extend((0..1000).map(|number| number.to_string()));
    texts
}

fn tokenizer(words: Words, splitter: Value, decoder: Value, normalizer: Value) -> Value {
    let first = words.0.len();
    let added = MARKERS.iter().enumerate().map(|(at, content)| {
        json!({"id": first + at, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": content.starts_with("<|")})
    });
    json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": normalizer,
        "added_tokens": added.collect::<Vec<_>>(), "pre_tokenizer": splitter, "post_processor": null,
        "decoder": decoder,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": true, "ignore_merges": true,
            "vocab": words.0, "merges": []},
    })
}

#[derive(Default)]
struct Words(Map<String, Value>);

impl Words {
    fn add(&mut self, word: &str) {
        let id = self.0.len();
        self.0.entry(word).or_insert_with(|| id.into());
    }
}

/// The character that stands for a byte in GPT-2's table.
fn letter_of(byte: u8) -> char {
    let is_printable = |byte: u8| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..);
    if is_printable(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|&byte| !is_printable(byte)).count();
    char::from_u32(0x100 + before as u32).expect("it is a character")
}
