use super::*;

fn ngram() -> EngineConfig {
    EngineConfig {
        speculative_algorithm: Some(SpeculativeAlgorithm::Ngram),
        ..EngineConfig::default()
    }
}

fn in_vllms_form(json: &str) -> EngineConfig {
    EngineConfig {
        speculative_config: Some(json.to_owned()),
        ..EngineConfig::default()
    }
}

fn refusal(config: &EngineConfig) -> String {
    config.validate().expect_err("refused").to_string()
}

fn wish(config: &EngineConfig) -> Option<SpeculationWish> {
    config.speculation().expect("the keys are valid")
}

#[test]
fn the_algorithm_has_one_name_in_any_case() {
    for name in ["NGRAM", "ngram", "Ngram"] {
        let parsed = name.parse::<SpeculativeAlgorithm>();
        assert_eq!(parsed, Ok(SpeculativeAlgorithm::Ngram));
    }
    assert_eq!(String::from(SpeculativeAlgorithm::Ngram), "NGRAM");
    for name in ["EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "DFLASH", ""] {
        let reason = name.parse::<SpeculativeAlgorithm>().expect_err(name);
        let start = format!("is {name:?}, must be NGRAM");
        assert!(reason.starts_with(&start), "{reason}");
    }
}

#[test]
fn speculation_is_off_by_default() {
    assert_eq!(wish(&EngineConfig::default()), None);
    let expected = SpeculationWish {
        room: 8,
        max_match: 12,
        capacity: 1 << 18,
    };
    assert_eq!(wish(&ngram()), Some(expected));
    let set = EngineConfig {
        speculative_num_draft_tokens: Some(4),
        speculative_ngram_max_match_window_size: Some(5),
        speculative_ngram_capacity: Some(1000),
        ..ngram()
    };
    let expected = SpeculationWish {
        room: 4,
        max_match: 5,
        capacity: 1000,
    };
    assert_eq!(wish(&set), Some(expected));
}

#[test]
fn settings_in_vllms_form_count_the_drafts_only() {
    for (json, room, max_match) in [
        (r#"{"method": "ngram"}"#, 8, 12),
        (
            r#"{"method": "suffix", "num_speculative_tokens": 3}"#,
            4,
            12,
        ),
        (
            r#"{"model": "[ngram]", "num_speculative_tokens": 63, "prompt_lookup_max": 4, "prompt_lookup_min": 2}"#,
            64,
            4,
        ),
        (r#"{"method": "ngram", "prompt_lookup_min": 20}"#, 8, 20),
        (
            r#"{"method": "ngram", "model": null, "prompt_lookup_max": 1}"#,
            8,
            2,
        ),
    ] {
        let config = in_vllms_form(json);
        assert!(config.validate().is_ok(), "{json}");
        let wish = wish(&config).expect("it is on");
        assert_eq!((wish.room, wish.max_match), (room, max_match), "{json}");
    }
    for (json, part) in [
        ("ngram", "is not a JSON object"),
        ("{}", "names no method"),
        (r#"{"method": null}"#, "names no method"),
        (r#"{"method": "eagle3"}"#, "the method \"eagle3\", must be"),
        (r#"{"method": "ngram", "model": "org/name"}"#, "org/name"),
        (
            r#"{"method": "ngram", "num_speculative_tokens": 64}"#,
            "num_speculative_tokens that is 64, must be at most 63",
        ),
        (
            r#"{"method": "ngram", "prompt_lookup_max": 4, "prompt_lookup_min": 5}"#,
            "prompt_lookup_min that is 5, must be at most 4",
        ),
        (
            r#"{"method": "ngram", "num_speculative_tokens": "7"}"#,
            "num_speculative_tokens \"7\", must be a whole number",
        ),
        (r#"{"method": "ngram", "num": 1}"#, "has \"num\", must have"),
    ] {
        let refusal = refusal(&in_vllms_form(json));
        assert!(refusal.starts_with("speculative_config "), "{refusal}");
        assert!(refusal.contains(part), "{part}: {refusal}");
    }
}

#[test]
fn both_forms_at_once_are_refused() {
    let both = EngineConfig {
        speculative_num_draft_tokens: Some(4),
        ..in_vllms_form(r#"{"method": "ngram"}"#)
    };
    let refusal = refusal(&both);
    let part = "speculative_config is given, and speculative_num_draft_tokens too";
    assert!(refusal.contains(part), "{refusal}");
}

#[test]
fn numbers_without_an_algorithm_are_refused() {
    let rest = "but speculative_algorithm is not set: set it to NGRAM or unset this key";
    for (config, start) in [
        (
            EngineConfig {
                speculative_num_draft_tokens: Some(8),
                ..EngineConfig::default()
            },
            "speculative_num_draft_tokens is 8, ",
        ),
        (
            EngineConfig {
                speculative_ngram_capacity: Some(1000),
                ..EngineConfig::default()
            },
            "speculative_ngram_capacity is 1000, ",
        ),
    ] {
        assert_eq!(refusal(&config), format!("{start}{rest}"));
    }
}

#[test]
fn numbers_have_limits() {
    for (config, part) in [
        (
            EngineConfig {
                speculative_num_draft_tokens: Some(65),
                ..ngram()
            },
            "speculative_num_draft_tokens is 65, must be at most 64",
        ),
        (
            EngineConfig {
                speculative_num_draft_tokens: Some(1),
                ..ngram()
            },
            "speculative_num_draft_tokens is 1, must be at least 2",
        ),
        (
            EngineConfig {
                speculative_ngram_max_match_window_size: Some(1),
                ..ngram()
            },
            "speculative_ngram_max_match_window_size is 1, must be at least 2",
        ),
        (
            EngineConfig {
                speculative_ngram_capacity: Some(10_000_001),
                ..ngram()
            },
            "speculative_ngram_capacity is 10000001, must be at most 10000000",
        ),
    ] {
        let refusal = refusal(&config);
        assert!(refusal.contains(part), "{part}: {refusal}");
    }
}

#[test]
fn gpus_and_double_sparsity_exclude_speculation() {
    let vllm = in_vllms_form(r#"{"method": "ngram"}"#);
    for (key, base) in [
        ("speculative_algorithm is NGRAM", ngram()),
        ("speculative_config is given", vllm),
    ] {
        for (config, part) in [
            (
                EngineConfig {
                    device: Device::gpu(1),
                    ..base.clone()
                },
                "device is cuda:1",
            ),
            (
                EngineConfig {
                    enable_double_sparsity: true,
                    ds_channel_config_path: Some("channels.json".into()),
                    ..base.clone()
                },
                "enable_double_sparsity is on",
            ),
        ] {
            let refusal = refusal(&config);
            assert!(refusal.contains(key), "{key}: {refusal}");
            assert!(refusal.contains(part), "{part}: {refusal}");
        }
        let on_ranks = EngineConfig { tp_size: 2, ..base };
        assert!(on_ranks.validate().is_ok());
    }
}
