//! Openings, calls and lists of calls.

use super::{Around, EndTag, Fate, State, TaggedEngine};
use crate::state::output::braced::BracedReader;
use crate::state::output::call::{CallReader, Step};
use crate::state::output::content::{After, Content};
use crate::state::output::keyed::KeyedReader;
use crate::state::output::lexer::Lexeme;
use crate::state::output::named::NamedReader;
use crate::state::output::object::ObjectReader;
use crate::state::output::piece::{OutputPiece, push_arguments};
use crate::state::output::python::PythonReader;
use crate::state::output::separated::SeparatedReader;
use crate::state::output::syntax::{CallList, Expect, Surroundings, Tag};
use crate::state::output::xml::XmlReader;

/// The state of an opening after the next character or tag.
enum Opened {
    /// The character is a part of what leads to a call.
    Expecting(Expect),
    /// The same, and the calls are those of a list.
    InList(&'static CallList),
    /// The character is the first of a call.
    Call(Box<dyn CallReader>),
    /// There is no call.
    Nothing,
}

impl Opened {
    /// A call, if its first character began one.
    fn call(reader: Option<impl CallReader + 'static>) -> Self {
        match reader {
            Some(reader) => Self::Call(Box::new(reader)),
            None => Self::Nothing,
        }
    }
}

impl TaggedEngine {
    /// Begins an opening. Its first lexeme is the next that is held.
    pub(super) fn open(&mut self, expect: Expect, opened_by: Option<Tag>) {
        self.held.clear();
        self.opened_by = opened_by;
        self.n_opening = None;
        self.list = None;
        self.state = State::Opening(expect);
    }

    /// Returns whether input is held that may become text again.
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
    ) -> Fate {
        let opened = match lexeme {
            Lexeme::Char(c) if c.is_whitespace() => Opened::Expecting(expect),
            Lexeme::Char(c) if matches!(expect, Expect::KeyedCall) => match &self.calls {
                Some((_, tools)) => Opened::call(KeyedReader::new(c, tools)),
                None => Opened::Nothing,
            },
            Lexeme::Char(c) => expect.with(c),
            Lexeme::Tag(tag) => match (tag.tag, expect, &self.calls) {
                (Tag::FunctionOpen, Expect::Function, Some((_, tools))) => {
                    Opened::Call(Box::new(XmlReader::new(tools.clone())))
                }
                (Tag::ToolOpen, Expect::SectionItem, Some((syntax, _))) => {
                    Opened::Expecting(syntax.after_open)
                }
                _ => Opened::Nothing,
            },
        };
        match opened {
            Opened::Expecting(expect) => self.state = State::Opening(expect),
            Opened::InList(list) => {
                self.list = Some(list);
                self.state = State::Opening(Expect::ListItem(list));
            }
            Opened::Call(reader) => {
                if let Expect::ListItem(list) = expect {
                    self.list = Some(list);
                }
                self.state = State::Call(reader);
            }
            Opened::Nothing => {
                self.give_up(out);
                return Fate::Again;
            }
        }
        Fate::Held
    }

    pub(super) fn read_call(&mut self, lexeme: Lexeme, out: &mut Vec<OutputPiece>) -> Fate {
        let (State::Call(reader) | State::Started(reader)) = &mut self.state else {
            return Fate::Again;
        };
        let output = &mut self.output;
        let step = match lexeme {
            Lexeme::Char(c) => reader.read(c, output),
            Lexeme::Tag(tag) if reader.tags().has(tag.tag) => reader.read_tag(tag.tag, output),
            Lexeme::Tag(tag) if reader.is_in_text() => {
                for c in tag.text.chars() {
                    while reader.read(c, output) == Step::Again {}
                }
                Step::More
            }
            Lexeme::Tag(_) => Step::Broken,
        };
        self.give_call(out);
        let is_started = matches!(self.state, State::Started(_));
        match step {
            Step::More if is_started => Fate::Used,
            Step::More => Fate::Held,
            Step::Again => Fate::Again,
            Step::Done => {
                self.end_call(out);
                Fate::Used
            }
            Step::DoneBefore => {
                self.end_call(out);
                Fate::Again
            }
            Step::Broken if is_started => {
                self.leave_list();
                Fate::Again
            }
            Step::Broken => {
                self.give_up(out);
                Fate::Again
            }
        }
    }

    /// Reads what stands after a call of a list. The text that is held is whitespace.
    pub(super) fn read_between(&mut self, lexeme: Lexeme) -> Fate {
        let (Some(list), Lexeme::Char(c)) = (self.list, lexeme) else {
            self.leave_list();
            return Fate::Again;
        };
        match c {
            _ if c.is_whitespace() => Fate::Held,
            _ if Some(c) == list.end => {
                self.leave_list();
                Fate::Used
            }
            _ if c == list.separator => {
                self.state = State::Opening(Expect::ListItem(list));
                Fate::Held
            }
            _ => {
                self.put_back_held();
                self.leave_list();
                Fate::Again
            }
        }
    }

