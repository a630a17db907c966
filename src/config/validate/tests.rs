use super::*;

fn refusal(tool: &str, reasoning: &str) -> Option<ConfigError> {
    let config = EngineConfig {
        tool_call_parser: tool.to_owned(),
        reasoning_parser: reasoning.to_owned(),
        ..EngineConfig::default()
    };
    config.validate().err()
}

#[test]
fn a_store_needs_a_cache_and_pages_that_fit_its_blocks() {
    let refusal = |page_size, disable_radix_cache| {
        let config = EngineConfig {
            kv_disk_path: Some("kv".into()),
            page_size,
            disable_radix_cache,
            ..EngineConfig::default()
        };
        config.validate().err().map(|error| error.to_string())
    };
    for page_size in [1, 16, 64, 128] {
        assert_eq!(refusal(page_size, false), None);
    }
    for (refusal, reason) in [
        (refusal(48, false), "page_size is 48"),
        (refusal(1, true), "disable_radix_cache is on"),
    ] {
        let refusal = refusal.expect("the store is refused");
        assert!(refusal.contains("kv_disk_path"), "{refusal}");
        assert!(refusal.contains(reason), "{refusal}");
    }
}

#[test]
fn more_gpus_than_replicas_are_refused() {
    let listed = |ordinals: &[usize]| EngineConfig {
        device: Device::Cuda(Gpus::Listed(ordinals.to_vec())),
        ..EngineConfig::default()
    };
    assert!(listed(&[3]).validate().is_ok());
    let refusal = listed(&[3, 4]).validate().expect_err("refused");
    assert_eq!(refusal.key, "device");
    assert!(
        refusal.reason.contains("dp_size is 1"),
        "{}",
        refusal.reason
    );
}

#[test]
fn the_gpus_of_ranks_are_the_first_or_all() {
    let refusal = |ordinals: &[usize], tp_size, dp_size| {
        let config = EngineConfig {
            device: Device::Cuda(Gpus::Listed(ordinals.to_vec())),
            tp_size,
            dp_size,
            ..EngineConfig::default()
        };
        config.validate().err().map(|error| error.to_string())
    };
    for (ordinals, tp_size, dp_size) in [
        (&[3][..], 2, 1),
        (&[3, 5], 2, 1),
        (&[3], 2, 2),
        (&[0, 1, 2, 3], 2, 2),
    ] {
        assert_eq!(refusal(ordinals, tp_size, dp_size), None);
    }
    for (ordinals, tp_size, dp_size) in [
        (&[0, 1, 2][..], 2, 1),
        (&[0, 1], 2, 2),
        (&[0, 1, 2, 3], 2, 1),
    ] {
        let refused = refusal(ordinals, tp_size, dp_size).expect("another number");
        assert!(refused.starts_with("device names"), "{refused}");
        assert!(refused.contains("tp_size 2"), "{refused}");
    }
}

#[test]
fn replicas_are_refused_with_parts_that_serve_one() {
    let two = EngineConfig {
        dp_size: 2,
        ..EngineConfig::default()
    };
    assert!(two.validate().is_ok());
    let on_gpus = EngineConfig {
        device: Device::Cuda(Gpus::Listed(vec![0, 1])),
        ..two.clone()
    };
    assert!(on_gpus.validate().is_ok());
    let stored = EngineConfig {
        kv_disk_path: Some("kv".into()),
        ..two.clone()
    };
    let recorded = EngineConfig {
        record: Some("log".into()),
        ..two
    };
    for (config, part) in [(stored, "kv_disk_path"), (recorded, "record")] {
        let alone = EngineConfig {
            dp_size: 1,
            ..config.clone()
        };
        assert!(alone.validate().is_ok(), "{part}");
        let refusal = config.validate().expect_err("refused");
        assert_eq!(refusal.key, "dp_size");
        assert!(refusal.reason.contains(part), "{}", refusal.reason);
    }
    let none = EngineConfig {
        dp_size: 0,
        ..EngineConfig::default()
    };
    let refusal = none.validate().expect_err("refused").to_string();
    assert!(refusal.contains("dp_size is 0"), "{refusal}");
}

#[test]
fn the_gpt_oss_format_conflicts_with_other_formats() {
    for (tool, reasoning) in [("gpt-oss", "qwen3"), ("qwen25", "gpt-oss")] {
        let error = refusal(tool, reasoning).expect("the formats conflict");
        assert_eq!(error.key, "reasoning_parser");
        for part in [tool, reasoning, "tool_call_parser", "auto", "none"] {
            assert!(error.reason.contains(part), "{part}: {}", error.reason);
        }
    }
}

