//! Records the commit of the sources, which `souffleur --version` shows.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The variable that names the commit and its date, as `f33cb7e0 2026-11-22`, for builds without a repository.
const VARIABLE: &str = "SOUFFLEUR_COMMIT";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed={VARIABLE}");
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let commit = given().or_else(|| of_package(&root)).or_else(|| {
        // Each commit would compile all tests again.
        let is_release = env::var("PROFILE").is_ok_and(|profile| profile == "release");
        is_release.then(|| of_repository(&root)).flatten()
    });
    println!(
        "cargo::rustc-env=SOUFFLEUR_BUILT_COMMIT={}",
        commit.unwrap_or_default()
    );
}

fn given() -> Option<String> {
    let given = env::var(VARIABLE).ok()?;
    let mut words = given.split_whitespace();
    let is_hash = |word: &str| word.len() >= 8 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
    assert!(
        words.next().is_some_and(is_hash) && words.count() <= 1,
        "{VARIABLE} is {given:?}, must be a commit's hash of at least 8 digits and, if known, its date"
    );
    Some(shortened(&given))
}

/// The commit that `cargo package` wrote into an archive.
fn of_package(root: &Path) -> Option<String> {
    let written = fs::read_to_string(root.join(".cargo_vcs_info.json")).ok()?;
    let (_, rest) = written.split_once("\"sha1\"")?;
    let hash = rest.split('"').nth(1)?;
    Some(shortened(hash))
}

/// The checked-out commit, unless `root` is a folder inside another repository.
fn of_repository(root: &Path) -> Option<String> {
    let git = |args: &[&str]| {
        let output = Command::new("git").args(args).current_dir(root).output();
        let output = output.ok().filter(|output| output.status.success())?;
        String::from_utf8(output.stdout)
            .ok()
            .map(|text| text.trim().to_owned())
    };
    let top = git(&["rev-parse", "--show-toplevel"])?;
    if fs::canonicalize(top).ok()? != fs::canonicalize(root).ok()? {
        return None;
    }
    for name in ["HEAD", "logs/HEAD"] {
        let file = root.join(git(&["rev-parse", "--git-path", name])?);
        if file.exists() {
            println!("cargo::rerun-if-changed={}", file.display());
        }
    }
    git(&["log", "-1", "--format=%H %cs"]).map(|commit| shortened(&commit))
}

/// Shortens the hash at the beginning to 8 digits.
fn shortened(commit: &str) -> String {
    let mut words = commit.split_whitespace();
    let hash = words.next().and_then(|hash| hash.get(..8));
    let words: Vec<&str> = hash.into_iter().chain(words).collect();
    words.join(" ")
}
