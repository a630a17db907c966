//! A real Prometheus that scrapes a server: each query of `deploy/` and of SGLang's dashboard gets data.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use super::{committed, list, load, query_panels, str_of, text};
use crate::agents_model;
use crate::serving::Server;

const LIMIT: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(50);
/// Four scrape intervals, as Grafana computes it.
const RATE_INTERVAL: &str = "1m";

struct Prometheus {
    child: Child,
    address: String,
    _folder: TempDir,
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A query that must get numbers, with these labels.
struct Check {
    source: String,
    expr: String,
    labels: Vec<String>,
}

impl Prometheus {
    /// Runs Prometheus with the rules and the configuration of `deploy/`, but with this server and short intervals.
    fn start(server: &str) -> Option<Self> {
        let folder = tempfile::tempdir().expect("temporary folder");
        let mut config = text("deploy/prometheus/prometheus.yml");
        for (from, to) in [
            ("souffleur:30000", server),
            ("interval: 15s", "interval: 200ms"),
        ] {
            assert!(config.contains(from), "{from} is not in {config}");
            config = config.replace(from, to);
        }
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text);
        write("prometheus.yml", &config).expect("writable");
        write("rules.yml", &text("deploy/prometheus/rules.yml")).expect("writable");
        let mut command = Command::new("prometheus");
        command.args([
            "--config.file=prometheus.yml",
            "--storage.tsdb.path=data",
            "--web.listen-address=127.0.0.1:0",
        ]);
        command.current_dir(folder.path()).stdout(Stdio::null());
        let mut child = match command.stderr(Stdio::piped()).spawn() {
            Ok(child) => child,
            Err(error) if std::env::var_os("CI").is_none() => {
                eprintln!("skipped: cannot run prometheus: {error}");
                return None;
            }
            Err(error) => panic!("CI needs prometheus: {error}"),
        };
        let log = BufReader::new(child.stderr.take().expect("piped"));
        let (lines, read) = mpsc::channel();
        // Reads until the end, because Prometheus waits while its log's pipe is full.
        thread::spawn(move || {
            log.lines()
                .map_while(Result::ok)
                .for_each(|line| drop(lines.send(line)))
        });
        let mut prometheus = Self {
            child,
            address: String::new(),
            _folder: folder,
        };
        let (mut log, mut is_ready) = (String::new(), false);
        while prometheus.address.is_empty() || !is_ready {
            let line = read
                .recv_timeout(LIMIT)
                .unwrap_or_else(|error| panic!("{error}: {log}"));
            if line.contains("\"Listening on\"") {
                let (_, address) = line.split_once("address=").expect("an address");
                prometheus.address = address.to_owned();
            }
            is_ready |= line.contains("ready to receive web requests");
            log = log + &line + "\n";
        }
        Some(prometheus)
    }

