//! Tests of packaging/publish, with programs that write down their arguments in the places of `gh` and `npm`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use super::super::ok;
use super::{Sources, VERSION, names};

const PUBLISH: &str = "packaging/publish";

/// Sources with small packages of three machines in `machines`, and the programs `gh` and `npm`.
fn sources() -> Sources {
    let sources = Sources::new();
    for (machine, level) in [("x86_64", "-1"), ("aarch64", "-9"), ("macos", "-5")] {
        let folder = sources.path("machines").join(machine);
        fs::create_dir_all(&folder).expect("writable");
        for name in names(machine) {
            let file = folder.join(name.replace('*', "2_28"));
            if name.ends_with(".tgz") {
                npm_package(&file, level);
            } else if name.ends_with(".gz") {
                gzip(&file, name.as_bytes(), level);
            } else {
                // Formulas of single machines differ.
                fs::write(&file, format!("{machine} {name}")).expect("writable");
            }
        }
    }
    fs::create_dir(sources.path("bin")).expect("writable");
    program(
        &sources,
        "gh",
        "[ \"$2\" != list ] || cat releases.json\n[ \"$2\" != create ] || sed 's/^/notes: /' >>calls",
    );
    program(
        &sources,
        "npm",
        "[ \"$1\" != view ] || grep -xF \"$2\" published || exit 1",
    );
    sources.write("releases.json", "[]");
    sources.write("published", "");
    sources
}

