//! Parser of GGUF metadata, which leaves strings and lists in the memory map.

use std::fmt::Display;
use std::ops::{Range, RangeInclusive};
use std::path::Path;

use rustc_hash::FxHashMap;

use crate::cursor::Cursor;
use souffleur_base::error::{LoadError, load_error, number_within};

const MAX_PAIRS: u64 = 1 << 16;
const MAX_KEY_BYTES: u64 = 64 << 10;
const MAX_TEXT_BYTES: u64 = 16 << 20;
const MAX_ELEMENTS: u64 = 1 << 24;
/// The shortest pair: the length of a key, a key of one byte, a type, a value of one byte.
const MIN_PAIR_BYTES: u64 = 8 + 1 + 4 + 1;
const QUOTED_CHARS: usize = 80;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Flag,
    Text,
    List,
    U64,
    I64,
    F64,
}

impl Kind {
    /// In order of their ids.
    const ALL: [Self; 13] = [
        Self::U8,
        Self::I8,
        Self::U16,
        Self::I16,
        Self::U32,
        Self::I32,
        Self::F32,
        Self::Flag,
        Self::Text,
        Self::List,
        Self::U64,
        Self::I64,
        Self::F64,
    ];

    fn from_id(id: u32) -> Option<Self> {
        Self::ALL.get(usize::try_from(id).ok()?).copied()
    }

    /// Size of a value; for strings and lists, the smallest size.
    fn bytes(self) -> u64 {
        match self {
            Self::U8 | Self::I8 | Self::Flag => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 | Self::Text => 8,
            Self::List => 12,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::U8 => "uint8",
            Self::I8 => "int8",
            Self::U16 => "uint16",
            Self::I16 => "int16",
            Self::U32 => "uint32",
            Self::I32 => "int32",
            Self::F32 => "float32",
            Self::Flag => "bool",
            Self::Text => "string",
            Self::List => "array",
            Self::U64 => "uint64",
            Self::I64 => "int64",
            Self::F64 => "float64",
        }
    }

    fn is_integer(self) -> bool {
        !matches!(
            self,
            Self::F32 | Self::F64 | Self::Flag | Self::Text | Self::List
        )
    }
}

/// Ranges are byte offsets in the file.
#[derive(Clone, Debug)]
enum Value {
    Integer(i128),
    Number(f64),
    Flag(bool),
    Text(Range<usize>),
    List {
        of: Kind,
        count: usize,
        bytes: Range<usize>,
    },
}

#[derive(Debug, Default)]
pub(super) struct Pairs(FxHashMap<String, Value>);

impl Pairs {
    pub fn read(cursor: &mut Cursor<'_>, count: usize) -> Result<Self, String> {
        let mut pairs = FxHashMap::default();
        for index in 0..count {
            let (key, value) = read_pair(cursor, index)?;
            if pairs.contains_key(&key) {
                return Err(format!(
                    "the key {} occurs twice: the file is broken, download it again",
                    shown(&key)
                ));
            }
            pairs.insert(key, value);
        }
        Ok(Self(pairs))
    }

    pub fn count(cursor: &mut Cursor<'_>) -> Result<usize, String> {
        cursor.count(MAX_PAIRS, MIN_PAIR_BYTES, "the number of metadata pairs")
    }
}

fn read_pair(cursor: &mut Cursor<'_>, index: usize) -> Result<(String, Value), String> {
    let what = format!("the key of metadata pair {index}");
    let key = cursor.string(MAX_KEY_BYTES, &what)?;
    let key = match std::str::from_utf8(key) {
        Ok("") => {
            return Err(format!(
                "{what} is empty: the file is broken, download it again"
            ));
        }
        Ok(key) => key.to_owned(),
        Err(_) => {
            return Err(format!(
                "{what} is not UTF-8: the file is broken, download it again"
            ));
        }
    };
    let what = format!("the value of {}", shown(&key));
    let kind = read_kind(cursor, &what)?;
    let value = match kind {
        Kind::List => read_list(cursor, &what)?,
        Kind::Text => Value::Text(read_text(cursor, &what)?),
        Kind::Flag => Value::Flag(flag(cursor.take(1, &what)?[0], &what)?),
        Kind::F32 | Kind::F64 => Value::Number(number(kind, cursor.take(kind.bytes(), &what)?)),
        _ => Value::Integer(integer(kind, cursor.take(kind.bytes(), &what)?)),
    };
    Ok((key, value))
}

fn read_kind(cursor: &mut Cursor<'_>, what: &str) -> Result<Kind, String> {
    let id = cursor.u32(what)?;
    Kind::from_id(id).ok_or_else(|| {
        format!(
            "{what} has type {id}, expected 0 to 12: the file is broken, or has a newer GGUF version"
        )
    })
}

fn read_text(cursor: &mut Cursor<'_>, what: &str) -> Result<Range<usize>, String> {
    let text = cursor.string(MAX_TEXT_BYTES, what)?;
    Ok(cursor.at() - text.len()..cursor.at())
}

