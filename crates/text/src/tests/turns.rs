//! Tests that the starts of turns are found in the tokens of a chat.

use super::*;

/// A ChatML template. If thinking is disabled, an answer begins with an empty thinking block.
const TURNS: &str = "{%- if messages[0].role != 'system' %}<|im_start|>system\nHelp.<|im_end|>\n{% endif %}\
    {%- for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
    {%- if add_generation_prompt %}<|im_start|>assistant\n\
    {%- if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}";

#[test]
fn anchors_are_after_the_instructions_and_before_the_answer() {
    let dir = ModelDir::new(&byte_level()).with("chat_template.jinja", TURNS);
    let model = dir.load();
    let turns = TurnMarks::learn(&model);
    let say = |role: &str, content: &str| json!({"role": role, "content": content});
    let parts = |messages: Value, kwargs: Option<&Map<String, Value>>| -> Vec<String> {
        let prompt = ChatPrompt {
            template_kwargs: kwargs,
            ..ChatPrompt::new(&messages)
        };
        let rendered = model.render_chat(&prompt).expect("it renders");
        let tokens = model
            .encode_chat(&rendered)
            .expect("bytes are in the vocabulary");
        let anchors = turns.anchors(&tokens, 1).into_iter();
        let before = anchors.map(|anchor| model.decode(&tokens[..anchor as usize], false, true));
        before.collect()
    };
    let system = "<|im_start|>system\nYou are terse.<|im_end|>\n";
    let chat = json!([
        say("system", "You are terse."),
        say("user", "Hi"),
        say("assistant", "Ho"),
        say("user", "Bye")
    ]);
    let asked = format!(
        "{system}<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHo<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n"
    );
    assert_eq!(
        parts(chat.clone(), None),
        [system.to_owned(), asked.clone()]
    );
    let no_thinking = Map::from_iter([("enable_thinking".to_owned(), json!(false))]);
    assert_eq!(parts(chat, Some(&no_thinking)), [system.to_owned(), asked]);
    let without = parts(json!([say("user", "Hi")]), None);
    assert_eq!(without[0], "<|im_start|>system\nHelp.<|im_end|>\n");
}

#[test]
fn a_model_without_a_template_has_no_turns() {
    let model = ModelDir::new(&byte_level()).load();
    assert_eq!(TurnMarks::learn(&model), TurnMarks::default());
    assert_eq!(TurnMarks::default().anchors(&[1, 2, 3], 1), [] as [u32; 0]);
}

/// Templates like those of several model families, each with the text up to the first anchor.
#[test]
fn turns_of_many_templates_are_found() {
    let each = |turn: &str, open: &str| {
        format!(
            "{{%- for m in messages %}}{turn}{{% endfor %}}{{% if add_generation_prompt %}}{open}{{% endif %}}"
        )
    };
    let chatml = "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n";
    let demanding = "{%- if not messages | selectattr('role', 'equalto', 'user') | list %}\
        {{ raise_exception('nobody asks') }}{% endif %}";
    let thinks = "<|im_start|>assistant\n<think>\n\
        {%- if enable_thinking is defined and not enable_thinking %}\n</think>\n\n{% endif %}";
    let plain = "{% if m.role == 'user' %}<U>{{ m.content }}{% elif m.role == 'system' %}{{ m.content }}\
        {% else %}<A>{{ m.content }}</s>{% endif %}";
    let deepseek = "{% if m.role == 'user' %}<｜User｜>{{ m.content }}{% elif m.role == 'system' %}{{ m.content }}\
        {% else %}<｜Assistant｜></think>{{ m.content }}<｜end▁of▁sentence｜>{% endif %}";
    let deepseek_reply = "<｜Assistant｜>{% if thinking is defined and thinking %}<think>{% else %}</think>{% endif %}";
    check(
        &each(chatml, "<|im_start|>assistant\n"),
        "<|im_start|>system\nYou are terse.<|im_end|>\n",
    );
    check(
        &(demanding.to_owned() + &each(chatml, thinks)),
        "<|im_start|>system\nYou are terse.",
    );
    check(&each(plain, "<A>"), "You are terse.");
    check(&each(deepseek, deepseek_reply), "You are terse.");
    check(
        &each(deepseek, "<｜Assistant｜><think>\n"),
        "You are terse.",
    );
    check(
        &format!(
            "[gMASK]<sop>{}",
            each("<|{{ m.role }}|>\n{{ m.content }}", "<|assistant|>\n")
        ),
        "[gMASK]<sop><|system|>\nYou are terse.",
    );
    check(
        &each(
            "<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>",
            "<|start|>assistant",
        ),
        "<|start|>system<|message|>You are terse.<|end|>",
    );
}

