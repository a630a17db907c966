//! The texts of `souffleur bench --taught`: prompts, and the outputs that are taken for the model's.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;

use crate::cli::failure::Failure;

const MAX_FILE_BYTES: u64 = 1 << 28;
/// An output has at least this many tokens: the first one comes from the prefill.
const MIN_OUTPUT: usize = 2;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaughtText {
    pub kind: String,
    pub prompt: Arc<[u32]>,
    pub output: Arc<[u32]>,
}

#[derive(Deserialize)]
struct Line {
    kind: String,
    prompt: Words,
    output: Words,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Words {
    Ids(Vec<u32>),
    Text(String),
}

/// Encodes a text; fails without a tokenizer.
pub type Encode<'a> = &'a dyn Fn(&str) -> Result<Vec<u32>, Failure>;

/// Reads a file of JSON lines.
///
/// # Errors
/// The file cannot be read or is too large; a line is malformed, cannot be encoded, or has an empty prompt or a short
/// output; a prompt has two outputs.
pub fn read(file: &Path, vocab_size: u32, encode: Encode<'_>) -> Result<Vec<TaughtText>, Failure> {
    let text = read_bounded(file)?;
    let mut texts = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        let read = read_line(line, encode).map_err(|reason| {
            let place = format!("line {} of {}", index + 1, file.display());
            Failure::Usage(format!("{place}: {reason}"))
        });
        texts.push(read?);
    }
    if texts.is_empty() {
        let reason = format!("--taught is {}, which has no texts", file.display());
        return Err(Failure::Usage(reason));
    }
    let texts = fit(texts, vocab_size);
    if let Some(prompt) = ambiguous_prompt(&texts) {
        return Err(Failure::Usage(format!(
            "--taught is {}, which has a prompt of {} tokens with two outputs: remove one",
            file.display(),
            prompt.len()
        )));
    }
    Ok(texts)
}

fn read_bounded(file: &Path) -> Result<String, Failure> {
    let failed = |error: std::io::Error| {
        Failure::failed(format_args!("failed to read {}: {error}", file.display()))
    };
    let mut bytes = Vec::new();
    // A device or pipe has no length.
    let mut start = File::open(file).map_err(failed)?.take(MAX_FILE_BYTES + 1);
    start.read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(Failure::Usage(format!(
            "--taught is {}, which has more than {MAX_FILE_BYTES} bytes, the limit: use fewer texts",
            file.display()
        )));
    }
    String::from_utf8(bytes).map_err(|error| failed(std::io::Error::other(error)))
}

/// A prompt with different outputs: a stream could not be told which one is its own.
fn ambiguous_prompt(texts: &[TaughtText]) -> Option<&[u32]> {
    let mut outputs: HashMap<&[u32], &[u32]> = HashMap::new();
    let ambiguous = texts.iter().find(|text| {
        let known = outputs.insert(&text.prompt, &text.output);
        known.is_some_and(|known| *known != *text.output)
    });
    ambiguous.map(|text| &*text.prompt)
}

fn read_line(line: &str, encode: Encode<'_>) -> Result<TaughtText, String> {
    let line: Line = serde_json::from_str(line).map_err(|error| {
        format!("{error}; a line has the keys kind, prompt and output, as texts or lists of ids")
    })?;
    let ids = |words: Words| match words {
        Words::Ids(ids) => Ok(ids),
        Words::Text(text) => encode(&text).map_err(|failure| failure.to_string()),
    };
    let (prompt, output) = (ids(line.prompt)?, ids(line.output)?);
    if prompt.is_empty() || output.len() < MIN_OUTPUT {
        return Err(format!(
            "the prompt has {} tokens and the output {}, must be at least 1 and {MIN_OUTPUT}",
            prompt.len(),
            output.len()
        ));
    }
    Ok(TaughtText {
        kind: line.kind,
        prompt: prompt.into(),
        output: output.into(),
    })
}

/// Replaces ids beyond the vocabulary, so that equal ids stay equal, and different ones different if the vocabulary is
/// large enough.
fn fit(texts: Vec<TaughtText>, vocab_size: u32) -> Vec<TaughtText> {
    let ids = |text: &TaughtText| [text.prompt.clone(), text.output.clone()];
    let used: BTreeSet<u32> = texts
        .iter()
        .flat_map(ids)
        .flat_map(|ids| ids.to_vec())
        .collect();
    if used.last().is_none_or(|last| *last < vocab_size) {
        return texts;
    }
    let places: HashMap<u32, u32> = used
        .into_iter()
        .zip((0..vocab_size.max(1)).cycle())
        .collect();
    let fitted = |ids: &[u32]| ids.iter().map(|id| places[id]).collect::<Arc<[u32]>>();
    let texts = texts.into_iter().map(|text| TaughtText {
        prompt: fitted(&text.prompt),
        output: fitted(&text.output),
        kind: text.kind,
    });
    texts.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(text: &str, vocab_size: u32) -> Result<Vec<TaughtText>, String> {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("texts.jsonl");
        std::fs::write(&file, text).expect("the file can be written");
        let encode =
            |text: &str| -> Result<Vec<u32>, Failure> { Ok(text.bytes().map(u32::from).collect()) };
        read(&file, vocab_size, &encode).map_err(|failure| failure.to_string())
    }

    #[test]
    fn texts_are_encoded_and_ids_are_taken_as_they_are() {
        let text = "{\"kind\": \"a\", \"prompt\": \"AB\", \"output\": [3, 4, 5]}\n\n";
        let texts = read_text(text, 100).expect("it is valid");
        let expected = TaughtText {
            kind: "a".to_owned(),
            prompt: [65, 66].into(),
            output: [3, 4, 5].into(),
        };
        assert_eq!(texts, [expected]);
    }

    #[test]
    fn ids_beyond_the_vocabulary_stay_equal_and_different() {
        let text = "{\"kind\": \"a\", \"prompt\": [900, 7, 900], \"output\": [7, 8000, 900]}";
        let texts = read_text(text, 3).expect("it is valid");
        assert_eq!(texts[0].prompt[..], [1, 0, 1]);
        assert_eq!(texts[0].output[..], [0, 2, 1]);
        let small = read_text(text, 2).expect("it is valid");
        assert_eq!(small[0].output[..], [0, 0, 1]);
    }

    #[test]
    fn errors_name_the_line() {
        let error = |text: &str| read_text(text, 100).expect_err("it is wrong");
        let short = "{\"kind\": \"a\", \"prompt\": [], \"output\": [1]}";
        let reason = error(short);
        assert!(reason.starts_with("line 1 of "), "{reason}");
        assert!(reason.contains("0 tokens and the output 1"), "{reason}");
        assert!(error("\n{\"kind\": 3}").starts_with("line 2 of "));
        assert!(error("\n").contains("has no texts"));
        let line = |output: u32| {
            format!("{{\"kind\": \"a\", \"prompt\": [1, 2, 3], \"output\": [4, {output}]}}\n")
        };
        let twice = [line(5), line(5)].concat();
        assert_eq!(read_text(&twice, 100).map(|texts| texts.len()), Ok(2));
        let reason = error(&[twice, line(6)].concat());
        let expected = "which has a prompt of 3 tokens with two outputs: remove one";
        assert!(reason.contains(expected), "{reason}");
    }
}
