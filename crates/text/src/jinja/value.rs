//! Defines the values of templates. They are immutable, except for [`Object`](super::eval::Object) and generators.

use std::cell::Cell;
use std::rc::Rc;

use num_bigint::BigInt;

use super::error::{Fault, Result};
use super::meter::Charge;
use rustc_hash::FxHashMap;

/// Maximum nesting depth of lists, tuples and mappings.
pub(crate) const MAX_DEPTH: u16 = 256;

#[derive(Clone, Debug)]
pub(crate) enum Value {
    /// Jinja's undefined, with the message of the error that its use raises.
    Undefined(Rc<str>),
    None,
    Bool(bool),
    Int(i64),
    /// An integer outside of `i64`.
    Big(Rc<BigInt>),
    Float(f64),
    Text(Text),
    Bytes(Rc<[u8]>),
    List(Rc<Items>),
    Tuple(Rc<Items>),
    Dict(Rc<Dict>),
    /// `keys()`, `values()` and `items()` of a mapping.
    View(Rc<Dict>, View),
    Range(Range),
    Generator(Rc<Generator>),
    /// The index of a mutable object in the interpreter.
    Object(usize),
    Method(Rc<(Value, Rc<str>)>),
    Function(&'static str),
}

/// A text, which may be marked as safe HTML (`Markup`).
#[derive(Clone, Debug)]
pub(crate) struct Text(Rc<TextBuffer>);

#[derive(Debug)]
struct TextBuffer {
    text: String,
    is_safe: bool,
    _charge: Charge,
}

impl Text {
    pub(super) fn new(text: String, is_safe: bool) -> Self {
        let charge = Charge::new(text.capacity() + size_of::<TextBuffer>());
        Self(Rc::new(TextBuffer {
            text,
            is_safe,
            _charge: charge,
        }))
    }

    pub(super) fn is_safe(&self) -> bool {
        self.0.is_safe
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0.text
    }
}

#[derive(Debug)]
pub(crate) struct Items {
    items: Vec<Value>,
    depth: u16,
    /// Whether this is a group of the filter `groupby`, with the attributes `grouper` and `list`.
    pub(super) is_group: bool,
    _charge: Charge,
}

impl std::ops::Deref for Items {
    type Target = [Value];

    fn deref(&self) -> &[Value] {
        &self.items
    }
}

#[derive(Debug)]
pub(crate) struct Dict {
    entries: Vec<(Value, Value)>,
    /// Indices of the entries by key; empty for few entries.
    indices: FxHashMap<Key, usize>,
    depth: u16,
    _charge: Charge,
}

/// A value that can be the key of a mapping.
#[derive(Clone, Debug)]
pub(crate) struct Key(pub(super) Value);

/// Maximum number of entries of a mapping that is searched without `indices`.
const MAX_UNINDEXED_ENTRIES: usize = 8;

impl Dict {
    /// Builds a mapping. For duplicate keys, the last value is used.
    // The hash of a value does not depend on its only mutable part, the position of a generator.
    #[allow(clippy::mutable_key_type)]
    pub(super) fn new(given: Vec<(Value, Value)>) -> Result<Self> {
        let depth = depth_of(given.iter().flat_map(|(key, value)| [key, value]))?;
        let mut entries: Vec<(Value, Value)> = Vec::with_capacity(given.len());
        let mut indices = FxHashMap::default();
        let is_indexed = given.len() > MAX_UNINDEXED_ENTRIES;
        for (key, value) in given {
            let hashed = Key::new(&key)?;
            let existing = if is_indexed {
                indices.get(&hashed).copied()
            } else {
                entries.iter().position(|(other, _)| hashed.is(other))
            };
            match existing {
                Some(place) => entries[place].1 = value,
                None => {
                    if is_indexed {
                        indices.insert(hashed, entries.len());
                    }
                    entries.push((key, value));
                }
            }
        }
        let entry_bytes = 2 * size_of::<Value>() + if is_indexed { 48 } else { 0 };
        Ok(Self {
            _charge: Charge::new(entries.capacity() * entry_bytes + 64),
            entries,
            indices,
            depth,
        })
    }

    pub(super) fn entries(&self) -> &[(Value, Value)] {
        &self.entries
    }

