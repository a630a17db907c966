//! Tests of `--device` on the command line: the devices that the driver finds, and errors that say why it finds none.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::pack;

const TWO_GIB: (&str, &str) = ("CUSIM_TOTAL_MEMORY", "2147483648");

fn souffleur(command: &str) -> Command {
    let mut souffleur = Command::new(env!("CARGO_BIN_EXE_souffleur"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("SOUFFLEUR_") {
            souffleur.env_remove(name);
        }
    }
    souffleur.arg(command).env_remove("LD_LIBRARY_PATH");
    souffleur
}

/// `souffleur plan` with libraries from one folder, if any.
fn plan(arguments: &[&str], libraries: Option<&Path>, variables: &[(&str, &str)]) -> Output {
    plan_of("qwen3", arguments, libraries, variables)
}

fn plan_of(
    model: &str,
    arguments: &[&str],
    libraries: Option<&Path>,
    variables: &[(&str, &str)],
) -> Output {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/models");
    let mut command = souffleur("plan");
    command
        .args(["--page-size", "16", "--model-path"])
        .arg(models.join(model))
        .args(arguments);
    command.envs(variables.iter().copied());
    if let Some(libraries) = libraries {
        command.env("LD_LIBRARY_PATH", libraries);
    }
    command.output().expect("the binary runs")
}

fn emulated() -> PathBuf {
    let folder = souffleur_cusim::library().parent();
    folder.expect("a parent folder").to_owned()
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[track_caller]
fn check_refused(output: &Output, code: i32, parts: &[&str]) {
    let text = stderr(output);
    assert_eq!(output.status.code(), Some(code), "{text}");
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
    assert!(!text.contains("panicked"), "{text}");
}

#[test]
fn without_a_driver_the_cpu_is_used_and_cuda_is_an_error() {
    let cuda = plan(&["--device", "cuda"], None, &[]);
    if cuda.status.success() {
        assert!(stdout(&cuda).contains("free on GPU 0"), "{cuda:?}");
        eprintln!("skipped: this machine has a CUDA driver and a GPU");
        return;
    }
    check_refused(&cuda, 1, &["CUDA driver", "--device cpu"]);
    let auto = plan(&[], None, &[]);
    assert!(auto.status.success(), "{auto:?}");
    assert!(stdout(&auto).contains("memory available"), "{auto:?}");
}

/// Variables of the emulated driver, and parts of the expected message.
type Situation = (
    &'static [(&'static str, &'static str)],
    &'static [&'static str],
);

#[test]
fn a_driver_that_cannot_be_used_is_described() {
    let table: [Situation; 7] = [
        (
            &[("CUSIM_DRIVER_VERSION", "11040")],
            &["too old", "CUDA 11.4", "12.0 is needed", "525"],
        ),
        (
            &[("CUSIM_CAPABILITY", "75")],
            &["GPU 0", "compute capability 7.5", "8.0"],
        ),
        (
            &[("CUSIM_DEVICES", "0")],
            &["found no GPU", "CUDA_VISIBLE_DEVICES"],
        ),
        (&[("CUSIM_INIT_ERROR", "100")], &["found no GPU"]),
        (&[("CUSIM_INIT_ERROR", "34")], &["stub", "LD_LIBRARY_PATH"]),
        (
            &[("CUSIM_INIT_ERROR", "803")],
            &["different versions", "reboot"],
        ),
        (
            &[("CUSIM_FAIL_ALLOCATION", "1")],
            &["GPU 0", "failed to allocate", "OUT_OF_MEMORY", "nvidia-smi"],
        ),
    ];
    for (variables, parts) in table {
        let output = plan(&["--device", "cuda"], Some(&emulated()), variables);
        check_refused(&output, 1, parts);
        // With `--device auto`, a failed check of the GPU is no error.
        let output = plan(&["--device", "auto"], Some(&emulated()), variables);
        assert!(output.status.success(), "{output:?}");
    }
    let output = plan(&["--device", "cuda:5"], Some(&emulated()), &[]);
    check_refused(&output, 1, &["no GPU 5", "found 1"]);
}

#[test]
fn a_library_that_is_no_driver_is_described() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("empty.cpp");
    std::fs::write(&source, "").unwrap();
    let library = folder.path().join("libcuda.so");
    let mut compiler = souffleur_cusim::compiler(folder.path());
    compiler
        .args(["-shared", "-fPIC"])
        .arg(source)
        .arg("-o")
        .arg(library);
    assert!(compiler.status().unwrap().success());
    let output = plan(&["--device", "cuda"], Some(folder.path()), &[]);
    check_refused(&output, 1, &["has no function cu", "reinstall the driver"]);
}

