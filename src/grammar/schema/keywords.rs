//! Classifies JSON schema keywords and formats as supported, unsupported or annotations.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keyword {
    /// A schema, or in older drafts a list of schemas.
    Schema,
    SchemaList,
    SchemaMap,
    Pattern,
    Format,
    Unique,
    Reference,
    Multiple,
    /// A count, such as `maxLength`.
    Count,
    /// Another keyword that llguidance supports.
    Data,
    /// A keyword that does not constrain values.
    Annotation,
    /// A constraint that the compiled grammars cannot express.
    Unsupported,
}

pub(super) fn keyword(name: &str) -> Keyword {
    match name {
        "items" | "additionalItems" | "additionalProperties" => Keyword::Schema,
        "prefixItems" | "anyOf" | "oneOf" | "allOf" => Keyword::SchemaList,
        "properties" | "patternProperties" | "$defs" | "definitions" => Keyword::SchemaMap,
        "pattern" => Keyword::Pattern,
        "format" => Keyword::Format,
        "uniqueItems" => Keyword::Unique,
        "$ref" => Keyword::Reference,
        "multipleOf" => Keyword::Multiple,
        "minItems" | "maxItems" | "minProperties" | "maxProperties" | "minLength" | "maxLength" => {
            Keyword::Count
        }
        "type" | "$schema" | "const" | "enum" | "required" | "minimum" | "maximum"
        | "exclusiveMinimum" | "exclusiveMaximum" => Keyword::Data,
        "not"
        | "if"
        | "then"
        | "else"
        | "contains"
        | "minContains"
        | "maxContains"
        | "dependencies"
        | "dependentRequired"
        | "dependentSchemas"
        | "propertyNames"
        | "unevaluatedItems"
        | "unevaluatedProperties"
        | "$dynamicRef"
        | "$recursiveRef" => Keyword::Unsupported,
        _ => Keyword::Annotation,
    }
}

/// The formats that llguidance knows.
pub(super) fn is_supported_format(format: &str) -> bool {
    [
        "date-time",
        "time",
        "date",
        "duration",
        "email",
        "hostname",
        "ipv4",
        "ipv6",
        "uuid",
        "uri",
    ]
    .contains(&format)
}

/// The standard's other formats. Names that the standard does not have are annotations.
pub(super) fn is_unsupported_format(format: &str) -> bool {
    [
        "idn-email",
        "idn-hostname",
        "uri-reference",
        "iri",
        "iri-reference",
        "uri-template",
        "json-pointer",
        "relative-json-pointer",
        "regex",
    ]
    .contains(&format)
}
