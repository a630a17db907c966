//! The `tokenizer.json` of made-up vocabularies.

use serde_json::{Map, Value, json};

/// Added tokens: ends of outputs, tags of tool calls and reasoning, and four spaces.
pub const MARKERS: [&str; 21] = [
    "<|end|>",
    "<|stop|>",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "<|python_tag|>",
    "<|tool_call_start|>",
    "<|tool_call_end|>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁sep｜>",
    "    ",
];

/// A byte-level vocabulary of `n_tokens` tokens, some of them malformed, and the [`MARKERS`].
pub fn byte_level(n_tokens: usize) -> Value {
    let mut words = Words::default();
    for byte in 0..=255_u8 {
        words.add(&letter_of(byte).to_string());
    }
    // Malformed entries: raw characters that GPT-2's byte table never yields.
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

/// A SentencePiece vocabulary that prepends a space to every text.
pub fn metaspace() -> Value {
    let mut words = Words::default();
    for word in ["<unk>", "<s>", "</s>"] {
        words.add(word);
    }
    for byte in 0..=255_u8 {
        words.add(&format!("<0x{byte:02X}>"));
    }
    for character in (0x21..0x7f_u8)
        .map(char::from)
        .chain(['é', '日', '本', '\u{2581}'])
    {
        words.add(&character.to_string());
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

/// Texts like the tokens of real vocabularies in JSON, numbers, code and text.
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

/// The character that represents a byte in GPT-2's table.
fn letter_of(byte: u8) -> char {
    let is_printable = |byte: u8| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..);
    if is_printable(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|&byte| !is_printable(byte)).count();
    char::from_u32(0x100 + before as u32).expect("the code is a character")
}
