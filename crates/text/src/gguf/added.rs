//! Lists a GGUF vocabulary's added tokens (control tokens, user-defined pieces), which are matched before merges.

use std::collections::HashSet;

use tokenizers::AddedToken;

use super::entries::{BLANK, Entry, Kind, is_blank};

/// The prefix that a SentencePiece vocabulary adds to a text.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Prefix {
    Blank,
    None,
}

/// Added tokens of Phi-3 that do not absorb the white space after them; its other added tokens do.
const PHI3_WITHOUT_RSTRIP: [&str; 3] = ["<unk>", "<s>", "<|endoftext|>"];

/// The added tokens of a byte-level vocabulary, which are matched in the raw text.
pub(super) fn of_bytes(entries: &[Entry<'_>]) -> Vec<AddedToken> {
    let added = entries.iter().filter_map(|entry| added(entry, false));
    added.collect()
}

/// The added tokens of a SentencePiece vocabulary that are matched in the raw text. With [`Prefix::Blank`], the text
/// after such a token gets a leading space, as a prompt does. The pieces of [`frozen`] are matched after spaces are
/// added, so the text after them gets no space.
pub(super) fn of_sentence_piece(
    entries: &[Entry<'_>],
    prefix: Prefix,
    rstrip: bool,
) -> Vec<AddedToken> {
    // Without a prefix, newlines are matched in the normalized text too, together with pieces of newlines and spaces.
    let is_matched_later =
        |entry: &Entry<'_>| is_frozen(entry) && (prefix == Prefix::None || entry.holds_blank());
    let entries = entries.iter().filter(|entry| !is_matched_later(entry));
    let has_rstrip = |entry: &Entry<'_>| rstrip && !PHI3_WITHOUT_RSTRIP.contains(&&*entry.text);
    let added = entries.filter_map(|entry| added(entry, has_rstrip(entry)));
    added.collect()
}

fn added(entry: &Entry<'_>, rstrip: bool) -> Option<AddedToken> {
    let is_special = match entry.kind {
        Kind::Control | Kind::Unknown => true,
        Kind::User => false,
        Kind::Normal | Kind::Unused | Kind::Byte => return None,
    };
    let token = AddedToken::from(entry.text.to_string(), is_special);
    (!entry.is_filler).then(|| token.normalized(false).rstrip(rstrip))
}

/// The user-defined pieces that are matched in the normalized text, in its spelling, with their ids: pieces with a
/// space, and other runs of white space (for `encode_fragment`, which matches no added tokens).
pub(super) fn frozen(entries: &[Entry<'_>]) -> Vec<(String, u32)> {
    let entries = entries.iter().zip(0_u32..);
    let frozen = entries.filter(|(entry, _)| is_frozen(entry));
    let normalized = frozen.map(|(entry, id)| (entry.text.replace(' ', BLANK), id));
    normalized.collect()
}

fn is_frozen(entry: &Entry<'_>) -> bool {
    let has_white_space = entry.holds_blank() || is_blank(&entry.text);
    entry.kind == Kind::User && !entry.is_filler && has_white_space
}

/// Restores U+2581 in user-defined pieces, where converters write spaces, so that pieces decode like other tokens. A
/// piece keeps its spaces if the vocabulary already has the restored text.
pub(super) fn restore_blanks(entries: &mut [Entry<'_>]) {
    let has_spaces = |entry: &Entry<'_>| entry.kind == Kind::User && entry.text.contains(' ');
    let spaced = entries.iter().filter(|entry| has_spaces(entry));
    let restored: HashSet<String> = spaced.map(|entry| entry.text.replace(' ', BLANK)).collect();
    if restored.is_empty() {
        return;
    }
    let texts = entries.iter().map(|entry| &*entry.text);
    let existing: HashSet<String> = texts
        .filter(|text| restored.contains(*text))
        .map(str::to_owned)
        .collect();
    for entry in entries {
        if has_spaces(entry) {
            let restored = entry.text.replace(' ', BLANK);
            if !existing.contains(&restored) {
                entry.text = restored.into();
            }
        }
    }
}
