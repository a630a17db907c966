//! Tests of the command line's flags and defaults.

use souffleur::config::EngineConfig;
use souffleur::config::keys::{Form, Key, Keys};
use souffleur::server::ServerConfig;

use super::*;
use crate::cli::settings::keys;

fn parsed(args: &[&str]) -> Cli {
    let args = std::iter::once("souffleur").chain(args.iter().copied());
    parse(args).expect("the arguments parse")
}

#[test]
fn the_command_is_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn every_key_has_a_flag_and_every_flag_has_a_key() {
    let command = Cli::command();
    let keys: Vec<String> = keys().into_iter().map(|(_, key, _)| key).collect();
    for key in &keys {
        let arg = command
            .get_arguments()
            .find(|arg| arg.get_id() == key.as_str());
        let arg = arg.unwrap_or_else(|| panic!("{key} has no flag"));
        assert_eq!(arg.get_long(), Some(key.replace('_', "-").as_str()));
    }
    for arg in command.get_arguments() {
        let id = arg.get_id().as_str();
        let is_other = arg.is_positional() || ["config", "help", "version"].contains(&id);
        assert!(
            is_other || keys.iter().any(|key| key == id),
            "--{id} has no key"
        );
    }
}

#[test]
fn every_name_in_the_help_is_accepted_by_its_key() {
    for key in EngineConfig::KEYS {
        let Form::Name(names) = key.form else {
            continue;
        };
        for name in names {
            let value = serde_json::json!({ (key.name): name });
            let taken: Result<EngineConfig, _> = serde_json::from_value(value);
            assert!(taken.is_ok(), "{}: {taken:?}", key.name);
        }
    }
}

#[test]
fn docs_of_keys_read_well_in_a_terminal() {
    for key in EngineConfig::KEYS.iter().chain(ServerConfig::KEYS) {
        let Key { name, doc, .. } = key;
        assert!(doc.ends_with(".\n"), "{name}: {doc}");
        assert!(!doc.contains("[`"), "{name} has a link: {doc}");
    }
}

#[test]
fn help_shows_defaults_and_groups() {
    let help = Cli::command().render_long_help().to_string();
    for part in [
        "[default: 30000]",
        "[default: 4096]",
        "--shutdown-deadline-s <SECONDS>",
        "0 or less turns that off",
        "Scheduling:",
        "Memory:",
        "Examples:",
    ] {
        assert!(help.contains(part), "{part} is not in\n{help}");
    }
    assert!(!help.contains("logits"), "a hidden command is shown");
    for command in Cli::command().get_subcommands_mut() {
        let help = command.render_long_help().to_string();
        assert!(!help.contains("] [default:"), "{help}");
    }
}

#[test]
fn the_short_help_has_20_lines_and_names_every_command() {
    assert!(SHORT_HELP.lines().count() <= 20);
    assert!(SHORT_HELP.lines().all(|line| line.len() <= 120));
    let words: Vec<&str> = SHORT_HELP
        .split(|c: char| c != '-' && !c.is_alphanumeric())
        .collect();
    let command = Cli::command();
    for shown in command.get_subcommands().filter(|one| !one.is_hide_set()) {
        assert!(words.contains(&shown.get_name()), "{}", shown.get_name());
    }
}

#[test]
fn a_model_needs_no_flag() {
    let model = |args: &[&str]| parsed(args).serve.model.given().map(str::to_owned);
    assert_eq!(model(&["model.gguf"]), Some("model.gguf".to_owned()));
    assert_eq!(model(&["--port", "1", "a/b"]), Some("a/b".to_owned()));
    for command in ["serve", "run", "chat", "plan"] {
        let both = ["souffleur", command, "a/b", "--model-path", "c/d"];
        assert!(parse(both).is_err(), "{command}");
        assert!(parse(&both[..3]).is_ok(), "{command}");
    }
}

#[test]
fn without_a_command_the_flags_are_those_of_serve() {
    let bare = parsed(&[
        "--port",
        "1",
        "--page-size=16",
        "--chunked-prefill-size",
        "-1",
    ]);
    assert!(bare.command.is_none());
    let Some(Command::Serve(serve)) = parsed(&[
        "serve",
        "--port",
        "1",
        "--page-size=16",
        "--chunked-prefill-size",
        "-1",
    ])
    .command
    else {
        panic!("serve is a command")
    };
    assert_eq!(format!("{:?}", bare.serve), format!("{serve:?}"));
    assert_eq!(serve.engine.get("chunked_prefill_size"), Some(-1));
}

#[test]
fn switches_can_have_a_value() {
    let switch = |args: &[&str]| parsed(args).serve.engine.get("disable_radix_cache");
    assert_eq!(switch(&[]), None);
    assert_eq!(switch(&["--disable-radix-cache"]), Some(true));
    assert_eq!(switch(&["--disable-radix-cache=off"]), Some(false));
    assert_eq!(
        parsed(&["--prefix-wait", "off"])
            .serve
            .engine
            .get("prefix_wait"),
        Some(false)
    );
    assert_eq!(
        parsed(&["--shutdown-timeout-s", "5"])
            .serve
            .server
            .get("shutdown_deadline_s"),
        Some(5)
    );
}

#[test]
fn replicas_and_ranks_have_the_names_of_other_servers_too() {
    for name in ["--dp-size", "--dp", "--data-parallel-size"] {
        let engine = parsed(&[name, "3"]).serve.engine;
        assert_eq!(engine.get("dp_size"), Some(3), "{name}");
    }
    for name in ["--tp-size", "--tp", "--tensor-parallel-size"] {
        let engine = parsed(&[name, "3"]).serve.engine;
        assert_eq!(engine.get("tp_size"), Some(3), "{name}");
    }
    let of_sglang = ["souffleur", "--load-balance-method", "shortest_queue"];
    let refusal = parse(of_sglang).expect_err("the method is unknown");
    let refusal = refusal.to_string();
    for name in ["prefix", "round_robin", "total_tokens"] {
        let engine = parsed(&["--load-balance-method", name]).serve.engine;
        let method: Option<String> = engine.get("load_balance_method");
        assert_eq!(method.as_deref(), Some(name));
        assert!(refusal.contains(name), "{refusal}");
    }
}

#[test]
fn exit_codes_tell_usage_failures_and_the_end_of_an_engine_apart() {
    let failures = [
        Failure::Usage(String::new()),
        Failure::Failed(String::new()),
        Failure::Ended(String::new()),
    ];
    assert_eq!(failures.map(|failure| failure.exit_code()), [2, 1, 70]);
}
