//! Merges, best first: read from the file, or made from the scores of SentencePiece.

use tokenizers::models::bpe::{Merges, Vocab};

use super::entries::{Entry, Kind, Source, is_blank, shown};
use crate::error::LoadError;

/// Work that all cuts of all tokens may cost: characters times bytes, summed over the tokens.
const MAX_CUT_BYTES: usize = 1 << 30;

/// Splits the file's merges into their two tokens.
///
/// # Errors
/// [`LoadError::Format`] when a merge does not hold two tokens, or makes none.
pub(super) fn listed(
    source: Source<'_>,
    lines: &[String],
    vocabulary: &Vocab,
) -> Result<Merges, LoadError> {
    if lines.is_empty() {
        return Err(source.refuse(
            "tokenizer.ggml.merges is missing or empty: take a file that holds its tokenizer"
                .to_owned(),
        ));
    }
    let mut made = String::new();
    let mut merges = Merges::with_capacity(lines.len());
    for (place, line) in lines.iter().enumerate() {
        let refuse = |reason: &str| {
            source.refuse(format!(
                "tokenizer.ggml.merges[{place}] is {}, {reason}: convert the model again",
                shown(line)
            ))
        };
        // The left token may itself be a space.
        let bytes = line.as_bytes().iter().skip(1);
        let space = bytes.into_iter().position(|&byte| byte == b' ');
        let Some((left, right)) = space.map(|space| (&line[..space + 1], &line[space + 2..]))
        else {
            return Err(refuse("expected two tokens with a space between them"));
        };
        made.clear();
        made.push_str(left);
        made.push_str(right);
        for part in [left, right, &made] {
            if !vocabulary.contains_key(part) {
                return Err(refuse(&format!("but {} is no token", shown(part))));
            }
        }
        merges.push((left.to_owned(), right.to_owned()));
    }
    Ok(merges)
}

/// Makes merges such that they choose as the scores do: every way to make a token of two others, by falling score of what
/// is made. `tokenizer.json` files of such vocabularies hold the same list.
///
/// # Errors
/// [`LoadError::Format`] when there are no scores, or the tokens are so long that this would never end.
pub(super) fn from_scores(
    source: Source<'_>,
    entries: &[Entry],
    scores: &[f32],
    vocabulary: &Vocab,
) -> Result<Merges, LoadError> {
    if scores.is_empty() {
        return Err(source.refuse(
            "tokenizer.ggml.scores is missing or empty: take a file that holds its tokenizer"
                .to_owned(),
        ));
    }
    check_work(source, entries)?;
    let mut cuts = Vec::new();
    for (made, (entry, &score)) in entries.iter().zip(scores).enumerate() {
        if takes_part(entry) {
            let first = cuts.len();
            cuts_of(entry, score, made, entries, vocabulary, &mut cuts);
            cuts[first..].sort_by_key(|cut: &Cut| (cut.left, cut.right));
        }
    }
    cuts.sort_by(|a, b| {
        let by_score = b.score.total_cmp(&a.score);
        by_score.then_with(|| (b.left_chars, b.right_chars).cmp(&(a.left_chars, a.right_chars)))
    });
    let pair = |cut: Cut| {
        let text = &entries[cut.made].text;
        let (left, right) = text.split_at(cut.at);
        (left.to_owned(), right.to_owned())
    };
    Ok(cuts.into_iter().map(pair).collect())
}

/// A way to make a token.
struct Cut {
    score: f32,
    made: usize,
    left: u32,
    right: u32,
    /// Bytes of the left token.
    at: usize,
    left_chars: u32,
    right_chars: u32,
}

fn cuts_of(
    entry: &Entry,
    score: f32,
    made: usize,
    entries: &[Entry],
    vocabulary: &Vocab,
    cuts: &mut Vec<Cut>,
) {
    let text = entry.text.as_str();
    let id_of = |part: &str| {
        let id = *vocabulary.get(part)?;
        takes_part(&entries[id as usize]).then_some(id)
    };
    let n_chars = text.chars().count() as u32;
    let ends = text.char_indices().map(|(at, _)| at);
    for (at, left_chars) in ends.zip(0..n_chars).skip(1) {
        let (left, right) = text.split_at(at);
        if let (Some(left), Some(right)) = (id_of(left), id_of(right)) {
            cuts.push(Cut {
                score,
                made,
                left,
                right,
                at,
                left_chars,
                right_chars: n_chars - left_chars,
            });
        }
    }
}

/// Markers are found before any merge; runs of blanks that the vocabulary's author added are merged like others.
fn takes_part(entry: &Entry) -> bool {
    match entry.kind {
        Kind::Normal => !entry.is_filler,
        Kind::User => !entry.is_filler && is_blank(&entry.text),
        _ => false,
    }
}

fn check_work(source: Source<'_>, entries: &[Entry]) -> Result<(), LoadError> {
    let mut work = 0_usize;
    for entry in entries.iter().filter(|entry| takes_part(entry)) {
        work = work.saturating_add(entry.text.len().saturating_mul(entry.text.chars().count()));
    }
    if work > MAX_CUT_BYTES {
        return Err(source.refuse(format!(
            "tokenizer.ggml.tokens: cutting every token in two would copy {work} bytes, the limit is {MAX_CUT_BYTES}: \
             convert the model again"
        )));
    }
    Ok(())
}
