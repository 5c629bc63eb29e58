//! Reading sections: which keys there are is asked of serde, so that a field added to a struct is
//! known to the reader, to `--set` and to the suggestions at once.

use serde::de::value::SeqDeserializer;
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, Error as _, IntoDeserializer, MapAccess,
    Unexpected, Visitor,
};
use serde::forward_to_deserialize_any;
use toml::{Table, Value};

use super::error::{KeyError, Problem};

/// Keys that say the same thing in two ways: one side of the pair or the other.
pub(super) type Exclusive = (&'static [&'static str], &'static [&'static str]);

/// One `[section]` of the file.
pub(super) trait Section: Sized {
    /// The section's name.
    const NAME: &'static str;
    /// The key that picks one of [`Self::CHOICES`], in sections that have one.
    const TAG: Option<&'static str> = None;
    /// The values of the tag.
    const CHOICES: &'static [&'static str] = &[];
    /// The pairs of which only one side may be set.
    const EXCLUSIVE: &'static [Exclusive] = &[];

    /// The keys there are for a choice, the tag not among them.
    fn keys(choice: &str) -> Vec<&'static str>;

    /// From a table that holds no unknown keys.
    fn read(choice: &str, table: &Table) -> Result<Self, KeyError>;
}

/// [`Section`] as a value, for tables of sections.
#[derive(Clone, Copy)]
pub(super) struct SectionInfo {
    pub name: &'static str,
    pub tag: Option<&'static str>,
    pub choices: &'static [&'static str],
    pub exclusive: &'static [Exclusive],
    pub keys: fn(&str) -> Vec<&'static str>,
}

pub(super) const fn info<S: Section>() -> SectionInfo {
    SectionInfo {
        name: S::NAME,
        tag: S::TAG,
        choices: S::CHOICES,
        exclusive: S::EXCLUSIVE,
        keys: S::keys,
    }
}

/// Reads one section out of the whole file. A section that is not there is read as an empty one:
/// either its keys have defaults or the first that has none is named.
pub(super) fn read_section<S: Section>(file: &Table) -> Result<S, KeyError> {
    let empty = Table::new();
    let table = match file.get(S::NAME) {
        None => &empty,
        Some(Value::Table(table)) => table,
        Some(other) => {
            let found = unexpected(other).to_string();
            let allowed = format!("a section, [{}]", S::NAME);
            return Err(KeyError::new(S::NAME, Problem::Value { found, allowed }));
        }
    };
    read_table(table).map_err(|error| error.within(S::NAME))
}

fn read_table<S: Section>(table: &Table) -> Result<S, KeyError> {
    let choice = match S::TAG {
        None => "",
        Some(tag) => chosen(tag, S::CHOICES, table)?,
    };
    let mut known = S::keys(choice);
    known.extend(S::TAG);
    // Before anything is called missing: a misspelled key is the likelier cause.
    if let Some(key) = table.keys().find(|key| !known.contains(&key.as_str())) {
        return Err(KeyError::unknown(key, known));
    }
    for (left, right) in S::EXCLUSIVE {
        let first =
            |side: &[&'static str]| side.iter().copied().find(|key| table.contains_key(*key));
        if let (Some(left), Some(right)) = (first(left), first(right)) {
            let other = format!("{}.{left}", S::NAME);
            return Err(KeyError::new(right, Problem::Exclusive { other }));
        }
    }
    S::read(choice, table)
}

fn chosen(
    tag: &str,
    choices: &'static [&'static str],
    table: &Table,
) -> Result<&'static str, KeyError> {
    let allowed = || choices.iter().map(|c| format!("{c:?}")).collect::<Vec<_>>().join(", ");
    match table.get(tag) {
        None => Err(KeyError::missing(tag, &allowed())),
        Some(Value::String(word)) => choices
            .iter()
            .copied()
            .find(|choice| choice == word)
            .ok_or_else(|| KeyError::choice(tag, word, choices)),
        Some(other) => {
            let found = unexpected(other).to_string();
            Err(KeyError::new(tag, Problem::Value { found, allowed: allowed() }))
        }
    }
}

/// The fields of `T` out of a table; keys that `T` does not have are left to others.
pub(super) fn read_keys<T: DeserializeOwned>(table: &Table) -> Result<T, KeyError> {
    T::deserialize(Keys(table))
}

/// The names of the fields of `T`.
pub(super) fn field_names<T: DeserializeOwned>() -> &'static [&'static str] {
    let mut names: &'static [&'static str] = &[];
    // Always an error: the names are all that is wanted.
    let _ = T::deserialize(FieldNames(&mut names));
    names
}

struct FieldNames<'a>(&'a mut &'static [&'static str]);

impl<'de> Deserializer<'de> for FieldNames<'_> {
    type Error = KeyError;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        _visitor: V,
    ) -> Result<V::Value, KeyError> {
        *self.0 = fields;
        Err(KeyError::custom("names only"))
    }

    fn deserialize_any<V: Visitor<'de>>(self, _visitor: V) -> Result<V::Value, KeyError> {
        Err(KeyError::custom("names only"))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf option unit
        unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

