//! Tests of the build script: which commit a build names, from a repository, an unpacked crate or the environment.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use tempfile::TempDir;

use super::{ok, root};

const HASH: &str = "0123456789abcdef0123456789abcdef01234567";

struct Script {
    folder: TempDir,
}

impl Script {
    fn compile() -> Self {
        let folder = tempfile::tempdir().expect("temporary folder");
        let mut rustc = Command::new("rustc");
        rustc.args(["--edition", "2024", "-o"]);
        ok(rustc
            .arg(folder.path().join("script"))
            .arg(root().join("build.rs")));
        Self { folder }
    }

    fn run(&self, sources: &Path, profile: &str, commit: Option<&str>) -> Output {
        let mut script = Command::new(self.folder.path().join("script"));
        script
            .env("CARGO_MANIFEST_DIR", sources)
            .env("PROFILE", profile);
        match commit {
            Some(commit) => script.env("SOUFFLEUR_COMMIT", commit),
            None => script.env_remove("SOUFFLEUR_COMMIT"),
        };
        script.output().expect("it runs")
    }

    /// The commit that a build of `sources` names.
    fn commit(&self, sources: &Path, profile: &str, given: Option<&str>) -> String {
        let output = self.run(sources, profile, given);
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).expect("UTF-8");
        let mut lines = text.lines();
        let variable =
            lines.find_map(|line| line.strip_prefix("cargo::rustc-env=SOUFFLEUR_BUILT_COMMIT="));
        variable.expect("the variable").to_owned()
    }
}

fn git(folder: &Path, args: &[&str]) -> String {
    let mut git = Command::new("git");
    git.args(["-c", "user.name=Test", "-c", "user.email=test@localhost"]);
    let output = ok(git.args(args).current_dir(folder));
    String::from_utf8(output.stdout).expect("UTF-8")
}

#[test]
fn a_release_build_names_the_commit_of_its_repository() {
    let script = Script::compile();
    let repository = tempfile::tempdir().expect("temporary folder");
    let sources = repository.path();
    git(sources, &["init", "--quiet"]);
    fs::write(sources.join("file"), "text").expect("writable");
    git(sources, &["add", "file"]);
    git(
        sources,
        &["commit", "--quiet", "--message", "test: add a file"],
    );
    let hash = git(sources, &["rev-parse", "HEAD"]);
    let date = git(sources, &["log", "-1", "--format=%cs"]);
    let expected = format!("{} {}", &hash[..8], date.trim());
    assert_eq!(script.commit(sources, "release", None), expected);
    assert_eq!(script.commit(sources, "debug", None), "");
    // The commit of another repository, in which the sources were unpacked, is not theirs.
    let inner = sources.join("unpacked");
    fs::create_dir(&inner).expect("writable");
    assert_eq!(script.commit(&inner, "release", None), "");
    let info = format!(r#"{{"git": {{"sha1": "{HASH}"}}, "path_in_vcs": ""}}"#);
    fs::write(inner.join(".cargo_vcs_info.json"), info).expect("writable");
    assert_eq!(script.commit(&inner, "release", None), "01234567");
}

#[test]
fn a_given_commit_comes_first_and_must_be_a_hash() {
    let script = Script::compile();
    let sources = tempfile::tempdir().expect("temporary folder");
    let commit = |given: &str| script.commit(sources.path(), "debug", Some(given));
    assert_eq!(commit(&format!("{HASH} 2026-11-22")), "01234567 2026-11-22");
    assert_eq!(commit(HASH), "01234567");
    for wrong in ["", "main", "0123", "0123456789 2026-11-22 dirty"] {
        let output = script.run(sources.path(), "debug", Some(wrong));
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{wrong:?}");
        assert!(
            message.contains("SOUFFLEUR_COMMIT is") && message.contains(&format!("{wrong:?}")),
            "{message}"
        );
    }
}
