//! Tests that each package of packaging/make, installed by its own tool, runs like the binary that it was made of.
//!
//! The packages are made once, with little compression.

mod commit;
mod release;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use tempfile::TempDir;

const BINARY: &str = env!("CARGO_BIN_EXE_souffleur");
const PROMPT: [&str; 6] = [
    "generate",
    "Who are you?",
    "--temperature",
    "0",
    "--max-new-tokens",
    "16",
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The folder with all packages; `None` where a tool to make them is missing and `CI` is unset.
fn packages() -> Option<&'static Path> {
    static MADE: OnceLock<Result<TempDir, String>> = OnceLock::new();
    let made = MADE.get_or_init(|| {
        for tool in ["python3", "dpkg-deb", "readelf", "ldd"] {
            let found = Command::new(tool).arg("--version").output();
            found.map_err(|error| format!("cannot run {tool}: {error}"))?;
        }
        let folder = tempfile::tempdir().expect("temporary folder");
        let mut make = Command::new(root().join("packaging/make"));
        make.args(["--fast", BINARY, "--out"]).arg(folder.path());
        let output = make.output().expect("Python runs");
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(folder)
    });
    available(made.as_ref().map(TempDir::path))
}

/// Fails in CI, and else prints why a test is skipped.
fn available<T>(found: Result<T, &String>) -> Option<T> {
    match found {
        Ok(found) => Some(found),
        Err(reason) if env::var_os("CI").is_some() => panic!("CI needs packages: {reason}"),
        Err(reason) => {
            eprintln!("skipped: {reason}");
            None
        }
    }
}

/// The package whose name has this beginning and this end.
fn package(folder: &Path, begin: &str, end: &str) -> PathBuf {
    let files = fs::read_dir(folder)
        .expect("a folder")
        .flatten()
        .map(|entry| entry.path());
    let is_it = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with(begin) && name.ends_with(end)
    };
    files
        .into_iter()
        .find(is_it)
        .unwrap_or_else(|| panic!("no {begin}*{end}"))
}

fn ok(command: &mut Command) -> Output {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?}: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

