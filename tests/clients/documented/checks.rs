//! Checks of the outputs of the examples in `docs/api.md`.

use serde_json::{Value, json};

/// Checks the output of an example; the error describes the problem.
pub type Check = fn(&str) -> Result<(), String>;

/// For each shell example, a string that only this example contains, and the check of its output.
pub const CURL: [(&str, Check); 28] = [
    ("/debug/actors", |out| {
        let answer = parse(out)?;
        let actors = answer["actors"].as_array().ok_or("there are no actors")?;
        expect(
            actors.len() == 6 && actors.iter().all(|actor| actor["state"] == "up"),
            "not all six actors are up",
        )
    }),
    ("/debug/engine", |out| {
        let answer = parse(out)?;
        let restarts = &answer["restarts"];
        expect(
            answer["generation"] == 1 && answer["is_up"] == true,
            "not the first generation",
        )?;
        expect(
            restarts["left"].is_u64() && restarts["left"] == restarts["limit"],
            "a restart was counted",
        )
    }),
    ("/debug/requests", |out| {
        let answer = parse(out)?;
        let requests = answer["requests"].as_array().map(Vec::len);
        expect(
            answer["total"] == 0 && requests == Some(0),
            "there are requests",
        )
    }),
    ("Who wrote the play?", |out| {
        let prompt = parse(out)?["prompt"].take();
        let prompt = prompt.as_str().ok_or("there is no prompt")?;
        let (_, rest) = prompt
            .split_once("Who wrote the play?")
            .ok_or("the prompt lacks the message")?;
        expect(!rest.is_empty(), "the answer does not begin")
    }),
    ("fn add(a: u32", |out| {
        let answer = parse(out)?;
        let timings = &answer["timings"];
        let evaluated = answer["tokens_evaluated"].as_u64();
        let counted = [&timings["cache_n"], &timings["prompt_n"]].map(Value::as_u64);
        let sum = counted[0].zip(counted[1]).map(|(cached, new)| cached + new);
        expect(
            answer["content"].is_string() && answer["stop"] == true,
            "the answer has no content",
        )?;
        expect(
            evaluated.is_some() && evaluated == sum,
            "the prompt's counts do not add up",
        )
    }),
    ("Where do pandas live?", |out| {
        let answer = parse(out)?;
        let results = answer["results"].as_array().ok_or("there are no results")?;
        let [best] = results.as_slice() else {
            return Err("the number of results is not 1".to_owned());
        };
        let score = best["relevance_score"].as_f64();
        expect(
            score.is_some_and(|score| (0.0..=1.0).contains(&score))
                && best["document"]["text"].is_string(),
            "the result has no score or no document",
        )
    }),
    ("Act one.", |out| {
        let answer = parse(out)?;
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
            "the embeddings are not two vectors of length 1",
        )
    }),
    ("continue_final_message", continues_message),
    ("free in row 4?", |out| {
        calls(out, &[("find_seat", json!({"row": 4}))])
    }),
    ("free in rows 4 and 5?", streams_two_calls),
    ("I sit in row 7.", |out| {
        calls(out, &[("find_seat", json!({"row": 7}))])
    }),
    ("Is row 6 full?", |out| {
        let answer = parse(out)?;
        let block = &answer["content"][0];
        let call = (&block["name"], &block["input"]);
        expect(
            call == (&json!("find_seat"), &json!({"row": 6}))
                && answer["stop_reason"] == "tool_use",
            "the tool is not called",
        )
    }),
    ("Which row is the best?", |out| {
        let answer = parse(out)?;
        expect(
            answer["message"]["content"] == "Row 5."
                && answer["done"] == true
                && answer["done_reason"] == "stop"
                && answer["eval_count"].as_u64() > Some(0),
            "not a whole answer of Ollama's form",
        )
    }),
    ("Dim the light", |out| {
        calls(out, &[("set_light", json!({"level": "dim"}))])
    }),
    ("The play begins.", |out| {
        calls(out, &[("open_curtain", json!({}))])
    }),
    ("free in row 9?", has_logprobs),
    ("Is 97 a prime?", |out| has_no_reasoning(out, "Yes.")),
    ("Is 89 a prime?", |out| has_no_reasoning(out, "Yes, it is.")),
    ("Name a city", |out| {
        let city = json_content(out)?;
        let keys: Vec<_> = city
            .as_object()
            .into_iter()
            .flat_map(|city| city.keys())
            .collect();
        expect(keys == ["city", "country"], "the keys differ")
    }),
    ("Describe the stage", |out| {
        expect(json_content(out)?.is_object(), "not an object")
    }),
    ("The meeting is at", |out| {
        let time = generated(out)?;
        let (hour, minute) = time.split_once(':').ok_or("there is no colon")?;
        let number = |text: &str| text.parse::<u32>().map_err(|error| error.to_string());
        let is_time = time.len() == 5 && number(hour)? < 30 && number(minute)? < 60;
        expect(is_time, "the expression does not match")
    }),
    ("Is water wet?", |out| {
        expect(
            ["yes", "no"].contains(&generated(out)?.as_str()),
            "the text does not match the grammar",
        )
    }),
    ("The free seats are", |out| {
        let seats: Vec<u32> =
            serde_json::from_str(&generated(out)?).map_err(|error| error.to_string())?;
        let all_known = seats.iter().all(|seat| [4, 5, 12].contains(seat));
        expect(
            all_known && (1..=3).contains(&seats.len()),
            "the text does not match the schema",
        )
    }),
    ("Tag the row.", |out| {
        let text = generated(out)?;
        let tagged = text
            .split("<row=upper>")
            .nth(1)
            .and_then(|rest| rest.split("</row>").next());
        expect(
            matches!(tagged, Some("7" | "8")),
            "the tag has another content",
        )
    }),
    ("The weather today is", |out| {
        let choice = &parse(out)?["choices"][0];
        let is_known =
            ["sunny", "rainy", "windy"].contains(&choice["text"].as_str().unwrap_or_default());
        expect(
            is_known && choice["finish_reason"] == "stop",
            "the text is none of the choices",
        )
    }),
    ("Give me a ticket number.", |out| {
        let number = content(&parse(out)?)?;
        let digits = number.strip_prefix("T-").ok_or("the prefix is missing")?;
        let is_number = digits.len() == 4 && digits.bytes().all(|byte| byte.is_ascii_digit());
        expect(is_number, "the expression does not match")
    }),
    ("Move the curtain.", |out| {
        let direction = content(&parse(out)?)?;
        expect(
            ["curtain up", "curtain down"].contains(&direction.as_str()),
            "the text does not match the grammar",
        )
    }),
    ("Where is the stage?", |out| {
        let (events, _) = events(out)?;
        let text = joined(&events, "content");
        expect(
            ["{\"floor\":0}", "{\"floor\":1}"].contains(&text.as_str()),
            "the text does not match the schema, or has spaces",
        )
    }),
];

