//! Tests that user-defined and control pieces encode as in SentencePiece, `tokenizer.json` and llama.cpp.

use super::*;
use crate::TokenPiece;

/// A vocabulary like Gemma's: letters, then words with decreasing scores, then `added`. Runs of spaces, newlines and
/// tabs are user-defined, with the score that converters give them.
fn gemma(added: &[(&str, i32)], prefix: bool) -> VocabularyFields<'static> {
    let mut tokens: Vec<String> = ["<pad>", "<eos>", "<bos>", "<unk>"]
        .map(str::to_owned)
        .to_vec();
    let mut token_types = vec![CONTROL; tokens.len()];
    tokens.extend((0..256).map(|byte| format!("<0x{byte:02X}>")));
    token_types.resize(tokens.len(), 6);
    let letters = ('a'..='z').chain("HI▁<>/{}();_".chars());
    tokens.extend(letters.map(String::from));
    let words = [
        "in", "ind", "▁i", "▁in", "ll", "ell", "ello", "Hello", "▁Hello", "Hi", "▁x", "▁▁x",
    ];
    tokens.extend(words.map(str::to_owned));
    token_types.resize(tokens.len(), 1);
    let mut scores: Vec<f32> = (0..tokens.len()).map(|id| -(id as f32)).collect();
    for (text, kind) in added {
        tokens.push((*text).to_owned());
        token_types.push(*kind);
        scores.push(-1000.0);
    }
    VocabularyFields {
        model: "llama".to_owned(),
        tokens: owned(tokens),
        token_types,
        scores,
        bos_id: Some(2),
        eos_id: Some(1),
        unknown_id: Some(3),
        add_space_prefix: Some(prefix),
        ..VocabularyFields::default()
    }
}

const RUNS: [(&str, i32); 8] = [
    ("\n", USER),
    ("\n\n", USER),
    ("  ", USER),
    ("   ", USER),
    ("    ", USER),
    ("\t\t", USER),
    ("<td>", USER),
    ("<turn>", CONTROL),
];

fn tokens(model: &TextModel, text: &str) -> Vec<String> {
    let ids = model.encode_chat(text).expect("bytes are covered");
    assert_eq!(model.decode(&ids, false, true), text, "decoded text");
    ids.into_iter()
        .map(|id| model.token(id).expect("a token"))
        .collect()
}

#[test]
fn runs_of_spaces_come_before_all_merges() {
    let model = load(gemma(&RUNS, false));
    let check = |text: &str, expect: &[&str]| assert_eq!(tokens(&model, text), expect, "{text:?}");
    check("Hi  Hello", &["Hi", "▁▁", "Hello"]);
    check("Hi Hello", &["Hi", "▁Hello"]);
    check("    in\n   in", &["▁▁▁▁", "in", "\n", "▁▁▁", "in"]);
    // Runs are matched leftmost-longest. Merges neither extend nor split them.
    check("       in", &["▁▁▁▁", "▁▁▁", "in"]);
    check("     in", &["▁▁▁▁", "▁in"]);
    check("  x", &["▁▁", "x"]);
    check(" x", &["▁x"]);
    check("Hi\n\n\n  ", &["Hi", "\n\n", "\n", "▁▁"]);
    check("\t\t\t", &["\t\t", "<0x09>"]);
    check(
        "<td>  <td> <td",
        &["<td>", "▁▁", "<td>", "▁", "<", "t", "d"],
    );
    check("  <turn>  in", &["▁▁", "<turn>", "▁▁", "in"]);
}

/// SentencePiece reads U+2581 as a space in prompts, too.
#[test]
fn u_2581_in_a_text_is_a_space() {
    let model = load(gemma(&RUNS, false));
    let ids = |text| model.encode_chat(text).expect("bytes are covered");
    assert_eq!(ids("Hi▁▁Hello"), ids("Hi  Hello"));
    assert_eq!(ids("Hi▁ Hello"), ids("Hi  Hello"));
}

