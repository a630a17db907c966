//! Converts a constraint, a tree of [`Part`]s of the output, to a Lark grammar.
//!
//! The lexer takes the longest match and does not backtrack. So free text and the text that ends it are one terminal
//! with a lazy match, and two texts that could form one longer match are never adjacent.

use super::markers::{Markers, Span};
use super::part::{Free, Part, Presence, Triggered};
use super::regex;
use super::source::{Source, quoted};
use souffleur_base::error::FieldError;

const ANY: &str = "/(?s:.*)/";

pub(super) fn write(
    field: &'static str,
    part: Part,
    markers: &Markers,
) -> Result<Source, FieldError> {
    if let Part::Json { schema, whitespace } = part {
        return Ok(Source::of_schema(field, schema, &whitespace));
    }
    if let Part::Grammar(lark) = part {
        return Ok(Source::of_lark(field, lark));
    }
    let mut writer = Writer {
        source: Source::of_lark(field, String::new()),
        markers,
        n_names: 0,
    };
    let start = writer.until(&part, &[])?;
    writer.source.rule("start", &start);
    Ok(writer.source)
}

struct Writer<'a> {
    source: Source,
    markers: &'a Markers,
    n_names: usize,
}

/// The grammar of free text, which consists of texts with markers (special or added tokens) between them.
struct Texts {
    /// The markers that the free text may contain.
    inner_markers: Option<String>,
    /// Terminals that each text must match.
    conditions: Vec<String>,
    /// The condition that no text contains an end. Lazy terminals, which stop at the first end, do not need it.
    without_ends: Option<String>,
    /// A regular expression that the beginning of the first text must not match.
    not_at_first: Option<String>,
}

/// The tags and the ends of a triggered part.
struct Tags<'a> {
    texts: Texts,
    /// The triggers, each with the rule for the rest of its tag.
    rests: Vec<(&'a String, String)>,
    ends: &'a [String],
}

impl Tags<'_> {
    /// Writes free text and a tag.
    fn tag(&self, writer: &mut Writer<'_>, is_first: bool) -> String {
        let tags = self.rests.iter().map(|(trigger, rest)| {
            let run = writer.run_to(&self.texts, trigger, is_first);
            format!("{run} {rest}")
        });
        let tags = tags.collect();
        writer.choice(tags)
    }

    /// Writes free text and an end, if there are ends.
    fn end(&self, writer: &mut Writer<'_>, is_first: bool) -> String {
        if self.ends.is_empty() {
            return writer.run(&self.texts, is_first);
        }
        let ends = self.ends.iter();
        let runs = ends.map(|end| writer.run_to(&self.texts, end, is_first));
        let runs = runs.collect();
        writer.choice(runs)
    }

    /// Writes a tag without text before it.
    fn tag_at_once(&self, writer: &mut Writer<'_>) -> String {
        let tags = self.rests.iter().map(|(trigger, rest)| {
            let trigger = writer.text(trigger);
            format!("{trigger} {rest}")
        });
        let tags = tags.collect();
        writer.choice(tags)
    }

    /// Writes an end without text before it, if there are ends.
    fn end_at_once(&self, writer: &mut Writer<'_>) -> String {
        if self.ends.is_empty() {
            return String::new();
        }
        let ends = self.ends.iter().map(|end| writer.text(end)).collect();
        writer.choice(ends)
    }
}

