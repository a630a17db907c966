//! Fuzz tests of truncated and damaged GGUF files: rejected or used, without panics.

use super::models::tiny_llama;
use super::*;
use crate::text::TextModel;
use souffleur_kernels::blocks::BlockType;
use souffleur_state::detok::TokenText;

const HIDDEN: usize = 32;
const INNER: usize = 256;
const HEADS: usize = 2;
const COPIES: usize = 1_000;

struct Vocabulary {
    model: &'static str,
    tokens: &'static [(&'static str, i32)],
    merges: &'static [&'static str],
}

const BYTE_LEVEL: Vocabulary = Vocabulary {
    model: "gpt2",
    tokens: &[
        ("a", 1),
        ("b", 1),
        ("ab", 1),
        ("\u{120}", 1),
        ("\u{120}a", 1),
        ("<|im_end|>", 3),
        ("<tool_call>", 4),
        ("[PAD7]", 5),
    ],
    merges: &["a b", "\u{120} a"],
};
const BY_SCORES: Vocabulary = Vocabulary {
    model: "llama",
    tokens: &[
        ("<unk>", 2),
        ("<s>", 3),
        ("</s>", 3),
        ("<0x0A>", 6),
        ("\u{2581}", 1),
        ("a", 1),
        ("\u{2581}a", 1),
        ("  ", 4),
    ],
    merges: &[],
};

/// Two layers with a matrix of each type (by GGUF id: 1 is F16, 30 is BF16, the others are blocks), and a tokenizer.
fn in_blocks(words: &Vocabulary) -> File {
    let n_tokens = words.tokens.len();
    let mut random = fastrand::Rng::with_seed(5);
    let mut matrix = |name: &str, type_id: u32, shape: [usize; 2]| {
        let bytes = match type_id {
            1 | 30 => shape[0] * shape[1] * 2,
            id => {
                let block = BlockType::from_gguf_id(id).expect("a type of blocks");
                shape[0] * block.row_bytes(shape[1])
            }
        };
        let data = (0..bytes).map(|_| random.u8(..)).collect();
        Tensor::new(&format!("{name}.weight"), type_id, &shape, data)
    };
    let mut file = with_tokenizer(described(), words)
        .tensor(matrix("token_embd", 8, [n_tokens, HIDDEN]))
        .tensor(matrix("output", 6, [n_tokens, HIDDEN]))
        .tensor(Tensor::f32("output_norm.weight", &[HIDDEN], &[1.0; HIDDEN]));
    for (layer, types) in [[2, 3, 6, 20, 39, 7, 12], [30, 1, 8, 2, 20, 3, 14]]
        .iter()
        .enumerate()
    {
        for norm in ["attn_norm", "ffn_norm"] {
            let name = format!("blk.{layer}.{norm}.weight");
            file = file.tensor(Tensor::f32(&name, &[HIDDEN], &[1.0; HIDDEN]));
        }
        let shapes = [
            ("attn_q", [HIDDEN, HIDDEN]),
            ("attn_k", [HIDDEN / HEADS, HIDDEN]),
            ("attn_v", [HIDDEN / HEADS, HIDDEN]),
            ("attn_output", [HIDDEN, HIDDEN]),
            ("ffn_gate", [INNER, HIDDEN]),
            ("ffn_up", [INNER, HIDDEN]),
            ("ffn_down", [HIDDEN, INNER]),
        ];
        for ((name, shape), type_id) in shapes.into_iter().zip(types) {
            file = file.tensor(matrix(&format!("blk.{layer}.{name}"), *type_id, shape));
        }
    }
    file
}

fn described() -> File {
    File::default()
        .text("general.architecture", "llama")
        .size("llama.block_count", 2)
        .size("llama.context_length", 64)
        .size("llama.embedding_length", HIDDEN)
        .size("llama.feed_forward_length", INNER)
        .size("llama.attention.head_count", HEADS)
        .size("llama.attention.head_count_kv", 1)
        .number("llama.attention.layer_norm_rms_epsilon", 1e-5)
}

