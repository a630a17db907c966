//! Tests of downloads of models by id, from a fake Hugging Face Hub.

mod commands;
mod fake;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;

use souffleur::hub::{Extent, Hub, HubError, HubModel, HubSettings, Token};

use super::{souffleur, stderr, stdout, tiny_model};
use fake::{COMMIT, FakeHub, Files, HubRequest, OLD_COMMIT, RepoFile, SIGNATURE};

const SECRET: &str = "hf_s3cr3tToken";

/// The tiny model and other files that are common in repositories.
fn tiny_files() -> Files {
    let mut files = Files::new();
    for name in [
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ] {
        let bytes = fs::read(tiny_model().join(name)).expect("a fixture");
        files.insert(name.to_owned(), RepoFile::small(bytes));
    }
    let weights = fs::read(tiny_model().join("model.safetensors")).expect("a fixture");
    files.insert("model.safetensors".to_owned(), RepoFile::large(weights));
    files.insert("README.md".to_owned(), RepoFile::small("read me"));
    files.insert("pytorch_model.bin".to_owned(), RepoFile::large("a pickle"));
    files
}

/// A model with arbitrary bytes as weights, for tests that do not load the model.
fn bare_files(weights: &[u8]) -> Files {
    Files::from([
        ("config.json".to_owned(), RepoFile::small("{}")),
        ("model.safetensors".to_owned(), RepoFile::large(weights)),
    ])
}

/// Adds tokenizer files: a cached model without them counts as incomplete.
fn with_tokenizer(mut files: Files) -> Files {
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        files.insert(name.to_owned(), RepoFile::small("{}"));
    }
    files
}

fn weights() -> Vec<u8> {
    (0..100_000u32).map(|at| (at % 251) as u8).collect()
}

fn settings(hub: &FakeHub, cache: &Path) -> HubSettings {
    HubSettings {
        token: Some(Token::new(SECRET, "the test").expect("the token is printable")),
        first_wait: Duration::ZERO,
        ..HubSettings::new(hub.endpoint.clone(), cache)
    }
}

fn fetch_by(settings: HubSettings, id: &str, revision: Option<&str>) -> Result<PathBuf, HubError> {
    let model = HubModel::parse(id).expect("the id is valid");
    Hub::new(settings).fetch(&model, revision, Extent::Whole, &mut |_| ())
}

fn fetch(hub: &FakeHub, cache: &Path, id: &str) -> Result<PathBuf, HubError> {
    fetch_by(settings(hub, cache), id, None)
}

fn repo_folder(cache: &Path) -> PathBuf {
    cache.join("models--owner--tiny")
}

fn cdn_ranges(requests: &[HubRequest]) -> Vec<Option<&str>> {
    let of_cdn = requests.iter().filter(|request| request.host == "cdn");
    of_cdn.map(|request| request.range.as_deref()).collect()
}

/// Runs the binary against the fake hub, with a separate home folder and without a proxy.
fn run_at(hub: &str, home: &Path, args: &[&str], more: &[(&str, &str)]) -> Output {
    let mut command = souffleur(args);
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        let is_proxy = name.to_lowercase().ends_with("_proxy");
        if is_proxy || name.starts_with("HF_") || name.starts_with("HUGGING") {
            command.env_remove(name);
        }
    }
    command.env("HF_HOME", home).env("HF_ENDPOINT", hub);
    command.envs(more.iter().copied());
    command.output().expect("the binary runs")
}