#[test]
fn a_plan_for_a_gpu_shows_its_memory_and_the_limits_of_the_memory_fraction() {
    let libraries = emulated();
    let output = plan(&["--device", "cuda"], Some(&libraries), &[TWO_GIB]);
    let text = stdout(&output);
    assert!(output.status.success(), "{}", stderr(&output));
    for part in [
        "free on GPU 0",
        "2.0 GiB",
        "pages of 16",
        "for the page table",
        "largest safe --mem-fraction-static",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
    // The second of two GPUs that are newer than all machine code in the pack, with a driver newer than the kernels.
    let variables = [
        TWO_GIB,
        ("CUSIM_DEVICES", "2"),
        ("CUSIM_CAPABILITY", "121"),
        ("CUSIM_DRIVER_VERSION", "14000"),
    ];
    let second = plan(&["--device", "cuda:1"], Some(&libraries), &variables);
    assert!(stdout(&second).contains("free on GPU 1"), "{second:?}");
    assert!(stderr(&second).contains("sm_121"), "{second:?}");
    let fraction = |fraction| {
        let arguments = ["--device", "cuda:0", "--mem-fraction-static", fraction];
        plan(&arguments, Some(&libraries), &[TWO_GIB])
    };
    let half = fraction("0.5");
    assert!(
        stdout(&half).contains("--mem-fraction-static 0.5 of 2.0 GiB"),
        "{half:?}"
    );
    let all = fraction("0.999");
    assert!(
        stdout(&all).contains("above the largest safe one"),
        "{all:?}"
    );
    check_refused(&fraction("0.00001"), 1, &["the smallest that works is"]);
}

#[test]
fn a_plan_for_replicas_shows_each_gpu() {
    let libraries = emulated();
    let variables = [("CUSIM_TOTAL_MEMORY", "4294967296"), ("CUSIM_DEVICES", "2")];
    let plan = |device, n| {
        let replicas = ["--dp-size", n, "--max-total-tokens", "512"];
        let arguments = [&["--device", device][..], &replicas].concat();
        plan(&arguments, Some(&libraries), &variables)
    };
    let output = plan("cuda", "3");
    let text = stdout(&output);
    assert!(output.status.success(), "{}", stderr(&output));
    for part in [
        "replicas              3: each has",
        "on GPU 0: ",
        "  replicas            2: 2.0 GiB free for each, enough for a pool of 512 tokens",
        "on GPU 1: ",
        "  replicas            1: 4.0 GiB free for each, enough for a pool of 512 tokens",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
    assert!(!text.contains("threads per replica"), "{text}");
    let output = plan("cuda:1", "2");
    let text = stdout(&output);
    assert!(text.contains("on GPU 1: "), "{text}");
    assert!(!text.contains("on GPU 0: "), "{text}");
    check_refused(&plan("cuda:0,cuda:1", "1"), 2, &["device", "dp_size is 1"]);
}

#[test]
fn a_gpu_that_is_not_used_is_mentioned_unless_the_cpu_was_requested() {
    let output = plan(&[], Some(&emulated()), &[]);
    assert!(output.status.success(), "{output:?}");
    assert!(stdout(&output).contains("memory available"), "{output:?}");
    assert!(
        stderr(&output).contains("--device cuda selects the GPU"),
        "{output:?}"
    );
    let output = plan(&["--device", "cpu"], Some(&emulated()), &[]);
    assert!(!stderr(&output).contains("--device cuda"), "{output:?}");
}

#[test]
fn the_log_reports_that_a_float16_checkpoint_runs_in_bfloat16() {
    let libraries = emulated();
    let cuda = ["--device", "cuda"];
    for (model, times) in [("llama-sharded", 1), ("qwen3", 0)] {
        let output = plan_of(model, &cuda, Some(&libraries), &[TWO_GIB]);
        assert!(output.status.success(), "{output:?}");
        let log = stderr(&output);
        assert_eq!(log.matches("runs in bfloat16").count(), times, "{log}");
    }
}

#[test]
fn settings_without_cuda_kernels_and_unknown_devices_are_refused() {
    for (flag, name) in [
        ("--quantization", "int8"),
        ("--quantization", "int4"),
        ("--kv-cache-dtype", "int8"),
    ] {
        check_refused(
            &plan(&["--device", "cuda", flag, name], Some(&emulated()), &[]),
            2,
            &[name, "CUDA kernels", "--device cpu"],
        );
    }
    for device in [
        "tpu",
        "cuda:",
        "cuda:-1",
        "cuda:+1",
        "CUDA",
        "cuda:99999999999999999999",
    ] {
        let output = plan(&["--device", device], None, &[]);
        check_refused(&output, 2, &["auto, cpu, cuda or cuda:N"]);
    }
}

#[test]
fn on_a_gpu_the_kv_type_must_be_the_type_of_the_weights() {
    let plan_in = |dtype, kv| {
        let flags = ["--device", "cuda", "--dtype", dtype, "--kv-cache-dtype", kv];
        plan(&flags, Some(&emulated()), &[TWO_GIB])
    };
    for (dtype, kv) in [
        ("bfloat16", "bfloat16"),
        ("bfloat16", "bf16"),
        ("float32", "float32"),
        ("bfloat16", "auto"),
    ] {
        let output = plan_in(dtype, kv);
        assert!(output.status.success(), "{dtype}, {kv}: {output:?}");
    }
    for (dtype, kv) in [
        ("float32", "bfloat16"),
        ("bfloat16", "float32"),
        ("bfloat16", "float16"),
    ] {
        let words = [kv, dtype, "type of the weights", "--device cpu"];
        check_refused(&plan_in(dtype, kv), 2, &words);
    }
}

#[test]
fn a_gpu_gives_the_answer_of_the_cpu() {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR"));
    let nvrtc = if repository.join("kernels/kernels.pack").is_file() {
        None
    } else {
        match pack::nvrtc() {
            Some(nvrtc) => Some(nvrtc),
            None => return,
        }
    };
    let cache = tempfile::tempdir().unwrap();
    let answer = |device: &str| {
        let mut command = souffleur("generate");
        command.args([
            "--device",
            device,
            "--dtype",
            "float32",
            "--page-size",
            "16",
        ]);
        command.args(["--max-total-tokens", "512", "--max-running-requests", "4"]);
        command.args(["--chunked-prefill-size", "64", "--cuda-graph-max-bs", "2"]);
        command.args([
            "--temperature",
            "0",
            "--max-new-tokens",
            "8",
            "Who are you?",
        ]);
        command.env("LD_LIBRARY_PATH", emulated()).envs([TWO_GIB]);
        command.env("SOUFFLEUR_CACHE_DIR", cache.path());
        if let Some(nvrtc) = &nvrtc {
            command.env("SOUFFLEUR_NVRTC_DIR", nvrtc);
        }
        command.output().expect("the binary runs")
    };
    let (cpu, cuda) = (answer("cpu"), answer("cuda"));
    assert!(cpu.status.success(), "{}", stderr(&cpu));
    assert!(cuda.status.success(), "{}", stderr(&cuda));
    assert!(!stdout(&cpu).trim().is_empty(), "{cpu:?}");
    assert_eq!(stdout(&cuda), stdout(&cpu));
    for part in [
        "computing on a GPU",
        "CUDA kernels loaded",
        "max_total_num_tokens=512",
    ] {
        assert!(
            stderr(&cuda).contains(part),
            "{part:?} is not in\n{}",
            stderr(&cuda)
        );
    }
}

/// The host and port in the first line that names an address of the native API.
fn served_address(lines: &mut impl Iterator<Item = std::io::Result<String>>) -> String {
    let address = lines.find_map(|line| {
        let line = line.expect("stdout is UTF-8");
        let (_, url) = line.split_once("SGLang")?.1.split_once("http://")?;
        url.split('/').next().map(str::to_owned)
    });
    address.expect("the server serves")
}

fn ask(address: &str) -> String {
    let body = r#"{"text": "Who are you?", "sampling_params": {"max_new_tokens": 64, "ignore_eos": true}}"#;
    let length = body.len();
    let mut stream = TcpStream::connect(address).expect("the server listens");
    write!(
        stream,
        "POST /generate HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\n\r\n{body}"
    )
    .expect("the server reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

#[test]
fn a_gpu_that_fails_for_the_rest_of_the_process_ends_the_server_with_code_70() {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR"));
    if !repository.join("kernels/kernels.pack").is_file() {
        eprintln!("skipped: there is no kernel pack");
        return;
    }
    let mut command = souffleur("serve");
    command.args(["--port", "0", "--device", "cuda", "--dtype", "float32"]);
    command.args(["--page-size", "16", "--max-total-tokens", "512"]);
    command.args(["--max-running-requests", "4", "--cuda-graph-max-bs", "2"]);
    command.args(["--chunked-prefill-size", "64"]);
    let variables = [TWO_GIB, ("CUSIM_FAIL_LASTING", "1000")];
    command.env("LD_LIBRARY_PATH", emulated()).envs(variables);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut server = command.spawn().expect("the binary runs");
    let mut lines = BufReader::new(server.stdout.take().expect("piped")).lines();
    let answer = ask(&served_address(&mut lines));
    assert!(answer.contains("engine_down"), "{answer}");
    let ended = server.wait_with_output().expect("the server ends");
    let log = stderr(&ended);
    assert_eq!(ended.status.code(), Some(70), "{log}");
    for part in [
        "GPU 0 has failed in this process",
        "CUDA_ERROR_HARDWARE_STACK_ERROR (714)",
        "the process must be terminated and relaunched",
    ] {
        assert!(log.contains(part), "{part:?} is not in\n{log}");
    }
    assert!(!log.contains("trying again"), "{log}");
}