/// Like [`CURL`], for each Python example.
pub const PYTHON: [(&str, Check); 7] = [
    ("free in row 6?", |out| {
        expect(
            out.trim() == "Seat 31 in row 6 is free.",
            "the loop does not end with the answer",
        )
    }),
    ("Who sits in row 8?", |out| {
        expect(out.trim() == "Nobody does.", "the answer differs")
    }),
    ("free in row 4?", |out| {
        expect(
            out.trim() == "Seat 12 in row 4 is free.",
            "the loop does not end with the answer",
        )
    }),
    ("Is 91 a prime?", |out| {
        let (thought, rest) = out.split_once("It says:").ok_or("no answer")?;
        let answer = rest.trim_start().starts_with("No.");
        let thought =
            thought.starts_with("It thinks:") && thought.contains("Seven times thirteen.");
        let tokens = rest
            .lines()
            .last()
            .and_then(|line| line.split(' ').next()?.parse::<u32>().ok());
        expect(
            thought && answer && tokens > Some(0),
            "reasoning and answer are not separated",
        )
    }),
    ("Which seat is nearest?", |out| {
        expect(out.trim() == "row=2 is_free=True", "not parsed")
    }),
    ("Which row is the worst?", |out| {
        expect(out.trim() == "Row 31.", "the text differs")
    }),
    ("Good evening!", |out| {
        expect(out.trim() == "That I cannot say.", "the text differs")
    }),
];

fn expect(holds: bool, otherwise: &str) -> Result<(), String> {
    holds.then_some(()).ok_or_else(|| otherwise.to_owned())
}

fn parse(out: &str) -> Result<Value, String> {
    serde_json::from_str(out).map_err(|error| error.to_string())
}

/// The text of a chat's only choice, whose finish reason must be `stop`.
fn content(answer: &Value) -> Result<String, String> {
    let choice = &answer["choices"][0];
    expect(
        choice["finish_reason"] == "stop",
        "the finish reason is not stop",
    )?;
    let content = choice["message"]["content"].as_str();
    content
        .map(str::to_owned)
        .ok_or_else(|| "no content".to_owned())
}

