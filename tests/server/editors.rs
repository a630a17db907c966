//! Replays the calls of llama.vim and llama.vscode in `tests/fixtures/editors`, and checks what each of them reads of
//! the answers.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::http::{Response, get, post};
use crate::infill::Editor;

const FILL: &str = "/infill";
const CHAT: &str = "/v1/chat/completions";
/// The model's output after every prompt.
const OUTPUT: &str = "size()";
/// Counts and times that both clients show.
const SHOWN: [&str; 6] = [
    "prompt_n",
    "prompt_ms",
    "prompt_per_second",
    "predicted_n",
    "predicted_ms",
    "predicted_per_second",
];

struct Call {
    path: String,
    /// Null for GET.
    body: Value,
}

impl Call {
    fn send(&self, editor: &Editor) -> Response {
        match self.body {
            Value::Null => get(editor.world.addr, &self.path),
            _ => post(editor.world.addr, &self.path, &self.body),
        }
    }

    /// Whether the client only wants the prompt in the cache.
    fn warms_up(&self) -> bool {
        self.body["n_predict"] == 0
    }
}

/// An answered call that fills in the middle.
struct Fill {
    files: Value,
    prefix: String,
    cached: f64,
    computed: f64,
}

impl Fill {
    fn new(call: &Call, cached: &Value, computed: &Value) -> Self {
        Self {
            files: call.body["input_extra"].clone(),
            prefix: text(&call.body["input_prefix"]).to_owned(),
            cached: number(cached),
            computed: number(computed),
        }
    }

    /// Whether the cursor was one line above at `earlier`.
    fn is_one_line_on(&self, earlier: &Self) -> bool {
        let typed = self.prefix.strip_prefix(&earlier.prefix);
        let is_line =
            typed.is_some_and(|typed| typed.ends_with('\n') && typed.lines().count() == 1);
        is_line && self.files == earlier.files
    }

    fn cached_share(&self) -> f64 {
        self.cached / (self.cached + self.computed)
    }
}

/// The calls of a client, in the order in which it sent them.
fn recorded(client: &str) -> Vec<Call> {
    let file = format!("tests/fixtures/editors/{client}.jsonl");
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    let recording = fs::read_to_string(file).expect("the fixture is readable");
    let calls = recording.lines().skip(1).map(|line| {
        let mut call: Value = serde_json::from_str(line).expect("lines are JSON");
        Call {
            path: text(&call["path"]).to_owned(),
            body: call["body"].take(),
        }
    });
    calls.collect()
}

#[track_caller]
fn text(value: &Value) -> &str {
    let text = value.as_str();
    text.unwrap_or_else(|| panic!("{value} is a text"))
}

#[track_caller]
fn number(value: &Value) -> f64 {
    let number = value.as_f64();
    number.unwrap_or_else(|| panic!("{value} is a number"))
}

/// The text of a chat's events.
#[track_caller]
fn streamed(body: &str) -> String {
    let events = body.lines().filter_map(|line| line.strip_prefix("data: "));
    let events: Vec<&str> = events.collect();
    let (last, events) = events.split_last().expect("events");
    assert_eq!(*last, "[DONE]");
    let parts = events.iter().map(|event| {
        let event: Value = serde_json::from_str(event).expect("data is JSON");
        let content = &event["choices"][0]["delta"]["content"];
        content.as_str().unwrap_or_default().to_owned()
    });
    parts.collect()
}

