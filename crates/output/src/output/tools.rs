//! The tools of a request.

use serde_json::Value;

/// A function that a model may call.
#[derive(Clone, Debug, PartialEq)]
pub struct Tool {
    /// The name, unique in its request.
    pub name: String,
    /// A description for the model.
    pub description: Option<String>,
    /// The JSON schema of its arguments; `None` if it has none.
    pub parameters: Option<Value>,
    /// The arguments must always follow the schema.
    pub strict: bool,
}

/// Which tools the model may or must call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ToolChoice {
    /// Any, or none.
    #[default]
    Auto,
    /// Any of the listed ones, or none. The prompt shows others, which must not be called.
    Allowed,
    /// At least one.
    Required,
    /// The one with this name.
    Named(String),
}

/// The tools of a request, and how to use them. A request whose choice is "none" has no `ToolUse`.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolUse {
    /// The tools, in the order of the request.
    pub tools: Vec<Tool>,
    /// Which of them to call.
    pub choice: ToolChoice,
    /// An answer may have several calls.
    pub parallel: bool,
}

impl ToolUse {
    /// Returns whether an answer may have only one call: parallel calls are off, or the choice names a tool, which is
    /// called once.
    pub fn is_single(&self) -> bool {
        !self.parallel || matches!(self.choice, ToolChoice::Named(_))
    }

    /// Returns whether an answer must have a call.
    pub fn must_call(&self) -> bool {
        matches!(self.choice, ToolChoice::Required | ToolChoice::Named(_))
    }

    /// Returns the tool with this name.
    pub fn tool(&self, name: &str) -> Option<&Tool> {
        self.tools.iter().find(|tool| tool.name == name)
    }
}
