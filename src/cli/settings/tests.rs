//! Tests of loading settings from defaults, a file, the environment and flags.

use std::collections::BTreeMap;
use std::path::PathBuf;

use souffleur::config::{Device, Gpus};
use souffleur::server::ApiKey;

use super::*;

const DEFAULT_FILE: &str = include_str!("../../../config/default.toml");

fn flags(args: &[&str]) -> AllFlags {
    #[derive(Parser)]
    #[command(no_binary_name = true)]
    struct Only {
        #[command(flatten)]
        flags: AllFlags,
    }
    Only::try_parse_from(args).expect("the flags parse").flags
}

fn load(file: Option<&str>, env: &[(&str, &str)], args: &[&str]) -> Result<Settings, String> {
    let dir = tempfile::tempdir().expect("a temporary folder can be made");
    let mut flags = flags(args);
    flags.config = file.map(|text| {
        let path = dir.path().join("souffleur.toml");
        std::fs::write(&path, text).expect("the file can be written");
        path
    });
    let env = env
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    let loaded = Settings::load(&flags, env);
    loaded.map(|(settings, _)| settings).map_err(|error| {
        error
            .to_string()
            .replace(&format!("{}/", dir.path().display()), "")
    })
}

fn check_error(file: Option<&str>, env: &[(&str, &str)], args: &[&str], parts: &[&str]) {
    let error = load(file, env, args).expect_err("the settings are refused");
    assert_eq!(error.lines().count(), 1, "{error}");
    for part in parts {
        assert!(error.contains(part), "{part:?} is not in {error:?}");
    }
}

#[test]
fn a_later_source_wins_key_by_key() {
    let file = "[engine]\npage_size = 16\nmax_pins = 1\n[server]\nport = 1\n";
    let env = [("SOUFFLEUR_PAGE_SIZE", "32"), ("SOUFFLEUR_PORT", "2")];
    let settings = load(Some(file), &env, &["--port", "3"]).expect("the settings are good");
    assert_eq!(settings.engine.max_pins, 1);
    assert_eq!(settings.engine.page_size, 32);
    assert_eq!(settings.server.port, 3);
    assert_eq!(
        settings.engine.max_queued_requests,
        EngineConfig::default().max_queued_requests
    );
}

#[test]
fn without_sources_the_defaults_are_used() {
    assert_eq!(load(None, &[], &[]), Ok(Settings::default()));
}

#[test]
fn the_default_file_has_every_key_with_its_default() {
    let parsed = Figment::from(Toml::string(DEFAULT_FILE));
    let parsed: BTreeMap<String, BTreeMap<String, serde_json::Value>> = parsed
        .extract()
        .expect("config/default.toml is TOML in sections");
    let mut without_default = Vec::new();
    for (section, key, default) in keys() {
        let written = parsed.get(&section).and_then(|keys| keys.get(&key));
        match written {
            Some(value) => assert_eq!(*value, default, "{section}.{key}"),
            None => {
                assert!(
                    default.is_null(),
                    "{section}.{key} is missing, its default is {default}"
                );
                without_default.push(key);
            }
        }
    }
    let all: Vec<_> = keys();
    for (section, key) in parsed
        .iter()
        .flat_map(|(s, keys)| keys.keys().map(move |k| (s, k)))
    {
        assert!(
            all.iter().any(|(s, k, _)| s == section && k == key),
            "{section}.{key} is no key"
        );
    }
    let commented = DEFAULT_FILE.lines().filter_map(|line| {
        let (key, _) = line.strip_prefix("# ")?.split_once(" = ")?;
        (!key.contains(' ')).then(|| key.to_owned())
    });
    assert_eq!(commented.collect::<Vec<_>>(), without_default);
}

#[test]
fn every_key_of_the_default_file_has_a_comment() {
    let lines: Vec<_> = DEFAULT_FILE.lines().collect();
    for (i, line) in lines.iter().enumerate().skip(1) {
        if line.contains(" = ") {
            let before = lines[i - 1];
            assert!(
                before.starts_with('#') && !before.contains(" = "),
                "no comment before {line}"
            );
        }
    }
}

