//! Tests that the formats of tool calls and thinking are detected from templates and tokens, and that each template
//! gets calls and tools in the form that it expects.

use super::*;
use souffleur_output::output::{ReasoningFormat as Thinking, ToolFormat as Calls};

type Case<'a> = (&'a str, &'a [&'a str], Option<Calls>, Option<Thinking>);

const HERMES: &str = "{{ tools }}<tool_call>{\"name\": }</tool_call>";

fn check(cases: &[Case<'_>]) {
    for (template, tokens, calls, thinking) in cases {
        let model = ModelDir::new(&byte_level_with(tokens))
            .with("chat_template.jinja", template)
            .load();
        assert_eq!(model.tool_format(), *calls, "{template} {tokens:?}");
        assert_eq!(model.reasoning_format(), *thinking, "{template} {tokens:?}");
    }
}

#[test]
fn templates_determine_the_formats() {
    check(&[
        ("plain", &[], None, None),
        (HERMES, &[], Some(Calls::Hermes), None),
        (
            HERMES,
            &["<think>", "</think>"],
            Some(Calls::Hermes),
            Some(Thinking::Think),
        ),
        (
            "<tool_call>\n<function=a>",
            &[],
            Some(Calls::Qwen3Coder),
            None,
        ),
        (
            "<tool_call>a\n<arg_key>b</arg_key>\n<arg_value>",
            &[],
            Some(Calls::Glm45),
            None,
        ),
        (
            "<tool_call>a<arg_key>b</arg_key><arg_value>",
            &[],
            Some(Calls::Glm47),
            None,
        ),
        (
            "<｜tool▁calls▁begin｜>function\n```json",
            &[],
            Some(Calls::DeepSeekV3),
            None,
        ),
        (
            "<｜tool▁calls▁begin｜></think>",
            &[],
            Some(Calls::DeepSeekV31),
            Some(Thinking::Think),
        ),
        ("[THINK][/THINK]", &[], None, Some(Thinking::MistralThink)),
    ]);
}

#[test]
fn tokens_of_the_vocabulary_determine_the_formats() {
    check(&[
        (
            "{{ tools }}",
            &["<|tool_call_start|>"],
            Some(Calls::Lfm2),
            None,
        ),
        ("{{ tools }}", &["[TOOL_CALLS]"], Some(Calls::Mistral), None),
        (
            "{{ tools }}respond only with <|tool_call|> followed by a JSON list",
            &["<|tool_call|>"],
            Some(Calls::Granite),
            None,
        ),
        // Granite 4 keeps Granite 3's token but writes calls in the Hermes format.
        (HERMES, &["<|tool_call|>"], Some(Calls::Hermes), None),
        (
            "{{ m['tools'] }}<|tool|>",
            &["<|tool_call|>", "<|/tool_call|>"],
            Some(Calls::Phi4Mini),
            None,
        ),
        (
            "{{ tools }}{\"name\", \"parameters\": }",
            &["<|python_tag|>"],
            Some(Calls::Llama3),
            None,
        ),
        (
            "{{ tools }}",
            &["<|python_tag|>"],
            Some(Calls::Pythonic),
            None,
        ),
        ("plain", &["<|python_tag|>"], None, None),
        (
            "{{ tools }}",
            &["[TOOL_CALLS]", "[THINK]", "[/THINK]"],
            Some(Calls::Mistral),
            Some(Thinking::MistralThink),
        ),
        (
            "<|tool_call>call:<|channel>thought\n<channel|>",
            &["<|tool_call>", "<tool_call|>", "<|channel>", "<channel|>"],
            Some(Calls::Gemma4),
            Some(Thinking::Gemma4),
        ),
        (
            "{{ tools }}",
            &["<|channel|>", "<|message|>", "<|call|>"],
            Some(Calls::GptOss),
            Some(Thinking::GptOss),
        ),
    ]);
}

#[test]
fn the_most_specific_of_several_formats_is_chosen() {
    let channels = ["<|channel|>", "<|message|>", "<|call|>"];
    let hermes = "{{ tools }}<tool_call>{\"name\": \"parameters\": }</tool_call>";
    let thinking = Some(Thinking::Think);
    check(&[
        (hermes, &["<|python_tag|>"], Some(Calls::Hermes), None),
        (
            "<tool_call><function=a><arg_key>",
            &[],
            Some(Calls::Glm45),
            None,
        ),
        (
            "<tool_call><｜tool▁calls▁begin｜></think>",
            &["[/THINK]"],
            Some(Calls::DeepSeekV31),
            thinking,
        ),
        (
            "<tool_call></think>",
            &channels,
            Some(Calls::GptOss),
            Some(Thinking::GptOss),
        ),
        (
            "<tool_call>[TOOL_CALLS]",
            &["[TOOL_CALLS]", "</think>", "[/THINK]"],
            Some(Calls::Mistral),
            thinking,
        ),
        (
            hermes,
            &["<|channel|>", "<|message|>"],
            Some(Calls::Hermes),
            None,
        ),
    ]);
}

/// A model may have the vocabulary of its base model, so its template takes precedence.
#[test]
fn the_template_takes_precedence_over_the_vocabulary() {
    let hermes = "{{ tools }}<tool_call>{\"name\": }</tool_call>";
    let mistral = ["[TOOL_CALLS]", "[THINK]", "[/THINK]"];
    let lfm2 = ["<|tool_call_start|>", "</think>"];
    let thinking = Some(Thinking::MistralThink);
    check(&[
        (hermes, &mistral, Some(Calls::Hermes), thinking),
        (hermes, &lfm2, Some(Calls::Hermes), Some(Thinking::Think)),
        (
            "{{ tools }}[THINK][/THINK]",
            &lfm2,
            Some(Calls::Lfm2),
            thinking,
        ),
        (
            "{{ tools }}<tool_call></think>[/THINK]",
            &mistral,
            Some(Calls::Hermes),
            Some(Thinking::Think),
        ),
    ]);
}

#[test]
fn calls_are_put_into_the_content_if_an_lfm2_template_omits_them() {
    let template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if tools %}List of tools{% endif %}";
    let call = json!({"function": {"name": "f", "arguments": "{\"x\": 1}"}});
    let chat =
        json!([{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": [call]}]);
    let render = |tokens: &[&str]| {
        let model = ModelDir::new(&byte_level_with(tokens))
            .with("chat_template.jinja", template)
            .load();
        let rendered = model.render_chat(&ChatPrompt::new(&chat));
        rendered.expect("renders")
    };
    let tokens = ["<|tool_call_start|>", "<|tool_call_end|>"];
    let expected = "<user>a<assistant><|tool_call_start|>[f(x=1)]<|tool_call_end|>";
    assert_eq!(render(&tokens), expected);
    assert_eq!(render(&[]), "<user>a<assistant>");
}

#[test]
fn tools_are_put_where_each_template_reads_them() {
    let tools = json!([{"type": "function", "function": {"name": "seat", "parameters": {"type": "object"}}}]);
    let function = r#"{"name": "seat", "parameters": {"type": "object"}}"#;
    let render = |template: &str, tokens: &[&str], messages: &serde_json::Value| {
        let model = ModelDir::new(&byte_level_with(tokens))
            .with("chat_template.jinja", template)
            .load();
        let tools = serde_json::value::to_raw_value(&tools).expect("it is JSON");
        let prompt = ChatPrompt {
            tools: Some(&tools),
            ..ChatPrompt::new(messages)
        };
        model.render_chat(&prompt).expect("renders")
    };
    let call = json!({"function": {"name": "seat", "arguments": "{}"}});
    let chat = json!([
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b", "tool_calls": [call]},
    ]);
    // Phi-4-mini.
    let phi = "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}\
               {% if 'tools' in message and message['tools'] is not none %}\
               <|tool|>{{ message['tools'] }}<|/tool|>{% endif %}<|end|>{% endfor %}";
    let tokens = ["<|tool_call|>", "<|/tool_call|>"];
    let answer = r#"<|tool_call|>[{"name": "seat", "arguments": {}}]<|/tool_call|>"#;
    let expected = format!(
        "<|system|><|tool|>[{function}]<|/tool|><|end|><|user|>a<|end|><|assistant|>b{answer}<|end|>"
    );
    assert_eq!(render(phi, &tokens, &chat), expected);
    let instructed = json!([{"role": "system", "content": "Be brief."}]);
    let expected = format!("<|system|>Be brief.<|tool|>[{function}]<|/tool|><|end|>");
    assert_eq!(render(phi, &tokens, &instructed), expected);
    // SmolLM3.
    let smollm3 = "{% if xml_tools %}{% for tool in xml_tools %}{{ tool | tojson }}{% endfor %}<tool_call>{% endif %}\
                   {% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}";
    let answer = "<tool_call>\n{\"name\": \"seat\", \"arguments\": {}}\n</tool_call>";
    let expected = format!("{function}<tool_call><user>a<assistant>b{answer}");
    assert_eq!(render(smollm3, &[], &chat), expected);
    // Granite 3.
    let granite = "{{ tools | tojson }}{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}{% endfor %}";
    let expected = "<user>a<assistant>b<|tool_call|>[{\"name\": \"seat\", \"arguments\": {}}]";
    let rendered = render(granite, &["<|tool_call|>"], &chat);
    assert!(rendered.ends_with(expected), "{rendered}");
}
