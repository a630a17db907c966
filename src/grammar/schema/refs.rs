//! Resolves references between schemas: URIs of RFC 3986 with JSON pointers of RFC 6901.
//!
//! llguidance follows only keys without `~`, `/` and `%`. So this module resolves each `$ref`, and gives the target a
//! plain name among the definitions unless the target has one.

use std::rc::Rc;

use percent_encoding::percent_decode_str;
use rustc_hash::{FxHashMap, FxHashSet};
use serde_json::Value;

/// Maximum characters of a definition name that this module generates.
const LONGEST_NAME: usize = 40;
/// Maximum bytes of a definition name that stays unchanged, because each reference looks the name up.
const LONGEST_KEPT_NAME: usize = 200;
/// Maximum bytes of an `$id`, and of a URI resolved from several; longer ones are ignored.
const LONGEST_ID: usize = 1000;

/// A referenced schema that is still to be checked.
pub(super) struct Target<'a> {
    pub(super) name: String,
    pub(super) schema: &'a Value,
    /// The document against which the schema's references are resolved.
    pub(super) base: &'a Value,
}

pub(super) struct References<'a> {
    root: &'a Value,
    /// Names given to schemas, by the schema's address in memory.
    names: FxHashMap<*const Value, String>,
    used: FxHashSet<String>,
    /// The next numeric suffix for each generated name.
    numbers: FxHashMap<String, usize>,
    waiting: Vec<Target<'a>>,
    /// The named parts of the schema; collected on first use.
    named: Option<NamedSchemas<'a>>,
}

/// The schemas that `$id` and `$anchor` name.
#[derive(Default)]
struct NamedSchemas<'a> {
    documents: FxHashMap<Rc<str>, &'a Value>,
    /// Keyed by document and anchor.
    anchors: FxHashMap<(*const Value, &'a str), &'a Value>,
    /// The document of each schema outside of the root document.
    bases: FxHashMap<*const Value, &'a Value>,
}

impl<'a> References<'a> {
    pub(super) fn new(root: &'a Value) -> Self {
        Self {
            root,
            names: FxHashMap::default(),
            used: FxHashSet::default(),
            numbers: FxHashMap::default(),
            waiting: Vec::new(),
            named: None,
        }
    }

    /// The next referenced schema that is still to be checked.
    pub(super) fn next_target(&mut self) -> Option<Target<'a>> {
        self.waiting.pop()
    }

    /// Rewrites a reference in the document `base` for llguidance.
    ///
    /// # Errors
    /// Why the reference cannot be resolved, as a sentence.
    pub(super) fn resolve(&mut self, reference: &str, base: &'a Value) -> Result<String, String> {
        let (address, fragment) = reference.split_once('#').unwrap_or((reference, ""));
        let document = match address {
            "" => base,
            _ => self.document(address, base).ok_or_else(|| {
                format!(
                    "{reference:?} does not point into this schema: put the schema under \"$defs\" and refer to \
                     \"#/$defs/its-name\""
                )
            })?,
        };
        let fragment = percent_decode_str(fragment).decode_utf8();
        let fragment = fragment.map_err(|_| format!("{reference:?} is not valid UTF-8"))?;
        let found = self.in_document(document, &fragment);
        let (document, target) = match found {
            Some(target) => (document, Some(target)),
            // Some schemas have parts with an `$id` such as "/properties/a", but mean the whole schema by "#".
            None if address.is_empty() => {
                let root = self.root;
                (root, self.in_document(root, &fragment))
            }
            None => (document, None),
        };
        let target = target.ok_or_else(|| format!("{reference:?} names nothing in the schema"))?;
        let name = match self.names.get(&std::ptr::from_ref(target)) {
            Some(name) => name.clone(),
            None if self.is_plain(document, &fragment) => return Ok(format!("#{fragment}")),
            // The schema of a tool is split into the schemas of its properties, in which "#" would mean the part.
            None if std::ptr::eq(target, self.root) => self.name(target, "root"),
            None => self.name(target, &fragment),
        };
        Ok(format!("#/$defs/{name}"))
    }

    /// The document of a schema: the schema itself if it has an `$id`, otherwise that of the schema around it.
    pub(super) fn base(&self, schema: &'a Value, around: &'a Value) -> &'a Value {
        match id_of(schema) {
            Some(_) => schema,
            None => around,
        }
    }

    fn in_document(&mut self, document: &'a Value, fragment: &str) -> Option<&'a Value> {
        match fragment {
            "" => Some(document),
            pointer if pointer.starts_with('/') => {
                let found = document.pointer(pointer);
                // Some schemas refer to the root as "#/".
                found.or_else(|| (pointer == "/").then_some(document))
            }
            anchor => {
                let anchors = &self.named().anchors;
                anchors
                    .get(&(std::ptr::from_ref(document), anchor))
                    .copied()
            }
        }
    }

    fn document(&mut self, address: &str, base: &'a Value) -> Option<&'a Value> {
        let absolute = joined(id_of(base).unwrap_or_default(), address);
        let root_id = id_of(self.root).unwrap_or_default().to_owned();
        let documents = &self.named().documents;
        let found = [absolute, joined(&root_id, address), address.to_owned()];
        found
            .iter()
            .find_map(|address| documents.get(address.as_str()).copied())
    }

    /// Whether llguidance finds a schema under this name among the definitions.
    fn is_plain(&self, document: &Value, fragment: &str) -> bool {
        let parts = fragment.strip_prefix("/$defs/");
        let name = parts.or_else(|| fragment.strip_prefix("/definitions/"));
        std::ptr::eq(document, self.root)
            && name.is_some_and(|name| {
                !name.is_empty()
                    && name.len() <= LONGEST_KEPT_NAME
                    && name
                        .chars()
                        .all(|c| c.is_alphanumeric() || "_-. ".contains(c))
            })
    }

    /// Names a schema after the last part of the reference to it.
    fn name(&mut self, target: &'a Value, fragment: &str) -> String {
        let last = fragment.rsplit('/').next().unwrap_or_default();
        let is_plain = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
        let stem: String = last.chars().filter(is_plain).take(LONGEST_NAME).collect();
        let stem = if stem.is_empty() {
            "schema".to_owned()
        } else {
            stem
        };
        let name = self.free_name(stem);
        self.names.insert(std::ptr::from_ref(target), name.clone());
        let base = self.named().bases.get(&std::ptr::from_ref(target)).copied();
        let base = base.unwrap_or(self.root);
        self.waiting.push(Target {
            name: name.clone(),
            schema: target,
            base,
        });
        name
    }

    /// Returns `stem`, with the first number that makes it unique if it is used.
    fn free_name(&mut self, stem: String) -> String {
        let definitions = self.root.get("$defs");
        let mut number = self.numbers.get(&stem).copied().unwrap_or(1);
        let name = loop {
            let name = match number {
                1 => stem.clone(),
                number => format!("{stem}-{number}"),
            };
            number += 1;
            let is_defined = definitions.is_some_and(|defs| defs.get(&name).is_some());
            if !is_defined && !self.used.contains(&name) {
                break name;
            }
        };
        self.numbers.insert(stem, number);
        self.used.insert(name.clone());
        name
    }

    fn named(&mut self) -> &NamedSchemas<'a> {
        let root = self.root;
        self.named.get_or_insert_with(|| NamedSchemas::of(root))
    }
}

