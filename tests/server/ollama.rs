//! Tests of Ollama's API over sockets: discovery, chats, plain prompts, embeddings, errors, and undeclared bodies.

use std::net::SocketAddr;

use serde_json::{Value, json};
use souffleur::server::ServerConfig;

use crate::http::{Response, get, post, send};
use crate::infill::Editor;
use crate::world::World;

const CALL: &str = "<tool_call>\n{\"name\": \"seat\", \"arguments\": {\"row\": 4}}\n</tool_call>";
const LINES: [(&str, &str); 5] = [
    ("Which seat?", CALL),
    ("\"seat\": 12", "Seat 12 is free."),
    ("Think first.", "<think>\nOne and one.\n</think>\n\nTwo."),
    ("Name a city.", "{\"city\": \"Lisbon\"}"),
    ("", "Hello to you."),
];

fn scripted() -> World {
    World::scripted(&LINES)
}

fn user(text: &str) -> Value {
    json!([{"role": "user", "content": text}])
}

/// A whole answer to a chat of the scripted model.
#[track_caller]
fn chat(world: &World, fields: Value) -> Value {
    let mut body = json!({"model": "scripted", "stream": false});
    let all = body.as_object_mut().expect("an object");
    all.extend(fields.as_object().expect("an object").clone());
    let reply = post(world.addr, "/api/chat", &body).ok();
    assert_eq!(reply["done"], true, "{reply}");
    reply
}

/// The lines of a streamed answer.
#[track_caller]
fn lines(response: &Response) -> Vec<Value> {
    assert_eq!(response.status, 200, "{}", response.body);
    let kind = response.header("content-type");
    assert_eq!(kind, Some("application/x-ndjson"));
    let lines = response.body.lines();
    lines
        .map(|line| serde_json::from_str(line).expect("a line is JSON"))
        .collect()
}

#[track_caller]
fn check_refused(response: &Response, status: u16, text: &str) {
    assert_eq!(response.status, status, "{}", response.body);
    let body = response.json();
    assert_eq!(
        body.as_object().map(|fields| fields.len()),
        Some(1),
        "{body}"
    );
    let error = body["error"].as_str().expect("an error is a text");
    assert!(error.contains(text), "{error:?} has no {text:?}");
}

#[test]
fn clients_discover_the_model() {
    let world = World::new();
    let version = get(world.addr, "/api/version").ok();
    assert_eq!(version["version"], "0.12.0-souffleur");
    let tags = get(world.addr, "/api/tags").ok();
    let running = get(world.addr, "/api/ps").ok();
    let [listed, loaded] = [&tags, &running].map(|list| {
        assert_eq!(list["models"].as_array().map(Vec::len), Some(1));
        list["models"][0].clone()
    });
    for model in [&listed, &loaded] {
        assert_eq!(model["name"], "tiny:latest");
        assert_eq!(model["model"], "tiny:latest");
        assert!(model["size"].as_u64() > Some(0), "{model}");
        let digest = model["digest"].as_str().expect("a digest");
        let is_hash = digest.len() == 64 && digest.bytes().all(|byte| byte.is_ascii_hexdigit());
        assert!(
            is_hash && digest.bytes().any(|digit| digit != b'0'),
            "{digest}"
        );
        let details = &model["details"];
        assert_eq!(details["family"], "qwen3");
        assert_eq!(details["families"], json!(["qwen3"]));
        assert_eq!(details["format"], "safetensors");
    }
    assert_eq!(listed["digest"], loaded["digest"]);
    assert_eq!(loaded["size_vram"], 0);
    let capabilities = json!(["completion", "insert", "embedding"]);
    assert_eq!(listed["capabilities"], capabilities);
    for model in ["tiny", "tiny:latest", "Tiny"] {
        for name in ["model", "name"] {
            let shown = post(world.addr, "/api/show", &json!({ name: model })).ok();
            let facts = &shown["model_info"];
            assert_eq!(facts["general.architecture"], "qwen3");
            assert_eq!(facts["general.basename"], "tiny");
            let context = facts["qwen3.context_length"].as_u64();
            assert_eq!(context, Some(crate::world::CONTEXT_TOKENS as u64));
            assert_eq!(facts["qwen3.embedding_length"], 64);
            assert!(facts["general.parameter_count"].as_u64() > Some(0));
            assert_eq!(shown["capabilities"], capabilities);
            let template = shown["template"].as_str().expect("a text");
            assert!(template.contains("message.content"), "{template}");
            assert!(template.contains(".Suffix"), "Continue looks for it");
        }
    }
    let unknown = post(world.addr, "/api/show", &json!({"model": "other"}));
    check_refused(&unknown, 404, "model 'other' not found");
    let agents = scripted();
    let shown = post(agents.addr, "/api/show", &json!({"model": "scripted"})).ok();
    let all = json!(["completion", "tools", "thinking", "embedding"]);
    assert_eq!(shown["capabilities"], all);
    assert!(!shown["template"].to_string().contains(".Suffix"));
    let tags = get(agents.addr, "/api/tags").ok();
    assert_eq!(tags["models"][0]["capabilities"], all);
}

