//! Tests of a release: versions, workflows, packages of other systems, and, in `publish`, the steps of publishing.

mod publish;

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use tempfile::TempDir;

use super::{BINARY, ok, root};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The names of a machine's packages, with a `*` for the oldest system in the name of the wheel.
pub fn names(machine: &str) -> Vec<String> {
    let (triple, wheel, npm, deb) = match machine {
        "x86_64" => (
            "unknown-linux-gnu",
            "manylinux_*_x86_64",
            "linux-x64",
            "amd64",
        ),
        "aarch64" => (
            "unknown-linux-gnu",
            "manylinux_*_aarch64",
            "linux-arm64",
            "arm64",
        ),
        _ => ("apple-darwin", "macosx_*_arm64", "darwin-arm64", ""),
    };
    let machine = if deb.is_empty() { "aarch64" } else { machine };
    let archive = format!("souffleur-{VERSION}-{machine}-{triple}");
    let mut names = vec![
        format!("souffleur_llm-{VERSION}-py3-none-{wheel}.whl"),
        format!("souffleur-llm-{npm}-{VERSION}.tgz"),
        format!("souffleur-llm-cli-{VERSION}.tgz"),
        format!("{archive}.tar.gz"),
        format!("{archive}.tar.xz"),
        format!("{archive}.cdx.json"),
        "souffleur.rb".to_owned(),
        "flake.nix".to_owned(),
        "SHA256SUMS".to_owned(),
    ];
    if !deb.is_empty() {
        names.push(format!("souffleur_{VERSION}_{deb}.deb"));
        names.push(format!("souffleur-{VERSION}-{machine}.oci.tar"));
    }
    names
}

/// A copy of the files that releases are made of, which tests change.
struct Sources(TempDir);

impl Sources {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("temporary folder");
        let mut copy = Command::new("cp");
        copy.arg("-r").current_dir(root());
        ok(copy
            .args(["packaging", ".github", ".ci", "Cargo.toml"])
            .arg(folder.path()));
        fs::create_dir_all(folder.path().join("tests")).expect("writable");
        let mut copy = Command::new("cp");
        copy.arg("-r").arg(root().join("tests/packages"));
        ok(copy.arg(folder.path().join("tests")));
        let sources = Self(folder);
        sources.write(
            "CHANGELOG.md",
            &format!("# Changelog\n\n## {VERSION} (2026-11-29)\n\n- Runs.\n\n## 0.0.9 (2026-01-01)\n\n- Old.\n"),
        );
        sources
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).expect("writable");
    }

    fn replace(&self, name: &str, from: &str, to: &str) {
        let text = self.read(name);
        assert!(text.contains(from), "{name} lacks {from:?}");
        self.write(name, &text.replace(from, to));
    }

    fn command(&self, script: &str, args: &[&str]) -> Command {
        let mut command = Command::new(self.path(script));
        command.args(args).current_dir(self.0.path());
        let path = std::env::var("PATH").expect("a PATH");
        command.env("PATH", format!("{}:{path}", self.path("bin").display()));
        command.env("GITHUB_ACTIONS", "true");
        command
    }

    fn run(&self, script: &str, args: &[&str]) -> Output {
        self.command(script, args).output().expect("it runs")
    }

    /// Checks that a script fails and that its error has this text.
    fn fails(&self, script: &str, args: &[&str], text: &str) {
        let output = self.run(script, args);
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        assert!(!output.status.success(), "{script} {args:?} passes: {said}");
        assert!(said.contains(text), "{script} {args:?}: {said}");
        assert!(!said.contains("Traceback"), "{said}");
    }

    fn passes(&self, script: &str, args: &[&str]) {
        let output = self.run(script, args);
        assert!(output.status.success(), "{script} {args:?}: {output:?}");
    }
}

#[test]
fn a_tag_names_the_version_of_a_dated_section() {
    let sources = Sources::new();
    let tag = format!("v{VERSION}");
    let check = "packaging/check-version";
    sources.passes(check, &[&tag]);
    for wrong in [VERSION, "v9.9.9", "", &format!("{tag}-rc.1")] {
        sources.fails(check, &[wrong], &format!("the tag must be {tag}"));
    }
    sources.fails(check, &[], "the tag must be");
    let dated = sources.read("CHANGELOG.md");
    for (title, fault) in [
        ("## Unreleased".to_owned(), "has no section"),
        (format!("## {VERSION}"), "has no section"),
        (format!("## {VERSION} (soon)"), "has no section"),
        ("## 9.9.9 (2026-11-29)".to_owned(), "has no section"),
        (
            format!("## {VERSION} (2026-11-29)\n\n## 0.0.9 (2026-01-01)"),
            "has no changes",
        ),
    ] {
        let text = dated.replace(&format!("## {VERSION} (2026-11-29)"), &title);
        sources.write("CHANGELOG.md", &text);
        sources.fails(check, &[&tag], fault);
    }
}

