//! Rewrites the regular expressions of a JSON schema.

use serde_json::{Map, Value};

use super::keywords::{Keyword, keyword};

/// Replaces each pattern of a schema, including the keys of `patternProperties`.
pub(crate) fn map_patterns(schema: &mut Value, map: &mut dyn FnMut(&str) -> String) {
    let object = match schema {
        Value::Object(object) => object,
        Value::Array(items) => return items.iter_mut().for_each(|item| map_patterns(item, map)),
        _ => return,
    };
    for (name, value) in object {
        match (keyword(name), value) {
            (Keyword::Pattern, Value::String(pattern)) => *pattern = map(pattern),
            (Keyword::Schema | Keyword::SchemaList, value) => map_patterns(value, map),
            (Keyword::SchemaMap, Value::Object(named)) => {
                named
                    .values_mut()
                    .for_each(|value| map_patterns(value, map));
                if name == "patternProperties" {
                    *named = with_keys(std::mem::take(named), map);
                }
            }
            _ => {}
        }
    }
}

/// Rewrites the patterns that are keys; patterns that become equal get suffixes to stay distinct.
fn with_keys(named: Map<String, Value>, map: &mut dyn FnMut(&str) -> String) -> Map<String, Value> {
    let mut kept = Map::new();
    for (at, (pattern, schema)) in named.into_iter().enumerate() {
        let mut pattern = map(&pattern);
        if kept.contains_key(&pattern) {
            // A repeated empty group changes no match, and its count makes the key unique.
            pattern = format!("(?:{pattern})(?:){{{at}}}");
        }
        kept.insert(pattern, schema);
    }
    kept
}
