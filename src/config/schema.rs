//! The JSON Schema of the file, made from the structs that read it.
//!
//! Called by `weir schema` and by each load. Touches nothing.

use super::raw;
use schemars::transform::{RecursiveTransform, Transform};
use schemars::{Schema, generate::SchemaSettings};
use serde_json::Value;

/// The JSON Schema (2020-12) of the file, for editors, `weir schema` and the shape check itself.
#[must_use]
pub fn schema() -> Value {
    let mut schema = SchemaSettings::draft2020_12().into_generator().into_root_schema_for::<raw::File>();
    RecursiveTransform(without_null).transform(&mut schema);
    schema.to_value()
}

/// The same for the entries of the key store.
pub(super) fn stored_keys() -> Value {
    let mut schema = SchemaSettings::draft2020_12().into_generator().into_root_schema_for::<raw::StoredKeys>();
    RecursiveTransform(without_null).transform(&mut schema);
    schema.to_value()
}

/// A key that may be left out must not be null: a section whose content lost its indentation is a mistake (B314).
fn without_null(schema: &mut Schema) {
    let Some(members) = schema.as_object_mut() else { return };
    if members.get("default").is_some_and(Value::is_null) {
        members.remove("default");
    }
    if let Some(Value::Array(types)) = members.get_mut("type") {
        types.retain(|one| one != "null");
        if let [one] = types.as_slice() {
            let one = one.clone();
            members.insert("type".to_owned(), one);
        }
    }
    if let Some(Value::Array(alternatives)) = members.get_mut("anyOf") {
        alternatives.retain(|one| one.get("type").is_none_or(|kind| kind != "null"));
        if let [Value::Object(only)] = alternatives.as_slice() {
            let only = only.clone();
            members.remove("anyOf");
            for (name, value) in only {
                members.entry(name).or_insert(value);
            }
        }
    }
}