#[test]
fn a_model_is_downloaded_once_and_the_token_goes_to_the_hub_only() {
    let hub = FakeHub::with("owner/tiny", tiny_files());
    let home = tempfile::tempdir().expect("a temporary folder can be made");
    let plan = ["plan", "--model-path", "owner/tiny", "--log-level", "trace"];
    let run = |more: &[(&str, &str)]| run_at(&hub.endpoint, home.path(), &plan, more);
    let first = run(&[("HF_TOKEN", SECRET)]);
    let text = stdout(&first) + &stderr(&first);
    assert!(first.status.success(), "{text}");
    assert!(
        text.contains("model                 owner/tiny ("),
        "{text}"
    );
    assert!(
        !text.contains(SECRET) && !text.contains(SIGNATURE),
        "{text}"
    );
    let requests = hub.requests();
    for request in &requests {
        let expected = (request.host == "hub").then(|| format!("Bearer {SECRET}"));
        assert_eq!(request.authorization, expected, "{request:?}");
        assert!(!request.path.contains("README"), "{request:?}");
        assert!(!request.path.contains(".bin"), "{request:?}");
    }
    assert_eq!(cdn_ranges(&requests), [None]);
    // The list of files, four small files, and the weights, whose URL at the hub redirects to the CDN.
    assert_eq!(requests.len(), 1 + 4 + 2, "{requests:?}");
    check_layout(&home.path().join("hub"));
    let second = run(&[]);
    assert!(second.status.success(), "{}", stderr(&second));
    let requests = hub.requests();
    assert_eq!(requests.len(), 1, "only the commit of main: {requests:?}");
    assert_eq!(requests[0].authorization, None);
    let offline = run(&[("HF_HUB_OFFLINE", "1")]);
    assert!(offline.status.success(), "{}", stderr(&offline));
    assert!(hub.requests().is_empty());
}

/// Checks that the cache has the layout that huggingface_hub gives the same files.
fn check_layout(cache: &Path) {
    let folder = repo_folder(cache);
    let main = fs::read_to_string(folder.join("refs/main")).expect("the ref is cached");
    assert_eq!(main, COMMIT);
    let files = tiny_files();
    for name in ["config.json", "tokenizer.json", "model.safetensors"] {
        let etag = files[name].etag();
        let link = folder.join("snapshots").join(COMMIT).join(name);
        let bytes = fs::read(&link).expect("the link exists");
        assert!(bytes == files[name].bytes, "{name}");
        assert!(folder.join("blobs").join(&etag).is_file(), "{name}");
        #[cfg(unix)]
        assert_eq!(
            fs::read_link(&link).expect("the file is a link"),
            Path::new("../../blobs").join(etag)
        );
    }
    let blobs = fs::read_dir(folder.join("blobs")).expect("a folder");
    assert_eq!(blobs.count(), 5, "no other files remain");
}

#[test]
fn a_download_resumes_where_it_stopped() {
    let weights = weights();
    let hub = FakeHub::with("owner/tiny", bare_files(&weights));
    let etag = RepoFile::large(weights.clone()).etag();
    let check = |cache: &Path, expected: &[Option<&str>]| {
        let folder = fetch(&hub, cache, "owner/tiny").expect("model downloaded");
        let got = fs::read(folder.join("model.safetensors")).expect("the weights exist");
        assert!(got == weights);
        assert_eq!(cdn_ranges(&hub.requests()), expected);
    };
    // The host closes the connection, and the same run continues the download.
    hub.behaviour().cuts = vec![40_000, 0, 10_000];
    let cache = tempfile::tempdir().expect("a temporary folder can be made");
    let parts = [
        None,
        Some("bytes=40000-"),
        Some("bytes=40000-"),
        Some("bytes=50000-"),
    ];
    check(cache.path(), &parts);
    // A run continues the download of an earlier run.
    let partial = |bytes: &[u8]| {
        let cache = tempfile::tempdir().expect("a temporary folder can be made");
        let blobs = repo_folder(cache.path()).join("blobs");
        fs::create_dir_all(&blobs).expect("writable");
        fs::write(blobs.join(format!("{etag}.incomplete")), bytes).expect("writable");
        cache
    };
    check(partial(&weights[..70_000]).path(), &[Some("bytes=70000-")]);
    // The file is complete but was never renamed.
    check(partial(&weights).path(), &[]);
    // The partial file is longer than the complete one, or has different bytes: the download starts again.
    check(partial(&[1; 100_001]).path(), &[None]);
    check(partial(&[1; 70_000]).path(), &[Some("bytes=70000-"), None]);
    // The host ignores ranges and sends the whole file.
    hub.behaviour().ignores_ranges = true;
    check(partial(&weights[..70_000]).path(), &[Some("bytes=70000-")]);
    // The host refuses the range.
    hub.behaviour().refuses_ranges = true;
    let refused = [Some("bytes=70000-"), None];
    check(partial(&weights[..70_000]).path(), &refused);
}

