//! The parser state in which an output starts, as its prompt determines.

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OutputStart {
    #[default]
    Content,
    Reasoning,
    /// In the header of a message, after its role.
    Header,
    /// After a message, where the next one may begin.
    Between,
}

impl OutputStart {
    /// The parser state after a Harmony prompt, from its last tag.
    pub(super) fn among_messages(prompt: &str) -> Self {
        const START: &str = "<|start|>";
        const BODY: &str = "<|message|>";
        let tags = [START, BODY, "<|end|>", "<|call|>", "<|return|>"];
        let last = tags
            .into_iter()
            .filter_map(|tag| Some((prompt.rfind(tag)?, tag)));
        match last.max() {
            Some((_, START)) | None => Self::Header,
            Some((at, BODY)) => {
                let header = prompt[..at]
                    .rfind(START)
                    .map_or("", |start| &prompt[start..at]);
                if header.contains("<|channel|>analysis") {
                    Self::Reasoning
                } else {
                    Self::Content
                }
            }
            Some(_) => Self::Between,
        }
    }
}
