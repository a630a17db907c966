//! Tests of the tables, JSON, plots and errors of `souffleur simulate`.

use std::process::{Command, Output};

use crate::fixture;

pub fn simulate(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_souffleur"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("SOUFFLEUR_") {
            command.env_remove(name);
        }
    }
    command
        .arg("simulate")
        .args(args)
        .output()
        .expect("the binary runs")
}

fn stdout(args: &[&str]) -> String {
    let output = simulate(args);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).expect("stdout is UTF-8")
}

pub fn json(args: &[&str]) -> serde_json::Value {
    serde_json::from_str(&stdout(&[args, &["--json", "-"]].concat()))
        .expect("stdout is JSON and nothing else")
}

fn mooncake() -> String {
    fixture("mooncake_synthetic.jsonl.gz")
        .to_string_lossy()
        .into_owned()
}

#[test]
fn prompts_alone_give_the_hit_rate_curve_as_table_json_and_plot() {
    let trace = mooncake();
    let table = stdout(&[&trace, "--prompts-only"]);
    let cells = |row: &str| {
        row.split('|')
            .map(|cell| cell.trim().to_owned())
            .collect::<Vec<_>>()
    };
    let row = table
        .lines()
        .map(cells)
        .find(|cells| cells.get(2).is_some_and(|pages| pages == "2007"));
    let row = row.expect("five percent of the unique blocks are 2007");
    assert_eq!(row[3..6], ["5.0 %", "0.15124", "2506"]);

    let dir = tempfile::tempdir().expect("a folder");
    let plot = dir.path().join("curve.svg");
    let plot_file = plot.to_string_lossy();
    let found = json(&[
        &trace,
        "--prompts-only",
        "--kv-tokens",
        "205312,5139456",
        "--plot",
        &plot_file,
    ]);
    let nodes: Vec<_> = (0..3)
        .map(|index| found["curve"][index]["counts"]["evicted_nodes"].as_u64())
        .collect();
    assert_eq!(nodes, [Some(2797), Some(1705), Some(0)]);
    check_plot(&plot, &["hit rate", "million tokens"]);
}

#[test]
fn a_replay_evicts_as_it_is_configured() {
    let trace = mooncake();
    let counts = |eviction: &[&str]| {
        let replay = [
            &trace,
            "--prompts-only",
            "--kv-tokens",
            "2055168",
            "--radix-eviction-policy",
        ];
        json(&[&replay, eviction].concat())["curve"][0]["counts"].clone()
    };
    let (lru, slru) = (counts(&["lru"]), counts(&["slru"]));
    assert_ne!(lru, slru);
    // With this threshold all nodes are protected, and the oldest is evicted, as with LRU.
    let config = "--radix-eviction-policy-config";
    let all_protected = counts(&["slru", config, "{\"protected_threshold\": 1}"]);
    assert_eq!(all_protected, lru);
    let refused = simulate(&[&trace, "--prompts-only", "--disable-radix-cache"]);
    assert_eq!(refused.status.code(), Some(2));
}

#[test]
fn pages_of_a_replay_may_be_as_large_as_a_block_or_larger() {
    let trace = mooncake();
    let hits = |page: &[&str]| {
        let first = [&trace, "--prompts-only", "--max-requests", "400"];
        let found = json(&[&first, page].concat());
        found["curve"][0]["counts"]["hit_tokens"].as_u64()
    };
    assert_eq!(hits(&["--page-size", "512"]), hits(&[]));
    assert!(hits(&["--page-size", "1024"]) <= hits(&[]));
    let refused = simulate(&[&trace, "--page-size", "512"]);
    assert!(!refused.status.success(), "pages of an engine are smaller");
}

#[test]
fn a_load_gives_percentiles_counts_and_a_timeline() {
    let dir = tempfile::tempdir().expect("a folder");
    let plot = dir.path().join("run.svg");
    let plot_file = plot.to_string_lossy();
    let args = [
        "--requests",
        "60",
        "--request-rate",
        "20",
        "--shape",
        "qwen3-0.6b",
        "--hardware",
        "l40s",
        "--shared-prefixes",
        "2",
        "--kv-tokens",
        "20000,200000",
        "--repeat",
        "2",
        "--plot",
        &plot_file,
    ];
    let found = json(&args);
    assert_eq!(found["load"]["requests"], 120);
    for run in found["runs"].as_array().expect("two runs") {
        assert_eq!(
            (&run["finished"], &run["stats"]["integrity_failures"]),
            (&120.into(), &0.into())
        );
        assert!(run["ttft_s"]["p99"].as_f64() >= run["ttft_s"]["p50"].as_f64());
        assert!(!run["timeline"].as_array().expect("a timeline").is_empty());
        assert_eq!(run["requests"].as_array().map(Vec::len), Some(120));
    }
    assert!(found["runs"][0]["stats"]["evicted_tokens"].as_u64() > Some(0));
    check_plot(&plot, &["KV pool, %", "waiting", "TTFT"]);
    let table = stdout(&args);
    for part in [
        "NVIDIA L40S",
        "TTFT p99, s",
        "TPOT p50, ms",
        "retractions",
        "20000 KV tokens",
    ] {
        assert!(table.contains(part), "{part} is not in\n{table}");
    }
}

