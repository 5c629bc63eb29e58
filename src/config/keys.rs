//! Reading sections. The key names come from serde, so that the reader, `--set` and the suggestions
//! know a field as soon as it is in its struct.

use serde::de::value::SeqDeserializer;
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, Error as _, IntoDeserializer, MapAccess,
    Unexpected, Visitor,
};
use serde::forward_to_deserialize_any;
use toml::{Table, Value};

use super::error::{COUNT, KeyError, KeyErrors, Problem, Range, allowed_in};

/// Alternative keys for the same thing: either those on the left or those on the right.
pub(super) type Exclusive = (&'static [&'static str], &'static [&'static str]);

/// One `[section]` of the file.
pub(super) trait Section: Sized {
    /// The section's name.
    const NAME: &'static str;
    /// The key that selects one of [`Self::CHOICES`], in sections that have one.
    const TAG: Option<&'static str> = None;
    /// The values of the tag.
    const CHOICES: &'static [&'static str] = &[];
    /// Pairs of which only one side may be set.
    const EXCLUSIVE: &'static [Exclusive] = &[];

    /// The keys for a choice, without the tag.
    fn keys(choice: &str) -> Vec<&'static str>;

    /// The range of an integer, or of each one in a list, under a key; `None` if all from 0 on are
    /// allowed.
    fn range(_choice: &str, _key: &str) -> Option<Range> {
        None
    }

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
    range: fn(&str, &str) -> Option<Range>,
}

impl Reader<'_> {
    /// The fields of `T`; other keys are ignored.
    ///
    /// serde stops at the first error. So a wrong value is reported and left out, and the rest is
    /// read again; if it has no default, a substitute takes its place.
    pub fn keys<T: DeserializeOwned>(&mut self) -> Option<T> {
        self.keys_by(|keys| T::deserialize(keys))
    }

    /// [`Self::keys`] of a type that is selected at run time.
    pub fn keys_by<T>(
        &mut self,
        deserialize: impl Fn(Keys<'_, '_>) -> Result<T, KeyError>,
    ) -> Option<T> {
        let (mut left_out, mut stand_ins) = (vec![], vec![]);
        loop {
            let range = |key: &str| (self.range)(self.choice, key);
            let keys = Keys {
                table: self.table,
                range: &range,
                left_out: &left_out,
                stand_ins: &stand_ins,
            };
            let mut error = match deserialize(keys) {
                Ok(fields) => return Some(fields),
                Err(error) => error,
            };
            let key = error.key.split('.').next().unwrap_or_default().to_owned();
            match (&mut error.problem, range(&key)) {
                (Problem::Value { allowed, .. }, Some(range)) => {
                    *allowed = allowed.replace(COUNT, &allowed_in(&range));
                }
                (Problem::Missing { allowed }, Some(range)) => *allowed = allowed_in(&range),
                _ => {}
            }
            self.errors.push(error);
            let is_missing = left_out.contains(&key) || !self.table.contains_key(&key);
            match is_missing {
                false => left_out.push(key),
                true if key.is_empty() || stand_ins.contains(&key) => return None,
                true => stand_ins.push(key),
            }
        }
    }
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

impl SectionInfo {
    /// The keys for all choices, and the tag.
    pub fn all_keys(&self) -> Vec<&'static str> {
        let choices = if self.choices.is_empty() { &[""] } else { self.choices };
        let keys = choices.iter().flat_map(|choice| (self.keys)(choice));
        let mut known = vec![];
        for key in self.tag.into_iter().chain(keys) {
            if !known.contains(&key) {
                known.push(key);
            }
        }
        known
    }
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
    let mut reader = Reader { choice: "", errors: KeyErrors::default(), table, range: S::range };
    let section = read_table::<S>(&mut reader);
    errors.extend_from(S::NAME, reader.errors);
    section
}

fn read_table<S: Section>(reader: &mut Reader<'_>) -> Option<S> {
    let Reader { table, errors, .. } = reader;
    let choice = match S::TAG {
        None => Some(""),
        Some(tag) => chosen(tag, S::CHOICES, table, errors),
    };
    // Without a choice, the keys of all choices are known.
    let mut known = vec![];
    for key in choice
        .map_or(S::CHOICES, |_| &[""])
        .iter()
        .flat_map(|other| S::keys(choice.unwrap_or(other)))
    {
        if !known.contains(&key) {
            known.push(key);
        }
    }
    known.extend(S::TAG);
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
    S::read(reader)
}

