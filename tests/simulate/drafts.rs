//! Tests of simulations whose drafts a taught bench has measured.

use crate::cli::{json, simulate};

const ONE_STREAM: [&str; 14] = [
    "--requests",
    "4",
    "--arrivals",
    "burst",
    "--max-running-requests",
    "1",
    "--hardware",
    "zen4-2-cores",
    "--shape",
    "qwen3-0.6b",
    "--input-len",
    "500",
    "--output-len",
    "350",
];

/// A shortened record of `souffleur bench --taught` with decodes of two kinds.
const TAUGHT: &str = r#"{"schema": "souffleur-bench-taught/1", "dtype": "bfloat16", "cells": [
    {"kind": "edit", "context_tokens": 0, "streams": 1, "rows": 3, "drafted": 21, "accepted": 21,
     "decodes": [[7, 7, 3]]},
    {"kind": "story", "context_tokens": 0, "streams": 1, "rows": 5, "drafted": 0, "accepted": 0,
     "decodes": [[0, 0, 5]]}], "skipped": []}"#;

#[test]
fn drafts_are_as_a_taught_bench_has_measured_them() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("taught.json");
    std::fs::write(&file, TAUGHT).expect("the file can be written");
    let name = file.to_string_lossy();
    let simulated = |more: &[&str]| json(&[&ONE_STREAM[..], more].concat());
    let tpot_s = |found: &serde_json::Value| {
        let tpot_s = found["runs"][0]["tpot_s"]["mean"].as_f64();
        tpot_s.expect("the run has a mean")
    };
    let plain = simulated(&[]);
    let edit = simulated(&["--drafts", &name, "--drafts-kind", "edit"]);
    assert_eq!(
        (&edit["draft_room"], &edit["drafts_kind"]),
        (&8.into(), &"edit".into())
    );
    assert_eq!(edit["runs"][0]["output_tokens"], 4 * 350);
    // Weights are read once for eight tokens.
    let ratio = tpot_s(&plain) / tpot_s(&edit);
    assert!((6.0..8.0).contains(&ratio), "{ratio}");
    let story = simulated(&["--drafts", &name, "--drafts-kind", "story"]);
    assert_eq!(tpot_s(&story), tpot_s(&plain));
    // Either kind of decode is as frequent as in the file.
    let both = simulated(&["--drafts", &name]);
    let ratio = tpot_s(&plain) / tpot_s(&both);
    assert!((2.5..4.5).contains(&ratio), "{ratio}");
}

#[test]
fn invalid_files_of_drafts_are_refused() {
    let dir = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: &str| {
        let file = dir.path().join(name);
        std::fs::write(&file, text).expect("the file can be written");
        file.to_string_lossy().into_owned()
    };
    let good = write("good.json", TAUGHT);
    let earlier = write("earlier.json", &TAUGHT.replace("\"decodes\"", "\"steps\""));
    let other = write("other.json", "{\"cells\": []}");
    let cases: [(&[&str], i32, &str); 5] = [
        (&["--drafts", "/nonexistent"], 1, "/nonexistent"),
        (&["--drafts", &other], 1, "missing field `schema`"),
        (&["--drafts", &earlier], 1, "has no decodes"),
        (
            &["--drafts", &earlier, "--drafts-kind", "edit"],
            1,
            "has no decodes",
        ),
        (
            &["--drafts", &good, "--drafts-kind", "prose"],
            2,
            "drafts_kind is \"prose\", must be one of edit, story",
        ),
    ];
    for (args, code, part) in cases {
        let output = simulate(args);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{text}");
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }
    for args in [
        &["--drafts", &good, "--draft-accept-rate", "0.5"][..],
        &["--drafts", &good, "--prompts-only"],
        &["--drafts-kind", "edit"],
    ] {
        assert_eq!(simulate(args).status.code(), Some(2), "{args:?}");
    }
}
