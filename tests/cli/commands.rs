//! Commands that end by themselves.

use safetensors::SafeTensors;

use super::{run, souffleur, stderr, stdout, tiny_model};

/// The command fails with `code` and one line that holds every part.
fn check_failure(args: &[&str], code: i32, parts: &[&str]) {
    let output = run(args);
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(code), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }
}

#[test]
fn a_missing_model_is_one_line_and_exit_code_1() {
    check_failure(
        &["plan", "--model-path", "/nonexistent"],
        1,
        &["/nonexistent/config.json"],
    );
    check_failure(
        &["--model-path", "/nonexistent", "--port", "0"],
        1,
        &["/nonexistent"],
    );
}

#[test]
fn values_out_of_range_are_one_line_and_exit_code_2() {
    check_failure(
        &["--page-size", "3"],
        2,
        &["--page-size is 3", "power of two"],
    );
    check_failure(
        &["--config", "/nonexistent.toml"],
        2,
        &["/nonexistent.toml"],
    );
    check_failure(&["--log-level", "loud=loud"], 2, &["log_level", "loud"]);
}

#[test]
fn a_flag_that_does_not_exist_is_exit_code_2() {
    let output = run(&["--pagesize", "3"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr(&output).contains("--page-size"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn a_port_in_use_is_one_line_and_exit_code_1() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let port = taken.local_addr().expect("it is bound").port().to_string();
    let model = tiny_model().display().to_string();
    check_failure(
        &["--model-path", &model, "--port", &port],
        1,
        &[&port, "--port"],
    );
}

#[test]
fn the_plan_says_what_fits_and_why() {
    let model = tiny_model().display().to_string();
    let output = run(&["plan", "--model-path", &model, "--page-size", "16"]);
    let text = stdout(&output);
    assert!(output.status.success(), "{}", stderr(&output));
    for part in [
        "KV bytes per token",
        "because",
        "largest safe --mem-fraction-static",
        "pages of 16",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
}

#[test]
fn settings_come_from_the_environment_and_a_file_too() {
    let dir = tempfile::tempdir().expect("a temporary folder can be made");
    let file = dir.path().join("souffleur.toml");
    std::fs::write(&file, "[engine]\npage_size = 32\nmax_total_tokens = 64\n")
        .expect("it is written");
    let mut command = souffleur(&["plan"]);
    command
        .env("SOUFFLEUR_MODEL_PATH", tiny_model())
        .env("SOUFFLEUR_CONFIG", &file);
    let output = command.output().expect("the binary runs");
    assert!(
        stdout(&output).contains("64 tokens in 2 pages of 32"),
        "{output:?}"
    );
}

#[test]
fn logits_have_a_row_for_every_position() {
    let dir = tempfile::tempdir().expect("a temporary folder can be made");
    let (input, written) = (
        dir.path().join("in.json"),
        dir.path().join("out.safetensors"),
    );
    std::fs::write(&input, r#"{"prompts": [[1, 2, 3], [7]]}"#).expect("it is written");
    let mut command = souffleur(&["logits", "--dtype", "float32"]);
    command.arg("--model-path").arg(tiny_model());
    command
        .arg("--input")
        .arg(&input)
        .arg("--output")
        .arg(&written);
    let output = command.output().expect("the binary runs");
    assert!(output.status.success(), "{}", stderr(&output));
    let bytes = std::fs::read(&written).expect("it is there");
    let tensors = SafeTensors::deserialize(&bytes).expect("it is a safetensors file");
    let shape = |name: &str| tensors.tensor(name).expect("it is there").shape().to_vec();
    assert_eq!(shape("logits.0"), [3, 288]);
    assert_eq!(shape("logits.1"), [1, 288]);
}

#[test]
fn tokens_outside_the_vocabulary_are_refused_with_their_prompt() {
    let dir = tempfile::tempdir().expect("a temporary folder can be made");
    let input = dir.path().join("in.json");
    std::fs::write(&input, r#"{"prompts": [[1], [288]]}"#).expect("it is written");
    let paths = [tiny_model(), input, dir.path().join("out.safetensors")];
    let [model, input, output] = paths.map(|path| path.display().to_string());
    let args = [
        "logits",
        "--model-path",
        &model,
        "--input",
        &input,
        "--output",
        &output,
    ];
    check_failure(&args, 1, &["prompt 1", "288"]);
}
