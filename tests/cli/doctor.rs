//! Tests of `souffleur doctor` with faults that a test can plant: each is found, with advice.

use std::net::TcpListener;
use std::process::Output;

use serde_json::Value;

use super::{souffleur, stderr, tiny_model};

/// Runs the command with a writable cache and without the hub.
fn doctor(args: &[&str], variables: &[(&str, &str)]) -> (Output, Vec<Value>) {
    let home = tempfile::tempdir().expect("temporary folder");
    let mut command = souffleur(&["doctor", "--json"]);
    command.args(args);
    command.env("SOUFFLEUR_CACHE_DIR", home.path().join("souffleur"));
    command.env("HF_HOME", home.path().join("hub"));
    command.env("HF_HUB_OFFLINE", "1");
    command.envs(variables.iter().copied());
    let output = command.output().expect("the binary runs");
    let findings = serde_json::from_slice(&output.stdout).expect("JSON");
    (output, findings)
}

/// Checks that one check failed and says how to mend it. Warnings depend on the machine.
fn check_failed(args: &[&str], variables: &[(&str, &str)], check: &str, parts: &[&str]) {
    let (output, findings) = doctor(args, variables);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(stderr(&output), "souffleur: 1 check failed\n");
    let failed: Vec<_> = findings
        .iter()
        .filter(|one| one["state"] == "fail")
        .collect();
    let [failed] = failed.as_slice() else {
        panic!("{failed:?}");
    };
    assert_eq!(failed["check"], check);
    assert!(failed["advice"].is_string(), "{failed}");
    for part in parts {
        assert!(
            failed.to_string().contains(part),
            "{part} is not in {failed}"
        );
    }
}

#[test]
fn a_machine_without_faults_has_no_failed_check() {
    let model = tiny_model();
    let (output, findings) = doctor(&["--port", "0", &model.to_string_lossy()], &[]);
    assert!(output.status.success(), "{findings:?}");
    assert!(findings.len() >= 11, "{findings:?}");
    for finding in findings {
        assert_ne!(finding["state"], "fail", "{finding}");
        assert_eq!(
            finding["advice"].is_null(),
            finding["state"] == "ok",
            "{finding}"
        );
    }
}

#[test]
fn planted_faults_are_found() {
    let port = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let number = port.local_addr().expect("an address").port().to_string();
    check_failed(&["--port", &number], &[], "port", &[&number, "--port 0"]);
    // A folder inside a file can never be made, not even by root.
    let inside = format!("{}/config.json/cache", tiny_model().display());
    check_failed(
        &["--port", "0", &tiny_model().to_string_lossy()],
        &[("SOUFFLEUR_CACHE_DIR", &inside)],
        "cache folder",
        &["SOUFFLEUR_CACHE_DIR"],
    );
    let nothing = tempfile::tempdir().expect("temporary folder");
    let model = nothing.path().to_string_lossy();
    check_failed(&["--port", "0", &model], &[], "model", &["config.json"]);
    check_failed(
        &["--port", "0"],
        &[("SOUFFLEUR_CPU_ISA", "mmx")],
        "instruction set",
        &["mmx"],
    );
}

#[test]
#[cfg(all(feature = "cuda", target_os = "linux"))]
fn a_driver_that_cannot_be_loaded_is_found() {
    let folder = tempfile::tempdir().expect("temporary folder");
    std::fs::write(folder.path().join("libcuda.so.1"), "no library").expect("writable");
    let folder = folder.path().to_string_lossy();
    check_failed(
        &["--port", "0"],
        &[("LD_LIBRARY_PATH", &folder)],
        "GPU",
        &["libcuda.so.1", "LD_LIBRARY_PATH"],
    );
}
