//! Tests of unusable store folders: the engine serves without a store and logs the reason. Invalid flags are refused.

use std::fs;
use std::path::Path;

use tempfile::TempDir;

use crate::server::{Launch, Output};
use crate::{BLOCK_TOKENS, STORED_TOKENS, model, prompt};

fn computed(seed: u32) -> Output {
    Launch::new(&model("qwen3"))
        .start()
        .ask(&prompt(seed))
        .output
}

fn launch(folder: &Path) -> Launch {
    Launch::new(&model("qwen3")).with_store(folder)
}

#[test]
fn a_second_engine_on_the_same_folder_serves_without_a_store_and_logs_why() {
    let folder = TempDir::new().expect("a folder can be made");
    let first = launch(folder.path()).start_serving();
    let output = first.ask(&prompt(1)).output;
    first.wait_until_written(STORED_TOKENS);
    let second = launch(folder.path()).start();
    // The second engine answers while it waits for the folder, and after that wait has timed out.
    assert_eq!(second.ask(&prompt(1)).output, output);
    second.wait_until("the second engine gives up", || {
        second.log().contains("another engine uses the KV store")
    });
    assert_eq!(second.store()["serves"], false);
    let other = second.ask(&prompt(2));
    assert_eq!((other.stored, other.output), (0, computed(2)));
    assert_eq!(second.written_tokens(), 0);
    second.kill();
    // The first engine is unaffected.
    first.ask(&prompt(3));
    first.wait_until_written(2 * STORED_TOKENS);
    first.kill();
    assert_eq!(
        launch(folder.path()).start_serving().ask(&prompt(1)).stored,
        STORED_TOKENS
    );
}

#[test]
fn a_killed_engine_leaves_its_folder_to_the_next_at_once() {
    let folder = TempDir::new().expect("a folder can be made");
    for _ in 0..3 {
        let server = launch(folder.path()).start_serving();
        assert!(!server.log().contains("another engine"), "{}", server.log());
        server.kill();
    }
}

#[test]
fn a_disk_that_is_full_keeps_what_fits_and_the_engine_serves() {
    let folder = TempDir::new().expect("a folder can be made");
    // One record of 36 KiB and the beginning of the next.
    let full = launch(folder.path()).limit_files(2 * 40).start_serving();
    assert_eq!(full.ask(&prompt(1)).output, computed(1));
    full.wait_until("a write fails", || {
        let unwritten = "souffleur_kv_store_unwritten_tokens_total";
        full.metric(unwritten, "failed") > 0.0
    });
    assert_eq!(full.ask(&prompt(2)).output, computed(2));
    full.kill();
    let unlimited = launch(folder.path()).start_serving();
    let found = unlimited.ask(&prompt(1));
    assert_eq!((found.stored, found.output), (BLOCK_TOKENS, computed(1)));
    assert_eq!(unlimited.damages(), 0);
}

/// Checks that the engine serves without a store, and logs the reason.
#[track_caller]
fn check_serves_without_store(folder: &Path, reason: &str) {
    let server = launch(folder).start();
    server.wait_until("the log has the reason", || server.log().contains(reason));
    let answer = server.ask(&prompt(1));
    assert_eq!((answer.stored, answer.output), (0, computed(1)));
    assert_eq!(server.store()["serves"], false);
}

#[test]
fn a_folder_that_cannot_be_made_leaves_the_engine_serving() {
    let folder = TempDir::new().expect("a folder can be made");
    let file = folder.path().join("file");
    fs::write(&file, "no folder").expect("the file can be written");
    check_serves_without_store(&file, "failed to open the KV store");
    check_serves_without_store(&file.join("inside"), "failed to open the KV store");
    if cfg!(target_os = "linux") {
        check_serves_without_store(Path::new("/proc/souffleur-kv"), "failed to open");
    }
}

#[cfg(unix)]
#[test]
fn a_folder_that_cannot_be_written_leaves_the_engine_serving() {
    use std::os::unix::fs::PermissionsExt;

    let folder = TempDir::new().expect("a folder can be made");
    let mode = |mode| {
        let permissions = fs::Permissions::from_mode(mode);
        fs::set_permissions(folder.path(), permissions).expect("the mode can be set");
    };
    mode(0o500);
    let may_write = fs::write(folder.path().join("probe"), "").is_ok();
    if may_write {
        eprintln!("skipped: this user may write to any folder");
    } else {
        check_serves_without_store(folder.path(), "failed to open the KV store");
    }
    mode(0o700);
}

#[test]
fn flags_that_are_invalid_for_a_store_are_refused() {
    let folder = TempDir::new().expect("a folder can be made");
    let refused: [(&[&str], &[&str]); 5] = [
        (
            &["--page-size", "48"],
            &["kv-disk-path", "page_size is 48", "64"],
        ),
        (
            &["--disable-radix-cache"],
            &["kv-disk-path", "disable_radix_cache", "unset one"],
        ),
        (&["--kv-disk-bytes", "1000"], &["kv-disk-bytes", "1000"]),
        (
            &["--kv-host-bytes", "65536"],
            &["kv_host_bytes", "65536", "raise"],
        ),
        (
            &["--kv-write-policy", "write_back"],
            &["kv-write-policy", "write_back", "write_through"],
        ),
    ];
    for (flags, parts) in refused {
        // Two blocks of this model take more than the 65536 bytes in one of the cases.
        let launch = Launch::new(&model("souffleur-tiny")).with_store(folder.path());
        let log = launch.args(flags).refused();
        for part in parts {
            assert!(log.contains(part), "{flags:?}: {part:?} is not in\n{log}");
        }
    }
    // A refused start leaves no files.
    let left = fs::read_dir(folder.path()).expect("a folder").count();
    assert_eq!(left, 0);
}
