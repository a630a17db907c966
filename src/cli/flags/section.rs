//! Generates the command-line flags of a configuration section from its keys.

use std::marker::PhantomData;

use clap::builder::{
    BoolishValueParser, PathBufValueParser, PossibleValuesParser, StringValueParser,
    TypedValueParser, ValueParser,
};
use clap::{Arg, ArgAction, ArgMatches, Args, Command, Error, FromArgMatches, value_parser};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use souffleur::config::keys::{Form, Key, Keys};

#[derive(Clone, Debug, Default, Serialize)]
#[serde(transparent)]
pub struct SectionFlags<S> {
    given: Map<String, Value>,
    #[serde(skip)]
    section: PhantomData<S>,
}

impl<S: Keys> SectionFlags<S> {
    pub fn get<T: DeserializeOwned>(&self, key: &str) -> Option<T> {
        debug_assert!(S::KEYS.iter().any(|known| known.name == key), "{key}");
        let value = self.given.get(key)?;
        serde_json::from_value(value.clone()).ok()
    }

    pub fn set(&mut self, key: &str, value: Value) {
        debug_assert!(S::KEYS.iter().any(|known| known.name == key), "{key}");
        self.given.insert(key.to_owned(), value);
    }

    pub fn remove(&mut self, key: &str) {
        self.given.remove(key);
    }
}

impl<S: Keys + Default + Serialize> Args for SectionFlags<S> {
    fn augment_args(command: Command) -> Command {
        let defaults = serde_json::to_value(S::default()).unwrap_or_default();
        command.args(S::KEYS.iter().map(|key| arg(key, &defaults[key.name])))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<S: Keys> FromArgMatches for SectionFlags<S> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let given = S::KEYS.iter().filter_map(|key| {
            let mut values = matches.get_many::<Value>(key.name)?.cloned();
            let value = match key.form {
                Form::List | Form::CheckedList(_) => values.collect(),
                _ => values.next()?,
            };
            Some((key.name.to_owned(), value))
        });
        Ok(Self {
            given: given.collect(),
            section: PhantomData,
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        self.given.extend(Self::from_arg_matches(matches)?.given);
        Ok(())
    }
}

fn arg(key: &Key, default: &Value) -> Arg {
    let flag = &key.flag;
    let mut arg = with_help(Arg::new(key.name), key.doc, default)
        .long(key.name.replace('_', "-"))
        .help_heading(flag.heading)
        .hide_short_help(flag.is_rare)
        .aliases(flag.aliases.iter().copied())
        .action(ArgAction::Set)
        .value_parser(parser(key.form));
    arg = match flag.value_name {
        Some(name) => arg.value_name(name),
        None => arg.value_name(key.name.to_uppercase()),
    };
    match key.form {
        Form::Switch => switch(arg, default),
        Form::Whole { least, .. } => arg.allow_negative_numbers(least < 0),
        Form::List => arg.value_delimiter(','),
        Form::CheckedList(_) => arg.action(ArgAction::Append).value_delimiter(';'),
        _ => arg,
    }
}

/// A switch that is off by default can be turned on without a value.
fn switch(arg: Arg, default: &Value) -> Arg {
    let arg = arg.value_name("on|off").hide_possible_values(true);
    match default {
        Value::Bool(false) => arg
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("true"),
        _ => arg,
    }
}

/// Parses the text of a flag into the value that the section deserializes.
fn parser(form: Form) -> ValueParser {
    match form {
        Form::Switch => BoolishValueParser::new().map(Value::from).into(),
        Form::Whole { least, most } => match i64::try_from(most) {
            Ok(most) => value_parser!(i64)
                .range(least..=most)
                .map(Value::from)
                .into(),
            Err(_) => value_parser!(u64).map(Value::from).into(),
        },
        Form::Number => ValueParser::from(|text: &str| text.parse::<f64>().map(Value::from)),
        Form::Text | Form::List => StringValueParser::new().map(Value::from).into(),
        Form::Path => PathBufValueParser::new()
            .try_map(serde_json::to_value)
            .into(),
        Form::Name(names) => PossibleValuesParser::new(names).map(Value::from).into(),
        Form::Checked(check) | Form::CheckedList(check) => {
            ValueParser::from(move |text: &str| check(text).map(|()| Value::from(text)))
        }
    }
}

/// Adds the help text to a flag: the doc comment without the final full stop, and the default.
fn with_help(arg: Arg, doc: &str, default: &Value) -> Arg {
    let mut paragraphs = doc.trim().split("\n\n").map(paragraph);
    let mut help = paragraphs.next().unwrap_or_default();
    if let Some(default) = shown(default) {
        help = format!("{help} [default: {default}]");
    }
    let long: String = paragraphs.map(|text| format!("\n\n{text}")).collect();
    if long.is_empty() {
        arg.help(help)
    } else {
        arg.long_help(format!("{help}{long}")).help(help)
    }
}

/// Joins a paragraph into one line. Removes the backticks of flags.
fn paragraph(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let line = lines.join(" ");
    let parts = line.trim_end_matches('.').split('`').enumerate();
    let parts = parts.map(|(index, part)| {
        if index % 2 == 1 && !part.starts_with("--") {
            format!("`{part}`")
        } else {
            part.to_owned()
        }
    });
    parts.collect()
}

/// The text of a default value as a user would type it, if there is one.
fn shown(default: &Value) -> Option<String> {
    match default {
        Value::String(text) => Some(text.clone()).filter(|text| !text.is_empty()),
        Value::Bool(is_on) => Some(if *is_on { "on" } else { "off" }.to_owned()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}
