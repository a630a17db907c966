//! Tests of the streaming detokenizer.

use std::cell::Cell;

use proptest::prelude::*;

use super::*;

/// A small vocabulary with byte-level or metaspace decoding.
struct Vocab {
    pieces: Vec<Vec<u8>>,
    /// `▁` decodes to a space, which is dropped at the start of the text.
    metaspace: bool,
    /// Ids without text if special tokens are skipped.
    specials: Vec<u32>,
    decoded_tokens: Cell<usize>,
}

impl Vocab {
    fn byte_level() -> Self {
        let mut pieces: Vec<Vec<u8>> = (0..=255u8).map(|byte| vec![byte]).collect();
        for piece in ["the", " é", "日本", "😀!"] {
            pieces.push(piece.into());
        }
        pieces.push(vec![b'a', 0xe6, 0x97]);
        pieces.push(vec![0xa5, b'b']);
        Self::new(pieces, false, vec![7])
    }

    fn metaspace() -> Self {
        let pieces = [
            "▁",
            "▁▁▁",
            "▁Hello",
            "world",
            "▁a▁b",
            "é",
            "<s>",
            ",",
            "▁日",
        ];
        Self::new(pieces.map(Vec::from).to_vec(), true, vec![6])
    }

    fn new(pieces: Vec<Vec<u8>>, metaspace: bool, specials: Vec<u32>) -> Self {
        Self {
            pieces,
            metaspace,
            specials,
            decoded_tokens: Cell::new(0),
        }
    }

    /// All ids, and one unknown id, which has no text.
    fn ids(&self) -> std::ops::RangeInclusive<u32> {
        0..=self.pieces.len() as u32
    }
}

impl TokenText for Vocab {
    fn decode(&self, tokens: &[u32], skip_special_tokens: bool, _: bool) -> String {
        self.decoded_tokens
            .set(self.decoded_tokens.get() + tokens.len());
        let skipped = |id: &&u32| !(skip_special_tokens && self.specials.contains(id));
        let pieces = tokens
            .iter()
            .filter(skipped)
            .filter_map(|&id| self.pieces.get(id as usize));
        let bytes: Vec<u8> = pieces.flatten().copied().collect();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if self.metaspace {
            text.strip_prefix('▁').unwrap_or(&text).replace('▁', " ")
        } else {
            text
        }
    }
}

/// SentencePiece with byte fallback, which validates each run of byte tokens as a whole.
struct ByteFallback;

impl TokenText for ByteFallback {
    fn decode(&self, tokens: &[u32], _: bool, _: bool) -> String {
        let is_byte = |&id: &u32| id < 256;
        let mut text = String::new();
        for run in tokens.chunk_by(|a, b| is_byte(a) == is_byte(b)) {
            let bytes: Vec<u8> = run.iter().map(|&id| id as u8).collect();
            match (is_byte(&run[0]), String::from_utf8(bytes)) {
                (true, Ok(valid)) => text.push_str(&valid),
                (true, Err(_)) => text.extend(run.iter().map(|_| char::REPLACEMENT_CHARACTER)),
                (false, _) => run.iter().for_each(|_| text.push_str(" x")),
            }
        }
        text
    }
}

/// The request parameters that affect the text.
#[derive(Default)]
struct Params {
    stop: Vec<String>,
    text: TextOptions,
}

impl Params {
    fn skip_special_tokens(skip: bool) -> Self {
        let text = TextOptions {
            skip_special_tokens: skip,
            ..TextOptions::default()
        };
        Self {
            text,
            ..Self::default()
        }
    }

    fn start(&self, context: &[u32], vocab: &dyn TokenText) -> TextStream {
        TextStream::new(
            self.text,
            Arc::new(StopTable::new(&self.stop)),
            context,
            vocab,
        )
    }
}

fn stop_at(stop: &[&str]) -> Params {
    Params {
        stop: stop.iter().map(|&stop| stop.to_owned()).collect(),
        ..Params::default()
    }
}

/// Feeds the tokens; returns the text after each token, the rest at the end, and the match.
fn stream(
    params: &Params,
    vocab: &dyn TokenText,
    tokens: &[u32],
) -> (Vec<String>, String, Option<StopMatch>) {
    let mut stream = params.start(&[], vocab);
    let mut found = None;
    let mut deltas = Vec::new();
    for &token in tokens {
        found = found.or(stream.push(token, vocab));
        deltas.push(stream.take_text());
    }
    let rest = stream.finish();
    (deltas, rest, found)
}