#[test]
fn downloads_from_a_host_that_keeps_hanging_up_fail() {
    let hub = FakeHub::with("owner/tiny", bare_files(&weights()));
    hub.behaviour().cuts = vec![0; 100];
    let cache = tempfile::tempdir().expect("a temporary folder can be made");
    let error = fetch(&hub, cache.path(), "owner/tiny").expect_err("every download is interrupted");
    let text = error.to_string();
    assert!(!text.contains(SIGNATURE), "{text}");
    assert!(text.ends_with("start again later, the download resumes"));
    assert_eq!(cdn_ranges(&hub.requests()).len(), 5);
    // Attempts that restart at the first byte make no progress either.
    let mut behaviour = hub.behaviour();
    behaviour.cuts = vec![40_000; 100];
    behaviour.ignores_ranges = true;
    drop(behaviour);
    fetch(&hub, cache.path(), "owner/tiny").expect_err("no attempt gets further");
    assert_eq!(cdn_ranges(&hub.requests()).len(), 5);
}

#[test]
fn cached_files_are_neither_locked_nor_rewritten() {
    let hub = FakeHub::with("owner/tiny", bare_files(b"weights"));
    let cache = tempfile::tempdir().expect("a temporary folder can be made");
    let folder = fetch(&hub, cache.path(), "owner/tiny").expect("model downloaded");
    let locks = cache.path().join(".locks");
    let refs = repo_folder(cache.path()).join("refs");
    let entries = fs::read_dir(&refs).expect("a folder");
    assert_eq!(entries.count(), 1, "no other files remain");
    fs::remove_dir_all(&locks).expect("the locks exist");
    let written = || {
        let metadata = fs::metadata(refs.join("main")).expect("the ref exists");
        metadata.modified().expect("a modified time")
    };
    let before = written();
    let again = fetch(&hub, cache.path(), "owner/tiny").expect("the model is cached");
    assert_eq!(again, folder);
    assert_eq!(written(), before);
    if cfg!(unix) {
        assert!(!locks.exists());
    }
}

#[test]
fn redirects_without_metadata_are_followed() {
    let hub = FakeHub::with("owner/tiny", bare_files(b"weights"));
    let mut behaviour = hub.behaviour();
    behaviour.lists_names_only = true;
    behaviour.hides_links = true;
    drop(behaviour);
    let cache = tempfile::tempdir().expect("a temporary folder can be made");
    let folder = fetch(&hub, cache.path(), "owner/tiny").expect("model downloaded");
    let weights = fs::read(folder.join("model.safetensors")).expect("the weights exist");
    assert_eq!(weights, b"weights");
    let requests = hub.requests();
    let mut of_cdn = requests.iter().filter(|request| request.host == "cdn");
    assert!(of_cdn.clone().any(|request| request.method == "HEAD"));
    assert!(of_cdn.all(|request| request.authorization.is_none()));
}

#[test]
fn small_files_over_the_limit_are_refused() {
    let mut files = bare_files(b"weights");
    let config = files.get_mut("config.json").expect("the file exists");
    config.claimed_bytes = Some((64 << 20) + 1);
    let hub = FakeHub::with("owner/tiny", files);
    let cache = tempfile::tempdir().expect("a temporary folder can be made");
    let error = fetch(&hub, cache.path(), "owner/tiny").expect_err("the file is too large");
    let text = error.to_string();
    assert!(
        text.contains("has a config.json of 67108865 bytes, the limit is 67108864"),
        "{text}"
    );
}