fn with_tokenizer(file: File, words: &Vocabulary) -> File {
    let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
    let tokens: Vec<&str> = words.tokens.iter().map(|token| token.0).collect();
    let types = words.tokens.iter().map(|token| token.1).collect();
    let scores = (0..tokens.len()).map(|id| -(id as f32)).collect();
    file.text("tokenizer.ggml.model", words.model)
        .text("tokenizer.ggml.pre", "qwen2")
        .pair("tokenizer.ggml.tokens", Value::Texts(owned(&tokens)))
        .pair("tokenizer.ggml.token_type", Value::I32s(types))
        .pair("tokenizer.ggml.scores", Value::F32s(scores))
        .pair("tokenizer.ggml.merges", Value::Texts(owned(words.merges)))
        .size("tokenizer.ggml.bos_token_id", 1)
        .size("tokenizer.ggml.eos_token_id", 2)
        .size("tokenizer.ggml.unknown_token_id", 0)
        .pair("tokenizer.ggml.add_bos_token", Value::Flag(true))
        .text("tokenizer.chat_template", "{{ messages[0].content }}")
}

fn use_all(bytes: &[u8]) -> Result<(), LoadError> {
    let dir = folder(&[(NAME, bytes)]);
    let file = dir.path().join(NAME);
    let gguf = Gguf::open(&file)?;
    let metadata = gguf.metadata();
    for key in metadata.keys() {
        let _ = (metadata.text(key), metadata.flag(key), metadata.texts(key));
        let _ = (metadata.numbers(key), metadata.size(key, 0..=100));
        let _ = metadata.integers(key, i64::MIN..=i64::MAX);
        let _ = metadata.number(key, f64::MIN..=f64::MAX);
    }
    let _ = generation_config(&gguf);
    if let Some(fields) = vocabulary(&gguf)? {
        let model = TextModel::from_vocabulary(&file, fields)?;
        if let Ok(ids) = model.encode("ab a<|im_end|>\n  </s>") {
            model.decode(&ids, false, true);
        }
    }
    let config = super::super::config(&gguf)?;
    config.rope.frequencies(config.head_dim);
    let weights = super::super::weights(gguf, &config)?;
    for spec in config.tensors() {
        let view = weights.tensor(&spec.name, &spec.shape)?;
        assert_eq!(view.to_f32().len() as u64, spec.elements());
    }
    Ok(())
}

/// The test files, each with the offset of its data.
fn files() -> [(Vec<u8>, usize); 3] {
    [tiny_llama(), in_blocks(&BYTE_LEVEL), in_blocks(&BY_SCORES)].map(|file| {
        let data = file
            .tensors
            .iter()
            .map(|tensor| tensor.data.len().next_multiple_of(32));
        let bytes = file.bytes();
        let header = bytes.len().saturating_sub(data.sum::<usize>());
        (bytes, header)
    })
}

#[test]
fn a_truncated_file_is_refused_at_every_length() {
    for (whole, header) in files() {
        use_all(&whole).expect("valid");
        let of_data = (header..whole.len()).step_by(whole.len() / 500 + 1);
        for length in (0..header).chain(of_data).chain([whole.len() - 1]) {
            let error = use_all(&whole[..length]).expect_err("truncated");
            assert!(
                matches!(error, LoadError::Format { .. }),
                "{length}: {error}"
            );
        }
    }
}

#[test]
fn a_damaged_file_is_refused_or_used_and_never_panics() {
    let mut random = fastrand::Rng::with_seed(19);
    for (whole, header) in files() {
        let mut refusals = 0;
        for copy in 0..COPIES {
            let mut bytes = whole.clone();
            // Three of four copies are damaged in the header only.
            let end = if copy % 4 == 0 { bytes.len() } else { header };
            for _ in 0..random.usize(1..4) {
                let at = random.usize(..end);
                bytes[at] ^= 1 << random.u32(..8);
            }
            refusals += usize::from(use_all(&bytes).is_err());
        }
        assert!((COPIES / 5..COPIES).contains(&refusals), "{refusals}");
        let dir = folder(&[]);
        let file = dir.path().join(NAME);
        for at in 0..header {
            for damage in [0x00, 0x7f, 0x80, 0xff] {
                let mut bytes = whole.clone();
                bytes[at] = damage;
                fs::write(&file, &bytes).expect("writable");
                let _ = Gguf::open(&file);
            }
        }
    }
}
