//! Parses calls, their openings, and lists of calls in outputs with tags.

use super::{EndTag, Outcome, Part, State, TaggedEngine, Trailer};
use crate::output::braced::BracedReader;
use crate::output::call::{CallOutput, CallReader, Step};
use crate::output::closers::Closers;
use crate::output::content::{After, Content};
use crate::output::keyed::KeyedReader;
use crate::output::lexer::{Item, Lexeme};
use crate::output::loose::LooseReader;
use crate::output::named::NamedReader;
use crate::output::object::ObjectReader;
use crate::output::piece::{OutputPiece, push_arguments};
use crate::output::python::PythonReader;
use crate::output::separated::SeparatedReader;
use crate::output::syntax::{CallList, Expect, Surroundings, Tag};
use crate::output::xml::XmlReader;

/// The state of an opening after a character or tag.
enum Opening {
    /// The character belongs to the opening of a call.
    Expecting(Expect),
    /// The character belongs to the opening of a list of calls.
    InList(&'static CallList),
    Call(Box<dyn CallReader>),
    Nothing,
}

impl Opening {
    fn call(reader: Option<impl CallReader + 'static>) -> Self {
        match reader {
            Some(reader) => Self::Call(Box::new(reader)),
            None => Self::Nothing,
        }
    }
}

impl TaggedEngine {
    /// Starts the opening of a call. Its first lexeme comes next, and must be held.
    pub(super) fn open(&mut self, expect: Expect, opened_by: Option<Tag>) {
        self.held.clear();
        self.opened_by = opened_by;
        self.is_loose = matches!(expect, Expect::Loose(_));
        self.is_fenced = false;
        self.is_listed = false;
        self.n_opening = None;
        self.list = None;
        self.state = State::Opening(expect);
    }

    /// Starts the next call in a fence or a list. The separator after the previous call stays held. If no call follows,
    /// the separator is text, and the opening's tag, if any, is parsed again.
    fn open_next(&mut self, closers: Closers, opened_by: Option<Tag>) {
        let held = std::mem::take(&mut self.held);
        self.open(Expect::Loose(closers), opened_by);
        self.is_fenced = closers.fence;
        self.is_listed = closers.list;
        let is_separated = !held.is_empty() || opened_by.is_some();
        self.n_opening = is_separated.then_some(held.len());
        self.held = held;
    }

    /// Returns whether held input may become text again.
    pub(super) fn is_holding(&self) -> bool {
        matches!(
            self.state,
            State::Opening(_) | State::Call(_) | State::Between | State::Trailer(_)
        )
    }

    pub(super) fn read_opening(
        &mut self,
        expect: Expect,
        lexeme: Lexeme,
        out: &mut Vec<OutputPiece>,
    ) -> Outcome {
        let opening = match lexeme {
            Lexeme::Char(c) if c.is_whitespace() => Opening::Expecting(expect),
            Lexeme::Char(c) => match (expect, &self.calls) {
                // Models trained on tags also write objects.
                (Expect::Function | Expect::KeyedCall, Some(_)) if c == '{' => {
                    self.open_loosely(c, Closers::default())
                }
                (Expect::KeyedCall, Some((_, tools))) => Opening::call(KeyedReader::new(c, tools)),
                (Expect::Loose(closers), Some(_)) => self.open_loosely(c, closers),
                _ => expect.with(c),
            },
            Lexeme::Tag(tag) => match (tag.tag, expect, &self.calls) {
                (Tag::FunctionOpen, Expect::Function, Some((_, tools))) => {
                    Opening::Call(Box::new(XmlReader::new(tools.clone())))
                }
                (Tag::ToolOpen, Expect::SectionItem, Some((syntax, _))) => {
                    Opening::Expecting(syntax.after_open)
                }
                _ => Opening::Nothing,
            },
        };
        match opening {
            Opening::Expecting(expect) => self.state = State::Opening(expect),
            Opening::InList(list) => {
                self.list = Some(list);
                self.state = State::Opening(Expect::ListItem(list));
            }
            Opening::Call(reader) => {
                if let Expect::ListItem(list) = expect {
                    self.list = Some(list);
                }
                self.state = State::Call(reader);
            }
            Opening::Nothing => {
                self.give_up(out);
                return Outcome::Again;
            }
        }
        Outcome::Held
    }