#[test]
fn damaged_files_are_deleted() {
    let weights = weights();
    let hub = FakeHub::with("owner/tiny", bare_files(&weights));
    hub.behaviour().damages = true;
    let cache = tempfile::tempdir().expect("a temporary folder can be made");
    let error = fetch(&hub, cache.path(), "owner/tiny").expect_err("the file is damaged");
    let text = error.to_string();
    let etag = RepoFile::large(weights).etag();
    for part in ["model.safetensors: its SHA-256 is ", &etag, "corrupt"] {
        assert!(text.contains(part), "{text}");
    }
    let blobs = fs::read_dir(repo_folder(cache.path()).join("blobs")).expect("a folder");
    assert_eq!(blobs.count(), 1, "only config.json");
    hub.behaviour().damages = false;
    fetch(&hub, cache.path(), "owner/tiny").expect("the files are intact now");
    let mut behaviour = hub.behaviour();
    let key = ("owner/tiny".to_owned(), "main".to_owned());
    let (_, files) = behaviour.repos.get_mut(&key).expect("the repo exists");
    files.insert("config.json".to_owned(), RepoFile::small("[]"));
    drop(behaviour);
    let error = fetch(&hub, cache.path(), "owner/tiny").expect_err("the file has changed");
    assert!(
        error.to_string().contains("config.json: its git SHA-1 is"),
        "{error}"
    );
}

#[test]
fn revisions_are_branches_tags_and_commits() {
    let hub = FakeHub::with("owner/tiny", with_tokenizer(bare_files(b"new")));
    let old = with_tokenizer(bare_files(b"old"));
    hub.put("owner/tiny", "pr/1", OLD_COMMIT, old);
    let cache = tempfile::tempdir().expect("a temporary folder can be made");
    let at = |revision| fetch_by(settings(&hub, cache.path()), "owner/tiny", Some(revision));
    let weights = |folder: PathBuf| {
        let bytes = fs::read(folder.join("model.safetensors")).expect("the weights exist");
        String::from_utf8(bytes).expect("the text is UTF-8")
    };
    assert_eq!(at("pr/1").map(weights).expect("a download"), "old");
    assert_eq!(at("main").map(weights).expect("a download"), "new");
    let cached_ref = fs::read_to_string(repo_folder(cache.path()).join("refs/pr/1"));
    assert_eq!(cached_ref.expect("the ref is cached"), OLD_COMMIT);
    hub.requests();
    assert_eq!(at(OLD_COMMIT).map(weights).expect("a download"), "old");
    assert!(hub.requests().is_empty(), "a commit never changes");
    for (revision, part) in [
        ("v2", "owner/tiny has no revision \"v2\""),
        ("../../x", "--revision is \"../../x\", must be"),
        ("", "--revision is \"\", must be"),
        ("fix#1", "of at most 256 letters, digits, -, _, ., / or +"),
    ] {
        let error = at(revision).expect_err(revision).to_string();
        assert!(error.contains(part), "{error}");
    }
    let offline = HubSettings {
        is_offline: true,
        ..settings(&hub, cache.path())
    };
    let found = fetch_by(offline, "owner/tiny", Some("pr/1"));
    assert_eq!(found.map(weights).expect("the model is cached"), "old");
}

