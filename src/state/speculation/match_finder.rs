//! Finds the longest earlier occurrence of the last tokens of a text, as LZ77 compressors do, with hash chains.
//!
//! A place in the text is an *end*: the number of tokens before it. Ends whose last three tokens have one hash are a
//! chain, the latest first. A table has the latest end of each pair, for occurrences that only two tokens precede. An
//! occurrence of one token says too little of the next one: it is none.

/// The fewest tokens that an occurrence has in common with the context.
pub const MIN_MATCH: usize = 2;
/// Tokens whose hash selects a chain.
const CHAINED: usize = 3;
/// The most links of a chain that one search follows.
const MAX_LINKS: usize = 64;
/// The fewest tokens that a finder has place for.
const MIN_CAPACITY: usize = 256;
/// The most: ends have 32 bits.
const MAX_CAPACITY: usize = 1 << 30;

/// An occurrence of a context in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Match {
    /// Number of the context's last tokens that precede `end`, too: [`MIN_MATCH`] to the finder's `max_match`.
    pub n_tokens: usize,
    pub end: usize,
}

/// A growing text of bounded length, and its index: at most 12 bytes a token of the capacity, the text's 4 excepted.
#[derive(Debug)]
pub struct MatchFinder {
    tokens: Vec<u32>,
    /// For each end but the last, the one before it in its chain; 0 for none.
    links: Vec<u32>,
    /// The latest end of each chain; 0 for none.
    chains: Box<[u32]>,
    /// The latest end of the pairs with one hash; 0 for none.
    pairs: Box<[u32]>,
    capacity: usize,
    max_match: usize,
    max_links: usize,
    /// Tokens from here on are no tokens of the vocabulary: no occurrence ends before one, and none is followed.
    n_ids: u32,
}

impl MatchFinder {
    /// Makes a finder with memory for `capacity` tokens, which then allocates no more.
    ///
    /// Occurrences that have `max_match` tokens in common with a context count as equally long. Tokens from `n_ids` on
    /// are placeholders.
    pub fn new(capacity: usize, max_match: usize, n_ids: u32) -> Self {
        let capacity = capacity.clamp(MIN_CAPACITY, MAX_CAPACITY);
        let n_chains = 1_usize << capacity.ilog2();
        Self {
            tokens: Vec::with_capacity(capacity),
            links: Vec::with_capacity(capacity),
            chains: vec![0; n_chains].into_boxed_slice(),
            pairs: vec![0; n_chains].into_boxed_slice(),
            capacity,
            max_match: max_match.max(MIN_MATCH),
            max_links: MAX_LINKS,
            n_ids,
        }
    }

    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The memory of the index in bytes, without the text.
    pub fn index_bytes(&self) -> usize {
        (self.links.capacity() + self.chains.len() + self.pairs.len()) * size_of::<u32>()
    }

    /// Appends a token. Returns the number of tokens that were dropped from the text's beginning to make place for it:
    /// half of a full text, otherwise none.
    pub fn push(&mut self, token: u32) -> usize {
        let dropped = if self.tokens.len() == self.capacity {
            self.forget_half()
        } else {
            0
        };
        // An end enters the index once a token follows it.
        self.index(self.tokens.len());
        self.tokens.push(token);
        dropped
    }

    /// The longest occurrence of the last tokens of `context` that a token of the vocabulary follows; the latest of the
    /// longest.
    ///
    /// The context is the finder's text, or another one.
    pub fn find(&self, context: &[u32]) -> Option<Match> {
        let chained = self.longest_chained(context);
        chained.or_else(|| self.latest_pair(context))
    }

    /// The tokens that follow `end`, up to the first that is not in the vocabulary.
    pub fn following(&self, end: usize) -> impl Iterator<Item = u32> {
        let n_ids = self.n_ids;
        let following = self.tokens[end..].iter().copied();
        following.take_while(move |token| *token < n_ids)
    }