fn json_content(out: &str) -> Result<Value, String> {
    parse(&content(&parse(out)?)?)
}

/// The text of an answer of `/generate`, whose finish reason must be `stop`.
fn generated(out: &str) -> Result<String, String> {
    let answer = parse(out)?;
    let is_stopped = answer["meta_info"]["finish_reason"]["type"] == "stop";
    expect(is_stopped, "the finish reason is not stop")?;
    let text = answer["text"].as_str();
    text.map(str::to_owned).ok_or_else(|| "no text".to_owned())
}

fn continues_message(out: &str) -> Result<(), String> {
    expect(
        content(&parse(out)?)? == " the prompter.",
        "the message is not continued",
    )
}

fn has_no_reasoning(out: &str, text: &str) -> Result<(), String> {
    let answer = parse(out)?;
    let thought = &answer["choices"][0]["message"]["reasoning_content"];
    expect(thought.is_null(), "the answer has reasoning")?;
    expect(content(&answer)? == text, "the text differs")
}

/// Checks that the only choice has these calls and no text.
fn calls(out: &str, expected: &[(&str, Value)]) -> Result<(), String> {
    let answer = parse(out)?;
    choice_calls(&answer["choices"][0], expected)
}

fn choice_calls(choice: &Value, expected: &[(&str, Value)]) -> Result<(), String> {
    expect(
        choice["finish_reason"] == "tool_calls",
        "the finish reason differs",
    )?;
    expect(
        choice["message"]["content"].is_null(),
        "the message has text, too",
    )?;
    let calls = choice["message"]["tool_calls"]
        .as_array()
        .ok_or("no calls")?;
    expect(calls.len() == expected.len(), "the number of calls differs")?;
    for (call, (name, arguments)) in calls.iter().zip(expected) {
        let function = &call["function"];
        let text = function["arguments"].as_str().ok_or("no arguments")?;
        let is_expected = function["name"] == *name && parse(text)? == *arguments;
        let has_id = call["id"]
            .as_str()
            .is_some_and(|id| id.starts_with("call_"));
        expect(
            is_expected && has_id && call["type"] == "function",
            "the call differs",
        )?;
    }
    Ok(())
}

/// The events of a complete stream, and its usage if it has one.
fn events(out: &str) -> Result<(Vec<Value>, Option<Value>), String> {
    let data = out.lines().filter_map(|line| line.strip_prefix("data: "));
    let mut data: Vec<&str> = data.collect();
    expect(data.pop() == Some("[DONE]"), "no [DONE] at the end")?;
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

/// Checks that each call begins with index, id and name, and is complete before the next one begins.
fn streams_two_calls(out: &str) -> Result<(), String> {
    let (events, usage) = events(out)?;
    let usage = usage.ok_or("no usage")?;
    expect(
        usage["usage"]["completion_tokens"].as_u64() > Some(0),
        "no completion tokens are counted",
    )?;
    let mut calls: Vec<String> = Vec::new();
    let parts = events
        .iter()
        .map(|event| &event["choices"][0]["delta"]["tool_calls"][0]);
    for part in parts.filter(|part| !part.is_null()) {
        if !part["id"].is_null() {
            let is_whole = calls.last().is_none_or(|call| parse(call).is_ok());
            expect(is_whole, "a call begins before the previous one has ended")?;
            expect(part["index"] == calls.len(), "the index differs")?;
            expect(part["function"]["name"] == "find_seat", "the name differs")?;
            calls.push(String::new());
        }
        let arguments = part["function"]["arguments"]
            .as_str()
            .ok_or("no arguments")?;
        calls
            .last_mut()
            .ok_or("arguments come before any call")?
            .push_str(arguments);
    }
    expect(calls == ["{\"row\": 4}", "{\"row\": 5}"], "wrong calls")?;
    let last = events.last().ok_or("no events")?;
    let reason = &last["choices"][0]["finish_reason"];
    expect(reason == "tool_calls", "the finish reason differs")
}

/// Checks that both choices have the call, and log probabilities of all generated tokens.
fn has_logprobs(out: &str) -> Result<(), String> {
    let answer = parse(out)?;
    let choices = answer["choices"].as_array().ok_or("no choices")?;
    expect(choices.len() == 2, "the number of choices is not 2")?;
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
            "a token does not have two alternatives",
        )?;
    }
    let ids = [0, 1].map(|at| &choices[at]["message"]["tool_calls"][0]["id"]);
    expect(ids[0] != ids[1], "the calls of both choices have one id")
}
