//! Proposes tokens that followed a row's last tokens before: in its own text, or in texts that its request brings.

use super::match_finder::{MIN_MATCH, MatchFinder, n_common};
use super::{DraftSource, DraftText, Proposal, Proposer};

/// Separates texts; no token and no image's key has this value.
const SEPARATOR: u32 = u32::MAX;
/// Tokens up to which a match is counted, which may be more than select it.
const MAX_COUNTED: usize = 64;

/// Bounds of the search of a [`TextProposer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextLimits {
    /// The most tokens of the row's text that are searched; of a longer text, the proposer forgets the beginning.
    pub own_tokens: usize,
    /// The most tokens of the other texts together; a longer text is cut at its end.
    pub other_tokens: usize,
    /// Occurrences that share more tokens than this with the end of the row's text count as equally long.
    pub max_match: usize,
    /// The size of the vocabulary. Images have tokens beyond it, which are never proposed.
    pub n_ids: u32,
}

/// Prompt lookup decoding over the row's text and other texts.
///
/// Drafts come from the longest occurrence of the row's last tokens. Of equally long ones, the one that the last drafts
/// came from is taken first, since it was right before; then one in the prediction, which the client expects as the
/// output; then the latest in the row's text; and last one in the grammar's literals, after which text ends.
///
/// As long as the whole output equals the beginning of the prediction, the drafts come from there.
pub struct TextProposer {
    own: MatchFinder,
    others: Option<OtherTexts>,
    /// Where the last drafts came from, moved by the tokens since; `None` if one of these was another one there.
    followed: Option<Place>,
    max_match: usize,
}

/// Draft texts, each with a separator after it.
struct OtherTexts {
    finder: MatchFinder,
    /// The first tokens of the texts, with their sources; ascending.
    starts: Vec<(usize, DraftSource)>,
}

/// A place in a text from which the row's next tokens may come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    source: DraftSource,
    /// Tokens before it: of the row's text, or of the other texts.
    end: usize,
    /// Whether all the output was followed there from the beginning of a prediction.
    is_prefix: bool,
}

impl TextProposer {
    /// Makes the proposer of a row whose text is `prompt`; the output follows in [`Proposer::extend`].
    pub fn new(prompt: &[u32], texts: &[DraftText], limits: TextLimits) -> Self {
        let mut own = MatchFinder::new(limits.own_tokens, limits.max_match, limits.n_ids);
        let first = prompt.len().saturating_sub(limits.own_tokens);
        for token in &prompt[first..] {
            own.push(*token);
        }
        let others = OtherTexts::new(texts, limits);
        let start = others.as_ref().and_then(OtherTexts::start_of_prediction);
        let followed = start.map(|end| Place {
            source: DraftSource::Prediction,
            end,
            is_prefix: true,
        });
        Self {
            own,
            others,
            followed,
            max_match: limits.max_match.max(MIN_MATCH),
        }
    }

    /// The finder of the text that has a source.
    fn finder(&self, source: DraftSource) -> Option<&MatchFinder> {
        match source {
            DraftSource::OwnText => Some(&self.own),
            DraftSource::Prediction | DraftSource::Grammar => {
                self.others.as_ref().map(|others| &others.finder)
            }
        }
    }

    /// The place after the followed one if `token` is the token there.
    fn followed_by(&self, token: u32) -> Option<Place> {
        let place = self.followed?;
        let finder = self.finder(place.source)?;
        let end = place.end + 1;
        let is_next = finder.tokens().get(place.end) == Some(&token);
        is_next.then_some(Place { end, ..place })
    }