    pub(super) fn get(&self, key: &Value) -> Option<&Value> {
        let hashed = Key::new(key).ok()?;
        let place = if self.indices.is_empty() {
            self.entries.iter().position(|(other, _)| hashed.is(other))
        } else {
            self.indices.get(&hashed).copied()
        };
        place.map(|place| &self.entries[place].1)
    }

    pub(super) fn get_text(&self, key: &str) -> Option<&Value> {
        if !self.indices.is_empty() {
            return self.get(&Value::text(key));
        }
        let mut entries = self.entries.iter();
        let found = entries.find(|(other, _)| other.as_str() == Some(key));
        found.map(|(_, value)| value)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum View {
    Keys,
    Values,
    Items,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(super) start: i64,
    pub(super) step: i64,
    pub(super) len: usize,
}

impl Range {
    pub(super) fn at(self, index: usize) -> Value {
        Value::Int(
            self.start
                .wrapping_add(self.step.wrapping_mul(index as i64)),
        )
    }
}

/// An iterator whose items can be read once.
#[derive(Debug)]
pub(crate) struct Generator {
    items: Vec<Value>,
    next: Cell<usize>,
    depth: u16,
    /// The name in Python's `repr`.
    pub(super) name: &'static str,
    _charge: Charge,
}

impl Generator {
    pub(super) fn next(&self) -> Option<Value> {
        let item = self.items.get(self.next.get()).cloned();
        self.next.set(self.next.get() + 1);
        item
    }
}

fn depth_of<'a>(parts: impl Iterator<Item = &'a Value>) -> Result<u16> {
    let depth = 1 + parts.map(Value::depth).max().unwrap_or(0);
    if depth <= MAX_DEPTH {
        Ok(depth)
    } else {
        Err(Fault::Depth)
    }
}

impl Value {
    pub(crate) fn text(text: impl Into<String>) -> Self {
        Self::Text(Text::new(text.into(), false))
    }

    pub(super) fn safe(text: String) -> Self {
        Self::Text(Text::new(text, true))
    }

    /// A text that is marked as safe if `other` is.
    pub(super) fn like(other: &Value, text: String) -> Self {
        Self::Text(Text::new(text, other.is_safe()))
    }

    pub(super) fn undefined(message: impl Into<Rc<str>>) -> Self {
        Self::Undefined(message.into())
    }

    pub(crate) fn list(items: Vec<Value>) -> Result<Self> {
        Ok(Self::List(Rc::new(Items::new(items, false)?)))
    }

    pub(super) fn tuple(items: Vec<Value>) -> Result<Self> {
        Ok(Self::Tuple(Rc::new(Items::new(items, false)?)))
    }

    pub(super) fn group(items: Vec<Value>) -> Result<Self> {
        Ok(Self::Tuple(Rc::new(Items::new(items, true)?)))
    }

    pub(crate) fn dict(entries: Vec<(Value, Value)>) -> Result<Self> {
        Ok(Self::Dict(Rc::new(Dict::new(entries)?)))
    }

    pub(super) fn generator(name: &'static str, items: Vec<Value>) -> Result<Self> {
        let depth = depth_of(items.iter())?;
        Ok(Self::Generator(Rc::new(Generator {
            _charge: Charge::new(items.capacity() * size_of::<Value>()),
            items,
            next: Cell::new(0),
            depth,
            name,
        })))
    }

    pub(super) fn big(number: BigInt) -> Self {
        match i64::try_from(&number) {
            Ok(small) => Self::Int(small),
            Err(_) => Self::Big(Rc::new(number)),
        }
    }

    fn depth(&self) -> u16 {
        match self {
            Self::List(items) | Self::Tuple(items) => items.depth,
            Self::Dict(dict) | Self::View(dict, _) => dict.depth,
            Self::Generator(generator) => generator.depth,
            Self::Method(method) => method.0.depth() + 1,
            _ => 0,
        }
    }

    pub(crate) fn as_str(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text.as_str()),
            _ => None,
        }
    }

    pub(super) fn is_safe(&self) -> bool {
        matches!(self, Self::Text(text) if text.is_safe())
    }

    pub(super) fn is_undefined(&self) -> bool {
        matches!(self, Self::Undefined(_))
    }

