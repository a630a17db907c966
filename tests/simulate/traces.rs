//! Traces as files: both formats, and what is said of those that are neither.

use std::io::Write;
use std::path::Path;

use souffleur::simulate::read::{parse, read_trace};
use souffleur::simulate::trace::Trace;

use crate::{azure, fixture, mooncake};

fn parsed(text: &str) -> Result<Trace, String> {
    parse(Path::new("t"), text.as_bytes(), None).map_err(|error| error.to_string())
}

fn line(fields: &str) -> String {
    format!(
        "{{\"timestamp\": 7, \"input_length\": 513, \"output_length\": 2, \"hash_ids\": [4, 9]}}\n{{{fields}}}\n"
    )
}

#[test]
fn the_fixtures_are_what_their_authors_counted() {
    let trace = mooncake(None);
    assert_eq!(
        (trace.requests.len(), trace.output_tokens()),
        (3993, 595_432)
    );
    assert_eq!((trace.span_s(), trace.n_blocks), (1022.025, 43_924));
    let trace = azure(None);
    assert_eq!((trace.requests.len(), trace.empty_prompts), (8819, 0));
    assert_eq!(
        (trace.prompt_tokens(), trace.output_tokens()),
        (18_059_974, 245_896)
    );
    assert!(
        (3400.0..3500.0).contains(&trace.span_s()),
        "{}",
        trace.span_s()
    );
    assert_eq!(azure(Some(3)).requests, trace.requests[..3]);
}

#[test]
fn times_are_read_with_and_without_fraction_and_zone_and_put_in_order() {
    let csv = "\u{feff}ContextTokens, TIMESTAMP ,GeneratedTokens\n\
               7,2024-05-10 00:00:02+00:00,3\n5,2024-05-10 00:00:00.5000000,0\n0,2024-05-10 00:00:00,4\n9,2024-05-10 00:00:01.009930+00:00,1\n";
    let trace = parsed(csv).expect("it is a trace");
    let lengths: Vec<_> = trace
        .requests
        .iter()
        .map(|request| (request.prompt.len(), request.output_tokens))
        .collect();
    assert_eq!(lengths, [(5, 0), (9, 1), (7, 3)]);
    assert_eq!(trace.empty_prompts, 1);
    let arrivals: Vec<_> = trace
        .requests
        .iter()
        .map(|request| (request.arrival_s * 1e6).round())
        .collect();
    assert_eq!(arrivals, [0.0, 509_930.0, 1_500_000.0]);
}

#[test]
fn what_cannot_be_used_is_named_with_line_field_and_value() {
    let good = "\"timestamp\": 1, \"output_length\": 2";
    let cases = [
        (
            String::new(),
            "t: is empty, expected a Mooncake or an Azure LLM trace",
        ),
        ("a,b\n1,2\n".into(), "t: has no column TIMESTAMP"),
        (line("oops"), "t, line 2: line is no JSON object"),
        (
            line(&format!("{good}, \"hash_ids\": []")),
            "t, line 2: input_length is missing",
        ),
        (
            line(&format!("{good}, \"input_length\": -3, \"hash_ids\": []")),
            "t, line 2: input_length is -3, expected a number of tokens",
        ),
        (
            line(&format!(
                "{good}, \"input_length\": 99999999, \"hash_ids\": []"
            )),
            "t, line 2: input_length is 99999999, must be at most 16777216",
        ),
        (
            line(&format!("{good}, \"input_length\": 513, \"hash_ids\": [1]")),
            "t, line 2: hash_ids has 1 ids, expected 2 for an input_length of 513",
        ),
        (
            line(&format!(
                "{good}, \"input_length\": 1, \"hash_ids\": [\"x\"]"
            )),
            "t, line 2: hash_ids holds \"x\", expected whole numbers",
        ),
        (
            line(&format!("{good}, \"input_length\": 1, \"hash_ids\": 3")),
            "t, line 2: hash_ids is 3, expected a list",
        ),
        (
            line("\"timestamp\": \"noon\", \"output_length\": 2"),
            "t, line 2: timestamp is \"noon\", expected milliseconds",
        ),
        (
            "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,12,x\n".into(),
            "t, line 2: GeneratedTokens is \"x\", expected a number",
        ),
        (
            "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,1\n".into(),
            "t, line 2: GeneratedTokens is missing",
        ),
        (
            "TIMESTAMP,ContextTokens,GeneratedTokens\n\n2023-13-16 18:17:03,1,1\n".into(),
            "t, line 3: TIMESTAMP is \"2023-13-16 18:17:03\", expected a moment",
        ),
        (
            "TIMESTAMP,ContextTokens,GeneratedTokens\n".into(),
            "t: holds no request",
        ),
        (
            format!(
                "TIMESTAMP,ContextTokens,GeneratedTokens\n{}",
                "9".repeat(20_000)
            ),
            "t, line 2: line has more than 4096 bytes",
        ),
        (
            format!("{{{}", " ".repeat(2 << 20)),
            "t, line 1: line has more than 1048576 bytes",
        ),
    ];
    for (text, expected) in cases {
        let error = parsed(&text).expect_err(expected);
        assert!(error.starts_with(expected), "{error}");
    }
}

#[test]
fn files_that_are_not_there_or_break_off_are_errors() {
    assert!(read_trace(Path::new("no-such-file"), None).is_err());
    let whole =
        std::fs::read(fixture("mooncake_synthetic.jsonl.gz")).expect("the fixture is there");
    let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
    file.write_all(&whole[..whole.len() / 2])
        .expect("it is written");
    let error = read_trace(file.path(), None)
        .expect_err("half of it is missing")
        .to_string();
    assert!(error.contains("line"), "{error}");
}
