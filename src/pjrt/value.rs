//! Named values: client options, XLA options, and the attributes of plugins and devices.

use std::collections::BTreeMap;
use std::ffi::c_char;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::abi::*;

/// A value that PJRT attaches to a name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Value {
    /// Text.
    String(String),
    /// An integer.
    Int64(i64),
    /// A list of integers: versions, coordinates.
    Int64List(Vec<i64>),
    /// A single-precision float.
    Float(f32),
    /// A truth value.
    Bool(bool),
}

impl Value {
    /// `String`, `Int64`, `Int64List`, `Float` or `Bool`.
    pub fn kind(&self) -> &'static str {
        match self {
            Value::String(_) => "String",
            Value::Int64(_) => "Int64",
            Value::Int64List(_) => "Int64List",
            Value::Float(_) => "Float",
            Value::Bool(_) => "Bool",
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::String(value) => f.write_str(value),
            Value::Int64(value) => write!(f, "{value}"),
            Value::Int64List(value) => write!(f, "{value:?}"),
            Value::Float(value) => write!(f, "{value}"),
            Value::Bool(value) => write!(f, "{value}"),
        }
    }
}

/// The value of an XLA option.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum OverrideValue {
    /// Text, or the name of an enum's value.
    String(String),
    /// A truth value.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// A float.
    Double(f64),
}

/// The C form of a name and its value. It points into both and is valid while they live.
pub(super) fn named(name: &str, value: &Value) -> PJRT_NamedValue {
    let (r#type, string_value, value_size) = match value {
        Value::String(text) => (
            named_value::STRING,
            NamedValueUnion { string_value: text.as_ptr().cast::<c_char>() },
            text.len(),
        ),
        Value::Int64(number) => (named_value::INT64, NamedValueUnion { int64_value: *number }, 1),
        Value::Int64List(list) => (
            named_value::INT64_LIST,
            NamedValueUnion { int64_array_value: list.as_ptr() },
            list.len(),
        ),
        Value::Float(number) => (named_value::FLOAT, NamedValueUnion { float_value: *number }, 1),
        Value::Bool(truth) => (named_value::BOOL, NamedValueUnion { bool_value: *truth }, 1),
    };
    PJRT_NamedValue {
        name: name.as_ptr().cast(),
        name_size: name.len(),
        r#type,
        string_value,
        value_size,
        ..PJRT_NamedValue::new()
    }
}

/// Copies an array of named values, skipping those of an unknown type.
///
/// # Safety
/// `first` must be null or point to `count` named values.
pub(super) unsafe fn read_all(
    first: *const PJRT_NamedValue,
    count: usize,
) -> BTreeMap<String, Value> {
    let mut values = BTreeMap::new();
    // SAFETY: by this function's contract.
    for named in unsafe { slice(first, count) } {
        let (size, value) = (named.value_size, named.string_value);
        // SAFETY: `type` says which member of the union was written, `value_size` how many elements
        // its pointer has; the same holds for the name.
        unsafe {
            let value = match named.r#type {
                named_value::STRING => Value::String(string(value.string_value, size)),
                named_value::INT64 => Value::Int64(value.int64_value),
                named_value::INT64_LIST => {
                    Value::Int64List(slice(value.int64_array_value, size).to_vec())
                }
                named_value::FLOAT => Value::Float(value.float_value),
                named_value::BOOL => Value::Bool(value.bool_value),
                _ => continue,
            };
            values.insert(string(named.name, named.name_size), value);
        }
    }
    values
}

/// Copies a string of the plugin.
///
/// # Safety
/// `data` must be null or point to `size` readable bytes.
pub(super) unsafe fn string(data: *const c_char, size: usize) -> String {
    // SAFETY: by this function's contract.
    String::from_utf8_lossy(unsafe { slice(data.cast::<u8>(), size) }).into_owned()
}

/// An array of the plugin as a slice. For an empty array plugins give null, which a slice must not
/// be.
///
/// # Safety
/// `first` must be null or point to `count` values that live, unchanged, for `'a`.
pub(super) unsafe fn slice<'a, T>(first: *const T, count: usize) -> &'a [T] {
    if first.is_null() || count == 0 {
        return &[];
    }
    // SAFETY: by this function's contract.
    unsafe { std::slice::from_raw_parts(first, count) }
}

#[cfg(test)]
mod tests {
    use std::ptr;

    use super::*;

    #[test]
    fn null_is_an_array_without_elements() {
        // SAFETY: null is allowed.
        unsafe {
            assert_eq!(slice::<u64>(ptr::null(), 0), [0u64; 0]);
            assert_eq!(string(ptr::null(), 0), "");
            assert!(read_all(ptr::null(), 0).is_empty());
        }
    }
}
