//! Implements Jinja's filters that sort, group and compare items.

use std::cmp::Ordering;

use rustc_hash::FxHashSet;

use super::super::args::Args;
use super::super::compare::{equal, order};
use super::super::error::{Fault, Result};
use super::super::eval::Interpreter;
use super::super::value::{Key, Value};
use super::select::Getter;

impl Interpreter<'_> {
    // The hash of a value does not depend on its only mutable part, the position of a generator.
    #[allow(clippy::mutable_key_type)]
    pub(super) fn sorting_filter(&self, name: &str, value: Value, args: Args) -> Result<Value> {
        match name {
            "dictsort" => self.dictsort(&value, args),
            "groupby" => self.groupby(&value, args),
            "sort" => {
                let names = ["reverse", "case_sensitive", "attribute"];
                let [reverse, case, attribute] = args.bind(name, names, 0)?;
                let getters = self.getters(attribute)?;
                let case = case.is_some_and(|case| self.truth(&case));
                let mut keyed = Vec::new();
                for item in self.items(&value)? {
                    let key = |getter| self.key(getter, &item, None, case);
                    let key = Value::list(getters.iter().map(key).collect::<Result<_>>()?)?;
                    keyed.push((key, item));
                }
                let reverse = reverse.is_some_and(|reverse| self.truth(&reverse));
                Value::list(self.sorted(keyed, reverse)?)
            }
            "unique" => {
                let [case, attribute] = args.bind(name, ["case_sensitive", "attribute"], 0)?;
                let case = case.is_some_and(|case| self.truth(&case));
                let getter = self.getter(attribute)?;
                let (mut seen, mut kept) = (FxHashSet::default(), Vec::new());
                for item in self.items(&value)? {
                    let key = self.key(&getter, &item, None, case)?;
                    if seen.insert(Key::new(&key)?) {
                        kept.push(item);
                    }
                }
                Value::generator("sync_do_unique", kept)
            }
            _ => self.min_or_max(name, &value, args),
        }
    }

    /// The sort key of an item, lower-cased unless the comparison is case-sensitive.
    fn key(
        &self,
        getter: &Getter,
        item: &Value,
        default: Option<&Value>,
        case: bool,
    ) -> Result<Value> {
        let key = self.get(getter, item, default)?;
        self.charge_read(&key)?;
        Ok(match &key {
            Value::Text(text) if !case => Value::text(text.as_str().to_lowercase()),
            _ => key,
        })
    }

    /// Getters for a comma-separated list of attributes: `a,b`.
    fn getters(&self, attribute: Option<Value>) -> Result<Vec<Getter>> {
        match &attribute {
            Some(Value::Text(text)) => {
                let parts = text.as_str().split(',');
                parts
                    .map(|part| self.getter(Some(Value::text(part))))
                    .collect()
            }
            _ => Ok(vec![self.getter(attribute)?]),
        }
    }

    /// Sorts items by their keys.
    fn sorted(&self, mut keyed: Vec<(Value, Value)>, reverse: bool) -> Result<Vec<Value>> {
        let len = keyed.len();
        self.step(len * (len.checked_ilog2().unwrap_or(0) as usize))?;
        let mut fault = None;
        keyed.sort_by(|(a, _), (b, _)| {
            let ordering = match order(a, b, "<") {
                Ok(ordering) => ordering.unwrap_or(Ordering::Equal),
                Err(error) => {
                    fault.get_or_insert(error);
                    Ordering::Equal
                }
            };
            if reverse {
                ordering.reverse()
            } else {
                ordering
            }
        });
        match fault {
            Some(fault) => Err(fault),
            None => Ok(keyed.into_iter().map(|(_, item)| item).collect()),
        }
    }

    fn dictsort(&self, value: &Value, args: Args) -> Result<Value> {
        let names = ["case_sensitive", "by", "reverse"];
        let [case, by, reverse] = args.bind("dictsort", names, 0)?;
        let case = case.is_some_and(|case| self.truth(&case));
        let place = match by.as_ref().map_or(Some("key"), Value::as_str) {
            Some("key") => 0,
            Some("value") => 1,
            _ => return Fault::other("You can only sort by either \"key\" or \"value\""),
        };
        let Value::Dict(dict) = value else {
            let kind = value.type_name();
            return Fault::other(format!("'{kind}' object has no attribute 'items'"));
        };
        let mut keyed = Vec::with_capacity(dict.entries().len());
        for (key, value) in dict.entries() {
            let pair = Value::tuple(vec![key.clone(), value.clone()])?;
            let part = self.key(&vec![Value::Int(place)], &pair, None, case)?;
            keyed.push((part, pair));
        }
        let reverse = reverse.is_some_and(|reverse| self.truth(&reverse));
        Value::list(self.sorted(keyed, reverse)?)
    }

    fn groupby(&self, value: &Value, args: Args) -> Result<Value> {
        let names = ["attribute", "default", "case_sensitive"];
        let [attribute, default, case] = args.bind("groupby", names, 1)?;
        let case = case.is_some_and(|case| self.truth(&case));
        let default = default.filter(|default| !matches!(default, Value::None));
        let getter = self.getter(attribute)?;
        let mut keyed = Vec::new();
        for item in self.items(value)? {
            keyed.push((self.key(&getter, &item, default.as_ref(), case)?, item));
        }
        let mut groups: Vec<(Value, Vec<Value>)> = Vec::new();
        for item in self.sorted(keyed, false)? {
            let key = self.key(&getter, &item, default.as_ref(), case)?;
            match groups.last_mut().filter(|(last, _)| equal(last, &key)) {
                Some((_, items)) => items.push(item),
                None => groups.push((key, vec![item])),
            }
        }
        let mut out = Vec::with_capacity(groups.len());
        for (_, items) in groups {
            let grouper = self.get(&getter, &items[0], default.as_ref())?;
            out.push(Value::group(vec![grouper, Value::list(items)?])?);
        }
        Value::list(out)
    }

    fn min_or_max(&self, name: &str, value: &Value, args: Args) -> Result<Value> {
        let [case, attribute] = args.bind(name, ["case_sensitive", "attribute"], 0)?;
        let case = case.is_some_and(|case| self.truth(&case));
        let getter = self.getter(attribute)?;
        let mut best: Option<(Value, Value)> = None;
        for item in self.items(value)? {
            let key = self.key(&getter, &item, None, case)?;
            let is_better = match &best {
                None => true,
                Some((best_key, _)) if name == "max" => {
                    order(&key, best_key, ">")?.is_some_and(Ordering::is_gt)
                }
                Some((best_key, _)) => order(&key, best_key, "<")?.is_some_and(Ordering::is_lt),
            };
            if is_better {
                best = Some((key, item));
            }
        }
        Ok(match best {
            Some((_, item)) => item,
            None => Value::undefined("No aggregated item, sequence was empty."),
        })
    }
}