    /// The place to draft from.
    fn place(&self) -> Option<Place> {
        let context = self.own.tokens();
        let followed = self.followed.filter(|place| {
            let finder = self.finder(place.source);
            finder.is_some_and(|finder| finder.is_followed(place.end))
        });
        if followed.is_some_and(|place| place.is_prefix) {
            return followed;
        }
        let n_followed = followed.map_or(0, |place| self.n_matched(place));
        if n_followed >= self.max_match {
            return followed;
        }
        let own = self.own.find(context);
        let other = self.others.as_ref().and_then(|texts| texts.find(context));
        let n_own = own.map_or(0, |found| found.n_tokens);
        let n_other = other.map_or(0, |(n_tokens, _)| n_tokens);
        if n_followed > 0 && n_followed >= n_own.max(n_other) {
            return followed;
        }
        match other {
            Some((_, place)) if n_other > n_own => Some(place),
            Some((_, place)) if n_other == n_own && place.source == DraftSource::Prediction => {
                Some(place)
            }
            _ => own.map(|found| Place {
                source: DraftSource::OwnText,
                end: found.end,
                is_prefix: false,
            }),
        }
    }

    /// Number of the row's last tokens that precede a place.
    fn n_matched(&self, place: Place) -> usize {
        let finder = self.finder(place.source);
        let before = finder.and_then(|finder| finder.tokens().get(..place.end));
        before.map_or(0, |before| n_common(self.own.tokens(), before, MAX_COUNTED))
    }
}

impl Proposer for TextProposer {
    fn extend(&mut self, tokens: &[u32]) {
        for token in tokens {
            self.followed = self.followed_by(*token);
            let dropped = self.own.push(*token);
            if let Some(place) = &mut self.followed
                && place.source == DraftSource::OwnText
            {
                // Zero if the place was dropped, where no token precedes it.
                place.end = place.end.saturating_sub(dropped);
            }
        }
    }

    fn propose(&mut self, max: usize, drafts: &mut Vec<u32>) -> Proposal {
        let place = self.place();
        self.followed = place;
        let Some(place) = place else {
            return Proposal::default();
        };
        let n_before = drafts.len();
        match (place.source, &self.others) {
            (DraftSource::OwnText, _) => {
                drafts.extend(self.own.following_in_loop(place.end).take(max));
            }
            (DraftSource::Prediction | DraftSource::Grammar, Some(others)) => {
                drafts.extend(others.finder.following(place.end).take(max));
            }
            (DraftSource::Prediction | DraftSource::Grammar, None) => {}
        }
        Proposal {
            n_tokens: drafts.len() - n_before,
            source: place.source,
            matched: self.n_matched(place),
        }
    }
}

impl OtherTexts {
    /// Joins the texts, the predictions last: of equally long matches, the finder returns the latest. `None` if all are
    /// empty.
    fn new(texts: &[DraftText], limits: TextLimits) -> Option<Self> {
        let is_prediction = |text: &&DraftText| text.source == DraftSource::Prediction;
        let literals = texts.iter().filter(|text| !is_prediction(text));
        let ordered = literals.chain(texts.iter().filter(is_prediction));
        let ordered = ordered.filter(|text| !text.tokens.is_empty());
        let n_tokens: usize = texts.iter().map(|text| text.tokens.len() + 1).sum();
        let capacity = n_tokens.min(limits.other_tokens);
        let mut finder = MatchFinder::new(capacity, limits.max_match, limits.n_ids);
        let mut starts = Vec::with_capacity(texts.len());
        for text in ordered {
            let start = finder.tokens().len();
            let n_left = capacity.saturating_sub(start + 1);
            let tokens = &text.tokens[..text.tokens.len().min(n_left)];
            if tokens.is_empty() {
                continue;
            }
            starts.push((start, text.source));
            for token in tokens {
                finder.push(*token);
            }
            finder.push(SEPARATOR);
        }
        (!starts.is_empty()).then_some(Self { finder, starts })
    }

    fn start_of_prediction(&self) -> Option<usize> {
        let mut starts = self.starts.iter();
        let prediction = starts.find(|(_, source)| *source == DraftSource::Prediction);
        prediction.map(|(start, _)| *start)
    }

    /// The longest match, with its length.
    fn find(&self, context: &[u32]) -> Option<(usize, Place)> {
        let found = self.finder.find(context)?;
        let after = self
            .starts
            .partition_point(|(start, _)| *start <= found.end);
        let (_, source) = self.starts.get(after.checked_sub(1)?)?;
        let place = Place {
            source: *source,
            end: found.end,
            is_prefix: false,
        };
        Some((found.n_tokens, place))
    }
}

#[cfg(test)]
mod tests;