    /// As [`Self::following`], for a text that continues with these tokens: at its end, the iterator starts again at
    /// `end`, so it repeats the period of a loop. `end` is before the text's end.
    pub fn following_in_loop(&self, end: usize) -> impl Iterator<Item = u32> {
        let n_ids = self.n_ids;
        let following = self.tokens[end..].iter().copied().cycle();
        following.take_while(move |token| *token < n_ids)
    }

    /// Whether a token of the vocabulary follows `end`.
    pub fn is_followed(&self, end: usize) -> bool {
        self.tokens
            .get(end)
            .is_some_and(|token| *token < self.n_ids)
    }

    fn longest_chained(&self, context: &[u32]) -> Option<Match> {
        if self.max_match < CHAINED {
            return None;
        }
        let mut longest: Option<Match> = None;
        let mut end = self.chains[self.chain_of(context)?] as usize;
        for _ in 0..self.max_links {
            if end == 0 {
                break;
            }
            let least = longest.map_or(CHAINED, |longest| longest.n_tokens + 1);
            if self.is_followed(end) {
                let n_tokens = n_common(context, &self.tokens[..end], self.max_match);
                if n_tokens >= least {
                    longest = Some(Match { n_tokens, end });
                }
                if n_tokens == self.max_match {
                    break;
                }
            }
            end = self.links[end] as usize;
        }
        longest
    }

    fn latest_pair(&self, context: &[u32]) -> Option<Match> {
        let end = self.pairs[self.pair_of(context)?] as usize;
        let n_tokens = n_common(context, &self.tokens[..end], self.max_match);
        (n_tokens >= MIN_MATCH && self.is_followed(end)).then_some(Match { n_tokens, end })
    }

    /// The place in `chains` of a text's last tokens; `None` for a shorter text.
    fn chain_of(&self, text: &[u32]) -> Option<usize> {
        let [.., a, b, c] = text else {
            return None;
        };
        let pair = ((u64::from(*a) << 32) | u64::from(*b)).wrapping_mul(FACTOR);
        let bits = self.chains.len().ilog2();
        Some(top_bits((pair ^ u64::from(*c)).wrapping_mul(FACTOR), bits))
    }

    /// The place in `pairs` of a text's last tokens; `None` for a shorter text.
    fn pair_of(&self, text: &[u32]) -> Option<usize> {
        let [.., a, b] = text else {
            return None;
        };
        let pair = ((u64::from(*a) << 32) | u64::from(*b)).wrapping_mul(FACTOR);
        Some(top_bits(pair, self.pairs.len().ilog2()))
    }

    /// Adds an end to the index. Those before it are in the index.
    fn index(&mut self, end: usize) {
        let text = &self.tokens[..end];
        let (chain, pair) = (self.chain_of(text), self.pair_of(text));
        let mut link = end as u32;
        match chain {
            Some(chain) => std::mem::swap(&mut self.chains[chain], &mut link),
            None => link = 0,
        }
        self.links.push(link);
        if let Some(pair) = pair {
            self.pairs[pair] = end as u32;
        }
    }

    /// Drops the first half of the text and indexes the other half again. Returns the number of dropped tokens.
    fn forget_half(&mut self) -> usize {
        let dropped = self.tokens.len() / 2;
        let n_left = self.tokens.len() - dropped;
        self.tokens.copy_within(dropped.., 0);
        self.tokens.truncate(n_left);
        self.links.clear();
        self.chains.fill(0);
        self.pairs.fill(0);
        for end in 0..n_left {
            self.index(end);
        }
        dropped
    }
}

/// 2^64 divided by the golden ratio (Knuth, The Art of Computer Programming, section 6.4).
const FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;

/// The highest `bits` bits of a hash; at least one.
fn top_bits(hash: u64, bits: u32) -> usize {
    (hash >> (u64::BITS - bits)) as usize
}

/// The number of tokens, at most `max`, that two texts have in common at their ends.
pub fn n_common(one: &[u32], other: &[u32], max: usize) -> usize {
    let pairs = one.iter().rev().zip(other.iter().rev()).take(max);
    pairs.take_while(|(one, other)| one == other).count()
}

#[cfg(test)]
mod tests;
