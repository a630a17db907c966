//! Tests of the Grafana dashboard: the committed file, Grafana's rules, and data from a real Prometheus.
//!
//! `SOUFFLEUR_WRITE_DASHBOARD=1 cargo test --test cli committed_dashboard` writes the dashboard, which is made of
//! `panels.txt` and of the names, types and help texts of all metrics.

mod json;
mod live;
mod load;
mod panels;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use souffleur::metrics::families;

use json::{COLUMNS, dashboard, pretty};
use panels::{families_in, rows};

const WRITE: &str = "SOUFFLEUR_WRITE_DASHBOARD";
const DASHBOARD: &str = "deploy/grafana/souffleur.json";

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn text(name: &str) -> String {
    fs::read_to_string(file(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn committed() -> Value {
    serde_json::from_str(&text(DASHBOARD)).unwrap_or_else(|error| panic!("{DASHBOARD}: {error}"))
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn str_of(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("no text: {value}"))
}

/// The panels with queries, those in collapsed rows included.
fn query_panels(dashboard: &Value) -> Vec<&Value> {
    let all = list(&dashboard["panels"]).iter();
    let all = all.flat_map(|panel| std::iter::once(panel).chain(list(&panel["panels"])));
    all.filter(|panel| panel["type"] != "row").collect()
}

#[test]
fn the_committed_dashboard_is_made_of_all_metrics() {
    let made = pretty(&dashboard(&rows()), 0) + "\n";
    if std::env::var_os(WRITE).is_some() {
        fs::write(file(DASHBOARD), &made).expect("the repository is writable");
    }
    assert!(
        text(DASHBOARD) == made,
        "{DASHBOARD} is not made of panels.txt and the metrics: run {WRITE}=1 cargo test --test cli committed_dashboard"
    );
    let committed = committed();
    let queries = query_panels(&committed)
        .into_iter()
        .flat_map(|panel| list(&panel["targets"]));
    let shown: BTreeSet<&str> = queries
        .flat_map(|query| families_in(str_of(&query["expr"])))
        .map(|family| family.name)
        .collect();
    let all: BTreeSet<&str> = families().map(|family| family.name).collect();
    assert_eq!(shown, all);
}

/// Left and right column, first and last line.
fn place(panel: &Value) -> [u64; 4] {
    let of = |key: &str| panel["gridPos"][key].as_u64().expect("a place");
    [of("x"), of("x") + of("w"), of("y"), of("y") + of("h")]
}

fn check_places(panels: &[Value]) {
    for (index, panel) in panels.iter().enumerate() {
        let [left, right, top, bottom] = place(panel);
        assert!(left < right && right <= COLUMNS && top < bottom, "{panel}");
        for other in &panels[..index] {
            let [other_left, other_right, other_top, other_bottom] = place(other);
            let is_apart = right <= other_left
                || other_right <= left
                || bottom <= other_top
                || other_bottom <= top;
            assert!(is_apart, "{panel}\nis over\n{other}");
        }
    }
}

#[test]
fn the_dashboard_keeps_the_rules_of_grafana() {
    let dashboard = committed();
    let top = list(&dashboard["panels"]);
    check_places(top);
    top.iter()
        .for_each(|row| check_places(list(&row["panels"])));
    let panels = query_panels(&dashboard);
    let rows = top.iter().filter(|panel| panel["type"] == "row");
    let mut ids = BTreeSet::new();
    for panel in rows.chain(panels.iter().copied()) {
        assert!(ids.insert(panel["id"].as_u64().expect("an id")), "{panel}");
        assert!(!str_of(&panel["title"]).is_empty(), "{panel}");
    }
    let names = list(&dashboard["templating"]["list"]);
    let names: Vec<&str> = names
        .iter()
        .map(|variable| str_of(&variable["name"]))
        .collect();
    assert_eq!(names, ["datasource", "model_name", "instance"]);
    for panel in panels {
        assert!(
            ["timeseries", "stat"].contains(&str_of(&panel["type"])),
            "{panel}"
        );
        assert_eq!(panel["datasource"]["uid"], "${datasource}");
        let mut refs = BTreeSet::new();
        for query in list(&panel["targets"]) {
            assert!(refs.insert(str_of(&query["refId"])), "{panel}");
            assert_eq!(query["datasource"], panel["datasource"]);
            assert!(
                str_of(&query["expr"]).contains(r#"instance=~"$instance""#),
                "{query}"
            );
        }
        assert!(!refs.is_empty(), "{panel}");
    }
}

/// Grafana computes the intervals of rates from Prometheus' scrape interval.
#[test]
fn grafana_knows_the_scrape_interval() {
    let value = |name: &str, key: &str| {
        let text = text(name);
        let mut lines = text.lines();
        let value = lines.find_map(|line| line.trim().strip_prefix(key).map(str::to_owned));
        value.unwrap_or_else(|| panic!("{name} has no {key}"))
    };
    assert_eq!(
        value(
            "deploy/grafana/provisioning/datasources/souffleur.yml",
            "timeInterval: "
        ),
        value("deploy/prometheus/prometheus.yml", "scrape_interval: "),
    );
}