#[test]
fn the_root_says_that_a_server_runs() {
    let world = World::without_engine(ServerConfig::default());
    let root = get(world.addr, "/");
    assert_eq!(
        (root.status, root.body.as_str()),
        (200, "Ollama is running")
    );
    for path in ["/api/tags", "/api/ps"] {
        check_refused(&get(world.addr, path), 503, "is being loaded");
    }
    assert_eq!(get(world.addr, "/api/version").status, 200);
}

#[test]
fn a_chat_has_the_answer_of_openais_chat() {
    let world = World::new();
    let messages = user("Who sits in row 3?");
    let options = json!({"temperature": 0, "num_predict": 12});
    let body = json!({
        "model": "tiny", "messages": messages, "options": options, "stream": false,
    });
    let reply = post(world.addr, "/api/chat", &body).ok();
    let openai = json!({"messages": messages, "temperature": 0, "max_tokens": 12});
    let expected = post(world.addr, "/v1/chat/completions", &openai).ok();
    let content = &expected["choices"][0]["message"]["content"];
    assert_eq!(&reply["message"]["content"], content);
    let usage = &expected["usage"];
    assert_eq!(reply["prompt_eval_count"], usage["prompt_tokens"]);
    assert_eq!(reply["eval_count"], usage["completion_tokens"]);
    let mut streamed = body;
    streamed
        .as_object_mut()
        .expect("an object")
        .shift_remove("stream");
    let lines = lines(&post(world.addr, "/api/chat", &streamed));
    let (last, parts) = lines.split_last().expect("there are lines");
    let text = parts.iter().map(|part| {
        assert_eq!(part["done"], false);
        assert!(part.get("eval_count").is_none());
        part["message"]["content"].as_str().expect("a text")
    });
    assert_eq!(text.collect::<String>(), content.as_str().expect("a text"));
    assert_eq!(last["done"], true);
    for count in [
        "total_duration",
        "load_duration",
        "prompt_eval_count",
        "prompt_eval_duration",
        "eval_count",
        "eval_duration",
    ] {
        assert!(last[count].is_u64(), "{count}: {last}");
    }
    world.wait_until_idle();
}

#[test]
fn a_plain_prompt_uses_the_template_unless_it_is_raw() {
    let world = World::new();
    let call = |fields: Value| {
        let mut body = json!({
            "model": "tiny", "prompt": "Hello", "stream": false,
            "options": {"temperature": 0, "num_predict": 6},
        });
        let all = body.as_object_mut().expect("an object");
        all.extend(fields.as_object().expect("an object").clone());
        post(world.addr, "/api/generate", &body).ok()
    };
    let tokens = |reply: &Value| reply["prompt_eval_count"].as_u64().expect("a count");
    let (templated, raw) = (call(json!({})), call(json!({"raw": true})));
    let instructed = call(json!({"system": "Be brief."}));
    assert!(tokens(&raw) < tokens(&templated), "{raw} {templated}");
    assert!(tokens(&templated) < tokens(&instructed), "{instructed}");
    let openai = json!({"prompt": "Hello", "temperature": 0, "max_tokens": 6});
    let expected = post(world.addr, "/v1/completions", &openai).ok();
    assert_eq!(raw["response"], expected["choices"][0]["text"]);
    let refused = json!({"model": "tiny", "prompt": "a", "raw": true, "system": "b"});
    let refused = post(world.addr, "/api/generate", &refused);
    check_refused(&refused, 400, "system has no place in a raw prompt");
    world.wait_until_idle();
}

