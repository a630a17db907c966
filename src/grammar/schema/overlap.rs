//! Limits the patterns that apply to one string, because their costs multiply.
//!
//! llguidance matches all patterns of a string at once: twenty patterns take seconds and sixty exhaust the memory,
//! which its limits do not count. So this module counts the patterns beforehand. It collects the schemas that apply to
//! one value, through references, `allOf` and branches of `anyOf` and `oneOf`, then the schemas of the value's parts.
//! It also refuses `multipleOf` values with a large common multiple, and exclusive bounds close to the opposite bound.

use rustc_hash::FxHashSet;
use serde_json::{Map, Value};

use super::numbers;

/// Maximum product of the sizes of a string's patterns.
const MAX_PRODUCT: u64 = 1_000_000;
/// Maximum size of a pattern: the cost of a longer one does not grow.
const MAX_SIZE: u64 = 256;
/// The size that a format counts as.
const FORMAT_SIZE: u64 = 16;
/// Maximum number of visits of schemas. A schema is visited for each value that it may apply to.
const MAX_VISITS: usize = 500_000;
/// Maximum number of schemas in all sets that are copied for branches and parts.
const MAX_COPIES: usize = 4_000_000;

/// Why a schema is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    TooManyPatterns,
    TooManyCombinations { limit: usize },
    LargeMultiples,
    NearBounds,
}

impl Fault {
    pub(super) fn reason(self) -> String {
        match self {
            Self::TooManyPatterns => format!(
                "the patterns that apply to one string are too long together: the product of their lengths is above \
                 {MAX_PRODUCT}: use fewer or shorter patterns"
            ),
            Self::TooManyCombinations { limit } => format!(
                "the combinations of anyOf, oneOf, allOf and $ref contain more than {limit} schemas: use fewer \
                 alternatives or references"
            ),
            Self::LargeMultiples => {
                "the multipleOf values that apply to one number need a common multiple of at most 65535, counted \
                 without the decimal point (1.5 and 0.25 count as 150 and 25)"
                    .to_owned()
            }
            Self::NearBounds => {
                "an integer as exclusiveMinimum or exclusiveMaximum is supported only if the opposite bound is at \
                 least 1 away: use an inclusive bound"
                    .to_owned()
            }
        }
    }
}

/// Refuses schemas that have a [`Fault`].
pub(super) fn check(schema: &Value) -> Result<(), Fault> {
    let found = SchemaFeatures::of(schema);
    let multiples_combine = found.may_combine && found.n_multiples > 0;
    let bounds_combine = found.may_combine && found.exclusive_bounds;
    if found.n_patterns <= 1 && !multiples_combine && !bounds_combine {
        return Ok(());
    }
    let mut walk = Walk {
        root: schema,
        multiples_combine,
        visits: 0,
        copies: 0,
        added: FxHashSet::default(),
        waiting: Vec::new(),
    };
    walk.add(vec![Applied::new(schema)]);
    while let Some(together) = walk.waiting.pop() {
        walk.visit(together)?;
    }
    Ok(())
}

#[derive(Default)]
struct SchemaFeatures {
    n_patterns: usize,
    n_multiples: usize,
    /// Whether some bound is exclusive.
    exclusive_bounds: bool,
    /// Whether several schemas may apply to one value.
    may_combine: bool,
}

impl SchemaFeatures {
    fn of(schema: &Value) -> Self {
        let mut found = Self::default();
        let mut waiting = vec![schema];
        while let Some(value) = waiting.pop() {
            match value {
                Value::Array(items) => waiting.extend(items),
                Value::Object(object) => {
                    let has = |name: &str| object.contains_key(name);
                    found.n_patterns += usize::from(has("pattern")) + usize::from(has("format"));
                    found.n_multiples += usize::from(has("multipleOf"));
                    found.exclusive_bounds |= has("exclusiveMinimum") || has("exclusiveMaximum");
                    let combines = ["$ref", "anyOf", "oneOf", "patternProperties"].map(has);
                    let combines = combines.contains(&true) && object.len() > 1;
                    found.may_combine |= has("allOf") || combines;
                    waiting.extend(object.values());
                }
                _ => {}
            }
        }
        found
    }
}

/// A schema that applies to a value, and the number of its `anyOf` and `oneOf` lists with a chosen branch.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Applied<'a> {
    schema: &'a Value,
    chosen: usize,
}

