//! Log probabilities in OpenAI's two formats: completions and chat.

use serde::{Serialize, Serializer};

use crate::spelling::{Spelling, spell};
use souffleur_state::sampling::TokenLogprobs;

/// The number that OpenAI writes for the log probability of an impossible token, as JSON has no infinities.
const LOWEST_LOGPROB: f32 = -9999.0;

/// `logprobs` of completions: four lists with one entry per token.
#[derive(Debug, Serialize)]
pub(super) struct LegacyLogprobs {
    tokens: Vec<String>,
    token_logprobs: Vec<Option<f32>>,
    top_logprobs: Option<Vec<Option<Alternatives>>>,
    text_offset: Vec<usize>,
}

impl LegacyLogprobs {
    /// Creates empty lists. With `top` there is a list of alternatives, which include the token itself.
    pub(super) fn new(top: bool) -> Self {
        Self {
            tokens: Vec::new(),
            token_logprobs: Vec::new(),
            top_logprobs: top.then(Vec::new),
            text_offset: Vec::new(),
        }
    }

    pub(super) fn extend(
        &mut self,
        positions: &[TokenLogprobs],
        spelling: &Spelling,
        offset: &mut TextOffset,
    ) {
        for pos in positions {
            self.tokens.push(legacy_name(pos.token, spelling));
            self.token_logprobs.push(pos.logprob.map(finite));
            if let Some(tops) = &mut self.top_logprobs {
                tops.push(
                    pos.logprob
                        .map(|logprob| alternatives(pos, logprob, spelling)),
                );
            }
            self.text_offset
                .push(offset.advance(&spelling.text_bytes(pos.token)));
        }
    }
}

/// Log probabilities by token text, each text once. A map of JSON values would widen the numbers to `f64` and print
/// more digits than the other lists.
#[derive(Debug)]
struct Alternatives(Vec<(String, f32)>);

impl Serialize for Alternatives {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, logprob)| (name, logprob)))
    }
}

/// The alternatives and the token itself, which takes precedence over other tokens with the same text.
fn alternatives(pos: &TokenLogprobs, logprob: f32, spelling: &Spelling) -> Alternatives {
    let mut found: Vec<(String, f32)> = Vec::with_capacity(pos.top.len() + 1);
    for (token, logprob) in pos.top.iter().copied().chain([(pos.token, logprob)]) {
        let name = legacy_name(token, spelling);
        match found.iter_mut().find(|(known, _)| *known == name) {
            Some(known) => known.1 = finite(logprob),
            None => found.push((name, finite(logprob))),
        }
    }
    Alternatives(found)
}

fn legacy_name(token: u32, spelling: &Spelling) -> String {
    spell(spelling.bytes(token), "bytes:")
}

fn finite(logprob: f32) -> f32 {
    logprob.max(LOWEST_LOGPROB)
}

#[derive(Debug, Serialize)]
pub(crate) struct ChatLogprobs {
    content: Vec<ChatToken>,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct ChatToken {
    #[serde(flatten)]
    token: SpelledToken,
    top_logprobs: Vec<SpelledToken>,
}

#[derive(Clone, Debug, Serialize)]
struct SpelledToken {
    token: String,
    logprob: f32,
    bytes: Vec<u8>,
}

impl ChatLogprobs {
    pub(crate) fn new(positions: &[TokenLogprobs], spelling: &Spelling) -> Self {
        let spelled = |(token, logprob): (u32, f32)| {
            let bytes = spelling.bytes(token);
            SpelledToken {
                token: spell(bytes.clone(), ""),
                logprob: finite(logprob),
                bytes,
            }
        };
        let content = positions.iter().map(|pos| ChatToken {
            token: spelled((pos.token, pos.logprob.unwrap_or(LOWEST_LOGPROB))),
            top_logprobs: pos.top.iter().copied().map(spelled).collect(),
        });
        Self {
            content: content.collect(),
        }
    }

    pub(crate) fn into_tokens(self) -> Vec<ChatToken> {
        self.content
    }

    pub(super) fn is_empty(&self) -> bool {
        self.content.is_empty()
    }
}

/// Counts the offsets of tokens in characters. A token that begins inside a character has that character's offset.
#[derive(Debug, Default)]
pub(super) struct TextOffset {
    chars: usize,
    fragment: Vec<u8>,
}

impl TextOffset {
    pub(super) fn after(chars: usize) -> Self {
        Self {
            chars,
            fragment: Vec::new(),
        }
    }

