//! Tests of reading trace files: Mooncake's and Azure's formats, and the errors for other files.

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
fn the_fixtures_have_the_published_counts() {
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
fn times_are_read_with_or_without_fraction_or_zone_and_sorted() {
    let csv = "\u{feff}ContextTokens, TIMESTAMP ,GeneratedTokens\n\
               7,2024-05-10 00:00:02+00:00,3\n5,2024-05-10 00:00:00.5000000,0\n0,2024-05-10 00:00:00,4\n9,2024-05-10 00:00:01.009930+00:00,1\n";
    let trace = parsed(csv).expect("the text is a trace");
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
fn time_zones_apply_with_and_without_a_fraction() {
    let csv = "TIMESTAMP,ContextTokens,GeneratedTokens\n\
               2024-05-10 02:00:00.5+02:00,1,1\n2024-05-09T18:30:01-0530,2,1\n2024-05-10 00:00:02.25Z,3,1\n\
               2024-05-09 21:00:03.125-03,4,1\n2024-05-10 00:00:04 UTC,5,1\n";
    let trace = parsed(csv).expect("the text is a trace");
    let arrivals: Vec<_> = trace
        .requests
        .iter()
        .map(|request| (request.prompt.len(), (request.arrival_s * 1e3).round()))
        .collect();
    let expected = [
        (1, 0.0),
        (2, 500.0),
        (3, 1_750.0),
        (4, 2_625.0),
        (5, 3_500.0),
    ];
    assert_eq!(arrivals, expected);
}

#[test]
fn byte_order_marks_white_space_and_line_ends_change_nothing() {
    let line = "{\"timestamp\": 7.0, \"input_length\": 513.0, \"output_length\": 2, \"hash_ids\": [4, -9]}";
    let plain = parsed(line).expect("the text is a trace");
    assert_eq!((plain.prompt_tokens(), plain.n_blocks), (513, 2));
    for around in [
        format!("\u{feff}{line}\r\n"),
        format!("\n \r\n\t{line}  \n\n"),
        format!("\u{feff}\n{line}"),
        format!("\r\r{line}\r"),
    ] {
        assert_eq!(parsed(&around), Ok(plain.clone()), "{around:?}");
    }
    let row = "2024-05-10 00:00:00,7,3";
    let header = "TIMESTAMP,ContextTokens,GeneratedTokens";
    let plain = parsed(&format!("{header}\n{row}")).expect("the text is a trace");
    for around in [
        format!("\n{header}\r\n\r\n{row}\r\n"),
        format!("\u{feff}\n{header}\n{row},\n"),
        format!("{header}\n\"2024-05-10 00:00:00\",7.0,\"3\"\n"),
        format!("\r{header}\r{row}\r"),
    ] {
        assert_eq!(parsed(&around), Ok(plain.clone()), "{around:?}");
    }
    for end in ["\n", "\r\n", "\r"] {
        let error = parsed(&[end, end, line, end, "oops", end].concat());
        let error = error.expect_err("line 4 is not an object");
        assert!(error.starts_with("t, line 4: "), "{end:?}: {error}");
    }
}

/// Checks that each text is refused with an error that begins as expected.
fn check_refused<const N: usize>(cases: [(String, &str); N]) {
    for (text, expected) in cases {
        let error = parsed(&text).expect_err(expected);
        assert!(error.starts_with(expected), "{error}");
    }
}

#[test]
fn files_in_neither_format_are_refused() {
    check_refused([
        (
            String::new(),
            "t: is empty, expected a Mooncake or an Azure LLM trace",
        ),
        (
            "[{\"timestamp\": 1}]".into(),
            "t: is a single JSON list, expected one JSON object per line",
        ),
        (
            "\na,b\n1,2\n".into(),
            "t, line 2: header \"a,b\" has no column TIMESTAMP, expected TIMESTAMP,ContextTokens,GeneratedTokens or a Mooncake",
        ),
    ]);
}

#[test]
fn errors_name_the_line_field_and_value() {
    let good = "\"timestamp\": 1, \"output_length\": 2";
    check_refused([
        (
            line("\"timestamp\": 5, \"input"),
            "t, line 2: line is not a JSON object: EOF while parsing a string (byte ",
        ),
        (
            line("oops"),
            "t, line 2: line is not a JSON object: key must be a string (byte 2)",
        ),
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
            line(&format!(
                "{good}, \"input_length\": 1, \"hash_ids\": [18446744073709551616]"
            )),
            "t, line 2: hash_ids holds 1.8446744073709552e+19, expected whole numbers of 64 bits",
        ),
        (
            line(&format!("{good}, \"input_length\": 1.5, \"hash_ids\": [1]")),
            "t, line 2: input_length is 1.5, expected a number of tokens",
        ),
        (
            line("\"timestamp\": 1e300, \"output_length\": 2"),
            "t, line 2: timestamp is 1e+300, expected milliseconds from 0 to 10000000000000",
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
            format!("{{{}", " ".repeat(2 << 20)),
            "t, line 1: line has more than 1048576 bytes",
        ),
    ]);
}

#[test]
fn errors_of_tables_name_the_line_column_and_value() {
    check_refused([
        (
            "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.5+99:00,12,1\n".into(),
            "t, line 2: TIMESTAMP is \"2023-11-16 18:17:03.5+99:00\", expected a time",
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
            "t, line 3: TIMESTAMP is \"2023-13-16 18:17:03\", expected a time",
        ),
        (
            "TIMESTAMP,ContextTokens,GeneratedTokens\n".into(),
            "t: has no requests",
        ),
        (
            format!(
                "TIMESTAMP,ContextTokens,GeneratedTokens\n{}",
                "9".repeat(20_000)
            ),
            "t, line 2: line has more than 4096 bytes",
        ),
    ]);
}

#[test]
fn missing_and_truncated_files_are_errors() {
    assert!(read_trace(Path::new("no-such-file"), None).is_err());
    let whole = std::fs::read(fixture("mooncake_synthetic.jsonl.gz")).expect("the fixture exists");
    let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
    file.write_all(&whole[..whole.len() / 2])
        .expect("the file is written");
    let error = read_trace(file.path(), None)
        .expect_err("half of the file is missing")
        .to_string();
    assert!(error.contains(": line cannot be read: "), "{error}");
}