fn bytes(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

#[test]
fn characters_are_emitted_whole() {
    let vocab = Vocab::byte_level();
    let (deltas, rest, _) = stream(&stop_at(&[]), &vocab, &bytes("é日😀!"));
    assert_eq!(deltas, ["", "é", "", "", "日", "", "", "", "😀", "!"]);
    assert_eq!(rest, "");
    let (deltas, _, _) = stream(&stop_at(&[]), &ByteFallback, &bytes("é日😀!"));
    assert_eq!(deltas, ["", "é", "", "", "日", "", "", "", "😀", "!"]);
}

#[test]
fn invalid_bytes_are_released() {
    let vocab = Vocab::byte_level();
    let mut stream = stop_at(&[]).start(&[], &vocab);
    let mut text = String::new();
    for pushed in 1..=1000 {
        stream.push(0xff, &vocab);
        text += &stream.take_text();
        assert!(text.chars().count() + 3 >= pushed, "{pushed}");
    }
    text += &stream.finish();
    assert_eq!(text, "\u{fffd}".repeat(1000));
}

#[test]
fn an_incomplete_character_is_emitted_at_the_end() {
    let (deltas, rest, _) = stream(&stop_at(&[]), &Vocab::byte_level(), &bytes("aé")[..2]);
    assert_eq!((deltas.concat().as_str(), rest.as_str()), ("a", "\u{fffd}"));
}

#[test]
fn emitted_text_is_kept_when_byte_tokens_become_invalid() {
    let (deltas, rest, _) = stream(&stop_at(&[]), &ByteFallback, &[0xc3, 0xa9, 0xff, 300, 300]);
    assert_eq!(deltas, ["", "é", "", "\u{fffd} x", " x"]);
    assert_eq!(rest, "");
}

#[test]
fn the_first_space_is_dropped_only_without_text_in_the_context() {
    let vocab = Vocab::metaspace();
    let first = |context: &[u32]| {
        let mut stream = stop_at(&[]).start(context, &vocab);
        stream.push(2, &vocab);
        stream.push(2, &vocab);
        stream.take_text()
    };
    assert_eq!(first(&[]), "Hello Hello");
    assert_eq!(first(&[6]), "Hello Hello");
    assert_eq!(first(&[3, 7]), " Hello Hello");
}

#[test]
fn a_possible_stop_string_is_held_back_until_it_is_ruled_out() {
    let vocab = Vocab::byte_level();
    let params = stop_at(&["END", "NDX"]);
    let (deltas, rest, found) = stream(&params, &vocab, &bytes("aENx.EN"));
    assert_eq!(deltas, ["a", "", "", "ENx", ".", "", ""]);
    assert_eq!((rest.as_str(), found), ("EN", None));
}

#[test]
fn a_stop_string_ends_the_text_at_the_token_that_completes_it() {
    let vocab = Vocab::byte_level();
    let mut tokens = bytes("so E");
    tokens.extend(bytes("ND and more"));
    let (deltas, rest, found) = stream(&stop_at(&["END"]), &vocab, &tokens);
    assert_eq!((deltas.concat() + &rest).as_str(), "so ");
    let expected = StopMatch {
        output_tokens_kept: 6,
        matched: "END".into(),
    };
    assert_eq!(found, Some(expected));
    let mut keep = stop_at(&["hen", "the"]);
    keep.text.no_stop_trim = true;
    let the = [b'x'.into(), 256, 256];
    let (deltas, rest, found) = stream(&keep, &vocab, &the);
    assert_eq!((deltas.concat() + &rest).as_str(), "xthe");
    assert_eq!(found.expect("a stop string").output_tokens_kept, 2);
}

#[test]
fn a_stop_token_counts_but_has_no_text() {
    let vocab = Vocab::byte_level();
    let mut stream = stop_at(&["END"]).start(&[], &vocab);
    for token in bytes("EN") {
        stream.push(token, &vocab);
    }
    stream.push_without_text();
    assert_eq!(stream.output_tokens(), 3);
    assert_eq!(stream.finish(), "EN");
    assert_eq!(stream.push(b'x'.into(), &vocab), None);
    assert_eq!(stream.take_text(), "");
}

#[test]
fn special_tokens_have_text_only_on_request() {
    let vocab = Vocab::metaspace();
    let shown = Params::skip_special_tokens(false);
    assert_eq!(
        stream(&shown, &vocab, &[6, 2, 6, 2]).0,
        ["<s>", " Hello", "<s>", " Hello"]
    );
    assert_eq!(
        stream(&stop_at(&[]), &vocab, &[6, 2, 6, 2]).0,
        ["", "Hello", "", " Hello"]
    );
}

#[test]
fn a_token_costs_the_same_at_any_length() {
    let steady = |token: u32| (token, move |i: u32| if i == 0 { 104 } else { token });
    for (vocab, (name, token_at)) in [
        (Vocab::byte_level(), steady(256)),
        (Vocab::byte_level(), steady(7)),
        (Vocab::byte_level(), steady(0xff)),
        (Vocab::byte_level(), steady(9999)),
        (Vocab::metaspace(), steady(0)),
        (Vocab::metaspace(), steady(6)),
    ] {
        let tokens: Vec<u32> = (0..20_000).map(token_at).collect();
        stream(&stop_at(&[]), &vocab, &tokens);
        let each = vocab.decoded_tokens.get() / tokens.len();
        assert!(each < 64, "{each} tokens decoded for each token {name}");
    }
}

#[test]
fn the_longest_partial_match_of_repetitive_stop_strings_is_held() {
    let stops: Vec<String> = (0..32).map(|n| "a".repeat(992 + n) + "b").collect();
    let vocab = Vocab::byte_level();
    let params = Params {
        stop: stops,
        ..Params::default()
    };
    let (deltas, rest, found) = stream(&params, &vocab, &vec![b'a'.into(); 20_000]);
    assert_eq!(deltas.concat().len() + rest.len(), 20_000);
    assert_eq!((rest.len(), found), (1023, None));
}

/// The match by definition: the first byte of the text where a stop string ends, and the longest such string.
fn naive_match(text: &str, stops: &[String]) -> Option<(usize, String)> {
    (1..=text.len()).find_map(|end| {
        let ending = stops
            .iter()
            .filter(|stop| text.as_bytes()[..end].ends_with(stop.as_bytes()));
        let longest = ending.max_by_key(|stop| stop.len())?;
        Some((end - longest.len(), longest.clone()))
    })
}

proptest! {
    #[test]
    fn byte_level_deltas_add_up_to_the_decoded_whole(
        tokens in prop::collection::vec(prop_oneof![
            0u32..=262, 0x80u32..0x100, Just(0xe6), Just(260), Just(261), Just(0xf0), Just(7)], 0..120),
        skip in any::<bool>(),
    ) {
        let vocab = Vocab::byte_level();
        let params = Params::skip_special_tokens(skip);
        let (deltas, rest, _) = stream(&params, &vocab, &tokens);
        prop_assert_eq!(deltas.concat() + &rest, vocab.decode(&tokens, skip, true));
    }

    #[test]
    fn metaspace_deltas_add_up_to_the_decoded_whole(
        tokens in prop::collection::vec(Vocab::metaspace().ids(), 0..60), skip in any::<bool>(),
    ) {
        let vocab = Vocab::metaspace();
        let params = Params::skip_special_tokens(skip);
        let (deltas, rest, _) = stream(&params, &vocab, &tokens);
        prop_assert_eq!(deltas.concat() + &rest, vocab.decode(&tokens, skip, true));
    }

    #[test]
    fn byte_fallback_gives_back_any_valid_text(text in "[aé日😀]{0,40}", spaces in prop::collection::vec(0usize..5, 40)) {
        let mut tokens = Vec::new();
        for (character, spaces) in text.chars().zip(spaces) {
            tokens.extend(character.to_string().bytes().map(u32::from));
            tokens.extend(vec![300; spaces / 4]);
        }
        let (deltas, rest, _) = stream(&stop_at(&[]), &ByteFallback, &tokens);
        prop_assert!(!deltas.concat().contains(char::REPLACEMENT_CHARACTER));
        prop_assert_eq!(deltas.concat() + &rest, ByteFallback.decode(&tokens, true, true));
    }

    #[test]
    fn stop_strings_match_as_if_the_text_came_byte_by_byte(
        tokens in prop::collection::vec(prop_oneof![Just(97u32), Just(98), Just(256), Just(257), Just(0xe6), Just(258)], 0..40),
        stops in prop::collection::vec("[abthe日]{1,4}", 1..4),
    ) {
        let vocab = Vocab::byte_level();
        let params = Params { stop: stops.clone(), ..Params::default() };
        let (deltas, rest, found) = stream(&params, &vocab, &tokens);
        let whole = vocab.decode(&tokens, true, true);
        match naive_match(&whole, &stops) {
            None => {
                prop_assert_eq!(found, None);
                prop_assert_eq!(deltas.concat() + &rest, whole);
            }
            Some((start, matched)) => {
                let found = found.expect("the naive search found one");
                prop_assert_eq!(deltas.concat() + &rest, &whole[..start]);
                prop_assert_eq!(&found.matched, &matched);
                let kept = found.output_tokens_kept;
                let ends_in = |tokens: &[u32]| vocab.decode(tokens, true, true).contains(&matched);
                prop_assert!(ends_in(&tokens[..kept]) && !ends_in(&tokens[..kept - 1]));
            }
        }
    }
}