/// llama.vim's `fim_on_response` and `fim_render`.
fn check_fill_of_vim(call: &Call, answer: &Response) -> Fill {
    // llama.vim drops other texts before it parses them.
    assert!(answer.body.starts_with('{'), "{}", answer.body);
    assert!(answer.body.contains(r#""content":""#), "{}", answer.body);
    let answer = answer.json();
    let fields = answer.as_object().expect("an object");
    let fields: BTreeSet<&str> = fields.keys().map(String::as_str).collect();
    let wanted = call.body["response_fields"].as_array().expect("a list");
    let wanted: BTreeSet<&str> = wanted.iter().map(text).collect();
    assert_eq!(fields, wanted);
    assert_eq!(answer["content"], OUTPUT);
    assert_eq!(answer["truncated"], false);
    for name in SHOWN {
        number(&answer[format!("timings/{name}")]);
    }
    Fill::new(call, &answer["tokens_cached"], &answer["timings/prompt_n"])
}

/// llama.vscode's `getComplFromContent`, and the type `LlamaResponse` that its status bar shows.
fn check_fill_of_vscode(call: &Call, answer: &Value) -> Fill {
    let samples = answer.as_array().expect("a list, as n_cmpl is not 1");
    assert_eq!(json!(samples.len()), call.body["n_cmpl"]);
    for sample in samples {
        assert_eq!(sample["content"], OUTPUT);
        assert_eq!(sample["truncated"], false);
        assert_eq!(sample["stop"], true);
        number(&sample["tokens_cached"]);
        number(&sample["generation_settings"]["n_ctx"]);
        for name in SHOWN {
            number(&sample["timings"][name]);
        }
    }
    let first = &samples[0];
    Fill::new(call, &first["tokens_cached"], &first["timings"]["prompt_n"])
}

/// llama.vscode's `countToolsPromptTokens`: the tokens of the prompt that the template makes.
fn check_template(editor: &Editor, call: &Call, answer: &Value) {
    let prompt = text(&answer["prompt"]);
    let message = text(&call.body["messages"][0]["content"]);
    assert!(prompt.contains(message), "{prompt}");
    let body = json!({"content": prompt, "add_special": false, "parse_special": true});
    let counted = post(editor.world.addr, "/tokenize", &body).ok();
    let tokens = counted["tokens"].as_array().expect("a list");
    let mut chat = call.body.clone();
    chat["max_tokens"] = 1.into();
    let chat = post(editor.world.addr, CHAT, &chat).ok();
    assert_eq!(chat["usage"]["prompt_tokens"], tokens.len());
}

/// Checks that the first fill finds the tokens of the calls that warm up, and that a cursor one line on finds at least
/// nine tenths of its prompt.
#[track_caller]
fn check_cached(fills: &[Fill], warmed_up_tokens: f64) {
    let first = fills.first().expect("the client fills in the middle");
    assert!(first.cached >= 0.9 * warmed_up_tokens, "{}", first.cached);
    let one_line_on = fills.iter().enumerate().filter(|(at, fill)| {
        let mut earlier = fills[..*at].iter();
        earlier.any(|earlier| fill.is_one_line_on(earlier))
    });
    let shares: Vec<f64> = one_line_on.map(|(_, fill)| fill.cached_share()).collect();
    assert!(shares.len() >= 2, "{shares:?}");
    assert!(shares.iter().all(|share| *share >= 0.9), "{shares:?}");
}

#[test]
fn the_calls_of_llama_vim_replay() {
    let editor = Editor::new(&[("", OUTPUT)]);
    let mut fills = Vec::new();
    let mut kinds = BTreeSet::new();
    for call in recorded("llama.vim") {
        let answer = call.send(&editor);
        assert_eq!(answer.status, 200, "{} {}", call.path, answer.body);
        let kind = (call.path.as_str(), call.warms_up());
        match kind {
            (FILL, true) => assert_eq!(answer.json(), json!({})),
            (FILL, false) => fills.push(check_fill_of_vim(&call, &answer)),
            (CHAT, true) => assert_eq!(answer.json()["usage"]["completion_tokens"], 0),
            (CHAT, false) => assert_eq!(streamed(&answer.body), OUTPUT),
            _ => panic!("an unknown call of {}", call.path),
        }
        kinds.insert((call.path.clone(), call.warms_up()));
    }
    assert_eq!(kinds.len(), 4, "{kinds:?}");
    // The answers of the calls that warm up are empty: some tokens in the cache can only come from them.
    check_cached(&fills, 1.0);
    editor.world.wait_until_idle();
}

#[test]
fn the_calls_of_llama_vscode_replay() {
    let editor = Editor::new(&[("", OUTPUT)]);
    let (mut fills, mut warmed_up_tokens) = (Vec::new(), 0.0);
    let mut kinds = BTreeSet::new();
    for call in recorded("llama.vscode") {
        let response = call.send(&editor);
        assert_eq!(response.status, 200, "{} {}", call.path, response.body);
        kinds.insert((call.path.clone(), call.warms_up()));
        match (call.path.as_str(), call.warms_up()) {
            (FILL, true) => {
                let answer = response.json();
                assert_eq!(answer["tokens_predicted"], 0);
                warmed_up_tokens = number(&answer["tokens_evaluated"]);
            }
            (FILL, false) => fills.push(check_fill_of_vscode(&call, &response.json())),
            (CHAT, _) => assert_eq!(streamed(&response.body), OUTPUT),
            ("/health", _) => assert_eq!(response.json()["status"], "ok"),
            ("/v1/models", _) => {
                let model = &response.json()["data"][0];
                assert_eq!(model["id"], "scripted");
                // Without it, llama.vscode does not ask /props.
                assert!(number(&model["meta"]["n_ctx_train"]) > 0.0, "{model}");
            }
            ("/props", _) => {
                let settings = &response.json()["default_generation_settings"];
                assert!(number(&settings["n_ctx"]) > 0.0, "{settings}");
            }
            ("/apply-template", _) => check_template(&editor, &call, &response.json()),
            ("/tokenize", _) => {
                let tokens = &response.json()["tokens"];
                assert!(tokens.as_array().is_some_and(|tokens| !tokens.is_empty()));
            }
            _ => panic!("an unknown call of {}", call.path),
        }
    }
    assert_eq!(kinds.len(), 8, "{kinds:?}");
    check_cached(&fills, warmed_up_tokens);
    editor.world.wait_until_idle();
}