impl<'a> NamedSchemas<'a> {
    /// Visits all parts of a schema except for its constants and examples.
    fn of(root: &'a Value) -> Self {
        let mut named = Self::default();
        let root_id = id_of(root).unwrap_or_default();
        let mut waiting: Vec<(_, _, Rc<str>)> = vec![(root, root, root_id.into())];
        while let Some((value, document, address)) = waiting.pop() {
            let (document, address) = match id_of(value) {
                Some(id) => (value, named.add_document(&address, id, value)),
                None => (document, address),
            };
            if !std::ptr::eq(document, root) {
                named.bases.insert(std::ptr::from_ref(value), document);
            }
            match value {
                Value::Array(items) => {
                    waiting.extend(items.iter().map(|item| (item, document, address.clone())));
                }
                Value::Object(object) => {
                    let names = ["$anchor", "$dynamicAnchor"].map(|key| object.get(key)?.as_str());
                    let id_anchor = object.get("$id").and_then(Value::as_str);
                    let id_anchor = id_anchor.and_then(|id| id.strip_prefix('#'));
                    for name in names.into_iter().chain([id_anchor]).flatten() {
                        named
                            .anchors
                            .insert((std::ptr::from_ref(document), name), value);
                    }
                    let is_data = |key: &str| {
                        matches!(key, "const" | "enum" | "default" | "example" | "examples")
                    };
                    let parts = object.iter().filter(|(key, _)| !is_data(key));
                    waiting.extend(parts.map(|(_, value)| (value, document, address.clone())));
                }
                _ => {}
            }
        }
        named
    }

    /// Adds a schema with an `$id` relative to the document `base`; returns the resolved address.
    fn add_document(&mut self, base: &str, id: &str, schema: &'a Value) -> Rc<str> {
        let address: Rc<str> = joined(base, id).into();
        self.documents.insert(Rc::clone(&address), schema);
        self.documents.entry(id.into()).or_insert(schema);
        address
    }
}

/// The address in a schema's `$id`.
fn id_of(schema: &Value) -> Option<&str> {
    let id = schema.get("$id")?.as_str()?;
    let id = id.strip_suffix('#').unwrap_or(id);
    let is_address = !id.is_empty() && !id.starts_with('#') && id.len() <= LONGEST_ID;
    is_address.then_some(id)
}

/// Resolves an address in the document `base`; an address that would become too long stays unchanged.
fn joined(base: &str, address: &str) -> String {
    let is_absolute = address.contains("://") || address.starts_with("urn:");
    let folder = match is_absolute {
        true => "",
        false if address.starts_with('/') => {
            let host = base.find("://").map(|at| at + 3);
            let end = host.and_then(|host| Some(host + base[host..].find('/')?));
            end.map_or(base, |end| &base[..end])
        }
        false => base.rfind('/').map_or("", |end| &base[..=end]),
    };
    if folder.len() + address.len() > LONGEST_ID {
        address.to_owned()
    } else {
        format!("{folder}{address}")
    }
}
