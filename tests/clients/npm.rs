//! Installs programs from npm, unmodified, into the tests' cache, and runs them with separate home folders.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::environment::{keep, run};

/// Timeout of one run. A run usually takes some seconds.
const RUN_TIMEOUT: Duration = Duration::from_secs(120);

/// Installs a package such as `@scope/package@1.2.3`, removes unneeded files with `trim`, and returns the package's
/// program `name`; `None` outside of CI, if npm is missing or cannot install it.
pub fn program(
    package: &str,
    name: &str,
    trim: fn(&Path) -> Result<(), String>,
) -> Option<PathBuf> {
    let program_in = |folder: &Path| folder.join("node_modules/.bin").join(name);
    let installed = installed(package, |folder| program_in(folder).exists(), trim);
    installed.map(|folder| program_in(&folder))
}

/// Installs a package as [`program`] does, and returns the folder of the modules; `file` is one of the package's files.
pub fn modules(package: &str, file: &str) -> Option<PathBuf> {
    let modules_in = |folder: &Path| folder.join("node_modules");
    let is_whole = |folder: &Path| modules_in(folder).join(file).exists();
    installed(package, is_whole, |_| Ok(())).map(|folder| modules_in(&folder))
}

/// The folder of an installed package; `None` as for [`program`].
fn installed(
    package: &str,
    is_whole: impl Fn(&Path) -> bool,
    trim: fn(&Path) -> Result<(), String>,
) -> Option<PathBuf> {
    let kept = package.replace(['@', '/'], "-");
    let installed = keep(kept.trim_matches('-'), is_whole, |folder| {
        let npm = run(Command::new("npm").arg("--version"));
        npm.map_err(|reason| format!("cannot run npm to install {package}: {reason}"))?;
        install(folder, package)?;
        trim(folder)
    });
    match installed {
        Ok(folder) => Some(folder),
        Err(reason) if env::var_os("CI").is_some() => panic!("CI needs the package: {reason}"),
        Err(reason) => {
            eprintln!("skipped: {reason}");
            None
        }
    }
}

fn install(folder: &Path, package: &str) -> Result<(), String> {
    fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut npm = Command::new("npm");
    npm.args(["install", "--no-audit", "--no-fund", "--prefix"])
        .args([folder.as_os_str(), package.as_ref()]);
    run(&mut npm).map_err(|reason| format!("{package} cannot be installed: {reason}"))?;
    Ok(())
}

/// A home folder that contains only a working directory.
pub fn home() -> TempDir {
    let home = TempDir::new().expect("a folder can be made");
    fs::create_dir(home.path().join("work")).expect("the home is writable");
    home
}

/// Runs a program in this home and returns its output. The program inherits only the path from this process's
/// environment.
pub fn finish(mut program: Command, home: &Path, environment: &[(&str, &str)]) -> String {
    let (stdout, stderr) = (home.join("stdout"), home.join("stderr"));
    let file = |path: &Path| fs::File::create(path).expect("the home is writable");
    program
        .current_dir(home.join("work"))
        .env_clear()
        .env("PATH", env::var_os("PATH").unwrap_or_default())
        .env("HOME", home)
        // Keeps the program from checking for updates: no proxy listens on this port.
        .env("HTTPS_PROXY", "http://127.0.0.1:9")
        .env("NO_PROXY", "127.0.0.1")
        .envs(environment.iter().copied())
        .stdin(Stdio::null())
        .stdout(file(&stdout))
        .stderr(file(&stderr));
    let mut child = program.spawn().expect("the program runs");
    let began = Instant::now();
    let read = |path| fs::read_to_string(path).expect("the output can be read");
    let status = loop {
        if let Some(status) = child.try_wait().expect("the program can be waited for") {
            break status;
        }
        if began.elapsed() > RUN_TIMEOUT {
            let _ = child.kill();
            let _ = child.wait();
            panic!("timed out: {}{}", read(&stdout), read(&stderr));
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    let printed = read(&stdout);
    assert!(status.success(), "{printed}{}", read(&stderr));
    printed
}

/// A tool call as the scripted model writes it.
pub fn call(tool: &str, arguments: &serde_json::Value) -> String {
    format!("<tool_call>\n{{\"name\": \"{tool}\", \"arguments\": {arguments}}}\n</tool_call>")
}
