//! Tables of the output formats: their tags, and the grammar of their calls.

use super::closers::Closers;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Tag {
    ThinkStart,
    ThinkEnd,
    ToolOpen,
    ToolClose,
    FunctionOpen,
    FunctionClose,
    ParameterOpen,
    ParameterClose,
    CallId,
    Arguments,
    SectionOpen,
    SectionClose,
    Separator,
    KeyOpen,
    KeyClose,
    ValueOpen,
    ValueClose,
    MessageStart,
    Channel,
    Constraint,
    MessageBody,
    MessageEnd,
    CallEnd,
    AnswerEnd,
    Quote,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TagSet(u32);

impl TagSet {
    pub(super) const NONE: Self = Self(0);

    pub(super) const fn of(tags: &[Tag]) -> Self {
        let mut bits = 0;
        let mut i = 0;
        while i < tags.len() {
            bits |= 1 << tags[i] as u8;
            i += 1;
        }
        Self(bits)
    }

    pub(super) const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(super) const fn has(self, tag: Tag) -> bool {
        self.0 & (1 << tag as u8) != 0
    }
}

#[derive(Debug)]
pub(super) struct ToolSyntax {
    pub(super) tags: &'static [(Tag, &'static str)],
    /// The form that follows the opening tag.
    pub(super) after_open: Expect,
    /// The character that opens calls without a tag at the start of the content, and the form that it begins.
    pub(super) bare: Option<(char, Expect)>,
    /// Other calls that are recognised.
    pub(super) loose: Loose,
}

impl ToolSyntax {
    /// The form that follows an opening tag of a call or a section.
    pub(super) fn after(&self, opening: Tag) -> Expect {
        match opening {
            Tag::SectionOpen => Expect::SectionItem,
            _ => self.after_open,
        }
    }
}

#[derive(Debug)]
pub(super) struct ThinkSyntax {
    pub(super) start: &'static str,
    pub(super) end: &'static str,
    pub(super) label: &'static str,
}

