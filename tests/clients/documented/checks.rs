//! Checks of the answers to the examples.

use serde_json::{Value, json};

/// Checks the output of an example; the error describes the problem.
pub type Check = fn(&str) -> Result<(), String>;

/// A part of each example for a shell, and its check.
pub const CURL: [(&str, Check); 22] = [
    ("Where do pandas live?", |said| {
        let answer = parse(said)?;
        let results = answer["results"].as_array().ok_or("there are no results")?;
        let [best] = results.as_slice() else {
            return Err("there is not one result".to_owned());
        };
        let score = best["relevance_score"].as_f64();
        expect(
            score.is_some_and(|score| (0.0..=1.0).contains(&score))
                && best["document"]["text"].is_string(),
            "it is no result with score and document",
        )
    }),
    ("Act one.", |said| {
        let answer = parse(said)?;
        let all = answer["data"].as_array().ok_or("there are no embeddings")?;
        let length = |of: &Value| {
            let values = of["embedding"].as_array()?.iter();
            values
                .map(Value::as_f64)
                .try_fold(0.0, |sum, x| Some(sum + x? * x?))
        };
        let lengths: Vec<Option<f64>> = all.iter().map(length).collect();
        let is_one = |length: &Option<f64>| length.is_some_and(|x| (x - 1.0).abs() < 1e-3);
        expect(
            lengths.len() == 2 && lengths.iter().all(is_one),
            "they are not two of length 1",
        )
    }),
    ("continue_final_message", goes_on),
    ("free in row 4?", |said| {
        calls(said, &[("find_seat", json!({"row": 4}))])
    }),
    ("free in rows 4 and 5?", streams_two_calls),
    ("I sit in row 7.", |said| {
        calls(said, &[("find_seat", json!({"row": 7}))])
    }),
    ("Is row 6 full?", |said| {
        let answer = parse(said)?;
        let block = &answer["content"][0];
        let call = (&block["name"], &block["input"]);
        expect(
            call == (&json!("find_seat"), &json!({"row": 6}))
                && answer["stop_reason"] == "tool_use",
            "the tool is not called",
        )
    }),
    ("Dim the light", |said| {
        calls(said, &[("set_light", json!({"level": "dim"}))])
    }),
    ("The play begins.", |said| {
        calls(said, &[("open_curtain", json!({}))])
    }),
    ("free in row 9?", has_logprobs),
    ("Is 97 a prime?", |said| does_not_think(said, "Yes.")),
    ("Is 89 a prime?", |said| does_not_think(said, "Yes, it is.")),
    ("Name a city", |said| {
        let city = json_content(said)?;
        let keys: Vec<_> = city
            .as_object()
            .into_iter()
            .flat_map(|city| city.keys())
            .collect();
        expect(keys == ["city", "country"], "the schema has two properties")
    }),
    ("Describe the stage", |said| {
        expect(json_content(said)?.is_object(), "an object was asked for")
    }),
    ("The meeting is at", |said| {
        let time = generated(said)?;
        let (hour, minute) = time.split_once(':').ok_or("there is no colon")?;
        let number = |text: &str| text.parse::<u32>().map_err(|error| error.to_string());
        let is_time = time.len() == 5 && number(hour)? < 30 && number(minute)? < 60;
        expect(is_time, "the expression does not match")
    }),
    ("Is water wet?", |said| {
        expect(
            ["yes", "no"].contains(&generated(said)?.as_str()),
            "not of the grammar",
        )
    }),
    ("The free seats are", |said| {
        let seats: Vec<u32> =
            serde_json::from_str(&generated(said)?).map_err(|error| error.to_string())?;
        let all_known = seats.iter().all(|seat| [4, 5, 12].contains(seat));
        expect(
            all_known && (1..=3).contains(&seats.len()),
            "not of the schema",
        )
    }),
    ("Tag the row.", |said| {
        let text = generated(said)?;
        let tagged = text
            .split("<row=upper>")
            .nth(1)
            .and_then(|rest| rest.split("</row>").next());
        expect(
            matches!(tagged, Some("7" | "8")),
            "the tag has another content",
        )
    }),
    ("The weather today is", |said| {
        let choice = &parse(said)?["choices"][0];
        let is_known =
            ["sunny", "rainy", "windy"].contains(&choice["text"].as_str().unwrap_or_default());
        expect(
            is_known && choice["finish_reason"] == "stop",
            "none of the texts",
        )
    }),
    ("Give me a ticket number.", |said| {
        let number = content(&parse(said)?)?;
        let digits = number.strip_prefix("T-").ok_or("the prefix is missing")?;
        let is_number = digits.len() == 4 && digits.bytes().all(|byte| byte.is_ascii_digit());
        expect(is_number, "the expression does not match")
    }),
    ("Move the curtain.", |said| {
        let way = content(&parse(said)?)?;
        expect(
            ["curtain up", "curtain down"].contains(&way.as_str()),
            "not of the grammar",
        )
    }),
    ("Where is the stage?", |said| {
        let (events, _) = events(said)?;
        let text = joined(&events, "content");
        expect(
            ["{\"floor\":0}", "{\"floor\":1}"].contains(&text.as_str()),
            "not of the schema, or with blanks",
        )
    }),
];