#[test]
fn a_cached_commit_is_requested_again_if_files_may_be_missing() {
    let mut files = with_tokenizer(bare_files(b"weights"));
    for name in ["tiny-Q4_K_M.gguf", "tiny-UD-Q4_K_M.gguf"] {
        files.insert(name.to_owned(), RepoFile::large(name));
    }
    let hub = FakeHub::with("owner/tiny", files);
    let cache = tempfile::tempdir().expect("a temporary folder can be made");
    let snapshot = repo_folder(cache.path()).join("snapshots").join(COMMIT);
    let check = |id: &str, path: &Path, is_requested: bool| {
        let found = fetch_by(settings(&hub, cache.path()), id, Some(COMMIT));
        assert_eq!(found.expect("the model is cached"), path, "{id}");
        assert_eq!(!hub.requests().is_empty(), is_requested, "{id}");
    };
    let ud = snapshot.join("tiny-UD-Q4_K_M.gguf");
    let plain = snapshot.join("tiny-Q4_K_M.gguf");
    check("owner/tiny:UD-Q4_K_M", &ud, true);
    check("owner/tiny:UD-Q4_K_M", &ud, false);
    check("owner/tiny/tiny-UD-Q4_K_M.gguf", &ud, false);
    check("owner/tiny:Q4_K_M", &plain, true);
    check("owner/tiny:Q4_K_M", &plain, false);
    check("owner/tiny", &snapshot, true);
    check("owner/tiny", &snapshot, false);
    // As if a program that needs no tokenizer had filled the cache.
    fs::remove_file(snapshot.join("tokenizer.json")).expect("the tokenizer exists");
    check("owner/tiny", &snapshot, true);
    assert!(snapshot.join("tokenizer.json").is_file());
}

#[test]
fn offline_a_plain_id_selects_the_only_cached_gguf_file() {
    let mut files = Files::new();
    for name in ["tiny-Q4_K_M.gguf", "tiny-Q8_0.gguf"] {
        files.insert(name.to_owned(), RepoFile::large(name));
    }
    let hub = FakeHub::with("owner/tiny", files);
    let cache = tempfile::tempdir().expect("a temporary folder can be made");
    let plain = || {
        let offline = HubSettings {
            is_offline: true,
            ..settings(&hub, cache.path())
        };
        fetch_by(offline, "owner/tiny", None)
    };
    let first = fetch(&hub, cache.path(), "owner/tiny:Q4_K_M").expect("model downloaded");
    assert_eq!(plain().expect("the file is the only one"), first);
    let shard = first.with_file_name("model-00001-of-00002.safetensors");
    fs::write(&shard, "a shard without its index").expect("writable");
    plain().expect_err("safetensors take precedence");
    fs::remove_file(&shard).expect("the shard exists");
    fetch(&hub, cache.path(), "owner/tiny:Q8_0").expect("model downloaded");
    plain().expect_err("two files are cached");
}

#[test]
fn refusals_say_what_to_do() {
    let hub = FakeHub::with("owner/tiny", bare_files(b"weights"));
    let cache = tempfile::tempdir().expect("a temporary folder can be made");
    let without_token = || HubSettings {
        token: None,
        ..settings(&hub, cache.path())
    };
    for (status, code, parts) in [
        (
            401,
            "GatedRepo",
            [
                "is gated: accept its conditions at http://",
                "set HF_TOKEN to",
            ],
        ),
        (
            403,
            "GatedRepo",
            [
                "is gated: accept its conditions at http://",
                "no token was sent",
            ],
        ),
        (
            401,
            "RepoNotFound",
            ["has no model owner/tiny, or denies", "set HF_TOKEN"],
        ),
        (
            404,
            "RepoNotFound",
            ["there is no model owner/tiny at", "no token was sent"],
        ),
        (429, "", ["has no complete copy of ", "answered 429"]),
        (503, "", ["has no complete copy of ", "try again later"]),
    ] {
        hub.behaviour().refusal = Some((status, code));
        let error = fetch_by(without_token(), "owner/tiny", None).expect_err("the hub refuses");
        let text = error.to_string();
        assert!(parts.iter().all(|part| text.contains(part)), "{text}");
    }
    hub.behaviour().refusal = Some((403, "GatedRepo"));
    let error = fetch(&hub, cache.path(), "owner/tiny").expect_err("the hub refuses");
    let text = error.to_string();
    assert!(text.contains("the token that was sent has no"), "{text}");
    assert!(!text.contains(SECRET), "{text}");
}