struct Walk<'a> {
    root: &'a Value,
    multiples_combine: bool,
    visits: usize,
    copies: usize,
    /// The added sets of schemas, as sorted addresses and numbers of chosen branches.
    added: FxHashSet<Vec<(usize, usize)>>,
    waiting: Vec<Vec<Applied<'a>>>,
}

impl<'a> Applied<'a> {
    fn new(schema: &'a Value) -> Self {
        Self { schema, chosen: 0 }
    }

    fn key(&self) -> (usize, usize) {
        (std::ptr::from_ref(self.schema) as usize, self.chosen)
    }

    /// The `anyOf` and `oneOf` lists of the schema.
    fn choices(&self) -> impl Iterator<Item = &'a Vec<Value>> {
        let object = self.schema.as_object();
        let lists = ["anyOf", "oneOf"].into_iter();
        lists.filter_map(move |name| object?.get(name)?.as_array())
    }
}

impl<'a> Walk<'a> {
    fn add(&mut self, together: Vec<Applied<'a>>) {
        let mut key: Vec<_> = together.iter().map(Applied::key).collect();
        key.sort_unstable();
        key.dedup();
        if !key.is_empty() && self.added.insert(key) {
            self.waiting.push(together);
        }
    }

    fn visit(&mut self, together: Vec<Applied<'a>>) -> Result<(), Fault> {
        let together = self.all_of(together)?;
        let undecided = together.iter().enumerate().find_map(|(at, applied)| {
            let branches = applied.choices().nth(applied.chosen)?;
            Some((at, branches))
        });
        if let Some((at, branches)) = undecided {
            self.count_copies(branches.len(), together.len())?;
            for branch in branches {
                let mut decided = together.clone();
                decided[at].chosen += 1;
                decided.push(Applied::new(branch));
                self.add(decided);
            }
            return Ok(());
        }
        let objects: Vec<&Map<String, Value>> = together
            .iter()
            .filter_map(|applied| applied.schema.as_object())
            .collect();
        check_product(&objects)?;
        if self.multiples_combine && !numbers::can_combine(&numbers::multiples(&objects)) {
            return Err(Fault::LargeMultiples);
        }
        if numbers::accepts_exclusive_bound(&objects) {
            return Err(Fault::NearBounds);
        }
        self.add_parts(&objects)
    }

    fn count(&mut self) -> Result<(), Fault> {
        self.visits += 1;
        if self.visits > MAX_VISITS {
            Err(Fault::TooManyCombinations { limit: MAX_VISITS })
        } else {
            Ok(())
        }
    }

    /// Counts the copies of a set of schemas before the set is copied.
    fn count_copies(&mut self, copies: usize, entries: usize) -> Result<(), Fault> {
        self.copies = self.copies.saturating_add(copies.saturating_mul(entries));
        if self.copies > MAX_COPIES {
            Err(Fault::TooManyCombinations { limit: MAX_COPIES })
        } else {
            Ok(())
        }
    }

    /// Returns the given schemas with their chosen branches, then the schemas in their references and `allOf`.
    fn all_of(&mut self, given: Vec<Applied<'a>>) -> Result<Vec<Applied<'a>>, Fault> {
        let mut seen: FxHashSet<usize> = FxHashSet::default();
        let mut all = Vec::with_capacity(given.len());
        let mut next = given;
        let mut visited = 0;
        loop {
            for applied in next.drain(..) {
                self.count()?;
                if seen.insert(applied.key().0) {
                    all.push(applied);
                }
            }
            let Some(applied) = all.get(visited) else {
                return Ok(all);
            };
            visited += 1;
            let Some(object) = applied.schema.as_object() else {
                continue;
            };
            let listed = object.get("allOf").and_then(Value::as_array);
            next.extend(listed.into_iter().flatten().map(Applied::new));
            let target = object.get("$ref").and_then(Value::as_str);
            let target = target.and_then(|target| self.target(target));
            next.extend(target.map(Applied::new));
        }
    }

    fn target(&self, reference: &str) -> Option<&'a Value> {
        self.root.pointer(reference.strip_prefix('#')?)
    }

