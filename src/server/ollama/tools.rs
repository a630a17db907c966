//! Parses `tools` of a chat. Ollama has no field that chooses among them.

use serde_json::Value;

use crate::error::ApiError;
use crate::fields::Fields;
use crate::openai::chat::tool_choice::{Choice, Mode};
use crate::openai::chat::tools::{CallTools, ToolList, read_list};
use crate::openai::json_values::{missing, must_be, object, optional_text};
use crate::raw::Raw;

const NAME: &str = "tools";

pub(super) fn read(fields: &mut Fields) -> Result<CallTools, ApiError> {
    let raw = fields.take_raw(NAME).filter(|raw| !raw.has_no_effect());
    let mut list = ToolList::default();
    if let Some(raw) = &raw {
        for (index, (item, sent)) in read_list(fields, NAME, raw)?.into_iter().enumerate() {
            let path = format!("{NAME}[{index}]");
            let mut tool = object(&path, item)?;
            let kind = optional_text(&tool, &path, "type")?;
            let has_kind = kind.is_some();
            if kind.is_some_and(|kind| kind != "function") {
                let wanted = "\"function\": no other kind of tool is supported";
                return Err(must_be(&format!("{path}.type"), &tool["type"], wanted));
            }
            let path = format!("{path}.function");
            let function = tool.get_mut("function").map(Value::take);
            let function =
                function.ok_or_else(|| missing(path.clone(), "an object with a name"))?;
            let function = object(&path, function)?;
            list.add(&path, &function, json(&sent, has_kind))?;
        }
    }
    CallTools::of(list, Choice::Mode(Mode::Auto), NAME, true)
}

/// A tool for the chat template: as it was sent, with a type.
fn json(sent: &Raw, has_kind: bool) -> String {
    match sent.field("function").filter(|_| !has_kind) {
        Some(function) => {
            let function = function.text();
            format!("{{\"type\": \"function\", \"function\": {function}}}")
        }
        None => sent.text().into_owned(),
    }
}
