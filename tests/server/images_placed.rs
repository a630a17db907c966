//! Tests of the places of images in conversations: in each role, and in the results of tools in each API.

use serde_json::{Value, json};

use crate::http::post;
use crate::images_counted::{PIXEL, n_pads, pixel, text, tokens, url, world_with};

#[test]
fn images_are_in_any_role_that_the_template_takes() {
    let (world, _folder) = world_with(|_| (), |_| ());
    for role in ["user", "tool", "assistant", "system", "developer"] {
        let ask = |content: Value| {
            let message = json!({"role": role, "content": content, "tool_call_id": "a"});
            tokens(&world, &json!({"messages": [message]}))
        };
        let with_image = ask(json!([text("X"), pixel(), text("Y")]));
        assert_eq!(n_pads(&with_image), 4, "{role}");
        // The image is between the texts.
        let (before, after) = (
            ask(json!([text("X"), pixel()])),
            ask(json!([pixel(), text("Y")])),
        );
        let is_pad = |ids: &[u64]| ids.iter().position(|id| n_pads(&[*id]) == 1);
        assert_eq!(is_pad(&with_image), is_pad(&before), "{role}");
        assert!(is_pad(&with_image) > is_pad(&after), "{role}");
        let lengths = [&before, &after, &with_image].map(Vec::len);
        assert_eq!(lengths, [lengths[0], lengths[0], lengths[0] + 1], "{role}");
    }
    world.wait_until_idle();
}

#[test]
fn results_of_tools_have_texts_and_images_in_every_api() {
    let (world, _folder) = world_with(|_| (), |_| ());
    let data = format!("data:image/gif;base64,{PIXEL}");
    let call =
        json!({"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}});
    let chat = json!({"messages": [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": [text("a"), url(&data), text("b"), url(&data)]},
    ]});
    let expected = tokens(&world, &chat);
    assert_eq!(n_pads(&expected), 8);
    let source = json!({"type": "base64", "media_type": "image/gif", "data": PIXEL});
    let image = json!({"type": "image", "source": source, "cache_control": {"type": "ephemeral"}});
    let result = json!({"type": "tool_result", "tool_use_id": "c", "content": [text("a"), image, text("b"), image]});
    let anthropic = json!({"model": "sees", "messages": [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "look", "input": {}}]},
        {"role": "user", "content": [result]},
    ]});
    let input_text = |text: &str| json!({"type": "input_text", "text": text});
    let input_image = json!({"type": "input_image", "image_url": data, "detail": "auto"});
    let output = json!([input_text("a"), input_image, input_text("b"), input_image]);
    let mut responses = json!({"input": [
        {"role": "user", "content": "x"},
        {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": output},
    ]});
    for (path, body) in [
        ("/v1/messages/count_tokens", &anthropic),
        ("/v1/responses/input_tokens", &responses),
    ] {
        let counted = post(world.addr, path, body).ok();
        assert_eq!(counted["input_tokens"], expected.len(), "{path}");
    }
    let screenshot = json!({"type": "computer_screenshot", "image_url": data});
    responses["input"][2] =
        json!({"type": "computer_call_output", "call_id": "c", "output": screenshot});
    let refused = post(world.addr, "/v1/responses", &responses);
    let error = &refused.json()["error"];
    assert_eq!(
        (refused.status, &error["param"]),
        (400, &json!("input[2].type")),
        "{error}"
    );
    world.wait_until_idle();
}
