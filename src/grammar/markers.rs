//! Finds the markers (special and added tokens) of a vocabulary, and splits texts at their names.

use std::collections::HashMap;
use std::fmt::Write;

use souffleur_model::text::TextModel;

#[derive(Debug)]
pub(super) struct Markers {
    /// Names and ids by the first character of the name, the longest names first.
    by_letter: HashMap<char, Vec<(String, u32)>>,
    /// Ids of the markers that free text may contain: all except end-of-sequence tokens, ascending.
    ids: Vec<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Span {
    Text(String),
    Marker(u32),
}

impl Markers {
    pub(super) fn new(text: &TextModel, eos_token_ids: &[u32], vocab_size: usize) -> Self {
        let mut by_letter: HashMap<char, Vec<(String, u32)>> = HashMap::new();
        let mut ids = Vec::new();
        for (name, id) in text.markers() {
            let Some(letter) = name.chars().next().filter(|_| (id as usize) < vocab_size) else {
                continue;
            };
            by_letter.entry(letter).or_default().push((name, id));
            if !eos_token_ids.contains(&id) {
                ids.push(id);
            }
        }
        for names in by_letter.values_mut() {
            names.sort_by(|left, right| right.0.len().cmp(&left.0.len()).then(left.cmp(right)));
        }
        ids.sort_unstable();
        ids.dedup();
        Self { by_letter, ids }
    }

    pub(super) fn id(&self, name: &str) -> Option<u32> {
        let names = self.by_letter.get(&name.chars().next()?)?;
        names
            .iter()
            .find(|(marker, _)| marker == name)
            .map(|(_, id)| *id)
    }

    /// Splits a text at the names of markers, which become [`Span::Marker`].
    pub(super) fn spans(&self, text: &str) -> Vec<Span> {
        let mut spans = Vec::new();
        let mut plain = String::new();
        let mut rest = text;
        while let Some(letter) = rest.chars().next() {
            let names = self.by_letter.get(&letter).into_iter().flatten();
            let found = names.into_iter().find(|(name, _)| rest.starts_with(name));
            let length = match found {
                Some((name, id)) => {
                    if !plain.is_empty() {
                        spans.push(Span::Text(std::mem::take(&mut plain)));
                    }
                    spans.push(Span::Marker(*id));
                    name.len()
                }
                None => {
                    plain.push(letter);
                    letter.len_utf8()
                }
            };
            rest = &rest[length..];
        }
        if !plain.is_empty() {
            spans.push(Span::Text(plain));
        }
        spans
    }

    /// Writes the markers allowed in free text, except `without`, as a token reference in Lark; `None` if none is left.
    pub(super) fn all_except(&self, without: &[u32]) -> Option<String> {
        let ids = self.ids.iter().copied().filter(|id| !without.contains(id));
        let mut ranges: Vec<(u32, u32)> = Vec::new();
        for id in ids {
            match ranges.last_mut() {
                Some((_, last)) if *last + 1 == id => *last = id,
                _ => ranges.push((id, id)),
            }
        }
        let mut written = String::new();
        for (first, last) in ranges {
            let comma = if written.is_empty() { "" } else { "," };
            // Writing to a string cannot fail.
            let _ = write!(written, "{comma}{first}-{last}");
        }
        (!written.is_empty()).then(|| format!("<[{written}]>"))
    }
}
