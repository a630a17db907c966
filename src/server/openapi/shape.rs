//! Builds the schemas of the endpoints' input and output. An input field's schema matches the checks of
//! [`Field`](souffleur_base::field::Field) and [`Fields`](crate::fields::Fields).

use serde_json::{Map, Number, Value};
use utoipa::openapi::schema::{
    AdditionalProperties, AnyOf, AnyOfBuilder, Array, ArrayBuilder, Object, ObjectBuilder, Schema,
    SchemaType, Type,
};
use utoipa::openapi::{Ref, RefOr};

use souffleur_base::field::Integer;

#[derive(Clone)]
pub(crate) struct Shape(RefOr<Schema>);

impl From<Shape> for RefOr<Schema> {
    fn from(shape: Shape) -> Self {
        shape.0
    }
}

pub(crate) fn anything() -> Shape {
    Shape(
        ObjectBuilder::new()
            .schema_type(SchemaType::AnyValue)
            .into(),
    )
}

pub(crate) fn text() -> Shape {
    plain(Type::String)
}

pub(crate) fn enum_of<'a>(names: impl IntoIterator<Item = &'a str>) -> Shape {
    let names = names.into_iter().map(Value::from).collect();
    text().edit(|object| object.enum_values = Some(names))
}

pub(crate) fn flag() -> Shape {
    plain(Type::Boolean)
}

pub(crate) fn number() -> Shape {
    plain(Type::Number)
}

pub(crate) fn whole() -> Shape {
    plain(Type::Integer)
}

/// A count, or a limit of tokens, which is clipped if it is too large.
pub(crate) fn count() -> Shape {
    whole().at_least(0)
}

pub(crate) fn integer<T: Integer>() -> Shape {
    let bounds = T::BOUNDS;
    whole().at_least(*bounds.start()).at_most(*bounds.end())
}

pub(crate) fn token_id() -> Shape {
    integer::<u32>()
}

pub(crate) fn seconds() -> Shape {
    number().above(0)
}

pub(crate) fn list(items: Shape) -> Shape {
    Shape(ArrayBuilder::new().items(items.0).into())
}

/// A list with exactly these items, none of which is [`named`].
pub(crate) fn tuple<const N: usize>(items: [Shape; N]) -> Shape {
    let items = items.map(|item| Schema::from(item.0));
    let array = ArrayBuilder::new().prefix_items(items);
    let array = array.items(utoipa::openapi::schema::ArrayItems::False);
    Shape(array.min_items(Some(N)).max_items(Some(N)).into())
}

pub(crate) fn any_of<const N: usize>(shapes: [Shape; N]) -> Shape {
    let shapes = shapes.into_iter();
    Shape(
        shapes
            .fold(AnyOfBuilder::new(), |any, shape| any.item(shape.0))
            .into(),
    )
}

/// The schema of this name among the document's components.
pub(crate) fn named(component: &str) -> Shape {
    Shape(Ref::from_schema_name(component).into())
}

pub(crate) fn map_of(values: Shape) -> Shape {
    plain(Type::Object).edit(|object| {
        object.additional_properties = Some(Box::new(AdditionalProperties::RefOr(values.0)));
    })
}

pub(crate) fn free_object() -> Shape {
    plain(Type::Object)
}

fn plain(kind: Type) -> Shape {
    Shape(ObjectBuilder::new().schema_type(kind).into())
}

impl Shape {
    pub(crate) fn about(mut self, text: &str) -> Self {
        let text = text.to_owned();
        match &mut self.0 {
            RefOr::Ref(reference) => reference.description = text,
            RefOr::T(Schema::Object(object)) => object.description = Some(text),
            RefOr::T(Schema::Array(array)) => array.description = Some(text),
            RefOr::T(Schema::AnyOf(any)) => any.description = Some(text),
            RefOr::T(_) => (),
        }
        self
    }

    /// Sets the default of an absent field.
    pub(crate) fn or(mut self, default: impl Into<Value>) -> Self {
        let default = Some(default.into());
        match &mut self.0 {
            RefOr::Ref(reference) => reference.default = default,
            RefOr::T(Schema::Object(object)) => object.default = default,
            RefOr::T(Schema::Array(array)) => array.default = default,
            RefOr::T(Schema::AnyOf(any)) => any.default = default,
            RefOr::T(_) => (),
        }
        self
    }

    pub(crate) fn at_least(self, least: impl Bound) -> Self {
        self.edit(|object| object.minimum = Some(least.into_number()))
    }

    pub(crate) fn at_most(self, most: impl Bound) -> Self {
        self.edit(|object| object.maximum = Some(most.into_number()))
    }

    pub(crate) fn above(self, bound: impl Bound) -> Self {
        self.edit(|object| object.exclusive_minimum = Some(bound.into_number()))
    }

    /// A string of more than `length` characters, or a list of more than `length` items.
    pub(crate) fn longer_than(self, length: usize) -> Self {
        let least = Some(length + 1);
        self.edit_lengths(
            |object| object.min_length = least,
            |array| array.min_items = least,
        )
    }

    /// A string of at most `length` characters, or a list of at most `length` items. Also describes limits in bytes: a
    /// string has at most as many characters as bytes.
    pub(crate) fn up_to(self, length: usize) -> Self {
        let most = Some(length);
        self.edit_lengths(
            |object| object.max_length = most,
            |array| array.max_items = most,
        )
    }

