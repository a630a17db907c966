//! Tests of images with URLs: which are fetched, over HTTP and WebSockets. The only host that is allowed here has no
//! global address, so that no fetch succeeds.

use serde_json::{Value, json};
use souffleur::server::ServerConfig;

use crate::http::post;
use crate::images_counted::{PIXEL, world_with};
use crate::websocket::Client;
use crate::world::block_on;

const URL: &str = "http://localhost/a.png";
const REFUSED: &str = "only global addresses are fetched from";
const IMAGE: &str = "<|vision_start|><|image_pad|><|vision_end|>";

fn allow(server: &mut ServerConfig) {
    server.allowed_media_domains = vec!["localhost".to_owned()];
}

fn native(image: &Value) -> Value {
    json!({"text": format!("{IMAGE}What?"), "image_data": image, "sampling_params": {"max_new_tokens": 1}})
}

#[test]
fn urls_of_image_data_are_fetched_from_allowed_hosts() {
    let (world, _folder) = world_with(allow, |_| ());
    let part = json!({"type": "image_url", "image_url": {"url": URL}});
    for (image, expected) in [
        (json!(URL), "image_data: the host localhost has the address"),
        (
            json!([URL]),
            "image_data[0]: the host localhost has the address",
        ),
        (json!({"url": URL, "detail": "low"}), REFUSED),
        (json!([part]), REFUSED),
        (
            json!("https://images.example/a.png"),
            "the host images.example is not allowed",
        ),
        (json!(["/etc/passwd"]), "the server reads no paths"),
        (json!("file:///etc/passwd"), "the server reads no paths"),
    ] {
        let refused = post(world.addr, "/generate", &native(&image));
        let error = refused.json().to_string();
        assert!(refused.status == 400 && error.contains(expected), "{error}");
    }
    // The text of a chat has the placeholder's name, so that nothing is fetched.
    let chat = json!({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": URL}]}]});
    let rendered = post(world.addr, "/apply-template", &chat).ok();
    let prompt = rendered["prompt"].as_str().expect("a text");
    assert_eq!(prompt.trim_end(), format!("user: {IMAGE}"));
    world.wait_until_idle();
}

#[test]
fn a_websocket_serves_others_while_it_fetches() {
    let (world, _folder) = world_with(allow, |_| ());
    block_on(async {
        let client = Client::connect_to(world.addr, "/v1/ws/generate", None).await;
        let mut client = client.unwrap_or_else(|error| panic!("{error}"));
        let send = |rid: &str, image: Value| {
            let mut frame = native(&image);
            frame["op"] = json!("generate");
            frame["rid"] = json!(rid);
            if image.is_null() {
                frame["text"] = json!("a");
            }
            frame
        };
        client.send(send("fetches", json!([PIXEL, URL]))).await;
        client.send(send("text", Value::Null)).await;
        client
            .send(send("unlisted", json!("https://images.example/a")))
            .await;
        let (mut ended, mut errors) = (Vec::new(), Vec::new());
        while ended.len() + errors.len() < 3 {
            let frame = client.json().await;
            let rid = frame["rid"].as_str().expect("an id").to_owned();
            if frame["done"] == true {
                ended.push(rid);
            } else if let Some(message) = frame["error"]["message"].as_str() {
                errors.push((rid, message.to_owned()));
            }
        }
        errors.sort();
        assert_eq!(ended, ["text"]);
        let [(first, fetching), (second, unlisted)] = &errors[..] else {
            panic!("{errors:?}");
        };
        assert_eq!([first, second], ["fetches", "unlisted"]);
        assert!(fetching.starts_with("image_data[1]: "), "{fetching}");
        assert!(fetching.contains(REFUSED), "{fetching}");
        assert!(unlisted.contains("is not allowed"), "{unlisted}");
        client.send(json!({"op": "ping"})).await;
        assert_eq!(client.json().await["op"], "pong");
    });
    world.wait_until_idle();
}

#[test]
fn the_lane_of_a_response_waits_for_its_images() {
    let (world, _folder) = world_with(allow, |_| ());
    block_on(async {
        let client = Client::connect_to(world.addr, "/v1/responses", None).await;
        let mut client = client.unwrap_or_else(|error| panic!("{error}"));
        let create = |input: Value| json!({"type": "response.create", "stream_id": "a", "input": input, "max_output_tokens": 1});
        let image =
            json!([{"role": "user", "content": [{"type": "input_image", "image_url": URL}]}]);
        client.send(create(image)).await;
        client.send(create(json!("x"))).await;
        let error = client.json().await;
        assert_eq!(
            (&error["type"], &error["stream_id"]),
            (&json!("error"), &json!("a"))
        );
        let message = error["error"]["message"].as_str().expect("a text");
        assert!(message.starts_with("input[0].content[0]: "), "{message}");
        assert!(message.contains(REFUSED), "{message}");
        let next = client.json().await;
        assert_eq!(next["type"], "response.created", "{next}");
        loop {
            let event = client.json().await;
            let kind = event["type"].as_str().expect("a type");
            assert_ne!(kind, "error", "{event}");
            if matches!(kind, "response.completed" | "response.incomplete") {
                break;
            }
        }
    });
    world.wait_until_idle();
}
