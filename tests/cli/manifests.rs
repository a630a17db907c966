//! Tests of the Compose files and the Kubernetes manifests in `deploy/`: what they say of the product is true.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use souffleur::server::ServerConfig;

use super::serving::Server;
use super::{run, souffleur, stderr, stdout};

/// What a stop may take after the server's own deadline, in seconds.
const STOP_MARGIN_S: u32 = 15;
const COMPOSE: &str = "deploy/compose/compose.yml";
const DEPLOYMENT: &str = "deploy/kubernetes/base/deployment.yaml";
const SERVICE: &str = "deploy/kubernetes/base/service.yaml";
const EXIT_LIMIT: Duration = Duration::from_secs(60);

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn text(name: &str) -> String {
    fs::read_to_string(file(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// All manifests, without their comments.
fn manifests() -> String {
    let mut all = String::new();
    for folder in "base cuda keda models-pvc monitoring ../compose".split(' ') {
        let folder = file("deploy/kubernetes").join(folder);
        for entry in fs::read_dir(folder).expect("a folder") {
            all += &fs::read_to_string(entry.expect("an entry").path()).expect("text");
        }
    }
    let lines = all.lines().filter(|line| !line.trim().starts_with('#'));
    lines.collect::<Vec<_>>().join("\n")
}

/// The values of `key` in YAML that has a key a line, or several in braces; at least one.
#[track_caller]
fn values<'a>(yaml: &'a str, key: &str) -> Vec<&'a str> {
    let lines = yaml
        .lines()
        .map(|line| line.trim().trim_start_matches("- "));
    let parts = lines.flat_map(|line| match line.split_once('{') {
        Some((_, inner)) => inner.trim_end_matches('}').split(", ").collect(),
        None => vec![line],
    });
    let found: Vec<&str> = parts
        .filter_map(|part| part.strip_prefix(key)?.strip_prefix(": "))
        .collect();
    assert!(!found.is_empty(), "no {key}");
    found
}

/// The words of `text` that begin with `start`.
fn words<'a>(text: &'a str, start: &'a str) -> impl Iterator<Item = &'a str> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "_-:/.".contains(c);
    text.split(move |c| !is_part(c))
        .filter(move |word| word.starts_with(start))
}

#[test]
fn ports_deadlines_images_and_users_are_the_products() {
    let server = ServerConfig::default();
    let [compose, deployment, service] = [COMPOSE, DEPLOYMENT, SERVICE].map(text);
    let kustomization = text("deploy/kubernetes/base/kustomization.yaml");
    let image = text("packaging/lib/oci.py");
    let (name, version) = ("souffleur", env!("CARGO_PKG_VERSION"));
    let grace = (server.shutdown_deadline_s + STOP_MARGIN_S).to_string();
    let (port, grace_s) = (server.port.to_string(), format!("{grace}s"));
    let (_, user) = image.split_once("\nUSER_ID = ").expect("an id");
    let user = user.lines().next().expect("a line");
    for (yaml, key, expected) in [
        (&deployment, "containerPort", port.as_str()),
        (&service, "port", &port),
        (&compose, "stop_grace_period", &grace_s),
        (&deployment, "terminationGracePeriodSeconds", &grace),
        (&kustomization, "newTag", version),
        (&deployment, "image", name),
        (&deployment, "runAsUser", user),
        (&deployment, "runAsGroup", user),
        (&deployment, "fsGroup", user),
    ] {
        assert_eq!(values(yaml, key), [expected], "{key}");
    }
    assert!(text("deploy/souffleur.service").contains(&format!("\nTimeoutStopSec={grace}\n")));
    let pre_stop_s: u32 = values(&deployment, "seconds")[0].parse().expect("seconds");
    assert!(pre_stop_s < STOP_MARGIN_S);
    assert_eq!(values(&compose, "image")[0], format!("{name}:{version}"));
    assert!(text("docs/operations.md").contains(&format!("docker-daemon:{name}:{version}\n")));
    let ports = values(&compose, "ports");
    assert_eq!(ports[0], format!("[\"127.0.0.1:{port}:{port}\"]"));
    assert!(ports.iter().all(|port| port.starts_with("[\"127.0.0.1:")));
    assert!(image.contains("\"Entrypoint\": [\"/usr/bin/souffleur\"]"));
    assert!(image.contains("\"Volumes\": {\"/models\": {}, \"/tmp\": {}}"));
    let mounts = values(&deployment, "mountPath");
    assert_eq!(mounts, ["/etc/souffleur", "/tmp", "/models"]);
    assert!(compose.contains("tmpfs: [/tmp]") && compose.contains("models:/models"));
}