#[test]
fn a_suffix_asks_for_the_text_between_prompt_and_suffix() {
    let editor = Editor::new(&[("return ", "a + b<|fim_pad|>more")]);
    let world = &editor.world;
    let gap = json!({"prompt": "add(a, b): return ", "suffix": "\nend", "max_tokens": 20});
    let expected = post(world.addr, "/v1/completions", &gap).ok();
    assert_eq!(expected["choices"][0]["text"], "a + b");
    let call = |fields: Value| {
        let mut body =
            json!({"model": "scripted", "prompt": gap["prompt"], "suffix": gap["suffix"]});
        let all = body.as_object_mut().expect("an object");
        all.extend(fields.as_object().expect("an object").clone());
        post(world.addr, "/api/generate", &body)
    };
    // Ollama, too, has no system message in such a prompt.
    for fields in [json!({}), json!({"system": "Be brief.", "think": true})] {
        let lines = lines(&call(fields));
        let text = lines.iter().map(|line| line["response"].as_str());
        let text: Option<String> = text.collect();
        assert_eq!(text.as_deref(), Some("a + b"));
        let last = lines.last().expect("there are lines");
        assert_eq!(last["done_reason"], "stop");
        let usage = &expected["usage"];
        assert_eq!(last["prompt_eval_count"], usage["prompt_tokens"]);
        assert_eq!(last["eval_count"], usage["completion_tokens"]);
    }
    let whole = call(json!({"stream": false})).ok();
    assert_eq!(whole["response"], "a + b");
    assert_eq!(call(json!({"prompt": ""})).ok()["done_reason"], "load");
    for (fields, text) in [
        (json!({"raw": true}), "suffix cannot be used with raw"),
        (json!({"suffix": 5}), "suffix is 5, must be a string"),
        (json!({"context": [1]}), "context is not supported"),
    ] {
        check_refused(&call(fields), 400, text);
    }
    world.wait_until_idle();
}

#[test]
fn a_model_without_tokens_for_a_gap_does_not_support_insert() {
    let world = scripted();
    for prompt in ["a", ""] {
        let body = json!({"model": "scripted", "prompt": prompt, "suffix": "b"});
        let refused = post(world.addr, "/api/generate", &body);
        check_refused(&refused, 400, "\"scripted\" does not support insert");
        check_refused(
            &refused,
            400,
            "load a model that was trained to fill in the middle",
        );
    }
}

#[test]
fn calls_without_a_prompt_load_and_unload_nothing() {
    let world = scripted();
    for (path, empty) in [
        ("/api/chat", json!({"messages": []})),
        ("/api/chat", json!({})),
        ("/api/generate", json!({})),
        ("/api/generate", json!({"prompt": ""})),
    ] {
        for (keep_alive, reason) in [
            (json!(null), "load"),
            (json!("5m"), "load"),
            (json!(-1), "load"),
            (json!(0), "unload"),
            (json!("0s"), "unload"),
        ] {
            let mut body = empty.clone();
            body["model"] = "scripted".into();
            body["keep_alive"] = keep_alive.clone();
            let reply = post(world.addr, path, &body);
            assert_eq!(reply.header("content-type"), Some("application/json"));
            let reply = reply.ok();
            assert_eq!(reply["done"], true);
            assert_eq!(reply["done_reason"], reason, "{path} {keep_alive}");
            assert_eq!(reply["eval_count"], 0);
        }
    }
    chat(&world, json!({"messages": user("Hello")}));
    world.wait_until_idle();
}

