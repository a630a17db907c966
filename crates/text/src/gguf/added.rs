//! Added tokens of a GGUF vocabulary, found before any merge: control tokens and user-defined pieces.

use std::collections::HashSet;

use tokenizers::AddedToken;

use super::entries::{BLANK, Entry, Kind, is_blank};

/// The prefix that a SentencePiece vocabulary adds to a text.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Prefix {
    Blank,
    None,
}

/// Tokens of Phi-3 that do not absorb the whitespace after them; all others do.
const PHI3_WITHOUT_BLANKS: [&str; 3] = ["<unk>", "<s>", "<|endoftext|>"];

/// The added tokens of a byte-level vocabulary. They are found in the raw text.
pub(super) fn of_bytes(entries: &[Entry<'_>]) -> Vec<AddedToken> {
    let added = entries.iter().filter_map(|entry| added(entry, false));
    added.collect()
}

/// The added tokens of a SentencePiece vocabulary that are found in the raw text. The text after one gets a leading
/// blank, as a prompt does, if the vocabulary has that prefix; the pieces of [`frozen`] are found after blanks are
/// added, and the text after them gets none.
pub(super) fn of_sentence_piece(
    entries: &[Entry<'_>],
    prefix: Prefix,
    takes_blanks: bool,
) -> Vec<AddedToken> {
    // Without a prefix, runs of newlines can be found later too, together with pieces of newlines and blanks.
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

/// The user-defined pieces that are found in the normalized text, as it spells them, and their ids: those that hold a
/// blank and, for fragments in which no added tokens are searched, other runs of white space.
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

/// Converters write spaces for U+2581 in user-defined pieces. This restores U+2581, so that the pieces decode as other
/// tokens do, unless the vocabulary has the restored token too.
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
