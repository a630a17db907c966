//! Formats that are written here as patterns, because llguidance's let through what validators refuse: a second 60 in
//! any minute, and a 29th of February in any year.

use serde_json::{Map, Value, json};

/// Days that every year has, and the 29th of February of leap years.
const DATE: &str = "(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])\
    |(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))\
    |(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)";
const TIME: &str = "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,9})?\
    (?:[zZ]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])";

/// Writes the format of a schema as a pattern beside its other keywords, if it is one of these.
pub(super) fn spell_out(schema: &mut Map<String, Value>) {
    let pattern = match schema.get("format").and_then(Value::as_str) {
        Some("date") => format!("^{DATE}$"),
        Some("time") => format!("^{TIME}$"),
        Some("date-time") => format!("^{DATE}[tT]{TIME}$"),
        _ => return,
    };
    schema.shift_remove("format");
    if !schema.contains_key("pattern") {
        schema.insert("pattern".to_owned(), pattern.into());
        return;
    }
    let all = schema.entry("allOf").or_insert_with(|| json!([]));
    if let Some(all) = all.as_array_mut() {
        all.push(json!({ "pattern": pattern }));
    }
}
