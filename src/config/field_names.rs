//! The names of the fields of a struct, as serde knows them.

use serde::de::{DeserializeOwned, Deserializer, Visitor};
use serde::forward_to_deserialize_any;

use super::error::KeyError;

/// The names of the fields of `T`.
pub(super) fn field_names<T: DeserializeOwned>() -> &'static [&'static str] {
    field_names_by(|names| T::deserialize(names))
}

/// [`field_names`] of a type that is selected at run time.
pub(super) fn field_names_by<T>(
    deserialize: impl FnOnce(FieldNames<'_>) -> Result<T, KeyError>,
) -> &'static [&'static str] {
    let mut names: &'static [&'static str] = &[];
    // Always an error: only the names are wanted.
    let _ = deserialize(FieldNames(&mut names));
    names
}

/// Notes the fields of the struct that is deserialized from it, and fails.
pub(super) struct FieldNames<'a>(&'a mut &'static [&'static str]);

impl<'de> Deserializer<'de> for FieldNames<'_> {
    type Error = KeyError;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        _visitor: V,
    ) -> Result<V::Value, KeyError> {
        *self.0 = fields;
        Err(serde::de::Error::custom("names only"))
    }

    fn deserialize_any<V: Visitor<'de>>(self, _visitor: V) -> Result<V::Value, KeyError> {
        Err(serde::de::Error::custom("names only"))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf option unit
        unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}