/// The form expected next in an opening, after whitespace.
#[derive(Clone, Copy, Debug)]
pub(super) enum Expect {
    Object(Surroundings),
    /// `<function=`.
    Function,
    KeyedCall,
    /// A label, a name, and arguments in braces.
    BracedCall,
    PythonCall,
    /// A call in Python, or as a JSON object.
    PythonCallOrObject,
    /// The tag that opens the first call of a section, or the call itself.
    SectionItem,
    /// A name, the separator tag, and a JSON object.
    SeparatedCall,
    ListOpen(&'static CallList),
    /// The first call of a list, after its bracket.
    ListItem(&'static CallList),
    /// A list, or a name and its arguments.
    ListOrName(&'static CallList),
    /// A list, or a single call of it.
    ListOrItem(&'static CallList),
    /// A call outside the format, and the closers that an earlier call left pending.
    Loose(Closers),
}

/// How certainly a JSON object after an opening is a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Surroundings {
    /// A tag marks it as a call.
    Tagged,
    /// No tag: only the form makes it a call, which is a name followed by an object of arguments.
    Bare,
    /// No tag, or an ambiguous one: only the name of a tool makes it a call.
    Named,
}

/// Recognised calls outside the model's format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Loose {
    /// JSON objects that name a tool, alone or in a fence.
    Objects,
    /// JSON objects that name a tool, also between tags of other formats.
    ObjectsAndTags,
}

#[derive(Debug)]
pub(super) struct CallList {
    pub(super) separator: char,
    pub(super) end: Option<char>,
    pub(super) item: Expect,
}

const OBJECTS_BY_SEMICOLON: CallList = CallList {
    separator: ';',
    end: None,
    item: Expect::Object(Surroundings::Tagged),
};

const OBJECTS_IN_BRACKETS: CallList = CallList {
    separator: ',',
    end: Some(']'),
    item: Expect::Object(Surroundings::Tagged),
};

const PYTHON_CALLS: CallList = CallList {
    separator: ',',
    end: Some(']'),
    item: Expect::PythonCall,
};

const OBJECTS_BARE: CallList = CallList {
    item: Expect::Object(Surroundings::Bare),
    ..OBJECTS_BY_SEMICOLON
};

pub(super) static HERMES: ToolSyntax = ToolSyntax {
    tags: &[
        (Tag::ToolOpen, "<tool_call>"),
        (Tag::ToolClose, "</tool_call>"),
    ],
    after_open: Expect::ListOrItem(&OBJECTS_IN_BRACKETS),
    bare: None,
    loose: Loose::ObjectsAndTags,
};

pub(super) static QWEN3_CODER: ToolSyntax = ToolSyntax {
    tags: &[
        (Tag::ToolOpen, "<tool_call>"),
        (Tag::ToolClose, "</tool_call>"),
        (Tag::FunctionOpen, "<function="),
        (Tag::FunctionClose, "</function>"),
        (Tag::ParameterOpen, "<parameter="),
        (Tag::ParameterClose, "</parameter>"),
    ],
    after_open: Expect::Function,
    bare: None,
    loose: Loose::Objects,
};

pub(super) static LLAMA3: ToolSyntax = ToolSyntax {
    tags: &[(Tag::ToolOpen, "<|python_tag|>")],
    after_open: Expect::ListItem(&OBJECTS_BY_SEMICOLON),
    bare: Some(('{', Expect::ListItem(&OBJECTS_BARE))),
    loose: Loose::ObjectsAndTags,
};

pub(super) static PYTHONIC: ToolSyntax = ToolSyntax {
    tags: &[
        (Tag::ToolOpen, "<|python_start|>"),
        (Tag::ToolClose, "<|python_end|>"),
    ],
    after_open: Expect::ListOpen(&PYTHON_CALLS),
    bare: Some(('[', Expect::ListOpen(&PYTHON_CALLS))),
    loose: Loose::Objects,
};

pub(super) static MISTRAL: ToolSyntax = ToolSyntax {
    tags: &[
        (Tag::ToolOpen, "[TOOL_CALLS]"),
        (Tag::CallId, "[CALL_ID]"),
        (Tag::Arguments, "[ARGS]"),
    ],
    after_open: Expect::ListOrName(&OBJECTS_IN_BRACKETS),
    bare: None,
    loose: Loose::Objects,
};

/// Granite 3.1 has the tag of Hermes instead of a token.
pub(super) static GRANITE: ToolSyntax = ToolSyntax {
    tags: &[
        (Tag::ToolOpen, "<|tool_call|>"),
        (Tag::ToolOpen, "<tool_call>"),
        (Tag::ToolClose, "<|/tool_call|>"),
        (Tag::ToolClose, "</tool_call>"),
    ],
    after_open: Expect::ListOrItem(&OBJECTS_IN_BRACKETS),
    bare: None,
    loose: Loose::Objects,
};

/// Some chat templates of this model ask for `functools` instead of the tag.
pub(super) static PHI4_MINI: ToolSyntax = ToolSyntax {
    tags: &[
        (Tag::ToolOpen, "<|tool_call|>"),
        (Tag::ToolOpen, "functools"),
        (Tag::ToolClose, "<|/tool_call|>"),
    ],
    after_open: Expect::ListOrItem(&OBJECTS_IN_BRACKETS),
    bare: None,
    loose: Loose::Objects,
};

/// Objects and Python calls share the list's brackets.
const MIXED_CALLS: CallList = CallList {
    item: Expect::PythonCallOrObject,
    ..PYTHON_CALLS
};

pub(super) static LFM2: ToolSyntax = ToolSyntax {
    tags: &[
        (Tag::ToolOpen, "<|tool_call_start|>"),
        (Tag::ToolClose, "<|tool_call_end|>"),
    ],
    after_open: Expect::ListOrItem(&MIXED_CALLS),
    bare: None,
    loose: Loose::Objects,
};

pub(super) static GLM: ToolSyntax = ToolSyntax {
    tags: &[
        (Tag::ToolOpen, "<tool_call>"),
        (Tag::ToolClose, "</tool_call>"),
        (Tag::KeyOpen, "<arg_key>"),
        (Tag::KeyClose, "</arg_key>"),
        (Tag::ValueOpen, "<arg_value>"),
        (Tag::ValueClose, "</arg_value>"),
    ],
    after_open: Expect::KeyedCall,
    bare: None,
    loose: Loose::Objects,
};

pub(super) static DEEPSEEK: ToolSyntax = ToolSyntax {
    tags: &[
        (Tag::SectionOpen, "<｜tool▁calls▁begin｜>"),
        // Small distilled models write these variants.
        (Tag::SectionOpen, "<｜tool_calls_begin｜>"),
        (Tag::SectionOpen, "<｜tool calls begin｜>"),
        (Tag::SectionOpen, "<｜tool\\_calls\\_begin｜>"),
        (Tag::SectionOpen, "<｜tool▁calls｜>"),
        (Tag::SectionClose, "<｜tool▁calls▁end｜>"),
        (Tag::ToolOpen, "<｜tool▁call▁begin｜>"),
        (Tag::ToolClose, "<｜tool▁call▁end｜>"),
        (Tag::Separator, "<｜tool▁sep｜>"),
    ],
    after_open: Expect::SeparatedCall,
    bare: None,
    loose: Loose::Objects,
};

/// The tags of gpt-oss's messages. A separate engine parses them, and uses no field but `tags`.
pub(super) static HARMONY: ToolSyntax = ToolSyntax {
    tags: &[
        (Tag::MessageStart, "<|start|>"),
        (Tag::Channel, "<|channel|>"),
        (Tag::Constraint, "<|constrain|>"),
        (Tag::MessageBody, "<|message|>"),
        (Tag::MessageEnd, "<|end|>"),
        (Tag::CallEnd, "<|call|>"),
        (Tag::AnswerEnd, "<|return|>"),
    ],
    after_open: Expect::KeyedCall,
    bare: None,
    loose: Loose::Objects,
};

pub(super) static HARMONY_THINK: ThinkSyntax = ThinkSyntax {
    start: "<|channel|>analysis<|message|>",
    end: "<|end|>",
    label: "",
};

pub(super) static THINK: ThinkSyntax = ThinkSyntax {
    start: "<think>",
    end: "</think>",
    label: "",
};

pub(super) static MISTRAL_THINK: ThinkSyntax = ThinkSyntax {
    start: "[THINK]",
    end: "[/THINK]",
    label: "",
};

pub(super) static GEMMA4: ToolSyntax = ToolSyntax {
    tags: &[
        (Tag::ToolOpen, "<|tool_call>"),
        (Tag::ToolClose, "<tool_call|>"),
        (Tag::Quote, "<|\"|>"),
    ],
    after_open: Expect::BracedCall,
    bare: None,
    loose: Loose::Objects,
};

pub(super) static GEMMA4_THINK: ThinkSyntax = ThinkSyntax {
    start: "<|channel>",
    end: "<channel|>",
    label: "thought\n",
};
