//! Tests of commands that end without a signal, such as `generate` and `plan`.

use std::io::Write;
use std::process::{Command, Stdio};

use safetensors::SafeTensors;
use souffleur::config::EngineConfig;
use souffleur::engine::ReplicaThreads;

use super::{agents_model, gguf, run, souffleur, stderr, stdout, tiny_model};

/// Checks that the command fails with `code` and one line on stderr that contains every part.
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
fn a_missing_model_gives_one_line_and_exit_code_1() {
    check_failure(
        &["plan", "--model-path", "/nonexistent"],
        1,
        &["/nonexistent: there is no such file or folder"],
    );
    check_failure(
        &["--model-path", "/nonexistent", "--port", "0"],
        1,
        &["/nonexistent"],
    );
    let folder = tempfile::tempdir().expect("temporary folder");
    check_failure(
        &["plan", &folder.path().to_string_lossy()],
        1,
        &["has neither config.json nor a GGUF file"],
    );
    // A mistyped command is a model.
    for args in [&["qwen", "--port", "0"][..], &["plan", "qwen"]] {
        check_failure(args, 2, &["\"qwen\"", "owner/name", "`souffleur -h`"]);
    }
}

#[test]
fn the_plan_of_a_gguf_file_shows_its_name_and_tensor_types() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let file = dir.path().join("tiny.F32.gguf");
    let mut model = gguf::of_folder(&tiny_model());
    std::fs::write(&file, model.bytes()).expect("writable");
    let path = file.to_string_lossy();
    let output = run(&["plan", "--model-path", &path]);
    let text = stdout(&output);
    assert!(text.contains("model                 tiny.F32 ("), "{text}");
    let tensors = model.tensors.len();
    let types = format!("tensors               {tensors} of F32 (");
    assert!(text.contains(&types), "{text}");
    let refused = "tokenizer             unusable, a server would not start: ";
    assert!(text.contains(refused), "{text}");
    let without = run(&["plan", "--model-path", &path, "--skip-tokenizer-init"]);
    assert!(!stdout(&without).contains(refused));
    check_failure(
        &["--model-path", &path, "--port", "0"],
        1,
        &["tiny.F32.gguf", "--skip-tokenizer-init"],
    );
    model.tensors[1].type_id = 26;
    let name = String::from_utf8_lossy(&model.tensors[1].name).into_owned();
    std::fs::write(&file, model.bytes()).expect("writable");
    let refusal = format!("tensor {name} has type I32, supported: F32");
    check_failure(
        &["plan", "--model-path", &path],
        1,
        &["tiny.F32.gguf", &refusal],
    );
}

#[test]
fn invalid_values_give_one_line_and_exit_code_2() {
    check_failure(
        &["--page-size", "257"],
        2,
        &["--page-size is 257", "between 1 and 256"],
    );
    check_failure(
        &["--config", "/nonexistent.toml"],
        2,
        &["/nonexistent.toml"],
    );
    for level in ["loud=loud", "banana", "info,banana"] {
        let named = format!("--log-level is {level:?}, must be error");
        check_failure(&["--log-level", level], 2, &[&named]);
    }
    check_failure(
        &["--max-total-tokens", "47", "--page-size", "16"],
        2,
        &["--max-total-tokens is 47, must be at least 48"],
    );
    check_failure(
        &["--context-length", "2"],
        2,
        &["--context-length is 2, must be at least 3"],
    );
}

#[test]
#[cfg(not(feature = "grpc"))]
fn the_refusal_of_grpc_names_the_missing_feature() {
    check_failure(
        &["--grpc-port", "0"],
        2,
        &["--grpc-port", "--features grpc"],
    );
}

#[test]
#[cfg(not(feature = "otlp"))]
fn the_refusal_of_traces_names_the_missing_feature() {
    let endpoint = "http://localhost:4318/v1/traces";
    for args in [
        &["--enable-trace"][..],
        &["--otlp-traces-endpoint", endpoint],
    ] {
        check_failure(args, 2, &[args[0], "--features otlp"]);
    }
}

