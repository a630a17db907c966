//! Tests of the output and the JSON record of `souffleur bench`, on tiny models.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;

use super::serving::Server;
use super::{run, souffleur, stderr, stdout, tiny_model};

const STOP_LIMIT: Duration = Duration::from_secs(60);

fn json(file: &Path) -> Value {
    let text = std::fs::read_to_string(file).expect("the record can be read");
    serde_json::from_str(&text).expect("the record is JSON")
}

/// Checks that every key exists and is not null.
#[track_caller]
fn check_keys(value: &Value, keys: &[&str]) {
    for key in keys {
        assert!(!value[*key].is_null(), "{key} is missing in {value}");
    }
}

#[track_caller]
fn check_rate(value: &Value) {
    let is_rate = value
        .as_f64()
        .is_some_and(|rate| rate > 0.0 && rate.is_finite());
    assert!(is_rate, "{value} is not a positive finite rate");
}

#[test]
fn the_bench_measures_the_machine_the_loads_and_the_start() {
    let cache = tempfile::tempdir().expect("a temporary folder can be made");
    let file = cache.path().join("record.json");
    let mut command = souffleur(&["bench", "--output-tokens", "8", "--prompt-tokens", "64"]);
    command.args(["--repeat", "1", "--batch", "2", "--json"]);
    command.arg(&file).env("SOUFFLEUR_CACHE_DIR", cache.path());
    let output = command.output().expect("the binary runs");
    let text = stdout(&output);
    assert!(output.status.success(), "{}", stderr(&output));
    for line in [
        "souffleur-tiny, bfloat16, quantization none, ",
        "| read bandwidth, GB/s ",
        "| vdpbf16ps, GFLOP/s ",
        "| prefill, 64 tokens ",
        "| decode, 8 tokens after 64 ",
        "| 2 concurrent streams together, 8 tokens each after prompts of 64 ",
        "| start to ready, first start ",
        "| start to first token, prompt of 16 tokens, later starts ",
    ] {
        let lines = text.lines().filter(|found| found.starts_with(line)).count();
        assert_eq!(lines, 1, "{line:?} in\n{text}");
    }
    let record = json(&file);
    assert_eq!(record["schema"], "souffleur-bench-offline/1");
    assert_eq!(record["model"]["name"], "souffleur-tiny");
    assert_eq!(record["dtype"], "bfloat16");
    check_keys(
        &record,
        &[
            "version",
            "date",
            "cpu",
            "quantization",
            "threads",
            "kernel_path",
            "seed",
        ],
    );
    assert_eq!(record["machine"].as_array().map(Vec::len), Some(1));
    for threads in ["one", "all"] {
        check_rate(&record["machine"][0][threads]["read_bytes_per_s"]);
        check_rate(&record["machine"][0][threads]["f32_ops_per_s"]);
    }
    let rows = record["rows"].as_array().expect("rows are a list");
    assert!(rows.len() >= 7, "{rows:?}");
    for row in rows {
        check_keys(row, &["name", "unit", "lower", "median", "upper"]);
        check_rate(&row["median"]);
        assert_eq!(row["samples"].as_array().map(Vec::len), Some(1), "{row}");
    }
    for row in &rows[..3] {
        check_keys(row, &["streams", "prompt_tokens", "output_tokens", "floor"]);
        check_rate(&row["fraction"]["median"]);
        check_rate(&row["samples"][0]["read_bytes_per_s"]);
    }
    assert!(record["scaling"].is_null());
}

#[test]
fn a_killed_bench_keeps_its_measurements() {
    let dir = tempfile::tempdir().expect("a temporary folder can be made");
    let file = dir.path().join("record.json");
    // With the maximum number of rounds, the run does not end before the test kills it.
    let mut command = souffleur(&["bench", "--skip-starts", "--repeat", "1000"]);
    command.args([
        "--prompt-tokens",
        "16",
        "--output-tokens",
        "4",
        "--batch",
        "2",
    ]);
    command.arg("--model-path").arg(tiny_model());
    command.args(["--skip-tokenizer-init", "--json"]).arg(&file);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().expect("the binary runs");
    while !file.exists() {
        let ended = child.try_wait().expect("the exit status can be read");
        assert!(ended.is_none(), "{ended:?}");
        std::thread::yield_now();
    }
    child.kill().expect("the bench runs");
    child.wait().expect("the bench was killed");
    let record = json(&file);
    assert_eq!(record["schema"], "souffleur-bench-offline/1");
    let rows = record["rows"].as_array().expect("rows are a list");
    assert!(!rows.is_empty(), "{record}");
    rows.iter().for_each(|row| check_rate(&row["median"]));
    assert!(!record["machine"].as_array().expect("a list").is_empty());
}