#[test]
fn a_refusal_by_the_hub_leaves_the_cache_usable() {
    let hub = FakeHub::with("owner/tiny", bare_files(b"weights"));
    let cache = tempfile::tempdir().expect("a temporary folder can be made");
    let folder = fetch(&hub, cache.path(), "owner/tiny").expect("model downloaded");
    let at = |revision| fetch_by(settings(&hub, cache.path()), "owner/tiny", revision);
    for (status, code) in [
        (401, "GatedRepo"),
        (403, "GatedRepo"),
        (401, "RepoNotFound"),
        (403, ""),
        (404, "RepoNotFound"),
        (404, ""),
        (418, ""),
        (500, ""),
    ] {
        hub.behaviour().refusal = Some((status, code));
        for revision in [None, Some(COMMIT)] {
            let found = at(revision).unwrap_or_else(|error| panic!("{status} {code}: {error}"));
            assert_eq!(found, folder, "{status} {code}");
        }
    }
    hub.behaviour().refusal = Some((404, "RevisionNotFound"));
    for revision in [None, Some(COMMIT)] {
        let error = at(revision).expect_err("there is no such revision");
        assert!(error.to_string().contains("has no revision"), "{error}");
    }
}

#[test]
fn without_the_hub_the_cache_is_used_if_it_is_complete() {
    let hub = FakeHub::with("owner/tiny", bare_files(b"weights"));
    let cache = tempfile::tempdir().expect("a temporary folder can be made");
    let offline = || HubSettings {
        is_offline: true,
        ..settings(&hub, cache.path())
    };
    let error = fetch_by(offline(), "owner/tiny", None).expect_err("the model is not cached");
    assert!(
        error
            .to_string()
            .contains("HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE is set: unset"),
        "{error}"
    );
    let folder = fetch(&hub, cache.path(), "owner/tiny").expect("model downloaded");
    let unreachable = || HubSettings {
        // Nothing listens on the port of a closed listener.
        endpoint: {
            let closed = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
            format!("http://{}", closed.local_addr().expect("an address"))
        },
        ..settings(&hub, cache.path())
    };
    let found = fetch_by(unreachable(), "owner/tiny", None).expect("the model is cached");
    assert_eq!(found, folder);
    hub.behaviour().refusal = Some((502, ""));
    let found = fetch(&hub, cache.path(), "owner/tiny").expect("the model is cached");
    assert_eq!(found, folder);
    // As after a partial download by huggingface_hub.
    fs::remove_file(folder.join("model.safetensors")).expect("the weights exist");
    for settings in [offline(), unreachable()] {
        let error = fetch_by(settings, "owner/tiny", None).expect_err("the model is incomplete");
        let text = error.to_string();
        assert!(
            text.contains("has no complete copy of owner/tiny at revision \"main\""),
            "{text}"
        );
    }
}

#[test]
fn a_model_that_does_not_fit_on_the_disk_is_refused_before_it_is_downloaded() {
    if !cfg!(target_os = "linux") {
        return;
    }
    let mut files = bare_files(b"weights");
    let weights = files.get_mut("model.safetensors").expect("the file exists");
    weights.claimed_bytes = Some(1 << 60);
    let hub = FakeHub::with("owner/tiny", files);
    let cache = tempfile::tempdir().expect("a temporary folder can be made");
    let error = fetch(&hub, cache.path(), "owner/tiny").expect_err("the model does not fit");
    let text = error.to_string();
    assert!(
        text.contains(&(1u64 << 60).to_string()) && text.contains("HF_HUB_CACHE"),
        "{text}"
    );
    assert_eq!(cdn_ranges(&hub.requests()).len(), 0);
}

