//! Double sparsity from the prompt's text to the answer.

use super::{run, stderr, stdout, tiny_model};

#[test]
fn calibrated_channels_are_planned_measured_and_generated_with() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let path = |name: &str| dir.path().join(name).to_string_lossy().into_owned();
    let (text, channels) = (path("text.txt"), path("channels.json"));
    std::fs::write(&text, "To be, or not to be. ".repeat(20)).expect("writable");
    let model = tiny_model().to_string_lossy().into_owned();
    let (model, max) = (["--model-path", &model], ["--ds-heavy-channel-num", "4"]);
    let calibrate = [
        "calibrate",
        "--text",
        &text,
        "-o",
        &channels,
        "--ds-heavy-token-num",
        "8",
    ];
    let output = run(&[&calibrate[..], &model, &max].concat());
    let said = stdout(&output);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(said.contains("channels of 2 layers by "), "{said}");
    assert!(said.contains("ranked by qk  recall 0."), "{said}");
    let sparse = [
        "--enable-double-sparsity",
        "--ds-channel-config-path",
        &channels,
        "--ds-sparse-decode-threshold",
        "16",
        "--ds-heavy-token-num",
        "8",
    ];
    let sparse = [&model[..], &max, &sparse].concat();
    let planned = stdout(&run(&[&["plan"], &sparse[..]].concat()));
    assert!(planned.contains(", labels of 4, "), "{planned}");
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
        "times as fast",
    ] {
        assert!(table.contains(part), "{table}");
    }
}

#[test]
fn double_sparsity_that_cannot_be_is_one_line() {
    let model = tiny_model().to_string_lossy().into_owned();
    let with = |flags: &[&str]| {
        let base = ["plan", "--model-path", &model, "--enable-double-sparsity"];
        let output = run(&[&base[..], flags].concat());
        assert!(!output.status.success());
        let text = stderr(&output);
        assert_eq!(text.lines().count(), 1, "{text}");
        text
    };
    let text = with(&[]);
    assert!(
        text.contains("ds_channel_config_path is not given"),
        "{text}"
    );
    let file = ["--ds-channel-config-path", "/nonexistent.json"];
    let text = with(&file);
    assert!(text.contains("/nonexistent.json"), "{text}");
    let text = with(&[&file[..], &["--device", "cuda"]].concat());
    assert!(
        text.contains("--enable-double-sparsity is on, but device is cuda:0"),
        "{text}"
    );
    let text = with(&[&file[..], &["--ds-heavy-channel-num", "1000"]].concat());
    assert!(
        text.contains("ds_heavy_channel_num is 1000, keys of layer 0 have"),
        "{text}"
    );
}
