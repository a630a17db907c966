//! Lists the merges of a GGUF vocabulary, best first: from the file, or derived from SentencePiece's scores.

use std::borrow::Cow;
use std::collections::HashSet;

use tokenizers::models::bpe::{Merges, Vocab};

use super::entries::{Entry, Kind, Source, longest, quoted};
use souffleur_base::error::LoadError;

/// Limit on the bytes copied to split every token at every character: characters times bytes, summed over the tokens.
const MAX_CUT_BYTES: usize = 1 << 27;

/// Splits each merge of the file into its two tokens. Fails if a merge does not contain two tokens, or if its result is
/// longer than every token. The BPE builder checks that parts and results are tokens; its error is [`unknown_part`].
pub(super) fn listed(
    source: Source<'_>,
    lines: &[Cow<'_, str>],
    entries: &[Entry<'_>],
) -> Result<Merges, LoadError> {
    if lines.is_empty() {
        return Err(source.refuse(
            "tokenizer.ggml.merges is missing or empty: convert the model again, or put its tokenizer.json into the \
             file's folder"
                .to_owned(),
        ));
    }
    let longest = longest(entries);
    let mut merges = Merges::with_capacity(lines.len());
    for (place, line) in lines.iter().enumerate() {
        let Some((left, right)) = split_pair(line) else {
            return Err(refuse(
                source,
                (place, line),
                "expected two tokens with a space between them",
            ));
        };
        if left.len() + right.len() > longest {
            return Err(unknown_part(source, lines, entries));
        }
        merges.push((left.to_owned(), right.to_owned()));
    }
    Ok(merges)
}

/// Splits a merge into its two tokens. The left token may itself be a space.
fn split_pair(line: &str) -> Option<(&str, &str)> {
    let mut bytes = line.as_bytes().iter().skip(1);
    let space = 1 + bytes.position(|&byte| byte == b' ')?;
    Some((&line[..space], &line[space + 1..]))
}

/// The error for the first merge with a part or a result that is not a token.
pub(super) fn unknown_part(
    source: Source<'_>,
    lines: &[Cow<'_, str>],
    entries: &[Entry<'_>],
) -> LoadError {
    let tokens = entries.iter().filter(|entry| !entry.is_filler);
    let tokens: HashSet<&str> = tokens.map(|entry| entry.text.as_ref()).collect();
    for (place, line) in lines.iter().enumerate() {
        let Some((left, right)) = split_pair(line) else {
            continue;
        };
        let merged = [left, right].concat();
        let parts = [left, right, merged.as_str()];
        if let Some(part) = parts.into_iter().find(|part| !tokens.contains(part)) {
            let reason = format!("but {} is not a token", quoted(part));
            return refuse(source, (place, line), &reason);
        }
    }
    source
        .refuse("tokenizer.ggml.merges do not match the tokens: convert the model again".to_owned())
}

fn refuse(source: Source<'_>, (place, line): (usize, &str), reason: &str) -> LoadError {
    source.refuse(format!(
        "tokenizer.ggml.merges[{place}] is {}, {reason}: convert the model again",
        quoted(line)
    ))
}

/// Derives merges that give the same tokens as the scores: every split of a token into two tokens, by decreasing score
/// of the whole token. The models' `tokenizer.json` files contain the same list. Fails without scores, or if the
/// tokens are too long to split in reasonable time.
pub(super) fn from_scores(
    source: Source<'_>,
    entries: &[Entry<'_>],
    scores: &[f32],
    vocabulary: &Vocab,
) -> Result<Merges, LoadError> {
    if scores.is_empty() {
        return Err(source.refuse(
            "tokenizer.ggml.scores is missing or empty: convert the model again, or put its tokenizer.json into the \
             file's folder"
                .to_owned(),
        ));
    }
    check_work(source, entries)?;
    let mut cuts = Vec::new();
    for (merged, (entry, &score)) in entries.iter().zip(scores).enumerate() {
        if is_mergeable(entry) {
            let first = cuts.len();
            cuts_of(entry, score, merged, entries, vocabulary, &mut cuts);
            cuts[first..].sort_by_key(|cut: &Cut| (cut.left, cut.right));
        }
    }
    cuts.sort_by(|a, b| {
        let by_score = b.score.total_cmp(&a.score);
        by_score.then_with(|| (b.left_chars, b.right_chars).cmp(&(a.left_chars, a.right_chars)))
    });
    let pair = |cut: Cut| {
        let text = &entries[cut.merged].text;
        let (left, right) = text.split_at(cut.at);
        (left.to_owned(), right.to_owned())
    };
    Ok(cuts.into_iter().map(pair).collect())
}

/// A split of a token into two tokens. `merged`, `left` and `right` are ids.
struct Cut {
    score: f32,
    merged: usize,
    left: u32,
    right: u32,
    /// Bytes of the left token.
    at: usize,
    left_chars: u32,
    right_chars: u32,
}

fn cuts_of(
    entry: &Entry<'_>,
    score: f32,
    merged: usize,
    entries: &[Entry<'_>],
    vocabulary: &Vocab,
    cuts: &mut Vec<Cut>,
) {
    let text = entry.text.as_ref();
    let id_of = |part: &str| {
        let id = *vocabulary.get(part)?;
        is_mergeable(&entries[id as usize]).then_some(id)
    };
    let n_chars = text.chars().count() as u32;
    let ends = text.char_indices().map(|(at, _)| at);
    for (at, left_chars) in ends.zip(0..n_chars).skip(1) {
        let (left, right) = text.split_at(at);
        if let (Some(left), Some(right)) = (id_of(left), id_of(right)) {
            cuts.push(Cut {
                score,
                merged,
                left,
                right,
                at,
                left_chars,
                right_chars: n_chars - left_chars,
            });
        }
    }
}

/// Control tokens and user-defined pieces are matched before merges and are never merged into larger tokens.
fn is_mergeable(entry: &Entry<'_>) -> bool {
    entry.kind == Kind::Normal && !entry.is_filler
}

fn check_work(source: Source<'_>, entries: &[Entry<'_>]) -> Result<(), LoadError> {
    let mut work = 0_usize;
    for entry in entries.iter().filter(|entry| is_mergeable(entry)) {
        work = work.saturating_add(entry.text.len().saturating_mul(entry.text.chars().count()));
    }
    if work > MAX_CUT_BYTES {
        return Err(source.refuse(format!(
            "tokenizer.ggml.tokens has too many or too long tokens: deriving the merges would copy {work} bytes, the \
             limit is {MAX_CUT_BYTES}; put the model's tokenizer.json into the file's folder"
        )));
    }
    Ok(())
}
