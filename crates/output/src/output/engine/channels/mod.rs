//! Parser for outputs of gpt-oss: messages whose headers distinguish reasoning, answers and function calls.

mod header;

use std::sync::Arc;

use super::MAX_HELD_CHARS;
use crate::output::ending::OutputEnding;
use crate::output::format::{OutputFormats, ReasoningFormat, ToolFormat};
use crate::output::json::{Scan, ValueScanner};
use crate::output::lexer::{FoundTag, Input, Item, Lexeme, Lexer};
use crate::output::markers::Markers;
use crate::output::piece::{OutputPiece, push_arguments, push_reasoning, push_text};
use crate::output::start::OutputStart;
use crate::output::syntax::{Tag, TagSet};
use crate::output::tools::ToolUse;
use header::{Header, HeaderStep};

#[derive(Debug)]
pub(super) struct ChannelEngine {
    lexer: Lexer,
    /// The tools; `None` if calls are text.
    tools: Option<Arc<ToolUse>>,
    headers: Headers,
    state: State,
    /// The part to which the current or previous message belongs.
    part: Part,
    /// A header, until its message is certain to be a call or text; or whitespace between messages.
    held: Vec<Item>,
    /// Number of items at the start of `held` that are the tag which began the header.
    n_opening: usize,
    /// The part to which the last emitted text belongs.
    last_part: Option<Part>,
    /// No text of the message was emitted yet.
    is_new: bool,
    /// The arguments of the current call.
    written: String,
    complete_calls: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Headers {
    /// Headers separate reasoning from content, and are dropped.
    Separate,
    /// Headers are text.
    StayText,
}

#[derive(Debug)]
enum State {
    Header(Header),
    Body,
    BeforeArguments(Header),
    Arguments(ValueScanner),
    Between,
    Over,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Content,
    Reasoning,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Used,
    Held,
    Again,
}

const ENDS: TagSet = TagSet::of(&[Tag::MessageEnd, Tag::CallEnd, Tag::AnswerEnd]);
const BEGINS: TagSet = TagSet::of(&[Tag::MessageStart, Tag::Channel]);
const ALL: TagSet = ENDS
    .union(BEGINS)
    .union(TagSet::of(&[Tag::Constraint, Tag::MessageBody]));

impl ChannelEngine {
    pub(super) fn new(
        formats: OutputFormats,
        tools: Option<Arc<ToolUse>>,
        markers: Arc<Markers>,
        start: OutputStart,
    ) -> Self {
        Self {
            lexer: Lexer::new(formats, markers),
            tools: tools.filter(|_| formats.tool == Some(ToolFormat::GptOss)),
            headers: match formats.reasoning {
                Some(ReasoningFormat::GptOss) => Headers::Separate,
                _ => Headers::StayText,
            },
            state: match start {
                OutputStart::Header => State::Header(Header::after_role()),
                OutputStart::Between => State::Between,
                OutputStart::Content | OutputStart::Reasoning => State::Body,
            },
            part: match (start, formats.reasoning) {
                (OutputStart::Reasoning, Some(ReasoningFormat::GptOss)) => Part::Reasoning,
                _ => Part::Content,
            },
            held: Vec::new(),
            n_opening: 0,
            last_part: None,
            is_new: false,
            written: String::new(),
            complete_calls: 0,
        }
    }

    pub(super) fn push_text(&mut self, text: &str, out: &mut Vec<OutputPiece>) {
        for c in text.chars() {
            self.lexer.push_char(c);
            self.run(Input::Open, out);
        }
    }

    pub(super) fn push_marker(&mut self, token: u32, out: &mut Vec<OutputPiece>) {
        self.lexer.push_token(token);
        self.run(Input::Open, out);
    }

    pub(super) fn push_end(&mut self, token: u32, out: &mut Vec<OutputPiece>) {
        let ends_message = self.lexer.tag_of(token).is_some_and(|tag| ENDS.has(tag));
        let is_call = matches!(self.state, State::BeforeArguments(_)) && self.tools.is_some();
        if ends_message && is_call {
            self.push_marker(token, out);
        }
    }

    pub(super) fn finish(&mut self, ending: OutputEnding, out: &mut Vec<OutputPiece>) {
        if ending == OutputEnding::Cut && self.has_begun_call() {
            self.held.clear();
            self.lexer.clear();
            self.state = State::Between;
        }
        self.run(Input::Ended, out);
        while self.gives_up_at_end() {
            self.give_up(out);
            self.run(Input::Ended, out);
        }
        let must_call = self.tools.as_ref().is_some_and(|tools| tools.must_call());
        let is_cut = ending == OutputEnding::Cut || must_call;
        if matches!(self.state, State::Arguments(_)) && !is_cut {
            self.break_call(out);
        }
        self.held.clear();
        self.state = State::Over;
    }

    pub(super) fn complete_calls(&self) -> usize {
        self.complete_calls
    }

    pub(super) fn is_in_reasoning(&self) -> bool {
        matches!(self.state, State::Body) && self.part == Part::Reasoning
    }

