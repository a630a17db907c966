//! Panels of the dashboard: those of `panels.txt`, and one for each other metric.

use std::collections::BTreeSet;

use souffleur::metrics::{Family, Kind, families};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    Graph,
    /// The last value of each query.
    Number,
    /// The legend of each query, without its value.
    Name,
}

pub struct Query {
    pub legend: String,
    pub expr: String,
}

pub struct Panel {
    pub title: String,
    pub shape: Shape,
    /// One of the ids of Grafana's units.
    pub unit: String,
    pub about: String,
    pub queries: Vec<Query>,
}

pub struct Row {
    pub title: String,
    /// Grafana runs the queries of a collapsed row only after it is opened.
    pub is_collapsed: bool,
    pub panels: Vec<Panel>,
}

/// All rows. Each metric is in a panel.
pub fn rows() -> Vec<Row> {
    let mut rows = written(include_str!("panels.txt"));
    let panels = rows.iter().flat_map(|row| &row.panels);
    let queries = panels.flat_map(|panel| &panel.queries);
    let named: Vec<Family> = queries.flat_map(|query| families_in(&query.expr)).collect();
    let named: BTreeSet<&str> = named.iter().map(|family| family.name).collect();
    let mut others: Vec<Family> = families()
        .filter(|family| !named.contains(family.name))
        .collect();
    others.sort_by_key(|family| family.name);
    for prefix in ["sglang:", "souffleur_"] {
        let has_prefix = |family: &Family| family.name.starts_with(prefix);
        let (own, rest) = others.into_iter().partition(has_prefix);
        let own: Vec<Family> = own;
        others = rest;
        rows.push(Row {
            title: format!("Other metrics: {prefix}"),
            is_collapsed: true,
            panels: own.iter().map(panel_of).collect(),
        });
    }
    assert!(others.is_empty(), "no row has the prefix of {others:?}");
    rows
}

fn written(table: &str) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for line in table.lines().filter(|line| !line.starts_with('#')) {
        if let Some(title) = line.strip_prefix("== ") {
            rows.push(Row {
                title: title.to_owned(),
                is_collapsed: false,
                panels: Vec::new(),
            });
            continue;
        }
        let panels = &mut rows.last_mut().expect("a row").panels;
        if let Some(heading) = line.strip_prefix("-- ") {
            panels.push(heading_of(heading));
        } else if !line.is_empty() {
            let panel = panels.last_mut().expect("a panel");
            let (legend, expr) = line.split_once(" = ").expect("legend = query");
            match legend {
                "quantiles" => panel.queries.extend(quantiles(expr)),
                _ => panel.queries.push(query(legend, expr)),
            }
        }
    }
    for panel in rows.iter_mut().flat_map(|row| &mut row.panels) {
        panel.about = about(panel);
    }
    rows
}

/// Reads `title [shape, unit]`.
fn heading_of(heading: &str) -> Panel {
    let parts = heading.strip_suffix(']').and_then(|rest| {
        let (title, rest) = rest.split_once(" [")?;
        let (shape, unit) = rest.split_once(", ")?;
        Some((title, shape, unit))
    });
    let (title, shape, unit) = parts.unwrap_or_else(|| panic!("not a heading: {heading}"));
    Panel {
        title: title.to_owned(),
        shape: match shape {
            "graph" => Shape::Graph,
            "number" => Shape::Number,
            "name" => Shape::Name,
            _ => panic!("no shape: {heading}"),
        },
        unit: unit.to_owned(),
        about: String::new(),
        queries: Vec::new(),
    }
}

fn query(legend: &str, expr: &str) -> Query {
    let expr = expr.replace('{', r#"{instance=~"$instance", "#);
    Query {
        legend: legend.to_owned(),
        expr: expr.replace(", }", "}").replace("[]", "[$__rate_interval]"),
    }
}

fn quantiles(name: &str) -> impl Iterator<Item = Query> {
    [(50, "0.5"), (95, "0.95"), (99, "0.99")]
        .map(|(percent, quantile)| {
            let rate = format!("sum by (le) (rate({name}_bucket{{}}[]))");
            let expr = format!("histogram_quantile({quantile}, {rate})");
            query(&format!("p{percent}"), &expr)
        })
        .into_iter()
}

/// The help texts of the panel's metrics.
fn about(panel: &Panel) -> String {
    let mut texts: Vec<String> = Vec::new();
    for family in panel
        .queries
        .iter()
        .flat_map(|query| families_in(&query.expr))
    {
        let text = format!("`{}`: {}", family.name, family.help);
        if !texts.contains(&text) {
            texts.push(text);
        }
    }
    texts.join("\n\n")
}

/// The panel of a metric that is not in the table.
fn panel_of(family: &Family) -> Panel {
    let name = family.name;
    let queries = match family.kind {
        Kind::Counter | Kind::Seconds => vec![query("__auto", &format!("rate({name}{{}}[])"))],
        Kind::Gauge => vec![query("__auto", &format!("{name}{{}}"))],
        Kind::Histogram => quantiles(name).collect(),
    };
    let title = match family.kind {
        Kind::Counter => format!("{name}, per second"),
        _ => name.to_owned(),
    };
    let units = [
        ("_seconds_total", "percentunit"),
        ("_seconds", "s"),
        ("_bytes", "bytes"),
        ("_bytes_total", "Bps"),
        ("_usage_gb", "gbytes"),
        ("_usage", "percentunit"),
        ("_ratio", "percentunit"),
        ("utilization", "percentunit"),
    ];
    let unit = units.iter().find(|(end, _)| name.ends_with(end));
    Panel {
        title,
        shape: Shape::Graph,
        unit: unit.map_or("short", |(_, unit)| unit).to_owned(),
        about: family.help.to_owned(),
        queries,
    }
}

/// The metrics that a query names. Fails if a name is not that of a metric.
pub fn families_in(expr: &str) -> Vec<Family> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let names = expr.split(|c: char| !is_name(c));
    let names = names.filter(|name| name.starts_with("sglang:") || name.starts_with("souffleur_"));
    let family = |name: &str| {
        families().find(|family| match family.kind {
            Kind::Histogram => {
                let part = name.strip_prefix(family.name);
                part.is_some_and(|part| ["_bucket", "_count", "_sum"].contains(&part))
            }
            _ => name == family.name,
        })
    };
    names
        .map(|name| family(name).unwrap_or_else(|| panic!("{name} is no metric: {expr}")))
        .collect()
}