/// The newest released version of the changelog is the one that Cargo.toml has, or, with changes since, an older one.
#[test]
fn the_changelog_and_the_binary_have_the_version_of_the_manifest() {
    let number = |part: &str| -> u64 {
        part.parse()
            .unwrap_or_else(|_| panic!("{part:?} is no part of a version"))
    };
    let numbers = |version: &str| -> Vec<u64> {
        let release = version.split('-').next().unwrap_or_default();
        release.split('.').map(number).collect()
    };
    let text = fs::read_to_string(root().join("CHANGELOG.md")).expect("readable");
    let mut titles = text.lines().filter_map(|line| line.strip_prefix("## "));
    let mut title = titles.next();
    let is_unreleased = title == Some("Unreleased");
    if is_unreleased {
        title = titles.next();
    }
    if let Some(newest) = title.and_then(|title| title.split(" (").next()) {
        let is_current = newest == VERSION;
        let is_older = is_unreleased && numbers(newest) < numbers(VERSION);
        assert!(
            is_current || is_older,
            "CHANGELOG.md has {newest}, Cargo.toml {VERSION}"
        );
    }
    let said = String::from_utf8(ok(Command::new(BINARY).arg("--version")).stdout);
    let said = said.expect("UTF-8");
    assert!(
        said.starts_with(&format!("souffleur {VERSION} (")),
        "{said}"
    );
}

#[test]
fn workflows_call_scripts_that_run_elsewhere_and_pin_actions() {
    let sources = Sources::new();
    let check = |file: &str, from: &str, to: &str, fault: &str| {
        let name = format!(".github/workflows/{file}");
        let text = sources.read(&name);
        sources.replace(&name, from, to);
        sources.fails("packaging/check-workflows", &["--offline"], fault);
        sources.write(&name, &text);
    };
    let release = |from: &str, to: &str, fault: &str| check("release.yml", from, to, fault);
    sources.passes("packaging/check-workflows", &["--offline"]);
    release(
        "packaging/publish merge",
        "packaging/release merge",
        "packaging/release is not an executable file",
    );
    release("packaging/build ", "packaging/build.txt ", "executable");
    for wrong in [
        "packaging/check-commit \"$BINARY\" && true",
        "packaging/check-commit $BINARY",
        "packaging/check-commit ${{ matrix.target }}",
        "cargo build",
        "|",
    ] {
        release("packaging/check-commit \"$BINARY\"", wrong, "not a call");
    }
    let alone = "packaging/alone";
    let tools = sources.path("packaging/install-tools");
    fs::copy(tools, sources.path(alone)).expect("writable");
    release("packaging/install-tools", alone, "neither CI");
    // Neither a comment nor an argument is a call.
    let nightly = sources.read("packaging/check-nightly");
    for line in [
        "# packaging/alone",
        "true # packaging/alone",
        "echo packaging/alone",
    ] {
        sources.write("packaging/check-nightly", &format!("{nightly}{line}\n"));
        release("packaging/install-tools", alone, "neither CI");
    }
    for hidden in [
        "\"run\": cargo build",
        "{ name: build, run: cargo build }",
        "{ uses: owner/name@main }",
    ] {
        release("run: packaging/check-workflows", hidden, "the only key");
    }
    release(" # v7.0.1", "", "must be pinned");
    release(
        "3d3c42e5aac5ba805825da76410c181273ba90b1 #",
        "v7 #",
        "must be pinned",
    );
    release("\npermissions: {}", "", "no permissions");
    check("ci.yml", ".ci/run", "cargo test", "not a call");
    let moved = sources.path("packaging/moved");
    fs::rename(sources.path("packaging/check-elf"), moved).expect("writable");
    sources.fails("packaging/check-workflows", &["--offline"], "check-elf");
}

#[test]
fn python_and_debian_order_an_early_version_before_its_release() {
    let sources = Sources::new();
    let version = |version: &str| format!("version = \"{version}\"\nedition");
    let early = format!("{VERSION}-rc.1");
    sources.replace("Cargo.toml", &version(VERSION), &version(&early));
    let script = "import pathlib; from lib.product import Project; project = Project(pathlib.Path()); \
        print(project.wheel_version, project.deb_version)";
    let mut python = Command::new("python3");
    python.args(["-B", "-c", script]);
    let said = ok(python.current_dir(sources.path("packaging"))).stdout;
    let said = String::from_utf8(said).expect("UTF-8");
    assert_eq!(said, format!("{VERSION}rc1 {VERSION}~rc.1\n"));
}

/// The target that packaging/make sees in a file.
fn target(head: &[u8]) -> Result<String, String> {
    let sources = tempfile::tempdir().expect("temporary folder");
    let file = sources.path().join("binary");
    fs::write(&file, head).expect("writable");
    let script = "import pathlib, sys; from lib.target import *; file = pathlib.Path(sys.argv[1]); \
        found = target_of(file); floor = macos_floor(file) if found.system == 'darwin' else ''; \
        print(found.triple, floor)";
    let mut python = Command::new("python3");
    python.args(["-B", "-c", script]).arg(&file);
    let output = python.current_dir(root().join("packaging")).output();
    let output = output.expect("Python runs");
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).trim().to_owned();
    if output.status.success() {
        Ok(text(output.stdout))
    } else {
        Err(text(output.stderr))
    }
}

