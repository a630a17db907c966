//! Writes answers and tool calls as gpt-oss messages with headers.
//!
//! A call ends the turn, so an answer has at most one call. Reasoning may precede the call and, unless a call is
//! required, also text for the user. The function's name is allowed at both places where the model writes it.

use super::{Arguments, Calls};
use crate::frame::AnswerFrame;
use crate::markers::Markers;
use crate::part::{Free, Part};
use crate::source::Source;
use crate::writer;
use souffleur_base::error::FieldError;
use souffleur_state::output::{OutputStart, Tool, ToolChoice};

const ANALYSIS: &str = "<|channel|>analysis<|message|>";
const COMMENTARY: &str = "<|channel|>commentary<|message|>";
const END: &str = "<|end|>";
const NEXT: &str = "<|start|>assistant";

/// The error for tools in a request that is not a chat.
pub(super) fn needs_chat() -> FieldError {
    FieldError::new(
        "tools",
        "this model can call tools only in answers to chats: use a chat endpoint",
    )
}

/// Wraps an answer in its message, after the reasoning.
pub(crate) fn framed(answer: Part, frame: AnswerFrame) -> Part {
    match frame {
        AnswerFrame::Bare | AnswerFrame::Messages(OutputStart::Content) => answer,
        AnswerFrame::Messages(start) => {
            Part::Sequence(vec![before(start, &[ANALYSIS]), last(answer)])
        }
    }
}

/// The grammar sources of a request with tools: the preferred source, then fallbacks.
pub(crate) fn sources<'a>(
    calls: &dyn Fn(Arguments) -> Calls<'a>,
    constraint: Option<Part>,
    frame: AnswerFrame,
    markers: &Markers,
) -> Result<Vec<Source>, FieldError> {
    let tools = calls(Arguments::Typed).tools;
    let is_strict = tools.tools.iter().any(|tool| tool.strict);
    let start = match frame {
        AnswerFrame::Bare => OutputStart::Header,
        AnswerFrame::Messages(start) => start,
    };
    let only = |arguments| {
        let call = calls(arguments).any_call()?;
        Ok(Part::Sequence(vec![before(start, &[ANALYSIS]), call]))
    };
    let parts = match (&tools.choice, constraint) {
        (ToolChoice::Required | ToolChoice::Named(_), _) => {
            vec![only(Arguments::Typed)?, only(Arguments::OnlyStrict)?]
        }
        (ToolChoice::Auto, None) if !is_strict => Vec::new(),
        // The answer has begun, so it cannot be a call.
        (ToolChoice::Auto | ToolChoice::Allowed, constraint) if start == OutputStart::Content => {
            constraint.into_iter().collect()
        }
        (ToolChoice::Auto | ToolChoice::Allowed, Some(answer)) => {
            let call = calls(Arguments::OnlyStrict).any_call()?;
            let end = Part::Choice(vec![last(answer), call]);
            vec![Part::Sequence(vec![before(start, &[ANALYSIS]), end])]
        }
        (ToolChoice::Auto | ToolChoice::Allowed, None) => {
            let call = calls(Arguments::OnlyStrict).any_call()?;
            let end = Part::Choice(vec![call, last(Part::Free(text()))]);
            vec![Part::Sequence(vec![
                before(start, &[ANALYSIS, COMMENTARY]),
                end,
            ])]
        }
    };
    let written = parts
        .into_iter()
        .map(|part| writer::write("tools", part, markers));
    written.collect()
}

/// The messages before the last message.
fn before(start: OutputStart, headers: &[&str]) -> Part {
    let message = |begin: &str| Part::Tag {
        begin: begin.to_owned(),
        content: Box::new(Part::Free(text())),
        ends: vec![format!("{END}{NEXT}")],
    };
    let messages = headers.iter().map(|header| message(header)).collect();
    let messages = Part::any_number(Part::Choice(messages));
    match start {
        OutputStart::Header => messages,
        OutputStart::Between => Part::Sequence(vec![Part::text(NEXT), messages]),
        // The prompt ends inside a message.
        OutputStart::Content | OutputStart::Reasoning => {
            Part::Sequence(vec![message(""), messages])
        }
    }
}

fn last(answer: Part) -> Part {
    Part::Sequence(vec![Part::text("<|channel|>final<|message|>"), answer])
}

fn text() -> Free {
    Free {
        is_plain: true,
        ..Free::default()
    }
}

impl Calls<'_> {
    fn any_call(&self) -> Result<Part, FieldError> {
        Ok(Part::Choice(self.each(&mut |tool| self.message(tool))?))
    }

    fn message(&self, tool: &Tool) -> Result<Part, FieldError> {
        let name = &tool.name;
        let headers = [
            format!("<|channel|>commentary to=functions.{name}"),
            format!(" to=functions.{name}<|channel|>commentary"),
        ];
        let types = [
            " <|constrain|>json<|message|>",
            "<|constrain|>json<|message|>",
            " json<|message|>",
            "<|message|>",
        ];
        Ok(Part::Sequence(vec![
            Part::Choice(headers.map(Part::text).into()),
            Part::Choice(types.map(Part::text).into()),
            self.arguments(tool)?,
        ]))
    }
}