#[test]
fn sizes_of_the_disk_are_compared() {
    let dir = tempfile::tempdir().expect("a folder");
    let plot = dir.path().join("disks.svg");
    let plot_file = plot.to_string_lossy();
    let load = [
        "--requests",
        "80",
        "--request-rate",
        "0.5",
        "--shape",
        "qwen3-0.6b",
        "--hardware",
        "zen4-2-cores",
        "--shared-prefixes",
        "8",
        "--input-len",
        "100",
        "--output-len",
        "10",
        "--kv-tokens",
        "4000",
    ];
    let args = [
        &load[..],
        &["--disk-bytes", "0,512M,8G", "--plot", &plot_file],
    ]
    .concat();
    let found = json(&args);
    let run = |index: usize| found["runs"][index].clone();
    assert!(run(0)["store"].is_null());
    assert_eq!(run(0)["disk_hit_rate"], 0.0);
    for (index, disk_bytes) in [(1, 512_u64 << 20), (2, 8 << 30)] {
        let run = run(index);
        let store = &run["store"];
        assert_eq!(store["disk_bytes"].as_u64(), Some(disk_bytes));
        assert!(store["held_bytes"].as_u64() <= Some(disk_bytes));
        assert!(store["written"].as_u64() > Some(0));
        assert_eq!(run["finished"], 80);
        let sum = ["memory_hit_rate", "disk_hit_rate"].map(|rate| run[rate].as_f64());
        let sum: f64 = sum.into_iter().flatten().sum();
        let all = run["hit_rate"].as_f64().expect("a rate is a number");
        assert!((sum - all).abs() < 1e-9);
    }
    assert!(run(2)["disk_hit_rate"].as_f64() > Some(0.0));
    check_plot(&plot, &["KV store, GiB", "of them on disk", "first token"]);
    let table = stdout(&args);
    for part in [
        "  on disk",
        "8 GiB disk",
        "0.5 GiB disk",
        "prompt tokens computed",
    ] {
        assert!(table.contains(part), "{part} is not in\n{table}");
    }
    let plain = stdout(&load);
    assert!(!plain.contains("on disk"), "{plain}");
}

const REPLICAS_LOAD: [&str; 12] = [
    "--requests",
    "60",
    "--request-rate",
    "10",
    "--shape",
    "qwen3-0.6b",
    "--hardware",
    "l40s",
    "--shared-prefixes",
    "2",
    "--kv-tokens",
    "20000",
];

#[test]
fn replicas_have_rows_of_their_requests_and_loads() {
    let dir = tempfile::tempdir().expect("a folder");
    let plot = dir.path().join("replicas.svg");
    let plot_file = plot.to_string_lossy();
    let args = [
        &REPLICAS_LOAD[..],
        &["--dp-size", "3", "--plot", &plot_file],
    ]
    .concat();
    let found = json(&args);
    assert_eq!(found["engine"]["load_balance_method"], "prefix");
    let run = &found["runs"][0];
    assert_eq!(
        (&run["kv_tokens"], &run["finished"]),
        (&60_000.into(), &60.into())
    );
    let replicas = run["replicas"].as_array().expect("a list of replicas");
    assert_eq!(replicas.len(), 3);
    let sum = |of: fn(&serde_json::Value) -> &serde_json::Value| -> f64 {
        let values = replicas.iter().map(|replica| of(replica).as_f64());
        values.map(|value| value.expect("a number")).sum()
    };
    assert_eq!(sum(|replica| &replica["requests"]), 60.0);
    assert!((sum(|replica| &replica["load"]) - 3.0).abs() < 1e-6);
    let cached = run["stats"]["cached_tokens"].as_f64();
    assert_eq!(
        Some(sum(|replica| &replica["stats"]["cached_tokens"])),
        cached
    );
    let requests = run["requests"].as_array().expect("a list of requests");
    assert!(requests.iter().all(|request| {
        request["replica"]
            .as_u64()
            .is_some_and(|replica| replica < 3)
    }));
    check_plot(&plot, &["3 replicas (prefix)"]);

    let in_turn = [&args[..], &["--load-balance-method", "round_robin"]].concat();
    let table = stdout(&in_turn);
    for part in [
        "3 replicas (round_robin), each on 1x NVIDIA L40S",
        "3 x 20000 KV tokens",
        "load, of the mean",
    ] {
        assert!(table.contains(part), "{part} is not in\n{table}");
    }
    let cells = table.lines().map(|line| line.split('|').map(str::trim));
    let requests = cells.filter_map(|mut cells| {
        let replica = cells.nth(1)?.parse::<u32>().ok()?;
        Some((replica, cells.next()?.to_owned()))
    });
    let expected = [0_u32, 1, 2].map(|replica| (replica, "20".to_owned()));
    assert_eq!(requests.collect::<Vec<_>>(), expected);
}