#[test]
fn flags_keys_metrics_and_mounted_files_exist() {
    let ([compose, deployment], manifests) = ([COMPOSE, DEPLOYMENT].map(text), manifests());
    let keys = text("config/default.toml");
    let is_key = |key: &str| {
        let mut lines = keys.lines().map(|line| line.trim_start_matches("# "));
        lines.any(|line| line.starts_with(&format!("{key} = ")))
    };
    let variables: Vec<&str> = words(&manifests, "SOUFFLEUR_").collect();
    assert!(variables.len() > 3, "{variables:?}");
    for variable in variables {
        let key = variable.trim_start_matches("SOUFFLEUR_").to_lowercase();
        assert!(is_key(&key), "{variable} is no key");
    }
    let help = stdout(&run(&["serve", "--help"])) + &stdout(&run(&["chat", "--help"]));
    let serve = [values(&compose, "command"), values(&deployment, "args")].concat();
    let commands = [serve, values(&compose, "test")].concat().join(" ");
    let flags: Vec<&str> = words(&commands, "--").collect();
    assert_eq!(flags.len(), 4, "{flags:?}");
    for flag in flags {
        assert!(help.contains(&format!("{flag} <")), "{flag} is no flag");
    }
    let scaled = text("deploy/kubernetes/keda/scaledobject.yaml");
    let metrics: Vec<&str> = words(&scaled, "sglang:").collect();
    assert!(!metrics.is_empty());
    for metric in metrics {
        let mut families = souffleur::metrics::families();
        assert!(families.any(|family| family.name == metric), "{metric}");
    }
    let mounts: Vec<&str> = words(&compose, "../").collect();
    assert!(!mounts.is_empty());
    for mount in mounts {
        let source = mount.split(':').next().expect("a source");
        assert!(file("deploy/compose").join(source).exists(), "{source}");
    }
}

/// The status of a `GET` that names `host`.
fn status(server: &Server, path: &str, host: &str) -> String {
    let mut stream = TcpStream::connect(&server.address).expect("the server listens");
    let request = format!("GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer.split(' ').nth(1).expect("a status").to_owned()
}

/// Kubernetes' probes and Prometheus there name the pod's address.
#[test]
fn a_server_with_the_config_map_answers_probes_and_clients() {
    let config = file("deploy/kubernetes/base/souffleur.toml");
    let config = config.to_str().expect("UTF-8");
    let server = Server::start(&["--config", config, "--log-format", "text"]);
    let port = ServerConfig::default().port;
    let monitor = "deploy/kubernetes/monitoring/servicemonitor.yaml";
    let space = "deploy/kubernetes/base/namespace.yaml";
    let [deployment, monitor, service, space] = [DEPLOYMENT, monitor, SERVICE, space].map(text);
    for path in [values(&deployment, "path"), values(&monitor, "path")].concat() {
        assert_eq!(status(&server, path, "10.1.2.3:30000"), "200", "{path}");
    }
    let (service, space) = (values(&service, "name")[0], values(&space, "name")[0]);
    let domains = ["", ".svc", ".svc.cluster.local"].map(|end| format!(".{space}{end}"));
    for domain in domains.iter().map(String::as_str).chain([""]) {
        let host = format!("{service}{domain}:{port}");
        assert_eq!(status(&server, "/v1/models", &host), "200", "{host}");
    }
    assert_eq!(status(&server, "/v1/models", "other.example"), "403");
    server.signal("TERM");
    server.wait(EXIT_LIMIT);
}

/// Prometheus, and clients in the network of the Compose file, name the service.
#[test]
fn a_server_with_the_compose_files_command_is_scraped_and_healthy() {
    let compose = text(COMPOSE);
    let command = values(&compose, "command")[0].trim_matches(['[', ']']);
    let args: Vec<&str> = command.split(", ").skip(1).collect();
    let server = Server::start(&args);
    let scrapes = text("deploy/prometheus/prometheus.yml");
    let target = words(&scrapes, "souffleur:").next().expect("a target");
    assert_eq!(status(&server, "/metrics", target), "200", "{target}");
    assert_eq!(status(&server, "/metrics", "other.example"), "403");
    let probe = values(&compose, "test")[0].trim_matches(['[', ']']);
    let port = ServerConfig::default().port;
    assert!(probe.ends_with(&format!("\"http://127.0.0.1:{port}\"")));
    let url = format!("http://{}", server.address);
    let args: Vec<&str> = probe.split(", ").skip(2).collect();
    let (_, flags) = args.split_last().expect("arguments");
    let check = || souffleur(flags).arg(&url).stdin(Stdio::null()).output();
    let healthy = check().expect("the binary runs");
    assert!(healthy.status.success(), "{}", stderr(&healthy));
    server.signal("TERM");
    server.wait(EXIT_LIMIT);
    assert_eq!(check().expect("the binary runs").status.code(), Some(1));
}
