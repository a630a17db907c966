//! Generates calls with random constraints; the number of a call determines its content.

use std::fmt::Write;

use fastrand::Rng;

/// Numbers as JSON writes them, some of which exceed doubles or 64 bits.
const NUMBERS: [&str; 46] = [
    "0",
    "-0",
    "-0.0",
    "1",
    "-1",
    "2",
    "3",
    "7",
    "10",
    "0.1",
    "-0.1",
    "0.01",
    "2.5",
    "1.0",
    "1e2",
    "1e-8",
    "1e-9",
    "0.30000000000000004",
    "255",
    "256",
    "65535",
    "65536",
    "65537",
    "2147483647",
    "-2147483648",
    "2147483648",
    "4294967294",
    "4294967295",
    "4294967296",
    "9007199254740991",
    "9007199254740992",
    "-9007199254740992",
    "9007199254740993",
    "-9007199254740993",
    "9223372036854775807",
    "-9223372036854775807",
    "-9223372036854775808",
    "-9223372036854775809",
    "9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "1e19",
    "1e300",
    "-1e300",
    "1.7976931348623157e308",
    "5e-324",
];
const TYPES: [&str; 8] = [
    "null", "boolean", "integer", "number", "string", "array", "object", "text",
];
const FORMATS: [&str; 12] = [
    "date-time",
    "date",
    "time",
    "duration",
    "email",
    "hostname",
    "ipv4",
    "ipv6",
    "uuid",
    "uri",
    "regex",
    "password",
];
const ATOMS: [&str; 48] = [
    "a",
    "b",
    "é",
    "😀",
    " ",
    "\n",
    "\"",
    "\\\\",
    "\\\"",
    "\\n",
    "\\d",
    "\\W",
    "\\s",
    "\\b",
    "\\B",
    "\\1",
    "\\0",
    "\\x41",
    "\\u0041",
    "\\u{1f600}",
    "\\ud83d\\ude00",
    "\\ud800",
    "\\p{L}",
    "\\P{Lu}",
    "\\cA",
    "\\q",
    "\\",
    "/",
    ".",
    "^",
    "$",
    "[a-z]",
    "[^\"]",
    "[^\\\\]",
    "[\\x00-\\x1f]",
    "[a&&b]",
    "[[]",
    "[a--b]",
    "[a~~b]",
    "[]",
    "[^]",
    "[\\w-.]",
    "[[:alpha:]]",
    "[b-a]",
    "(?=a)",
    "(?<!a)",
    "(?i:k)",
    "{",
];
const QUANTIFIERS: [&str; 14] = [
    "*",
    "+",
    "?",
    "*?",
    "++",
    "{2}",
    "{0}",
    "{0,0}",
    "{1,3}",
    "{3,1}",
    "{,2}",
    "{1000}",
    "{4294967295}",
    "{99999999999}",
];

/// Generates random constraints as JSON text.
struct Maker(Rng);

