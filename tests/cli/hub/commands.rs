//! Tests of `souffleur pull`, `list` and `rm`.

use super::*;

const QUANTISED: &str = "tiny-Q4_K_M.gguf";

fn files() -> Files {
    let mut files = tiny_files();
    for name in [QUANTISED, "tiny-Q8_0.gguf"] {
        files.insert(name.to_owned(), RepoFile::large(name.repeat(1000)));
    }
    files
}

fn ok(output: &Output) -> String {
    assert!(output.status.success(), "{}", stderr(output));
    stdout(output)
}

#[test]
fn models_are_pulled_listed_and_deleted() {
    let hub = FakeHub::with("owner/tiny", files());
    let home = tempfile::tempdir().expect("a temporary folder can be made");
    let run = |args: &[&str]| run_at(&hub.endpoint, home.path(), args, &[]);
    let nothing = ok(&run(&["list"]));
    assert!(nothing.contains("souffleur pull"), "{nothing}");
    let pulled = ok(&run(&["pull", "owner/tiny"]));
    assert!(pulled.contains("souffleur run owner/tiny"), "{pulled}");
    ok(&run(&["pull", "owner/tiny:Q4_K_M"]));
    let listed = ok(&run(&["list"]));
    let ids: Vec<&str> = listed
        .lines()
        .skip(2)
        .filter_map(|line| line.split('|').nth(1))
        .collect();
    let ids: Vec<&str> = ids.into_iter().map(str::trim).collect();
    assert_eq!(
        ids,
        ["owner/tiny", "owner/tiny/tiny-Q4_K_M.gguf"],
        "{listed}"
    );
    // An id that `list` shows is a model.
    ok(&run(&["plan", ids[0]]));
    let blobs = || fs::read_dir(repo_folder(&home.path().join("hub")).join("blobs"));
    let before = blobs().expect("a folder").count();
    ok(&run(&["rm", ids[1]]));
    assert_eq!(blobs().expect("a folder").count(), before - 1);
    assert!(!ok(&run(&["list"])).contains(QUANTISED));
    let again = run(&["rm", ids[1]]);
    assert_eq!(again.status.code(), Some(1));
    assert!(
        stderr(&again).contains("souffleur list"),
        "{}",
        stderr(&again)
    );
    ok(&run(&["rm", "owner/tiny"]));
    assert!(blobs().is_err());
    assert!(ok(&run(&["list"])).contains("no models"));
}

#[test]
fn a_gguf_model_is_pulled_and_deleted_with_one_tower() {
    let mut files = files();
    for name in ["mmproj-F16.gguf", "mmproj-F32.gguf"] {
        files.insert(name.to_owned(), RepoFile::large(name.repeat(1000)));
    }
    let hub = FakeHub::with("owner/tiny", files);
    let home = tempfile::tempdir().expect("a temporary folder can be made");
    let run = |args: &[&str]| run_at(&hub.endpoint, home.path(), args, &[]);
    let snapshots = repo_folder(&home.path().join("hub")).join("snapshots");
    let has = |name: &str| snapshots.join(COMMIT).join(name).exists();
    for quantisation in ["Q4_K_M", "Q8_0"] {
        ok(&run(&["pull", &format!("owner/tiny:{quantisation}")]));
        assert!(has("mmproj-F16.gguf") && !has("mmproj-F32.gguf"));
    }
    ok(&run(&["rm", "owner/tiny/tiny-Q8_0.gguf"]));
    assert!(has(QUANTISED) && has("mmproj-F16.gguf"));
    ok(&run(&["rm", &format!("owner/tiny/{QUANTISED}")]));
    assert!(!has(QUANTISED) && !has("mmproj-F16.gguf"));
}

#[test]
fn an_interrupted_download_is_listed_as_not_complete_and_a_running_one_is_not_deleted() {
    let hub = FakeHub::with("owner/tiny", with_tokenizer(bare_files(&weights())));
    let home = tempfile::tempdir().expect("a temporary folder can be made");
    let cache = home.path().join("hub");
    let run = |args: &[&str]| run_at(&hub.endpoint, home.path(), args, &[]);
    ok(&run(&["pull", "owner/tiny"]));
    let locks = cache.join(".locks/models--owner--tiny");
    let lock = fs::read_dir(&locks).expect("locks").next().expect("a lock");
    let lock = fs::File::open(lock.expect("an entry").path()).expect("readable");
    lock.lock().expect("free");
    let refused = run(&["rm", "owner/tiny"]);
    assert!(
        stderr(&refused).contains("another process"),
        "{}",
        stderr(&refused)
    );
    drop(lock);
    let snapshot = repo_folder(&cache).join("snapshots").join(COMMIT);
    fs::remove_file(snapshot.join("config.json")).expect("a link");
    let listed = ok(&run(&["list"]));
    assert!(listed.contains("not complete"), "{listed}");
}

#[test]
fn files_outside_the_cache_are_kept_when_a_model_is_deleted() {
    let hub = FakeHub::with("owner/tiny", files());
    let home = tempfile::tempdir().expect("a temporary folder can be made");
    let run = |args: &[&str]| run_at(&hub.endpoint, home.path(), args, &[]);
    ok(&run(&["pull", "owner/tiny:Q4_K_M"]));
    let outside = home.path().join("mine.gguf");
    fs::write(&outside, "mine").expect("writable");
    let repo = repo_folder(&home.path().join("hub"));
    let link = repo.join("snapshots").join(COMMIT).join(QUANTISED);
    fs::remove_file(&link).expect("a link");
    std::os::unix::fs::symlink(&outside, &link).expect("a new link");
    ok(&run(&["rm", &format!("owner/tiny/{QUANTISED}")]));
    assert!(fs::symlink_metadata(&link).is_err());
    assert_eq!(fs::read_to_string(&outside).expect("kept"), "mine");
}

#[test]
fn a_name_that_is_no_id_is_refused() {
    let home = tempfile::tempdir().expect("a temporary folder can be made");
    for command in ["pull", "rm"] {
        let refused = run_at("http://127.0.0.1:1", home.path(), &[command, "qwen"], &[]);
        assert_eq!(refused.status.code(), Some(2));
        assert!(
            stderr(&refused).contains("owner/name"),
            "{}",
            stderr(&refused)
        );
    }
}
