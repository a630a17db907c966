//! The dashboard as the JSON that Grafana imports.

use serde_json::{Value, json};

use super::panels::{Panel, Row, Shape};

/// The schema of Grafana 10.0; newer versions convert it when they load it.
const SCHEMA: u32 = 38;
/// The widths and heights of panels, in units of Grafana's grid of 24 columns.
const NUMBER: (u64, u64) = (4, 4);
const GRAPH: (u64, u64) = (8, 8);
const SMALL_GRAPH: (u64, u64) = (6, 6);
pub const COLUMNS: u64 = 24;

/// The longest line in which a list or an object is written.
const LINE: usize = 120;

pub fn dashboard(rows: &[Row]) -> Value {
    json!({
        "uid": "souffleur",
        "title": "Souffleur",
        "tags": ["souffleur", "llm"],
        "schemaVersion": SCHEMA,
        "editable": true,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "timezone": "browser",
        "templating": {"list": variables()},
        "panels": panels(rows),
    })
}

/// Each variable offers the values that match those before it, so a choice of models also selects their instances.
fn variables() -> Vec<Value> {
    let of_label = |label: &str, shown: &str, query: &str| {
        json!({
            "name": label,
            "label": shown,
            "type": "query",
            "datasource": datasource(),
            "definition": query,
            "query": {"qryType": 1, "query": query, "refId": "PrometheusVariableQueryEditor-VariableQuery"},
            "refresh": 2,
            "sort": 1,
            "multi": true,
            "includeAll": true,
            "current": {"selected": true, "text": ["All"], "value": ["$__all"]},
        })
    };
    vec![
        json!({
            "name": "datasource",
            "label": "Data source",
            "type": "datasource",
            "query": "prometheus",
            "refresh": 1,
        }),
        of_label(
            "model_name",
            "Model",
            "label_values(sglang:num_running_reqs, model_name)",
        ),
        of_label(
            "instance",
            "Instance",
            r#"label_values(sglang:num_running_reqs{model_name=~"$model_name"}, instance)"#,
        ),
    ]
}

fn datasource() -> Value {
    json!({"type": "prometheus", "uid": "${datasource}"})
}

fn panels(rows: &[Row]) -> Vec<Value> {
    let (mut all, mut id, mut y) = (Vec::new(), 0, 0);
    let mut next_id = || {
        id += 1;
        id
    };
    for row in rows {
        let row_id = next_id();
        let (mut own, mut x, mut below, mut at) = (Vec::new(), 0, y + 1, y + 1);
        for panel in &row.panels {
            let (width, height) = match (row.is_collapsed, panel.shape) {
                (true, _) => SMALL_GRAPH,
                (_, Shape::Graph) => GRAPH,
                _ => NUMBER,
            };
            if x + width > COLUMNS {
                (x, at) = (0, below);
            }
            let place = json!({"h": height, "w": width, "x": x, "y": at});
            own.push(panel_json(panel, next_id(), place));
            x += width;
            below = below.max(at + height);
        }
        let (inside, after) = if row.is_collapsed {
            (own, Vec::new())
        } else {
            (Vec::new(), own)
        };
        all.push(json!({
            "id": row_id,
            "type": "row",
            "title": row.title,
            "collapsed": row.is_collapsed,
            "gridPos": {"h": 1, "w": COLUMNS, "x": 0, "y": y},
            "panels": inside,
        }));
        all.extend(after);
        y = if row.is_collapsed { y + 1 } else { below };
    }
    all
}

fn panel_json(panel: &Panel, id: u64, place: Value) -> Value {
    let is_instant = panel.shape != Shape::Graph;
    let targets = panel.queries.iter().zip('A'..='Z').map(|(query, name)| {
        json!({
            "refId": name.to_string(),
            "datasource": datasource(),
            "editorMode": "code",
            "expr": query.expr,
            "legendFormat": query.legend,
            "instant": is_instant,
            "range": !is_instant,
        })
    });
    let last = json!({"calcs": ["lastNotNull"], "fields": "", "values": false});
    let (kind, options, custom) = match panel.shape {
        Shape::Graph => (
            "timeseries",
            json!({
                "legend": {"displayMode": "list", "placement": "bottom", "showLegend": true},
                "tooltip": {"mode": "multi", "sort": "desc"},
            }),
            json!({"fillOpacity": 10, "showPoints": "never", "spanNulls": false}),
        ),
        Shape::Number => (
            "stat",
            json!({"textMode": "value", "reduceOptions": last}),
            json!({}),
        ),
        Shape::Name => (
            "stat",
            json!({"textMode": "name", "reduceOptions": last}),
            json!({}),
        ),
    };
    json!({
        "id": id,
        "type": kind,
        "title": panel.title,
        "description": panel.about,
        "gridPos": place,
        "datasource": datasource(),
        "targets": targets.collect::<Vec<_>>(),
        "fieldConfig": {"defaults": {"unit": panel.unit, "custom": custom}, "overrides": []},
        "options": options,
    })
}

/// JSON with one line for each list or object that fits into it.
pub fn pretty(value: &Value, indent: usize) -> String {
    let line = value.to_string();
    if line.len() + indent <= LINE {
        return line;
    }
    let (open, close, items): (_, _, Vec<String>) = match value {
        Value::Array(items) => (
            '[',
            ']',
            items.iter().map(|item| pretty(item, indent + 2)).collect(),
        ),
        Value::Object(fields) => {
            let field = |(key, value): (&String, &Value)| {
                format!(
                    "{}: {}",
                    Value::from(key.as_str()),
                    pretty(value, indent + 2)
                )
            };
            ('{', '}', fields.iter().map(field).collect())
        }
        _ => return line,
    };
    let (pad, end) = (" ".repeat(indent + 2), " ".repeat(indent));
    let items = items.join(&format!(",\n{pad}"));
    format!("{open}\n{pad}{items}\n{end}{close}")
}
