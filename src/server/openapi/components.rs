//! Collects the schemas of the OpenAPI document that operations refer to by name.

use utoipa::openapi::schema::ComponentsBuilder;

use super::facts::Facts;
use super::shared;
use crate::openai::responses;
use crate::{anthropic, llama_cpp, native, ollama, openai};

pub(super) fn all(facts: &Facts) -> ComponentsBuilder {
    let mut named = vec![
        ("Error", shared::error()),
        ("Usage", shared::usage()),
        ("SamplingParams", shared::native_sampling(facts)),
        ("ResponseFormat", shared::response_format()),
        ("StructuredOutputs", shared::structured_outputs()),
    ];
    named.extend(native::components());
    named.extend(openai::components(facts));
    named.extend(openai::chat::components());
    named.extend(responses::components());
    named.extend(anthropic::components());
    named.extend(llama_cpp::components());
    named.extend(ollama::components());
    let named = named.into_iter();
    named.fold(ComponentsBuilder::new(), |all, (name, shape)| {
        all.schema(name, shape)
    })
}