    fn open_loosely(&self, c: char, closers: Closers) -> Opening {
        let Some((syntax, tools)) = &self.calls else {
            return Opening::Nothing;
        };
        let is_start = self.content.is_start();
        Opening::call(LooseReader::new(c, syntax.loose, closers, tools, is_start))
    }

    pub(super) fn read_call(&mut self, lexeme: Lexeme, out: &mut Vec<OutputPiece>) -> Outcome {
        let (State::Call(reader) | State::Started(reader)) = &mut self.state else {
            return Outcome::Again;
        };
        let n_after_call = reader.n_after_call();
        let output = &mut self.output;
        let step = match lexeme {
            Lexeme::Char(c) => reader.read(c, output),
            Lexeme::Tag(tag) if reader.tags().has(tag.tag) => reader.read_tag(tag.tag, output),
            Lexeme::Tag(tag) if reader.is_in_text() => read_text(&mut **reader, tag.text, output),
            Lexeme::Tag(_) => Step::Broken,
        };
        if let (Step::DoneBefore, Some(n_items)) = (step, n_after_call) {
            self.put_back_last(n_items);
        }
        self.emit_call(out);
        let is_started = matches!(self.state, State::Started(_));
        match step {
            Step::More if is_started => {
                match lexeme {
                    Lexeme::Char(c) => self.written.push(c),
                    Lexeme::Tag(tag) => self.written.push_str(tag.text),
                }
                Outcome::Used
            }
            Step::More => Outcome::Held,
            Step::Again => Outcome::Again,
            Step::Done => {
                self.end_call(out);
                Outcome::Used
            }
            Step::DoneBefore => {
                self.end_call(out);
                Outcome::Again
            }
            Step::Broken if is_started => {
                self.break_call(out);
                Outcome::Again
            }
            Step::Broken => {
                self.give_up(out);
                if n_after_call.is_some() {
                    // Only the bracket becomes text: the object after it may still be a call.
                    self.n_reread = 0;
                    self.code.allow_next();
                }
                Outcome::Again
            }
        }
    }

    /// Ends a lone list (without a fence or a tag) if the output ends after its first call.
    pub(super) fn end_lone_list(&mut self, out: &mut Vec<OutputPiece>) {
        let is_after_call = match &self.state {
            State::Call(reader) => reader.n_after_call().is_some(),
            _ => false,
        };
        if is_after_call {
            self.read_call(Lexeme::Char(']'), out);
        }
    }

    pub(super) fn read_between(&mut self, lexeme: Lexeme, out: &mut Vec<OutputPiece>) -> Outcome {
        let (Some(list), Lexeme::Char(c)) = (self.list, lexeme) else {
            self.leave_list();
            return Outcome::Again;
        };
        match c {
            _ if c.is_whitespace() => Outcome::Held,
            _ if Some(c) == list.end => {
                self.leave_list();
                Outcome::Used
            }
            _ if c == list.separator => {
                self.state = State::Opening(Expect::ListItem(list));
                Outcome::Held
            }
            _ => {
                let is_list = self.is_in_brackets();
                self.put_back_held();
                self.leave_list();
                self.emit_list_bracket(is_list, out);
                Outcome::Again
            }
        }
    }

    fn is_in_brackets(&self) -> bool {
        self.list.is_some_and(|list| list.end.is_some())
    }

    /// Emits a list's opening bracket, which earlier calls consumed, as text before an item that is not a call.
    fn emit_list_bracket(&mut self, is_list: bool, out: &mut Vec<OutputPiece>) {
        if is_list {
            self.emit_content('[', out);
        }
    }

    /// Reads input after a complete call that closers may follow.
    pub(super) fn read_trailer(
        &mut self,
        trailer: Trailer,
        lexeme: Lexeme,
        out: &mut Vec<OutputPiece>,
    ) -> Outcome {
        let Lexeme::Char(c) = lexeme else {
            return self.tag_in_trailer(trailer, lexeme);
        };
        let Trailer { left, closers } = trailer;
        if let Some(left) = left.strip_prefix(c) {
            self.state = State::Trailer(Trailer { left, closers });
            return match (left, closers.is_empty()) {
                ("", true) => {
                    self.leave_list();
                    Outcome::Used
                }
                ("", false) => {
                    self.held.clear();
                    Outcome::Used
                }
                _ => Outcome::Held,
            };
        }
        match c {
            _ if !left.is_empty() => {}
            _ if c.is_whitespace() => return Outcome::Held,
            ',' if closers.allows_more() => return Outcome::Held,
            '{' if closers.allows_more() => {
                self.open_next(closers, None);
                return Outcome::Again;
            }
            _ => {
                if let Some((left, closers)) = closers.begun_by(c) {
                    self.state = State::Trailer(Trailer { left, closers });
                    return Outcome::Again;
                }
            }
        }
        self.put_back_held();
        self.leave_trailer(trailer);
        self.emit_list_bracket(closers.list, out);
        Outcome::Again
    }

