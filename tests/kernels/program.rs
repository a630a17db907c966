//! Compiles the C++ tests of kernels, again only if their sources have changed, and runs them.

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Build {
    Plain,
    /// Built with AddressSanitizer, or with the sanitizers that [`SANITIZERS`] names; a finding ends the test.
    Sanitized,
}

/// `SOUFFLEUR_SANITIZERS=address,undefined cargo test --test kernels inside`: programs that also check for undefined
/// behaviour, which takes twice the time.
const SANITIZERS: &str = "SOUFFLEUR_SANITIZERS";

impl Build {
    fn flags(self) -> Vec<String> {
        let flags = match self {
            Self::Plain => vec!["-O2".to_owned()],
            Self::Sanitized => {
                let sanitizers = std::env::var(SANITIZERS);
                let sanitizers = sanitizers.as_deref().unwrap_or("address");
                let sanitize = format!("-fsanitize={sanitizers}");
                vec![
                    "-O1".to_owned(),
                    "-g1".to_owned(),
                    sanitize,
                    "-fno-sanitize-recover=all".to_owned(),
                ]
            }
        };
        [flags, vec!["-w".to_owned()]].concat()
    }
}

pub fn kernels() -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("kernels")
}

/// Compiles a test and returns the program.
///
/// # Panics
/// If the compiler fails, with its messages.
pub fn compile(source: &Path, build: Build) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("emulated");
    fs::create_dir_all(&folder).unwrap();
    let name = source.file_stem().unwrap().to_string_lossy().into_owned();
    let prefix = format!("{name}-{build:?}-");
    let program = folder.join(format!("{prefix}{:016x}", fingerprint(source, build)));
    // Several tests run the same program: one of them compiles it.
    let lock = lock_of(&program);
    let _held = lock.lock().unwrap_or_else(|held| held.into_inner());
    if !program.exists() {
        remove_older(&folder, &prefix);
        let unfinished = folder.join(format!("{prefix}unfinished"));
        let mut compiler = souffleur_cusim::compiler(&kernels());
        compiler
            .args(build.flags())
            .arg("-o")
            .arg(&unfinished)
            .arg(source);
        let output = compiler
            .output()
            .unwrap_or_else(|error| panic!("{compiler:?}: {error}"));
        assert!(output.status.success(), "{}", text_of(&output));
        fs::rename(&unfinished, &program).unwrap();
    }
    program
}

fn lock_of(program: &Path) -> Arc<Mutex<()>> {
    static LOCKS: Mutex<BTreeMap<PathBuf, Arc<Mutex<()>>>> = Mutex::new(BTreeMap::new());
    let mut locks = LOCKS.lock().unwrap();
    locks.entry(program.to_owned()).or_default().clone()
}

/// Removes older programs of the test.
fn remove_older(folder: &Path, prefix: &str) {
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        if entry.file_name().to_string_lossy().starts_with(prefix) {
            fs::remove_file(entry.path()).unwrap();
        }
    }
}

pub fn run(program: &Path, variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(program);
    // Memory that the emulator frees only at the end of the process is not reported as a leak.
    command.env("ASAN_OPTIONS", "detect_leaks=0");
    command.envs(variables.iter().copied());
    command
        .output()
        .unwrap_or_else(|error| panic!("{}: {error}", program.display()))
}

pub fn text_of(output: &Output) -> String {
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    text(&output.stdout) + &text(&output.stderr)
}

/// The files of a folder with this extension, by name.
pub fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let entries =
        fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut found: Vec<_> = entries
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|own| own == extension))
        .collect();
    found.sort();
    found
}

/// A hash of all files that a test is compiled from.
fn fingerprint(source: &Path, build: Build) -> u64 {
    let kernels = kernels();
    let emulator = kernels.join("cusim");
    let tests = source.parent().unwrap();
    let mut inputs = vec![source.to_owned()];
    for (folder, extension) in [
        (&*kernels, "cu"),
        (&kernels, "cuh"),
        (&emulator, "h"),
        (tests, "h"),
    ] {
        inputs.extend(files(folder, extension));
    }
    let mut hasher = DefaultHasher::new();
    build.flags().hash(&mut hasher);
    for input in inputs {
        (input.file_name(), fs::read(&input).unwrap()).hash(&mut hasher);
    }
    hasher.finish()
}