/// The space that is prepended to a text joins the run that follows it. Text after a run gets no space, as in
/// SentencePiece and in the merges of `tokenizer.json`, so that decoding restores the text.
#[test]
fn runs_of_spaces_include_the_prepended_space() {
    let model = load(gemma(&RUNS, true));
    let check = |text: &str, expect: &[&str]| assert_eq!(tokens(&model, text), expect, "{text:?}");
    check("Hi  Hello", &["▁", "Hi", "▁▁", "Hello"]);
    check(" Hi", &["▁▁", "Hi"]);
    check("   Hi", &["▁▁▁▁", "Hi"]);
}

#[test]
fn pieces_of_white_space_and_letters_are_found_whole() {
    let added = [
        ("\n", USER),
        ("\n  ", USER),
        ("  in", USER),
        ("▁<td>", USER),
        ("<td>", USER),
    ];
    let model = load(gemma(&added, false));
    let check = |text: &str, expect: &[&str]| assert_eq!(tokens(&model, text), expect, "{text:?}");
    check("Hi\n  in", &["Hi", "\n▁▁", "in"]);
    check("Hi  in", &["Hi", "▁▁in"]);
    check("Hi   in", &["Hi", "▁", "▁▁in"]);
}

#[test]
fn a_word_with_the_text_of_a_user_defined_piece_stays_a_word() {
    let mut fields = gemma(&[("  ", USER)], false);
    fields.tokens.push("▁▁".into());
    fields.token_types.push(1);
    fields.scores.push(-1.0);
    let model = load(fields);
    let ids = model.encode_chat("Hi  in").expect("covered");
    assert_eq!(model.token(ids[1]).as_deref(), Some("  "));
    assert_eq!(model.decode(&ids, true, true), "Hi  in");
}

#[test]
fn runs_of_spaces_are_text_to_grammars() {
    for prefix in [false, true] {
        let model = load(gemma(&RUNS, prefix));
        let id = |text: &str| model.token_id(text).expect("a token") as usize;
        let pieces = model.pieces().expect("the spelling is known");
        assert_eq!(pieces[id("▁▁▁")], TokenPiece::Bytes(b"   ".to_vec()));
        assert_eq!(pieces[id("\n\n")], TokenPiece::Bytes(b"\n\n".to_vec()));
        assert_eq!(pieces[id("<td>")], TokenPiece::Marker("<td>".to_owned()));
        let fragment = model.encode_fragment("{\n   in").expect("known bytes");
        let expect = ["{", "\n", "▁▁▁", "in"].map(|text| id(text) as u32);
        assert_eq!(fragment, expect);
    }
}

/// DeepSeek's vocabularies have added tokens whose letters spell bytes in GPT-2's table.
#[test]
fn added_tokens_whose_letters_spell_bytes_decode_to_letters() {
    let added = [
        ("öl", USER),
        ("Ġx", USER),
        ("été", CONTROL),
        ("<｜ok｜>", CONTROL),
    ];
    let model = load(byte_level(&added));
    let text = "thöl ölÄ Ġx été<｜ok｜>";
    let ids = model.encode(text).expect("bytes are covered");
    let found = |id| ids.contains(&id);
    assert!((258..262).all(found), "{ids:?}");
    assert_eq!(model.decode(&ids, false, true), text);
    assert_eq!(model.decode(&ids, true, true), "thöl ölÄ Ġx ");
    assert_eq!(model.token_text(258), "öl");
}

/// In Phi-3's `tokenizer.json` these markers have `rstrip`, which a GGUF file does not record.
#[test]
fn the_markers_of_phi_3_absorb_the_white_space_after_them() {
    let added = [
        ("<|user|>", CONTROL),
        ("<|end|>", CONTROL),
        ("</s>", USER),
        ("<s>", CONTROL),
    ];
    let model = |architecture: &str| {
        load(VocabularyFields {
            architecture: Some(architecture.to_owned()),
            ..gemma(&added, true)
        })
    };
    let tokens = |model: &TextModel| {
        let ids = model
            .encode_chat("<|user|>\n in</s> \t<|end|>\n<s> x")
            .expect("covered");
        ids.into_iter()
            .map(|id| model.token(id).expect("a token"))
            .collect::<Vec<_>>()
    };
    let phi = ["<|user|>", "▁in", "</s>", "<|end|>", "<s>", "▁▁x"];
    let found = tokens(&model("phi3"));
    assert_eq!(found, phi);
    assert_eq!(&tokens(&model("llama"))[..3], ["<|user|>", "▁", "<0x0A>"]);
}
