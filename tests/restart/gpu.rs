//! Tests of restarts with a KV store on an emulated GPU (`--device cuda`).

use tempfile::TempDir;

use crate::server::Launch;
use crate::{STORED_TOKENS, model, prompt};

/// Both runs compute the same last chunk: on a GPU, bits depend on the number of rows in a matrix product.
const FLAGS: [&str; 4] = ["--dtype", "float32", "--chunked-prefill-size", "128"];

#[test]
fn a_prompt_has_the_same_output_after_a_kill_on_a_gpu_and_the_cpu_finds_no_block_of_it() {
    let folder = TempDir::new().expect("a folder can be made");
    let stored = Launch::new(&model("qwen3")).with_store(folder.path());
    let stored = stored.with_page_size(16).args(&FLAGS);
    let launch = stored.clone().on_a_gpu();
    let first = launch.start_serving();
    let expected = first.ask(&prompt(1));
    assert_eq!((expected.device, expected.stored), (0, 0));
    first.wait_until_written(STORED_TOKENS);
    first.kill();
    let second = launch.start_serving();
    let got = second.ask(&prompt(1));
    assert_eq!((got.device, got.stored), (0, STORED_TOKENS));
    assert_eq!(got.output, expected.output);
    assert_eq!(second.damages(), 0);
    second.kill();
    let on_cpu = stored.start_serving();
    let got = on_cpu.ask(&prompt(1));
    assert_eq!((got.device, got.stored), (0, 0));
}

#[test]
fn buffers_that_are_too_small_are_refused_on_a_gpu_too() {
    let folder = TempDir::new().expect("a folder can be made");
    let launch = Launch::new(&model("souffleur-tiny")).with_store(folder.path());
    let log = launch
        .on_a_gpu()
        .args(&["--kv-host-bytes", "65536"])
        .refused();
    for part in ["kv_host_bytes", "65536", "raise"] {
        assert!(log.contains(part), "{part:?} is not in\n{log}");
    }
}
