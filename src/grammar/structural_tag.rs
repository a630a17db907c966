//! Reads structural tags, which constrain tagged parts of outputs: SGLang's older form, and XGrammar's tree of formats.

use serde_json::{Map, Value};

use super::ebnf;
use super::limits::{GrammarLimits, check_bytes};
use super::part::{Free, Part, Triggered};
use super::regex;
use super::schema::{self, Objects};
use super::tools::xml;
use souffleur_base::error::FieldError;
use souffleur_base::field::Cut;

/// The field of the request that errors name.
const FIELD: &str = "structural_tag";
/// The types of formats, for errors.
const TYPES: &str = "const_string, json_schema, qwen_xml_parameter, regex, grammar, any_text, sequence, or, optional, \
                     plus, star, repeat, tag, triggered_tags, tags_with_separator";

/// Converts a structural tag to a part.
///
/// # Errors
/// Names the missing or unsupported field, with its place.
pub(super) fn read(tag: &Value, limits: &GrammarLimits) -> Result<Part, FieldError> {
    let reader = Reader { limits };
    let object = reader.object(tag, "#")?;
    let kind = object.get("type").and_then(Value::as_str);
    if let Some(kind) = kind.filter(|kind| *kind != FIELD) {
        let reason = format!("{FIELD} at #/type is {}, must be {FIELD:?}", Cut(kind));
        return Err(FieldError::new(FIELD, reason));
    }
    match (object.get("format"), object.get("structures")) {
        (Some(format), None) => reader.format(format, "#/format", 0),
        (None, Some(structures)) => reader.older_form(structures, object.get("triggers")),
        _ => Err(refusal("#", "needs either a format or structures")),
    }
}

struct Reader<'a> {
    limits: &'a GrammarLimits,
}