    pub(super) fn type_name(&self) -> &'static str {
        match self {
            Self::Undefined(_) => "Undefined",
            Self::None => "NoneType",
            Self::Bool(_) => "bool",
            Self::Int(_) | Self::Big(_) => "int",
            Self::Float(_) => "float",
            Self::Text(_) => "str",
            Self::Bytes(_) => "bytes",
            Self::List(_) => "list",
            Self::Tuple(_) => "tuple",
            Self::Dict(_) => "dict",
            Self::View(_, View::Keys) => "dict_keys",
            Self::View(_, View::Values) => "dict_values",
            Self::View(_, View::Items) => "dict_items",
            Self::Range(_) => "range",
            Self::Generator(_) => "generator",
            Self::Object(_) => "object",
            Self::Method(_) => "builtin_function_or_method",
            Self::Function(_) => "function",
        }
    }

    /// Python's `len`; `None` for values without a length.
    pub(super) fn len(&self) -> Option<usize> {
        Some(match self {
            Self::Undefined(_) => 0,
            Self::Text(text) => text.as_str().chars().count(),
            Self::Bytes(bytes) => bytes.len(),
            Self::List(items) | Self::Tuple(items) => items.len(),
            Self::Dict(dict) | Self::View(dict, _) => dict.entries.len(),
            Self::Range(range) => range.len,
            _ => return None,
        })
    }

    pub(super) fn items(&self) -> Result<Vec<Value>> {
        Ok(match self {
            Self::Undefined(_) => Vec::new(),
            Self::Text(text) => {
                let chars = text.as_str().chars();
                chars.map(Value::text).collect()
            }
            Self::Bytes(bytes) => bytes.iter().map(|byte| Self::Int((*byte).into())).collect(),
            Self::List(items) | Self::Tuple(items) => items.to_vec(),
            Self::Dict(dict) | Self::View(dict, View::Keys) => {
                dict.entries.iter().map(|(key, _)| key.clone()).collect()
            }
            Self::View(dict, View::Values) => {
                let entries = dict.entries.iter();
                entries.map(|(_, value)| value.clone()).collect()
            }
            Self::View(dict, View::Items) => {
                let pair =
                    |(key, value): &(Value, Value)| Value::tuple(vec![key.clone(), value.clone()]);
                dict.entries.iter().map(pair).collect::<Result<_>>()?
            }
            Self::Range(range) => (0..range.len).map(|index| range.at(index)).collect(),
            Self::Generator(generator) => {
                let left = generator.items.get(generator.next.get()..);
                generator.next.set(generator.items.len());
                left.unwrap_or_default().to_vec()
            }
            _ => {
                return Fault::other(format!(
                    "{:?} object is not iterable",
                    Quoted(self.type_name())
                ));
            }
        })
    }

    pub(super) fn is_iterable(&self) -> bool {
        self.len().is_some() || matches!(self, Self::Generator(_))
    }

    /// The approximate number of bytes that are read to use the value.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Text(text) => text.as_str().len(),
            Self::List(items) | Self::Tuple(items) => items.len() * 8,
            Self::Dict(dict) | Self::View(dict, _) => dict.entries.len() * 8,
            Self::Range(range) => range.len * 8,
            Self::Big(number) => number.bits() as usize / 8,
            _ => 0,
        }
    }
}

impl Items {
    fn new(items: Vec<Value>, is_group: bool) -> Result<Self> {
        Ok(Self {
            depth: depth_of(items.iter())?,
            _charge: Charge::new(items.capacity() * size_of::<Value>() + 64),
            items,
            is_group,
        })
    }
}

/// Formats a name in single quotes, as in Python's messages.
pub(super) struct Quoted<'a>(pub(super) &'a str);

impl std::fmt::Debug for Quoted<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "'{}'", self.0)
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

impl From<usize> for Value {
    fn from(value: usize) -> Self {
        match i64::try_from(value) {
            Ok(value) => Self::Int(value),
            Err(_) => Self::big(value.into()),
        }
    }
}

impl Value {
    pub(crate) fn fields(&self) -> impl Iterator<Item = (&str, &Value)> {
        let entries = match self {
            Self::Dict(dict) => dict.entries(),
            _ => &[],
        };
        let entries = entries.iter();
        entries.filter_map(|(key, value)| Some((key.as_str()?, value)))
    }

    pub(crate) fn field(&self, key: &str) -> Option<&Value> {
        match self {
            Self::Dict(dict) => dict.get_text(key),
            _ => None,
        }
    }
}
