//! Tests that Python's `huggingface_hub` and this engine share one cache, where each finds the other's downloads.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use souffleur::hub::{Extent, Hub, HubModel, HubSettings};

use crate::fake_hub::{FakeHub, Files, RepoFile};
use crate::python::interpreter;

const SNAPSHOT: &str =
    "import huggingface_hub as hub; print(hub.snapshot_download('owner/tiny'), end='')";
const ONE_FILE: &str = "import huggingface_hub as hub; \
                        print(hub.hf_hub_download('owner/tiny', 'model.safetensors'), end='')";

type Variables = Vec<(&'static str, OsString)>;

fn files() -> Files {
    let small = ["config.json", "tokenizer.json", "tokenizer_config.json"];
    let small = small.map(|name| {
        (
            name.to_owned(),
            RepoFile::small(format!("{{\"{name}\": 1}}")),
        )
    });
    let mut files = Files::from(small);
    let weights = RepoFile::large([7; 100_000]);
    files.insert("model.safetensors".to_owned(), weights);
    files
}

fn variables(hub: &FakeHub, more: &[(&'static str, &Path)]) -> Variables {
    let mut variables = vec![
        ("HF_ENDPOINT", OsString::from(&hub.endpoint)),
        ("HF_TOKEN", OsString::from("hf_shared")),
    ];
    variables.extend(more.iter().map(|(name, value)| (*name, value.into())));
    variables
}

/// The path that a line of Python prints.
fn run_python(python: &Path, line: &str, variables: &Variables) -> PathBuf {
    let mut command = Command::new(python);
    for (name, _) in std::env::vars_os() {
        let lower = name.to_string_lossy().to_lowercase();
        if lower.ends_with("_proxy") || lower.starts_with("hf_") {
            command.env_remove(name);
        }
    }
    command.args(["-c", line]).envs(variables.iter().cloned());
    let output = command.output().expect("the interpreter runs");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    PathBuf::from(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn engine_fetch(variables: &Variables) -> PathBuf {
    let settings = HubSettings::from_variables(|name| {
        let mut values = variables.iter().filter(|(known, _)| *known == name);
        values.next().map(|(_, value)| value.clone())
    });
    let model = HubModel::parse("owner/tiny").expect("the id is valid");
    let hub = Hub::new(settings.expect("the variables are valid"));
    let fetched = hub.fetch(&model, None, Extent::Whole, &mut |_| ());
    fetched.expect("model downloaded")
}

/// Links and contents below the folders of a repository.
fn layout(cache: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let repo = cache.join("models--owner--tiny");
    let mut folders: Vec<PathBuf> = ["blobs", "refs", "snapshots"]
        .map(|name| repo.join(name))
        .into();
    let mut found = BTreeMap::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("the entry can be read").path();
            let value = match fs::read_link(&path) {
                Ok(target) => format!("-> {}", target.display()).into_bytes(),
                Err(_) if path.is_dir() => {
                    folders.push(path);
                    continue;
                }
                Err(_) => fs::read(&path).expect("the entry can be read"),
            };
            let name = path.strip_prefix(&repo).expect("a path in the repository");
            found.insert(name.to_owned(), value);
        }
    }
    found
}

#[test]
fn a_cache_is_shared_with_huggingface_hub() {
    let Some(python) = interpreter() else {
        return;
    };
    let hub = FakeHub::with("owner/tiny", files());
    let dir = tempfile::tempdir().expect("a temporary folder can be made");
    let (python_dir, engine_dir) = (dir.path().join("python"), dir.path().join("engine"));
    let (home, cache) = (("HF_HOME", &*python_dir), ("HF_HUB_CACHE", &*engine_dir));
    // Both download the model. `HF_HOME` and `HF_HUB_CACHE` are two ways to set the location of the cache.
    let snapshot = run_python(python, SNAPSHOT, &variables(&hub, &[home]));
    let downloaded = engine_fetch(&variables(&hub, &[home, cache]));
    assert_eq!(layout(&python_dir.join("hub")), layout(&engine_dir));
    let requests = hub.requests();
    // huggingface_hub requests this path without a token.
    let of_hub = requests
        .iter()
        .filter(|request| request.host == "hub" && request.path != "/api/agent-harnesses");
    for request in of_hub {
        let shown = request.authorization.as_deref();
        assert_eq!(shown, Some("Bearer hf_shared"), "{request:?}");
    }
    // Each reads the download of the other and sends no request.
    let offline = ("HF_HUB_OFFLINE", Path::new("1"));
    assert_eq!(engine_fetch(&variables(&hub, &[home, offline])), snapshot);
    let in_engine_dir = variables(&hub, &[home, cache, offline]);
    assert_eq!(run_python(python, SNAPSHOT, &in_engine_dir), downloaded);
    let weights = downloaded.join("model.safetensors");
    assert_eq!(run_python(python, ONE_FILE, &in_engine_dir), weights);
    assert!(hub.requests().is_empty());
    // With the hub reachable, nothing is downloaded again.
    engine_fetch(&variables(&hub, &[home]));
    run_python(python, ONE_FILE, &variables(&hub, &[home, cache]));
    assert!(hub.requests().iter().all(|request| request.host == "hub"));
}
