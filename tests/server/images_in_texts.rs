//! Tests of images in the results of tools, with a model whose template writes these as text.

use serde_json::{Value, json};

use crate::http::post;
use crate::images_counted::{PIXEL, n_pads, text, tokens, url, world_of};
use crate::mean_tower::see;

/// As that of Ministral 3: a result is written with Python's `str`.
const TEMPLATE: &str = "{% for m in messages %}{% if m.role == 'user' %}[INST]{% if m.content is string %}\
    {{ m.content }}{% else %}{% for p in m.content %}{% if p.type == 'image' %}\
    <|vision_start|><|image_pad|><|vision_end|>{% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %}[/INST]\
    {% elif m.role == 'tool' %}{{ '[TOOL_RESULTS]' + m.content | string + '[/TOOL_RESULTS]' }}\
    {% else %}{{ m.content }}{% endif %}{% endfor %}";
const IMAGE: &str = "<|vision_start|><|image_pad|><|vision_end|>";

fn data() -> String {
    format!("data:image/gif;base64,{PIXEL}")
}

/// A question with a picture, and a result of a tool with two.
fn chat() -> Value {
    let call =
        json!({"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}});
    json!({"max_tokens": 2, "messages": [
        {"role": "user", "content": [text("x"), url(&data())]},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": [text("a"), url(&data()), text("b"), url(&data())]},
    ]})
}

fn anthropic() -> Value {
    let source = json!({"type": "base64", "media_type": "image/gif", "data": PIXEL});
    let image = json!({"type": "image", "source": source});
    let result = json!({"type": "tool_result", "tool_use_id": "c", "content": [text("a"), image, text("b"), image]});
    json!({"model": "sees", "max_tokens": 2, "messages": [
        {"role": "user", "content": [text("x"), image]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "look", "input": {}}]},
        {"role": "user", "content": [result]},
    ]})
}

fn responses() -> Value {
    let text = |text: &str| json!({"type": "input_text", "text": text});
    let image = json!({"type": "input_image", "image_url": data()});
    json!({"input": [
        {"role": "user", "content": [text("x"), image]},
        {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": [text("a"), image, text("b"), image]},
    ]})
}

#[test]
fn results_of_tools_have_images_within_texts_in_every_api() {
    let (world, _folder) = world_of(TEMPLATE, |_| (), |parts| drop(see(parts)));
    let mut chat = chat();
    let expected = tokens(&world, &chat);
    assert_eq!(n_pads(&expected), 12);
    let template = post(world.addr, "/apply-template", &chat).ok();
    let written = format!("[INST]x{IMAGE}[/INST][TOOL_RESULTS]a{IMAGE}b{IMAGE}[/TOOL_RESULTS]");
    assert_eq!(template["prompt"], written);
    let (anthropic, responses) = (anthropic(), responses());
    for (path, body) in [
        ("/v1/messages/count_tokens", &anthropic),
        ("/v1/responses/input_tokens", &responses),
    ] {
        let counted = post(world.addr, path, body).ok();
        assert_eq!(counted["input_tokens"], expected.len(), "{path}");
    }
    let usage = |path: &str, body: &Value| post(world.addr, path, body).ok()["usage"].take();
    let answered = usage("/v1/chat/completions", &chat);
    assert_eq!(answered["prompt_tokens"], expected.len());
    let answered = usage("/v1/messages", &anthropic);
    let fields = [
        "input_tokens",
        "cache_read_input_tokens",
        "cache_creation_input_tokens",
    ];
    let counts = fields.iter().filter_map(|name| answered[*name].as_u64());
    assert_eq!(counts.sum::<u64>(), expected.len() as u64, "{answered}");
    let mut limited = responses.clone();
    limited["max_output_tokens"] = json!(2);
    let answered = usage("/v1/responses", &limited);
    assert_eq!(answered["input_tokens"], expected.len());
    // The next turn begins with the same tokens.
    let messages = chat["messages"].as_array_mut().expect("a list");
    messages.push(json!({"role": "assistant", "content": "y"}));
    messages.push(json!({"role": "user", "content": "z"}));
    let next = tokens(&world, &chat);
    assert_eq!(next[..expected.len()], expected);
    let answered = usage("/v1/chat/completions", &chat);
    assert_eq!(answered["prompt_tokens"], next.len());
    world.wait_until_idle();
}
