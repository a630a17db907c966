//! Stop strings, found in a text that comes in pieces.

use std::sync::Arc;

/// A list of stop strings with one Knuth-Morris-Pratt automaton each, so that a byte costs the same however the text
/// and the stop strings repeat themselves. Requests with the same list share it.
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

/// The search of one text for the stop strings of a table.
#[derive(Clone, Debug)]
pub struct StopMatcher {
    table: Arc<StopTable>,
    /// For each stop string, the length of its longest prefix that ends the text so far; less than its whole length.
    matched_bytes: Box<[u16]>,
}

/// A stop string in a piece of text.
pub struct Found {
    /// Which one.
    pub index: usize,
    /// Bytes of the piece through the end of the stop string.
    pub end: usize,
}

impl StopTable {
    /// Returns whether there are no stop strings.
    pub fn is_empty(&self) -> bool {
        self.stops.is_empty()
    }

    /// The table of a list. Empty strings never match.
    ///
    /// # Panics
    /// If a string has more than 65,535 bytes: `SamplingParams::validate` allows far fewer.
    pub fn new(strings: &[String]) -> Self {
        let strings = strings.iter().filter(|string| !string.is_empty());
        Self {
            stops: strings.map(|string| Stop::new(string)).collect(),
        }
    }
}

impl StopMatcher {
    /// Begins a text.
    pub fn new(table: Arc<StopTable>) -> Self {
        Self {
            matched_bytes: vec![0; table.stops.len()].into(),
            table,
        }
    }

    /// Reads the next piece of the text up to the first byte that completes a stop string, the longest of several.
    /// That ends the search: what comes after a match is not to be read.
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

    /// Returns how many bytes at the end of the text may belong to a stop string.
    pub fn partial_bytes(&self) -> usize {
        self.matched_bytes.iter().copied().max().unwrap_or(0).into()
    }

    /// Returns a stop string.
    pub fn string(&self, index: usize) -> &str {
        &self.table.stops[index].string
    }
}

impl Stop {
    fn new(string: &str) -> Self {
        let bytes = string.as_bytes();
        assert!(
            bytes.len() <= usize::from(u16::MAX),
            "stop strings were validated"
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

    /// Reads a byte after `matched` bytes of the string and returns whether it completes the string.
    fn read(&self, byte: u8, matched: &mut u16) -> bool {
        let bytes = self.string.as_bytes();
        let mut at = usize::from(*matched);
        while at > 0 && bytes[at] != byte {
            at = usize::from(self.borders[at - 1]);
        }
        at += usize::from(bytes[at] == byte);
        let completes = at == bytes.len();
        *matched = match completes {
            true => 0,
            false => at as u16,
        };
        completes
    }
}
