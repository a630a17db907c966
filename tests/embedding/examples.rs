//! Runs the examples and checks their results.

use std::path::PathBuf;
use std::process::Command;

fn check(example: &str, arguments: &[&str]) -> String {
    // target/<profile>/deps/embedding-<hash> -> target/<profile>/examples/<example>
    let this = std::env::current_exe().expect("a test has a path");
    let profile = this
        .ancestors()
        .nth(2)
        .map(PathBuf::from)
        .expect("the test is in the deps of a profile");
    let program = profile
        .join("examples")
        .join(format!("{example}{}", std::env::consts::EXE_SUFFIX));
    let cache = tempfile::tempdir().expect("a temporary folder");
    let output = Command::new(&program)
        .args(arguments)
        .env("SOUFFLEUR_CACHE_DIR", cache.path())
        .output();
    let output = output.unwrap_or_else(|error| {
        panic!(
            "{}: {error} (`cargo test` builds the examples, `cargo test --test` does not)",
            program.display()
        )
    });
    assert!(output.status.success(), "{example}: {output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn an_engine_starts_with_its_defaults_on_the_model_of_the_library() {
    let printed = check("hello", &[]);
    assert!(printed.trim().contains(' '), "no words: {printed:?}");
}

#[test]
fn the_tree_and_the_pool_work_alone() {
    let printed = check("tree_and_pool", &[]);
    assert_eq!(
        printed,
        "8 of 12 tokens are cached, 8 are evicted, 64 pages are free\n"
    );
}

#[test]
fn two_engines_serve_in_one_app() {
    check("two_engines", &["--check"]);
}

#[test]
fn an_actor_of_the_host_receives_tokens() {
    check("actor_client", &[]);
}

#[test]
fn the_cache_serves_as_an_index_without_a_model() {
    check("prefix_index", &[]);
}

#[test]
fn an_engine_on_the_hosts_arbiter_takes_messages() {
    check("own_arbiter", &[]);
}
