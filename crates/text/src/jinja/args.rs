//! Binds the arguments of a call in a template to parameters.

use super::error::{Fault, Result};
use super::value::Value;

#[derive(Debug, Default)]
pub(super) struct Args {
    pub(super) positional: Vec<Value>,
    pub(super) named: Vec<(String, Value)>,
}

impl Args {
    /// Returns the arguments in the order of the parameters `names`. The first `required` of them must be given.
    pub(super) fn bind<const N: usize>(
        self,
        function: &str,
        names: [&str; N],
        required: usize,
    ) -> Result<[Option<Value>; N]> {
        let given = self.positional.len();
        if given > N {
            return Fault::other(format!(
                "{function}() takes at most {N} argument{} ({given} given)",
                if N == 1 { "" } else { "s" }
            ));
        }
        let mut bound = [const { None }; N];
        for (place, value) in bound.iter_mut().zip(self.positional) {
            *place = Some(value);
        }
        for (name, value) in self.named {
            let Some(place) = names.iter().position(|parameter| *parameter == name) else {
                return Fault::other(format!(
                    "{function}() got an unexpected keyword argument '{name}'"
                ));
            };
            if bound[place].is_some() {
                return Fault::other(format!(
                    "{function}() got multiple values for argument '{name}'"
                ));
            }
            bound[place] = Some(value);
        }
        match (0..required).find(|place| bound[*place].is_none()) {
            Some(place) => Fault::other(format!(
                "{function}() missing 1 required positional argument: '{}'",
                names[place]
            )),
            None => Ok(bound),
        }
    }

    /// Like `bind`, for functions without keyword arguments.
    pub(super) fn by_position<const N: usize>(
        self,
        function: &str,
        required: usize,
    ) -> Result<[Option<Value>; N]> {
        if !self.named.is_empty() {
            return Fault::other(format!("{function}() takes no keyword arguments"));
        }
        let given = self.positional.len();
        if given < required {
            return Fault::other(format!(
                "{function} expected at least {required} argument{}, got {given}",
                if required == 1 { "" } else { "s" }
            ));
        }
        self.bind(function, [""; N], required)
    }

    pub(super) fn expect_none(self, function: &str) -> Result<()> {
        self.by_position::<0>(function, 0).map(|_| ())
    }
}