    /// The data of an answer of Prometheus' API. Fails if there is an error, as in a query with wrong syntax.
    fn get(&self, path: &str) -> Value {
        let mut stream = TcpStream::connect(&self.address).expect("Prometheus listens");
        write!(stream, "GET /api/v1/{path} HTTP/1.0\r\n\r\n").expect("Prometheus reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        let (_, body) = answer.split_once("\r\n\r\n").expect("a body");
        let mut body: Value = serde_json::from_str(body).unwrap_or_else(|_| panic!("{answer}"));
        assert_eq!(body["status"], "success", "{path}: {body}");
        body["data"].take()
    }

    /// The reason why a query has no data.
    fn missing(&self, check: &Check) -> Option<String> {
        let data = self.get(&format!("query?query={}", percent_encoded(&check.expr)));
        let series = list(&data["result"]);
        let is_number = |series: &Value| str_of(&series["value"][1]) != "NaN";
        let lacks = |label: &&String| {
            series
                .iter()
                .any(|one| one["metric"][label.as_str()].is_null())
        };
        let reason = match check.labels.iter().find(lacks) {
            _ if series.is_empty() => "no series".to_owned(),
            _ if !series.iter().any(is_number) => "no number".to_owned(),
            Some(label) => format!("no label {label}"),
            None => return None,
        };
        Some(format!("{}: {reason}: {}", check.source, check.expr))
    }

    /// Waits until all queries have data, and returns the reasons for those that have none.
    fn wait_for(&self, mut checks: Vec<Check>) -> Vec<String> {
        let began = Instant::now();
        loop {
            checks.retain(|check| self.missing(check).is_some());
            if checks.is_empty() || began.elapsed() > LIMIT {
                return checks
                    .iter()
                    .filter_map(|check| self.missing(check))
                    .collect();
            }
            thread::sleep(PAUSE);
        }
    }

    /// The values of a variable's query, `label_values(metric, label)`, joined as Grafana joins them.
    fn values_of(&self, query: &str) -> String {
        let inside = query
            .strip_prefix("label_values(")
            .and_then(|rest| rest.strip_suffix(')'));
        let (metric, label) = inside
            .and_then(|inside| inside.rsplit_once(", "))
            .expect("label_values");
        let data = self.get(&format!(
            "label/{label}/values?match[]={}",
            percent_encoded(metric)
        ));
        let values: Vec<&str> = list(&data).iter().map(str_of).collect();
        assert!(!values.is_empty(), "no values: {query}");
        format!("({})", values.join("|"))
    }

    /// The queries of all rules, as Prometheus read them. Of an alert, each side of `or` must have data without its
    /// thresholds.
    fn rules(&self) -> Vec<Check> {
        let data = self.get("rules");
        let rules = list(&data["groups"])
            .iter()
            .flat_map(|group| list(&group["rules"]));
        let mut checks = Vec::new();
        for rule in rules {
            let name = str_of(&rule["name"]);
            let check = |expr: String| Check {
                source: format!("rule {name}"),
                expr,
                labels: Vec::new(),
            };
            if rule["type"] == "recording" {
                checks.push(check(name.to_owned()));
            }
            checks.extend(
                without_thresholds(str_of(&rule["query"]))
                    .into_iter()
                    .map(check),
            );
        }
        checks
    }
}

fn percent_encoded(text: &str) -> String {
    let encoded = text.bytes().map(|byte| match byte {
        b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' | b'_' | b':' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    });
    encoded.collect()
}

/// The sides of `or`, without comparisons to numbers.
fn without_thresholds(query: &str) -> Vec<String> {
    let mut sides = vec![Vec::new()];
    let mut words = query.split(' ');
    while let Some(word) = words.next() {
        if [">", "<", ">=", "<=", "==", "!="].contains(&word) {
            let threshold = words.next().and_then(|word| word.parse::<f64>().ok());
            threshold.unwrap_or_else(|| panic!("no threshold: {query}"));
        } else if word == "or" {
            sides.push(Vec::new());
        } else if let Some(side) = sides.last_mut() {
            side.push(word);
        }
    }
    sides.iter().map(|side| side.join(" ")).collect()
}

/// The labels of a legend: those in `{{…}}`.
fn labels_in(legend: &str) -> Vec<String> {
    let parts = legend.split("{{").skip(1);
    parts
        .filter_map(|part| Some(part.split_once("}}")?.0.to_owned()))
        .collect()
}

/// The queries of the dashboard and of SGLang's, with variables as they are in the queries.
fn dashboard_checks(dashboard: &Value) -> Vec<Check> {
    let mut checks = Vec::new();
    for panel in query_panels(dashboard) {
        for query in list(&panel["targets"]) {
            checks.push(Check {
                source: format!("panel {}, query {}", panel["title"], query["refId"]),
                expr: str_of(&query["expr"]).to_owned(),
                labels: labels_in(str_of(&query["legendFormat"])),
            });
        }
    }
    let sglang = text("tests/fixtures/sglang_dashboard.txt");
    for query in sglang.lines().filter(|line| !line.starts_with('#')) {
        checks.push(Check {
            source: "SGLang's dashboard".to_owned(),
            expr: query.to_owned(),
            labels: Vec::new(),
        });
    }
    checks
}

#[test]
fn each_query_of_deploy_gets_data_from_prometheus() {
    let server = Server::start_with(&agents_model(), &load::FLAGS);
    let Some(prometheus) = Prometheus::start(&server.address) else {
        return;
    };
    let check = |expr: &str| Check {
        source: "test".to_owned(),
        expr: expr.to_owned(),
        labels: Vec::new(),
    };
    // A rate needs a scrape before the load and one after it.
    let scraped = prometheus.wait_for(vec![check("sglang:num_requests_total")]);
    assert_eq!(scraped, [""; 0]);
    load::play(&server);
    let dashboard = committed();
    let mut variables = vec![("$__rate_interval".to_owned(), RATE_INTERVAL.to_owned())];
    for variable in list(&dashboard["templating"]["list"]) {
        if variable["type"] == "query" {
            let query = with_values(str_of(&variable["definition"]), &variables);
            let name = format!("${}", str_of(&variable["name"]));
            variables.push((name, prometheus.values_of(&query)));
        }
    }
    let mut checks = dashboard_checks(&dashboard);
    for check in &mut checks {
        check.expr = with_values(&check.expr, &variables);
        assert!(!check.expr.contains('$'), "{}", check.expr);
    }
    let (n_panels, rules) = (checks.len(), prometheus.rules());
    let n_rules = text("deploy/prometheus/rules.yml")
        .matches("expr: ")
        .count();
    assert!(
        n_panels > 100 && rules.len() >= n_rules,
        "{n_panels} queries, {} of rules",
        rules.len()
    );
    checks.extend(rules);
    assert_eq!(prometheus.wait_for(checks), [""; 0], "queries without data");
    assert!(
        prometheus
            .missing(&check("sglang:no_such_metric"))
            .is_some()
    );
    assert!(
        prometheus
            .missing(&check("0 / (sglang:page_size - sglang:page_size)"))
            .is_some()
    );
    server.signal("TERM");
    assert_eq!(server.wait(LIMIT).0.code(), Some(0));
}

fn with_values(query: &str, variables: &[(String, String)]) -> String {
    let replace = |query: String, (name, value): &(String, String)| query.replace(name, value);
    variables.iter().fold(query.to_owned(), replace)
}