impl Maker {
    fn one_of<'a>(&mut self, options: &[&'a str]) -> &'a str {
        options[self.0.usize(..options.len())]
    }

    fn number(&mut self) -> &'static str {
        self.one_of(&NUMBERS)
    }

    fn regex(&mut self, depth: usize) -> String {
        let mut regex = String::new();
        for _ in 0..self.0.usize(..5) {
            let part = match self.0.u8(..8) {
                0 if depth > 0 => format!("({})", self.regex(depth - 1)),
                1 if depth > 0 => {
                    format!("(?:{}|{})", self.regex(depth - 1), self.regex(depth - 1))
                }
                _ => self.one_of(&ATOMS).to_owned(),
            };
            regex += &part;
            if self.0.u8(..4) == 0 {
                regex += self.one_of(&QUANTIFIERS);
            }
        }
        match self.0.u8(..6) {
            0 => format!("^{regex}$"),
            1 => format!("^{regex}"),
            2 => format!("{regex}\\"),
            3 => self.nested("(", &regex, ")"),
            _ => regex,
        }
    }

    /// Nests a value, often very deeply.
    fn nested(&mut self, open: &str, inner: &str, close: &str) -> String {
        let depth = [1, 3, 60, 300, 5_000][self.0.usize(..5)];
        format!("{}{inner}{}", open.repeat(depth), close.repeat(depth))
    }

    fn value(&mut self, depth: usize) -> String {
        match self.0.u8(..if depth == 0 { 5 } else { 8 }) {
            0 => "null".to_owned(),
            1 => "true".to_owned(),
            2 => text(&self.regex(0)),
            3 | 4 => self.number().to_owned(),
            5 => format!("[{}]", self.value(depth - 1)),
            6 => format!("[{}, {}]", self.value(depth - 1), self.value(depth - 1)),
            _ => format!("{{\"a\": {}}}", self.value(depth - 1)),
        }
    }

    fn reference(&mut self) -> &'static str {
        self.one_of(&[
            "#",
            "#/",
            "#/$defs/a",
            "#/$defs/a~1b",
            "#/$defs/c~0d",
            "#/$defs/Foo%3Cstring%3E",
            "#/$defs/none",
            "#anchor",
            "#/properties/a",
            "https://example.com/x",
            "x.json#/a",
            "%",
            "#%ff",
            "",
        ])
    }

    fn schema(&mut self, depth: usize) -> String {
        if depth == 0 {
            return match self.0.u8(..6) {
                0 => "true".to_owned(),
                1 => format!("{{\"$ref\": {}}}", text(self.reference())),
                2 => format!("{{\"const\": {}}}", self.value(1)),
                _ => format!("{{\"type\": {}}}", text(self.one_of(&TYPES))),
            };
        }
        let mut schema = String::from("{");
        for at in 0..=self.0.usize(..4) {
            let (key, value) = self.keyword(depth - 1);
            let comma = if at == 0 { "" } else { ", " };
            // Writing to a string cannot fail.
            let _ = write!(schema, "{comma}{}: {value}", text(key));
        }
        schema + "}"
    }

    fn schemas(&mut self, depth: usize) -> String {
        let schemas = (0..1 + self.0.usize(..3)).map(|_| self.schema(depth));
        schemas.collect::<Vec<_>>().join(", ")
    }

    fn schemas_by_name(&mut self, depth: usize, names: &[&str]) -> String {
        let schemas_by_name = names
            .iter()
            .map(|name| format!("{}: {}", text(name), self.schema(depth)));
        format!("{{{}}}", schemas_by_name.collect::<Vec<_>>().join(", "))
    }

    fn keyword(&mut self, depth: usize) -> (&'static str, String) {
        let bounds = [
            "minimum",
            "maximum",
            "exclusiveMinimum",
            "exclusiveMaximum",
            "multipleOf",
        ];
        let counts = [
            "minLength",
            "maxLength",
            "minItems",
            "maxItems",
            "minProperties",
            "maxProperties",
        ];
        match self.0.u8(..20) {
            0 | 1 => ("type", text(self.one_of(&TYPES))),
            2 => (
                "type",
                format!(
                    "[{}, {}]",
                    text(self.one_of(&TYPES)),
                    text(self.one_of(&TYPES))
                ),
            ),
            3 | 4 => (
                bounds[self.0.usize(..bounds.len())],
                self.number().to_owned(),
            ),
            5 | 6 => (
                counts[self.0.usize(..counts.len())],
                self.number().to_owned(),
            ),
            7 => ("enum", format!("[{}, {}]", self.value(2), self.value(2))),
            8 => ("const", self.value(3)),
            9 => ("pattern", text(&self.regex(2))),
            10 => ("format", text(self.one_of(&FORMATS))),
            11 => {
                let names = 1 + self.0.usize(..3);
                (
                    "properties",
                    self.schemas_by_name(depth, &["a", "b\u{0}\"", "é"][..names]),
                )
            }
            12 => ("required", "[\"a\"]".to_owned()),
            13 => ("additionalProperties", self.schema(depth)),
            14 => {
                let pattern = self.regex(1);
                (
                    "patternProperties",
                    format!("{{{}: {}}}", text(&pattern), self.schema(depth)),
                )
            }
            15 => ("items", self.schema(depth)),
            16 => ("prefixItems", format!("[{}]", self.schemas(depth))),
            17 => {
                let name = ["anyOf", "oneOf", "allOf"][self.0.usize(..3)];
                (name, format!("[{}]", self.schemas(depth)))
            }
            18 => ("$ref", text(self.reference())),
            _ => (
                "$defs",
                self.schemas_by_name(depth, &["a", "a/b", "c~d", "Foo<string>"]),
            ),
        }
    }

    fn ebnf(&mut self) -> String {
        let atom = |maker: &mut Self| {
            let class = maker.one_of(&[
                "[a-z]",
                "[^\"\\\\]",
                "\"x\"",
                "\"\\\\\"",
                "b",
                "root",
                "[]",
                "[z-a]",
                ".",
            ]);
            let count = maker.one_of(&[
                "",
                "",
                "*",
                "+",
                "?",
                "{2}",
                "{2,1}",
                "{99999999999}",
                "{1000}",
            ]);
            format!("{class}{count}")
        };
        let body = |maker: &mut Self| {
            let inner = format!("{} | {} {}", atom(maker), atom(maker), atom(maker));
            maker.nested("(", &inner, ")")
        };
        format!("root ::= {}\nb ::= {}", body(self), body(self))
    }

    fn lark(&mut self) -> String {
        let regex = self.regex(1).replace('/', "\\/").replace('\n', "\\n");
        let count = self.one_of(&["", "*", "+", "?", "{2}", "{1,3}", "{99999999999}", "~2..4"]);
        let open = self.one_of(&["(", "["]);
        let inner = self.nested(open, "\"x\" | A", if open == "(" { ")" } else { "]" });
        let rule = self.one_of(&[
            "start",
            "b",
            "A",
            "\"y\"",
            "<[1]>",
            "<[0-99999999999]>",
            "%json {}",
            "@s0",
        ]);
        format!("%llguidance {{}}\nstart: {inner} {rule}{count} | b\nb: A start?\nA: /{regex}/\n")
    }
}

