use serde_json::{Value, json};

use super::*;

fn parse(config: Value) -> Result<Option<Scheme>, LoadError> {
    let text = config.to_string();
    Scheme::parse(&JsonFile::parse(Path::new("config.json"), text.as_bytes())?)
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

#[test]
fn schemes_are_known_by_their_keys() {
    let gptq = |zero_offset, group| Scheme::Int4(Packing::Gptq { zero_offset }, group);
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
    for (quantization, expected) in cases {
        let text = quantization.to_string();
        assert_eq!(scheme(quantization).expect(&text), Some(expected), "{text}");
    }
    assert_eq!(parse(json!({})).expect("no key"), None);
    assert_eq!(
        parse(json!({"quantization_config": null})).expect("null"),
        None
    );
}

#[test]
fn others_are_refused_by_key_and_value() {
    let packed = |weights_: Value| weights("pack-quantized", weights_);
    let cases = [
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
    ];
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
fn groups_that_differ_are_refused() {
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