    pub(super) fn wants_end(&self) -> bool {
        let tools = self.tools.as_ref();
        self.complete_calls > 0 && tools.is_some_and(|tools| tools.is_single())
    }

    fn has_begun_call(&self) -> bool {
        let header = match &self.state {
            State::Header(header) | State::BeforeArguments(header) => header,
            _ => return false,
        };
        self.tools.is_some() && header.function().is_some()
    }

    /// Whether an incomplete header at the end becomes text: where headers stay text, or if it has no tag.
    fn gives_up_at_end(&self) -> bool {
        match &self.state {
            State::Header(header) => {
                !self.held.is_empty() && (self.headers == Headers::StayText || !header.has_tag())
            }
            State::BeforeArguments(_) => self.headers == Headers::StayText,
            _ => false,
        }
    }

    fn run(&mut self, input: Input, out: &mut Vec<OutputPiece>) {
        loop {
            if matches!(self.state, State::Over) {
                self.lexer.clear();
                return;
            }
            let Some((lexeme, n_items)) = self.lexer.peek(self.tags(), input) else {
                return;
            };
            match self.read(lexeme, n_items, out) {
                Outcome::Used => self.lexer.take(n_items, |_| {}),
                Outcome::Held => {
                    let held = &mut self.held;
                    self.lexer.take(n_items, |item| held.push(item));
                    if self.held.len() > MAX_HELD_CHARS {
                        self.give_up(out);
                    }
                }
                Outcome::Again => {}
            }
        }
    }

    fn tags(&self) -> TagSet {
        match &self.state {
            State::Header(_) => ALL,
            State::Body if self.headers == Headers::StayText && self.tools.is_none() => {
                TagSet::NONE
            }
            State::Body if self.headers == Headers::StayText => BEGINS,
            State::Arguments(scanner) if scanner.is_in_string() => TagSet::NONE,
            State::Body | State::BeforeArguments(_) | State::Arguments(_) | State::Between => {
                ENDS.union(BEGINS)
            }
            State::Over => TagSet::NONE,
        }
    }

    fn read(&mut self, lexeme: Lexeme, n_items: usize, out: &mut Vec<OutputPiece>) -> Outcome {
        match (&mut self.state, lexeme) {
            (State::Header(header), Lexeme::Char(c)) => {
                let step = header.read(c);
                self.after_step(step, out)
            }
            (State::Header(header), Lexeme::Tag(tag)) => {
                let step = header.read_tag(tag.tag);
                self.after_step(step, out)
            }
            (State::Body, Lexeme::Char(c)) => {
                self.emit(c, out);
                Outcome::Used
            }
            (State::Body, Lexeme::Tag(tag)) => self.body_tag(tag, n_items, out),
            (State::BeforeArguments(_), _) => self.read_before_arguments(lexeme, out),
            (State::Arguments(_), _) => self.read_arguments(lexeme, out),
            (State::Between, Lexeme::Char(c)) if c.is_whitespace() => Outcome::Held,
            (State::Between, Lexeme::Tag(tag)) if ENDS.union(BEGINS).has(tag.tag) => {
                self.held.clear();
                if ENDS.has(tag.tag) {
                    return Outcome::Used;
                }
                // If no valid header follows, the tag is content.
                self.begin_body(Part::Content);
                self.begin_header(tag.tag, n_items)
            }
            (State::Between, _) => {
                self.put_back(0);
                self.begin_body(Part::Content);
                Outcome::Again
            }
            (State::Over, _) => Outcome::Used,
        }
    }

    fn body_tag(&mut self, tag: FoundTag, n_items: usize, out: &mut Vec<OutputPiece>) -> Outcome {
        let tags = self.tags();
        if tags.has(tag.tag) && BEGINS.has(tag.tag) {
            return self.begin_header(tag.tag, n_items);
        }
        if tags.has(tag.tag) {
            self.state = State::Between;
            return Outcome::Used;
        }
        tag.text.chars().for_each(|c| self.emit(c, out));
        Outcome::Used
    }

    fn begin_header(&mut self, tag: Tag, n_items: usize) -> Outcome {
        self.held.clear();
        self.n_opening = n_items;
        self.state = State::Header(Header::after_tag(tag));
        Outcome::Held
    }

    fn begin_body(&mut self, part: Part) {
        self.state = State::Body;
        self.part = part;
        self.is_new = self.headers == Headers::Separate;
    }

    fn after_step(&mut self, step: HeaderStep, out: &mut Vec<OutputPiece>) -> Outcome {
        match step {
            HeaderStep::More => return Outcome::Held,
            HeaderStep::Broken => {
                self.give_up(out);
                return Outcome::Again;
            }
            HeaderStep::Body => {}
        }
        let State::Header(header) = std::mem::replace(&mut self.state, State::Body) else {
            return Outcome::Again;
        };
        if header.function().is_some() {
            // The tag that begins the body is held, too: if no call follows, all held items become text.
            self.state = State::BeforeArguments(header);
            return Outcome::Held;
        }
        match self.headers {
            Headers::Separate => {
                self.held.clear();
                self.begin_body(header.part());
                Outcome::Used
            }
            Headers::StayText => {
                self.state = State::Header(header);
                self.give_up(out);
                Outcome::Again
            }
        }
    }