#[test]
fn scaling_adds_contexts_a_batch_curve_and_its_plot() {
    let dir = tempfile::tempdir().expect("a temporary folder can be made");
    let plot = dir.path().join("curve.svg");
    let mut command = souffleur(&["bench", "--scaling", "--repeat", "1", "--json", "-"]);
    command.args([
        "--output-tokens",
        "4",
        "--prompt-tokens",
        "16",
        "--batch",
        "1,600",
    ]);
    command.args(["--batch-prompt-tokens", "8", "--max-total-tokens", "4096"]);
    command
        .arg("--plot")
        .arg(&plot)
        .arg("--model-path")
        .arg(tiny_model());
    let output = command.output().expect("the binary runs");
    assert!(output.status.success(), "{}", stderr(&output));
    let record: Value = serde_json::from_str(&stdout(&output)).expect("stdout is JSON alone");
    let scaling = &record["scaling"];
    // The model's context of 256 tokens allows one measurement, which is too few to fit a line.
    assert_eq!(
        scaling["decode_by_context"].as_array().map(Vec::len),
        Some(1)
    );
    let context = &scaling["decode_by_context"][0];
    check_keys(
        context,
        &["context_tokens", "samples_s", "median", "floor_s"],
    );
    assert!(scaling["slope_fraction"].is_null());
    let prefilled = scaling["long_prefill"]["prompt_tokens"].as_u64();
    assert!(
        prefilled.is_some_and(|tokens| (200..256).contains(&tokens)),
        "{scaling}"
    );
    let curve = scaling["batch_curve"].as_array().expect("rows are a list");
    let streams: Vec<_> = curve
        .iter()
        .filter_map(|row| row["streams"].as_u64())
        .collect();
    assert_eq!(streams, [1, 2, 4, 8, 16, 32, 64]);
    let skipped = record["skipped"].as_array().expect("notes are a list");
    assert_eq!(skipped.len(), 1, "{skipped:?}");
    assert!(
        skipped[0]
            .as_str()
            .is_some_and(|note| note.starts_with("600 concurrent streams"))
    );
    let svg = std::fs::read_to_string(plot).expect("the plot was written");
    assert!(svg.contains("tokens/s, all streams"));
    assert!(
        ["avx", "amx", "portable"]
            .iter()
            .any(|path| svg.contains(path))
    );
}

#[test]
fn conflicting_and_invalid_arguments_give_exit_code_2() {
    for (args, part) in [
        (&["--num-prompts", "5"][..], "--base-url"),
        (&["--plot", "x.svg"], "--scaling"),
        (&["--repeat", "0"], "--repeat"),
        (&["--batch", "1,0"], "--batch"),
        (&["--base-url", "http://h", "--scaling"], "--scaling"),
        (
            &["--base-url", "http://h", "--request-rate", "0"],
            "0.001, or inf",
        ),
        (&["--base-url", "ftp://h"], "must begin with http://"),
        (
            &["--base-url", "localhost:30000"],
            "must begin with http://",
        ),
        (&["--api-key", "sk-1"], "--base-url"),
        (
            &["--base-url", "http://h", "--api-key", "two words"],
            "--api-key must be one or more characters of printable ASCII",
        ),
        (&["--page-size", "257"], "between 1 and 256"),
    ] {
        let args = [&["bench"], args].concat();
        let output = run(&args);
        assert_eq!(
            output.status.code(),
            Some(2),
            "{args:?}: {}",
            stderr(&output)
        );
        assert!(
            stderr(&output).contains(part),
            "{args:?}: {}",
            stderr(&output)
        );
    }
}

#[test]
fn unreachable_servers_and_missing_models_give_one_line_and_exit_code_1() {
    // A socket that is bound but does not listen refuses connections, and keeps its port from other tests.
    let unlistened = tokio::net::TcpSocket::new_v4().expect("a socket can be made");
    let any = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
    unlistened.bind(any).expect("a port is free");
    let url = format!("http://{}", unlistened.local_addr().expect("an address"));
    for args in [
        ["bench", "--base-url", &url],
        ["bench", "--model-path", "/nonexistent"],
    ] {
        let output = run(&args);
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        assert_eq!(stderr(&output).lines().count(), 1, "{}", stderr(&output));
        assert!(stderr(&output).contains(args[2]), "{}", stderr(&output));
    }
}

/// Runs the bench against a server, and returns its output and the record that it wrote.
fn online(server: &Server, args: &[&str]) -> (std::process::Output, Value) {
    let dir = tempfile::tempdir().expect("a temporary folder can be made");
    let file = dir.path().join("record.json");
    let url = format!("http://{}/v1", server.address);
    let mut command = souffleur(&["bench", "--base-url", &url, "--json"]);
    let output = command.arg(&file).args(args).output();
    (output.expect("the binary runs"), json(&file))
}

fn stop(server: Server) {
    server.signal("TERM");
    let (status, log) = server.wait(STOP_LIMIT);
    assert!(status.success(), "{log}");
}

