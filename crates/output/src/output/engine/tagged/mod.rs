//! Parser for outputs with tags around reasoning and calls.

mod calls;

use std::sync::Arc;

use crate::output::call::{CallOutput, CallReader};
use crate::output::closers::Closers;
use crate::output::code::Code;
use crate::output::content::{After, Content};
use crate::output::ending::OutputEnding;
use crate::output::format::OutputFormats;
use crate::output::lexer::{FoundTag, Input, Item, Lexeme, Lexer};
use crate::output::markers::Markers;
use crate::output::piece::{OutputPiece, push_reasoning, push_text};
use crate::output::start::OutputStart;
use crate::output::syntax::{CallList, Expect, Loose, Tag, TagSet, ToolSyntax};
use crate::output::thinking::Thinking;
use crate::output::tools::ToolUse;

use super::MAX_HELD_CHARS;

#[derive(Debug)]
pub(super) struct TaggedEngine {
    lexer: Lexer,
    /// The format of calls, and the request's tools; `None` without tools.
    calls: Option<(&'static ToolSyntax, Arc<ToolUse>)>,
    has_reasoning: bool,
    state: State,
    /// The part of the output that surrounds calls.
    part: Part,
    /// The opening of a call, until the call is certain.
    held: Vec<Item>,
    /// How many leading items in `held` become text if no call follows, such as the start tag. 0 after a call; `None`
    /// until the first item of an opening is held.
    n_opening: Option<usize>,
    opened_by: Option<Tag>,
    /// The opening is not in the model's format.
    is_loose: bool,
    /// The opening is in a fence that began before an earlier call.
    is_fenced: bool,
    /// The opening is in a list that began before an earlier call.
    is_listed: bool,
    /// Calls outside the model's format are recognised.
    allows_loose: bool,
    /// The input is the rest of a broken call, where objects are not calls.
    is_broken: bool,
    /// Number of next items that were put back, and cannot begin a loose call: to retry would take quadratic time.
    n_reread: usize,
    code: Code,
    list: Option<&'static CallList>,
    content: Content,
    thinking: Thinking,
    /// The text that follows the start tag of reasoning (Gemma 4), or empty.
    label: &'static str,
    /// How to treat the next end tag of a call in the content.
    tool_close: EndTag,
    /// How to treat the next end tag of a call section in the content.
    section_close: EndTag,
    /// How to treat the next end tag of reasoning in the content.
    think_end: EndTag,
    /// The output of a call's reader. Outside calls, its arguments serve as a buffer for text.
    output: CallOutput,
    /// The text of the started call, and the whitespace before it.
    written: String,
    complete_calls: usize,
}

#[derive(Debug)]
enum State {
    /// Outside calls: in content or reasoning.
    Outside,
    /// An opening, which may lead to a call; held entirely.
    Opening(Expect),
    /// A call, held until its reader emits the name.
    Call(Box<dyn CallReader>),
    /// A call whose name was emitted.
    Started(Box<dyn CallReader>),
    /// After a call of a list; held entirely.
    Between,
    /// After a call that closers (a bracket, an end tag or a fence) may follow; held entirely.
    Trailer(Trailer),
    /// The rest of the output is dropped.
    Over,
}

#[derive(Clone, Copy, Debug)]
struct Trailer {
    /// The rest of the closer that has begun, or empty.
    left: &'static str,
    /// The closers that may follow it.
    closers: Closers,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Content,
    Reasoning,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum EndTag {
    /// The tag closes nothing.
    #[default]
    Stray,
    /// The tag closes an opening that was text, so it is text as well.
    OfText,
    /// The tag closes a call.
    OfCall,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Used,
    Held,
    /// Not consumed: the state has changed, and the lexeme is read again.
    Again,
}

fn label(formats: OutputFormats) -> &'static str {
    formats.reasoning.map_or("", |format| format.syntax().label)
}

impl TaggedEngine {
    pub(super) fn new(
        formats: OutputFormats,
        tools: Option<Arc<ToolUse>>,
        markers: Arc<Markers>,
        start: OutputStart,
    ) -> Self {
        let syntax = formats.tool.map(|format| format.syntax());
        let starts_in_reasoning = formats
            .reasoning
            .is_some_and(|format| start == OutputStart::Reasoning || format.starts_in_reasoning());
        Self {
            lexer: Lexer::new(formats, markers),
            calls: syntax.zip(tools),
            has_reasoning: formats.reasoning.is_some(),
            state: State::Outside,
            part: if starts_in_reasoning {
                Part::Reasoning
            } else {
                Part::Content
            },
            held: Vec::new(),
            n_opening: None,
            opened_by: None,
            is_loose: false,
            is_fenced: false,
            is_listed: false,
            allows_loose: true,
            is_broken: false,
            n_reread: 0,
            code: Code::new(),
            list: None,
            content: Content::new(After::Start),
            thinking: Thinking::new(label(formats)),
            label: label(formats),
            tool_close: EndTag::Stray,
            section_close: EndTag::Stray,
            think_end: EndTag::Stray,
            output: CallOutput::default(),
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

    pub(super) fn disable_loose_calls(&mut self) {
        self.allows_loose = false;
    }

    pub(super) fn finish(&mut self, ending: OutputEnding, out: &mut Vec<OutputPiece>) {
        self.end_lone_list(out);
        if self.has_begun_call() && (ending == OutputEnding::Cut || self.must_call()) {
            self.drop_call();
        }
        let must_call = self.must_call() && !self.is_reasoning_text();
        if must_call || (ending == OutputEnding::Cut && self.is_after_call()) {
            // Drop a partial tag, which would open the next call.
            self.lexer.clear();
        }
        self.run(Input::Ended, out);
        while self.is_holding() {
            if self.is_between_calls() {
                self.leave_list()
            } else {
                self.give_up(out)
            }
            self.run(Input::Ended, out);
        }
        let is_cut = ending == OutputEnding::Cut || self.must_call();
        if matches!(self.state, State::Started(_)) && !is_cut {
            self.break_call(out);
        }
        self.release_whitespace(out);
        self.state = State::Over;
    }

    fn must_call(&self) -> bool {
        let calls = self.calls.as_ref();
        calls.is_some_and(|(_, tools)| tools.must_call())
    }

    fn is_reasoning_text(&self) -> bool {
        matches!(self.state, State::Outside) && self.part == Part::Reasoning
    }

    fn is_after_call(&self) -> bool {
        match self.state {
            State::Outside => self.part == Part::Content && self.content.is_after_call(),
            _ => self.is_holding() && self.is_between_calls(),
        }
    }

    pub(super) fn held_whitespace(&self) -> &str {
        match (&self.state, self.part) {
            (State::Outside, Part::Content) => self.content.held(),
            _ => "",
        }
    }

    pub(super) fn release_whitespace(&mut self, out: &mut Vec<OutputPiece>) {
        if matches!(self.state, State::Outside) && self.part == Part::Content {
            push_text(out, &self.content.finish());
        }
    }

    pub(super) fn complete_calls(&self) -> usize {
        self.complete_calls
    }

    pub(super) fn is_in_reasoning(&self) -> bool {
        self.part == Part::Reasoning
    }

    pub(super) fn wants_end(&self) -> bool {
        let calls = self.calls.as_ref();
        self.complete_calls > 0 && calls.is_some_and(|(_, tools)| tools.is_single())
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
            match self.read(lexeme, out) {
                Outcome::Used => {
                    self.n_reread = self.n_reread.saturating_sub(n_items);
                    self.lexer.take(n_items, |_| {});
                }
                Outcome::Held => {
                    self.n_reread = self.n_reread.saturating_sub(n_items);
                    self.n_opening.get_or_insert(n_items);
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
        const REASONING: TagSet = TagSet::of(&[Tag::ThinkStart, Tag::ThinkEnd]);
        const OPEN: TagSet = TagSet::of(&[Tag::ToolOpen, Tag::SectionOpen]);
        const CALLS: TagSet = OPEN.union(TagSet::of(&[
            Tag::ToolClose,
            Tag::SectionClose,
            Tag::FunctionOpen,
        ]));
        const FUNCTION: TagSet = TagSet::of(&[Tag::FunctionOpen]);
        const ITEM: TagSet = TagSet::of(&[Tag::ToolOpen]);
        let when = |condition: bool, tags: TagSet| if condition { tags } else { TagSet::NONE };
        match (&self.state, self.part) {
            (State::Outside, Part::Content) => {
                when(self.has_reasoning, REASONING).union(when(self.calls.is_some(), CALLS))
            }
            (State::Outside, Part::Reasoning) => REASONING.union(when(self.calls.is_some(), OPEN)),
            (State::Opening(Expect::Function), _) => FUNCTION,
            (State::Opening(Expect::SectionItem), _) => ITEM,
            (State::Trailer(_) | State::Between, _) => CALLS,
            (State::Opening(_) | State::Over, _) => TagSet::NONE,
            (State::Call(reader) | State::Started(reader), _) => reader.tags(),
        }
    }

    fn read(&mut self, lexeme: Lexeme, out: &mut Vec<OutputPiece>) -> Outcome {
        match (&self.state, self.part, lexeme) {
            (State::Outside, Part::Content, Lexeme::Char(c)) => self.read_content(c, out),
            (State::Outside, Part::Content, Lexeme::Tag(tag)) => self.content_tag(tag, out),
            (State::Outside, Part::Reasoning, Lexeme::Char(c)) => {
                self.emit_reasoning(c, out);
                Outcome::Used
            }
            (State::Outside, Part::Reasoning, Lexeme::Tag(tag)) => self.reasoning_tag(tag, out),
            (State::Opening(expect), _, _) => {
                let expect = *expect;
                self.read_opening(expect, lexeme, out)
            }
            (State::Call(_) | State::Started(_), _, _) => self.read_call(lexeme, out),
            (State::Between, _, _) => self.read_between(lexeme, out),
            (State::Trailer(trailer), _, _) => {
                let trailer = *trailer;
                self.read_trailer(trailer, lexeme, out)
            }
            (State::Over, _, _) => Outcome::Used,
        }
    }

    fn read_content(&mut self, c: char, out: &mut Vec<OutputPiece>) -> Outcome {
        let bare = self.calls.as_ref().and_then(|(syntax, _)| syntax.bare);
        match bare {
            Some((opening, expect)) if c == opening && self.content.is_start() => {
                self.open(expect, None);
                Outcome::Again
            }
            _ if self.may_begin_loosely(c) => {
                self.open(Expect::Loose(Closers::default()), None);
                Outcome::Again
            }
            _ => {
                self.emit_content(c, out);
                Outcome::Used
            }
        }
    }

    /// Whether a call outside the model's format may begin with this character.
    fn may_begin_loosely(&self, c: char) -> bool {
        let loose = self.calls.as_ref().map(|(syntax, _)| syntax.loose);
        let fits = loose.is_some_and(|loose| c != '<' || loose == Loose::ObjectsAndTags);
        fits && self.allows_loose && !self.is_broken && self.n_reread == 0 && self.code.allows(c)
    }

    fn content_tag(&mut self, tag: FoundTag, out: &mut Vec<OutputPiece>) -> Outcome {
        match (tag.tag, &self.calls) {
            (Tag::ThinkStart, _) if self.has_reasoning => {
                if self.content.is_blank() {
                    self.content.drop_held();
                    self.part = Part::Reasoning;
                    self.thinking = Thinking::new(self.label);
                    return Outcome::Used;
                }
                self.think_end = EndTag::OfText;
            }
            (Tag::ThinkEnd, _) if self.has_reasoning => {
                let end_tag = std::mem::take(&mut self.think_end);
                if end_tag != EndTag::OfText {
                    self.content.drop_blank();
                    return Outcome::Used;
                }
            }
            (Tag::ToolOpen | Tag::SectionOpen, Some((syntax, _))) => {
                self.is_broken = false;
                self.open(syntax.after(tag.tag), Some(tag.tag));
                return Outcome::Held;
            }
            // The opening tag of the call is missing.
            (Tag::FunctionOpen, Some(_)) => {
                self.is_broken = false;
                self.open(Expect::Function, Some(Tag::FunctionOpen));
                return Outcome::Again;
            }
            (Tag::ToolClose | Tag::SectionClose, Some(_)) => {
                self.is_broken = false;
                match std::mem::take(self.end_tag(tag.tag)) {
                    EndTag::OfCall => {
                        self.content.drop_blank();
                        return Outcome::Used;
                    }
                    EndTag::Stray if tag.is_token => return Outcome::Used,
                    EndTag::Stray | EndTag::OfText => {}
                }
            }
            _ => {}
        }
        tag.text.chars().for_each(|c| self.emit_content(c, out));
        Outcome::Used
    }

    fn reasoning_tag(&mut self, tag: FoundTag, out: &mut Vec<OutputPiece>) -> Outcome {
        match (tag.tag, &self.calls) {
            (Tag::ThinkStart, _) if self.thinking.is_blank() => {}
            (Tag::ThinkEnd, _) => {
                self.part = Part::Content;
                self.content = Content::new(After::Reasoning);
            }
            (Tag::ToolOpen | Tag::SectionOpen, Some((syntax, _))) => {
                self.open(syntax.after(tag.tag), Some(tag.tag));
                return Outcome::Held;
            }
            _ => tag.text.chars().for_each(|c| self.emit_reasoning(c, out)),
        }
        Outcome::Used
    }

    /// How to treat the next end tag of a call or a section.
    fn end_tag(&mut self, tag: Tag) -> &mut EndTag {
        match tag {
            Tag::SectionOpen | Tag::SectionClose => &mut self.section_close,
            _ => &mut self.tool_close,
        }
    }

    fn emit_content(&mut self, c: char, out: &mut Vec<OutputPiece>) {
        self.code.read(c);
        let text = &mut self.output.arguments;
        self.content.read(c, text);
        push_text(out, text);
        text.clear();
    }

    fn emit_reasoning(&mut self, c: char, out: &mut Vec<OutputPiece>) {
        let text = &mut self.output.arguments;
        self.thinking.read(c, text);
        push_reasoning(out, text);
        text.clear();
    }
}
