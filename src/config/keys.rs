//! Reading sections. Their fields declare their keys: the reader, `--set`, the suggestions and the
//! reference know a field as soon as it is in its struct.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use serde::de::value::SeqDeserializer;
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, Error as _, IntoDeserializer, MapAccess,
    Unexpected, Visitor,
};
use serde::forward_to_deserialize_any;
use toml::{Table, Value};

use super::error::{COUNT, KeyError, KeyErrors, Problem};
use super::key::{Fallback, KeyInfo, OnResume};

/// Alternative keys for the same thing: either those on the left or those on the right.
pub(super) type Exclusive = (&'static [&'static str], &'static [&'static str]);

/// The key that selects the other keys of a section, and its values.
#[derive(Clone, Copy)]
pub(super) struct Tag {
    pub name: &'static str,
    pub choices: &'static [&'static str],
    /// What it is about, as a sentence.
    pub meaning: &'static str,
    pub on_resume: OnResume,
}

/// One `[section]` of the file.
pub(super) trait Section: Sized {
    /// The section's name.
    const NAME: &'static str;
    /// What the section is about, in sentences.
    const ABOUT: &'static str;
    /// The key that selects what the section has, in sections that have one.
    const TAG: Option<Tag> = None;
    /// Pairs of keys that exclude each other.
    const EXCLUSIVE: &'static [Exclusive] = &[];

    /// The keys for a choice, without the tag, in the order in which they are shown.
    fn keys(choice: &str) -> Vec<KeyInfo>;

    /// Reads a table without unknown keys. `None` after an error without a substitute value. Other
    /// errors are collected in the reader; if there are any, the result is not used.
    fn read(reader: &mut Reader<'_>) -> Option<Self>;
}

/// A section that is being read, with its errors.
pub(super) struct Reader<'a> {
    /// The value of the tag.
    pub choice: &'static str,
    /// The errors so far.
    pub errors: KeyErrors,
    table: &'a Table,
    keys: &'static [KeyInfo],
}

impl Reader<'_> {
    /// The fields of `T`; other keys are ignored.
    ///
    /// serde stops at the first error. So a wrong value is reported, and the rest is read again
    /// with the default in its place.
    pub fn keys<T: DeserializeOwned>(&mut self) -> Option<T> {
        self.keys_by(|keys| T::deserialize(keys))
    }

    /// [`Self::keys`] of a type that is selected at run time.
    pub fn keys_by<T>(
        &mut self,
        deserialize: impl Fn(Keys<'_, '_>) -> Result<T, KeyError>,
    ) -> Option<T> {
        let mut wrong = vec![];
        loop {
            let keys = Keys { table: self.table, keys: self.keys, wrong: &wrong };
            let mut error = match deserialize(keys) {
                Ok(fields) => return Some(fields),
                Err(error) => error,
            };
            let key = error.key.split('.').next().unwrap_or_default().to_owned();
            let known = self.keys.iter().find(|known| known.name == key);
            let numbers = known.and_then(|key| key.limits.in_words());
            if let (Problem::Value { allowed, .. }, Some(numbers)) = (&mut error.problem, numbers) {
                *allowed = allowed.replace(COUNT, &numbers);
            }
            self.errors.push(error);
            if key.is_empty() || wrong.contains(&key) {
                return None;
            }
            wrong.push(key);
        }
    }

    /// Reports the keys that must be set and are not. Of keys that exclude each other, the section
    /// itself checks that one is set.
    fn check_required(&mut self, exclusive: &[Exclusive]) {
        let is_missing = |key: &&KeyInfo| {
            key.fallback == Fallback::Required
                && !self.table.contains_key(key.name)
                && !exclusive.iter().any(|(a, b)| a.contains(&key.name) || b.contains(&key.name))
        };
        for key in self.keys.iter().filter(is_missing) {
            let allowed = key.allowed();
            let allowed = allowed.unwrap_or_else(|| "a value, for it has no default".to_owned());
            self.errors.push(KeyError::missing(key.name, &allowed));
        }
    }
}

/// [`Section`] as a value, for tables of sections.
#[derive(Clone, Copy)]
pub(super) struct SectionInfo {
    pub name: &'static str,
    pub about: &'static str,
    pub tag: Option<Tag>,
    pub exclusive: &'static [Exclusive],
    keys: fn(&str) -> Vec<KeyInfo>,
}