    /// Advances by a token's bytes and returns the token's offset.
    fn advance(&mut self, bytes: &[u8]) -> usize {
        let start = self.chars;
        self.fragment.extend_from_slice(bytes);
        loop {
            match std::str::from_utf8(&self.fragment) {
                Ok(text) => {
                    self.chars += text.chars().count();
                    self.fragment.clear();
                    return start;
                }
                Err(error) => {
                    let valid = error.valid_up_to();
                    let text = String::from_utf8_lossy(&self.fragment[..valid]);
                    self.chars += text.chars().count();
                    let Some(invalid) = error.error_len() else {
                        self.fragment.drain(..valid);
                        return start;
                    };
                    self.chars += 1;
                    self.fragment.drain(..valid + invalid);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::spelling::tests::bytewise;

    fn pos(token: u32, logprob: Option<f32>, top: &[(u32, f32)]) -> TokenLogprobs {
        TokenLogprobs {
            token,
            logprob,
            top: top.to_vec(),
            chosen: Vec::new(),
        }
    }

    #[test]
    fn offsets_count_characters_and_ignore_special_tokens() {
        let tokens = [256, 104, 0xc3, 0xa9, 33, 257];
        let positions = tokens.map(|token| pos(token, Some(-1.0), &[]));
        let mut lists = LegacyLogprobs::new(false);
        lists.extend(&positions, &bytewise(), &mut TextOffset::default());
        assert_eq!(lists.text_offset, [0, 0, 1, 1, 2, 3]);
        assert_eq!(
            lists.tokens,
            ["<|256|>", "h", "bytes:\\xc3", "bytes:\\xa9", "!", "<|257|>"]
        );
    }

    #[test]
    fn each_invalid_sequence_counts_as_one_character() {
        let mut offset = TextOffset::default();
        let starts = [&[0xff][..], b"a", &[0xe2, 0x82], b"b", b"c"].map(|b| offset.advance(b));
        assert_eq!(starts, [0, 1, 2, 2, 4]);
    }

    #[test]
    fn legacy_alternatives_include_the_token_and_skip_the_first_prompt_token() {
        let positions = [
            pos(97, None, &[]),
            pos(98, Some(-2.0), &[(99, -0.5), (0xff, -1.5)]),
        ];
        let mut lists = LegacyLogprobs::new(true);
        lists.extend(&positions, &bytewise(), &mut TextOffset::default());
        let expected = json!({
            "tokens": ["a", "b"],
            "token_logprobs": [null, -2.0],
            "top_logprobs": [null, {"c": -0.5, "bytes:\\xff": -1.5, "b": -2.0}],
            "text_offset": [0, 1],
        });
        assert_eq!(serde_json::to_value(lists).expect("plain data"), expected);
    }

    #[test]
    fn a_log_probability_prints_the_same_in_every_list() {
        let positions = [pos(97, Some(-0.1), &[(97, -0.1), (98, -2.7)])];
        let mut lists = LegacyLogprobs::new(true);
        lists.extend(&positions, &bytewise(), &mut TextOffset::default());
        let text = serde_json::to_string(&lists).expect("plain data");
        let expected = r#""token_logprobs":[-0.1],"top_logprobs":[{"a":-0.1,"b":-2.7}]"#;
        assert!(text.contains(expected), "{text}");
        let chat = ChatLogprobs::new(&positions, &bytewise());
        let text = serde_json::to_string(&chat).expect("plain data");
        assert_eq!(text.matches(r#""token":"a","logprob":-0.1,"#).count(), 2);
    }

    #[test]
    fn chat_tokens_carry_their_bytes() {
        let positions = [pos(0xc3, Some(f32::NEG_INFINITY), &[(104, -0.25)])];
        let found = ChatLogprobs::new(&positions, &bytewise());
        let expected = json!({"content": [{
            "token": "\\xc3", "logprob": -9999.0, "bytes": [0xc3],
            "top_logprobs": [{"token": "h", "logprob": -0.25, "bytes": [104]}],
        }]});
        assert_eq!(serde_json::to_value(found).expect("plain data"), expected);
    }
}