fn read_list(cursor: &mut Cursor<'_>, what: &str) -> Result<Value, String> {
    let of = read_kind(cursor, what)?;
    if of == Kind::List {
        return Err(format!(
            "{what} is a list of lists, which is not supported: use another file of this model"
        ));
    }
    let count = cursor.count(MAX_ELEMENTS, of.bytes(), &format!("the length of {what}"))?;
    let start = cursor.at();
    match of {
        Kind::Text => {
            for _ in 0..count {
                read_text(cursor, what)?;
            }
        }
        of => {
            let bytes = cursor.take(count as u64 * of.bytes(), what)?;
            if of == Kind::Flag {
                bytes
                    .iter()
                    .try_for_each(|&byte| flag(byte, what).map(drop))?;
            }
        }
    }
    Ok(Value::List {
        of,
        count,
        bytes: start..cursor.at(),
    })
}

fn flag(byte: u8, what: &str) -> Result<bool, String> {
    match byte {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(format!(
            "{what} is a boolean of value {other}, expected 0 or 1: the file is broken, download it again"
        )),
    }
}

fn integer(kind: Kind, bytes: &[u8]) -> i128 {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    let word = u64::from_le_bytes(word);
    match kind {
        Kind::I8 => i128::from(word as u8 as i8),
        Kind::I16 => i128::from(word as u16 as i16),
        Kind::I32 => i128::from(word as u32 as i32),
        Kind::I64 => i128::from(word as i64),
        _ => i128::from(word),
    }
}

fn number(kind: Kind, bytes: &[u8]) -> f64 {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    match kind {
        Kind::F32 => f64::from(f32::from_bits(u64::from_le_bytes(word) as u32)),
        _ => f64::from_le_bytes(word),
    }
}

/// Metadata by key. An absent key is `None`; a wrong type or size is an error that names file, key, value and limit.
#[derive(Clone, Copy)]
pub struct Metadata<'a> {
    file: &'a Path,
    bytes: &'a [u8],
    pairs: &'a Pairs,
}

impl<'a> Metadata<'a> {
    pub(super) fn new(file: &'a Path, bytes: &'a [u8], pairs: &'a Pairs) -> Self {
        Self { file, bytes, pairs }
    }

