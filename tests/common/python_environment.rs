//! Creates the Python environments of tests from requirements files, and keeps the environments in the user's cache.
//! A hash of the requirements and of Python's version names an environment, so a change of either makes a new one.

use std::env;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Attempts to install the packages, because a download may fail.
const INSTALL_TRIES: usize = 2;

/// The interpreter of an environment, or why there is none.
pub type Found = OnceLock<Result<PathBuf, String>>;

/// The Python interpreter of this test binary's environment; `requirements` is a path in the repository. If there is
/// no interpreter, prints the reason and returns `None`, so that tests are skipped; panics if `CI` is set.
pub fn python(requirements: &str) -> Option<&'static Path> {
    static INTERPRETER: Found = Found::new();
    python_at(&INTERPRETER, requirements)
}

/// Like [`python`], for test binaries with several environments; each environment needs a separate `cell`.
pub fn python_at(cell: &'static Found, requirements: &str) -> Option<&'static Path> {
    let requirements = crate::repository::repository().join(requirements);
    match cell.get_or_init(|| find_or_make(&requirements)) {
        Ok(interpreter) => Some(interpreter),
        Err(reason) if env::var_os("CI").is_some() => panic!("CI needs Python: {reason}"),
        Err(reason) => {
            eprintln!("skipped: {reason}");
            None
        }
    }
}

fn find_or_make(requirements: &Path) -> Result<PathBuf, String> {
    let packages = fs::read_to_string(requirements)
        .map_err(|error| format!("{}: {error}", requirements.display()))?;
    let version = run(
        Command::new("python3").args(["-c", "import sys; print(sys.version, sys.base_prefix)"])
    )
    .map_err(|reason| {
        format!("cannot run Python: {reason}: install Python 3.10 or later with its venv module")
    })?;
    let mut hasher = DefaultHasher::new();
    (packages, version).hash(&mut hasher);
    let name = format!("python-{:016x}", hasher.finish());
    let folder = keep(
        &name,
        |folder| interpreter(folder).exists(),
        |unfinished| make(unfinished, requirements),
    )?;
    Ok(interpreter(&folder))
}

/// The folder `name` in the cache. Calls `make` if the folder is missing or incomplete.
pub fn keep(
    name: &str,
    is_whole: impl Fn(&Path) -> bool,
    make: impl FnOnce(&Path) -> Result<(), String>,
) -> Result<PathBuf, String> {
    let cache = cache_dir()?;
    let cache_error = |error: io::Error| {
        format!(
            "{}: {error}: set SOUFFLEUR_PYTHON_ENV to a writable folder",
            cache.display()
        )
    };
    fs::create_dir_all(&cache).map_err(cache_error)?;
    // Locked to the end of this function, so that only one of several test processes makes the folder.
    let lock = File::create(cache.join(format!("{name}.lock"))).map_err(cache_error)?;
    lock.lock().map_err(cache_error)?;
    let whole = cache.join(name);
    if !is_whole(&whole) {
        let unfinished = cache.join(format!("{name}.unfinished"));
        for leftover in [&whole, &unfinished] {
            remove(leftover).map_err(cache_error)?;
        }
        make(&unfinished)?;
        fs::rename(&unfinished, &whole).map_err(cache_error)?;
    }
    Ok(whole)
}

fn make(folder: &Path, requirements: &Path) -> Result<(), String> {
    run(Command::new("python3").args(["-m", "venv"]).arg(folder))
        .map_err(|reason| format!("python3 -m venv fails: {reason}: install its venv module"))?;
    let install = || {
        let mut pip = Command::new(interpreter(folder));
        pip.args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--no-input",
            // The lists include all dependencies; modules that are never imported need no compilation.
            "--no-deps",
            "--no-compile",
        ]);
        run(pip.arg("--requirement").arg(requirements))
    };
    let mut installed = install();
    for _ in 1..INSTALL_TRIES {
        installed = installed.or_else(|_| install());
    }
    installed.map(drop).map_err(|reason| {
        format!(
            "the packages of {} cannot be installed: {reason}",
            requirements.display()
        )
    })
}

fn cache_dir() -> Result<PathBuf, String> {
    let folder = |name| {
        env::var_os(name)
            .map(PathBuf::from)
            .filter(|folder| folder.is_absolute())
    };
    let chosen = folder("SOUFFLEUR_PYTHON_ENV");
    let user = || folder("XDG_CACHE_HOME").or_else(|| Some(folder("HOME")?.join(".cache")));
    chosen
        .or_else(|| Some(user()?.join("souffleur")))
        .ok_or_else(|| {
            "there is no cache folder: set SOUFFLEUR_PYTHON_ENV to a writable folder".to_owned()
        })
}

fn interpreter(environment: &Path) -> PathBuf {
    environment.join("bin/python")
}

fn remove(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

pub fn run(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| error.to_string())?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() {
        Ok(text(&output.stdout))
    } else {
        Err(format!("{}{}", text(&output.stdout), text(&output.stderr)))
    }
}