/// A part of each example in Python, and its check.
pub const PYTHON: [(&str, Check); 6] = [
    ("free in row 6?", |said| {
        expect(
            said.trim() == "Seat 31 in row 6 is free.",
            "the loop does not end with the answer",
        )
    }),
    ("Who sits in row 8?", |said| {
        expect(said.trim() == "Nobody does.", "it is another answer")
    }),
    ("free in row 4?", |said| {
        expect(
            said.trim() == "Seat 12 in row 4 is free.",
            "the loop does not end with the answer",
        )
    }),
    ("Is 91 a prime?", |said| {
        let (thought, rest) = said.split_once("It says:").ok_or("it says nothing")?;
        let answer = rest.trim_start().starts_with("No.");
        let thought =
            thought.starts_with("It thinks:") && thought.contains("Seven times thirteen.");
        let tokens = rest
            .lines()
            .last()
            .and_then(|line| line.split(' ').next()?.parse::<u32>().ok());
        expect(
            thought && answer && tokens > Some(0),
            "the reasoning does not come apart",
        )
    }),
    ("Which seat is nearest?", |said| {
        expect(said.trim() == "row=2 is_free=True", "not parsed")
    }),
    ("Good evening!", |said| {
        expect(said.trim() == "That I cannot say.", "another text")
    }),
];

fn expect(holds: bool, otherwise: &str) -> Result<(), String> {
    holds.then_some(()).ok_or_else(|| otherwise.to_owned())
}

fn parse(said: &str) -> Result<Value, String> {
    serde_json::from_str(said).map_err(|error| error.to_string())
}

/// The text of a chat's only choice, which must end with a stop.
fn content(answer: &Value) -> Result<String, String> {
    let choice = &answer["choices"][0];
    expect(
        choice["finish_reason"] == "stop",
        "it does not stop by itself",
    )?;
    let content = choice["message"]["content"].as_str();
    content
        .map(str::to_owned)
        .ok_or_else(|| "no content".to_owned())
}

fn json_content(said: &str) -> Result<Value, String> {
    parse(&content(&parse(said)?)?)
}

/// The text of an answer of `/generate`, which must end with a stop.
fn generated(said: &str) -> Result<String, String> {
    let answer = parse(said)?;
    let is_stopped = answer["meta_info"]["finish_reason"]["type"] == "stop";
    expect(is_stopped, "it does not stop by itself")?;
    let text = answer["text"].as_str();
    text.map(str::to_owned).ok_or_else(|| "no text".to_owned())
}

fn goes_on(said: &str) -> Result<(), String> {
    expect(
        content(&parse(said)?)? == " the prompter.",
        "it does not go on",
    )
}

fn does_not_think(said: &str, text: &str) -> Result<(), String> {
    let answer = parse(said)?;
    let thought = &answer["choices"][0]["message"]["reasoning_content"];
    expect(thought.is_null(), "it thinks")?;
    expect(content(&answer)? == text, "another text")
}

/// The only choice has these calls and nothing else.
fn calls(said: &str, expected: &[(&str, Value)]) -> Result<(), String> {
    let answer = parse(said)?;
    choice_calls(&answer["choices"][0], expected)
}

