//! Tests of folders with GGUF models.

use super::*;
use crate::location::ModelLocation;

const FIRST: &str = "a-b-00001-of-00002.gguf";
const SECOND: &str = "a-b-00002-of-00002.gguf";

#[test]
fn paths_resolve_to_a_gguf_file_or_a_folder() {
    let find = |dir: &tempfile::TempDir| ModelLocation::find(dir.path());
    let one = folder(&[("m.gguf", b""), ("README.md", b"")]);
    let found = find(&one).expect("one model");
    assert_eq!(found, ModelLocation::Gguf(one.path().join("m.gguf")));
    let split = folder(&[(FIRST, b""), (SECOND, b"")]);
    let found = find(&split).expect("one model");
    assert_eq!(found, ModelLocation::Gguf(split.path().join(FIRST)));
    let both = folder(&[("m.gguf", b""), ("config.json", b"")]);
    let found = find(&both).expect("one model");
    assert_eq!(found, ModelLocation::Gguf(both.path().join("m.gguf")));
    let both = folder(&[("m.gguf", b""), ("model.safetensors", b"")]);
    let found = find(&both).expect("valid");
    assert_eq!(found, ModelLocation::Folder(both.path().to_owned()));
    let two = folder(&[("m.gguf", b""), ("n.gguf", b"")]);
    refused(
        find(&two),
        "holds 2 GGUF models, including m.gguf, n.gguf: set --model-path to the file of one of them",
    );
    let found = ModelLocation::find(&two.path().join("n.gguf")).expect("a file");
    assert_eq!(found, ModelLocation::Gguf(two.path().join("n.gguf")));
    let absent = two.path().join("absent.gguf");
    assert_eq!(
        ModelLocation::find(&absent).expect("not opened"),
        ModelLocation::Gguf(absent.clone())
    );
    refused(Gguf::open(&absent), "absent.gguf: ");
    let nothing = folder(&[]);
    let found = find(&nothing).expect("opened later");
    assert_eq!(found, ModelLocation::Folder(nothing.path().to_owned()));
}