#[test]
fn a_server_is_measured_request_by_request() {
    let server = Server::start(&[]);
    let load = [
        "--num-prompts",
        "9",
        "--random-input-len",
        "20",
        "--random-output-len",
        "6",
    ];
    let args = [
        &load[..],
        &["--ignore-eos", "--max-concurrency", "4", "--seed", "3"],
    ]
    .concat();
    let (output, record) = online(&server, &args);
    assert!(output.status.success(), "{}", stderr(&output));
    for line in [
        "| completed requests ",
        "| TTFT, time to first token ",
        "| output tokens/s ",
    ] {
        assert!(
            stdout(&output).contains(line),
            "{line:?} in\n{}",
            stdout(&output)
        );
    }
    assert_eq!(record["schema"], "souffleur-bench-online/1");
    assert_eq!(
        (&record["completed"], &record["failed"]),
        (&9.into(), &0.into())
    );
    assert_eq!(record["total_input_tokens"], 9 * 20);
    assert_eq!(record["total_output_tokens"], 9 * 6);
    assert_eq!(record["vocab_size"], 288, "the server reports it");
    assert_eq!(record["seed"], 3);
    for latency in ["ttft_s", "itl_s", "tpot_s", "e2e_s"] {
        check_keys(&record[latency], &["mean", "p50", "p90", "p99"]);
        check_rate(&record[latency]["p99"]);
    }
    for rate in [
        "request_throughput",
        "input_throughput",
        "output_throughput",
    ] {
        check_rate(&record[rate]);
    }
    assert_eq!(record["requests"].as_array().map(Vec::len), Some(9));
    stop(server);
}

#[test]
fn a_server_is_measured_with_prompts_that_share_a_prefix() {
    let server = Server::start(&[]);
    let prefix = [
        "--dataset-name",
        "shared-prefix",
        "--shared-prefix-len",
        "30",
    ];
    let text = [
        "--text-prompts",
        "--request-rate",
        "500",
        "--num-prompts",
        "5",
    ];
    let args = [
        &prefix[..],
        &text,
        &["--random-output-len", "3", "--random-input-len", "4"],
    ]
    .concat();
    let (output, record) = online(&server, &args);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(record["completed"], 5);
    assert_eq!(record["dataset_name"], "shared-prefix");
    stop(server);
}

#[test]
fn failures_are_counted_and_shown() {
    let server = Server::start(&[]);
    // About half of the one-token prompts are outside the model's vocabulary: the server refuses them.
    let load = [
        "--num-prompts",
        "32",
        "--random-input-len",
        "1",
        "--random-output-len",
        "2",
    ];
    let some = [
        "--vocab-size",
        "576",
        "--seed",
        "1",
        "--warmup-requests",
        "0",
    ];
    let (output, record) = online(&server, &[load, some].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    let count = |key: &str| record[key].as_u64().unwrap_or_default();
    assert_eq!(count("completed") + count("failed"), 32);
    assert!(count("completed") > 0 && count("failed") > 0, "{record}");
    assert!(
        stdout(&output).contains("failed 1 times: 400"),
        "{}",
        stdout(&output)
    );

    let too_long = [
        "--num-prompts",
        "3",
        "--random-input-len",
        "300",
        "--warmup-requests",
        "0",
    ];
    let (output, record) = online(&server, &too_long);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("all 3 requests failed: 400"),
        "{}",
        stderr(&output)
    );
    assert_eq!(
        record["failures"].as_object().map(|reasons| reasons.len()),
        Some(1)
    );
    stop(server);
}

#[test]
fn the_bench_needs_the_key_of_a_server_and_never_prints_it() {
    const KEY: &str = "sk-of-this-test";
    let server = Server::start(&["--api-key", KEY]);
    let url = format!("http://{}", server.address);
    let bench = |args: &[&str], variable: &str| {
        let load = ["--num-prompts", "2", "--random-input-len", "8"];
        let mut command = souffleur(&["bench", "--base-url", &url, "--random-output-len", "2"]);
        // With other seeds, the model answers some of the random prompts with only an EOS token.
        command.args(load).args(["--seed", "1", "--json", "-"]);
        command.args(args).env("OPENAI_API_KEY", variable);
        command.output().expect("the binary runs")
    };
    for (args, variable, status) in [
        (&["--api-key", KEY][..], "sk-another", Some(0)),
        (&[], KEY, Some(0)),
        (&[], "", Some(1)),
        (&["--api-key", "sk-another"], KEY, Some(1)),
        (
            &["--api-key", "sk-another", "--model", "tiny"],
            KEY,
            Some(1),
        ),
    ] {
        let output = bench(args, variable);
        let (printed, log) = (stdout(&output), stderr(&output));
        assert_eq!(output.status.code(), status, "{args:?}: {log}");
        match status {
            Some(0) => assert!(printed.contains("\"completed\": 2"), "{printed}"),
            _ => assert!(log.contains("401") && log.lines().count() == 1, "{log}"),
        }
        assert!(!format!("{printed}{log}").contains("sk-"), "{printed}{log}");
    }
    stop(server);
}
