//! Tests that GGUF fields set special tokens, added tokens, end tokens and templates.

use serde_json::json;

use super::*;
use crate::ChatPrompt;

const BEGIN: u32 = 258;
const END: u32 = 259;

fn with_bos_and_eos() -> VocabularyFields<'static> {
    VocabularyFields {
        bos_id: Some(BEGIN),
        eos_id: Some(END),
        ..byte_level(&[("<|begin|>", CONTROL), ("<|done|>", CONTROL)])
    }
}

fn check_prompt(fields: VocabularyFields<'_>, expect: &[u32]) {
    let model = load(fields);
    assert_eq!(model.encode("the").expect("covered"), expect);
    assert_eq!(model.encode_chat("the").expect("covered"), [257]);
}

#[test]
fn prompts_get_the_special_tokens_that_the_file_asks_for() {
    check_prompt(with_bos_and_eos(), &[257]);
    let adding = |add_bos, add_eos| VocabularyFields {
        add_bos: Some(add_bos),
        add_eos: Some(add_eos),
        ..with_bos_and_eos()
    };
    check_prompt(adding(true, false), &[BEGIN, 257]);
    check_prompt(adding(true, true), &[BEGIN, 257, END]);
    let llama3 = |add_bos| VocabularyFields {
        pre: Some("llama-bpe".to_owned()),
        add_bos,
        ..with_bos_and_eos()
    };
    check_prompt(llama3(None), &[BEGIN, 257]);
    check_prompt(llama3(Some(false)), &[257]);
    // Without `bos_id`, no token is added.
    let without = VocabularyFields {
        bos_id: None,
        ..adding(true, false)
    };
    check_prompt(without, &[257]);
}

#[test]
fn added_tokens_are_control_and_user_defined_tokens() {
    let model = load(byte_level(&[
        ("<|control|>", CONTROL),
        ("<tool_call>", USER),
        ("[PAD260]", UNUSED),
        ("[PAD261]", USER),
        ("", 1),
    ]));
    let ids = model
        .encode("<tool_call><|control|>")
        .expect("bytes are covered");
    assert_eq!(ids, [259, 258]);
    assert_eq!(model.decode(&ids, true, true), "<tool_call>");
    assert_eq!(model.decode(&ids, false, true), "<tool_call><|control|>");
    assert!(model.is_special(258) && !model.is_special(259));
    for filler in ["[PAD260]", "[PAD261]"] {
        assert_eq!(model.encode(filler).expect("bytes").len(), filler.len());
        assert_eq!(model.token_id(filler), None);
    }
    assert_eq!(model.vocab_size(), 260);
}

#[test]
fn words_that_are_tokens_stay_whole_where_merges_are_ignored() {
    let fields = |pre: &str| VocabularyFields {
        pre: Some(pre.to_owned()),
        ..byte_level(&[("her", 1)])
    };
    let ids = |pre| load(fields(pre)).encode("her").expect("covered");
    assert_eq!(ids("llama-bpe"), [258]);
    assert_eq!(ids("smaug-bpe"), [104, 101, 114]);
}

#[test]
fn qwen_normalizes_to_nfc_and_llama_does_not() {
    let ids = |pre: &str| {
        let fields = VocabularyFields {
            pre: Some(pre.to_owned()),
            ..byte_level(&[])
        };
        load(fields).encode("e\u{301}").expect("covered").len()
    };
    assert_eq!(ids("qwen2"), 2);
    assert_eq!(ids("llama-bpe"), 3);
}

#[test]
fn outputs_end_at_named_ids_and_known_control_tokens() {
    let check = |fields: &VocabularyFields<'_>, expect: &[u32]| {
        assert_eq!(fields.end_token_ids(), expect);
    };
    check(&with_bos_and_eos(), &[END]);
    check(&byte_level(&[("</s>", USER), ("<eos>", 1)]), &[]);
    check(
        &byte_level(&[("</s>", CONTROL), ("<|im_end|>", USER)]),
        &[258, 259],
    );
    let phi = byte_level(&[("<|end|>", CONTROL), ("<|return|>", CONTROL)]);
    check(&phi, &[258, 259]);
    let harmony = [
        ("<|end|>", CONTROL),
        ("<|return|>", CONTROL),
        ("<|call|>", CONTROL),
    ];
    check(&byte_level(&harmony), &[259, 260]);
    let named = VocabularyFields {
        eot_id: Some(3),
        eom_id: Some(2),
        eos_id: Some(1 << 30),
        ..byte_level(&[])
    };
    check(&named, &[2, 3]);
}

#[test]
fn templates_come_from_the_file() {
    let messages = json!([{"role": "user", "content": "x"}]);
    let tools = json!([{"type": "function"}]);
    let fields = VocabularyFields {
        chat_template: Some("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}".to_owned()),
        tool_use_template: Some("tools".to_owned()),
        ..with_bos_and_eos()
    };
    let model = load(fields);
    let plain = ChatPrompt::new(&messages);
    let rendered = model.render_chat(&plain).expect("it compiles");
    assert_eq!(rendered, "<|begin|>x<|done|>");
    let tools = serde_json::value::to_raw_value(&tools).expect("it is JSON");
    let with_tools = ChatPrompt {
        tools: Some(&tools),
        ..plain
    };
    assert_eq!(
        model.render_chat(&with_tools).expect("it compiles"),
        "tools"
    );
}

#[test]
fn a_missing_or_broken_template_refuses_chats_and_names_the_file() {
    let messages = json!([{"role": "user", "content": "x"}]);
    let error = |template: Option<&str>| {
        let fields = VocabularyFields {
            chat_template: template.map(str::to_owned),
            ..byte_level(&[])
        };
        let model = load(fields);
        assert_eq!(model.encode("the").expect("covered"), [257]);
        let refused = model.render_chat(&ChatPrompt::new(&messages));
        refused.expect_err("no usable template").to_string()
    };
    for none in [None, Some(""), Some("\n")] {
        assert!(error(none).ends_with("load a GGUF file with the key tokenizer.chat_template"));
    }
    let broken = error(Some("{% if %}"));
    assert!(broken.contains("model.gguf does not compile"), "{broken}");
}