#[test]
fn unknown_policies_are_refused_before_anything_is_printed() {
    for (flag, value, known) in [
        ("--schedule-policy", "sjf", "fcfs, lpm"),
        ("--radix-eviction-policy", "newest", "lru, lfu"),
    ] {
        let message = format!("souffleur: {flag} is {value:?}, must be one of {known}");
        for command in ["serve", "plan", "generate"] {
            let args = [command, flag, value];
            check_failure(&args, 2, &[&message]);
            assert_eq!(stdout(&run(&args)), "", "{args:?}");
        }
    }
}

#[test]
fn contradictory_parsers_are_refused_before_anything_is_printed() {
    let (agents, tiny) = (agents_model(), tiny_model());
    let [agents, tiny] = [&agents, &tiny].map(|path| path.to_str().expect("the path is UTF-8"));
    let (tool, reasoning) = ("--tool-call-parser", "--reasoning-parser");
    let named = "souffleur: --reasoning-parser is \"qwen3\", but tool_call_parser is \"gpt-oss\"";
    let with_model = "tool_call_parser is \"gpt-oss\", but reasoning_parser is \"auto\" (this model's: \"qwen3\")";
    let with_calls = "reasoning_parser is \"gpt-oss\", but tool_call_parser is \"auto\" (this model's: \"qwen25\")";
    let cases: [(&str, &[&str], &str); 3] = [
        (tiny, &[tool, "gpt-oss", reasoning, "qwen3"], named),
        (agents, &[tool, "gpt-oss"], with_model),
        (agents, &[reasoning, "gpt-oss"], with_calls),
    ];
    for (model, parsers, message) in cases {
        for command in ["serve", "plan", "generate"] {
            let mut args = vec![command, "--model-path", model];
            args.extend(parsers);
            match command {
                "serve" => args.extend(["--port", "0"]),
                "generate" => args.push("Hello"),
                _ => {}
            }
            check_failure(
                &args,
                2,
                &[message, "set both parsers to gpt-oss or neither", "none"],
            );
            assert_eq!(stdout(&run(&args)), "", "{args:?}");
        }
    }
    let allowed = [
        "plan",
        "--model-path",
        agents,
        tool,
        "gpt-oss",
        reasoning,
        "none",
    ];
    assert!(run(&allowed).status.success());
}

