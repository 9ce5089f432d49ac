//! Values of LiteLLM's config, each read as leniently as LiteLLM does.
//!
//! Called by the importer. Touches nothing.

use serde_json::Value;

/// A text, with LiteLLM's way of naming a variable as Weir's.
pub(super) fn text(value: Option<&Value>) -> Option<String> {
    let text = match value? {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => return None,
    };
    let variable = text.strip_prefix("os.environ/").map(|name| format!("${{{}}}", name.trim()));
    Some(variable.unwrap_or(text)).filter(|text| !text.is_empty())
}

pub(super) fn whole(value: Option<&Value>) -> Option<u64> {
    match value? {
        Value::Number(number) => number.as_u64(),
        Value::String(text) => text.parse().ok(),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    }
}

/// A time in seconds, whole or not, as Weir writes it.
pub(super) fn seconds(value: Option<&Value>) -> Option<String> {
    let text = text(value)?;
    let (whole, part) = text.split_once('.').unwrap_or((&text, ""));
    let seconds: u64 = whole.parse().ok()?;
    let millis: u64 = format!("{part:0<3}").get(..3)?.parse().ok()?;
    match (seconds, millis) {
        (0, 0) => None,
        (seconds, 0) => Some(format!("{seconds}s")),
        (seconds, millis) => Some(format!("{}ms", seconds.checked_mul(1000)?.checked_add(millis)?)),
    }
}

pub(super) fn list(value: Option<&Value>) -> &[Value] {
    value.and_then(Value::as_array).map_or(&[], Vec::as_slice)
}