/// A table of which a struct takes its fields.
struct Keys<'de>(&'de Table);

impl<'de> Deserializer<'de> for Keys<'de> {
    type Error = KeyError;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, KeyError> {
        visitor.visit_map(Entries::new(self.0, Some(fields)))
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, KeyError> {
        visitor.visit_map(Entries::new(self.0, None))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf option unit
        unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

/// The entries of a table, which names the key in every error of a value.
struct Entries<'de> {
    entries: toml::map::Iter<'de, String, Value>,
    fields: Option<&'static [&'static str]>,
    current: Option<(&'de str, &'de Value)>,
}

impl<'de> Entries<'de> {
    fn new(table: &'de Table, fields: Option<&'static [&'static str]>) -> Self {
        Self { entries: table.iter(), fields, current: None }
    }
}

impl<'de> MapAccess<'de> for Entries<'de> {
    type Error = KeyError;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, KeyError> {
        let wanted = |key: &str| self.fields.is_none_or(|fields| fields.contains(&key));
        let next = self.entries.find(|(key, _)| wanted(key));
        self.current = next.map(|(key, value)| (key.as_str(), value));
        let key = self.current.map(|(key, _)| seed.deserialize(key.into_deserializer()));
        key.transpose()
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, KeyError> {
        let (key, value) =
            self.current.take().ok_or_else(|| KeyError::custom("a value without a key"))?;
        seed.deserialize(Entry(value)).map_err(|error| error.within(key))
    }
}

/// A value; wrong types are reported in the words of [`KeyError`].
struct Entry<'de>(&'de Value);

impl<'de> IntoDeserializer<'de, KeyError> for Entry<'de> {
    type Deserializer = Self;
    fn into_deserializer(self) -> Self {
        self
    }
}

impl<'de> Deserializer<'de> for Entry<'de> {
    type Error = KeyError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, KeyError> {
        match self.0 {
            Value::String(value) => visitor.visit_str(value),
            Value::Integer(value) => visitor.visit_i64(*value),
            Value::Float(value) => visitor.visit_f64(*value),
            Value::Boolean(value) => visitor.visit_bool(*value),
            Value::Datetime(_) => Err(KeyError::invalid_type(unexpected(self.0), &visitor)),
            Value::Array(values) => {
                visitor.visit_seq(SeqDeserializer::new(values.iter().map(Entry)))
            }
            Value::Table(table) => visitor.visit_map(Entries::new(table, None)),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, KeyError> {
        visitor.visit_some(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, KeyError> {
        let Value::String(word) = self.0 else {
            let allowed = variants.iter().map(|v| format!("{v:?}")).collect::<Vec<_>>().join(", ");
            let found = unexpected(self.0).to_string();
            return Err(KeyError::new("", Problem::Value { found, allowed }));
        };
        visitor.visit_enum(word.as_str().into_deserializer())
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf unit unit_struct
        newtype_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}

fn unexpected(value: &Value) -> Unexpected<'_> {
    match value {
        Value::String(value) => Unexpected::Str(value),
        Value::Integer(value) => Unexpected::Signed(*value),
        Value::Float(value) => Unexpected::Float(*value),
        Value::Boolean(value) => Unexpected::Bool(*value),
        Value::Datetime(_) => Unexpected::Other("a date"),
        Value::Array(_) => Unexpected::Other("a list"),
        Value::Table(_) => Unexpected::Other("a table"),
    }
}

/// Declares an enum of which a tag key picks the variant: one line a variant, with the struct that
/// holds its keys. Serialized as that struct's keys with the tag among them.
macro_rules! choices {
    ($(#[$meta:meta])* pub enum $Enum:ident by $tag:literal {
        $($(#[$doc:meta])* $name:literal => $Variant:ident($Keys:ty),)*
    }) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq)]
        pub enum $Enum { $($(#[$doc])* $Variant($Keys),)* }

        impl $Enum {
            /// The key that picks the variant.
            pub const TAG: &'static str = $tag;
            /// The name of each variant in a configuration.
            pub const NAMES: &'static [&'static str] = &[$($name),*];

            /// The name in a configuration.
            pub fn name(&self) -> &'static str {
                match self { $(Self::$Variant(_) => $name,)* }
            }

            pub(in crate::config) fn keys_of(name: &str) -> Vec<&'static str> {
                match name {
                    $($name => $crate::config::keys::field_names::<$Keys>().to_vec(),)*
                    _ => vec![],
                }
            }

            pub(in crate::config) fn read_choice(
                name: &str,
                table: &toml::Table,
            ) -> Result<Self, $crate::config::error::KeyError> {
                match name {
                    $($name => $crate::config::keys::read_keys(table).map(Self::$Variant),)*
                    other => Err($crate::config::error::KeyError::choice($tag, other, Self::NAMES)),
                }
            }
        }

        impl serde::Serialize for $Enum {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let table = match self { $(Self::$Variant(keys) => toml::Table::try_from(keys),)* };
                let mut table = table.map_err(serde::ser::Error::custom)?;
                table.insert($tag.to_owned(), self.name().into());
                table.serialize(serializer)
            }
        }
    };
}
pub(super) use choices;
