//! Tests that, after a kill, a prompt with K/V from the store gives the same tokens and log probabilities as a computed
//! prompt, bit for bit.

use souffleur::kernels::cpu::Isa;
use tempfile::TempDir;

use crate::kernel_paths::say;
use crate::server::Launch;
use crate::{BLOCK_TOKENS, STORED_TOKENS, model, prompt, runs_all_cases};

/// Models without recurrent states: dense, with latent attention, sliding windows, attention sinks, layers that share
/// K/V, and experts.
const WITHOUT_STATES: [&str; 9] = [
    "souffleur-tiny",
    "qwen3",
    "deepseek-v2",
    "glm4-moe-lite",
    "gemma2",
    "mistral",
    "gpt-oss",
    "gemma4",
    "qwen3-moe",
];
/// Models with recurrent states.
const WITH_STATES: [&str; 3] = ["lfm2", "qwen3-5", "qwen3-next"];
const PAGE_SIZES: [u32; 3] = [1, 16, 64];
/// The models and page sizes that the tests cover if `SOUFFLEUR_RESTART_KILLS` is not set.
const DEFAULT_CASES: [(&str, u32); 11] = [
    ("souffleur-tiny", 1),
    ("souffleur-tiny", 16),
    ("souffleur-tiny", 64),
    ("deepseek-v2", 1),
    ("deepseek-v2", 64),
    ("gemma2", 16),
    ("gpt-oss", 64),
    ("gemma4", 1),
    ("lfm2", 16),
    ("qwen3-5", 1),
    ("qwen3-5", 64),
];

fn check(name: &str, page_size: u32, isa: Isa) {
    let what = format!("{name}, pages of {page_size}, {}", isa.name());
    let folder = TempDir::new().expect("a folder can be made");
    let launch = Launch::new(&model(name)).with_store(folder.path());
    let launch = launch.with_page_size(page_size).with_isa(isa);
    let first = launch.start_serving();
    let expected = first.ask(&prompt(1));
    assert_eq!((expected.device, expected.stored), (0, 0), "{what}");
    first.wait_until_written(STORED_TOKENS);
    first.kill();
    let second = launch.start_serving();
    let got = second.ask(&prompt(1));
    assert_eq!(got.output, expected.output, "{what}");
    assert_eq!((got.device, second.damages()), (0, 0), "{what}");
    let source = r#"cache_source="storage_file""#;
    let counted = second.metric("sglang:cached_tokens_total", source);
    assert_eq!(counted as u64, got.stored, "{what}");
    let again = second.ask(&prompt(1));
    assert_eq!(again.output, expected.output, "{what}");
    if WITH_STATES.contains(&name) {
        // The loaded tokens end with a block for which a state was saved.
        let is_block = got.stored.is_multiple_of(BLOCK_TOKENS) && got.stored <= STORED_TOKENS;
        assert!(got.stored > 0 && is_block, "{what}: {}", got.stored);
    } else {
        assert_eq!(got.stored, STORED_TOKENS, "{what}");
        // The loaded blocks are in memory now, and are not loaded again.
        let is_cached = again.device >= STORED_TOKENS && again.stored == 0;
        assert!(is_cached, "{what}: {again:?}");
    }
}

#[test]
fn a_prompt_has_the_same_output_after_a_kill() {
    let path = Isa::chosen().unwrap_or_else(|error| panic!("{error}"));
    if !runs_all_cases() {
        for (name, page_size) in DEFAULT_CASES {
            check(name, page_size, path);
        }
        return;
    }
    for name in WITHOUT_STATES.into_iter().chain(WITH_STATES) {
        for page_size in PAGE_SIZES {
            check(name, page_size, path);
        }
    }
}

#[test]
fn every_kernel_path_gives_the_same_output_after_a_kill() {
    let available = Isa::available();
    for isa in Isa::ALL {
        if !available.contains(&isa) {
            say(isa, "not present on this machine");
            continue;
        }
        if runs_all_cases() {
            for name in WITHOUT_STATES.into_iter().chain(WITH_STATES) {
                check(name, 16, isa);
            }
        } else {
            check("souffleur-tiny", 16, isa);
        }
        say(isa, "restarted");
    }
}