    pub(crate) fn fields_up_to(self, most: usize) -> Self {
        self.edit(|object| object.max_properties = Some(most))
    }

    pub(crate) fn like(self, pattern: &str) -> Self {
        self.edit(|object| object.pattern = Some(pattern.to_owned()))
    }

    /// An object whose field names match `names`, which must not be [`named`].
    pub(crate) fn with_names(self, names: Self) -> Self {
        self.edit(|object| object.property_names = Some(Box::new(names.0.into())))
    }

    pub(crate) fn or_null(mut self) -> Self {
        match &mut self.0 {
            RefOr::T(Schema::Object(Object {
                schema_type,
                enum_values,
                ..
            })) => {
                add_null(schema_type);
                if let Some(values) = enum_values {
                    values.push(Value::Null);
                }
                self
            }
            RefOr::T(Schema::Array(Array { schema_type, .. })) => {
                add_null(schema_type);
                self
            }
            RefOr::T(Schema::AnyOf(AnyOf { items, .. })) => {
                items.push(plain(Type::Null).0);
                self
            }
            RefOr::Ref(reference) => {
                let about = std::mem::take(&mut reference.description);
                let default = reference.default.take();
                let any = any_of([self, plain(Type::Null)]);
                let any = if about.is_empty() {
                    any
                } else {
                    any.about(&about)
                };
                match default {
                    Some(default) => any.or(default),
                    None => any,
                }
            }
            RefOr::T(_) => self,
        }
    }

    fn edit(mut self, edit: impl FnOnce(&mut Object)) -> Self {
        if let RefOr::T(Schema::Object(object)) = &mut self.0 {
            edit(object);
        }
        self
    }

    fn edit_lengths(
        mut self,
        of_text: impl FnOnce(&mut Object),
        of_list: impl FnOnce(&mut Array),
    ) -> Self {
        match &mut self.0 {
            RefOr::T(Schema::Object(object)) => of_text(object),
            RefOr::T(Schema::Array(array)) => of_list(array),
            _ => (),
        }
        self
    }
}

fn add_null(kind: &mut SchemaType) {
    match kind {
        SchemaType::Type(only) => *kind = SchemaType::Array(vec![only.clone(), Type::Null]),
        SchemaType::Array(kinds) => kinds.push(Type::Null),
        SchemaType::AnyValue => (),
    }
}

pub(crate) trait Bound {
    fn into_number(self) -> utoipa::Number;
}

impl<T: Into<Number>> Bound for T {
    fn into_number(self) -> utoipa::Number {
        let number = self.into();
        let signed = number.as_i64().and_then(|it| isize::try_from(it).ok());
        let unsigned = number.as_u64().and_then(|it| usize::try_from(it).ok());
        match (signed, unsigned) {
            (Some(signed), _) => utoipa::Number::Int(signed),
            (None, Some(unsigned)) => utoipa::Number::UInt(unsigned),
            (None, None) => utoipa::Number::Float(number.as_f64().unwrap_or_default()),
        }
    }
}

#[derive(Clone, Default)]
pub(crate) struct ObjectShape {
    fields: Vec<(String, Shape)>,
    required: Vec<String>,
    is_closed: bool,
}

/// An object without fields so far. Fields that the schema does not name are ignored.
pub(crate) fn object() -> ObjectShape {
    ObjectShape::default()
}

impl ObjectShape {
    /// Adds an optional field. Null counts as absent.
    pub(crate) fn takes(mut self, name: &str, shape: Shape) -> Self {
        self.fields.push((name.to_owned(), shape.or_null()));
        self
    }

    /// Adds a required field.
    pub(crate) fn has(mut self, name: &str, shape: Shape) -> Self {
        self.required.push(name.to_owned());
        self.fields.push((name.to_owned(), shape));
        self
    }

    /// Adds an optional field that is never null.
    pub(crate) fn may_have(mut self, name: &str, shape: Shape) -> Self {
        self.fields.push((name.to_owned(), shape));
        self
    }

    pub(crate) fn and(mut self, other: Self) -> Self {
        self.fields.extend(other.fields);
        self.required.extend(other.required);
        self
    }

    pub(crate) fn with_defaults(mut self, defaults: &Map<String, Value>) -> Self {
        for (name, shape) in &mut self.fields {
            if let Some(default) = defaults.get(name).filter(|value| !value.is_null()) {
                *shape = shape.clone().or(default.clone());
            }
        }
        self
    }

    pub(crate) fn without(mut self, names: &[&str]) -> Self {
        self.fields
            .retain(|(name, _)| !names.contains(&name.as_str()));
        self.required.retain(|name| !names.contains(&name.as_str()));
        self
    }

    /// Fields that the schema does not name are refused.
    pub(crate) fn nothing_else(mut self) -> Self {
        self.is_closed = true;
        self
    }

    pub(crate) fn shape(self) -> Shape {
        let mut object = ObjectBuilder::new().schema_type(Type::Object);
        for (name, shape) in self.fields {
            object = object.property(name, shape);
        }
        for name in self.required {
            object = object.required(name);
        }
        if self.is_closed {
            object = object.additional_properties(Some(AdditionalProperties::FreeForm(false)));
        }
        Shape(object.into())
    }
}