    /// Reads a tag after a complete call. Inside a fence, tags may close the call and open the next one.
    fn tag_in_trailer(&mut self, trailer: Trailer, lexeme: Lexeme) -> Outcome {
        let Trailer { left, closers } = trailer;
        let is_inside = left.is_empty() && closers.allows_more();
        match lexeme {
            Lexeme::Tag(tag) if tag.tag == Tag::ToolClose && is_inside => {
                self.held.clear();
                Outcome::Used
            }
            Lexeme::Tag(tag)
                if tag.tag == Tag::ToolOpen && is_inside && closers.is_fence_alone() =>
            {
                self.open_next(closers, Some(tag.tag));
                Outcome::Held
            }
            _ => {
                self.leave_trailer(trailer);
                Outcome::Again
            }
        }
    }

    fn leave_trailer(&mut self, trailer: Trailer) {
        self.leave_list();
        if trailer.closers.fence || trailer.left.starts_with('`') {
            self.code.after_call_in_fence();
        }
    }

    /// Returns whether the input after the last call of a list has not begun another call.
    pub(super) fn is_between_calls(&self) -> bool {
        match self.state {
            State::Between | State::Trailer(_) => true,
            State::Opening(Expect::ListItem(_)) => self.n_opening == Some(0),
            _ => false,
        }
    }

    /// Emits the opening's tag as text, and parses the rest again. Between the calls of a list, an opening has no tag.
    pub(super) fn give_up(&mut self, out: &mut Vec<OutputPiece>) {
        let held = std::mem::take(&mut self.held);
        let (opening, rest) = held.split_at(self.n_opening.unwrap_or(0).min(held.len()));
        self.lexer.put_back(rest);
        if self.is_loose {
            self.n_reread = rest.len();
        }
        let is_listed = self.is_in_brackets() && self.n_opening == Some(0);
        let is_listed = std::mem::take(&mut self.is_listed) || is_listed;
        self.state = State::Outside;
        self.list = None;
        if std::mem::take(&mut self.is_fenced) {
            self.code.after_call_in_fence();
        }
        self.emit_list_bracket(is_listed, out);
        let mut text = String::new();
        for &item in opening {
            self.lexer.append_text(item, &mut text);
        }
        for c in text.chars() {
            match self.part {
                Part::Content => self.emit_content(c, out),
                Part::Reasoning => self.emit_reasoning(c, out),
            }
        }
        match (opening.is_empty(), self.opened_by) {
            _ if self.is_loose => {}
            (true, _) => self.tool_close = EndTag::OfCall,
            (false, Some(tag)) => *self.end_tag(tag) = EndTag::OfText,
            (false, None) => self.tool_close = EndTag::OfText,
        }
    }

    /// Returns whether the held input is certainly the beginning of a call.
    pub(super) fn has_begun_call(&self) -> bool {
        match &self.state {
            _ if !self.is_holding() || self.is_between_calls() => false,
            State::Opening(_) if self.is_only_word() => self.must_call(),
            State::Call(reader) if self.has_tool(reader.pending_name()) => true,
            _ => self.opened_by.is_some() || self.n_opening == Some(0),
        }
    }

    /// Whether the opening is only a tag that is also a word (`functools`), which may be part of a sentence.
    fn is_only_word(&self) -> bool {
        let first = self.held.first();
        let is_word = matches!(first, Some(Item::Char(c)) if c.is_alphabetic());
        is_word && self.list.is_none()
    }

    fn has_tool(&self, name: Option<&str>) -> bool {
        let tools = self.calls.as_ref().map(|(_, tools)| tools);
        name.is_some_and(|name| tools.is_some_and(|tools| tools.tool(name).is_some()))
    }

