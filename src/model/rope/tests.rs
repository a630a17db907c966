//! Tests of RoPE frequencies against reference values.

use std::path::Path;

use super::*;

fn parse(keys: &str) -> Result<RopeConfig, LoadError> {
    let json = JsonFile::parse(Path::new("config.json"), keys.as_bytes())?;
    super::refuse_partial(&json)?;
    RopeConfig::from_json(&json, 10_000.0, (131_072, None))
}

/// Keys, frequencies and attention scales.
/// Expected values: transformers 5.23.0, `LlamaRotaryEmbedding`, head_dim 16, max_position_embeddings 131072.
#[rustfmt::skip]
const FREQUENCIES: [(&str, [f32; 8], f32); 6] = [
    (
        r#"{"rope_theta": 10000.0}"#,
        [1.0, 0.31622776, 0.1, 0.03162278, 0.01, 0.0031622779, 0.001, 0.0003162278],
        1.0,
    ),
    (
        r#"{"rope_theta": 5000, "rope_scaling": {"type": "linear", "factor": 4.0}}"#,
        [0.25, 0.08621221, 0.029730178, 0.010252417, 0.003535534, 0.0012192247, 0.0004204482, 0.00014499106],
        1.0,
    ),
    (
        r#"{"rope_theta": 500000.0, "rope_scaling": {"rope_type": "llama3", "factor": 8.0,
            "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192}}"#,
        [1.0, 0.19392276, 0.03760603, 0.007292665, 0.000524846, 3.4281024e-05, 6.6478697e-06, 1.2891732e-06],
        1.0,
    ),
    (
        r#"{"rope_theta": 1000000.0, "rope_scaling": {"type": "yarn", "factor": 4.0,
            "original_max_position_embeddings": 32768}}"#,
        [1.0, 0.17782794, 0.03162278, 0.00421756, 0.0005, 4.4456985e-05, 7.905694e-06, 1.4058534e-06],
        1.138_629_4,
    ),
    (
        r#"{"rope_parameters": {"rope_type": "yarn", "rope_theta": 2000.0, "factor": 8.0,
            "original_max_position_embeddings": 32, "beta_fast": 3.0, "beta_slow": 0.5,
            "mscale": 1.0, "mscale_all_dim": 0.5, "truncate": false}}"#,
        [1.0, 0.30721998, 0.0494193, 0.007228094, 0.002795085, 0.0010808521, 0.00041796267, 0.0001616251],
        1.094_18,
    ),
    (
        r#"{"rope_parameters": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 40.0,
            "original_max_position_embeddings": 4096, "attention_factor": 0.75}}"#,
        [1.0, 0.31622776, 0.1, 0.023914725, 0.0051249997, 0.0008498622, 2.5e-05, 7.9056945e-06],
        0.75,
    ),
];

#[test]
fn frequencies_are_those_of_transformers() {
    for (keys, inv_freq, attention_scale) in FREQUENCIES {
        let rope = parse(keys).expect("supported").frequencies(16);
        assert!(
            (rope.attention_scale - attention_scale).abs() < 1e-6,
            "{keys}: {rope:?}"
        );
        for (ours, theirs) in rope.inv_freq.iter().zip(inv_freq) {
            assert!((ours - theirs).abs() <= 1.2e-7 * theirs, "{keys}: {rope:?}");
        }
    }
}

#[test]
fn rope_scaling_wins_over_rope_parameters_and_inner_theta_over_outer() {
    let both = parse(
        r#"{"rope_theta": 7.0, "rope_scaling": {"type": "linear", "factor": 2},
            "rope_parameters": {"rope_type": "default", "rope_theta": 9.0}}"#,
    );
    let expected = RopeConfig {
        theta: 7.0,
        scaling: RopeScaling::Linear { factor: 2.0 },
    };
    assert_eq!(both.expect("supported"), expected);
    let inner =
        parse(r#"{"rope_theta": 7.0, "rope_scaling": {}, "rope_parameters": {"rope_theta": 9.0}}"#);
    assert_eq!(
        inner.expect("supported"),
        RopeConfig {
            theta: 9.0,
            scaling: RopeScaling::Default
        }
    );
    let none = parse(r#"{"rope_scaling": null}"#).expect("supported");
    assert_eq!(
        none,
        RopeConfig {
            theta: 10_000.0,
            scaling: RopeScaling::Default
        }
    );
}

#[test]
fn yarn_extends_the_original_context() {
    let config = parse(
        r#"{"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}}"#,
    );
    assert_eq!(
        config.expect("supported").extended_positions(),
        Some(131_072)
    );
}

#[test]
fn unsupported_rope_is_rejected_with_the_reason() {
    let table = [
        (
            r#"{"rope_scaling": {"type": "dynamic", "factor": 2.0}}"#,
            "so K/V cannot be reused",
        ),
        (
            r#"{"rope_scaling": {"type": "ntk"}}"#,
            "supported: default, linear, llama3, yarn, longrope",
        ),
        (
            r#"{"rope_scaling": {"type": "longrope"}}"#,
            "rope_scaling.short_factor is missing",
        ),
        (
            r#"{"rope_scaling": {"type": "longrope", "original_max_position_embeddings": 1}}"#,
            "original_max_position_embeddings is 1, expected at least 2",
        ),
        (
            r#"{"rope_scaling": {"type": "linear"}}"#,
            "rope_scaling.factor is missing",
        ),
        (
            r#"{"rope_scaling": {"type": "linear", "factor": 0}}"#,
            "rope_scaling.factor is 0",
        ),
        (
            r#"{"rope_scaling": "linear"}"#,
            "rope_scaling is \"linear\", expected an object",
        ),
        (
            r#"{"rope_scaling": {"type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4}}"#,
            "expected more than low_freq_factor, 4",
        ),
        (
            r#"{"rope_scaling": {"type": "yarn", "factor": 8, "beta_fast": 1, "beta_slow": 2}}"#,
            "expected at least beta_slow, 2",
        ),
        (
            r#"{"partial_rotary_factor": 0.5}"#,
            "partial_rotary_factor is 0.5, supported: 1",
        ),
        (
            r#"{"rope_parameters": {"partial_rotary_factor": 0.5}}"#,
            "partial_rotary_factor is 0.5",
        ),
        (
            r#"{"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}"#,
            "all layers must share one RoPE",
        ),
        (
            r#"{"rope_theta": 0}"#,
            "rope_theta is 0, expected a number from",
        ),
    ];
    for (keys, expected) in table {
        let error = parse(keys).expect_err(keys).to_string();
        assert!(error.contains(expected), "{keys}: {error}");
    }
}