/// Checks that prompts have the same anchors with thinking on, off and by default, whether tags are tokens or not.
fn check(template: &str, instructions: &str) {
    let tags: [&[&str]; 2] = [
        &[],
        &["<think>", "</think>", "<｜User｜>", "<｜Assistant｜>"],
    ];
    for tags in tags {
        for thinks in [None, Some(false), Some(true)] {
            let model = ModelDir::new(&byte_level_with(tags)).with("chat_template.jinja", template);
            check_turns(&model.load(), thinks, instructions);
        }
    }
}

fn check_turns(model: &TextModel, thinks: Option<bool>, instructions: &str) {
    let say = |role: &str, content: &str| json!({"role": role, "content": content});
    let messages = json!([
        say("system", "You are terse."),
        say("user", "Hi"),
        say("assistant", "Ho"),
        say("user", "Bye")
    ]);
    let kwargs = thinks.map(|thinks| {
        let names = ["enable_thinking", "thinking"];
        Map::from_iter(names.map(|name| (name.to_owned(), json!(thinks))))
    });
    let render = |opens_reply| {
        let rendered = model.render_chat(&ChatPrompt {
            add_generation_prompt: opens_reply,
            template_kwargs: kwargs.as_ref(),
            ..ChatPrompt::new(&messages)
        });
        let rendered = rendered.expect("it renders");
        let tokens = model.encode_chat(&rendered);
        tokens.expect("bytes are in the vocabulary")
    };
    let (prompt, before_reply) = (render(true), render(false));
    let anchors = TurnMarks::learn(model).anchors(&prompt, 1);
    let texts: Vec<String> = anchors
        .iter()
        .map(|anchor| model.decode(&prompt[..*anchor as usize], false, true))
        .collect();
    let whole = model.decode(&prompt, false, true);
    assert_eq!(texts.len(), 2, "{whole}: {texts:?}");
    assert_eq!(texts[0], instructions, "{whole}");
    assert_eq!(anchors[1] as usize, before_reply.len(), "{whole}");
}

/// A bug of llama.cpp: it searched for the end of the user's query at the wrong message, so a tool loop kept no state
/// there.
#[test]
fn a_tool_loop_has_an_anchor_at_the_end_of_the_query() {
    let dir = ModelDir::new(&byte_level()).with("chat_template.jinja", TURNS);
    let model = dir.load();
    let turns = TurnMarks::learn(&model);
    let say = |role: &str, content: &str| json!({"role": role, "content": content});
    let messages = json!([
        say("system", "You are terse."),
        say("user", "Hi"),
        say("assistant", "Ho"),
        say("user", "Look!"),
        say("assistant", "call"),
        say("tool", "one"),
        say("assistant", "call"),
        say("tool", "two"),
    ]);
    let rendered = model.render_chat(&ChatPrompt::new(&messages));
    let tokens = model.encode_chat(&rendered.expect("it renders"));
    let tokens = tokens.expect("bytes are in the vocabulary");
    let texts = |replies: usize| -> Vec<String> {
        let anchors = turns.anchors(&tokens, replies).into_iter();
        let texts = anchors.map(|anchor| model.decode(&tokens[..anchor as usize], false, true));
        texts.collect()
    };
    let ends = |texts: &[String]| -> Vec<bool> {
        let ends = ["terse.<|im_end|>\n", "Look!<|im_end|>\n", "two<|im_end|>\n"];
        let pairs = texts.iter().zip(ends);
        pairs.map(|(text, end)| text.ends_with(end)).collect()
    };
    let found = texts(3);
    assert_eq!(ends(&found), [true; 3], "{found:?}");
    // With more replies than the chat has, the end of the query is unknown.
    assert_eq!(texts(9).len(), 2);
    assert_eq!(texts(0).len(), 2);
}
