//! Tests of quantisation schemes: supported and rejected ones.

use serde_json::{Value, json};

use super::*;

/// Reads the scheme of a folder with these files, as if its tensors had quantised codes.
fn read(files: &[(&str, Value)]) -> Result<Option<Scheme>, LoadError> {
    let dir = tempfile::tempdir().expect("a temporary folder");
    for (name, json) in files {
        std::fs::write(dir.path().join(name), json.to_string()).expect("it is writable");
    }
    Scheme::read(dir.path(), true)
}

fn parse(config: Value) -> Result<Option<Scheme>, LoadError> {
    read(&[("config.json", config)])
}

fn scheme(quantization: Value) -> Result<Option<Scheme>, LoadError> {
    parse(json!({ "quantization_config": quantization }))
}

fn weights(format: &str, weights: Value) -> Value {
    json!({
        "quant_method": "compressed-tensors", "format": format, "ignore": ["lm_head"],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
    })
}

fn check_known<const N: usize>(cases: [(Value, Scheme); N]) {
    for (quantization, expected) in cases {
        let text = quantization.to_string();
        assert_eq!(scheme(quantization).expect(&text), Some(expected), "{text}");
    }
}

#[test]
fn schemes_are_detected_by_their_keys() {
    let gptq = |zero_offset, group| Scheme::Int4(Packing::Gptq { zero_offset }, group);
    let of_128 = Group::Inputs(128);
    let cases = [
        (
            json!({"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}),
            Scheme::Fp8 {
                block: Some([128, 128]),
            },
        ),
        (json!({"quant_method": "fp8"}), Scheme::Fp8 { block: None }),
        (
            json!({"quant_method": "gptq", "bits": 4, "group_size": 128}),
            gptq(1, of_128),
        ),
        (
            json!({"quant_method": "gptq", "bits": 4, "group_size": -1, "checkpoint_format": "gptq_v2"}),
            gptq(0, Group::Row),
        ),
        (
            json!({"quant_method": "awq", "bits": 4, "group_size": 128, "version": "GEMM", "zero_point": true}),
            Scheme::Int4(Packing::Awq, of_128),
        ),
    ];
    check_known(cases);
    assert_eq!(parse(json!({})).expect("valid"), None);
    assert_eq!(
        parse(json!({"quantization_config": null})).expect("valid"),
        None
    );
}

#[test]
fn compressed_tensors_schemes_are_detected_by_their_keys() {
    let packed = |has_zeros, group| Scheme::Int4(Packing::CompressedTensors { has_zeros }, group);
    let of_128 = Group::Inputs(128);
    let int4 = |more: Value| {
        let mut weights =
            json!({"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128});
        let more = more.as_object().expect("an object").clone();
        weights.as_object_mut().expect("an object").extend(more);
        weights
    };
    let cases = [
        (
            weights("pack-quantized", int4(json!({}))),
            packed(false, of_128),
        ),
        (
            weights("pack-quantized", int4(json!({"symmetric": false}))),
            packed(true, of_128),
        ),
        (
            weights(
                "pack-quantized",
                int4(json!({"strategy": "channel", "group_size": null})),
            ),
            packed(false, Group::Row),
        ),
        (
            weights(
                "int-quantized",
                json!({"num_bits": 8, "type": "int", "strategy": "channel"}),
            ),
            Scheme::Int8,
        ),
        (
            weights(
                "float-quantized",
                json!({"num_bits": 8, "type": "float", "strategy": "tensor"}),
            ),
            Scheme::Fp8 { block: None },
        ),
    ];
    check_known(cases);
}

fn check_refused<const N: usize>(cases: [(Value, &str, &str); N]) {
    for (quantization, key, value) in cases {
        let text = quantization.to_string();
        let error = scheme(quantization).expect_err(&text).to_string();
        assert!(
            error.contains(key) && error.contains(value),
            "{text}: {error}"
        );
    }
}

#[test]
fn unsupported_schemes_are_rejected_by_key_and_value() {
    check_refused([
        (
            json!({"quant_method": "bitsandbytes"}),
            "quantization_config.quant_method",
            "bitsandbytes",
        ),
        (json!({}), "quantization_config.quant_method", "missing"),
        (json!({"quant_method": "fp8", "fmt": "e5m2"}), "fmt", "e5m2"),
        (
            json!({"quant_method": "fp8", "weight_block_size": [128]}),
            "weight_block_size",
            "[128]",
        ),
        (
            json!({"quant_method": "fp8", "weight_block_size": [0, 8]}),
            "weight_block_size",
            "[0,8]",
        ),
    ]);
}

#[test]
fn unsupported_gptq_and_awq_are_rejected_by_key_and_value() {
    check_refused([
        (
            json!({"quant_method": "gptq", "bits": 8, "group_size": 128}),
            "bits",
            "8",
        ),
        (
            json!({"quant_method": "gptq", "bits": 3, "group_size": 128}),
            "bits",
            "3",
        ),
        (
            json!({"quant_method": "gptq", "group_size": 128}),
            "bits",
            "missing",
        ),
        (
            json!({"quant_method": "gptq", "bits": 4, "group_size": 48}),
            "group_size",
            "48",
        ),
        (
            json!({"quant_method": "gptq", "bits": 4, "group_size": 0}),
            "group_size",
            "0",
        ),
        (
            json!({"quant_method": "gptq", "bits": 4}),
            "group_size",
            "missing",
        ),
        (
            json!({"quant_method": "gptq", "bits": 4, "group_size": 32, "checkpoint_format": "marlin"}),
            "checkpoint_format",
            "marlin",
        ),
        (
            json!({"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemv"}),
            "version",
            "gemv",
        ),
        (
            json!({"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": false}),
            "zero_point",
            "false",
        ),
    ]);
}

#[test]
fn unsupported_compressed_tensors_are_rejected_by_key_and_value() {
    let packed = |config: Value| weights("pack-quantized", config);
    check_refused([
        (
            weights(
                "nvfp4-pack-quantized",
                json!({"num_bits": 4, "type": "float"}),
            ),
            "format",
            "nvfp4",
        ),
        (
            weights("marlin-24", json!({"num_bits": 4, "type": "int"})),
            "format",
            "marlin-24",
        ),
        (
            packed(json!({"num_bits": 4, "type": "float"})),
            "format",
            "pack-quantized",
        ),
        (
            packed(json!({"num_bits": 8, "strategy": "channel"})),
            "group_0.weights.num_bits",
            "8",
        ),
        (
            packed(json!({"num_bits": 2, "strategy": "channel"})),
            "group_0.weights.num_bits",
            "2",
        ),
        (
            packed(json!({"num_bits": 4, "strategy": "tensor"})),
            "strategy",
            "tensor",
        ),
        (
            packed(json!({"num_bits": 4, "strategy": "group", "group_size": 16})),
            "group_size",
            "16",
        ),
        (
            weights("int-quantized", json!({"num_bits": 4})),
            "num_bits",
            "4",
        ),
        (
            weights("int-quantized", json!({"num_bits": 8, "symmetric": false})),
            "symmetric",
            "false",
        ),
        (
            json!({"quant_method": "compressed-tensors", "format": "int-quantized"}),
            "config_groups",
            "missing",
        ),
    ]);
}

#[test]
fn groups_with_different_schemes_are_refused() {
    let of = |bits: u32| json!({"weights": {"num_bits": bits, "strategy": "channel"}});
    let mut quantization = weights(
        "pack-quantized",
        json!({"num_bits": 4, "strategy": "channel"}),
    );
    quantization["config_groups"]["group_1"] = of(4);
    assert!(scheme(quantization.clone()).is_ok());
    quantization["config_groups"]["group_1"]["weights"]["symmetric"] = json!(false);
    let error = scheme(quantization).expect_err("they differ").to_string();
    assert!(error.contains("group_1"), "{error}");
}

#[test]
fn separate_files_are_read_if_config_json_has_no_scheme() {
    let in_file =
        |name: &'static str, json: Value| read(&[("config.json", json!({})), (name, json)]);
    let of_128 = Group::Inputs(128);
    let packing = Packing::Gptq { zero_offset: 1 };
    let gptq = Some(Scheme::Int4(packing, of_128));
    let auto_gptq = json!({
        "bits": 4, "group_size": 128, "damp_percent": 0.01, "desc_act": false, "static_groups": false, "sym": true,
        "true_sequential": true, "model_name_or_path": null, "model_file_base_name": "model",
    });
    let found = in_file("quantize_config.json", auto_gptq.clone());
    assert_eq!(found.expect("valid"), gptq);
    let model = json!({
        "bits": 4, "group_size": 128, "desc_act": false, "lm_head": false, "quant_method": "gptq",
        "checkpoint_format": "gptq", "pack_dtype": "int32", "meta": {"quantizer": ["gptqmodel:4.0.0"]},
    });
    let found = in_file("quantize_config.json", model);
    assert_eq!(found.expect("valid"), gptq);
    let awq = json!({"zero_point": true, "q_group_size": 128, "w_bit": 4, "version": "GEMM"});
    for name in ["quant_config.json", "quantize_config.json"] {
        let found = in_file(name, awq.clone());
        assert_eq!(
            found.expect("valid"),
            Some(Scheme::Int4(Packing::Awq, of_128))
        );
    }
    let configured =
        json!({"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 32}});
    let both = read(&[
        ("config.json", configured),
        ("quantize_config.json", auto_gptq),
    ]);
    let expected = Scheme::Int4(Packing::Awq, Group::Inputs(32));
    assert_eq!(both.expect("valid"), Some(expected));
    for (json, words) in [
        (
            json!({"bits": 3, "group_size": 128}),
            ["quantize_config.json", "bits is 3"],
        ),
        (json!({"group_size": 128}), ["bits", "missing"]),
        (
            json!({"bits": 4, "group_size": 128, "is_marlin_format": true}),
            ["is_marlin_format", "true"],
        ),
        (json!({"quant_method": "hqq"}), ["quant_method", "hqq"]),
    ] {
        let error = in_file("quantize_config.json", json).expect_err(words[1]);
        let error = error.to_string();
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    }
}

#[test]
fn leftover_files_are_ignored_without_codes() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text);
    write("config.json", "{}").expect("it is writable");
    write("quantize_config.json", "no JSON").expect("it is writable");
    assert_eq!(Scheme::read(dir.path(), false).expect("plain"), None);
    let error = Scheme::read(dir.path(), true).expect_err("no JSON");
    assert!(
        error.to_string().contains("quantize_config.json"),
        "{error}"
    );
}