fn choice_calls(choice: &Value, expected: &[(&str, Value)]) -> Result<(), String> {
    expect(
        choice["finish_reason"] == "tool_calls",
        "the finish reason is another",
    )?;
    expect(
        choice["message"]["content"].is_null(),
        "there is text besides",
    )?;
    let calls = choice["message"]["tool_calls"]
        .as_array()
        .ok_or("no calls")?;
    expect(calls.len() == expected.len(), "more calls or fewer")?;
    for (call, (name, arguments)) in calls.iter().zip(expected) {
        let function = &call["function"];
        let text = function["arguments"].as_str().ok_or("no arguments")?;
        let is_it = function["name"] == *name && parse(text)? == *arguments;
        let has_id = call["id"]
            .as_str()
            .is_some_and(|id| id.starts_with("call_"));
        expect(
            is_it && has_id && call["type"] == "function",
            "another call",
        )?;
    }
    Ok(())
}

/// The events of a stream that ends well, and its usage if it has one.
fn events(said: &str) -> Result<(Vec<Value>, Option<Value>), String> {
    let data = said.lines().filter_map(|line| line.strip_prefix("data: "));
    let mut data: Vec<&str> = data.collect();
    expect(data.pop() == Some("[DONE]"), "the stream does not end")?;
    let mut events = data.into_iter().map(parse).collect::<Result<Vec<_>, _>>()?;
    let has_usage = events
        .last()
        .is_some_and(|event| event["choices"] == json!([]));
    let usage = if has_usage { events.pop() } else { None };
    Ok((events, usage))
}

fn joined(events: &[Value], field: &str) -> String {
    let deltas = events
        .iter()
        .map(|event| &event["choices"][0]["delta"][field]);
    deltas.filter_map(Value::as_str).collect()
}

/// Each call begins with index, id and name, and is whole before the next one.
fn streams_two_calls(said: &str) -> Result<(), String> {
    let (events, usage) = events(said)?;
    let usage = usage.ok_or("no usage")?;
    expect(
        usage["usage"]["completion_tokens"].as_u64() > Some(0),
        "nothing is counted",
    )?;
    let mut calls: Vec<String> = Vec::new();
    let parts = events
        .iter()
        .map(|event| &event["choices"][0]["delta"]["tool_calls"][0]);
    for part in parts.filter(|part| !part.is_null()) {
        if !part["id"].is_null() {
            let is_whole = calls.last().is_none_or(|call| parse(call).is_ok());
            expect(is_whole, "a call begins before the one before has ended")?;
            expect(part["index"] == calls.len(), "another index")?;
            expect(part["function"]["name"] == "find_seat", "another name")?;
            calls.push(String::new());
        }
        let arguments = part["function"]["arguments"]
            .as_str()
            .ok_or("no arguments")?;
        calls
            .last_mut()
            .ok_or("arguments of no call")?
            .push_str(arguments);
    }
    expect(calls == ["{\"row\": 4}", "{\"row\": 5}"], "other calls")?;
    let last = events.last().ok_or("no events")?;
    let reason = &last["choices"][0]["finish_reason"];
    expect(reason == "tool_calls", "the finish reason is another")
}

/// Both choices have the call, and log probabilities of all generated tokens.
fn has_logprobs(said: &str) -> Result<(), String> {
    let answer = parse(said)?;
    let choices = answer["choices"].as_array().ok_or("no choices")?;
    expect(choices.len() == 2, "two choices were asked for")?;
    for choice in choices {
        choice_calls(choice, &[("find_seat", json!({"row": 9}))])?;
        let tokens = choice["logprobs"]["content"]
            .as_array()
            .ok_or("no logprobs")?;
        let text: String = tokens
            .iter()
            .filter_map(|token| token["token"].as_str())
            .collect();
        let has_tags = text.starts_with("<tool_call>") && text.contains("</tool_call>");
        expect(has_tags, "the tags have no log probabilities")?;
        let has_two = |token: &Value| token["top_logprobs"].as_array().map(Vec::len) == Some(2);
        expect(
            tokens.iter().all(has_two),
            "two alternatives were asked for",
        )?;
    }
    let ids = [0, 1].map(|at| &choices[at]["message"]["tool_calls"][0]["id"]);
    expect(ids[0] != ids[1], "the calls of both choices have one id")
}
