//! The macro `keys!`, which declares configuration keys: an entry gives a field's doc, default, bounds and flag.
//! The binary derives flags and environment variables from [`Keys::KEYS`].

use std::fmt::Display;
use std::ops::{Bound, RangeBounds};
use std::path::PathBuf;

use souffleur_base::error::ConfigError;
use souffleur_chaos::{Spec, SpecError};

/// A section of the configuration: a struct with one field for each key.
pub trait Keys {
    const KEYS: &'static [Key];
}

#[derive(Clone, Copy, Debug)]
pub struct Key {
    pub name: &'static str,
    /// The field's doc comment, line by line. It is also the flag's help: `-h` shows the first paragraph, `--help` all.
    pub doc: &'static str,
    pub form: Form,
    pub flag: Flag,
}

/// How a flag is shown in the help. The flag has the key's name.
#[derive(Clone, Copy, Debug)]
pub struct Flag {
    pub heading: &'static str,
    /// The placeholder of the value: `TOKENS` in `--page-size <TOKENS>`. `None` means the key in capitals.
    pub value_name: Option<&'static str>,
    /// Other names, which the help does not list.
    pub aliases: &'static [&'static str],
    /// Shown by `--help`, but not by `-h`.
    pub is_rare: bool,
}

impl Flag {
    pub const fn under(heading: &'static str) -> Self {
        Self {
            heading,
            value_name: None,
            aliases: &[],
            is_rare: false,
        }
    }

    pub const fn takes(mut self, value_name: &'static str) -> Self {
        self.value_name = Some(value_name);
        self
    }

    pub const fn aliases(mut self, names: &'static [&'static str]) -> Self {
        self.aliases = names;
        self
    }

    pub const fn rare(mut self) -> Self {
        self.is_rare = true;
        self
    }
}

/// How a key's value is written as text. Narrower bounds are checked later, when the value's source is known.
#[derive(Clone, Copy, Debug)]
pub enum Form {
    Switch,
    Whole {
        least: i64,
        most: u64,
    },
    Number,
    Text,
    List,
    Path,
    Name(&'static [&'static str]),
    /// Text that this function accepts.
    Checked(fn(&str) -> Result<(), String>),
    /// Texts that this function accepts, separated by semicolons or given one by one.
    CheckedList(fn(&str) -> Result<(), String>),
}

pub trait KeyType {
    const FORM: Form;
}

macro_rules! forms {
    ($($type:ty => $form:expr;)*) => {
        $(impl KeyType for $type {
            const FORM: Form = $form;
        })*
    };
}

macro_rules! whole_numbers {
    ($($type:ty),*) => {
        $(impl KeyType for $type {
            const FORM: Form = Form::Whole { least: <$type>::MIN as i64, most: <$type>::MAX as u64 };
        })*
    };
}

forms! {
    bool => Form::Switch;
    f64 => Form::Number;
    String => Form::Text;
    Vec<String> => Form::List;
    PathBuf => Form::Path;
    Vec<Spec> => Form::CheckedList(|text| {
        let spec: Result<Spec, SpecError> = text.parse();
        spec.map(drop).map_err(|error| error.to_string())
    });
}
whole_numbers!(u16, u32, u64, usize, i64);

/// A key without a default.
impl<T: KeyType> KeyType for Option<T> {
    const FORM: Form = T::FORM;
}

/// Makes a section of the configuration: the struct, its `Default`, its [`Keys`] and `validate_ranges`. An entry is a
/// doc comment, the flag, the bounds if there are any, and `name: type = default`.
#[doc(hidden)]
#[macro_export]
macro_rules! keys {
    (
        $(#[doc = $about:literal])+
        pub struct $section:ident {
            $(
                $(#[doc = $doc:literal])+
                #[flag($flag:expr)]
                $(#[range($range:expr)])?
                $key:ident: $type:ty = $default:expr,
            )+
        }
    ) => {
        $(#[doc = $about])+
        #[derive(Clone, Debug, PartialEq, ::serde::Serialize, ::serde::Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct $section {
            $($(#[doc = $doc])+ pub $key: $type,)+
        }

        impl Default for $section {
            fn default() -> Self {
                Self { $($key: $default,)+ }
            }
        }

        impl $crate::keys::Keys for $section {
            const KEYS: &'static [$crate::keys::Key] = &[$($crate::keys::Key {
                name: stringify!($key),
                doc: concat!($($doc, "\n"),+),
                form: <$type as $crate::keys::KeyType>::FORM,
                flag: $flag,
            },)+];
        }

        impl $section {
            fn validate_ranges(&self) -> Result<(), ::souffleur_base::error::ConfigError> {
                $($($crate::keys::check_range(stringify!($key), self.$key, $range)?;)?)+
                Ok(())
            }
        }
    };
}

/// Checks a value, if there is one, against inclusive bounds.
pub fn check_range<T: Copy + Display + PartialOrd>(
    key: &str,
    value: impl Into<Option<T>>,
    range: impl RangeBounds<T>,
) -> Result<(), ConfigError> {
    let Some(value) = value.into().filter(|value| !range.contains(value)) else {
        return Ok(());
    };
    let limit = match (range.start_bound(), range.end_bound()) {
        (_, Bound::Included(most)) if value > *most => format!("at most {most}"),
        (Bound::Included(least), _) => format!("at least {least}"),
        (_, Bound::Included(most)) => format!("at most {most}"),
        _ => "a number within the limits".to_owned(),
    };
    Err(out_of_range(key, format!("is {value}, must be {limit}")))
}

pub fn out_of_range(key: &str, reason: String) -> ConfigError {
    let key = key.to_owned();
    ConfigError { key, reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_bound_that_a_value_breaks() {
        let reason = |checked: Result<(), ConfigError>| checked.err().map(|error| error.reason);
        assert_eq!(reason(check_range("x", 5_usize, 1..=5)), None);
        assert_eq!(reason(check_range("x", None::<usize>, 1..)), None);
        for (checked, expected) in [
            (check_range("x", 6_usize, 1..=5), "is 6, must be at most 5"),
            (check_range("x", 0_usize, 1..=5), "is 0, must be at least 1"),
            (
                check_range("x", Some(0_u64), 1..),
                "is 0, must be at least 1",
            ),
            (check_range("x", 2_usize, ..=1), "is 2, must be at most 1"),
            (
                check_range("x", f64::NAN, 0.0..=1.0),
                "is NaN, must be at least 0",
            ),
        ] {
            assert_eq!(reason(checked).as_deref(), Some(expected));
        }
    }
}
