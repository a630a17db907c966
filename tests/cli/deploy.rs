//! Tests of the files in `deploy/`: alerts, their runbooks, and the names of metrics in them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn text(name: &str) -> String {
    fs::read_to_string(file(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

#[test]
fn each_alert_fires_and_resolves() {
    let run = |args: &[&str]| {
        let output = Command::new("promtool").args(args).output();
        let output = match output {
            Ok(output) => output,
            Err(error) if std::env::var_os("CI").is_none() => {
                eprintln!("skipped: cannot run promtool: {error}");
                return;
            }
            Err(error) => panic!("CI needs promtool: {error}"),
        };
        let said =
            String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
    };
    let rules = file("deploy/prometheus/rules.yml").display().to_string();
    let tests = file("deploy/prometheus/rules_test.yml")
        .display()
        .to_string();
    run(&["check", "rules", &rules]);
    run(&["test", "rules", &tests]);
    // Each alert has a test and a runbook.
    let (rules, tests) = (
        text("deploy/prometheus/rules.yml"),
        text("deploy/prometheus/rules_test.yml"),
    );
    let runbooks = text("docs/operations.md");
    let alerts: Vec<&str> = values(&rules, "- alert: ").collect();
    assert!(alerts.len() >= 10, "{alerts:?}");
    for alert in &alerts {
        assert!(
            tests.contains(&format!("alertname: {alert}\n")),
            "{alert} has no test"
        );
        assert!(
            runbooks.contains(&format!("\n### {alert}\n")),
            "{alert} has no runbook"
        );
    }
    let urls: Vec<String> = values(&rules, "runbook_url: ").map(str::to_owned).collect();
    let expected = alerts
        .iter()
        .map(|alert| format!("docs/operations.md#{}", alert.to_lowercase()));
    assert_eq!(urls, expected.collect::<Vec<_>>());
}

/// The rests of the lines that begin with `key`, without indentation.
fn values<'a>(yaml: &'a str, key: &'a str) -> impl Iterator<Item = &'a str> {
    yaml.lines()
        .filter_map(move |line| line.trim().strip_prefix(key))
}

#[test]
fn rules_name_existing_metrics_only() {
    let rules = text("deploy/prometheus/rules.yml");
    let recorded: Vec<&str> = values(&rules, "- record: ").collect();
    let families: Vec<_> = souffleur::metrics::families()
        .map(|family| family.name)
        .collect();
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let names = rules.split(|c: char| !is_name(c));
    let names = names.filter(|name| name.starts_with("sglang:") || name.starts_with("souffleur_"));
    let mut count = 0;
    for name in names {
        let parts = ["_bucket", "_count", "_sum"];
        let base = parts
            .iter()
            .find_map(|part| name.strip_suffix(part))
            .unwrap_or(name);
        let is_known = [name, base]
            .iter()
            .any(|name| families.contains(name) || recorded.contains(name));
        assert!(is_known, "{name} is no metric");
        count += 1;
    }
    assert!(count > 12, "{count} names");
}

/// The unit allows all calls of a start.
#[test]
fn the_unit_runs_the_server_as_its_user_with_a_fed_watchdog() {
    let unit = text("deploy/souffleur.service");
    for line in [
        "Type=notify",
        "User=souffleur",
        "WatchdogSec=30",
        "ExecStart=/usr/bin/souffleur serve --config /etc/souffleur/souffleur.toml",
        "ProcSubset=all",
    ] {
        assert!(unit.lines().any(|other| other == line), "{line}");
    }
    assert!(
        !unit.contains("~@privileged @resources"),
        "threads are pinned"
    );
}