#[test]
fn on_and_off_are_understood() {
    let settings = load(
        None,
        &[("SOUFFLEUR_DISABLE_RADIX_CACHE", "on")],
        &["--prefix-wait", "off"],
    );
    let settings = settings.expect("the settings are good");
    assert!(settings.engine.disable_radix_cache);
    assert!(!settings.engine.prefix_wait);
}

#[test]
fn parameters_of_a_policy_are_json_in_every_source() {
    let json = r#"{"threshold": 4096, "next_prompt_estimate": 200}"#;
    let env = [("SOUFFLEUR_RADIX_EVICTION_POLICY_CONFIG", json)];
    let flags = ["--radix-eviction-policy", "tlru"];
    let settings = load(None, &env, &flags).expect("the settings are good");
    let policy = settings.engine.eviction_policy().expect("a valid policy");
    let parameters = policy.expect("the cache is enabled").parameters();
    assert_eq!(
        (parameters.threshold, parameters.next_prompt_estimate),
        (4096, 200)
    );
    let wrong = ["--radix-eviction-policy-config", r#"{"xi": 1}"#];
    let engine = load(None, &[], &wrong).map(|settings| settings.engine);
    let error = engine
        .map_err(|error| error.to_string())
        .and_then(|engine| {
            let policy = engine.eviction_policy();
            policy.map_err(|error| error.to_string())
        });
    let error = error.expect_err("xi is no parameter");
    assert!(
        error.contains("xi") && error.contains("threshold"),
        "{error}"
    );
}

#[test]
fn a_device_can_be_set_in_every_source() {
    let device =
        |file, env: &[_], args: &[_]| load(file, env, args).map(|settings| settings.engine.device);
    assert_eq!(device(None, &[], &[]), Ok(Device::Auto));
    let file = Some("[engine]\ndevice = \"cuda:1\"\n");
    assert_eq!(device(file, &[], &[]), Ok(Device::gpu(1)));
    let env = [("SOUFFLEUR_DEVICE", "cpu")];
    assert_eq!(device(file, &env, &[]), Ok(Device::Cpu));
    assert_eq!(
        device(file, &env, &["--device", "cuda"]),
        Ok(Device::Cuda(Gpus::Visible))
    );
    let parts = ["device", "\"cuda:x\"", "auto, cpu, cuda or cuda:N"];
    check_error(Some("[engine]\ndevice = \"cuda:x\"\n"), &[], &[], &parts);
    check_error(
        None,
        &[],
        &["--cuda-graph-max-bs", "0"],
        &["--cuda-graph-max-bs", "disable_cuda_graph"],
    );
}

#[test]
fn speculation_can_be_set_in_every_source() {
    let room = |file, env: &[_], args: &[_]| {
        let settings = load(file, env, args).expect("the settings are good");
        let wish = settings.engine.speculation().expect("the keys are valid");
        wish.map(|wish| wish.room)
    };
    assert_eq!(room(None, &[], &[]), None);
    let file = Some("[engine]\nspeculative_algorithm = \"ngram\"\n");
    assert_eq!(room(file, &[], &[]), Some(8));
    let env = [("SOUFFLEUR_SPECULATIVE_NUM_DRAFT_TOKENS", "4")];
    assert_eq!(room(file, &env, &[]), Some(4));
    let json = r#"{"method": "ngram", "num_speculative_tokens": 3}"#;
    let vllm = ["--speculative-config", json];
    assert_eq!(room(None, &[], &vllm), Some(4));
    check_error(file, &[], &vllm, &["--speculative-config", "is given, and"]);
    check_error(
        None,
        &[],
        &["--speculative-algorithm", "ngram", "--device", "cuda"],
        &["--speculative-algorithm is NGRAM, but device is cuda"],
    );
    let file = Some("[engine]\nspeculative_algorithm = \"EAGLE\"\n");
    check_error(file, &[], &[], &["\"EAGLE\"", "must be NGRAM"]);
}

#[test]
fn an_api_key_can_be_set_in_every_source_and_is_never_shown() {
    let env = [("SOUFFLEUR_API_KEY", "123456")];
    for (file, env, args) in [
        (Some("[server]\napi_key = \"123456\"\n"), &[][..], &[][..]),
        (None, &env, &[]),
        (None, &[], &["--api-key", "123456"]),
    ] {
        let settings = load(file, env, args).expect("the settings are good");
        assert_eq!(settings.server.api_key, ApiKey::new("123456").ok());
        assert!(!format!("{settings:?}").contains("123456"));
    }
    let env = [("SOUFFLEUR_ADMIN_API_KEY", "654321")];
    let settings = load(None, &env, &["--api-key", "123456"]).expect("the settings are good");
    assert_eq!(settings.server.admin_api_key, ApiKey::new("654321").ok());
    let same = ["--api-key", "654321"];
    check_error(None, &env, &same, &["SOUFFLEUR_ADMIN_API_KEY", "api_key"]);
    let bad = "two words";
    for (file, env, args, source) in [
        (
            Some("[server]\napi_key = 123456\n"),
            &[][..],
            &[][..],
            "souffleur.toml",
        ),
        (
            None,
            &[("SOUFFLEUR_API_KEY", bad)][..],
            &[],
            "SOUFFLEUR_API_KEY",
        ),
        (None, &[], &["--api-key", bad], "--api-key"),
        (None, &[], &["--api-key", ""], "--api-key"),
    ] {
        check_error(file, env, args, &[source, "must be"]);
        let error = load(file, env, args).expect_err("the key is invalid");
        assert!(!error.contains("123456") && !error.contains(bad), "{error}");
    }
}

#[test]
fn faults_can_be_set_in_every_source() {
    let first = "actor=radix_cache,kind=panic,probability=0.001,seed=7";
    let second = "actor=scheduler,kind=delay,for=5ms";
    let both = format!("{first};{second}");
    let specs = |settings: Result<Settings, String>| -> Vec<String> {
        let chaos = settings.expect("the settings are good").engine.chaos;
        chaos.iter().map(|spec| spec.text().to_owned()).collect()
    };
    let expected: Vec<String> = vec![first.to_owned(), second.to_owned()];
    let repeated = ["--chaos", first, "--chaos", second];
    assert_eq!(expected, specs(load(None, &[], &repeated)));
    assert_eq!(
        expected,
        specs(load(None, &[], &["--chaos", both.as_str()]))
    );
    assert_eq!(
        expected,
        specs(load(None, &[("SOUFFLEUR_CHAOS", both.as_str())], &[]))
    );
    let file = format!("[engine]\nchaos = [{first:?}, {second:?}]\n");
    assert_eq!(expected, specs(load(Some(&file), &[], &[])));
    let file = "[engine]\nchaos = [\"actor=plan,kind=panic\"]\n";
    check_error(Some(file), &[], &[], &["chaos", "\"plan\"", "radix_cache"]);
    let env = [("SOUFFLEUR_CHAOS", "actor=plan,kind=panic")];
    check_error(
        None,
        &env,
        &[],
        &["SOUFFLEUR_CHAOS", "\"plan\"", "radix_cache"],
    );
}

#[test]
fn faults_need_a_loopback_address_or_force() {
    let chaos = ["--chaos", "actor=scheduler,kind=panic,after=9"];
    let with = |args: &[&'static str]| [&chaos[..], args].concat();
    let everywhere = with(&["--host", "0.0.0.0"]);
    let parts = ["--chaos is given", "on 0.0.0.0", "--chaos-force"];
    check_error(None, &[], &everywhere, &parts);
    let forced = with(&["--host", "0.0.0.0", "--chaos-force"]);
    assert!(load(None, &[], &forced).is_ok());
    assert!(load(None, &[], &with(&["--host", "::1"])).is_ok());
    assert!(load(None, &[], &["--host", "0.0.0.0"]).is_ok());
}

#[test]
fn ports_of_kv_events_are_not_those_of_the_server() {
    let events = "{\"publisher\": \"zmq\", \"endpoint\": \"tcp://*:29998\"}";
    let flags = |replicas| ["--kv-events-config", events, "--dp-size", replicas];
    assert!(load(None, &[], &flags("2")).is_ok());
    let parts = [
        "--kv-events-config",
        "endpoint",
        "30000",
        "dp_size is 3",
        "port is 30000",
    ];
    check_error(None, &[], &flags("3"), &parts);
    let moved = [&flags("3")[..], &["--port", "30001"]].concat();
    assert!(load(None, &[], &moved).is_ok());
}

#[test]
fn names_that_look_like_numbers_stay_text() {
    let env = [("SOUFFLEUR_SERVED_MODEL_NAME", "123")];
    let settings = load(None, &env, &["--model-path", "8"]).expect("the settings are good");
    assert_eq!(settings.engine.served_model_name.as_deref(), Some("123"));
    assert_eq!(settings.engine.model_path, PathBuf::from("8"));
}

#[test]
fn unknown_keys_are_named_with_their_file() {
    let file = Some("[engine]\npagesize = 16\n");
    check_error(file, &[], &[], &["souffleur.toml", "pagesize", "engine"]);
    check_error(
        Some("[motor]\nx = 1\n"),
        &[],
        &[],
        &["souffleur.toml", "motor"],
    );
}

#[test]
fn bad_values_are_named_with_their_source() {
    let file = Some("[engine]\npage_size = \"big\"\n");
    check_error(
        file,
        &[],
        &[],
        &["souffleur.toml: engine.page_size", "\"big\""],
    );
    check_error(Some("[engine\n"), &[], &[], &["souffleur.toml"]);
    let env = [("SOUFFLEUR_PORT", "70000")];
    check_error(
        None,
        &env,
        &[],
        &["environment variable SOUFFLEUR_PORT", "70000"],
    );
    let env = [("SOUFFLEUR_DTYPE", "int8")];
    check_error(None, &env, &[], &["SOUFFLEUR_DTYPE", "int8", "bfloat16"]);
}

#[test]
fn values_out_of_range_are_named_with_their_source() {
    check_error(
        None,
        &[],
        &["--page-size", "257"],
        &["--page-size", "is 257", "between 1 and 256"],
    );
    let env = [("SOUFFLEUR_PAGE_SIZE", "0")];
    check_error(
        None,
        &env,
        &[],
        &["environment variable SOUFFLEUR_PAGE_SIZE", "is 0"],
    );
    let file = Some("[server]\nmax_body_bytes = 0\n");
    check_error(
        file,
        &[],
        &[],
        &["souffleur.toml: server.max_body_bytes", "at least 1"],
    );
}

#[test]
fn a_missing_file_is_named() {
    let flags = AllFlags {
        config: Some("/nonexistent/x.toml".into()),
        ..AllFlags::default()
    };
    let error = Settings::load(&flags, [])
        .expect_err("the file does not exist")
        .to_string();
    assert!(error.contains("/nonexistent/x.toml"), "{error}");
}

#[test]
fn variables_with_our_prefix_that_are_no_keys_are_ignored_with_a_warning() {
    let env = [
        ("SOUFFLEUR_PORT", "tcp://10.0.0.1:80"),
        ("SOUFFLEUR_SERVICE_HOST", "10.0.0.1"),
    ];
    let env = env.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let (settings, warnings) =
        Settings::load(&AllFlags::default(), env).expect("the settings are good");
    assert_eq!(settings, Settings::default());
    assert_eq!(warnings.len(), 2, "{warnings:?}");
}

#[test]
fn rust_log_wins_over_the_file_and_loses_to_our_own_key() {
    let level = |file: Option<&str>, env: &[(&str, &str)], args: &[&str]| {
        let settings = load(file, env, args).expect("the settings are good");
        settings.log.log_level
    };
    let file = Some("[log]\nlog_level = \"error\"\n");
    let rust_log = ("RUST_LOG", "souffleur,h2=off,span[{a=1}]=info,debug");
    let expected = "souffleur=trace,h2=off,span[{a=1}]=info,debug";
    assert_eq!(level(file, &[rust_log], &[]), expected);
    assert_eq!(level(file, &[("RUST_LOG", " ")], &[]), "error");
    let own = ("SOUFFLEUR_LOG_LEVEL", "warn");
    assert_eq!(level(file, &[rust_log, own], &[]), "warn");
    assert_eq!(level(file, &[own, rust_log], &[]), "warn");
    let flag = ["--log-level", "trace"];
    assert_eq!(level(file, &[rust_log], &flag), "trace");
}

#[test]
fn an_invalid_rust_log_is_a_warning() {
    let env = [("RUST_LOG".to_owned(), "a=b=c".to_owned())];
    let (settings, warnings) = Settings::load(&flags(&[]), env).expect("the settings are good");
    assert_eq!(settings, Settings::default());
    assert!(
        matches!(&warnings[..], [one] if one.contains("RUST_LOG is \"a=b=c\" and is ignored")),
        "{warnings:?}"
    );
}
