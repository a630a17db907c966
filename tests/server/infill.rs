//! Tests of `POST /infill`, of `suffix` in `POST /v1/completions`, and of `GET /props`.

use std::fs;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::http::{get, post, stream};
use crate::scripted::{self, Line};
use crate::world::World;

/// The tiny checkpoint's first unused token id, which the first mark gets.
const FIRST_MARK: u32 = 713;
const MARKS: [&str; 6] = [
    "<|fim_prefix|>",
    "<|fim_suffix|>",
    "<|fim_middle|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
];

/// A server whose model fills in the middle.
pub struct Editor {
    pub world: World,
    _model: TempDir,
}

impl Editor {
    pub fn new(lines: &[Line<'_>]) -> Self {
        let model = checkpoint();
        let path = model.path().to_owned();
        let world = World::scripted_with(lines, |engine, _| engine.model_path = path);
        Self {
            world,
            _model: model,
        }
    }

    #[track_caller]
    fn post(&self, path: &str, body: &Value) -> Value {
        post(self.world.addr, path, body).ok()
    }

    fn tokens(&self, text: &str) -> Vec<u32> {
        let engine = self.world.engine();
        let tokenizer = engine.text().expect("it has a tokenizer");
        tokenizer.encode_chat(text).expect("tokens of the text")
    }
}

/// A copy of the tiny checkpoint with Qwen's marks, which are not special there.
fn checkpoint() -> TempDir {
    let folder = TempDir::new().expect("a folder can be made");
    for entry in fs::read_dir(scripted::checkpoint()).expect("the fixture exists") {
        let path = entry.expect("the fixture is readable").path();
        let name = path.file_name().expect("a file").to_owned();
        fs::copy(&path, folder.path().join(name)).expect("the folder can be written");
    }
    let file = folder.path().join("tokenizer.json");
    let text = fs::read_to_string(&file).expect("the fixture is complete");
    let mut tokenizer: Value = serde_json::from_str(&text).expect("the fixture is JSON");
    let added = tokenizer["added_tokens"].as_array_mut().expect("a list");
    let first = added[0].clone();
    for (id, mark) in (FIRST_MARK..).zip(MARKS) {
        let mut token = first.clone();
        token["id"] = id.into();
        token["content"] = mark.into();
        token["special"] = false.into();
        added.push(token);
    }
    fs::write(&file, tokenizer.to_string()).expect("the folder can be written");
    folder
}

fn gap(begun: &str) -> Value {
    json!({"input_prefix": "start();\n", "input_suffix": ";\nstop();\n", "prompt": begun, "temperature": 0})
}

#[test]
fn the_prompt_has_the_tokens_of_llama_cpps_and_file_marks_end_the_middle() {
    let editor = Editor::new(&[("int n = ", "size()<|file_sep|>more")]);
    let mut call = gap("int n = ");
    // Marks in a text are letters.
    call["input_extra"] = json!([{"filename": "a.h", "text": "int size();\n<|fim_middle|>"}]);
    let answer = editor.post("/infill", &call);
    assert_eq!(answer["content"], "size()");
    assert_eq!(
        (&answer["stop"], &answer["stop_type"]),
        (&json!(true), &json!("eos"))
    );
    let [prefix, suffix, middle, _, repository, separator] =
        std::array::from_fn(|role| FIRST_MARK + role as u32);
    let mut expected = vec![repository];
    expected.extend(editor.tokens("myproject\n"));
    expected.push(separator);
    expected.extend(editor.tokens("a.h\n"));
    let after_header = expected.len();
    let mut rest = vec![separator];
    rest.extend(editor.tokens("filename\n"));
    rest.push(prefix);
    rest.extend(editor.tokens("start();\n"));
    rest.extend(editor.tokens("int n = "));
    rest.push(suffix);
    rest.extend(editor.tokens(";\nstop();\n"));
    rest.push(middle);
    // A text with the mark as letters has more tokens than one with the mark as a token.
    let as_token = editor.tokens("int size();\n<|fim_middle|>").len();
    let evaluated = answer["tokens_evaluated"].as_u64().expect("a number") as usize;
    assert!(evaluated > after_header + as_token + rest.len(), "{answer}");
    // Without such a text, every token is known.
    call["input_extra"] = json!([{"filename": "a.h", "text": "int size();\n"}]);
    let answer = editor.post("/infill", &call);
    expected.extend(editor.tokens("int size();\n"));
    expected.extend(rest);
    assert_eq!(answer["tokens_evaluated"], expected.len());
    let again = json!({"input_ids": expected, "sampling_params": {"max_new_tokens": 1}});
    let meta = &editor.post("/generate", &again)["meta_info"];
    let cached = meta["cached_tokens"].as_u64().expect("a number") as usize;
    let page = editor.world.engine().model().page_size;
    assert!(cached + page >= expected.len(), "{meta}");
    editor.world.wait_until_idle();
}

#[test]
fn a_suffix_of_a_completion_fills_the_gap_between_the_two() {
    let editor = Editor::new(&[("return ", "a + b<|fim_pad|>more")]);
    let call = json!({"prompt": "add(a, b): return ", "suffix": "\nend", "max_tokens": 20});
    let answer = editor.post("/v1/completions", &call);
    assert_eq!(answer["choices"][0]["text"], "a + b");
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    let parts = [call["prompt"].as_str(), call["suffix"].as_str()];
    let parts = parts.map(|part| editor.tokens(part.expect("a text")).len());
    assert_eq!(answer["usage"]["prompt_tokens"], 3 + parts[0] + parts[1]);
    let both = json!({"prompt": ["return ", "x return "], "suffix": "end", "max_tokens": 20});
    let answer = editor.post("/v1/completions", &both);
    assert_eq!(answer["choices"][1]["text"], "a + b");
    editor.world.wait_until_idle();
}

#[test]
fn a_cursor_one_line_on_finds_most_of_the_prompt_cached() {
    let editor = Editor::new(&[("", "x")]);
    let file = "int alpha(int beta) { return beta; }\n".repeat(60);
    let prefix = "gamma(delta);\n".repeat(40);
    let call = |typed: &str| {
        json!({
            "input_prefix": format!("{prefix}{typed}"), "input_suffix": "stop();\n", "prompt": "",
            "input_extra": [{"filename": "a.c", "text": file}], "n_predict": 0,
        })
    };
    let first = editor.post("/infill", &call(""));
    assert_eq!(first["tokens_predicted"], 0);
    let next = editor.post("/infill", &call("epsilon(zeta);\n"));
    let count = |name: &str| next[name].as_f64().expect("a number");
    let share = count("tokens_cached") / count("tokens_evaluated");
    assert!(share >= 0.9, "{share}: {next}");
    let timings = &next["timings"];
    assert_eq!(timings["cache_n"], next["tokens_cached"]);
    editor.world.wait_until_idle();
}

#[test]
fn a_line_of_less_indentation_ends_the_middle() {
    let editor = Editor::new(&[("if (a)", " {\n    b();\n}\nc();\n")]);
    let mut call = gap("if (a)");
    assert_eq!(
        editor.post("/infill", &call)["content"],
        " {\n    b();\n}\nc();\n"
    );
    call["n_indent"] = 4.into();
    let answer = editor.post("/infill", &call);
    assert_eq!(answer["content"], " {\n    b();\n");
    assert_eq!(answer["stop_type"], "limit");
    assert_eq!(answer["truncated"], false);
    let mut events = stream(editor.world.addr, "/infill", &with_stream(&call));
    let mut text = String::new();
    while let Some(event) = events.next_data() {
        let event: Value = serde_json::from_str(&event).expect("data is JSON");
        text.push_str(event["content"].as_str().expect("a text"));
    }
    assert_eq!(text, " {\n    b();\n");
    editor.world.wait_until_idle();
}

fn with_stream(call: &Value) -> Value {
    let mut call = call.clone();
    call["stream"] = true.into();
    call
}

#[test]
fn a_stream_ends_with_the_counts_and_without_a_mark() {
    let editor = Editor::new(&[("int n = ", "size() + 1")]);
    let call = gap("int n = ");
    let whole = editor.post("/infill", &call);
    let mut events = stream(editor.world.addr, "/infill", &with_stream(&call));
    let (mut text, mut last) = (String::new(), Value::Null);
    while let Some(event) = events.next_data() {
        let event: Value = serde_json::from_str(&event).expect("data is JSON");
        assert_ne!(last["stop"], true, "the last event is the last");
        text.push_str(event["content"].as_str().expect("a text"));
        last = event;
    }
    assert_eq!(whole["content"], text);
    for name in ["tokens_predicted", "tokens_evaluated", "stop_type", "model"] {
        assert_eq!(last[name], whole[name], "{name}");
    }
    let settings = &last["generation_settings"];
    assert_eq!(
        (&settings["stream"], &settings["top_k"]),
        (&json!(true), &json!(40))
    );
    editor.world.wait_until_idle();
}

#[test]
fn answers_have_the_fields_and_samples_that_clients_ask_for() {
    let editor = Editor::new(&[("int n = ", "1")]);
    let mut call = gap("int n = ");
    call["n_cmpl"] = 2.into();
    call["response_fields"] = json!(["content", "timings/predicted_n", ""]);
    let answers = editor.post("/infill", &call);
    let one = json!({"content": "1", "timings/predicted_n": 2});
    assert_eq!(answers, json!([one, one]));
    editor.world.wait_until_idle();
}

#[test]
fn a_model_without_the_tokens_refuses_to_fill() {
    let world = World::scripted(&[("", "x")]);
    let suffix = json!({"prompt": "a", "suffix": "b"});
    for (path, call, param) in [
        ("/infill", gap(""), "input_prefix"),
        ("/v1/completions", suffix, "suffix"),
    ] {
        let refused = post(world.addr, path, &call);
        let error = &refused.json()["error"];
        assert_eq!((refused.status, &error["param"]), (400, &json!(param)));
        let message = error["message"].as_str().expect("a text");
        assert!(
            message.contains("no tokens for a prefix") && message.contains("Qwen2.5-Coder"),
            "{message}"
        );
    }
    world.wait_until_idle();
}

#[test]
fn properties_name_the_context_and_the_defaults() {
    let editor = Editor::new(&[("", "x")]);
    let props = get(editor.world.addr, "/props?model=any&autoload=false").ok();
    let settings = &props["default_generation_settings"];
    let engine = editor.world.engine();
    let model = engine.model();
    let context = model.context_length.min(model.max_total_tokens);
    assert_eq!(settings["n_ctx"], context);
    assert_eq!(settings["params"]["n_predict"], -1);
    assert_eq!(props["model_alias"], "scripted");
    assert_eq!(props["total_slots"], 32);
    let template = props["chat_template"].as_str().expect("a text");
    assert!(template.contains("add_generation_prompt"), "{template}");
    assert_eq!(
        props["modalities"],
        json!({"vision": false, "audio": false})
    );
}
