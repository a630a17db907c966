//! The functions that a model may call.

use serde_json::Value;

/// A function that a model may call.
#[derive(Clone, Debug, PartialEq)]
pub struct Tool {
    /// Its name, unique among the tools of a request.
    pub name: String,
    /// What it does, for the model.
    pub description: Option<String>,
    /// The JSON schema of its arguments; `None` for a function without any.
    pub parameters: Option<Value>,
    /// Its arguments follow the schema: they are constrained by a grammar.
    pub strict: bool,
}

/// Whether a model must call a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToolChoice {
    /// It may.
    Auto,
    /// It calls one at least, and says nothing else.
    Required,
    /// It calls the tool of this name, and says nothing else.
    Named(String),
}

/// The tools of a request and how they may be used. A request whose `tool_choice` is `none` has no `ToolUse`.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolUse {
    /// The tools that may be called, at least one.
    pub tools: Vec<Tool>,
    /// Whether one must be called.
    pub choice: ToolChoice,
    /// Several may be called in one answer.
    pub parallel: bool,
}
