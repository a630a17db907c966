//! Tests of chat templates, and of the limits on rendering them.

mod calls;
mod hostile;
mod python;
mod tools;

use std::path::PathBuf;

use serde_json::json;
use serde_json::value::RawValue;

use super::*;

const CHATML: &str = r#"
{%- for message in messages %}
    {%- if loop.first and messages[0]['role'] != 'system' %}
        {{- '<|im_start|>system\nBe helpful.<|im_end|>\n' }}
    {%- endif %}
    {{- '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
"#;

const LLAMA3: &str = r#"
{{- bos_token }}
{%- if not date_string is defined %}
    {%- set date_string = strftime_now("%d %b %Y") %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\n\nToday Date: " + date_string + "\n\n" + system_message + "<|eot_id|>" }}
{%- if tools is not none %}{{- tools | tojson(indent=2) }}{%- endif %}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}
"#;

const MISTRAL: &str = r#"{{ bos_token }}{% for message in messages %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
    {{ raise_exception('roles must alternate user/assistant') }}
{% endif %}
{% if message.role == 'user' %}{{ '[INST] ' ~ message.content ~ ' [/INST]' }}{% else %}{{ ' ' ~ message.content ~ eos_token }}{% endif %}
{% endfor %}"#;

const QWEN3: &str = r#"
{%- set ns = namespace(last_query=messages|length - 1, searching=true) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.searching and message.role == "user" and message.content is string and not (message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.searching = false %}
        {%- set ns.last_query = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content %}
    {%- if message.role == "assistant" and '</think>' in content %}
        {%- set reasoning = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
        {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- if loop.index0 > ns.last_query %}
            {%- set content = '<think>\n' + reasoning.strip('\n') + '\n</think>\n\n' + content %}
        {%- endif %}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\n' + content }}
    {%- for call in message.tool_calls %}
        {{- '\n<tool_call>' + call.function.name + ' ' + call.function.arguments | tojson + '</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}
"#;

fn compile(source: &str) -> ChatTemplate {
    let sources = TemplateSources {
        file: PathBuf::from("chat_template.jinja"),
        default: source.to_owned(),
        tool_use: None,
    };
    let special = SpecialTokens {
        bos: Some("<s>".to_owned()),
        eos: Some("</s>".to_owned()),
        ..SpecialTokens::default()
    };
    ChatTemplate::compile(sources, &special)
}

fn render(source: &str, messages: Json) -> String {
    compile(source)
        .render(&ChatPrompt::new(&messages))
        .expect("renders")
}

fn refused(source: &str, messages: Json) -> String {
    compile(source)
        .render(&ChatPrompt::new(&messages))
        .expect_err("is refused")
        .to_string()
}

fn raw(json: &Json) -> Box<RawValue> {
    serde_json::value::to_raw_value(json).expect("it is JSON")
}

fn say(role: &str, content: &str) -> Json {
    json!({"role": role, "content": content})
}

#[test]
fn a_template_is_probed_for_late_system_messages() {
    const HOISTS: &str = "{% for m in messages if m.role == 'system' %}{{ m.content }}{% endfor %}\
                          {% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}";
    const LEAVES_OUT: &str =
        "{% for m in messages if m.role == 'user' or loop.first %}{{ m.content }}{% endfor %}";
    for (source, takes) in [
        (CHATML, true),
        (LLAMA3, true),
        (MISTRAL, false),
        (HOISTS, false),
        (LEAVES_OUT, false),
    ] {
        let sources = TemplateSources {
            file: PathBuf::from("chat_template.jinja"),
            default: source.to_owned(),
            tool_use: None,
        };
        let template = ChatTemplate::compile(sources, &SpecialTokens::default());
        assert_eq!(template.takes_late_system(false), takes, "{source}");
        assert_eq!(template.takes_late_system(true), takes, "{source}");
    }
}

#[test]
fn chatml_renders_turns_and_the_generation_prompt() {
    let chat = json!([
        say("user", "2 < 3 & \"so\"?"),
        say("assistant", "yes"),
        say("user", "ok")
    ]);
    let system = "<|im_start|>system\nBe helpful.<|im_end|>\n";
    let turns = "<|im_start|>user\n2 < 3 & \"so\"?<|im_end|>\n<|im_start|>assistant\nyes<|im_end|>\n\
        <|im_start|>user\nok<|im_end|>\n";
    let opening = "<|im_start|>assistant\n";
    assert_eq!(
        render(CHATML, chat.clone()),
        format!("{system}{turns}{opening}")
    );
    let closed = ChatPrompt {
        add_generation_prompt: false,
        ..ChatPrompt::new(&chat)
    };
    assert_eq!(
        compile(CHATML).render(&closed).expect("renders"),
        format!("{system}{turns}")
    );
}

#[test]
fn llama3_has_the_date_the_bos_token_and_indented_tools() {
    let chat = json!([say("system", " Be brief. "), say("user", "hi")]);
    let kwargs = json!({"date_string": "26 Jul 2024"});
    let tools = raw(&json!([{"name": "f", "parameters": {"z": [], "a": "<é>"}}]));
    let prompt = ChatPrompt {
        tools: Some(&tools),
        template_kwargs: kwargs.as_object(),
        ..ChatPrompt::new(&chat)
    };
    let indented = "[\n  {\n    \"name\": \"f\",\n    \"parameters\": {\n      \"z\": [],\n      \"a\": \"<é>\"\n    }\n  }\n]";
    assert_eq!(
        compile(LLAMA3).render(&prompt).expect("renders"),
        format!(
            "<s><|start_header_id|>system<|end_header_id|>\n\nToday Date: 26 Jul 2024\n\nBe brief.<|eot_id|>{indented}\
             <|start_header_id|>user<|end_header_id|>\n\nhi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
        )
    );
    let today = render(LLAMA3, chat);
    let date = today
        .split("Today Date: ")
        .nth(1)
        .expect("a date")
        .split('\n')
        .next()
        .expect("a line");
    assert_eq!(date.len(), "26 Jul 2024".len(), "{date}");
}

#[test]
fn mistral_rejects_roles_out_of_order_with_its_own_message() {
    let chat = json!([say("user", "a"), say("assistant", "b"), say("user", "c")]);
    assert_eq!(
        render(MISTRAL, chat),
        "<s>[INST] a [/INST] b</s>[INST] c [/INST]"
    );
    let error = refused(MISTRAL, json!([say("user", "a"), say("user", "b")]));
    assert_eq!(
        error,
        "the chat template rejects the messages: roles must alternate user/assistant"
    );
}

#[test]
fn qwen3_drops_old_reasoning_and_can_skip_thinking() {
    let chat = json!([
        say("user", "a"), say("assistant", "<think>\nold\n</think>\n\nb"), say("user", "c"),
        {"role": "assistant", "content": null, "tool_calls": [
            {"function": {"name": "f", "arguments": "{\"x\": 1, \"a\": [true, null]}"}}]},
    ]);
    let expected = "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n<|im_start|>user\nc<|im_end|>\n\
        <|im_start|>assistant\n\n<tool_call>f {\"x\": 1, \"a\": [true, null]}</tool_call><|im_end|>\n\
        <|im_start|>assistant\n";
    assert_eq!(render(QWEN3, chat.clone()), expected);
    let kwargs = json!({"enable_thinking": false});
    let prompt = ChatPrompt {
        template_kwargs: kwargs.as_object(),
        ..ChatPrompt::new(&chat)
    };
    let without = compile(QWEN3).render(&prompt).expect("renders");
    assert_eq!(without, format!("{expected}<think>\n\n</think>\n\n"));
    let late = json!([
        say("user", "a"),
        say("assistant", "<think>\nnew\n</think>\n\nb")
    ]);
    assert!(render(QWEN3, late).contains("<think>\nnew\n</think>\n\nb<|im_end|>"));
}

#[test]
fn tojson_writes_the_same_text_as_python() {
    let chat =
        json!([{"role": "user", "content": "é<>&'\"\u{1f600}\n", "b": {"z": 1, "a": [1.5, {}]}}]);
    let one = |filter: &str| render(&format!("{{{{ messages[0]{filter} }}}}"), chat.clone());
    assert_eq!(one(".content | tojson"), "\"é<>&'\\\"😀\\n\"");
    assert_eq!(
        one(".content | tojson(ensure_ascii=true)"),
        "\"\\u00e9<>&'\\\"\\ud83d\\ude00\\n\""
    );
    assert_eq!(one(".b | tojson"), "{\"z\": 1, \"a\": [1.5, {}]}");
    assert_eq!(
        one(".b | tojson(sort_keys=true)"),
        "{\"a\": [1.5, {}], \"z\": 1}"
    );
    assert_eq!(
        one(".b | tojson(separators=(',', ':'))"),
        "{\"z\":1,\"a\":[1.5,{}]}"
    );
    assert_eq!(one(".b.a | tojson(indent=4)"), "[\n    1.5,\n    {}\n]");
}

#[test]
fn jinja_is_configured_as_in_transformers() {
    for (source, expected) in [
        (
            "{% for m in messages %}\n  {% if loop.index == 2 %}\n    {% break %}\n  {% endif %}\n{{ m.role }}\n{% endfor %}",
            "user\n",
        ),
        (
            "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
            "ab",
        ),
        (
            "{%- for m in messages %}\n{%- generation -%}\n {{ m.content }}\n{%- endgeneration -%}\n x{% endfor %}",
            "axbx",
        ),
        (
            "{{ tools is none }} {{ documents is none }} {{ nothing is defined }}",
            "True True False",
        ),
        (
            "{{ messages[0].get('name', 'nobody') }} {{ messages[0].items() | list | length }}",
            "nobody 2",
        ),
        (
            "{{ messages | map(attribute='content') | join('+') }}",
            "a+b",
        ),
        (
            "{{ (messages | selectattr('role', 'equalto', 'assistant') | list)[0].content.upper() }}",
            "B",
        ),
        (
            "{% macro m(x) %}<{{ x }}>{% endmacro %}{{ m(messages[1].content) }}\n",
            "<b>",
        ),
    ] {
        let chat = json!([say("user", "a"), say("assistant", "b")]);
        assert_eq!(render(source, chat), expected, "{source}");
    }
}

#[test]
fn content_parts_are_joined_unless_the_template_takes_parts() {
    let chat = json!([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]);
    assert_eq!(render("{{ messages[0].content }}", chat.clone()), "a b");
    let parts = "{% for m in messages %}{%- for part in m['content'] -%}[{{ part.text }}]{% endfor %}{% endfor %}";
    assert_eq!(render(parts, chat), "[a][b]");
}

#[test]
fn errors_locate_malformed_messages() {
    for (messages, words) in [
        (json!("hi"), "messages is not a list"),
        (json!([]), "at least one message"),
        (json!(["hi"]), "messages[0] is not an object"),
        (
            json!([say("user", "a"), {"content": "b"}]),
            "messages[1].role",
        ),
        (
            json!([{"role": "user", "content": 7}]),
            "messages[0].content",
        ),
        (
            json!([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]),
            "\"image_url\"",
        ),
        (
            json!([{"role": "user", "content": [{"type": "text"}]}]),
            "messages[0].content[0]",
        ),
    ] {
        let error = refused("{{ messages[0].content }}", messages);
        assert!(error.contains(words), "{error}");
    }
    let (chat, kwargs) = (json!([say("user", "a")]), json!({"messages": []}));
    let prompt = ChatPrompt {
        template_kwargs: kwargs.as_object(),
        ..ChatPrompt::new(&chat)
    };
    let error = compile(CHATML)
        .render(&prompt)
        .expect_err("reserved")
        .to_string();
    assert!(error.contains("chat_template_kwargs.messages"), "{error}");
}

#[test]
fn a_long_chat_stays_within_the_bounds() {
    let turns =
        (0..1000).flat_map(|_| [say("user", "a"), say("assistant", "<think>\nc\n</think>b")]);
    let text = render(QWEN3, turns.collect());
    assert_eq!(text.matches("<|im_end|>").count(), 2000);
}

#[test]
fn hostile_and_broken_templates_end_with_an_error() {
    let chat = json!([say("user", "a")]);
    for (source, words) in [
        (
            "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
            "instructions",
        ),
        (
            "{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}",
            "fails on the messages",
        ),
        (
            "{% for a in range(9999) %}{{ 'x' * 9999999 }}{% endfor %}",
            "bytes",
        ),
        (
            "{{ messages[0].content.nothing.more }}",
            "fails on the messages",
        ),
        (
            "{{ messages[0].content | no_such_filter }}",
            "fails on the messages",
        ),
    ] {
        let error = refused(source, chat.clone());
        assert!(
            error.contains(words) && error.len() < 2000,
            "{source}: {error}"
        );
    }
}

fn continued(source: &str, messages: Json) -> Result<String, String> {
    let prompt = ChatPrompt {
        add_generation_prompt: false,
        continue_final_message: true,
        ..ChatPrompt::new(&messages)
    };
    let rendered = compile(source).render(&prompt);
    rendered.map_err(|error| error.to_string())
}

#[test]
fn a_final_message_is_continued_where_its_content_ends() {
    let chat = |content: &str| json!([say("user", "Well"), say("assistant", content)]);
    let start = "<|im_start|>system\nBe helpful.<|im_end|>\n<|im_start|>user\nWell<|im_end|>\n<|im_start|>assistant\n";
    for content in ["Well", "Well, ", "", "a\n\n", "é "] {
        let expected = format!("{start}{content}");
        assert_eq!(continued(CHATML, chat(content)), Ok(expected));
    }
    let trimming = "{{ bos_token }}{% for m in messages %}[{{ m.content | trim }}]\n{% endfor %}";
    for (content, expected) in [
        ("Well, ", "<s>[Well]\n[Well,"),
        ("", "<s>[Well]\n["),
        ("é \u{3000}", "<s>[Well]\n[é"),
    ] {
        assert_eq!(continued(trimming, chat(content)), Ok(expected.to_owned()));
    }
    let silent = "{% for m in messages %}{{ m.role }}{% endfor %}";
    let error = continued(silent, chat("a")).expect_err("is refused");
    assert!(error.starts_with("continue_final_message"), "{error}");
    let parts = json!([say("user", "a"),
        {"role": "assistant", "content": [{"type": "text", "text": "b"}, {"type": "text", "text": "c"}]}]);
    assert!(continued(CHATML, parts).is_ok_and(|text| text.ends_with("b c")));
}

#[test]
fn developer_messages_are_system_messages_unless_the_template_knows_the_role() {
    let chat = json!([say("developer", "a"), say("user", "b")]);
    let roles = "{% for m in messages %}{{ m.role }} {% endfor %}";
    assert_eq!(render(roles, chat.clone()), "system user ");
    let knowing = format!("{roles}{{# 'developer' #}}");
    assert_eq!(render(&knowing, chat), "developer user ");
}

#[test]
fn none_is_not_iterable_and_text_is() {
    let source = "{% if none is iterable %}yes{% else %}no{% endif %} {% if 'ab' is iterable %}yes{% endif %}";
    assert_eq!(render(source, json!([say("user", "a")])), "no yes");
}

#[test]
fn reasoning_is_copied_to_every_field_that_templates_read() {
    let source = "{% for m in messages %}{{ m.thinking }}|{{ m.reasoning_content }} {% endfor %}";
    for name in ["thinking", "reasoning_content", "reasoning"] {
        let chat = json!([say("user", "a"), {"role": "assistant", "content": "b", name: "So"}]);
        assert_eq!(render(source, chat), "| So|So ", "{name}");
    }
}
