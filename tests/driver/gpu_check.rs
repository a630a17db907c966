//! Tests of `scripts/gpu-check`, which checks and measures a GPU in several parts, with stand-ins for its programs.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Never ends, but makes `timeout` stop it at once, by sending `timeout` the signal of its timer.
const STUCK: &str = r#"#!/usr/bin/env bash
process=$PPID
until [[ $(</proc/$process/comm) == timeout ]]; do
  process=$(sed -n 's/^PPid:[[:space:]]*//p' /proc/$process/status)
done
kill -ALRM $process
exec tail -f /dev/null
"#;

/// Prints results like the real program, and lists calls in the file `CALLS`. The command in the variable `STUCK` hangs
/// after a first result, that in `BROKEN_AT_ONCE` fails without one; arguments in `DIFFERENT` change an answer.
const SOUFFLEUR: &str = r#"#!/usr/bin/env bash
echo "$*" >>"$CALLS"
[[ $1 == gpu && $2 == table ]] && exec "$REAL" "$@"
json="" work="$1 $2" previous=""
for argument in "$@"; do
  [[ $previous == --json ]] && json=$argument
  [[ $previous == --model-path ]] && work="$1 $(basename "$argument")"
  previous=$argument
done
# Writes a record of N rows.
record() {
  printf '{"model": {"name": "stand-in"}, "rows": [' >"$json"
  for ((i = 1; i <= $1; ++i)); do
    ((i > 1)) && printf ', ' >>"$json"
    printf '{"name": "row %s of %s", "unit": "tokens/s", "median": %s}' $i "$work" $i >>"$json"
  done
  printf ']}' >>"$json"
}
[[ -n $json && $work != "$BROKEN_AT_ONCE" ]] && record 1
[[ $work == "gpu kernels" ]] && echo '{"part": "kernels", "name": "first kernel", "note": "ran"}'
[[ $work == "gpu kernels" && -n $STUCK ]] && printf '{"part": "kernels", "name": "half a li'
[[ $work == "$STUCK" ]] && exec stuck
[[ $work == "$BROKEN_AT_ONCE" ]] && exit 3
case $work in
  "gpu probe") echo '{"part": "probe", "name": "probe", "note": "a GPU"}' ;;
  bench\ *) record 3 ;;
esac
[[ $1 == generate && "$*" == *$DIFFERENT* && -n $DIFFERENT ]] && echo "something else"
[[ $1 == generate ]] && echo "an answer"
exit 0
"#;

const CUDA_TESTS: &str = r#"#!/usr/bin/env bash
echo "tests $1" >>"$CALLS"
mkdir -p "$SOUFFLEUR_CACHE_DIR/kernels" "$SOUFFLEUR_CACHE_DIR/other"
[[ -f $SOUFFLEUR_CACHE_DIR/kernels/a.cubin ]] && echo "cached" >>"$CALLS"
echo code >"$SOUFFLEUR_CACHE_DIR/kernels/a.cubin"
echo "test twins::rows::one ... ok"
echo "test twins::rows::two ... ok"
if [[ "tests $1" == "$STUCK" ]]; then
  # Waits until the output has reached the file.
  until grep -qs two "$SOUFFLEUR_CACHE_DIR/../twins.tests"; do :; done
  exec stuck
fi
echo "test result: ok. 2 passed; 0 failed; 0 ignored"
"#;

/// A Python with a PyTorch that sees a GPU.
const PYTHON: &str = r#"#!/usr/bin/env bash
[[ $1 == -c ]] && exit 0
echo "python ${*:2}" >>"$CALLS"
echo "INFO  Free memory before loading model: 78.60 GiB"
echo "{\"part\": \"peers\", \"name\": \"$2\", \"note\": \"ran\"}"
"#;

const SANITIZER: &str = r#"#!/usr/bin/env bash
echo "sanitizer $2" >>"$CALLS"
while [[ $1 == --* ]]; do shift $([[ $1 == *=* ]] && echo 1 || echo 2); done
"$@"
echo "========= ERROR SUMMARY: 0 errors"
"#;

/// Prints Cargo's messages about two built programs.
const CARGO: &str = r#"#!/usr/bin/env bash
kind=bin name=souffleur
[[ $1 == test ]] && kind=test name=cuda
echo '{"target":{"kind":["'$kind'"],"name":"'$name'"},"name":"'$name'","kind":["'$kind'"],"executable":"'$PROGRAM'"}'
"#;

