//! Tests of parsing model ids and rejecting local paths.

use super::*;

fn wish(text: &str) -> Option<(String, Wish)> {
    HubModel::parse(text).map(|model| (model.repo.to_string(), model.wish))
}

#[test]
fn ids_name_a_repository_a_quantisation_or_a_file() {
    let of = |repo: &str, wish| Some((repo.to_owned(), wish));
    assert_eq!(wish("Qwen/Qwen3-0.6B"), of("Qwen/Qwen3-0.6B", Wish::Model));
    let quantisation = Wish::Quantisation("UD-Q4_K_XL".to_owned());
    assert_eq!(wish("a/b-GGUF:UD-Q4_K_XL"), of("a/b-GGUF", quantisation));
    let file = Wish::File("Q8_0/b-00001-of-00002.gguf".to_owned());
    assert_eq!(wish("a/b/Q8_0/b-00001-of-00002.gguf"), of("a/b", file));
}

#[test]
fn local_paths_are_not_ids() {
    for path in [
        "",
        "model",
        "/a/b",
        "./a",
        "../a",
        "a/",
        "a/b/",
        "a/b/c",
        "a/b.gguf",
        "~/a",
        "a/b/../c.gguf",
        "a/b//c.gguf",
        "a/b:",
        "a/b:Q4/K",
        "a/b:c:d",
        "a b/c",
        "a/b--c",
        "a/.b",
        "C:/a",
        "a\\b",
    ] {
        assert_eq!(wish(path), None, "{path}");
    }
    assert_eq!(wish(&format!("a/{}", "b".repeat(95))), None);
    assert_eq!(HubModel::of_path(Path::new("id/tests.rs")), None); // This file exists.
}
