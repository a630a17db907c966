//! Tests of metadata values of every type, and of tensors.

use super::*;

#[test]
fn integers_of_any_width_are_sizes_within_their_limits() {
    let file = File::default()
        .pair("a", Value::U8(7))
        .pair("b", Value::I8(7))
        .pair("c", Value::U16(7))
        .pair("d", Value::I16(7))
        .pair("e", Value::U32(7))
        .pair("f", Value::I32(7))
        .pair("g", Value::U64(7))
        .pair("h", Value::I64(7))
        .pair("negative", Value::I8(-1))
        .pair("huge", Value::U64(u64::MAX))
        .pair("no token", Value::I32(-1))
        .pair("no unsigned token", Value::U32(u32::MAX))
        .pair("float", Value::F32(7.0))
        .number("number", 0.5);
    let gguf = open(&file).expect("the file is valid");
    let metadata = gguf.metadata();
    for key in ["a", "b", "c", "d", "e", "f", "g", "h"] {
        assert_eq!(metadata.size(key, 1..=7).expect("in range"), Some(7));
        refused(
            metadata.size(key, 8..=9),
            &format!("m.gguf: {key} is 7, expected a whole number from 8 to 9"),
        );
        assert_eq!(
            metadata.number(key, 0.0..=9.0).expect("in range"),
            Some(7.0)
        );
    }
    assert_eq!(metadata.size("absent", 1..=7).expect("no error"), None);
    refused(metadata.required_size("absent", 1..=7), "absent is missing");
    refused(metadata.size("negative", 0..=7), "negative is -1, expected");
    refused(metadata.size("huge", 0..=7), "huge is 18446744073709551615");
    refused(
        metadata.size("float", 0..=7),
        "float is 7, expected a whole number",
    );
    assert_eq!(
        metadata.number("number", 0.0..=1.0).expect("present"),
        Some(0.5)
    );
    refused(
        metadata.number("number", 1.0..=2.0),
        "number is 0.5, expected a number from 1 to 2",
    );
    assert_eq!(metadata.token_id("a").expect("an id"), Some(7));
    for key in ["no token", "no unsigned token", "absent"] {
        assert_eq!(metadata.token_id(key).expect("no error"), None, "{key}");
    }
    refused(metadata.token_id("huge"), "huge is 18446744073709551615");
}

#[test]
fn numbers_that_are_not_finite_are_rejected() {
    let file = File::default()
        .number("nan", f32::NAN)
        .number("infinite", f32::INFINITY)
        .pair("double", Value::F64(0.1));
    let gguf = open(&file).expect("the file is valid");
    let metadata = gguf.metadata();
    for key in ["nan", "infinite"] {
        refused(
            metadata.number(key, f64::MIN..=f64::MAX),
            "expected a number",
        );
    }
    assert_eq!(
        metadata.number("double", 0.0..=1.0).expect("present"),
        Some(0.1)
    );
}

#[test]
fn lists_of_every_type_are_read() {
    let texts = ["", "a b", "\u{2581}"].map(str::to_owned).to_vec();
    let file = File::default()
        .pair("texts", Value::Texts(texts.clone()))
        .pair("i32", Value::I32s(vec![-1, 3]))
        .pair("f32", Value::F32s(vec![-0.5, f32::NEG_INFINITY]))
        .pair("u8", writer::list(0, 2, &[1, 255]))
        .pair("empty", writer::list(4, 0, &[]))
        .pair("flag", Value::Flag(true))
        .pair("bytes", writer::list(8, 1, &writer::string(&[0xff])))
        .text("text", "hello");
    let gguf = open(&file).expect("the file is valid");
    let metadata = gguf.metadata();
    assert_eq!(
        metadata.texts("texts").expect("strings").expect("present"),
        texts
    );
    assert_eq!(
        metadata.integers("i32", -1..=3).expect("integers"),
        Some(vec![-1, 3])
    );
    refused(
        metadata.integers("i32", 0..=3),
        "i32 has -1 at index 0, expected a whole number from 0 to 3",
    );
    assert_eq!(
        metadata.integers("u8", 0..=255).expect("integers"),
        Some(vec![1, 255])
    );
    assert_eq!(
        metadata.numbers("f32").expect("floats"),
        Some(vec![-0.5, f32::NEG_INFINITY])
    );
    assert_eq!(metadata.texts("empty").expect("any type"), Some(Vec::new()));
    assert_eq!(
        metadata.numbers("empty").expect("any type"),
        Some(Vec::new())
    );
    assert_eq!(
        metadata.integers("empty", 0..=0).expect("any type"),
        Some(Vec::new())
    );
    assert_eq!(metadata.flag("flag").expect("a flag"), Some(true));
    assert_eq!(metadata.text("text").expect("a string"), Some("hello"));
    refused(metadata.text("flag"), "flag is true, expected a string");
    refused(
        metadata.flag("text"),
        "text is \"hello\", expected true or false",
    );
    refused(
        metadata.texts("f32"),
        "f32 is a list of float32 of length 2, expected a list of strings",
    );
    refused(
        metadata.texts("bytes"),
        "bytes holds \"\u{fffd}\", which is not UTF-8",
    );
    assert_eq!(metadata.texts("absent").expect("no error"), None);
    assert!(metadata.has("text") && !metadata.has("absent"));
    assert_eq!(metadata.keys().count(), 8);
}

#[test]
fn tensors_keep_names_shapes_types_and_bytes() {
    for version in [2, 3] {
        for alignment in [1, 8, 32, 4096] {
            let file = File {
                version,
                alignment,
                ..File::default()
            };
            let file = file
                .size("general.alignment", alignment)
                .tensor(Tensor::f32("a", &[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]))
                .tensor(Tensor::new("b", 12, &[1, 2, 256], vec![7; 288]))
                .tensor(Tensor::f32("c", &[1], &[9.0]));
            let gguf = open(&file).expect("the file is valid");
            let shapes: Vec<_> = gguf.tensors().map(|tensor| tensor.shape.clone()).collect();
            assert_eq!(shapes, [vec![2, 3], vec![1, 2, 256], vec![1]]);
            let b = gguf.tensor("b").expect("present");
            assert_eq!(
                (b.info.element.name, b.bytes()),
                ("Q4_K", [7; 288].as_slice())
            );
            let c = gguf.tensor("c").expect("present");
            assert_eq!(c.bytes(), 9_f32.to_le_bytes());
        }
    }
}
