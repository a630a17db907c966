//! The output formats of tool calls and reasoning, by name.

use super::start::OutputStart;
use super::syntax::{self, Tag, ThinkSyntax, ToolSyntax};

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
    /// A list of calls in Python or of JSON objects between `<|tool_call_start|>` and `<|tool_call_end|>`: LFM2.
    Lfm2,
    /// A name, then `<arg_key>` and `<arg_value>` on separate lines, between `<tool_call>` and `</tool_call>`: GLM 4.5
    /// and 4.6.
    Glm45,
    /// The same without newlines: GLM 4.7.
    Glm47,
    /// A section of calls, each a name after `<｜tool▁sep｜>` and a JSON object in a fence: DeepSeek V3 and R1.
    DeepSeekV3,
    /// The same with the name before `<｜tool▁sep｜>` and no fence: DeepSeek V3.1.
    DeepSeekV31,
    /// Messages to `functions.NAME`: gpt-oss.
    GptOss,
    /// A name and arguments in braces between `<|tool_call>` and `<tool_call|>`, strings between `<|"|>`: Gemma 4.
    Gemma4,
    /// A list of JSON objects after `<|tool_call|>`: Granite 3.
    Granite,
    /// The same, up to `<|/tool_call|>`: Phi-4-mini.
    Phi4Mini,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReasoningFormat {
    Think,
    /// The tags of `Think`; every output starts in reasoning.
    DeepSeekR1,
    MistralThink,
    /// Messages in the channel `analysis`: gpt-oss.
    GptOss,
    /// `<|channel>`, a label, and `<channel|>`: Gemma 4.
    Gemma4,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutputFormats {
    pub tool: Option<ToolFormat>,
    pub reasoning: Option<ReasoningFormat>,
}

/// SGLang's names for `--tool-call-parser`, and vLLM's where SGLang has none.
const TOOL_NAMES: [(&str, ToolFormat); 17] = [
    ("deepseekv3", ToolFormat::DeepSeekV3),
    ("deepseekv31", ToolFormat::DeepSeekV31),
    ("gemma4", ToolFormat::Gemma4),
    ("glm", ToolFormat::Glm45),
    ("glm45", ToolFormat::Glm45),
    ("glm47", ToolFormat::Glm47),
    ("gpt-oss", ToolFormat::GptOss),
    ("granite", ToolFormat::Granite),
    ("hermes", ToolFormat::Hermes),
    ("lfm2", ToolFormat::Lfm2),
    ("llama3", ToolFormat::Llama3),
    ("mistral", ToolFormat::Mistral),
    ("phi4_mini_json", ToolFormat::Phi4Mini),
    ("pythonic", ToolFormat::Pythonic),
    ("qwen", ToolFormat::Hermes),
    ("qwen25", ToolFormat::Hermes),
    ("qwen3_coder", ToolFormat::Qwen3Coder),
];

/// SGLang's names for `--reasoning-parser`, of the formats whose tags are supported.
const REASONING_NAMES: [(&str, ReasoningFormat); 9] = [
    ("deepseek-r1", ReasoningFormat::DeepSeekR1),
    ("deepseek-v3", ReasoningFormat::Think),
    ("gemma4", ReasoningFormat::Gemma4),
    ("glm45", ReasoningFormat::Think),
    ("gpt-oss", ReasoningFormat::GptOss),
    ("interns1", ReasoningFormat::Think),
    ("mistral", ReasoningFormat::MistralThink),
    ("qwen3", ReasoningFormat::Think),
    ("qwen3-thinking", ReasoningFormat::DeepSeekR1),
];

impl ToolFormat {
    pub fn parse(name: &str) -> Option<Self> {
        let found = TOOL_NAMES.iter().find(|(known, _)| *known == name);
        found.map(|&(_, format)| format)
    }

    pub fn names() -> impl Iterator<Item = &'static str> {
        TOOL_NAMES.iter().map(|(name, _)| *name)
    }

    pub fn name(self) -> &'static str {
        let mut names = TOOL_NAMES.iter().rev();
        let found = names.find(|(_, format)| *format == self);
        found.map_or("", |(name, _)| name)
    }

    pub fn opening(self) -> &'static str {
        self.tag(Tag::ToolOpen).unwrap_or_default()
    }

    pub fn closing(self) -> Option<&'static str> {
        self.tag(Tag::ToolClose)
    }

    fn tag(self, wanted: Tag) -> Option<&'static str> {
        let tags = self.syntax().tags.iter();
        tags.copied()
            .find_map(|(tag, text)| (tag == wanted).then_some(text))
    }

    pub(super) fn syntax(self) -> &'static ToolSyntax {
        match self {
            Self::Hermes => &syntax::HERMES,
            Self::Qwen3Coder => &syntax::QWEN3_CODER,
            Self::Llama3 => &syntax::LLAMA3,
            Self::Pythonic => &syntax::PYTHONIC,
            Self::Mistral => &syntax::MISTRAL,
            Self::Lfm2 => &syntax::LFM2,
            // Tags delimit the name, with or without newlines.
            Self::Glm45 | Self::Glm47 => &syntax::GLM,
            // The text after the separator distinguishes the two.
            Self::DeepSeekV3 | Self::DeepSeekV31 => &syntax::DEEPSEEK,
            Self::GptOss => &syntax::HARMONY,
            Self::Gemma4 => &syntax::GEMMA4,
            Self::Granite => &syntax::GRANITE,
            Self::Phi4Mini => &syntax::PHI4_MINI,
        }
    }
}

