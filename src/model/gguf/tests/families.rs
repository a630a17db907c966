//! Tests of family-specific keys and tensors of dense models in GGUF.

use super::models::{COMMON, QKV, config, described, with_tensors};
use super::refused;
use crate::gguf_writer::{File, Tensor};
use crate::rope::RopeScaling;

fn tiny(architecture: &'static str) -> File {
    with_tensors(with_tensors(described(architecture), &COMMON), &QKV)
}

#[test]
fn factors_are_read_where_a_family_has_them_and_refused_elsewhere() {
    let file = tiny("granite")
        .number("granite.attention.scale", 0.25)
        .number("granite.embedding_scale", 12.0)
        .number("granite.residual_scale", 1.0)
        .number("granite.logit_scale", 8.0);
    let read = config(&file).expect("supported");
    assert_eq!(
        (read.attention_scale(), read.embedding_scale),
        (0.25, Some(12.0))
    );
    assert_eq!(
        (read.residual_scale, read.logits_divisor),
        (None, Some(8.0))
    );
    let none = tiny("granite").number("granite.attention.scale", 0.0);
    let read = config(&none).expect("supported");
    assert_eq!(read.attention_scale(), 2f32.sqrt().recip());
    for (file, problem) in [
        (
            tiny("granite").number("granite.logit_scale", -1.0),
            "granite.logit_scale is -1",
        ),
        (
            tiny("granite").number("granite.logit_scale", 1e-7),
            "expected 0 or at least 0.000001",
        ),
        (
            tiny("granite").number("granite.attention.temperature_scale", 0.1),
            "granite.attention.temperature_scale is 0.1",
        ),
        (
            tiny("smollm3").number("smollm3.residual_scale", 0.5),
            "smollm3.residual_scale is 0.5, which is not supported",
        ),
    ] {
        refused(config(&file), problem);
    }
}

#[test]
fn the_query_scale_has_the_original_context_as_its_period() {
    let file = tiny("mistral3")
        .text("mistral3.rope.scaling.type", "yarn")
        .number("mistral3.rope.scaling.factor", 4.0)
        .size("mistral3.rope.scaling.original_context_length", 16)
        .number("mistral3.rope.scaling.yarn_log_multiplier", 1.0)
        .number("mistral3.attention.temperature_scale", 0.5);
    let read = config(&file).expect("supported");
    let scale = read.query_scale.expect("queries are scaled");
    assert_eq!((scale.slope, scale.period), (0.5, 16));
    // `mscale` and `mscale_all_dim` are equal.
    assert_eq!(read.rope.frequencies(2).attention_scale, 1.0);
    let plain = config(&tiny("mistral3")).expect("supported");
    assert_eq!(plain.query_scale, None);
}

#[test]
fn longrope_needs_short_and_long_divisors() {
    let tensor = |length: &str, divisors: &[f32]| {
        Tensor::f32(
            &format!("rope_factors_{length}.weight"),
            &[divisors.len()],
            divisors,
        )
    };
    let described = tiny("phi3")
        .size("phi3.rope.scaling.original_context_length", 16)
        .size("phi3.attention.sliding_window", 0)
        .number("phi3.rope.scaling.attn_factor", 1.5);
    let both = described
        .clone()
        .tensor(tensor("short", &[1.5]))
        .tensor(tensor("long", &[4.0]));
    let read = config(&both).expect("supported");
    let RopeScaling::LongRope(rope) = &read.rope.scaling else {
        panic!("{:?}", read.rope);
    };
    assert_eq!(
        (rope.short.as_slice(), rope.long.as_slice()),
        (&[1.5][..], &[4.0][..])
    );
    assert_eq!(
        (read.rope.long_above(), rope.attention_factor),
        (Some(16), 1.5)
    );
    assert!(read.windows.iter().all(Option::is_none));
    let windowed = tiny("phi3").size("phi3.attention.sliding_window", 8);
    let windows = config(&windowed).expect("supported").windows;
    assert!(windows.iter().all(|window| *window == Some(8)));
    refused(
        config(&described.clone().tensor(tensor("long", &[4.0]))),
        "rope_factors_long.weight is present without rope_factors_short.weight",
    );
    refused(
        config(&both.clone().text("phi3.rope.scaling.type", "yarn")),
        "phi3.rope.scaling.type is \"yarn\", but rope_factors_short.weight scales",
    );
    let wide = described
        .tensor(tensor("short", &[1.0, 1.0]))
        .tensor(tensor("long", &[1.0, 1.0]));
    refused(config(&wide), "shape [2], expected F32 and [1]");
}

#[test]
fn granite_without_rope_is_rejected() {
    let without_rope = tiny("granite").pair(
        "granite.rope.scaling.finetuned",
        crate::gguf_writer::Value::Flag(false),
    );
    refused(
        config(&without_rope),
        "granite.rope.scaling.finetuned is false",
    );
}
