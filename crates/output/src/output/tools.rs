//! The tools of a request, and the choice among them.

use serde_json::Value;

#[derive(Clone, Debug, PartialEq)]
pub struct Tool {
    pub name: String,
    pub description: Option<String>,
    /// The JSON schema of the arguments; `None` for a tool without arguments.
    pub parameters: Option<Value>,
    /// The arguments must always follow the schema.
    pub strict: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ToolChoice {
    /// Any tool, or none.
    #[default]
    Auto,
    /// Any of the listed tools, or none. The prompt shows other tools, too, which must not be called.
    Allowed,
    /// At least one tool.
    Required,
    Named(String),
}

/// The tools of a request, and how to use them. A request whose choice is "none" has no `ToolUse`.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolUse {
    pub tools: Vec<Tool>,
    pub choice: ToolChoice,
    /// An answer may have several calls.
    pub parallel: bool,
}

impl ToolUse {
    /// Whether only one call is allowed: parallel calls are off, or the choice names a tool, which is called once.
    pub fn is_single(&self) -> bool {
        !self.parallel || matches!(self.choice, ToolChoice::Named(_))
    }

    pub fn must_call(&self) -> bool {
        matches!(self.choice, ToolChoice::Required | ToolChoice::Named(_))
    }

    pub fn tool(&self, name: &str) -> Option<&Tool> {
        self.tools.iter().find(|tool| tool.name == name)
    }
}