impl SectionInfo {
    /// The values of the tag; one empty choice without a tag.
    pub fn choices(&self) -> &'static [&'static str] {
        self.tag.map_or(&[""], |tag| tag.choices)
    }

    /// The keys for a choice, without the tag, in the order in which they are shown.
    pub fn keys(&self, choice: &'static str) -> &'static [KeyInfo] {
        type Known = BTreeMap<(&'static str, &'static str), &'static [KeyInfo]>;
        static KNOWN: Mutex<Known> = Mutex::new(BTreeMap::new());
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        // Once for each choice, so that the memory is bounded.
        known.entry((self.name, choice)).or_insert_with(|| Vec::leak((self.keys)(choice)))
    }

    /// The names of the keys for all choices, and of the tag.
    pub fn all_keys(&self) -> Vec<&'static str> {
        let keys = self.choices().iter().flat_map(|choice| self.keys(choice));
        let mut known: Vec<_> = self.tag.iter().map(|tag| tag.name).collect();
        for key in keys {
            if !known.contains(&key.name) {
                known.push(key.name);
            }
        }
        known
    }
}

pub(super) const fn info<S: Section>() -> SectionInfo {
    SectionInfo {
        name: S::NAME,
        about: S::ABOUT,
        tag: S::TAG,
        exclusive: S::EXCLUSIVE,
        keys: S::keys,
    }
}

/// Reads one section of the file. A missing section is read as an empty one: keys without a default
/// are then reported.
pub(super) fn read_section<S: Section>(file: &Table, errors: &mut KeyErrors) -> Option<S> {
    let empty = Table::new();
    let table = match file.get(S::NAME) {
        // Its name is misspelled.
        None if errors.is_misspelled(S::NAME) => return None,
        None => &empty,
        Some(Value::Table(table)) => table,
        Some(other) => {
            let found = unexpected(other).to_string();
            let allowed = format!("a section, [{}]", S::NAME);
            errors.push(KeyError::new(S::NAME, Problem::Value { found, allowed }));
            return None;
        }
    };
    let mut reader = Reader { choice: "", errors: KeyErrors::default(), table, keys: &[] };
    let section = read_table::<S>(&mut reader);
    errors.extend_from(S::NAME, reader.errors);
    section
}

fn read_table<S: Section>(reader: &mut Reader<'_>) -> Option<S> {
    let Reader { table, errors, .. } = reader;
    let section = info::<S>();
    let choice = match section.tag {
        None => Some(""),
        Some(tag) => chosen(&tag, table, errors),
    };
    // Without a choice, the keys of all choices are known.
    let names = |choice| section.keys(choice).iter().map(|key| key.name);
    let mut known = match choice {
        Some(choice) => names(choice).collect(),
        None => section.all_keys(),
    };
    known.retain(|name| section.tag.is_none_or(|tag| tag.name != *name));
    known.extend(section.tag.map(|tag| tag.name));
    for key in table.keys().filter(|key| !known.contains(&key.as_str())) {
        errors.push(KeyError::unknown(key, known.clone()));
    }
    for (left, right) in S::EXCLUSIVE {
        let first =
            |side: &[&'static str]| side.iter().copied().find(|key| table.contains_key(*key));
        if let (Some(left), Some(right)) = (first(left), first(right)) {
            let other = format!("{}.{left}", S::NAME);
            errors.push(KeyError::new(right, Problem::Exclusive { other }));
        }
    }
    reader.choice = choice?;
    reader.keys = section.keys(reader.choice);
    reader.check_required(S::EXCLUSIVE);
    S::read(reader)
}

fn chosen(tag: &Tag, table: &Table, errors: &mut KeyErrors) -> Option<&'static str> {
    let choices = tag.choices;
    let allowed = || choices.iter().map(|c| format!("{c:?}")).collect::<Vec<_>>().join(", ");
    let error = match table.get(tag.name) {
        None => KeyError::missing(tag.name, &allowed()),
        Some(Value::String(word)) => match choices.iter().find(|choice| *choice == word) {
            Some(choice) => return Some(choice),
            None => KeyError::choice(tag.name, word, choices),
        },
        Some(other) => {
            let found = unexpected(other).to_string();
            KeyError::new(tag.name, Problem::Value { found, allowed: allowed() })
        }
    };
    errors.push(error);
    None
}

/// Deserializes a struct from a table.
pub(super) struct Keys<'de, 'a> {
    table: &'de Table,
    keys: &'static [KeyInfo],
    /// Keys with wrong values.
    wrong: &'a [String],
}

