//! Rewrites formats as patterns, because llguidance's formats accept texts that validators reject: second 60 in any
//! minute, February 29 in any year, host names and mailboxes that are too long.

use serde_json::{Map, Value, json};

/// The days that every year has, and February 29 of leap years.
const DATE: &str = "(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])\
    |(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))\
    |(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)";
const TIME: &str = "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,9})?\
    (?:[zZ]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])";

const LABEL: &str = "[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?";
/// A part between dots in the name of a mailbox.
const ATOM: &str = "[a-zA-Z0-9!#$%&'*+\\-/=?^_`{|}~]+";
const IPV4_BYTE: &str = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";
const HOSTNAME_LENGTH: &str = "^.{1,253}$";
const EMAIL_LENGTH: &str = "^[^@]{1,64}@[^@]{1,253}$";

/// Replaces the format of a schema with patterns, if [`patterns`] has any for it.
pub(super) fn replace_format(schema: &mut Map<String, Value>) {
    let format = schema.get("format").and_then(Value::as_str);
    let patterns = format.map(patterns).unwrap_or_default();
    if patterns.is_empty() {
        return;
    }
    schema.shift_remove("format");
    for pattern in patterns {
        add(schema, pattern);
    }
}

/// The patterns that a text of the format must match; empty for other formats.
fn patterns(format: &str) -> Vec<String> {
    let hostname = format!("{LABEL}(?:\\.{LABEL})*");
    match format {
        "date" => vec![format!("^{DATE}$")],
        "time" => vec![format!("^{TIME}$")],
        "date-time" => vec![format!("^{DATE}[tT]{TIME}$")],
        "hostname" => vec![format!("^{hostname}$"), HOSTNAME_LENGTH.to_owned()],
        "email" => {
            let literal = format!("\\[(?:{IPV4_BYTE}\\.){{3}}{IPV4_BYTE}\\]");
            let email = format!("^{ATOM}(?:\\.{ATOM})*@(?:{hostname}|{literal})$");
            vec![email, EMAIL_LENGTH.to_owned()]
        }
        _ => Vec::new(),
    }
}

fn add(schema: &mut Map<String, Value>, pattern: String) {
    if !schema.contains_key("pattern") {
        schema.insert("pattern".to_owned(), pattern.into());
        return;
    }
    let all = schema.entry("allOf").or_insert_with(|| json!([]));
    if let Some(all) = all.as_array_mut() {
        all.push(json!({ "pattern": pattern }));
    }
}