    pub fn file(&self) -> &'a Path {
        self.file
    }

    pub fn has(&self, key: &str) -> bool {
        self.pairs.0.contains_key(key)
    }

    /// In no particular order.
    pub fn keys(&self) -> impl Iterator<Item = &'a str> {
        self.pairs.0.keys().map(String::as_str)
    }

    fn value(&self, key: &str) -> Option<&'a Value> {
        self.pairs.0.get(key)
    }

    pub fn text(&self, key: &str) -> Result<Option<&'a str>, LoadError> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Text(range)) => self.utf8(key, &self.bytes[range.clone()]).map(Some),
            Some(other) => Err(self.expected(key, other, "a string")),
        }
    }

    pub fn flag(&self, key: &str) -> Result<Option<bool>, LoadError> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Flag(flag)) => Ok(Some(*flag)),
            Some(other) => Err(self.expected(key, other, "true or false")),
        }
    }

    /// An integer of any width within `limits`.
    pub fn size(
        &self,
        key: &str,
        limits: RangeInclusive<usize>,
    ) -> Result<Option<usize>, LoadError> {
        let Some(value) = self.value(key) else {
            return Ok(None);
        };
        let size = match value {
            Value::Integer(integer) => usize::try_from(*integer).ok(),
            _ => None,
        };
        match size.filter(|size| limits.contains(size)) {
            Some(size) => Ok(Some(size)),
            None => {
                let range = format!("a whole number from {} to {}", limits.start(), limits.end());
                Err(self.expected(key, value, range))
            }
        }
    }

    pub fn required_size(
        &self,
        key: &str,
        limits: RangeInclusive<usize>,
    ) -> Result<usize, LoadError> {
        self.size(key, limits)?
            .ok_or_else(|| self.error(key, "is missing"))
    }

    /// `None` also for -1 and for `u32::MAX`, which is -1 stored as unsigned.
    pub fn token_id(&self, key: &str) -> Result<Option<u32>, LoadError> {
        const NONE: [i128; 2] = [-1, u32::MAX as i128];
        if let Some(Value::Integer(id)) = self.value(key)
            && NONE.contains(id)
        {
            return Ok(None);
        }
        let id = self.size(key, 0..=u32::MAX as usize)?;
        Ok(id.map(|id| id as u32))
    }

    /// A finite float or integer within `limits`.
    pub fn number(&self, key: &str, limits: RangeInclusive<f64>) -> Result<Option<f64>, LoadError> {
        let Some(value) = self.value(key) else {
            return Ok(None);
        };
        let number = match value {
            Value::Number(number) => Some(*number),
            Value::Integer(integer) => Some(*integer as f64),
            _ => None,
        };
        match number.filter(|number| limits.contains(number)) {
            Some(number) => Ok(Some(number)),
            None => Err(self.expected(key, value, number_within(&limits))),
        }
    }

    pub fn texts(&self, key: &str) -> Result<Option<Vec<&'a str>>, LoadError> {
        let Some(list) = self.list(key, "strings", |of| of == Kind::Text)? else {
            return Ok(None);
        };
        let mut texts = Vec::with_capacity(list.count);
        let mut cursor = Cursor::new(list.bytes);
        for _ in 0..list.count {
            let text = cursor
                .string(MAX_TEXT_BYTES, "a string")
                .map_err(|reason| load_error(self.file, reason))?;
            texts.push(self.utf8(key, text)?);
        }
        Ok(Some(texts))
    }

    /// Integers of any width within `limits`.
    pub fn integers(
        &self,
        key: &str,
        limits: RangeInclusive<i64>,
    ) -> Result<Option<Vec<i64>>, LoadError> {
        let Some(list) = self.list(key, "whole numbers", Kind::is_integer)? else {
            return Ok(None);
        };
        let integers = list.elements().enumerate().map(|(index, element)| {
            let integer = integer(list.of, element);
            let within = i64::try_from(integer).ok();
            within.filter(|integer| limits.contains(integer)).ok_or_else(|| {
                let (start, end) = (limits.start(), limits.end());
                let reason = format!(
                    "has {integer} at index {index}, expected a whole number from {start} to {end}: convert the model \
                     again"
                );
                self.error(key, reason)
            })
        });
        integers.collect::<Result<_, _>>().map(Some)
    }

    /// A list of flags, or of integers, which are true unless they are 0.
    pub fn flags(&self, key: &str) -> Result<Option<Vec<bool>>, LoadError> {
        let fits = |of: Kind| of == Kind::Flag || of.is_integer();
        let Some(list) = self.list(key, "flags", fits)? else {
            return Ok(None);
        };
        // A number is zero if all of its bytes are.
        let flags = list.elements();
        Ok(Some(
            flags
                .map(|flag| flag.iter().any(|byte| *byte != 0))
                .collect(),
        ))
    }

    pub fn numbers(&self, key: &str) -> Result<Option<Vec<f32>>, LoadError> {
        let is_float = |of| matches!(of, Kind::F32 | Kind::F64);
        let Some(list) = self.list(key, "floats", is_float)? else {
            return Ok(None);
        };
        let numbers = list
            .elements()
            .map(|element| number(list.of, element) as f32);
        Ok(Some(numbers.collect()))
    }

    pub fn is_list(&self, key: &str) -> bool {
        matches!(self.value(key), Some(Value::List { .. }))
    }

    fn list(
        &self,
        key: &str,
        elements: &str,
        fits: impl Fn(Kind) -> bool,
    ) -> Result<Option<List<'a>>, LoadError> {
        match self.value(key) {
            None => Ok(None),
            // An empty list may be of any type.
            Some(Value::List { of, count, bytes }) if fits(*of) || *count == 0 => Ok(Some(List {
                of: *of,
                count: *count,
                bytes: &self.bytes[bytes.clone()],
            })),
            Some(other) => Err(self.expected(key, other, format!("a list of {elements}"))),
        }
    }

    fn utf8(&self, key: &str, text: &'a [u8]) -> Result<&'a str, LoadError> {
        std::str::from_utf8(text).map_err(|_| {
            let got = quote(&String::from_utf8_lossy(text));
            self.error(
                key,
                format!("holds {got}, which is not UTF-8: the file is broken, download it again"),
            )
        })
    }

    fn expected(&self, key: &str, got: &Value, expected: impl Display) -> LoadError {
        let got = match got {
            Value::Integer(integer) => integer.to_string(),
            Value::Number(number) => number.to_string(),
            Value::Flag(flag) => flag.to_string(),
            Value::Text(range) => quote(&String::from_utf8_lossy(
                &self.bytes[range.start..range.end.min(range.start + 4 * QUOTED_CHARS)],
            )),
            Value::List { of, count, .. } => format!("a list of {} of length {count}", of.name()),
        };
        self.error(
            key,
            format!("is {got}, expected {expected}: convert the model again"),
        )
    }

    pub fn error(&self, key: &str, reason: impl Display) -> LoadError {
        load_error(self.file, format!("{} {reason}", shown(key)))
    }
}

struct List<'a> {
    of: Kind,
    count: usize,
    bytes: &'a [u8],
}

impl<'a> List<'a> {
    /// The bytes of each element; not for lists of strings.
    fn elements(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        self.bytes.chunks_exact(self.of.bytes() as usize)
    }
}

/// A name for messages: quoted unless it is short and printable.
pub fn shown(name: &str) -> String {
    let quoted = quote(name);
    if quoted.len() == name.len() + 2 && !name.contains(char::is_whitespace) {
        name.to_owned()
    } else {
        quoted
    }
}

/// Quoted, escaped and truncated.
pub(super) fn quote(text: &str) -> String {
    match text.char_indices().nth(QUOTED_CHARS) {
        None => format!("{text:?}"),
        Some((end, _)) => format!("{:?}...", &text[..end]),
    }
}
