//! The formats, by their names.

/// How a model writes its calls of tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ToolFormat {
    /// A JSON object between `<tool_call>` and `</tool_call>`: Hermes, Qwen2.5, Qwen3.
    Hermes,
    /// `<function=…>` with `<parameter=…>` between `<tool_call>` and `</tool_call>`: Qwen3-Coder, Qwen3.5.
    Qwen3Coder,
    /// JSON objects separated by `;`, after `<|python_tag|>` or at the start of the content: Llama 3.
    Llama3,
    /// A list of calls in Python at the start of the content: Llama 3.2, Llama 4.
    Pythonic,
    /// `[TOOL_CALLS]` with a JSON array, or with a name, `[ARGS]` and a JSON object: Mistral.
    Mistral,
}