fn chosen(
    tag: &str,
    choices: &'static [&'static str],
    table: &Table,
    errors: &mut KeyErrors,
) -> Option<&'static str> {
    let allowed = || choices.iter().map(|c| format!("{c:?}")).collect::<Vec<_>>().join(", ");
    let error = match table.get(tag) {
        None => KeyError::missing(tag, &allowed()),
        Some(Value::String(word)) => match choices.iter().find(|choice| *choice == word) {
            Some(choice) => return Some(choice),
            None => KeyError::choice(tag, word, choices),
        },
        Some(other) => {
            let found = unexpected(other).to_string();
            KeyError::new(tag, Problem::Value { found, allowed: allowed() })
        }
    };
    errors.push(error);
    None
}

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

/// Deserializes a struct from a table.
pub(super) struct Keys<'de, 'a> {
    table: &'de Table,
    range: &'a dyn Fn(&str) -> Option<Range>,
    /// Keys with wrong values.
    left_out: &'a [String],
    /// Keys that need a substitute.
    stand_ins: &'a [String],
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
            |key: &str| fields.contains(&key) && !self.left_out.iter().any(|left| left == key);
        let entries = self.table.iter().filter(|(key, _)| is_read(key));
        let entries =
            entries.map(|(key, value)| (key.as_str(), Entry::new(value, (self.range)(key))));
        let stand_ins =
            fields.iter().filter(|field| self.stand_ins.iter().any(|key| key == **field));
        let stand_ins = stand_ins.map(|field| (*field, Entry { value: None, range: None }));
        visitor.visit_map(Entries { entries: entries.chain(stand_ins), current: None })
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
    let entries = table.iter().map(|(key, value)| (key.as_str(), Entry::new(value, None)));
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

/// A value; wrong types and integers out of range are reported as a [`KeyError`].
struct Entry<'de> {
    /// `None` for a substitute.
    value: Option<&'de Value>,
    range: Option<Range>,
}

impl<'de> Entry<'de> {
    fn new(value: &'de Value, range: Option<Range>) -> Self {
        Self { value: Some(value), range }
    }
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
        let Some(value) = self.value else { return visitor.visit_unit() };
        match value {
            Value::String(value) => visitor.visit_str(value),
            Value::Integer(value)
                if self.range.as_ref().is_some_and(|range| !range.contains(value)) =>
            {
                let KeyError { key, problem } =
                    KeyError::invalid_value(Unexpected::Signed(*value), &visitor);
                let problem = match problem {
                    Problem::Value { allowed, .. } => {
                        Problem::Value { found: value.to_string(), allowed }
                    }
                    other => other,
                };
                Err(KeyError { key, problem })
            }
            Value::Integer(value) => visitor.visit_i64(*value),
            Value::Float(value) => visitor.visit_f64(*value),
            Value::Boolean(value) => visitor.visit_bool(*value),
            Value::Datetime(_) => Err(KeyError::invalid_type(unexpected(value), &visitor)),
            Value::Array(values) => {
                let entries = values.iter().map(|value| Entry::new(value, self.range.clone()));
                visitor.visit_seq(SeqDeserializer::new(entries))
            }
            Value::Table(table) => visitor.visit_map(entries(table)),
        }
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, KeyError> {
        match self.value {
            None => visitor.visit_str(""),
            Some(_) => self.deserialize_any(visitor),
        }
    }

    fn deserialize_u64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, KeyError> {
        match self.value {
            None => visitor.visit_u64(1),
            Some(_) => self.deserialize_any(visitor),
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
            None => visitor.visit_unit(),
            Some(Value::String(word)) => visitor.visit_enum(word.as_str().into_deserializer()),
            Some(other) => {
                let allowed: Vec<_> =
                    variants.iter().map(|variant| format!("{variant:?}")).collect();
                let (found, allowed) = (unexpected(other).to_string(), allowed.join(", "));
                Err(KeyError::new("", Problem::Value { found, allowed }))
            }
        }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 u8 u16 u32 f32 f64 char str bytes byte_buf unit unit_struct
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

/// Declares an enum whose variant is selected by a tag key: one line per variant, with the struct
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

            pub(in crate::config) fn keys_of(name: &str) -> Vec<&'static str> {
                match name {
                    $($name => $crate::config::keys::field_names::<$Keys>().to_vec(),)*
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