#[test]
fn an_unknown_flag_gives_exit_code_2() {
    let output = run(&["--pagesize", "3"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr(&output).contains("--page-size"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn a_port_in_use_gives_one_line_and_exit_code_1() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let port = taken.local_addr().expect("an address").port().to_string();
    let model = tiny_model().display().to_string();
    check_failure(
        &["--model-path", &model, "--port", &port],
        1,
        &[&port, "--port"],
    );
}

#[test]
fn the_plan_lists_sizes_and_reasons() {
    let model = tiny_model().display().to_string();
    let output = run(&["plan", "--model", &model, "--page-size", "16"]);
    let text = stdout(&output);
    assert!(output.status.success(), "{}", stderr(&output));
    for part in [
        "KV bytes per token",
        "KV layers  ",
        "heads, keys of",
        "because",
        "largest safe --mem-fraction-static",
        "pages of 16",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
}

#[test]
fn the_plan_of_several_replicas_is_that_of_each() {
    let model = tiny_model().display().to_string();
    let plan = |args: &[&str]| {
        let given = [
            "plan",
            "--model",
            model.as_str(),
            "--max-total-tokens",
            "5000",
        ];
        let output = run(&[&given[..], args].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        stdout(&output)
    };
    let text = plan(&["--dp", "2", "--threads", "1"]);
    for part in [
        "replicas              2: each has",
        "threads per replica   1\n",
        "5000 tokens in",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
    let config = EngineConfig {
        dp_size: 2,
        threads: 1,
        ..EngineConfig::default()
    };
    for line in ReplicaThreads::of(&config).explain() {
        assert!(text.contains(&line), "{line:?} is not in\n{text}");
    }
    assert!(text.contains("\ncores "), "{text}");
    let alone = plan(&["--threads", "1"]);
    assert!(!alone.contains("replicas  "), "{alone}");
}

#[test]
fn the_plan_of_several_ranks_has_a_line_for_each() {
    let model = tiny_model().display().to_string();
    let plan = |args: &[&str]| run(&[&["plan", "--model", model.as_str()], args].concat());
    let divided = plan(&["--tp", "2", "--threads", "4"]);
    assert!(divided.status.success(), "{}", stderr(&divided));
    let text = stdout(&divided);
    assert!(text.contains("ranks                 2: each"), "{text}");
    for rank in ["  rank 0 ", "  rank 1 "] {
        let line = text.lines().find(|line| line.starts_with(rank));
        let line = line.expect("a line for each rank");
        assert!(line.ends_with("compute threads: 2"), "{line}");
    }
    let alone = stdout(&plan(&["--threads", "4"]));
    assert!(!alone.contains("  rank "), "{alone}");
    for (args, reason) in [
        (&["--tp", "3"][..], "num_attention_heads is 4"),
        (
            &["--tp", "2", "--quantization", "int8"],
            "in blocks of 128, and",
        ),
    ] {
        let refused = plan(args);
        assert_eq!(refused.status.code(), Some(2));
        assert!(stderr(&refused).contains(reason), "{}", stderr(&refused));
    }
}

#[test]
fn the_plan_counts_kv_in_int8_with_its_scales() {
    let model = tiny_model().display().to_string();
    let bytes = |args: &[&str]| -> u64 {
        let output = run(&[&["plan", "--model", &model, "--dtype", "bfloat16"], args].concat());
        let text = stdout(&output);
        assert!(output.status.success(), "{}", stderr(&output));
        let line = text
            .lines()
            .find(|line| line.contains("KV bytes per token"));
        let words = line.unwrap_or_default().split_whitespace();
        let mut numbers = words.filter_map(|word| word.replace(',', "").parse().ok());
        let bytes = numbers.next();
        let bytes = bytes.unwrap_or_else(|| panic!("no bytes in\n{text}"));
        assert_eq!(text.contains(", int8 with "), !args.is_empty(), "{text}");
        bytes
    };
    let (plain, int8) = (bytes(&[]), bytes(&["--kv-cache-dtype", "int8"]));
    assert!(
        plain / 2 < int8 && int8 < plain * 5 / 8,
        "{int8} of {plain}"
    );
}

#[test]
fn refusals_of_unknown_backends_and_kv_types_list_the_known_ones() {
    let model = tiny_model().display().to_string();
    for name in ["flashinfer", "fa3", "triton", "torch_native", "intel_amx"] {
        let output = run(&["plan", "--model", &model, "--attention-backend", name]);
        assert_eq!(output.status.code(), Some(2));
        let text = stderr(&output);
        for part in [name, "auto or native", "on cpu", "on cuda"] {
            assert!(text.contains(part), "{part:?} is not in {text:?}");
        }
    }
    for name in ["fp8_e4m3", "fp8_e5m2", "fp4_e2m1"] {
        let output = run(&["plan", "--model", &model, "--kv-cache-dtype", name]);
        assert_eq!(output.status.code(), Some(2));
        let text = stderr(&output);
        assert!(text.contains(name) && text.contains("bf16, int8"), "{text}");
    }
}

#[test]
fn settings_come_from_the_environment_and_a_file_too() {
    let dir = tempfile::tempdir().expect("a temporary folder can be made");
    let file = dir.path().join("souffleur.toml");
    std::fs::write(&file, "[engine]\npage_size = 24\nmax_total_tokens = 80\n")
        .expect("the file is written");
    let mut command = souffleur(&["plan"]);
    command
        .env("SOUFFLEUR_MODEL_PATH", tiny_model())
        .env("SOUFFLEUR_CONFIG", &file);
    let output = command.output().expect("the binary runs");
    assert!(
        stdout(&output).contains("72 tokens in 3 pages of 24"),
        "{output:?}"
    );
}

/// A command that unpacks the bundled model into a folder of this test.
fn bundled(args: &[&str], cache: &tempfile::TempDir) -> Command {
    let mut command = souffleur(args);
    command.env("SOUFFLEUR_CACHE_DIR", cache.path());
    command
}

#[test]
fn the_bundled_model_answers_with_words() {
    let cache = tempfile::tempdir().expect("a temporary folder can be made");
    let args = ["generate", "Who are you?", "--temperature", "0"];
    let output = bundled(&args, &cache).output().expect("the binary runs");
    let text = stdout(&output);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(
        text.ends_with('\n') && text.split_whitespace().count() > 3,
        "{text:?}"
    );
    assert_eq!(stderr(&output), "", "nothing but the answer is printed");
}

#[test]
fn a_prompt_from_stdin_is_answered_as_one_from_an_argument() {
    let cache = tempfile::tempdir().expect("a temporary folder can be made");
    let greedy = ["generate", "--temperature", "0"];
    let mut child = bundled(&greedy, &cache)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let mut stdin = child.stdin.take().expect("piped");
    stdin.write_all(b"What is an actor?\n").expect("writable");
    drop(stdin);
    let from_stdin = child.wait_with_output().expect("the command ends");
    let argument = [&greedy[..], &["What is an actor?"]].concat();
    let from_argument = bundled(&argument, &cache)
        .output()
        .expect("the binary runs");
    assert!(from_stdin.status.success() && !from_stdin.stdout.is_empty());
    assert_eq!(stdout(&from_stdin), stdout(&from_argument));
}

#[test]
fn without_a_chat_template_the_error_suggests_raw() {
    let model = tiny_model().display().to_string();
    check_failure(
        &["generate", "hi", "--model-path", &model],
        2,
        &["chat template", "--raw"],
    );
    let raw = [
        "generate",
        "hi",
        "--raw",
        "--max-new-tokens",
        "3",
        "--model-path",
        &model,
    ];
    assert!(run(&raw).status.success());
}

#[test]
fn the_error_for_an_unwritable_cache_names_its_variable() {
    let file = tempfile::NamedTempFile::new().expect("a temporary file can be made");
    let mut command = souffleur(&["plan"]);
    let output = command
        .env("SOUFFLEUR_CACHE_DIR", file.path())
        .output()
        .expect("the binary runs");
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("SOUFFLEUR_CACHE_DIR"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn logits_have_a_row_for_every_position() {
    let dir = tempfile::tempdir().expect("a temporary folder can be made");
    let (input, written) = (
        dir.path().join("in.json"),
        dir.path().join("out.safetensors"),
    );
    std::fs::write(&input, r#"{"prompts": [[1, 2, 3], [7]]}"#).expect("the input is written");
    let mut command = souffleur(&["logits", "--dtype", "float32"]);
    command.arg("--model-path").arg(tiny_model());
    command
        .arg("--input")
        .arg(&input)
        .arg("--output")
        .arg(&written);
    let output = command.output().expect("the binary runs");
    assert!(output.status.success(), "{}", stderr(&output));
    let bytes = std::fs::read(&written).expect("the output is written");
    let tensors = SafeTensors::deserialize(&bytes).expect("valid safetensors");
    let shape = |name: &str| tensors.tensor(name).expect("the tensor").shape().to_vec();
    assert_eq!(shape("logits.0"), [3, 288]);
    assert_eq!(shape("logits.1"), [1, 288]);
}

#[test]
fn the_refusal_of_a_token_outside_the_vocabulary_names_its_prompt() {
    let dir = tempfile::tempdir().expect("a temporary folder can be made");
    let input = dir.path().join("in.json");
    std::fs::write(&input, r#"{"prompts": [[1], [288]]}"#).expect("the input is written");
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

#[test]
fn a_recorded_answer_replays_and_a_damaged_log_gives_exit_code_1() {
    let dir = tempfile::tempdir().expect("a folder can be made");
    let file = dir.path().join("control.log");
    let name = file.to_str().expect("the path is UTF-8");
    let tiny = tiny_model();
    let model = tiny.to_str().expect("the path is UTF-8");
    let answered = run(&[
        "generate",
        "--model-path",
        model,
        "--record",
        name,
        "--max-new-tokens",
        "8",
        "--raw",
        "Hello",
    ]);
    assert!(answered.status.success(), "{}", stderr(&answered));
    let replayed = run(&["replay-log", name]);
    let text = stdout(&replayed);
    assert!(replayed.status.success(), "{}", stderr(&replayed));
    for part in [
        "requests      1:",
        "end           the engine stopped",
        "every plan equals the recorded one",
    ] {
        assert!(text.contains(part), "{text}");
    }
    let mut log = std::fs::read(&file).expect("a log");
    let last = log.len() - 30;
    log[last] ^= 1;
    std::fs::write(&file, log).expect("the log can be written");
    check_failure(&["replay-log", name], 1, &[name, "damaged at byte"]);
    check_failure(&["replay-log", model], 1, &[model]);
    check_failure(&["replay-log", "/nonexistent"], 1, &["/nonexistent"]);
}
