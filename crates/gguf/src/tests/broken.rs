//! Tests that malformed GGUF files are rejected with an error that names the fault.

use super::*;

fn with(key: &str, value: Value) -> File {
    File::default().pair(key, value)
}

fn tensor(edit: impl FnOnce(&mut Tensor)) -> File {
    let mut tensor = Tensor::f32("t", &[2, 4], &[0.5; 8]);
    edit(&mut tensor);
    File::default().tensor(tensor)
}

#[track_caller]
fn refused_file(file: &File, expected: &str) {
    refused(parse(&file.bytes()), expected);
}

#[test]
fn magic_and_version_are_checked() {
    refused(parse(b""), "begins with \"\", expected GGUF");
    refused(parse(b"GGML1234"), "begins with \"GGML\", expected GGUF");
    refused(
        parse(b"\x80\x02\x00\x00"),
        "expected GGUF: set --model-path",
    );
    let version = |version| File {
        version,
        ..File::default()
    };
    refused_file(&version(1), "has GGUF version 1, supported: 2 and 3");
    refused_file(&version(0), "has GGUF version 0");
    refused_file(&version(4), "has GGUF version 4");
    refused_file(&version(3_u32.swap_bytes()), "is a big-endian GGUF file");
}

#[test]
fn counts_are_checked_against_limits_and_the_remaining_bytes() {
    for claimed in [1 << 60, u64::MAX, 1 << 63, (1 << 16) + 1] {
        let file = File {
            claimed: (Some(claimed), None),
            ..File::default()
        };
        let sentence = format!("the number of tensors is {claimed}, the limit is 65536");
        refused_file(&file, &sentence);
        let file = File {
            claimed: (None, Some(claimed)),
            ..File::default()
        };
        let sentence = format!("the number of metadata pairs is {claimed}, the limit is 65536");
        refused_file(&file, &sentence);
        if claimed > 1 << 24 {
            let list = with("k", writer::list(4, claimed, &[0; 64]));
            let sentence =
                format!("the length of the value of k is {claimed}, the limit is 16777216");
            refused_file(&list, &sentence);
        }
        let text = with("k", Value::Raw(8, claimed.to_le_bytes().to_vec()));
        let sentence = if claimed > 16 << 20 {
            format!("the value of k has {claimed} bytes, the limit is 16777216")
        } else {
            "inside the value of k".to_owned()
        };
        refused_file(&text, &sentence);
    }
    let file = File {
        claimed: (Some(1), Some(0)),
        ..File::default()
    };
    refused_file(
        &file,
        "the number of tensors is 1, but the 8 bytes that follow cannot hold that many",
    );
    let file = with("k", writer::list(8, 1 << 20, &[0; 64]));
    refused_file(
        &file,
        "is 1048576, but the 64 bytes that follow cannot hold that many",
    );
}

#[test]
fn keys_are_unique_and_utf8() {
    refused_file(
        &with("", Value::U32(1)),
        "the key of metadata pair 0 is empty",
    );
    let mut file = with("k", Value::U32(1));
    file.pairs.push((b"k".to_vec(), Value::U32(2)));
    refused_file(&file, "the key k occurs twice");
    let file = File {
        pairs: vec![(vec![0xff], Value::U32(1))],
        ..File::default()
    };
    refused_file(&file, "the key of metadata pair 0 is not UTF-8");
    let long = "k".repeat((64 << 10) + 1);
    refused_file(
        &with(&long, Value::U32(1)),
        "has 65537 bytes, the limit is 65536",
    );
    assert!(parse(&with(&long[1..], Value::U32(1)).bytes()).is_ok());
}

#[test]
fn values_have_known_types() {
    refused_file(
        &with("k", Value::Raw(13, vec![0; 8])),
        "the value of k has type 13, expected 0 to 12",
    );
    refused_file(
        &with("k", writer::list(99, 0, &[])),
        "the value of k has type 99",
    );
    refused_file(
        &with("k", writer::list(9, 1, &[0; 64])),
        "is a list of lists",
    );
    refused_file(
        &with("k", Value::Raw(7, vec![2])),
        "is a boolean of value 2, expected 0 or 1",
    );
    refused_file(
        &with("k", writer::list(7, 2, &[1, 3])),
        "is a boolean of value 3",
    );
}

#[test]
fn alignment_is_a_power_of_two() {
    for wrong in [3, 24, 33] {
        let file = File::default().size("general.alignment", wrong);
        refused_file(
            &file,
            &format!("general.alignment is {wrong}, expected a power of two"),
        );
    }
    refused_file(
        &with("general.alignment", Value::U32(0)),
        "general.alignment is 0",
    );
    refused_file(
        &with("general.alignment", Value::U64(1 << 40)),
        "general.alignment is 1099511627776",
    );
    refused_file(
        &File::default().text("general.alignment", "32"),
        "general.alignment is \"32\"",
    );
}

#[test]
fn shapes_have_one_to_four_sizes_whose_product_fits() {
    refused_file(
        &tensor(|t| t.sizes = vec![]),
        "tensor t has 0 dimensions, expected 1 to 4",
    );
    refused_file(
        &tensor(|t| t.sizes = vec![1; 5]),
        "tensor t has 5 dimensions",
    );
    refused_file(
        &tensor(|t| t.sizes = vec![4, 0]),
        "tensor t has sizes [4, 0], expected sizes of at least 1",
    );
    for sizes in [
        vec![1 << 62, 4],
        vec![u64::MAX, 1],
        vec![1 << 32, 1 << 32],
        vec![1 << 62, 1],
    ] {
        refused_file(
            &tensor(|t| t.sizes = sizes),
            "which make at least 2^63 elements or bytes",
        );
    }
    let file = tensor(|t| {
        t.type_id = 12;
        t.sizes = vec![100, 2];
    });
    refused_file(
        &file,
        "expected a row length that is a multiple of 256, the block size of Q4_K",
    );
    for unknown in [4, 31, 36, 42, u32::MAX] {
        let sentence = format!("tensor t has the unknown type {unknown}");
        refused_file(&tensor(|t| t.type_id = unknown), &sentence);
    }
}

#[test]
fn tensor_names_are_short_and_unique() {
    let twice = File::default()
        .tensor(Tensor::f32("t", &[1], &[0.0]))
        .tensor(Tensor::f32("t", &[1], &[0.0]));
    refused_file(&twice, "the tensor t occurs twice");
    let named = |name: &str| tensor(|t| t.name = name.as_bytes().to_vec());
    refused_file(
        &named(&"n".repeat(64)),
        "the name of tensor 0 has 64 bytes, the limit is 63",
    );
    assert!(parse(&named(&"n".repeat(63)).bytes()).is_ok());
    refused_file(&named(""), "the name of tensor 0 is empty or not UTF-8");
    refused_file(
        &tensor(|t| t.name = vec![0xc0]),
        "the name of tensor 0 is empty or not UTF-8",
    );
}

#[test]
fn tensor_data_is_contiguous_and_complete() {
    for wrong in [1, 32, 1 << 40, u64::MAX] {
        let sentence = format!("tensor t begins at byte {wrong} of the data, expected 0");
        refused_file(&tensor(|t| t.offset = Some(wrong)), &sentence);
    }
    let mut two = tensor(|_| ()).tensor(Tensor::f32("u", &[1], &[0.0]));
    two.tensors[1].offset = Some(0);
    refused_file(&two, "tensor u begins at byte 0 of the data, expected 32");
    let short = tensor(|t| t.data.truncate(31));
    refused_file(&short, "the file is incomplete");
}