impl<'de> Deserializer<'de> for Keys<'de, '_> {
    type Error = KeyError;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, KeyError> {
        let is_read =
            |key: &str| fields.contains(&key) && !self.wrong.iter().any(|wrong| wrong == key);
        let known = |name: &str| self.keys.iter().find(|key| key.name == name);
        let entries = self
            .table
            .iter()
            .filter(|(key, _)| is_read(key))
            .map(|(key, value)| (key.as_str(), Entry { value, key: known(key) }));
        visitor.visit_map(Entries { entries, current: None })
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, KeyError> {
        visitor.visit_map(entries(self.table))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf option unit
        unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

/// Entries of a table; errors in a value name its key.
struct Entries<'de, I> {
    entries: I,
    current: Option<(&'de str, Entry<'de>)>,
}

fn entries(table: &Table) -> Entries<'_, impl Iterator<Item = (&str, Entry<'_>)>> {
    let entry = |value| Entry { value, key: None };
    let entries = table.iter().map(move |(key, value)| (key.as_str(), entry(value)));
    Entries { entries, current: None }
}

impl<'de, I: Iterator<Item = (&'de str, Entry<'de>)>> MapAccess<'de> for Entries<'de, I> {
    type Error = KeyError;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, KeyError> {
        self.current = self.entries.next();
        let key = self.current.as_ref().map(|(key, _)| seed.deserialize(key.into_deserializer()));
        key.transpose()
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, KeyError> {
        let (key, entry) =
            self.current.take().ok_or_else(|| KeyError::custom("a value without a key"))?;
        seed.deserialize(entry).map_err(|error| error.within(key))
    }
}

/// A value; wrong types and numbers beyond their limits are reported as a [`KeyError`].
struct Entry<'de> {
    value: &'de Value,
    /// `None` below a key.
    key: Option<&'static KeyInfo>,
}

impl<'de> IntoDeserializer<'de, KeyError> for Entry<'de> {
    type Deserializer = Self;
    fn into_deserializer(self) -> Self {
        self
    }
}

impl<'de> Deserializer<'de> for Entry<'de> {
    type Error = KeyError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, KeyError> {
        let Self { value, key } = self;
        if let Some(key) = key.filter(|key| !key.limits.allow(value)) {
            let allowed = key.allowed().unwrap_or_default();
            return Err(KeyError::new("", Problem::Value { found: value.to_string(), allowed }));
        }
        match value {
            Value::String(value) => visitor.visit_str(value),
            Value::Integer(value) => visitor.visit_i64(*value),
            Value::Float(value) => visitor.visit_f64(*value),
            Value::Boolean(value) => visitor.visit_bool(*value),
            Value::Datetime(_) => Err(KeyError::invalid_type(unexpected(value), &visitor)),
            Value::Array(values) => {
                let entries = values.iter().map(|value| Entry { value, key });
                visitor.visit_seq(SeqDeserializer::new(entries))
            }
            Value::Table(table) => visitor.visit_map(entries(table)),
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
        match self.value {
            Value::String(word) => visitor.visit_enum(word.as_str().into_deserializer()),
            other => {
                let allowed: Vec<_> =
                    variants.iter().map(|variant| format!("{variant:?}")).collect();
                let (found, allowed) = (unexpected(other).to_string(), allowed.join(", "));
                Err(KeyError::new("", Problem::Value { found, allowed }))
            }
        }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf unit
        unit_struct newtype_struct seq tuple tuple_struct map struct identifier ignored_any
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

/// Declares an enum with a tag key that selects the variant: one line per variant, with the struct
/// of its keys. It serializes as the keys of that struct and the tag.
macro_rules! choices {
    ($(#[$meta:meta])* pub enum $Enum:ident by $tag:literal {
        $($(#[$doc:meta])* $name:literal => $Variant:ident($Keys:ty),)*
    }) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq)]
        pub enum $Enum { $($(#[$doc])* $Variant($Keys),)* }

        impl $Enum {
            /// The key that selects the variant.
            pub const TAG: &'static str = $tag;
            /// The name of each variant in a configuration.
            pub const NAMES: &'static [&'static str] = &[$($name),*];

            /// The name in a configuration.
            pub fn name(&self) -> &'static str {
                match self { $(Self::$Variant(_) => $name,)* }
            }

            pub(in crate::config) fn keys_of(
                name: &str,
                on_resume: $crate::config::OnResume,
            ) -> Vec<$crate::config::key::KeyInfo> {
                match name {
                    $($name => $crate::config::key::KeyInfo::of::<$Keys>(on_resume),)*
                    _ => vec![],
                }
            }

            pub(in crate::config) fn read_choice(
                reader: &mut $crate::config::keys::Reader<'_>,
            ) -> Option<Self> {
                match reader.choice {
                    $($name => reader.keys().map(Self::$Variant),)*
                    _ => None,
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