impl ReasoningFormat {
    pub fn parse(name: &str) -> Option<Self> {
        let found = REASONING_NAMES.iter().find(|(known, _)| *known == name);
        found.map(|&(_, format)| format)
    }

    pub fn names() -> impl Iterator<Item = &'static str> {
        REASONING_NAMES.iter().map(|(name, _)| *name)
    }

    pub fn name(self) -> &'static str {
        let mut names = REASONING_NAMES.iter().rev();
        let found = names.find(|(_, format)| *format == self);
        found.map_or("", |(name, _)| name)
    }

    pub fn opening(self) -> &'static str {
        self.syntax().start
    }

    pub fn closing(self) -> &'static str {
        self.syntax().end
    }

    /// Returns whether an output starts inside reasoning because the rendered prompt ends with the opening tag,
    /// ignoring whitespace. Tags elsewhere may be a user's text.
    pub fn is_open_after(self, prompt: &str) -> bool {
        prompt.trim_end().ends_with(self.opening())
    }

    pub(super) fn syntax(self) -> &'static ThinkSyntax {
        match self {
            Self::Think | Self::DeepSeekR1 => &syntax::THINK,
            Self::MistralThink => &syntax::MISTRAL_THINK,
            Self::GptOss => &syntax::HARMONY_THINK,
            Self::Gemma4 => &syntax::GEMMA4_THINK,
        }
    }

    pub(super) fn starts_in_reasoning(self) -> bool {
        self == Self::DeepSeekR1
    }
}

impl OutputFormats {
    /// Whether an output is a sequence of messages in channels, where calls and reasoning are kinds of messages.
    pub fn is_harmony(self) -> bool {
        self.tool == Some(ToolFormat::GptOss) || self.reasoning == Some(ReasoningFormat::GptOss)
    }

    /// Returns whether one output can use both formats: messages in channels and tags exclude each other.
    pub fn go_together(self) -> bool {
        match (self.tool, self.reasoning) {
            (Some(tool), Some(reasoning)) => {
                (tool == ToolFormat::GptOss) == (reasoning == ReasoningFormat::GptOss)
            }
            _ => true,
        }
    }

    pub fn start_after(self, prompt: &str) -> OutputStart {
        match self.reasoning {
            _ if self.is_harmony() => OutputStart::among_messages(prompt),
            Some(format) if format.is_open_after(prompt) => OutputStart::Reasoning,
            _ => OutputStart::Content,
        }
    }

    pub(super) fn tags(self) -> impl Iterator<Item = (Tag, &'static str)> {
        let tool = if self.is_harmony() {
            Some(ToolFormat::GptOss)
        } else {
            self.tool
        };
        let tool = tool.map_or(&[][..], |format| format.syntax().tags);
        let think = self.reasoning.filter(|_| !self.is_harmony());
        let think = think.map(ReasoningFormat::syntax);
        let think = think.map(|think| [(Tag::ThinkStart, think.start), (Tag::ThinkEnd, think.end)]);
        tool.iter().copied().chain(think.into_iter().flatten())
    }
}