    pub(super) fn drop_call(&mut self) {
        self.lexer.clear();
        self.leave_list();
    }

    /// Continues with the content after calls. Held text is dropped.
    pub(super) fn leave_list(&mut self) {
        self.held.clear();
        self.list = None;
        self.state = State::Outside;
        self.part = Part::Content;
        self.content = Content::new(After::Call);
        self.code.after_call();
        self.tool_close = EndTag::OfCall;
        self.section_close = EndTag::OfCall;
    }

    /// Ends an invalid call, and continues with the content. Its end tags are text, as its opening tags are.
    pub(super) fn break_call(&mut self, out: &mut Vec<OutputPiece>) {
        let text = std::mem::take(&mut self.written);
        out.push(OutputPiece::CallBroken { text });
        let is_section = self.opened_by == Some(Tag::SectionOpen);
        self.leave_list();
        self.is_broken = true;
        self.tool_close = EndTag::OfText;
        if is_section {
            self.section_close = EndTag::OfText;
        }
    }

    fn put_back_held(&mut self) {
        let held = std::mem::take(&mut self.held);
        self.lexer.put_back(&held);
    }

    fn put_back_last(&mut self, n_items: usize) {
        let last = self.held.split_off(self.held.len().saturating_sub(n_items));
        self.lexer.put_back(&last);
    }

    fn emit_call(&mut self, out: &mut Vec<OutputPiece>) {
        if let Some(name) = self.output.name.take() {
            self.begin_written();
            self.held.clear();
            self.part = Part::Content;
            self.content = Content::new(After::Call);
            self.state = match std::mem::replace(&mut self.state, State::Outside) {
                State::Call(reader) => State::Started(reader),
                other => other,
            };
            out.push(OutputPiece::CallStart { name });
        }
        push_arguments(out, &self.output.arguments);
        self.output.arguments.clear();
    }

    /// Starts the record of a call's text, with all input held before its name was certain.
    fn begin_written(&mut self) {
        self.written.clear();
        if self.part == Part::Content {
            self.written.push_str(self.content.held());
        }
        if self.n_opening == Some(0) && self.is_in_brackets() {
            self.written.push('[');
        }
        for &item in &self.held {
            self.lexer.append_text(item, &mut self.written);
        }
    }

    fn end_call(&mut self, out: &mut Vec<OutputPiece>) {
        out.push(OutputPiece::CallEnd);
        self.complete_calls += 1;
        self.held.clear();
        self.n_opening = Some(0);
        let closers = match &self.state {
            State::Started(reader) => reader.closers(),
            _ => Closers::default(),
        };
        if self.wants_end() {
            self.state = State::Over;
        } else if !closers.is_empty() {
            self.state = State::Trailer(Trailer { left: "", closers });
        } else if self.list.is_some() {
            self.state = State::Between;
        } else {
            self.leave_list();
        }
    }
}

fn read_text(reader: &mut dyn CallReader, text: &str, output: &mut CallOutput) -> Step {
    for c in text.chars() {
        let mut step = reader.read(c, output);
        while step == Step::Again {
            step = reader.read(c, output);
        }
        if step == Step::Broken {
            return step;
        }
    }
    Step::More
}

impl Expect {
    fn with(self, c: char) -> Opening {
        match (self, c) {
            (Self::Object(surroundings), '{') => {
                Opening::Call(Box::new(ObjectReader::new(surroundings)))
            }
            (Self::ListOpen(list) | Self::ListOrName(list) | Self::ListOrItem(list), '[') => {
                Opening::InList(list)
            }
            (Self::ListItem(list) | Self::ListOrItem(list), _) => list.item.with(c),
            (Self::PythonCallOrObject, '{') => Self::Object(Surroundings::Tagged).with(c),
            (Self::PythonCall | Self::PythonCallOrObject, _) => Opening::call(PythonReader::new(c)),
            (Self::ListOrName(list), '{') => list.item.with(c),
            (Self::ListOrName(_), _) => Opening::call(NamedReader::new(c)),
            (Self::SeparatedCall | Self::SectionItem, _) => Opening::call(SeparatedReader::new(c)),
            (Self::BracedCall, _) => Opening::call(BracedReader::new(c)),
            _ => Opening::Nothing,
        }
    }
}