#[test]
fn a_single_replica_is_reported_as_an_engine() {
    let of = |more: &[&str]| json(&[&REPLICAS_LOAD[..], more].concat())["runs"][0].clone();
    let without_wall_time = |mut run: serde_json::Value| {
        run["simulated_in_s"] = 0.into();
        run
    };
    let engine = without_wall_time(of(&[]));
    assert!(engine.get("replicas").is_none());
    assert!(engine["requests"][0].get("replica").is_none());
    let single = of(&["--dp-size", "1", "--load-balance-method", "total_tokens"]);
    assert_eq!(without_wall_time(single), engine);
    let table = stdout(&REPLICAS_LOAD);
    assert!(!table.contains("replica"), "{table}");
    assert!(table.contains(" 20000 KV tokens"), "{table}");
}

#[test]
fn prompts_alone_are_divided_among_replicas() {
    let trace = mooncake();
    let args = [
        &trace,
        "--prompts-only",
        "--max-requests",
        "400",
        "--dp-size",
        "2",
    ];
    let found = json(&args);
    assert_eq!(found["dp_size"], 2);
    let points = found["curve"].as_array().expect("a curve");
    assert_eq!(points.len(), 6);
    for point in points {
        for count in ["hit_tokens", "evicted_nodes", "cached_tokens"] {
            let of = |replica: usize| point["replicas"][replica][count].as_u64();
            let sum = of(0).zip(of(1)).map(|(first, second)| first + second);
            assert_eq!(sum, point["counts"][count].as_u64(), "{count}");
        }
        assert_eq!(point["counts"]["prompts"], 400);
    }
    let table = stdout(&args);
    for part in [
        "in 2 replicas (prefix), pages of 512 tokens",
        "KV tokens of each replica",
        "greatest load, of the mean",
    ] {
        assert!(table.contains(part), "{part} is not in\n{table}");
    }
    let refused = simulate(&[&args[..], &["--load-balance-method", "total_tokens"]].concat());
    let text = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{text}");
    assert!(
        text.contains("load_balance_method is total_tokens"),
        "{text}"
    );
}

fn check_plot(file: &std::path::Path, parts: &[&str]) {
    let svg = std::fs::read_to_string(file).expect("the plot was written");
    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
    assert!(!svg.contains("href"), "the plot refers to other files");
    for part in parts {
        assert!(svg.contains(part), "{part} is not in the plot");
    }
}

#[test]
fn invalid_simulations_are_refused() {
    let trace = mooncake();
    let cases: [(&[&str], i32, &str); 16] = [
        (&["/nonexistent"], 1, "/nonexistent"),
        (&["--hardware", "h1000"], 2, "hardware is \"h1000\""),
        (&["--shape", "gpt-9"], 2, "shape is \"gpt-9\""),
        (&["--shape", "llama-3.1-70b"], 1, "the weights take"),
        (
            &["--hardware", "zen4-2-cores", "--tp-size", "2"],
            2,
            "tp_size is 2",
        ),
        (&["--kv-tokens", "2"], 2, "kv_tokens is 2"),
        (&["--repeat", "0"], 2, "repeat is 0"),
        (&["--rate-scale", "0"], 2, "rate_scale is 0"),
        (
            &[&trace, "--prompts-only", "--kv-tokens", "100"],
            2,
            "kv_tokens is 100, which makes 0 pages",
        ),
        (
            &["--disk-bytes", "2M", "--shape", "qwen3-0.6b"],
            2,
            "disk_bytes is 2097152, must be at least 7344128",
        ),
        (
            &["--disk-bytes", "1"],
            2,
            "kv_disk_bytes is 1, must be at least",
        ),
        (
            &["--disk-bytes", "1G", "--page-size", "48"],
            2,
            "page_size is 48",
        ),
        (
            &["--disk-bytes", "1G", "--disable-radix-cache"],
            2,
            "disable_radix_cache",
        ),
        (
            &["--dp-size", "2", "--disk-bytes", "0,1G"],
            2,
            "dp_size is 2, but disk_bytes is given",
        ),
        (
            &["--dp-size", "2", "--kv-disk-path", "nowhere"],
            2,
            " is 2, but kv_disk_path is given",
        ),
        (
            &["--dp-size", "2", "--device", "cuda:0,cuda:1,cuda:2"],
            2,
            " names 3 GPUs, but dp_size is 2",
        ),
    ];
    for (args, code, part) in cases {
        let output = simulate(args);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{text}");
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }
    for args in [["--input-len", "long"], ["--disk-bytes", "many"]] {
        assert_eq!(simulate(&args).status.code(), Some(2));
    }
    let both = ["--prompts-only", "--disk-bytes", "1G"];
    assert_eq!(simulate(&both).status.code(), Some(2));
}