#[test]
fn all_shards_and_parts_are_downloaded_and_shapes_need_no_weights() {
    let index = r#"{"weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors"}}"#;
    let mut files = Files::from([
        ("config.json".to_owned(), RepoFile::small("{}")),
        (
            "model.safetensors.index.json".to_owned(),
            RepoFile::small(index),
        ),
        ("m-1.safetensors".to_owned(), RepoFile::large("one")),
        ("m-2.safetensors".to_owned(), RepoFile::large("two")),
        (
            "m-3.safetensors".to_owned(),
            RepoFile::large("not in the index"),
        ),
    ]);
    for part in 1..=2 {
        let name = format!("Q8_0/tiny-Q8_0-0000{part}-of-00002.gguf");
        files.insert(name, RepoFile::large(format!("part {part}")));
    }
    let hub = FakeHub::with("owner/tiny", files.clone());
    hub.behaviour().lists_names_only = true;
    let cache = tempfile::tempdir().expect("a temporary folder can be made");
    let model = HubModel::parse("owner/tiny").expect("the id is valid");
    let downloader = Hub::new(settings(&hub, cache.path()));
    let folder = downloader
        .fetch(&model, None, Extent::Shape, &mut |_| ())
        .expect("model downloaded");
    let names = |folder: &Path| {
        let entries = fs::read_dir(folder).expect("a folder");
        let names = entries.map(|entry| entry.expect("the entry can be read").file_name());
        let mut names: Vec<_> = names
            .map(|name| name.into_string().expect("text"))
            .collect();
        names.sort();
        names
    };
    assert_eq!(names(&folder), ["config.json"]);
    let mut seen = Vec::new();
    downloader
        .fetch(&model, None, Extent::Whole, &mut |transfer| {
            seen.push((transfer.done_bytes, transfer.all_bytes));
        })
        .expect("model downloaded");
    let whole = ["config.json", "m-1.safetensors", "m-2.safetensors"];
    assert_eq!(names(&folder)[..3], whole);
    assert_eq!(names(&folder).len(), 4);
    assert_eq!(seen.last(), Some(&(6, 6)));
    assert!(seen.is_sorted(), "{seen:?}");
    for id in [
        "owner/tiny:q8_0",
        "owner/tiny/Q8_0/tiny-Q8_0-00002-of-00002.gguf",
    ] {
        let first = fetch(&hub, cache.path(), id).expect("model downloaded");
        assert_eq!(first, folder.join("Q8_0/tiny-Q8_0-00001-of-00002.gguf"));
        let second = first.with_file_name("tiny-Q8_0-00002-of-00002.gguf");
        assert_eq!(fs::read(second).expect("the part exists"), b"part 2");
    }
    files.remove("m-2.safetensors");
    hub.put("owner/tiny", "main", OLD_COMMIT, files);
    let error = fetch(&hub, cache.path(), "owner/tiny").expect_err("a shard is missing");
    assert!(
        error.to_string().contains("has no m-2.safetensors"),
        "{error}"
    );
}

#[test]
fn commands_fail_with_one_line_about_the_id() {
    let hub = FakeHub::with("owner/tiny", bare_files(b"weights"));
    let home = tempfile::tempdir().expect("a temporary folder can be made");
    let dir = tiny_model();
    let local = dir.to_str().expect("the text is UTF-8");
    for (args, code, part) in [
        (
            &["plan", "--model-path", "owner/other"][..],
            1,
            "there is no model owner/other at",
        ),
        (
            &["serve", "--port", "0", "--model-path", "owner/other"],
            1,
            "there is no model",
        ),
        (
            &["generate", "hi", "--model-path", "owner/tiny:Q4_K_M"],
            1,
            "has no GGUF files",
        ),
        (
            &["simulate", "--model-path", "owner/other"],
            1,
            "there is no model owner/other at",
        ),
        (
            &["chat", "--model-path", "owner/tiny", "--revision", "x y"],
            2,
            "--revision is \"x y\"",
        ),
        (
            &["plan", "--model-path", local, "--revision", "main"],
            2,
            "--revision is \"main\", but",
        ),
        (
            &["plan", "--revision", "main"],
            2,
            "--revision is \"main\", but --model-path",
        ),
    ] {
        let output = run_at(&hub.endpoint, home.path(), args, &[]);
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {text}");
        assert!(
            text.contains(part) && text.lines().count() == 1,
            "{args:?}: {text}"
        );
    }
    let bad = [("HF_ENDPOINT", "hub.example")];
    let output = run_at(
        &hub.endpoint,
        home.path(),
        &["plan", "--model-path", "a/b"],
        &bad,
    );
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
}