#[test]
fn tools_are_called_with_objects_and_results_are_read() {
    let world = scripted();
    let tool = json!({"type": "function", "function": {
        "name": "seat", "parameters": {"type": "object", "properties": {"row": {"type": "integer"}}},
    }});
    let mut messages = user("Which seat?");
    let reply = chat(&world, json!({"messages": messages, "tools": [tool]}));
    let call = &reply["message"]["tool_calls"][0]["function"];
    assert_eq!(call["name"], "seat");
    assert_eq!(call["arguments"], json!({"row": 4}));
    assert_eq!(reply["message"]["content"], "");
    assert_eq!(reply["done_reason"], "stop");
    let body = json!({"model": "scripted", "messages": messages, "tools": [tool]});
    let lines = lines(&post(world.addr, "/api/chat", &body));
    let calls: Vec<&Value> = lines
        .iter()
        .filter_map(|line| line["message"].get("tool_calls"))
        .collect();
    let [calls] = calls.as_slice() else {
        panic!("the call is sent once: {lines:?}")
    };
    assert_eq!(calls[0]["function"], *call);
    let list = messages.as_array_mut().expect("a list");
    list.push(reply["message"].clone());
    let result = json!({"role": "tool", "tool_name": "seat", "content": "{\"seat\": 12}"});
    list.push(result);
    let answer = chat(&world, json!({"messages": messages, "tools": [tool]}));
    assert_eq!(answer["message"]["content"], "Seat 12 is free.");
    world.wait_until_idle();
}

#[test]
fn thoughts_and_formats_are_as_in_openais_chats() {
    let world = scripted();
    let thinks = json!({"messages": user("Think first."), "think": true});
    let message = chat(&world, thinks)["message"].take();
    assert_eq!(message["content"], "Two.");
    let thought = message["thinking"].as_str().expect("a thought");
    assert_eq!(thought.trim(), "One and one.");
    let schema = json!({
        "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"],
    });
    for format in [json!("json"), schema] {
        let reply = chat(
            &world,
            json!({"messages": user("Name a city."), "format": format}),
        );
        let content = reply["message"]["content"].as_str().expect("a text");
        let city: Value = serde_json::from_str(content).expect("the answer is JSON");
        assert_eq!(city["city"], "Lisbon");
    }
    let logged = chat(
        &world,
        json!({"messages": user("Hello"), "logprobs": true, "top_logprobs": 1}),
    );
    assert_eq!(
        logged["logprobs"]
            .as_array()
            .map(Vec::len)
            .map(|n| n as u64),
        logged["eval_count"].as_u64()
    );
    world.wait_until_idle();
}

#[test]
fn embeddings_are_those_of_openais_endpoint() {
    let world = World::new();
    let openai = post(
        world.addr,
        "/v1/embeddings",
        &json!({"input": ["a b", "c"]}),
    )
    .ok();
    let body = json!({"model": "tiny", "input": ["a b", "c"]});
    let reply = post(world.addr, "/api/embed", &body).ok();
    for index in [0, 1] {
        assert_eq!(
            reply["embeddings"][index],
            openai["data"][index]["embedding"]
        );
    }
    assert_eq!(reply["prompt_eval_count"], openai["usage"]["prompt_tokens"]);
    let one = post(
        world.addr,
        "/api/embeddings",
        &json!({"model": "tiny", "prompt": "c"}),
    )
    .ok();
    assert_eq!(one["embedding"], reply["embeddings"][1]);
    let short = json!({"model": "tiny", "input": "c", "dimensions": 5, "truncate": true});
    let short = post(world.addr, "/api/embed", &short).ok();
    assert_eq!(short["embeddings"][0].as_array().map(Vec::len), Some(5));
    for empty in [json!(""), json!([]), json!(null)] {
        let reply = post(
            world.addr,
            "/api/embed",
            &json!({"model": "tiny", "input": empty}),
        )
        .ok();
        assert_eq!(reply["embeddings"], json!([]));
    }
    let empty = post(world.addr, "/api/embeddings", &json!({"model": "tiny"})).ok();
    assert_eq!(empty["embedding"], json!([]));
    let blank = post(
        world.addr,
        "/api/embed",
        &json!({"model": "tiny", "input": ["a", " "]}),
    );
    check_refused(&blank, 400, "input[1] is empty or white space");
    world.wait_until_idle();
}