/// A folder with the stand-ins, and a subfolder for each machine that the script is run on.
struct Setup {
    folder: tempfile::TempDir,
}

impl Setup {
    fn new() -> Self {
        let setup = Self {
            folder: tempfile::tempdir().unwrap(),
        };
        for (name, text) in [
            ("bin/souffleur", SOUFFLEUR),
            ("bin/cuda-tests", CUDA_TESTS),
            ("path/python3", PYTHON),
            ("path/compute-sanitizer", SANITIZER),
            ("path/nvidia-smi", "#!/usr/bin/env bash\n"),
            ("path/stuck", STUCK),
            ("path/cargo", CARGO),
        ] {
            let path = setup.path(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        setup
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self) -> Command {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/gpu-check");
        let mut command = Command::new(script);
        let path = std::env::var("PATH").unwrap();
        command
            .env("PATH", format!("{}:{path}", self.path("path").display()))
            .env("REAL", env!("CARGO_BIN_EXE_souffleur"))
            .env("CALLS", self.path("calls"));
        for name in ["STUCK", "BROKEN_AT_ONCE", "DIFFERENT"] {
            command.env(name, "");
        }
        command
    }

    /// The script with arguments, on a machine that has the folders `state` and `out`.
    fn check(&self, machine: &str, arguments: &[&str]) -> Command {
        let mut command = self.command();
        let place = |folder: &str| self.path(&format!("{machine}/{folder}"));
        command.arg("--bin").arg(self.path("bin"));
        command.arg("--state").arg(place("state"));
        command.arg("--out").arg(place("out"));
        command.args(arguments);
        command
    }

    /// The calls of the stand-ins since the last call of this function.
    fn calls(&self) -> Vec<String> {
        let path = self.path("calls");
        let text = fs::read_to_string(&path).unwrap_or_default();
        let _ = fs::remove_file(path);
        text.lines().map(str::to_owned).collect()
    }
}

fn text(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    text(&output.stdout) + &text(&output.stderr)
}

#[track_caller]
fn run(mut command: Command, code: i32) -> String {
    let output = command.output().expect("the script runs");
    let text = text(&output);
    assert_eq!(output.status.code(), Some(code), "{text}");
    text
}

#[track_caller]
fn has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
}

/// The parts that the script names, in order (`== name: ...` or `== name (...)`), and whether each was started.
fn parts(text: &str) -> Vec<(String, bool)> {
    let lines = text.lines().filter_map(|line| line.strip_prefix("== "));
    lines
        .map(|line| {
            let end = line.find([':', ' ']).expect("a name and more");
            (line[..end].to_owned(), line.contains("at most"))
        })
        .collect()
}

#[test]
fn the_most_important_parts_come_first_and_peers_run_alone() {
    let setup = Setup::new();
    let printed = run(setup.check("gpu", &["--limit", "1000000"]), 0);
    let expected = [
        ("probe", true),
        ("twins", true),
        ("engine", true),
        ("kernels", true),
        ("llama", true),
        ("llama-own", true),
        ("qwen-small", true),
        ("agreement", true),
        ("memcheck", true),
        ("racecheck", true),
        ("peers", false),
        ("qwen", true),
        ("torch", true),
    ];
    let expected = expected.map(|(name, begun)| (name.to_owned(), begun));
    assert_eq!(parts(&printed), expected, "{printed}");
    has(
        &printed,
        &["a call of its own", "left for the next call: peers"],
    );
    setup.calls();
    let printed = run(setup.check("gpu", &[]), 0);
    let begun: Vec<_> = parts(&printed)
        .into_iter()
        .filter(|(_, begun)| *begun)
        .collect();
    assert_eq!(begun, [("peers".to_owned(), true)], "{printed}");
    let calls = setup.calls();
    let is_of_peers = |call: &String| call.starts_with("python") || call.starts_with("gpu table");
    assert!(calls.iter().all(is_of_peers), "{calls:?}");
    // The peers are other engines: nothing else is started in the call that measures them.
    let printed = run(
        setup.check("gpu", &["--only", "peers torch", "--again", "peers torch"]),
        0,
    );
    has(
        &printed,
        &["== peers (", "== torch: not begun: it peers has this call"],
    );
}

#[test]
fn a_bundle_is_all_that_a_bare_machine_needs() {
    let setup = Setup::new();
    let bundle = setup.path("check.bundle");
    let call = |machine: &str, only: &str| {
        let mut command = setup.check(machine, &["--only", only, "--bundle"]);
        command.arg(&bundle);
        run(command, 0)
    };
    let first = call("one", "probe twins llama");
    has(&first, &["row 3 of bench llama", "2 passed; 0 failed"]);
    setup.calls();
    // The second machine has no results except those in the bundle.
    let second = call("two", "probe twins llama engine");
    has(
        &second,
        &[
            "probe: done before",
            "twins: done before",
            "llama: done before",
        ],
    );
    has(
        &second,
        &[
            "row 1 of bench llama",
            "row 3 of bench llama",
            "2 passed; 0 failed",
        ],
    );
    let calls = setup.calls();
    assert!(calls.contains(&"cached".to_owned()), "{calls:?}");
    assert!(
        !calls.iter().any(|call| call.starts_with("bench")),
        "{calls:?}"
    );
    // The bundle does not contain the bundled model, which every machine unpacks from the binary.
    let list = Command::new("tar")
        .arg("-tzf")
        .arg(&bundle)
        .output()
        .unwrap();
    let list = text(&list);
    assert!(list.contains("cache/kernels/a.cubin"), "{list}");
    assert!(
        !list.contains("cache/other") && !list.contains("config.json"),
        "{list}"
    );
    let files = fs::read_dir(setup.path("two/out")).unwrap().count();
    assert!(files < 8, "{files} files and the bundle");
}

#[test]
fn a_damaged_bundle_is_not_overwritten() {
    let setup = Setup::new();
    let bundle = setup.path("check.bundle");
    fs::write(&bundle, "no archive").unwrap();
    let arguments = ["--only", "probe", "--bundle", bundle.to_str().unwrap()];
    let printed = run(setup.check("gpu", &arguments), 2);
    has(&printed, &["check.bundle is damaged", "--fresh"]);
    assert_eq!(fs::read_to_string(&bundle).unwrap(), "no archive");
    run(
        setup.check("gpu", &[&arguments[..], &["--fresh"]].concat()),
        0,
    );
}

#[test]
fn a_stopped_part_keeps_its_measurements() {
    let setup = Setup::new();
    let bundle = setup.path("check.bundle");
    let call = |machine: &str, only: &str, stuck: &str| {
        let mut command = setup.check(machine, &["--only", only, "--bundle"]);
        command.arg(&bundle).env("STUCK", stuck);
        run(command, 1)
    };
    let printed = call("one", "llama", "bench llama-3.1-8b");
    has(&printed, &["stopped after 120 s", "row 1 of bench llama"]);
    assert!(!printed.contains("row 3"), "{printed}");
    // The next machine retries that part, and another part is stopped in the middle of a line.
    let printed = call("two", "llama kernels", "gpu kernels");
    has(
        &printed,
        &["first kernel", "stopped after 90 s", "row 3 of bench llama"],
    );
    assert_eq!(printed.matches("row 1 of").count(), 1, "{printed}");
    assert!(!printed.contains("half a li"), "{printed}");
    let printed = call("three", "llama twins", "tests twins::");
    has(
        &printed,
        &["llama: done before", "tests finished before it was stopped"],
    );
    has(&printed, &["2 passed; 0 failed", "row 3 of bench llama"]);
}

#[test]
fn a_retry_with_fewer_results_removes_none() {
    let setup = Setup::new();
    let mut command = setup.check("gpu", &["--only", "llama"]);
    command.env("STUCK", "bench llama-3.1-8b");
    has(&run(command, 1), &["row 1 of bench llama"]);
    let mut command = setup.check("gpu", &["--only", "llama"]);
    command.env("BROKEN_AT_ONCE", "bench llama-3.1-8b");
    has(
        &run(command, 1),
        &["failed with code 3", "row 1 of bench llama"],
    );
    let printed = run(setup.check("gpu", &["--only", "llama"]), 0);
    has(&printed, &["row 1 of bench llama", "row 3 of bench llama"]);
    assert_eq!(printed.matches("row 1 of").count(), 1, "{printed}");
}

#[test]
fn a_part_that_cannot_finish_is_not_started() {
    let setup = Setup::new();
    let arguments = [
        "--limit",
        "5000",
        "--part-limits",
        "twins=5001",
        "--only",
        "probe twins engine",
    ];
    let printed = run(setup.check("gpu", &arguments), 0);
    has(
        &printed,
        &[
            "== twins: not begun: it may take 5001 s",
            "left for the next call: twins",
        ],
    );
    has(&printed, &["== probe (", "== engine ("]);
    let calls = setup.calls();
    assert!(!calls.contains(&"tests twins::".to_owned()), "{calls:?}");
    let printed = run(setup.check("gpu", &["--only", "probe nonsense"]), 2);
    has(&printed, &["there is no part nonsense"]);
}

#[test]
fn answers_that_differ_in_f32_are_a_failure() {
    let setup = Setup::new();
    let call = |machine: &str, different: &str, code| {
        let mut command = setup.check(machine, &["--only", "agreement"]);
        command.env("DIFFERENT", different);
        run(command, code)
    };
    let same = call("one", "", 0);
    assert_eq!(same.matches(" same |").count(), 4, "{same}");
    let rounded = call("two", "bfloat16*--gemm auto", 0);
    assert_eq!(rounded.matches(" same |").count(), 3, "{rounded}");
    assert_eq!(rounded.matches(" differs |").count(), 1, "{rounded}");
    let exact = call("three", "float32*--gemm auto", 1);
    has(
        &exact,
        &[
            "float32, --gemm auto, against --gemm own",
            "differs",
            "failed",
        ],
    );
    let no_graph = call("four", "--disable-cuda-graph", 1);
    has(&no_graph, &["--disable-cuda-graph", "differs"]);
}

/// Runs the real program instead of its stand-in: every row of the engine and the kernels has a result, but no times.
#[test]
fn the_script_completes_on_the_emulated_driver() {
    if !Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("kernels/kernels.pack")
        .is_file()
    {
        eprintln!("skipped: there is no kernels.pack");
        return;
    }
    let setup = Setup::new();
    let program = setup.path("bin/souffleur");
    fs::remove_file(&program).unwrap();
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_souffleur"), &program).unwrap();
    let fake = souffleur_cusim::library().parent().unwrap();
    let only = "probe twins llama llama-own kernels";
    let arguments = ["--only", only, "--quick-fake", fake.to_str().unwrap()];
    let printed = run(setup.check("gpu", &arguments), 0);
    has(
        &printed,
        &[
            "cusim (CPU)",
            "decode attention, 3 rows, 300 tokens, page 16",
        ],
    );
    for model in ["llama-3.1-8b", "llama-3.1-8b-own"] {
        has(
            &printed,
            &[&format!(
                "{model}: 3 concurrent streams together, 3 tokens each after prompts of 20"
            )],
        );
    }
    let json = fs::read_to_string(setup.path("gpu/out/gpu-check.json")).unwrap();
    let rows: Vec<serde_json::Value> = serde_json::from_str(&json).unwrap();
    assert!(rows.len() > 40, "{}", rows.len());
    assert!(rows.iter().all(|row| row["value"].is_null()), "{json}");
}

#[test]
fn packing_puts_the_binaries_into_one_file_and_limits_the_total_size() {
    let setup = Setup::new();
    let pack = |peers: Option<&Path>| {
        let mut command = setup.command();
        command.arg("--pack").arg(setup.path("packed"));
        // A program that can be stripped.
        command.env("PROGRAM", "/bin/true");
        if let Some(peers) = peers {
            command.arg("--peers").arg(peers);
        }
        command
    };
    let printed = run(pack(None), 0);
    has(&printed, &["MiB", "binaries.tgz", "total"]);
    let peers = setup.path("wheels");
    fs::create_dir(&peers).unwrap();
    let wheel = fs::File::create(peers.join("large.whl")).unwrap();
    wheel.set_len(65 << 20).unwrap();
    has(&run(pack(Some(&peers)), 1), &["more than 64 MiB"]);
    let packed = setup.path("stand-ins.tgz");
    let mut tar = Command::new("tar");
    tar.arg("-czf")
        .arg(&packed)
        .arg("-C")
        .arg(setup.path("bin"))
        .args(["souffleur", "cuda-tests"]);
    assert!(tar.status().unwrap().success());
    let mut command = setup.command();
    command.arg("--bin").arg(&packed);
    command.arg("--state").arg(setup.path("bare/state"));
    command.args(["--only", "probe engine"]);
    has(&run(command, 0), &["a GPU", "2 passed; 0 failed"]);
}
