//! Runs Schemathesis, which generates calls from the server's OpenAPI document and checks that no answer is a server
//! error or has a status, a content type or a body that the document does not list.

use std::path::Path;
use std::process::Command;

use crate::binary::Binary;
use crate::python::interpreter;

const ADMIN_KEY: &str = "sk-of-the-admin";
/// The environment variable with the number of generated calls for each operation.
const EXAMPLES: &str = "SOUFFLEUR_SCHEMATHESIS_EXAMPLES";
const FEW_EXAMPLES: &str = "6";
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance";

/// Paths of OpenAI's and Anthropic's APIs.
const VERSIONED: &str = "^/v1/";

#[test]
fn answers_of_versioned_paths_are_no_server_errors_and_match_the_openapi_document() {
    check(&["--include-path-regex", VERSIONED]);
}

#[test]
fn other_answers_are_no_server_errors_and_match_the_openapi_document() {
    check(&["--exclude-path-regex", VERSIONED]);
}

/// Calls the paths that the options choose.
fn check(chosen: &[&str]) {
    let Some(python) = interpreter() else {
        return;
    };
    let server = Binary::start(&["--admin-api-key", ADMIN_KEY]);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/schemathesis");
    let mut run = Command::new(python);
    run.args(["-B", "-m", "schemathesis.cli", "run"])
        .arg(format!("{}/openapi.json", server.url))
        .args(["--header", &format!("Authorization: Bearer {ADMIN_KEY}")])
        .args(["--checks", CHECKS])
        // A request during a pause waits for the end of the pause.
        .args(["--exclude-path", "/pause_generation"])
        // Its stream has no end.
        .args(["--exclude-path", "/console/live"])
        .args(chosen)
        .args(["--phases", "examples,coverage,fuzzing"])
        .args(["--seed", "1", "--generation-database", "none"])
        .args(["--suppress-health-check", "all", "--warnings", "off"])
        .args(["--request-timeout", "60", "--no-color"])
        .arg("--max-examples")
        .arg(std::env::var(EXAMPLES).unwrap_or_else(|_| FEW_EXAMPLES.to_owned()))
        .current_dir(&folder)
        .env("SCHEMATHESIS_HOOKS", "hooks");
    for name in ["http_proxy", "https_proxy", "all_proxy"] {
        run.env_remove(name).env_remove(name.to_uppercase());
    }
    let output = run.output().expect("the interpreter runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}\nserver:\n{}", server.log());
    server.stop();
}