#[test]
fn errors_are_texts_with_the_status_of_ollama() {
    let world = World::new();
    let prompt = |fields: Value| {
        let mut body = json!({"model": "tiny", "prompt": "a"});
        let all = body.as_object_mut().expect("an object");
        all.extend(fields.as_object().expect("an object").clone());
        post(world.addr, "/api/generate", &body)
    };
    for path in [
        "/api/chat",
        "/api/generate",
        "/api/embed",
        "/api/embeddings",
    ] {
        let unknown = post(world.addr, path, &json!({"model": "other:7b"}));
        check_refused(&unknown, 404, "model 'other:7b' not found");
        let missing = post(world.addr, path, &json!({}));
        check_refused(&missing, 400, "model is required");
        let method = get(world.addr, path);
        check_refused(&method, 405, "use POST");
    }
    let pulled = post(world.addr, "/api/pull", &json!({"model": "tiny"}));
    check_refused(&pulled, 404, "there is no route /api/pull");
    for (fields, text) in [
        (json!({"images": ["iVBO"]}), "images is not supported"),
        (
            json!({"template": "{{ .Prompt }}"}),
            "template is not supported",
        ),
        (json!({"context": [1, 2]}), "context is not supported"),
        (json!({"think": true}), "\"tiny\" does not support thinking"),
        (json!({"think": "much"}), "think is \"much\""),
        (json!({"format": "yaml"}), "format is \"yaml\""),
        (json!({"keep_alive": "soon"}), "keep_alive is \"soon\""),
        (json!({"options": {"top_p": 2}}), "top_p is 2"),
        (json!({"stream": "yes"}), "stream is \"yes\""),
    ] {
        check_refused(&prompt(fields), 400, text);
    }
    let mut silent =
        json!({"suffix": "", "images": [], "context": [], "think": false, "format": ""});
    silent["options"] = json!({"num_predict": 1});
    assert_eq!(prompt(silent).status, 200);
    let long = "word ".repeat(crate::world::CONTEXT_TOKENS);
    let long = post(
        world.addr,
        "/api/generate",
        &json!({"model": "tiny", "prompt": long}),
    );
    check_refused(&long, 400, "the input length exceeds the context length");
    world.wait_until_idle();
}

/// Sends a body with these header lines.
fn send_body(addr: SocketAddr, lines: &[&str]) -> Response {
    let body =
        r#"{"model": "tiny", "prompt": "a", "stream": false, "options": {"num_predict": 1}}"#;
    let lines: String = lines.iter().map(|line| format!("{line}\r\n")).collect();
    let length = body.len();
    send(
        addr,
        &format!(
            "POST /api/generate HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n\
             {lines}Content-Length: {length}\r\n\r\n{body}"
        ),
    )
}

#[test]
fn only_bodies_from_pages_must_be_declared_as_json() {
    let world = World::new();
    let form = "Content-Type: application/x-www-form-urlencoded";
    let plain = "Content-Type: text/plain;charset=UTF-8";
    let own = format!("Origin: http://{}", world.addr);
    for lines in [&[form][..], &[plain, "Sec-Fetch-Mode: cors"], &[]] {
        let reply = send_body(world.addr, lines).ok();
        assert_eq!(reply["done"], true, "{lines:?}");
    }
    for lines in [
        &[form, own.as_str()][..],
        &[plain, "Sec-Fetch-Site: same-origin"],
        &[form, "Sec-Fetch-Site: none"],
        &[own.as_str()],
    ] {
        check_refused(&send_body(world.addr, lines), 415, "content-type is ");
    }
    let zipped = send_body(world.addr, &["Content-Encoding: gzip"]);
    check_refused(&zipped, 415, "compressed bodies are not supported");
    let declared = ["Content-Type: application/json", own.as_str()];
    assert_eq!(send_body(world.addr, &declared).status, 200);
    let foreign = send_body(world.addr, &[form, "Origin: http://evil.example"]);
    check_refused(&foreign, 403, "--allowed-origins");
    world.wait_until_idle();
}
