//! Tests that stored blocks are found only by servers that compute the same bits, and only in the same namespace.

use std::fs;
use std::path::Path;

use souffleur::kernels::cpu::Isa;
use tempfile::TempDir;

use crate::server::{Answer, Launch, Output};
use crate::{STORED_TOKENS, model, prompt};

/// A folder with the blocks of one prompt, the launch that fills it, and the output.
struct StoredPrompt {
    folder: TempDir,
    launch: Launch,
    output: Output,
}

impl StoredPrompt {
    fn new(model: &Path) -> Self {
        let folder = TempDir::new().expect("a folder can be made");
        let launch = Launch::new(model).with_store(folder.path());
        let server = launch.start_serving();
        let output = server.ask(&prompt(1)).output;
        server.wait_until_written(STORED_TOKENS);
        server.kill();
        Self {
            folder,
            launch,
            output,
        }
    }

    /// Sends the prompt to a new run of the server.
    fn ask(&self, launch: &Launch) -> Answer {
        launch.start_serving().ask(&prompt(1))
    }

    /// Checks that the original launch finds the blocks.
    fn assert_found(&self) {
        let found = self.ask(&self.launch);
        assert_eq!((found.stored, &found.output), (STORED_TOKENS, &self.output));
    }
}

/// The output of a server without a store.
fn computed(launch: &Launch) -> Output {
    launch.start().ask(&prompt(1)).output
}

#[test]
fn another_type_block_size_or_kernel_path_loads_nothing() {
    let model = model("qwen3");
    let stored = StoredPrompt::new(&model);
    let flags: [&[&str]; 5] = [
        &["--kv-cache-dtype", "int8"],
        &["--kv-cache-dtype", "float32"],
        &["--dtype", "float32"],
        &["--quantization", "int8"],
        // With pages of this size, a block is a page.
        &["--page-size", "128"],
    ];
    let with_flags = flags.map(|flags| Launch::new(&model).args(flags));
    let mut others = with_flags.to_vec();
    let chosen = Isa::chosen().expect("a path that this machine has");
    let paths = Isa::available().into_iter().filter(|isa| *isa != chosen);
    others.extend(paths.map(|isa| Launch::new(&model).with_isa(isa)));
    for (index, other) in others.into_iter().enumerate() {
        let expected = computed(&other);
        let found = stored.ask(&other.with_store(stored.folder.path()));
        assert_eq!(found.stored, 0, "other {index}");
        assert_eq!(found.output, expected, "other {index}");
    }
    stored.assert_found();
}

#[test]
fn flags_that_change_no_bit_find_all_stored_blocks() {
    let stored = StoredPrompt::new(&model("qwen3"));
    let flags: [&[&str]; 5] = [
        &["--page-size", "16"],
        &["--page-size", "64", "--chunked-prefill-size", "64"],
        &["--max-total-tokens", "2048"],
        &["--context-length", "200", "--schedule-policy", "lpm"],
        &["--kv-write-policy", "write_through_selective"],
    ];
    for flags in flags {
        let found = stored.ask(&stored.launch.clone().args(flags));
        assert_eq!(found.stored, STORED_TOKENS, "{flags:?}");
        assert_eq!(found.output, stored.output, "{flags:?}");
    }
}

fn copy_folder(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).expect("the folder exists") {
        let entry = entry.expect("the entry can be read");
        fs::copy(entry.path(), to.join(entry.file_name())).expect("the file can be written");
    }
}

#[test]
fn other_weights_under_the_same_name_load_nothing() {
    let folder = TempDir::new().expect("a folder can be made");
    copy_folder(&model("qwen3"), folder.path());
    let stored = StoredPrompt::new(folder.path());
    let file = folder.path().join("model.safetensors");
    let weights = fs::read(&file).expect("the file exists");
    let mut changed = weights.clone();
    // Flips the lowest mantissa bit of the last value: the smallest possible change.
    let last = changed.len() - 2;
    changed[last] ^= 1;
    fs::write(&file, &changed).expect("the file can be written");
    let expected = computed(&Launch::new(folder.path()));
    let found = stored.ask(&stored.launch);
    assert_eq!((found.stored, found.output), (0, expected));
    // A copy of the first weights in another folder counts as the same model.
    let elsewhere = TempDir::new().expect("a folder can be made");
    copy_folder(folder.path(), elsewhere.path());
    let copied = elsewhere.path().join("model.safetensors");
    fs::write(copied, &weights).expect("the file can be written");
    let launch = Launch::new(elsewhere.path()).with_store(stored.folder.path());
    let found = stored.ask(&launch);
    assert_eq!(
        (found.stored, &found.output),
        (STORED_TOKENS, &stored.output)
    );
}

#[test]
fn ranks_find_the_blocks_of_as_many_ranks_only() {
    let (model, folder) = (model("qwen3"), TempDir::new());
    let folder = folder.expect("a folder can be made");
    let on_ranks = |count: &str| Launch::new(&model).args(&["--tp-size", count]);
    let launch = on_ranks("2").with_store(folder.path());
    let server = launch.start_serving();
    let output = server.ask(&prompt(1)).output;
    server.wait_until_written(STORED_TOKENS);
    server.kill();
    for other in ["1", "4"] {
        let without_store = on_ranks(other);
        let expected = computed(&without_store);
        let server = without_store.with_store(folder.path()).start_serving();
        let found = server.ask(&prompt(1));
        assert_eq!((found.stored, found.output), (0, expected), "{other} ranks");
    }
    let found = launch.start_serving().ask(&prompt(1));
    assert_eq!((found.stored, found.output), (STORED_TOKENS, output));
}

#[test]
fn a_salt_separates_users_across_a_restart() {
    let folder = TempDir::new().expect("a folder can be made");
    let launch = Launch::new(&model("qwen3")).with_store(folder.path());
    let first = launch.start_serving();
    let output = first.ask_salted(&prompt(1), "a").output;
    first.wait_until_written(STORED_TOKENS);
    first.kill();
    // Each request is the first after a start: later prompts are not loaded if recomputing them is as fast.
    let ask_after_restart = |salt| launch.start_serving().ask_salted(&prompt(1), salt);
    for other in ["b", ""] {
        let other = ask_after_restart(other);
        assert_eq!((other.stored, &other.output), (0, &output));
    }
    let same = ask_after_restart("a");
    assert_eq!((same.stored, same.output), (STORED_TOKENS, output));
}

#[test]
fn without_the_secret_of_the_store_nothing_is_found() {
    let stored = StoredPrompt::new(&model("qwen3"));
    let secret = stored.folder.path().join("secret");
    for other in [None, Some([7; 32])] {
        match other {
            None => fs::remove_file(&secret),
            Some(bytes) => fs::write(&secret, bytes),
        }
        .expect("the secret can be changed");
        let server = stored.launch.start_serving();
        let found = server.ask(&prompt(1));
        assert_eq!((found.stored, &found.output), (0, &stored.output));
        server.wait_until_written(STORED_TOKENS);
        server.kill();
        stored.assert_found();
    }
}
