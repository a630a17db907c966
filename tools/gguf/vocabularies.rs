//! Compares the token ids of tokenizers built from GGUF files with the ids that llama.cpp expects:
//!
//!     cargo run --locked --example gguf_vocabularies -- PATH_TO_LLAMA_CPP/models [NAME...]
//!
//! The folder holds `ggml-vocab-NAME.gguf`, and for some also `.gguf.inp` (texts) and `.gguf.out` (their ids). Prints
//! each text with other ids than expected. Fails if the reason is not a composition (NFC) that the file does not
//! mention, or if a file outside of [`REFUSED`] is refused.
#![allow(clippy::print_stdout)]

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use souffleur::model::gguf::{self, Gguf};
use souffleur::model::text::TextModel;
use tokenizers::NormalizedString;
use tokenizers::normalizers::NFC;
use tokenizers::tokenizer::Normalizer;

const SEPARATOR: &str = "\n__ggml_vocab_test__\n";

/// Files that are refused, and why.
const REFUSED: [(&str, &str); 4] = [
    ("aquila", "tokenizer.ggml.pre is missing"),
    ("bert-bge", "tokenizer.ggml.model is \"bert\""),
    ("gpt-neox", "tokenizer.ggml.pre is missing"),
    ("nomic-bert-moe", "tokenizer.ggml.model is \"t5\""),
];

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments
        .next()
        .ok_or("the first argument must be the folder of the vocabulary files")?;
    let names: Vec<String> = arguments.collect();
    let (mut wrong, mut found) = (0, Vec::new());
    let mut files: Vec<PathBuf> = fs::read_dir(&folder)?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<_, std::io::Error>>()?;
    files.sort();
    for file in files {
        let name = file.file_name().map(|name| name.to_string_lossy());
        let name = name.as_deref().and_then(|name| {
            let name = name.strip_prefix("ggml-vocab-")?.strip_suffix(".gguf")?;
            Some(name.to_owned())
        });
        let Some(name) = name.filter(|name| names.is_empty() || names.contains(name)) else {
            continue;
        };
        match compare(&file) {
            Ok(report) => {
                wrong += report.wrong;
                println!(
                    "{name}: {} texts, {} wrong, {} composed first; built in {} ms; ends {:?}",
                    report.texts, report.wrong, report.composed, report.took_ms, report.ends
                );
            }
            Err(error) => {
                let known = is_known_refusal(&name, &error.to_string());
                wrong += usize::from(!known);
                let how = if known {
                    "refused, as known"
                } else {
                    "refused"
                };
                println!("{name}: {how}: {error}");
            }
        }
        found.push(name);
    }
    if found.is_empty() {
        return Err(format!("{folder} has no ggml-vocab-NAME.gguf").into());
    }
    if let Some(name) = names.iter().find(|name| !found.contains(name)) {
        return Err(format!("{folder} has no ggml-vocab-{name}.gguf").into());
    }
    Ok(ExitCode::from(u8::from(wrong > 0)))
}

fn is_known_refusal(name: &str, error: &str) -> bool {
    let mut known = REFUSED.iter();
    known.any(|(file, reason)| *file == name && error.contains(reason))
}

#[derive(Default)]
struct Report {
    texts: usize,
    wrong: usize,
    /// Texts whose ids differ because they are composed first.
    composed: usize,
    took_ms: u128,
    ends: Vec<Option<String>>,
}

fn compare(file: &Path) -> Result<Report, Box<dyn Error>> {
    let gguf = Gguf::open(file)?;
    let fields = gguf::vocabulary(&gguf)?.ok_or("has no vocabulary")?;
    let (ends, composes) = (fields.end_token_ids(), composes(fields.pre.as_deref()));
    let began = Instant::now();
    let model = TextModel::from_vocabulary(file, fields)?;
    let mut report = Report {
        took_ms: began.elapsed().as_millis(),
        ends: ends.iter().map(|&id| model.token(id)).collect(),
        ..Report::default()
    };
    let sidecar = |suffix: &str| PathBuf::from(format!("{}{suffix}", file.display()));
    let (Ok(texts), Ok(ids)) = (
        fs::read_to_string(sidecar(".inp")),
        fs::read_to_string(sidecar(".out")),
    ) else {
        return Ok(report);
    };
    for (text, ids) in texts.split(SEPARATOR).zip(ids.lines()) {
        let expected: Vec<u32> = ids
            .split_whitespace()
            .map(str::parse)
            .collect::<Result<_, _>>()?;
        let found = model.encode_chat(text)?;
        report.texts += 1;
        if found == expected {
            continue;
        }
        if composes && !is_composed(text) {
            report.composed += 1
        } else {
            report.wrong += 1
        }
        println!("{text:?}\n  expected {expected:?}\n  found    {found:?}");
    }
    Ok(report)
}

/// Whether models with these splits compose their texts.
fn composes(pre: Option<&str>) -> bool {
    pre.is_some_and(|pre| {
        [
            "qwen2",
            "qwen35",
            "mpt",
            "olmo",
            "command-r",
            "deepseek-r1-qwen",
            "kormo",
        ]
        .contains(&pre)
    })
}

fn is_composed(text: &str) -> bool {
    let mut composed = NormalizedString::from(text);
    NFC.normalize(&mut composed).is_ok() && composed.get() == text
}
