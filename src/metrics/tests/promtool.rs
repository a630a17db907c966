//! Checks the metrics page with promtool.

use std::io::Write;
use std::process::{Command, Stdio};

use super::{exercise_all, page};

/// The sorted findings of `promtool check metrics` on a page. `None` if promtool is not installed; CI requires it.
fn promtool_findings(page: &str) -> Option<Vec<String>> {
    let mut promtool = Command::new("promtool");
    let promtool = promtool.args(["check", "metrics"]).stdin(Stdio::piped());
    let mut child = match promtool
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
    {
        Ok(child) => child,
        Err(error) => {
            assert!(
                std::env::var_os("CI").is_none(),
                "CI is set and promtool: {error}"
            );
            eprintln!("skipped: promtool cannot be run ({error}); it is in Debian's prometheus");
            return None;
        }
    };
    child
        .stdin
        .take()
        .expect("it is piped")
        .write_all(page.as_bytes())
        .expect("promtool reads");
    let output = child.wait_with_output().expect("promtool ends");
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8(text).expect("promtool writes UTF-8");
    assert_ne!(
        output.status.code(),
        Some(1),
        "promtool cannot parse the page: {text}\n{page}"
    );
    let mut findings: Vec<_> = text.lines().map(str::to_owned).collect();
    findings.sort();
    Some(findings)
}

#[test]
fn promtool_complains_only_about_names_of_sglang() {
    let Some(findings) = promtool_findings(&page(exercise_all)) else {
        return;
    };
    let listed = include_str!("../../../tests/fixtures/metrics_style.txt");
    let listed: Vec<_> = listed
        .lines()
        .filter(|line| !line.starts_with('#'))
        .collect();
    assert_eq!(
        findings, listed,
        "tests/fixtures/metrics_style.txt is out of date"
    );
    for finding in findings {
        assert!(
            finding.starts_with("sglang:"),
            "a metric that is not SGLang's has a bad name: {finding}"
        );
    }
}