    /// Reads what may close a complete call. A tag closes it as well.
    pub(super) fn read_trailer(&mut self, left: &'static str, lexeme: Lexeme) -> Fate {
        let Lexeme::Char(c) = lexeme else {
            self.leave_list();
            return Fate::Again;
        };
        match left.strip_prefix(c) {
            Some("") => {
                self.leave_list();
                Fate::Used
            }
            Some(left) => {
                self.state = State::Trailer(left);
                Fate::Held
            }
            None if c.is_whitespace() => Fate::Held,
            None => {
                self.put_back_held();
                self.leave_list();
                Fate::Again
            }
        }
    }

    /// Returns whether nothing of a next call was read since the last call of a list.
    pub(super) fn is_between_calls(&self) -> bool {
        match self.state {
            State::Between | State::Trailer(_) => true,
            State::Opening(Expect::ListItem(_)) => self.n_opening == Some(0),
            _ => false,
        }
    }

    /// Makes the tag of the opening text and reads on after it. Text after a call of a list has no tag.
    pub(super) fn give_up(&mut self, out: &mut Vec<OutputPiece>) {
        let held = std::mem::take(&mut self.held);
        let (opening, rest) = held.split_at(self.n_opening.unwrap_or(0).min(held.len()));
        self.lexer.put_back(rest);
        self.state = State::Around;
        self.list = None;
        let mut text = String::new();
        for &item in opening {
            self.lexer.text_of(item, &mut text);
        }
        for c in text.chars() {
            match self.around {
                Around::Content => self.give_content(c, out),
                Around::Reasoning => self.give_reasoning(c, out),
            }
        }
        match (opening.is_empty(), self.opened_by) {
            (true, _) => self.tool_close = EndTag::OfCall,
            (false, Some(tag)) => *self.end_tag(tag) = EndTag::OfText,
            (false, None) => self.tool_close = EndTag::OfText,
        }
    }

    /// Goes on with the content after calls. The text that is held is dropped.
    pub(super) fn leave_list(&mut self) {
        self.held.clear();
        self.list = None;
        self.state = State::Around;
        self.around = Around::Content;
        self.content = Content::new(After::Call);
        self.tool_close = EndTag::OfCall;
        self.section_close = EndTag::OfCall;
    }

    fn put_back_held(&mut self) {
        let held = std::mem::take(&mut self.held);
        self.lexer.put_back(&held);
    }

    /// Gives out what the reader has written.
    fn give_call(&mut self, out: &mut Vec<OutputPiece>) {
        if let Some(name) = self.output.name.take() {
            self.held.clear();
            self.around = Around::Content;
            self.content = Content::new(After::Call);
            self.state = match std::mem::replace(&mut self.state, State::Around) {
                State::Call(reader) => State::Started(reader),
                other => other,
            };
            out.push(OutputPiece::CallStart { name });
        }
        push_arguments(out, &self.output.arguments);
        self.output.arguments.clear();
    }

    fn end_call(&mut self, out: &mut Vec<OutputPiece>) {
        out.push(OutputPiece::CallEnd);
        self.complete_calls += 1;
        self.held.clear();
        self.n_opening = Some(0);
        let trailer = match &self.state {
            State::Started(reader) => reader.trailer(),
            _ => None,
        };
        if self.wants_end() {
            self.state = State::Over;
        } else if let Some(trailer) = trailer {
            self.state = State::Trailer(trailer);
        } else if self.list.is_some() {
            self.state = State::Between;
        } else {
            self.leave_list();
        }
    }
}

impl Expect {
    /// Reads a character that is no whitespace.
    fn with(self, c: char) -> Opened {
        match (self, c) {
            (Self::Object(surroundings), '{') => {
                Opened::Call(Box::new(ObjectReader::new(surroundings)))
            }
            (Self::ListOpen(list) | Self::ListOrName(list) | Self::ListOrItem(list), '[') => {
                Opened::InList(list)
            }
            (Self::ListItem(list) | Self::ListOrItem(list), _) => list.item.with(c),
            (Self::PythonCallOrObject, '{') => Self::Object(Surroundings::Tagged).with(c),
            (Self::PythonCall | Self::PythonCallOrObject, _) => Opened::call(PythonReader::new(c)),
            (Self::ListOrName(_), _) => Opened::call(NamedReader::new(c)),
            (Self::SeparatedCall, _) => Opened::call(SeparatedReader::new(c)),
            (Self::BracedCall, _) => Opened::call(BracedReader::new(c)),
            _ => Opened::Nothing,
        }
    }
}
