//! Writes the repetition of tool calls in an answer, and calls without tags.

use super::Calls;
use crate::part::Part;
use souffleur_base::error::FieldError;
use souffleur_state::output::{ToolChoice, loose_strict_tools, strict_openings};

/// Maximum calls of an answer that requires a call: small models would repeat calls until the context is full.
const MAX_CALLS: u32 = 16;

impl Calls<'_> {
    /// Triggers for objects that call strict tools without the format's tag, each with the part that follows it.
    pub(super) fn loose(&self) -> Result<Vec<(String, Part)>, FieldError> {
        let mut triggers = Vec::new();
        for tool in loose_strict_tools(self.tools) {
            for (begin, end) in strict_openings(&tool.name) {
                let part = Part::Sequence(vec![self.arguments(tool)?, Part::text(end)]);
                triggers.push((begin, part));
            }
        }
        Ok(triggers)
    }

    /// A call, and more calls if parallel calls are allowed.
    pub(super) fn in_parallel(&self, call: Part, separator: &str) -> Part {
        let more = self.more(call.clone(), Part::text(separator));
        Part::Sequence(vec![call, more])
    }

    /// An optional line break after the last of several calls. Models also write a line break before they end an
    /// answer, so a line break must not force another call.
    pub(super) fn line_after(&self) -> Part {
        let nothing = Part::Sequence(Vec::new());
        if self.tools.is_single() {
            nothing
        } else {
            Part::Choice(vec![nothing, Part::text("\n")])
        }
    }

    /// The calls after the first one.
    pub(super) fn more(&self, call: Part, separator: Part) -> Part {
        let part = Box::new(Part::Sequence(vec![separator, call]));
        match (self.tools.is_single(), &self.tools.choice) {
            (true, _) => Part::Sequence(Vec::new()),
            (false, ToolChoice::Required | ToolChoice::Named(_)) => Part::Repeat {
                part,
                min: 0,
                max: Some(MAX_CALLS - 1),
            },
            (false, ToolChoice::Auto | ToolChoice::Allowed) => Part::any_number(*part),
        }
    }
}
