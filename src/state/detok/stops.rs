//! Stop strings, found in a text that comes in pieces.

/// Searches for all stop strings at once: one Knuth-Morris-Pratt automaton each, so a byte costs the same however
/// the text and the stop strings repeat themselves.
#[derive(Clone, Debug)]
pub(super) struct StopMatcher {
    stops: Vec<Stop>,
}

#[derive(Clone, Debug)]
struct Stop {
    string: String,
    /// `borders[i]`: length of the longest proper prefix of `string[..=i]` that is also its suffix.
    borders: Vec<usize>,
    /// Length of the longest prefix of `string` that ends the text so far; less than its whole length.
    matched_bytes: usize,
}

/// A stop string in a piece of text.
pub(super) struct Found {
    /// Which one.
    pub(super) index: usize,
    /// Bytes of the piece through the end of the stop string.
    pub(super) end: usize,
}

impl StopMatcher {
    /// Empty strings never match.
    pub(super) fn new(strings: &[String]) -> Self {
        let strings = strings.iter().filter(|string| !string.is_empty());
        Self {
            stops: strings.map(|string| Stop::new(string)).collect(),
        }
    }

    /// Reads the next piece of the text up to the first byte that completes a stop string, the longest of several.
    /// That ends the search: what comes after a match is not to be read.
    pub(super) fn find(&mut self, piece: &str) -> Option<Found> {
        for (at, &byte) in piece.as_bytes().iter().enumerate() {
            let mut longest: Option<usize> = None;
            for index in 0..self.stops.len() {
                let completes = self.stops[index].read(byte);
                let longer = |other: usize| self.stops[index].len() > self.stops[other].len();
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
    pub(super) fn partial_bytes(&self) -> usize {
        self.stops
            .iter()
            .map(|stop| stop.matched_bytes)
            .max()
            .unwrap_or(0)
    }

    pub(super) fn string(&self, index: usize) -> &str {
        &self.stops[index].string
    }
}

impl Stop {
    fn new(string: &str) -> Self {
        let bytes = string.as_bytes();
        let mut borders = vec![0; bytes.len()];
        let mut border = 0;
        for i in 1..bytes.len() {
            while border > 0 && bytes[i] != bytes[border] {
                border = borders[border - 1];
            }
            border += usize::from(bytes[i] == bytes[border]);
            borders[i] = border;
        }
        Self {
            string: string.to_owned(),
            borders,
            matched_bytes: 0,
        }
    }

    fn len(&self) -> usize {
        self.string.len()
    }

    /// Reads a byte and returns whether it completes the string.
    fn read(&mut self, byte: u8) -> bool {
        let bytes = self.string.as_bytes();
        while self.matched_bytes > 0 && bytes[self.matched_bytes] != byte {
            self.matched_bytes = self.borders[self.matched_bytes - 1];
        }
        self.matched_bytes += usize::from(bytes[self.matched_bytes] == byte);
        let completes = self.matched_bytes == bytes.len();
        if completes {
            self.matched_bytes = 0;
        }
        completes
    }
}