impl Writer<'_> {
    /// Writes a part, up to and including one of the ends, if there are any.
    fn until(&mut self, part: &Part, ends: &[String]) -> Result<String, FieldError> {
        match part {
            Part::Free(free) => Ok(self.free(free, ends)),
            Part::Triggered(triggered) => self.triggered(triggered, ends),
            Part::Sequence(parts) if part.is_unlimited() => {
                let (last, before) = parts.split_last().unwrap_or((part, &[]));
                let before = self.sequence(before)?;
                let last = self.until(last, ends)?;
                Ok(format!("{before} {last}"))
            }
            Part::Choice(parts) if part.is_unlimited() => {
                let parts: Result<Vec<_>, _> =
                    parts.iter().map(|part| self.until(part, ends)).collect();
                Ok(self.choice(parts?))
            }
            _ => {
                let part = self.part(part)?;
                Ok(if ends.is_empty() {
                    part
                } else {
                    let ends = ends.iter().map(|end| self.text(end)).collect();
                    let ends = self.choice(ends);
                    format!("{part} {ends}")
                })
            }
        }
    }

    fn part(&mut self, part: &Part) -> Result<String, FieldError> {
        Ok(match part {
            Part::Text(text) => self.text(text),
            Part::Json { schema, whitespace } => self.source.schema(schema.clone(), whitespace),
            Part::Terminal(body) => self.hoist("T", body),
            Part::Grammar(lark) => self.source.grammar(lark.clone()),
            Part::Sequence(parts) => self.sequence(parts)?,
            Part::Choice(parts) => {
                let parts: Result<Vec<_>, _> = parts.iter().map(|part| self.part(part)).collect();
                self.choice(parts?)
            }
            Part::Repeat { part, min, max } => {
                let body = self.part(part)?;
                let name = self.hoist("r", &body);
                match (min, max) {
                    (_, Some(0)) => "\"\"".to_owned(),
                    (0, None) => format!("{name}*"),
                    (min, None) => format!("{name}{{{min},}}"),
                    (min, Some(max)) => format!("{name}{{{min},{max}}}"),
                }
            }
            Part::Fields { fields, separator } => self.fields(fields, separator)?,
            Part::Tag {
                begin,
                content,
                ends,
            } => {
                let begin = self.text(begin);
                let rest = self.until(content, ends)?;
                format!("{begin} {rest}")
            }
            Part::Triggered(triggered) if !part.is_unlimited() => self.triggered(triggered, &[])?,
            Part::Free(_) | Part::Triggered(_) => return Err(self.endless()),
        })
    }

    /// Writes consecutive parts. Free text ends with the text after it.
    fn sequence(&mut self, parts: &[Part]) -> Result<String, FieldError> {
        let mut written = Vec::new();
        let mut rest = parts;
        while let Some((part, later)) = rest.split_first() {
            rest = later;
            written.push(match (part.is_unlimited(), later.split_first()) {
                (true, Some((Part::Text(end), later))) => {
                    rest = later;
                    self.until(part, std::slice::from_ref(end))?
                }
                _ => self.part(part)?,
            });
        }
        Ok(if written.is_empty() {
            "\"\"".to_owned()
        } else {
            written.join(" ")
        })
    }

    fn fields(
        &mut self,
        fields: &[(Part, Presence)],
        separator: &str,
    ) -> Result<String, FieldError> {
        let separator = self.text(separator);
        // The remaining fields: `later` after another field, `first` without one.
        let mut later = "\"\"".to_owned();
        let mut first = "\"\"".to_owned();
        for (part, presence) in fields.iter().rev() {
            let body = self.part(part)?;
            let field = self.hoist("r", &body);
            let after = self.hoist("r", &format!("{separator} {field} {later}"));
            let alone = self.hoist("r", &format!("{field} {later}"));
            (later, first) = match presence {
                Presence::Required => (after, alone),
                Presence::Optional => (
                    self.choice(vec![after, later]),
                    self.choice(vec![alone, first]),
                ),
            };
        }
        Ok(first)
    }

    /// Writes free text, and one of the ends if there are any.
    fn free(&mut self, free: &Free, ends: &[String]) -> String {
        let texts = self.texts(free, ends.iter());
        if ends.is_empty() {
            self.run(&texts, free.not_at_first.is_some())
        } else {
            let is_first = free.not_at_first.is_some();
            let ends = ends.iter().map(|end| self.run_to(&texts, end, is_first));
            let ends = ends.collect();
            self.choice(ends)
        }
    }

    fn triggered(&mut self, triggered: &Triggered, ends: &[String]) -> Result<String, FieldError> {
        let free = &triggered.free;
        let begins = triggered.triggers.iter().map(|(trigger, _)| trigger);
        let texts = self.texts(free, begins.chain(ends));
        let mut rests = Vec::new();
        for (trigger, rest) in &triggered.triggers {
            let rest = self.part(rest)?;
            rests.push((trigger, self.hoist("r", &rest)));
        }
        let tags = Tags { texts, rests, ends };
        let is_first = free.not_at_first.is_some();
        Ok(
            match (triggered.at_least_one, triggered.stops_after_first) {
                (true, true) => {
                    let (tag, close) = (tags.tag_at_once(self), tags.end_at_once(self));
                    format!("{tag} {close}")
                }
                (true, false) => {
                    let (tag, later, end) = (
                        tags.tag_at_once(self),
                        tags.tag(self, false),
                        tags.end(self, false),
                    );
                    let later = self.hoist("r", &later);
                    format!("{tag} {later}* {end}")
                }
                (false, true) => {
                    let (tag, close) = (tags.tag(self, is_first), tags.end_at_once(self));
                    let tag = format!("{tag} {close}");
                    let end = tags.end(self, is_first);
                    self.choice(vec![tag, end])
                }
                (false, false) => {
                    let (later, end) = (tags.tag(self, false), tags.end(self, false));
                    let later = self.hoist("r", &later);
                    let after = self.hoist("r", &format!("{later}* {end}"));
                    if !is_first {
                        return Ok(after);
                    }
                    let tag = tags.tag(self, true);
                    let end = tags.end(self, true);
                    self.choice(vec![format!("{tag} {after}"), end])
                }
            },
        )
    }

    /// The grammar of texts that end before any of `ends`.
    fn texts<'a>(&mut self, free: &Free, ends: impl Iterator<Item = &'a String>) -> Texts {
        let mut text_ends = Vec::new();
        let mut marker_ends = Vec::new();
        for end in ends {
            match self.markers.spans(end).first() {
                Some(Span::Marker(id)) => marker_ends.push(*id),
                // If an end is a text and then a marker, the text alone does not end free text.
                Some(Span::Text(text)) if text == end => text_ends.push(end.clone()),
                _ => {}
            }
        }
        let conditions = free.matches.iter().cloned();
        let conditions = conditions.chain(without_texts(&free.excludes)).collect();
        Texts {
            inner_markers: if free.is_plain {
                None
            } else {
                self.markers.all_except(&marker_ends)
            },
            conditions,
            without_ends: without_texts(&text_ends),
            not_at_first: free.not_at_first.clone(),
        }
    }

    /// Writes any number of texts and markers.
    fn run(&mut self, texts: &Texts, is_first: bool) -> String {
        let first = self.text_terminal(texts, "", is_first);
        let later = self.text_terminal(texts, "", false);
        match &texts.inner_markers {
            None => first,
            Some(inner_markers) => {
                let marker = self.hoist("r", &format!("{inner_markers} {later}"));
                format!("{first} {marker}*")
            }
        }
    }

    /// Writes any number of texts and markers, and then `end`.
    fn run_to(&mut self, texts: &Texts, end: &str, is_first: bool) -> String {
        let spans = self.markers.spans(end);
        let (last, rest) = match spans.split_first() {
            // The first text of the end becomes a part of the last terminal.
            Some((Span::Text(text), rest)) => (Some(text.clone()), rest),
            _ => (None, spans.as_slice()),
        };
        let Some(last) = last else {
            let run = self.run(texts, is_first);
            let rest = self.spans(rest);
            return format!("{run} {rest}");
        };
        let is_lazy = rest.is_empty();
        let rest = self.spans(rest);
        let ending = |writer: &mut Self, is_first: bool| {
            let body = writer.text_body(texts, &last, is_first, is_lazy);
            if is_lazy {
                writer.hoist_lazy(&body)
            } else {
                writer.hoist("T", &body)
            }
        };
        let at_once = ending(self, is_first);
        let mut runs = vec![at_once.clone()];
        if let Some(inner_markers) = &texts.inner_markers {
            let first = self.text_terminal(texts, "", is_first);
            let later = self.text_terminal(texts, "", false);
            let marker = self.hoist("r", &format!("{later} {inner_markers}"));
            let after = ending(self, false);
            runs.push(format!("{first} {inner_markers} {marker}* {after}"));
        }
        let run = self.choice(runs);
        format!("{run} {rest}")
    }

    fn text_terminal(&mut self, texts: &Texts, end: &str, is_first: bool) -> String {
        let body = self.text_body(texts, end, is_first, false);
        self.hoist("T", &body)
    }

    /// The right side of a terminal for a text with this end.
    fn text_body(&mut self, texts: &Texts, end: &str, is_first: bool, is_lazy: bool) -> String {
        let mut all = vec![ANY.to_owned()];
        all.extend(texts.conditions.iter().cloned());
        if !is_lazy {
            all.extend(texts.without_ends.clone());
        }
        if let (true, Some(begin)) = (is_first, &texts.not_at_first) {
            all.push(format!("~/(?:{begin})(?s:.*)/"));
        }
        let all = all.join(" & ");
        if end.is_empty() {
            all
        } else {
            let text = self.hoist("T", &all);
            format!("{text} {}", quoted(end))
        }
    }

    fn text(&mut self, text: &str) -> String {
        let spans = self.markers.spans(text);
        self.spans(&spans)
    }

    fn spans(&mut self, spans: &[Span]) -> String {
        let spans: Vec<String> = spans
            .iter()
            .map(|span| match span {
                Span::Text(text) => quoted(text),
                Span::Marker(id) => format!("<[{id}]>"),
            })
            .collect();
        if spans.is_empty() {
            "\"\"".to_owned()
        } else {
            spans.join(" ")
        }
    }

    fn choice(&mut self, options: Vec<String>) -> String {
        match options.as_slice() {
            [option] => option.clone(),
            _ => self.hoist("r", &options.join(" | ")),
        }
    }

    fn hoist(&mut self, prefix: &str, body: &str) -> String {
        let name = format!("{prefix}{}", self.n_names);
        self.n_names += 1;
        self.source.rule(&name, body);
        name
    }

    fn hoist_lazy(&mut self, body: &str) -> String {
        let name = format!("l{}", self.n_names);
        self.n_names += 1;
        self.source.rule(&format!("{name}[lazy]"), body);
        name
    }

    fn endless(&self) -> FieldError {
        let field = self.source.field;
        let reason = format!(
            "{field} has an any_text or triggered_tags without a const_string after it, so its end is unknown: add a \
             const_string, or put it into a tag"
        );
        FieldError::new(field, reason)
    }
}

/// The condition that a text contains none of `texts`.
fn without_texts(texts: &[String]) -> Option<String> {
    let texts: Vec<String> = texts.iter().map(|text| regex::literal(text)).collect();
    (!texts.is_empty()).then(|| format!("~/(?s:.*)(?:{})(?s:.*)/", texts.join("|")))
}