/// Writes an npm package that has the name of its file.
fn npm_package(file: &Path, level: &str) {
    let name = file.file_name().expect("a name").to_string_lossy();
    let name = name.trim_end_matches(&format!("-{VERSION}.tgz"));
    let name = name.replacen("souffleur-llm-", "@souffleur-llm/", 1);
    let manifest = format!(r#"{{"name": "{name}", "version": "{VERSION}"}}"#);
    let folder = tempfile::tempdir().expect("temporary folder");
    fs::create_dir(folder.path().join("package")).expect("writable");
    fs::write(folder.path().join("package/package.json"), manifest).expect("writable");
    let mut tar = Command::new("tar");
    tar.args(["--mtime=@0", "-cf", "-", "package"])
        .current_dir(folder.path());
    gzip(file, &ok(&mut tar).stdout, level);
}

fn gzip(file: &Path, bytes: &[u8], level: &str) {
    fs::write(file, bytes).expect("writable");
    let mut gzip = Command::new("gzip");
    let output = ok(gzip.args(["-n", "-c", level]).arg(file));
    fs::write(file, output.stdout).expect("writable");
}

/// Writes a program that appends its arguments to the file `calls`.
fn program(sources: &Sources, name: &str, rest: &str) {
    let file = format!("bin/{name}");
    let text = format!("#!/bin/sh\necho \"{name} $*\" >>calls\n{rest}\n");
    sources.write(&file, &text);
    let mode = fs::Permissions::from_mode(0o755);
    fs::set_permissions(sources.path(&file), mode).expect("writable");
}

/// The calls since the last question.
fn calls(sources: &Sources) -> Vec<String> {
    let text = fs::read_to_string(sources.path("calls")).unwrap_or_default();
    sources.write("calls", "");
    text.lines().map(str::to_owned).collect()
}

fn merged() -> Sources {
    let sources = sources();
    sources.passes(PUBLISH, &MERGE);
    sources
}

const MERGE: [&str; 5] = [
    "merge",
    "merged",
    "machines/x86_64",
    "machines/aarch64",
    "machines/macos",
];

#[test]
fn merging_needs_each_package_once() {
    let sources = merged();
    ok(Command::new("sha256sum")
        .args(["--check", "--quiet", "SHA256SUMS"])
        .current_dir(sources.path("merged")));
    let sums = sources.read("merged/SHA256SUMS");
    assert_eq!(sums.lines().count(), 3 * 5 + 2 * 2 + 1 + 2, "{sums}");
    for name in ["souffleur.rb", "flake.nix"] {
        let text = sources.read(&format!("merged/{name}"));
        for line in sums.lines().filter(|line| line.ends_with(".tar.gz")) {
            let sum = line.split(' ').next().expect("a sum");
            assert_eq!(text.matches(sum).count(), 1, "{name}: {text}");
        }
        assert!(!text.contains('@') && !text.contains("00000000"), "{text}");
    }

    sources.fails(PUBLISH, &MERGE, "merged exists");
    fs::remove_dir_all(sources.path("merged")).expect("writable");
    let deb = format!("machines/aarch64/souffleur_{VERSION}_arm64.deb");
    let text = sources.read(&deb);
    fs::remove_file(sources.path(&deb)).expect("writable");
    sources.fails(PUBLISH, &MERGE, "_arm64.deb is missing");
    sources.fails(PUBLISH, &MERGE[..4], "darwin-arm64");
    sources.write(&deb, &text);
    sources.write("machines/macos/core", "");
    sources.fails(PUBLISH, &MERGE, "core is unexpected");
    fs::remove_file(sources.path("machines/macos/core")).expect("writable");
    let second =
        format!("machines/macos/souffleur_llm-{VERSION}-py3-none-manylinux_2_34_x86_64.whl");
    sources.write(&second, "");
    sources.fails(PUBLISH, &MERGE, "x86_64.whl is there 2 times");
    fs::remove_file(sources.path(&second)).expect("writable");
    let launcher = format!("machines/macos/souffleur-llm-cli-{VERSION}.tgz");
    gzip(&sources.path(&launcher), b"another", "-1");
    sources.fails(PUBLISH, &MERGE, "differ");
    assert!(!sources.path("merged").exists());
}

#[test]
fn a_draft_has_notes_and_all_files() {
    let sources = merged();
    let tag = format!("v{VERSION}");
    let draft = ["draft", &tag, "merged"];
    sources.passes(PUBLISH, &draft);
    let made = calls(&sources);
    assert!(made[0].starts_with("gh release list "), "{made:?}");
    let create =
        format!("gh release create {tag} --draft --verify-tag --title Souffleur {VERSION} ");
    assert!(made[1].starts_with(&create), "{made:?}");
    assert!(!made[1].contains("--prerelease"), "{made:?}");
    let mut files: Vec<String> = fs::read_dir(sources.path("merged"))
        .expect("a folder")
        .map(|entry| format!("merged/{}", entry.expect("a file").file_name().display()))
        .collect();
    files.sort_unstable_by_key(|name| (name.ends_with("SUMS"), name.clone()));
    assert!(
        made[1].ends_with(&format!("--notes-file - {}", files.join(" "))),
        "{made:?}"
    );
    assert_eq!(made[2..], ["notes: - Runs."]);

    sources.fails(PUBLISH, &["draft", "v9.9.9", "merged"], "the tag must be");
    sources.write(
        "releases.json",
        &format!(r#"[{{"tagName": "v0.0.9", "isDraft": false}}, {{"tagName": "{tag}", "isDraft": true}}]"#),
    );
    calls(&sources);
    sources.passes(PUBLISH, &draft);
    assert_eq!(calls(&sources)[1], format!("gh release delete {tag} --yes"));
    sources.write(
        "releases.json",
        &format!(r#"[{{"tagName": "{tag}", "isDraft": false}}]"#),
    );
    sources.fails(PUBLISH, &draft, "is published already");
    assert_eq!(calls(&sources).len(), 1);

    sources.write("releases.json", "[]");
    sources.write("merged/more", "");
    sources.fails(PUBLISH, &draft, "more does not have the sum");
    fs::remove_file(sources.path("merged/more")).expect("writable");
    sources.write("merged/souffleur.rb", "edited");
    sources.fails(PUBLISH, &draft, "souffleur.rb does not have the sum");
    fs::remove_file(sources.path("merged/souffleur.rb")).expect("writable");
    sources.fails(PUBLISH, &draft, "lacks souffleur.rb");
    assert!(calls(&sources).is_empty());
}

#[test]
fn npm_gets_the_launcher_last() {
    let sources = merged();
    let tag = format!("v{VERSION}");
    sources.write(
        "published",
        &format!("@souffleur-llm/linux-arm64@{VERSION}\n"),
    );
    sources.passes(PUBLISH, &["npm", &tag, "merged"]);
    let folder = fs::canonicalize(sources.path("merged")).expect("a folder");
    let publish = |name: &str| {
        let file = folder.join(format!("souffleur-llm-{name}-{VERSION}.tgz"));
        format!(
            "npm publish {} --access public --provenance",
            file.display()
        )
    };
    let view = |name: &str| format!("npm view @souffleur-llm/{name}@{VERSION} version");
    assert_eq!(
        calls(&sources),
        [
            view("darwin-arm64"),
            publish("darwin-arm64"),
            view("linux-arm64"),
            view("linux-x64"),
            publish("linux-x64"),
            view("cli"),
            publish("cli"),
        ]
    );
    sources.fails(PUBLISH, &["npm", "v9.9.9", "merged"], "the tag must be");
    assert!(calls(&sources).is_empty());
    let mut by_hand = sources.command(PUBLISH, &["npm", &tag, "merged"]);
    ok(by_hand.env_remove("GITHUB_ACTIONS"));
    let made = calls(&sources);
    assert!(made[1].ends_with(" --access public"), "{made:?}");
}

#[test]
fn an_early_version_is_marked() {
    let sources = merged();
    let early = format!("{VERSION}-rc.1");
    sources.replace(
        "Cargo.toml",
        &format!("version = \"{VERSION}\"\nedition"),
        &format!("version = \"{early}\"\nedition"),
    );
    sources.replace(
        "CHANGELOG.md",
        &format!("## {VERSION} "),
        &format!("## {early} "),
    );
    let tag = format!("v{early}");
    sources.passes(PUBLISH, &["draft", &tag, "merged"]);
    assert!(calls(&sources)[1].contains(" --prerelease "));
    sources.passes(PUBLISH, &["npm", &tag, "merged"]);
    let made = calls(&sources);
    let publish: Vec<_> = made
        .iter()
        .filter(|call| call.starts_with("npm publish "))
        .collect();
    assert_eq!(publish.len(), 4);
    assert!(
        publish
            .iter()
            .all(|call| call.ends_with("--tag next --provenance")),
        "{made:?}"
    );
}

#[test]
fn only_a_draft_is_published() {
    let sources = merged();
    let tag = format!("v{VERSION}");
    let publish = ["release", &tag];
    sources.fails(PUBLISH, &publish, "there is no draft");
    let list = "gh release list --limit 1000 --json tagName,isDraft".to_owned();
    assert_eq!(calls(&sources), [list.as_str()]);
    sources.write(
        "releases.json",
        &format!(r#"[{{"tagName": "{tag}", "isDraft": true}}]"#),
    );
    sources.passes(PUBLISH, &publish);
    let edit = format!("gh release edit {tag} --draft=false --verify-tag");
    assert_eq!(calls(&sources), [list.clone(), edit]);
    // A second try after the release was published.
    sources.write(
        "releases.json",
        &format!(r#"[{{"tagName": "{tag}", "isDraft": false}}]"#),
    );
    sources.passes(PUBLISH, &publish);
    assert_eq!(calls(&sources), [list]);
    sources.fails(PUBLISH, &["release", "v9.9.9"], "the tag must be");
}