fn elf(machine: u8) -> Vec<u8> {
    let mut head = vec![0; 64];
    head[..4].copy_from_slice(b"\x7fELF");
    head[18] = machine;
    head
}

/// The header of a Mach-O executable with two load commands, the second of which names macOS 11.0.
fn mach_o(machine: u32, kind: u32) -> Vec<u8> {
    let header = [0xfeed_facf, machine, 0, kind, 2, 16 + 24, 0, 0];
    let unknown = [0x19, 16, 0, 0];
    let version = [0x32, 24, 1, 11 << 16, 0, 0];
    let words = header.iter().chain(&unknown).chain(&version);
    words.copied().flat_map(u32::to_le_bytes).collect()
}

#[test]
fn binaries_tell_their_target() {
    assert_eq!(target(&elf(62)).as_deref(), Ok("x86_64-unknown-linux-gnu"));
    assert_eq!(
        target(&elf(183)).as_deref(),
        Ok("aarch64-unknown-linux-gnu")
    );
    let arm64 = 0x0100_000c;
    assert_eq!(
        target(&mach_o(arm64, 2)).as_deref(),
        Ok("aarch64-apple-darwin (11, 0)")
    );
    // Another machine, a library, a script, an empty file.
    for other in [
        elf(40),
        mach_o(0x0100_0007, 2),
        mach_o(arm64, 6),
        b"#!/bin/sh\n".to_vec(),
        vec![],
    ] {
        let fault = target(&other).expect_err("no target");
        assert!(
            fault.ends_with("nor a Mach-O executable for arm64"),
            "{fault}"
        );
    }
    let mut nameless = mach_o(arm64, 2);
    nameless[32 + 16] = 0x19;
    let fault = target(&nameless).expect_err("no version");
    assert!(fault.contains("LC_BUILD_VERSION"), "{fault}");
}

/// Makes the packages of a Mach-O executable, which cannot run here: its outputs are given.
const MAKE_FOR_MACOS: &str = "
import os, pathlib, sys
from lib import archives, npm, product, wheel
said = {'--version': f'souffleur {sys.argv[3]} (unknown commit)', 'man': '', 'completions': 'complete'}
product.Product.run = lambda self, *args: said[args[0]]
made = product.Product(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), True)
print(*(file.name for make in (wheel.make, npm.make, archives.make) for file in make(made)), sep='\\n')
";

#[test]
fn macos_has_a_wheel_npm_packages_and_an_archive() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let binary = folder.path().join("binary");
    fs::write(&binary, mach_o(0x0100_000c, 2)).expect("writable");
    let mut python = Command::new("python3");
    python.args(["-B", "-c", MAKE_FOR_MACOS]).arg(&binary);
    python.arg(folder.path()).arg(VERSION);
    let made = ok(python.current_dir(root().join("packaging"))).stdout;
    let made = String::from_utf8(made).expect("UTF-8");
    let expected = names("macos");
    let expected: Vec<String> = expected[..4]
        .iter()
        .map(|name| name.replace('*', "11_0"))
        .collect();
    assert_eq!(made.lines().collect::<Vec<_>>(), expected);
    let read = |file: &str, inner: &str| {
        let mut tar = Command::new("tar");
        tar.arg("-xzOf").arg(folder.path().join(file)).arg(inner);
        String::from_utf8(ok(&mut tar).stdout).expect("UTF-8")
    };
    let manifest: serde_json::Value =
        serde_json::from_str(&read(&expected[1], "package/package.json")).expect("JSON");
    assert_eq!(manifest["os"][0], "darwin");
    assert_eq!(manifest["cpu"][0], "arm64");
    assert!(manifest["libc"].is_null());
    let launcher: serde_json::Value =
        serde_json::from_str(&read(&expected[2], "package/package.json")).expect("JSON");
    let platforms = launcher["optionalDependencies"].as_object();
    let platforms: Vec<&String> = platforms.expect("an object").keys().collect();
    let scoped =
        ["darwin-arm64", "linux-arm64", "linux-x64"].map(|name| format!("@souffleur-llm/{name}"));
    assert_eq!(platforms, scoped.iter().collect::<Vec<_>>());
    let mut tar = Command::new("tar");
    tar.arg("-tzf").arg(folder.path().join(&expected[3]));
    let files = String::from_utf8(ok(&mut tar).stdout).expect("UTF-8");
    assert!(
        files.lines().any(|line| line.ends_with("/souffleur")),
        "{files}"
    );
    assert!(!files.contains("souffleur.service"), "{files}");
}