    /// Adds the schemas of each part of a value.
    fn add_parts(&mut self, objects: &[&'a Map<String, Value>]) -> Result<(), Fault> {
        let under = |name: &'static str| {
            let values = objects.iter().filter_map(move |object| object.get(name));
            values.map(Applied::new)
        };
        let named = |map: &'static str, name: &str| {
            let values = objects
                .iter()
                .filter_map(|object| object.get(map)?.get(name));
            values.map(Applied::new).collect::<Vec<_>>()
        };
        let others: Vec<_> = under("additionalProperties").collect();
        let mut parts = vec![others.clone()];
        for map in ["properties", "patternProperties"] {
            for object in objects {
                let names = object.get(map).and_then(Value::as_object);
                let n_names = names.map_or(0, Map::len);
                self.count_copies(n_names, objects.len() + others.len())?;
                for name in names.into_iter().flat_map(Map::keys) {
                    self.count()?;
                    parts.push([named(map, name), others.clone()].concat());
                }
            }
        }
        let mut items: Vec<_> = under("items").chain(under("additionalItems")).collect();
        for list in under("prefixItems") {
            let list = list.schema.as_array();
            items.extend(list.into_iter().flatten().map(Applied::new));
        }
        parts.push(items);
        parts.into_iter().for_each(|part| self.add(part));
        Ok(())
    }
}

fn check_product(objects: &[&Map<String, Value>]) -> Result<(), Fault> {
    let mut patterns = FxHashSet::default();
    let mut product: u64 = 1;
    for object in objects {
        let pattern = object.get("pattern").and_then(Value::as_str);
        let format = object.get("format").and_then(Value::as_str);
        let sizes = [
            pattern.map(|pattern| (pattern, pattern_size(pattern))),
            format.map(|format| (format, FORMAT_SIZE)),
        ];
        for (text, size) in sizes.into_iter().flatten() {
            if patterns.insert(text) {
                product = product.saturating_mul(size);
            }
        }
    }
    if patterns.len() > 1 && product > MAX_PRODUCT {
        Err(Fault::TooManyPatterns)
    } else {
        Ok(())
    }
}

/// A rough size of a pattern: the number of its characters without common operators, from 2 to [`MAX_SIZE`].
fn pattern_size(pattern: &str) -> u64 {
    let signs = pattern
        .chars()
        .filter(|letter| !"^$*+?|()\\".contains(*letter));
    (signs.count() as u64).clamp(2, MAX_SIZE)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn patterns(n: usize, schema: impl Fn(Value) -> Value) -> Vec<Value> {
        let pattern = |at| schema(json!({"pattern": format!("a.*{at}")}));
        (0..n).map(pattern).collect()
    }

    #[track_caller]
    fn expect(schema: Value, is_fine: bool) {
        assert_eq!(check(&schema).is_ok(), is_fine, "{schema}");
    }

    #[test]
    fn patterns_that_apply_to_one_string_are_counted() {
        for (n, is_fine) in [(3, true), (20, false)] {
            let plain = |schema| schema;
            expect(json!({"allOf": patterns(n, plain)}), is_fine);
            let of_property = |schema| json!({"properties": {"x": {"items": schema}}});
            expect(json!({"allOf": patterns(n, of_property)}), is_fine);
            let of_choice = |schema| json!({"anyOf": [schema, {"type": "null"}]});
            expect(json!({"allOf": patterns(n.min(14), of_choice)}), is_fine);
            let chain = (0..n).map(|at| {
                let next = format!("#/$defs/{}", at + 1);
                (
                    at.to_string(),
                    json!({"pattern": format!("a.*{at}"), "$ref": next}),
                )
            });
            let chain: Map<String, Value> = chain.collect();
            expect(json!({"$ref": "#/$defs/0", "$defs": chain}), is_fine);
        }
    }

    #[test]
    fn patterns_of_different_strings_and_equal_patterns_are_not_added_up() {
        let plain = |schema| schema;
        expect(json!({"anyOf": patterns(1000, plain)}), true);
        let properties =
            (0..1000).map(|at| (format!("p{at}"), json!({"pattern": format!("^a.*{at}$")})));
        let properties: Map<String, Value> = properties.collect();
        expect(
            json!({"allOf": [{"properties": properties}, {"required": ["p1"]}]}),
            true,
        );
        expect(
            json!({"allOf": vec![json!({"pattern": "one and the same"}); 50]}),
            true,
        );
    }

    #[test]
    fn schemas_that_refer_to_themselves_are_visited_once() {
        let base = json!({"properties": {"id": {"pattern": "^[0-9a-f]{8}-[0-9a-f]{4}$"}}});
        let children = json!({"properties": {"children": {"items": {"$ref": "#"}}}});
        expect(
            json!({"$defs": {"base": base}, "allOf": [{"$ref": "#/$defs/base"}, children]}),
            true,
        );
        expect(json!({"allOf": [{"$ref": "#"}, {"$ref": "#"}]}), true);
        expect(json!({"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}), true);
    }
}
