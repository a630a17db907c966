//! Tests of double sparsity on the command line: calibration, plan, generation and bench.

use super::{run, stderr, stdout, tiny_model};

#[test]
fn plan_generate_and_bench_use_calibrated_channels() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let path = |name: &str| dir.path().join(name).to_string_lossy().into_owned();
    let (text, channels) = (path("text.txt"), path("channels.json"));
    std::fs::write(&text, "To be, or not to be. ".repeat(20)).expect("writable");
    let model = tiny_model().to_string_lossy().into_owned();
    let (model, heavy_channels) = (["--model-path", &model], ["--ds-heavy-channel-num", "4"]);
    let calibrate = [
        "calibrate",
        "--text",
        &text,
        "-o",
        &channels,
        "--ds-heavy-token-num",
        "8",
    ];
    let output = run(&[&calibrate[..], &model, &heavy_channels].concat());
    let printed = stdout(&output);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(
        printed.contains("channels of 2 layers, calibrated on "),
        "{printed}"
    );
    assert!(printed.contains("channels ranked by qk find "), "{printed}");
    let sparse = [
        "--enable-double-sparsity",
        "--ds-channel-config-path",
        &channels,
        "--ds-sparse-decode-threshold",
        "16",
        "--ds-heavy-token-num",
        "8",
    ];
    let sparse = [&model[..], &heavy_channels, &sparse].concat();
    let planned = stdout(&run(&[&["plan"], &sparse[..]].concat()));
    assert!(
        planned.contains(", double-sparsity labels of 4 channels, "),
        "{planned}"
    );
    let prompt = [
        "--raw",
        "--max-new-tokens",
        "8",
        "A long enough prompt for these flags",
    ];
    let answered = run(&[&["generate"], &sparse[..], &prompt].concat());
    assert!(answered.status.success(), "{}", stderr(&answered));
    let bench = [
        "bench",
        "--noise-context",
        "64",
        "--output-tokens",
        "2",
        "--repeat",
        "1",
    ];
    let measured = run(&[&bench[..], &sparse].concat());
    let table = stdout(&measured);
    assert!(measured.status.success(), "{}", stderr(&measured));
    for part in [
        "decode, 2 tokens after 65",
        "dense, ms a step",
        "sparse, times as fast as dense",
    ] {
        assert!(table.contains(part), "{table}");
    }
}

#[test]
fn invalid_double_sparsity_flags_give_one_line() {
    let model = tiny_model().to_string_lossy().into_owned();
    let refusal = |flags: &[&str]| {
        let base = ["plan", "--model-path", &model, "--enable-double-sparsity"];
        let output = run(&[&base[..], flags].concat());
        assert!(!output.status.success());
        let text = stderr(&output);
        assert_eq!(text.lines().count(), 1, "{text}");
        text
    };
    let text = refusal(&[]);
    assert!(
        text.contains("ds_channel_config_path is not given"),
        "{text}"
    );
    let file = ["--ds-channel-config-path", "/nonexistent.json"];
    let text = refusal(&file);
    assert!(text.contains("/nonexistent.json"), "{text}");
    let text = refusal(&[&file[..], &["--device", "cuda"]].concat());
    assert!(
        text.contains("--enable-double-sparsity is on, but device is cuda:"),
        "{text}"
    );
    let text = refusal(&[&file[..], &["--ds-heavy-channel-num", "1000"]].concat());
    assert!(
        text.contains("ds_heavy_channel_num is 1000, but keys of layer 0 have"),
        "{text}"
    );
}
