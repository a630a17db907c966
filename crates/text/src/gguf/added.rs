//! Tokens that are found in a text before any merge: control tokens, and the pieces that the vocabulary's author defined.

use std::collections::HashSet;

use tokenizers::AddedToken;

use super::entries::{BLANK, Entry, Kind, is_blank};

/// The text that a SentencePiece vocabulary puts before another.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Prefix {
    Blank,
    None,
}

/// Tokens of Phi-3 that do not absorb the whitespace after them; all others do.
const PHI3_WITHOUT_BLANKS: [&str; 3] = ["<unk>", "<s>", "<|endoftext|>"];

/// The added tokens of a byte-level vocabulary. They are found in the text as it comes.
pub(super) fn of_bytes(entries: &[Entry<'_>]) -> Vec<AddedToken> {
    let added = entries.iter().filter_map(|entry| added(entry, false));
    added.collect()
}

/// The added tokens of a SentencePiece vocabulary that are found in the raw text. The text after one gets a leading
/// blank like the text of a prompt, if the vocabulary says so; the pieces of [`frozen`] are found after that blank and
/// get none.
pub(super) fn of_sentence_piece(
    entries: &[Entry<'_>],
    prefix: Prefix,
    takes_blanks: bool,
) -> Vec<AddedToken> {
    // Without a prefix it is the same where runs of line ends are found, but for pieces of line ends and blanks.
    let is_found_later =
        |entry: &Entry<'_>| is_frozen(entry) && (prefix == Prefix::None || entry.holds_blank());
    let entries = entries.iter().filter(|entry| !is_found_later(entry));
    let takes = |entry: &Entry<'_>| takes_blanks && !PHI3_WITHOUT_BLANKS.contains(&&*entry.text);
    let added = entries.filter_map(|entry| added(entry, takes(entry)));
    added.collect()
}

fn added(entry: &Entry<'_>, takes_blanks: bool) -> Option<AddedToken> {
    let is_special = match entry.kind {
        Kind::Control | Kind::Unknown => true,
        Kind::User => false,
        Kind::Normal | Kind::Unused | Kind::Byte => return None,
    };
    let token = AddedToken::from(entry.text.to_string(), is_special);
    (!entry.is_filler).then(|| token.normalized(false).rstrip(takes_blanks))
}

/// The pieces that are found in the normalized text, as it spells them, and their ids: user-defined ones that hold a blank,
/// and, for parts of a text that no added token is looked for in, other runs of white space.
pub(super) fn frozen(entries: &[Entry<'_>]) -> Vec<(String, u32)> {
    let entries = entries.iter().zip(0_u32..);
    let frozen = entries.filter(|(entry, _)| is_frozen(entry));
    let normalized = frozen.map(|(entry, id)| (entry.text.replace(' ', BLANK), id));
    normalized.collect()
}

fn is_frozen(entry: &Entry<'_>) -> bool {
    let is_text = entry.holds_blank() || is_blank(&entry.text);
    entry.kind == Kind::User && !entry.is_filler && is_text
}

/// Converters write user-defined pieces with spaces for U+2581. This restores it, so that they decode as other tokens
/// do, unless the vocabulary has that token too.
pub(super) fn restore_blanks(entries: &mut [Entry<'_>]) {
    let is_written = |entry: &Entry<'_>| entry.kind == Kind::User && entry.text.contains(' ');
    let written = entries.iter().filter(|entry| is_written(entry));
    let restored: HashSet<String> = written
        .map(|entry| entry.text.replace(' ', BLANK))
        .collect();
    if restored.is_empty() {
        return;
    }
    let texts = entries.iter().map(|entry| &*entry.text);
    let taken: HashSet<String> = texts
        .filter(|text| restored.contains(*text))
        .map(str::to_owned)
        .collect();
    for entry in entries {
        if is_written(entry) {
            let restored = entry.text.replace(' ', BLANK);
            if !taken.contains(&restored) {
                entry.text = restored.into();
            }
        }
    }
}