fn text(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

pub struct Call {
    pub path: &'static str,
    pub body: String,
}

pub fn call(number: u64) -> Call {
    let mut maker = Maker(Rng::with_seed(number));
    let kind = maker.0.u8(..10);
    let chat = "\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"max_tokens\": 6";
    let completion = "\"prompt\": \"x\", \"max_tokens\": 6";
    let with_constraint = |key: &str, constraint: &str, endpoint: u8| match endpoint % 3 {
        0 => Call {
            path: "/v1/completions",
            body: format!("{{{completion}, \"structured_outputs\": {{\"{key}\": {constraint}}}}}"),
        },
        1 => Call {
            path: "/v1/chat/completions",
            body: format!("{{{chat}, \"guided_{key}\": {constraint}}}"),
        },
        _ => Call {
            path: "/generate",
            body: format!(
                "{{\"text\": \"x\", \"sampling_params\": {{\"max_new_tokens\": 6, \"{}\": {constraint}}}}}",
                if key == "grammar" { "ebnf" } else { key }
            ),
        },
    };
    let endpoint = maker.0.u8(..);
    match kind {
        0 => with_constraint("regex", &text(&maker.regex(3)), endpoint),
        1 => with_constraint("grammar", &text(&maker.ebnf()), endpoint),
        2 => with_constraint("grammar", &text(&maker.lark()), endpoint),
        _ => {
            let depth = 1 + maker.0.usize(..4);
            schema_call(&maker.schema(depth), endpoint, chat, completion)
        }
    }
}

fn schema_call(schema: &str, endpoint: u8, chat: &str, completion: &str) -> Call {
    let tool = |choice: &str| {
        let function = format!("{{\"name\": \"f\", \"strict\": true, \"parameters\": {schema}}}");
        let tool = format!("{{\"type\": \"function\", \"function\": {function}}}");
        format!("{{{chat}, \"tools\": [{tool}], \"tool_choice\": {choice}}}")
    };
    let (path, body) = match endpoint % 8 {
        0 => {
            let text = text(schema);
            let parameters = format!("{{\"max_new_tokens\": 6, \"json_schema\": {text}}}");
            (
                "/generate",
                format!("{{\"text\": \"x\", \"sampling_params\": {parameters}}}"),
            )
        }
        1 => (
            "/v1/completions",
            format!("{{{completion}, \"guided_json\": {schema}}}"),
        ),
        2 => (
            "/v1/responses",
            format!(
                "{{\"input\": \"x\", \"max_output_tokens\": 16, \"text\": {{\"format\": {{\"type\": \"json_schema\", \
                 \"name\": \"x\", \"schema\": {schema}}}}}}}"
            ),
        ),
        3 => (
            "/v1/messages",
            format!(
                "{{\"model\": \"x\", {chat}, \"output_config\": {{\"format\": {{\"type\": \"json_schema\", \
                 \"schema\": {schema}}}}}}}"
            ),
        ),
        4 => ("/v1/chat/completions", tool("\"required\"")),
        5 => {
            let named_tool = "{\"type\": \"function\", \"function\": {\"name\": \"f\"}}";
            ("/v1/chat/completions", tool(named_tool))
        }
        6 => ("/v1/chat/completions", tool("\"auto\"")),
        _ => (
            "/v1/chat/completions",
            format!(
                "{{{chat}, \"response_format\": {{\"type\": \"json_schema\", \"json_schema\": {{\"name\": \"x\", \
                 \"strict\": {}, \"schema\": {schema}}}}}}}",
                endpoint % 16 < 8
            ),
        ),
    };
    Call { path, body }
}