#[test]
fn the_share_of_window_pages_is_above_0_and_at_most_1() {
    let error = |ratio: f64| {
        let config = EngineConfig {
            swa_full_tokens_ratio: ratio,
            ..EngineConfig::default()
        };
        config.validate().err().map(|error| error.to_string())
    };
    for ratio in [1e-6, 0.25, 1.0] {
        assert_eq!(error(ratio), None);
    }
    for ratio in [0.0, -0.1, 1.01, f64::NAN, f64::INFINITY] {
        let reason = error(ratio).expect("the ratio is refused");
        assert!(reason.starts_with("swa_full_tokens_ratio is "), "{reason}");
        assert!(reason.contains("more than 0 and at most 1"), "{reason}");
    }
}

#[test]
fn kv_events_need_a_cache_and_valid_json() {
    let config = EngineConfig {
        kv_events_config: Some(r#"{"publisher": "zmq"}"#.to_owned()),
        ..EngineConfig::default()
    };
    assert!(config.validate().is_ok());
    let error = |config: EngineConfig| config.validate().expect_err("refused").to_string();
    let uncached = EngineConfig {
        disable_radix_cache: true,
        ..config.clone()
    };
    assert!(error(uncached).starts_with("kv_events_config is given, but disable_radix_cache"));
    let wrong = EngineConfig {
        kv_events_config: Some(r#"{"publisher": "zmq", "endpoint": "5557"}"#.to_owned()),
        ..config
    };
    assert!(error(wrong).starts_with("kv_events_config endpoint is \"5557\""));
    let silent = EngineConfig {
        kv_events_config: Some("{}".to_owned()),
        disable_radix_cache: true,
        ..EngineConfig::default()
    };
    assert!(silent.validate().is_ok());
}

#[test]
fn replicas_need_their_own_ports_for_kv_events() {
    let config = |dp_size, port: u16| EngineConfig {
        kv_events_config: Some(format!(
            r#"{{"publisher": "zmq", "endpoint": "tcp://*:{port}", "replay_endpoint": "tcp://*:5558"}}"#
        )),
        dp_size,
        ..EngineConfig::default()
    };
    assert!(config(1, 5557).validate().is_ok());
    assert!(config(2, 5556).validate().is_ok());
    assert!(config(2, 65_534).validate().is_ok());
    for (port, part) in [(5557, "both need tcp://*:5558"), (65_535, "at most 65534")] {
        let refusal = config(2, port).validate().expect_err("refused");
        assert_eq!(refusal.key, "kv_events_config");
        assert!(refusal.reason.contains(part), "{}", refusal.reason);
    }
}

#[test]
fn double_sparsity_needs_a_file_the_cpu_and_unquantised_keys() {
    let sparse = EngineConfig {
        enable_double_sparsity: true,
        ds_channel_config_path: Some("channels.json".into()),
        ..EngineConfig::default()
    };
    assert!(sparse.validate().is_ok());
    let error = |config: EngineConfig| config.validate().expect_err("refused").to_string();
    let without = EngineConfig {
        ds_channel_config_path: None,
        ..sparse.clone()
    };
    let reason = error(without.clone());
    assert!(
        reason.starts_with("ds_channel_config_path is not given"),
        "{reason}"
    );
    let off = EngineConfig {
        enable_double_sparsity: false,
        ..without
    };
    assert!(off.validate().is_ok());
    let quantised = EngineConfig {
        kv_cache_dtype: KvCacheDtype::Int8,
        ..sparse.clone()
    };
    let reason = error(quantised);
    assert!(reason.contains("kv_cache_dtype is int8"), "{reason}");
    let on_gpu = EngineConfig {
        device: Device::gpu(1),
        ..sparse.clone()
    };
    let reason = error(on_gpu);
    assert!(reason.contains("device is cuda:1"), "{reason}");
    let none = EngineConfig {
        ds_heavy_token_num: 0,
        ..sparse
    };
    assert!(error(none).contains("ds_heavy_token_num is 0, must be at least 1"));
}

#[test]
fn the_gpt_oss_parser_combines_with_itself_auto_and_none() {
    for other in ["gpt-oss", "auto", "none"] {
        assert!(refusal("gpt-oss", other).is_none());
        assert!(refusal(other, "gpt-oss").is_none());
    }
    assert!(refusal("qwen25", "mistral").is_none());
}

#[test]
fn a_tower_is_not_named_and_turned_off() {
    let refusal = |mmproj: Option<&str>, no_mmproj| {
        let config = EngineConfig {
            mmproj: mmproj.map(Into::into),
            no_mmproj,
            ..EngineConfig::default()
        };
        config.validate().err().map(|error| error.to_string())
    };
    for (mmproj, no_mmproj) in [(None, false), (None, true), (Some("m.gguf"), false)] {
        assert_eq!(refusal(mmproj, no_mmproj), None);
    }
    let refusal = refusal(Some("m.gguf"), true).expect("both are given");
    assert!(
        refusal.contains("mmproj is given, but no_mmproj is on"),
        "{refusal}"
    );
}
