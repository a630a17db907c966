//! Tests of split models.

use super::*;

fn part(number: u16, count: u16, tensors: &[&str]) -> File {
    let file = File::default()
        .pair("split.no", Value::U16(number - 1))
        .pair("split.count", Value::U16(count))
        .pair("split.tensors.count", Value::I32(3));
    tensors.iter().fold(file, |file, name| {
        file.tensor(Tensor::f32(name, &[1], &[f32::from(number)]))
    })
}

const FIRST: &str = "a-b-00001-of-00002.gguf";
const SECOND: &str = "a-b-00002-of-00002.gguf";

fn pair(first: &File, second: &File) -> tempfile::TempDir {
    folder(&[(FIRST, &first.bytes()), (SECOND, &second.bytes())])
}

#[test]
fn parts_are_one_model_named_by_its_first_file() {
    let dir = pair(&part(1, 2, &["t"]), &part(2, 2, &["u", "v"]));
    let gguf = Gguf::open(&dir.path().join(FIRST)).expect("both parts are in the folder");
    assert_eq!(gguf.tensors().count(), 3);
    let v = gguf.tensor("v").expect("tensor v is in the second part");
    assert_eq!(
        (v.file_index, v.bytes()),
        (1, 2_f32.to_le_bytes().as_slice())
    );
    refused(
        Gguf::open(&dir.path().join(SECOND)),
        "is part 2 of 2: set --model-path to the first part, a-b-00001-of-00002.gguf",
    );
    assert_eq!(model_name(FIRST), "a-b");
    assert_eq!(model_name("x.y.gguf"), "x.y");
    assert_eq!(model_name("folder"), "folder");
    assert_eq!(model_name("a-1-of-2.gguf"), "a-1-of-2");
}

#[test]
fn a_projector_is_not_a_second_model() {
    let bytes = File::default().bytes();
    let dir = folder(&[
        ("m.gguf", &bytes),
        ("mmproj-m-F16.gguf", &bytes),
        ("m.MMPROJ.gguf", &bytes),
    ]);
    let found = only_model_in(dir.path()).expect("the folder can be read");
    assert_eq!(found, Some(dir.path().join("m.gguf")));
    let alone = folder(&[("mmproj.gguf", &bytes)]);
    let found = only_model_in(alone.path()).expect("the folder can be read");
    assert_eq!(found, None);
    assert!(!is_projector("mmproj.safetensors"));
}

#[test]
fn missing_and_inconsistent_parts_are_rejected() {
    let open = |dir: tempfile::TempDir| Gguf::open(&dir.path().join(FIRST));
    let alone = folder(&[(FIRST, &part(1, 2, &["t"]).bytes())]);
    refused(
        open(alone),
        "but a-b-00002-of-00002.gguf is not in the same folder: download it too",
    );
    let second = folder(&[(SECOND, &part(2, 2, &["u", "v"]).bytes())]);
    let found = only_model_in(second.path()).expect("the folder can be read");
    let found = found.expect("the folder has one model");
    refused(
        Gguf::open(&found),
        "a-b-00001-of-00002.gguf: part 1 of 2 is missing, only part 2 is in the folder: download part 1 too",
    );
    let name = |number: usize| format!("c-{number:05}-of-00004.gguf");
    let others = [3, 2, 4].map(|number| (name(number), part(number as u16, 4, &["u"]).bytes()));
    let others: Vec<(&str, &[u8])> = others
        .iter()
        .map(|(n, b)| (n.as_str(), b.as_slice()))
        .collect();
    let others = folder(&others);
    refused(
        Gguf::open(&others.path().join(name(1))),
        "part 1 of 4 is missing, parts 2, 3 and 4 are in the folder: download part 1 too",
    );
    refused(Gguf::open(&folder(&[]).path().join(FIRST)), "No such file");
    refused(
        open(pair(&part(1, 2, &["t"]), &part(1, 2, &["u", "v"]))),
        "is part 1 of 2 according to split.no and split.count, expected part 2 of 2",
    );
    refused(
        open(pair(&part(1, 2, &["t"]), &part(2, 3, &["u", "v"]))),
        "is part 2 of 3 according to split.no and split.count, expected part 2 of 2",
    );
    refused(
        open(pair(&part(1, 2, &["t", "u"]), &part(2, 2, &["u"]))),
        "holds the tensor u, which an earlier part holds too",
    );
    refused(
        open(pair(&part(1, 2, &["t"]), &part(2, 2, &["u"]))),
        "split.tensors.count is 3, the parts hold 2 tensors",
    );
    refused(
        open(pair(&part(1, 3, &["t"]), &part(2, 2, &["u"]))),
        "is part 1 of 3 according to split.no and split.count, but its name is not NAME-00001-of-00003.gguf",
    );
    let renamed = folder(&[("x.gguf", &part(1, 2, &["t"]).bytes())]);
    refused(
        Gguf::open(&renamed.path().join("x.gguf")),
        "but its name is not NAME-00001-of-00002.gguf",
    );
    let many = File::default().pair("split.count", Value::U16(u16::MAX));
    refused(
        open(pair(&many, &part(2, 2, &["u"]))),
        "split.count is 65535",
    );
    let unnumbered = File::default().pair("split.count", Value::U16(2));
    refused(
        open(pair(&unnumbered, &part(2, 2, &["u"]))),
        "split.no is missing",
    );
}