    fn read_before_arguments(&mut self, lexeme: Lexeme, out: &mut Vec<OutputPiece>) -> Outcome {
        let State::BeforeArguments(header) = &self.state else {
            return Outcome::Again;
        };
        let name = header.function().filter(|_| self.tools.is_some());
        let (Some(name), part) = (name.map(str::to_owned), header.part()) else {
            self.emit_header(header.part(), out);
            return Outcome::Again;
        };
        match lexeme {
            Lexeme::Char(c) if c.is_whitespace() => Outcome::Held,
            Lexeme::Char('{') => {
                self.begin_call(name, "{", out);
                self.state = ValueScanner::new('{').map_or(State::Between, State::Arguments);
                Outcome::Used
            }
            Lexeme::Tag(tag) if ENDS.has(tag.tag) => {
                self.begin_call(name, "{}", out);
                self.end_call(out);
                Outcome::Used
            }
            _ => {
                self.emit_header(part, out);
                Outcome::Again
            }
        }
    }

    fn read_arguments(&mut self, lexeme: Lexeme, out: &mut Vec<OutputPiece>) -> Outcome {
        let State::Arguments(scanner) = &mut self.state else {
            return Outcome::Again;
        };
        let c = match lexeme {
            Lexeme::Char(c) => c,
            Lexeme::Tag(tag) if scanner.is_in_string() => {
                if tag.text.chars().any(|c| scanner.read(c) == Scan::Broken) {
                    self.break_call(out);
                    return Outcome::Again;
                }
                self.written.push_str(tag.text);
                push_arguments(out, tag.text);
                return Outcome::Used;
            }
            Lexeme::Tag(_) => {
                self.break_call(out);
                self.state = State::Between;
                return Outcome::Again;
            }
        };
        let mut arguments = String::new();
        let scan = scanner.read_into(c, &mut arguments);
        if matches!(scan, Scan::DoneBefore | Scan::Broken) {
            self.break_call(out);
            return Outcome::Again;
        }
        self.written.push(c);
        push_arguments(out, &arguments);
        if scan == Scan::Done {
            self.end_call(out);
        }
        Outcome::Used
    }

    fn begin_call(&mut self, name: String, arguments: &str, out: &mut Vec<OutputPiece>) {
        self.held.clear();
        out.push(OutputPiece::CallStart { name });
        self.written.clear();
        self.written.push_str(arguments);
        push_arguments(out, arguments);
    }

    /// Ends an invalid call: its message becomes content, and its header is dropped.
    fn break_call(&mut self, out: &mut Vec<OutputPiece>) {
        let mut text = std::mem::take(&mut self.written);
        if self.last_part == Some(Part::Content) {
            text.insert(0, '\n');
        }
        out.push(OutputPiece::CallBroken { text });
        self.begin_body(Part::Content);
        self.is_new = false;
        self.last_part = Some(Part::Content);
    }

    fn end_call(&mut self, out: &mut Vec<OutputPiece>) {
        out.push(OutputPiece::CallEnd);
        self.complete_calls += 1;
        self.state = if self.wants_end() {
            State::Over
        } else {
            State::Between
        };
    }

    /// Emits the header of a message that is not a call as the beginning of its text.
    fn emit_header(&mut self, part: Part, out: &mut Vec<OutputPiece>) {
        let part = match self.headers {
            Headers::Separate => part,
            Headers::StayText => Part::Content,
        };
        self.begin_body(part);
        let held = std::mem::take(&mut self.held);
        self.emit_items(&held, out);
    }

    /// Emits the tag that began a header as text of the previous message, and parses the rest again.
    fn give_up(&mut self, out: &mut Vec<OutputPiece>) {
        let n_opening = std::mem::take(&mut self.n_opening).min(self.held.len());
        self.put_back(n_opening);
        let opening = std::mem::take(&mut self.held);
        self.state = State::Body;
        self.emit_items(&opening, out);
    }

    fn put_back(&mut self, n_kept: usize) {
        let rest = self.held.split_off(n_kept.min(self.held.len()));
        self.lexer.put_back(&rest);
    }

    fn emit_items(&mut self, items: &[Item], out: &mut Vec<OutputPiece>) {
        let mut text = String::new();
        for &item in items {
            self.lexer.append_text(item, &mut text);
        }
        text.chars().for_each(|c| self.emit(c, out));
    }

    /// Emits a character of a message. A newline separates consecutive messages of the same part.
    fn emit(&mut self, c: char, out: &mut Vec<OutputPiece>) {
        let mut text = String::new();
        if std::mem::take(&mut self.is_new) && self.last_part == Some(self.part) {
            text.push('\n');
        }
        text.push(c);
        self.last_part = Some(self.part);
        match self.part {
            Part::Content => push_text(out, &text),
            Part::Reasoning => push_reasoning(out, &text),
        }
    }
}

impl Header {
    fn part(&self) -> Part {
        if self.is_reasoning() {
            Part::Reasoning
        } else {
            Part::Content
        }
    }
}