fn answer(program: &mut Command, home: &Path) -> String {
    let output = ok(program.args(PROMPT).env("SOUFFLEUR_CACHE_DIR", home));
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Checks that an installed program answers like the binary, and that SIGTERM stops its server.
fn check(program: impl Fn() -> Command) {
    let home = tempfile::tempdir().expect("temporary folder");
    let expected = answer(&mut Command::new(BINARY), home.path());
    assert!(expected.len() > 3, "{expected:?}");
    assert_eq!(answer(&mut program(), home.path()), expected);
    let mut server = program();
    server
        .args(["--port", "0"])
        .env("SOUFFLEUR_CACHE_DIR", home.path());
    let mut child = server.stdout(Stdio::piped()).spawn().expect("it runs");
    let mut out = std::io::BufReader::new(child.stdout.take().expect("piped"));
    let mut line = String::new();
    while !line.contains("curl -N") {
        line.clear();
        let n = std::io::BufRead::read_line(&mut out, &mut line).expect("UTF-8");
        assert!(n > 0, "the server ended");
    }
    ok(Command::new("kill").args(["-s", "TERM", &child.id().to_string()]));
    let began = Instant::now();
    let status = child.wait().expect("it ends");
    assert!(status.success(), "{status}");
    assert!(began.elapsed() < Duration::from_secs(5 * 30));
}

#[test]
fn the_wheel_installs_and_uninstalls() {
    let Some(folder) = packages() else { return };
    let wheel = package(folder, "souffleur_llm-", ".whl");
    let environment = tempfile::tempdir().expect("temporary folder");
    let venv = environment.path().join("venv");
    ok(Command::new("python3").args(["-m", "venv"]).arg(&venv));
    let pip = || {
        let mut pip = Command::new(venv.join("bin/python"));
        pip.args(["-m", "pip", "--disable-pip-version-check"]);
        pip
    };
    ok(pip().args(["install", "--no-index", "--quiet"]).arg(&wheel));
    let installed = venv.join("bin/souffleur");
    check(|| Command::new(&installed));
    ok(pip().args(["uninstall", "--yes", "--quiet", "souffleur-llm"]));
    assert!(!installed.exists());
}

#[test]
fn the_npm_packages_install_and_uninstall() {
    let Some(folder) = packages() else { return };
    let found = Command::new("npm").arg("--version").output();
    let found = found.map_err(|error| format!("cannot run npm: {error}"));
    if available(found.as_ref()).is_none() {
        return;
    }
    let prefix = tempfile::tempdir().expect("temporary folder");
    let npm = |args: &[&str]| {
        let mut npm = Command::new("npm");
        npm.args(["--prefix"]).arg(prefix.path()).args(args);
        npm.env("HOME", prefix.path())
            .args(["--offline", "--no-audit", "--no-fund"]);
        ok(&mut npm);
    };
    let file = |begin: &str| {
        package(folder, begin, ".tgz")
            .to_string_lossy()
            .into_owned()
    };
    npm(&[
        "install",
        &file("souffleur-llm-linux-"),
        &file("souffleur-llm-cli-"),
    ]);
    let installed = prefix.path().join("node_modules/.bin/souffleur");
    check(|| Command::new(&installed));
    npm(&[
        "uninstall",
        "@souffleur-llm/cli",
        "@souffleur-llm/linux-x64",
        "@souffleur-llm/linux-arm64",
    ]);
    assert!(!installed.exists());
}

#[test]
fn the_debian_package_has_unit_configuration_manual_and_completions() {
    let Some(folder) = packages() else { return };
    let deb = package(folder, "souffleur_", ".deb");
    let unpacked = tempfile::tempdir().expect("temporary folder");
    ok(Command::new("dpkg-deb")
        .arg("-x")
        .arg(&deb)
        .arg(unpacked.path()));
    check(|| Command::new(unpacked.path().join("usr/bin/souffleur")));
    for name in [
        "usr/lib/systemd/system/souffleur.service",
        "usr/lib/sysusers.d/souffleur.conf",
        "usr/share/man/man1/souffleur.1.gz",
        "usr/share/bash-completion/completions/souffleur",
        "usr/share/zsh/vendor-completions/_souffleur",
        "usr/share/fish/vendor_completions.d/souffleur.fish",
        "usr/share/doc/souffleur/copyright",
        "usr/share/doc/souffleur/examples/cuda.conf",
    ] {
        assert!(unpacked.path().join(name).is_file(), "{name}");
    }
    // The configuration is valid, and changes nothing until a line is uncommented.
    let configuration = unpacked.path().join("etc/souffleur/souffleur.toml");
    let mut plan = Command::new(BINARY);
    plan.arg("plan")
        .arg("--config")
        .arg(&configuration)
        .env("SOUFFLEUR_CACHE_DIR", unpacked.path());
    ok(&mut plan);
    let text = fs::read_to_string(&configuration).expect("readable");
    assert!(
        text.lines()
            .all(|line| line.is_empty() || line.starts_with(['#', '[']))
    );
    let fields = ok(Command::new("dpkg-deb").arg("--field").arg(&deb));
    let fields = String::from_utf8_lossy(&fields.stdout).into_owned();
    assert!(fields.contains("Depends: libc6 (>= 2."), "{fields}");
}

#[test]
fn the_image_holds_the_binary_and_its_libraries_only() {
    let Some(folder) = packages() else { return };
    let image = package(folder, "souffleur-", ".oci.tar");
    let unpacked = tempfile::tempdir().expect("temporary folder");
    let (layout, files) = (
        unpacked.path().join("layout"),
        unpacked.path().join("files"),
    );
    for folder in [&layout, &files] {
        fs::create_dir(folder).expect("writable");
    }
    ok(Command::new("tar")
        .arg("-xf")
        .arg(&image)
        .arg("-C")
        .arg(&layout));
    let read = |path: &str| -> serde_json::Value {
        let text = fs::read(layout.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
        serde_json::from_slice(&text).expect("JSON")
    };
    let blob = |descriptor: &serde_json::Value| {
        let digest = descriptor["digest"]
            .as_str()
            .expect("a digest")
            .replace(':', "/");
        format!("blobs/{digest}")
    };
    let entry = &read("index.json")["manifests"][0];
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(
        entry["annotations"]["io.containerd.image.name"],
        format!("docker.io/library/souffleur:{version}")
    );
    let manifest = read(&blob(entry));
    let configuration = read(&blob(&manifest["config"]));
    assert_eq!(configuration["config"]["User"], "65532:65532");
    let layer = layout.join(blob(&manifest["layers"][0]));
    check_folders_and_names(&layer);
    ok(Command::new("tar")
        .arg("-xzf")
        .arg(layer)
        .arg("-C")
        .arg(&files));
    // The loader of the image runs the binary with the image's libraries.
    let loader =
        ["lib64/ld-linux-x86-64.so.2", "lib/ld-linux-aarch64.so.1"].map(|name| files.join(name));
    let loader = loader
        .into_iter()
        .find(|file| file.exists())
        .expect("a loader");
    let libraries: Vec<String> = [
        "lib/x86_64-linux-gnu",
        "lib/aarch64-linux-gnu",
        "lib64",
        "usr/lib64",
    ]
    .map(|name| files.join(name).to_string_lossy().into_owned())
    .into();
    check(|| {
        let mut program = Command::new(&loader);
        program.args(["--inhibit-cache", "--library-path", &libraries.join(":")]);
        program.arg(files.join("usr/bin/souffleur"));
        program
    });
}

/// The image's user can write to new volumes, which take owner and mode of the image's folders; libcuda finds the
/// libraries that it names.
fn check_folders_and_names(layer: &Path) {
    let mut tar = Command::new("tar");
    let listed = ok(tar.args(["--numeric-owner", "-tvzf"]).arg(layer));
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    for (start, end) in [
        ("drwxr-xr-x 65532/65532 ", " models/"),
        ("drwxr-xr-x 65532/65532 ", " var/lib/souffleur/"),
        ("drwxrwxrwt 0/0 ", " tmp/"),
        ("-rwxr-xr-x 0/0 ", "/libdl.so.2"),
        ("-rwxr-xr-x 0/0 ", "/libpthread.so.0"),
        ("-rwxr-xr-x 0/0 ", "/librt.so.1"),
    ] {
        let is_there = |line: &str| line.starts_with(start) && line.ends_with(end);
        assert!(
            listed.lines().any(is_there),
            "no {start}…{end} in\n{listed}"
        );
    }
}

#[test]
fn sums_and_bill_of_materials_cover_all_packages() {
    let Some(folder) = packages() else { return };
    ok(Command::new("sha256sum")
        .args(["--check", "--quiet", "SHA256SUMS"])
        .current_dir(folder));
    let sums = fs::read_to_string(folder.join("SHA256SUMS")).expect("readable");
    for name in release::names(env::consts::ARCH) {
        let (begin, end) = name.split_once('*').unwrap_or((&name, ""));
        // Packages for tests are compressed little, so they have no such archive; the sums do not have their own.
        if !name.ends_with(".tar.xz") && name != "SHA256SUMS" {
            let file = package(folder, begin, end);
            let file = file.file_name().expect("a name").to_string_lossy();
            assert!(sums.lines().any(|line| line.ends_with(&*file)), "{file}");
        }
    }
    let bom = fs::read(package(folder, "souffleur-", ".cdx.json")).expect("readable");
    let bom: serde_json::Value = serde_json::from_slice(&bom).expect("JSON");
    let names: Vec<&str> = bom["components"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|component| component["name"].as_str())
        .collect();
    assert!(names.contains(&"actix-web") && names.contains(&"tokenizers"));
    assert!(
        !names.contains(&"proptest"),
        "dependencies of tests are not in the binary"
    );
    let formula = fs::read_to_string(folder.join("souffleur.rb")).expect("readable");
    let archive = package(folder, "souffleur-", ".tar.gz");
    let name = archive
        .file_name()
        .expect("a name")
        .to_string_lossy()
        .into_owned();
    let sum = sums
        .lines()
        .find(|line| line.ends_with(&name))
        .expect("its sum");
    assert!(
        formula.contains(sum.split(' ').next().expect("a sum")),
        "{formula}"
    );
}
