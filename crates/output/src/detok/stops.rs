//! Incremental search for stop strings (Knuth-Morris-Pratt).

use std::sync::Arc;

/// One Knuth-Morris-Pratt automaton per stop string, so that the cost per byte is independent of repetitions in text
/// and stop strings. Requests with the same list share the table.
#[derive(Debug, Default)]
pub struct StopTable {
    stops: Vec<Stop>,
}

#[derive(Debug)]
struct Stop {
    string: String,
    /// `borders[i]`: length of the longest proper prefix of `string[..=i]` that is also its suffix.
    borders: Vec<u16>,
}

#[derive(Clone, Debug)]
pub struct StopMatcher {
    table: Arc<StopTable>,
    /// For each stop string, the length of its longest proper prefix that ends the text so far.
    matched_bytes: Box<[u16]>,
}

pub struct Found {
    pub index: usize,
    /// The end of the stop string in the piece, in bytes.
    pub end: usize,
}

impl StopTable {
    pub fn is_empty(&self) -> bool {
        self.stops.is_empty()
    }

    /// Empty strings never match.
    ///
    /// # Panics
    /// If a string has more than 65,535 bytes.
    pub fn new(strings: &[String]) -> Self {
        let strings = strings.iter().filter(|string| !string.is_empty());
        Self {
            stops: strings.map(|string| Stop::new(string)).collect(),
        }
    }
}

impl StopMatcher {
    pub fn new(table: Arc<StopTable>) -> Self {
        Self {
            matched_bytes: vec![0; table.stops.len()].into(),
            table,
        }
    }

    /// Searches the next piece up to the first byte that completes a stop string; the longest of several wins. Do not
    /// call it again after a match.
    pub fn find(&mut self, piece: &str) -> Option<Found> {
        let stops = self.table.stops.as_slice();
        if stops.is_empty() {
            return None;
        }
        for (at, &byte) in piece.as_bytes().iter().enumerate() {
            let mut longest: Option<usize> = None;
            for (index, matched) in self.matched_bytes.iter_mut().enumerate() {
                let completes = stops[index].read(byte, matched);
                let longer = |other: usize| stops[index].len() > stops[other].len();
                if completes && longest.is_none_or(longer) {
                    longest = Some(index);
                }
            }
            if let Some(index) = longest {
                return Some(Found { index, end: at + 1 });
            }
        }
        None
    }

    /// Returns the number of bytes at the end of the text that may begin a stop string.
    pub fn partial_bytes(&self) -> usize {
        self.matched_bytes.iter().copied().max().unwrap_or(0).into()
    }

    pub fn string(&self, index: usize) -> &str {
        &self.table.stops[index].string
    }
}

impl Stop {
    fn new(string: &str) -> Self {
        let bytes = string.as_bytes();
        assert!(
            bytes.len() <= usize::from(u16::MAX),
            "a stop string has more than 65535 bytes"
        );
        let mut borders = vec![0u16; bytes.len()];
        let mut border = 0;
        for i in 1..bytes.len() {
            while border > 0 && bytes[i] != bytes[border] {
                border = usize::from(borders[border - 1]);
            }
            border += usize::from(bytes[i] == bytes[border]);
            borders[i] = border as u16;
        }
        Self {
            string: string.to_owned(),
            borders,
        }
    }

    fn len(&self) -> usize {
        self.string.len()
    }

    /// Reads a byte after `matched` bytes of the string; returns whether it completes the string.
    fn read(&self, byte: u8, matched: &mut u16) -> bool {
        let bytes = self.string.as_bytes();
        let mut at = usize::from(*matched);
        while at > 0 && bytes[at] != byte {
            at = usize::from(self.borders[at - 1]);
        }
        at += usize::from(bytes[at] == byte);
        let completes = at == bytes.len();
        *matched = if completes { 0 } else { at as u16 };
        completes
    }
}