impl Reader<'_> {
    /// Reads SGLang's older form: `structures` of `begin`, `schema` and `end`, and `triggers`.
    fn older_form(&self, structures: &Value, triggers: Option<&Value>) -> Result<Part, FieldError> {
        let mut tags = Vec::new();
        for (at, structure) in self.list(structures, "#/structures")?.iter().enumerate() {
            let place = format!("#/structures/{at}");
            let object = self.object(structure, &place)?;
            let schema = object.get("schema").unwrap_or(&Value::Bool(true));
            let part = self.schema(schema, &format!("{place}/schema"))?;
            tags.push(Tag {
                begin: self.string(object, "begin", &place)?,
                ends: vec![self.string(object, "end", &place)?],
                content: part,
            });
        }
        let triggers = self.strings(triggers, "#/triggers")?;
        let free = Free::default();
        self.triggered(free, &triggers, tags, "#")
            .map(Part::Triggered)
    }

    fn format(&self, format: &Value, place: &str, depth: usize) -> Result<Part, FieldError> {
        if depth > self.limits.schema_depth {
            let limit = self.limits.schema_depth;
            return Err(refusal(place, &format!("is nested more than {limit} deep")));
        }
        let object = self.object(format, place)?;
        let kind = self.string(object, "type", place)?;
        let inner = |name: &str| match object.get(name) {
            Some(inner) => self.format(inner, &format!("{place}/{name}"), depth + 1),
            None => Err(refusal(place, &format!("has no {name}"))),
        };
        let repeated = |min, max| {
            let part = Box::new(inner("content")?);
            Ok(Part::Repeat { part, min, max })
        };
        match kind.as_str() {
            "const_string" => Ok(Part::Text(self.string(object, "value", place)?)),
            "json_schema" => self.json(object, place),
            "qwen_xml_parameter" => self.xml(object, place),
            "regex" => self.regex(object, place),
            "grammar" => {
                let text = self.string(object, "grammar", place)?;
                let lark = ebnf::to_lark(&at(place, "grammar"), &text, self.limits);
                lark.map_err(|error| error.within(FIELD)).map(Part::Grammar)
            }
            "any_text" => self.any_text(object, place),
            "sequence" => self.formats(object, place, depth).map(Part::Sequence),
            "or" => self.formats(object, place, depth).map(Part::Choice),
            "optional" => repeated(0, Some(1)),
            "plus" => repeated(1, None),
            "star" => repeated(0, None),
            "repeat" => {
                let min = self.count(object, "min", place)?;
                let max = self.count(object, "max", place)?;
                match (min, max) {
                    (Some(min), max) if max.is_none_or(|max| min <= max) => repeated(min, max),
                    _ => Err(refusal(
                        place,
                        "has a min that is -1 or above its max: send a min from 0 to the max",
                    )),
                }
            }
            "tag" => self.tag(format, place, depth).map(Tag::into_part),
            "triggered_tags" => self.triggered_tags(object, place, depth),
            "tags_with_separator" => self.separated_tags(object, place, depth),
            kind => Err(refusal(
                place,
                &format!("has the type {kind:?}, must be one of {TYPES}"),
            )),
        }
    }

    fn formats(
        &self,
        object: &Map<String, Value>,
        place: &str,
        depth: usize,
    ) -> Result<Vec<Part>, FieldError> {
        self.each(object, "elements", place, |element, place| {
            self.format(element, place, depth + 1)
        })
    }

    fn json(&self, object: &Map<String, Value>, place: &str) -> Result<Part, FieldError> {
        if object
            .get("any_order")
            .is_some_and(|any| *any != Value::Bool(false))
        {
            return Err(refusal(place, "has any_order, which is not supported"));
        }
        match object.get("style").map(|style| style.as_str()) {
            None | Some(Some("json")) => {}
            Some(Some("qwen_xml")) => return self.xml(object, place),
            _ => return Err(refusal(place, "has a style other than json and qwen_xml")),
        }
        let schema = object.get("json_schema").unwrap_or(&Value::Null);
        self.schema(schema, &format!("{place}/json_schema"))
    }

    fn schema(&self, schema: &Value, place: &str) -> Result<Part, FieldError> {
        let schema = match schema {
            // Some clients send the schema as text.
            Value::String(text) => serde_json::from_str(text).map_err(|error| {
                refusal(
                    place,
                    &format!("is a string that is not valid JSON: {error}"),
                )
            })?,
            schema => schema.clone(),
        };
        let field = format!("{FIELD}, in the schema at {place},");
        let checked = schema::checked(&field, &schema, Objects::AsWritten, self.limits);
        let checked = checked.map_err(|error| error.within(FIELD));
        checked.map(Part::json)
    }

    fn xml(&self, object: &Map<String, Value>, place: &str) -> Result<Part, FieldError> {
        let schema = object.get("json_schema").unwrap_or(&Value::Null);
        let field = format!("{FIELD}, in the schema at {place}/json_schema,");
        let parameters = schema::checked(&field, schema, Objects::AsWritten, self.limits)
            .and_then(|schema| xml::parameters(&field, &schema, xml::Tags::QWEN));
        parameters.map_err(|error| error.within(FIELD))
    }

    fn regex(&self, object: &Map<String, Value>, place: &str) -> Result<Part, FieldError> {
        let pattern = self.string(object, "pattern", place)?;
        if object
            .get("excludes")
            .is_some_and(|excludes| *excludes != Value::Array(Vec::new()))
        {
            return Err(refusal(
                place,
                "excludes strings, which is not supported for regex",
            ));
        }
        let body = regex::whole_match(&at(place, "pattern"), &pattern, self.limits);
        body.map_err(|error| error.within(FIELD))
            .map(Part::Terminal)
    }

    fn any_text(&self, object: &Map<String, Value>, place: &str) -> Result<Part, FieldError> {
        if object
            .get("max_tokens")
            .is_some_and(|limit| !limit.is_null())
        {
            return Err(refusal(place, "has max_tokens, which is not supported"));
        }
        let max_chars = match object.get("max_chars") {
            None | Some(Value::Null) => None,
            Some(limit) => match limit.as_u64().and_then(|limit| u32::try_from(limit).ok()) {
                Some(limit) => Some(format!("/(?s:.{{0,{limit}}})/")),
                None => {
                    return Err(refusal(
                        place,
                        "has a max_chars that is not an integer from 0 to 4294967295",
                    ));
                }
            },
        };
        Ok(Part::Free(Free {
            is_plain: max_chars.is_some(),
            excludes: self.strings(object.get("excludes"), &format!("{place}/excludes"))?,
            matches: max_chars.into_iter().collect(),
            not_at_first: None,
        }))
    }

    fn triggered_tags(
        &self,
        object: &Map<String, Value>,
        place: &str,
        depth: usize,
    ) -> Result<Part, FieldError> {
        let tags = self.tags(object, place, depth)?;
        let triggers = self.strings(object.get("triggers"), &format!("{place}/triggers"))?;
        let free = Free {
            excludes: self.strings(object.get("excludes"), &format!("{place}/excludes"))?,
            ..Free::default()
        };
        let mut triggered = self.triggered(free, &triggers, tags, place)?;
        triggered.at_least_one = self.flag(object, "at_least_one", place)?;
        triggered.stops_after_first = self.flag(object, "stop_after_first", place)?;
        Ok(Part::Triggered(triggered))
    }

    /// Assigns each tag to the one trigger that is a prefix of its begin.
    fn triggered(
        &self,
        free: Free,
        triggers: &[String],
        tags: Vec<Tag>,
        place: &str,
    ) -> Result<Triggered, FieldError> {
        if triggers.is_empty() || triggers.iter().any(String::is_empty) {
            return Err(refusal(place, "has no triggers, or an empty trigger"));
        }
        let mut by_trigger: Vec<(String, Vec<Part>)> = triggers
            .iter()
            .map(|trigger| (trigger.clone(), Vec::new()))
            .collect();
        for tag in tags {
            let mut matching = by_trigger
                .iter_mut()
                .filter(|(trigger, _)| tag.begin.starts_with(trigger.as_str()));
            let (Some((trigger, rests)), None) = (matching.next(), matching.next()) else {
                let begin = &tag.begin;
                return Err(refusal(
                    place,
                    &format!(
                        "has the tag {begin:?}, which begins with no trigger or several, expected exactly one trigger"
                    ),
                ));
            };
            let begin = tag.begin[trigger.len()..].to_owned();
            rests.push(Tag { begin, ..tag }.into_part());
        }
        by_trigger.retain(|(_, rests)| !rests.is_empty());
        let triggers = by_trigger
            .into_iter()
            .map(|(trigger, rests)| (trigger, Part::Choice(rests)));
        Ok(Triggered {
            free,
            triggers: triggers.collect(),
            at_least_one: false,
            stops_after_first: false,
        })
    }

    fn separated_tags(
        &self,
        object: &Map<String, Value>,
        place: &str,
        depth: usize,
    ) -> Result<Part, FieldError> {
        let tags = self.tags(object, place, depth)?;
        let tags = Part::Choice(tags.into_iter().map(Tag::into_part).collect());
        let separator = Part::Text(self.string(object, "separator", place)?);
        let tags = if self.flag(object, "stop_after_first", place)? {
            tags
        } else {
            Part::separated(tags, separator)
        };
        Ok(if self.flag(object, "at_least_one", place)? {
            tags
        } else {
            Part::Repeat {
                part: Box::new(tags),
                min: 0,
                max: Some(1),
            }
        })
    }

    fn tags(
        &self,
        object: &Map<String, Value>,
        place: &str,
        depth: usize,
    ) -> Result<Vec<Tag>, FieldError> {
        self.each(object, "tags", place, |tag, place| {
            self.tag(tag, place, depth + 1)
        })
    }

    fn tag(&self, tag: &Value, place: &str, depth: usize) -> Result<Tag, FieldError> {
        let object = self.object(tag, place)?;
        let content = object.get("content").unwrap_or(&Value::Null);
        Ok(Tag {
            begin: self.string(object, "begin", place)?,
            content: self.format(content, &format!("{place}/content"), depth + 1)?,
            ends: match object.get("end") {
                Some(Value::Array(_)) => {
                    self.strings(object.get("end"), &format!("{place}/end"))?
                }
                _ => vec![self.string(object, "end", place)?],
            },
        })
    }

    fn object<'a>(
        &self,
        value: &'a Value,
        place: &str,
    ) -> Result<&'a Map<String, Value>, FieldError> {
        value
            .as_object()
            .ok_or_else(|| refusal(place, "is not an object"))
    }

    /// Reads each element of the list `name`, with its place.
    fn each<T>(
        &self,
        object: &Map<String, Value>,
        name: &str,
        place: &str,
        read: impl Fn(&Value, &str) -> Result<T, FieldError>,
    ) -> Result<Vec<T>, FieldError> {
        let place = format!("{place}/{name}");
        let elements = self.list(object.get(name).unwrap_or(&Value::Null), &place)?;
        let elements = elements.iter().enumerate();
        elements
            .map(|(at, element)| read(element, &format!("{place}/{at}")))
            .collect()
    }

    fn list<'a>(&self, value: &'a Value, place: &str) -> Result<&'a [Value], FieldError> {
        let list = value.as_array().filter(|list| !list.is_empty());
        list.map(Vec::as_slice)
            .ok_or_else(|| refusal(place, "is not a list with at least one element"))
    }

    fn string(
        &self,
        object: &Map<String, Value>,
        name: &str,
        place: &str,
    ) -> Result<String, FieldError> {
        let text = object.get(name).and_then(Value::as_str);
        let text =
            text.ok_or_else(|| refusal(place, &format!("has no {name:?}, or it is not a string")))?;
        check_bytes(&at(place, name), text.len(), self.limits)
            .map_err(|error| error.within(FIELD))?;
        Ok(text.to_owned())
    }

    fn strings(&self, value: Option<&Value>, place: &str) -> Result<Vec<String>, FieldError> {
        let texts = match value {
            None | Some(Value::Null) => return Ok(Vec::new()),
            Some(Value::Array(texts)) => texts,
            Some(_) => return Err(refusal(place, "is not a list of strings")),
        };
        let texts = texts.iter().map(|text| text.as_str().map(str::to_owned));
        let texts: Option<Vec<String>> = texts.collect();
        texts.ok_or_else(|| refusal(place, "is not a list of strings"))
    }

    fn flag(
        &self,
        object: &Map<String, Value>,
        name: &str,
        place: &str,
    ) -> Result<bool, FieldError> {
        match object.get(name) {
            None | Some(Value::Null) => Ok(false),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(_) => Err(refusal(
                place,
                &format!("has a {name} that is neither true nor false"),
            )),
        }
    }

    /// Reads a count; `None` for -1, which means no limit.
    fn count(
        &self,
        object: &Map<String, Value>,
        name: &str,
        place: &str,
    ) -> Result<Option<u32>, FieldError> {
        match object.get(name).and_then(Value::as_i64) {
            Some(-1) => Ok(None),
            Some(count @ 0..=1_000_000) => Ok(u32::try_from(count).ok()),
            _ => Err(refusal(
                place,
                &format!("needs a {name} that is an integer from -1 to 1000000"),
            )),
        }
    }
}

struct Tag {
    begin: String,
    content: Part,
    ends: Vec<String>,
}

impl Tag {
    fn into_part(self) -> Part {
        Part::Tag {
            begin: self.begin,
            content: Box::new(self.content),
            ends: self.ends,
        }
    }
}

/// Names a field of the object at `place`, for an error.
fn at(place: &str, name: &str) -> String {
    format!("{FIELD} at {place}/{name}")
}

fn refusal(place: &str, reason: &str) -> FieldError {
    let reason = format!("{FIELD} at {place} {reason}; correct the structural tag");
    FieldError::new(FIELD, reason)
}
