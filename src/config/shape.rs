//! Compares the tree of the file with the schema: unknown and missing keys, wrong types, bad words.
//!
//! Called once per load, after `tree`, before `check`. Looks up `${NAME}` and `file:` on the way.
//! The outcome is the file as JSON, without what was refused, so that `check` can look at the rest.

use super::finding::Findings;
use super::keypath::{KeyPath, Step};
use super::secret::Outside;
use super::tree::{Entry, Kind, Node};
use super::word;
use serde_json::{Map, Value, json};
use std::collections::HashSet;
use std::fmt::Write as _;

/// Keys of the design that this version does not know yet: refused as such. `*` is a name, `[]` an index.
pub(super) const NOT_BUILT: &[&str] = &[];

/// Reads the whole tree. What is refused is missing from the outcome.
pub(super) fn read(root: &Node, schema: &Value, outside: &Outside<'_>, findings: &mut Findings) -> Value {
    let mut shape = Shape { schema, outside, findings };
    shape.value(root, schema, &KeyPath::root()).unwrap_or_else(|| json!({}))
}

struct Shape<'a> {
    schema: &'a Value,
    outside: &'a Outside<'a>,
    findings: &'a mut Findings,
}

impl<'a> Shape<'a> {
    fn value(&mut self, node: &Node, schema: &'a Value, path: &KeyPath) -> Option<Value> {
        let schema = self.resolve(schema);
        if node.is_null() {
            return self.refuse(node, path, "is empty; give it a value or remove the key");
        }
        match &node.kind {
            Kind::Map(entries) => match self.branch(schema, "object") {
                Some(branch) => {
                    let out = self.map(node, entries, branch, path);
                    // One form of several is only itself when it is whole.
                    (std::ptr::eq(branch, schema) || !self.findings.touch(path)).then_some(out)
                }
                None => self.wrong_kind(node, schema, path),
            },
            Kind::List(items) => match self.branch(schema, "array") {
                Some(schema) => self.list(node, items, schema, path),
                None => self.wrong_kind(node, schema, path),
            },
            Kind::Scalar { text, plain } => self.scalar(node, text, *plain, schema, path),
        }
    }

    fn resolve(&self, schema: &'a Value) -> &'a Value {
        let mut schema = schema;
        while let Some(reference) = schema.get("$ref").and_then(Value::as_str) {
            match reference.strip_prefix('#').and_then(|pointer| self.schema.pointer(pointer)) {
                Some(target) => schema = target,
                None => break,
            }
        }
        schema
    }

    /// The alternative of a schema that allows a type, itself if it has no alternatives.
    fn branch(&self, schema: &'a Value, kind: &str) -> Option<&'a Value> {
        self.branches(schema).into_iter().find(|branch| allows(branch, kind))
    }

    fn branches(&self, schema: &'a Value) -> Vec<&'a Value> {
        let alternatives = schema.get("anyOf").or_else(|| schema.get("oneOf")).and_then(Value::as_array);
        alternatives
            .map_or_else(|| vec![schema], |list| list.iter().flat_map(|one| self.branches(self.resolve(one))).collect())
    }

    fn map(&mut self, node: &Node, entries: &[Entry], schema: &'a Value, path: &KeyPath) -> Value {
        let empty = Map::new();
        let known = schema.get("properties").and_then(Value::as_object);
        let others = schema.get("additionalProperties").filter(|others| others.is_object());
        let mut out = Map::new();
        let mut meant = HashSet::new();
        for entry in entries {
            let below = path.key(&entry.key);
            let Some(schema) = known.and_then(|known| known.get(&entry.key)).or(others) else {
                meant.extend(self.unknown_key(entry, known.unwrap_or(&empty), &below));
                continue;
            };
            let expected_object = self.branches(self.resolve(schema)).iter().all(|branch| allows(branch, "object"));
            match self.value(&entry.value, schema, &below) {
                Some(value) => drop(out.insert(entry.key.clone(), value)),
                // A named thing stays named, so that what points to it is not blamed too.
                None if expected_object => drop(out.insert(entry.key.clone(), json!({}))),
                None => {}
            }
        }
        let least = schema.get("minProperties").and_then(Value::as_u64).unwrap_or(0);
        if (entries.len() as u64) < least {
            self.findings.add(node.at, path, "is empty; add at least one entry".to_owned());
        }
        for key in schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str) {
            if !entries.iter().any(|entry| entry.key == key) && !meant.contains(key) {
                let about = known.and_then(|known| known.get(key)).map(|schema| self.about(schema)).unwrap_or_default();
                self.findings.add(node.at, path, format!("\"{key}\" is missing; add it{about}"));
            }
        }
        Value::Object(out)
    }

    /// The first sentence of what a key is for.
    fn about(&self, schema: &'a Value) -> String {
        let text = schema.get("description").or_else(|| self.resolve(schema).get("description"));
        let text = text.and_then(Value::as_str).unwrap_or_default();
        let sentence = text.split(['.', '\n']).next().unwrap_or_default();
        if sentence.is_empty() { String::new() } else { format!(" ({})", lower_first(sentence)) }
    }

    /// Reports it; returns the key that was probably meant.
    fn unknown_key(&mut self, entry: &Entry, known: &Map<String, Value>, path: &KeyPath) -> Option<String> {
        if NOT_BUILT.contains(&pattern(path).as_str()) {
            self.findings.add(entry.at, path, "this key is not built yet; remove it".to_owned());
            return None;
        }
        let names: Vec<&str> = known.keys().map(String::as_str).collect();
        let guess = nearest(&entry.key, names.iter().copied());
        let message = match (guess, self.elsewhere(&entry.key)) {
            (Some(guess), _) => format!("no such key; did you mean \"{guess}\"?"),
            (None, Some(place)) => format!("no such key here; it belongs into {place}"),
            (None, None) => format!("no such key; use one of: {}", names.join(", ")),
        };
        self.findings.add(entry.at, path, message);
        guess.map(str::to_owned)
    }

    /// For a key that stands in the wrong section: the section that has it, if there is only one.
    fn elsewhere(&self, key: &str) -> Option<String> {
        let sections = self.schema.get("properties")?.as_object()?;
        if sections.contains_key(key) {
            return Some("the top of the file, without indentation".to_owned());
        }
        let mut having = sections.iter().filter(|(_, schema)| {
            self.resolve(schema).get("properties").and_then(Value::as_object).is_some_and(|keys| keys.contains_key(key))
        });
        let (section, _) = having.next()?;
        having.next().is_none().then(|| format!("\"{section}:\""))
    }

    /// `None` when an item of a list of words is bad; items that are sections stay, so that indices do.
    fn list(&mut self, node: &Node, items: &[Node], schema: &'a Value, path: &KeyPath) -> Option<Value> {
        let least = schema.get("minItems").and_then(Value::as_u64).unwrap_or(0);
        if (items.len() as u64) < least {
            return self.refuse(node, path, "is empty; add at least one entry");
        }
        let item_schema = schema.get("items")?;
        let sections = allows(self.resolve(item_schema), "object");
        let mut out = Vec::new();
        let mut whole = true;
        for (at, item) in items.iter().enumerate() {
            match self.value(item, item_schema, &path.item(at)) {
                Some(value) => out.push(value),
                None if sections => out.push(json!({})),
                None => whole = false,
            }
        }
        whole.then_some(Value::Array(out))
    }

    fn scalar(&mut self, node: &Node, text: &str, plain: bool, schema: &'a Value, path: &KeyPath) -> Option<Value> {
        let branches = self.branches(schema);
        let branch = branches.iter().copied().find(|branch| branch.get(word::KEYWORD).is_some());
        let secret = branch.and_then(|branch| branch.get(word::KEYWORD)).is_some_and(|name| name == "secret");
        let may_be_empty =
            branches.iter().any(|branch| branch.get(word::KEYWORD).is_some_and(|name| name == "secret_or_empty"));
        let expanded = match self.outside.expand(text) {
            Ok(empty) if may_be_empty && empty.is_empty() => Ok(empty),
            _ if secret || may_be_empty => self.outside.secret(text),
            expanded => expanded,
        };
        let expanded = match expanded {
            Ok(expanded) => expanded,
            Err(message) => return self.refuse(node, path, &message),
        };
        if let Some(name) = branch.and_then(|branch| branch.get(word::KEYWORD)).and_then(Value::as_str) {
            return match word::check(name, &expanded) {
                Ok(()) => Some(Value::String(expanded)),
                Err(wanted) => self.refuse(node, path, wanted),
            };
        }
        let words = words_of(&branches);
        if !words.is_empty() {
            return if words.contains(&expanded.as_str()) {
                Some(Value::String(expanded))
            } else {
                let guess = nearest(&expanded, words.iter().copied());
                let guess = guess.map(|guess| format!("; did you mean \"{guess}\"?")).unwrap_or_default();
                self.refuse(node, path, &format!("use one of: {}{guess}", forms(&branches).join(", ")))
            };
        }
        let plain = plain || text != expanded;
        if branches.iter().any(|branch| allows(branch, "boolean")) {
            return match (plain, expanded.as_str()) {
                (true, "true") => Some(Value::Bool(true)),
                (true, "false") => Some(Value::Bool(false)),
                _ => self.refuse(node, path, "write true or false, without quotes"),
            };
        }
        match branches.iter().copied().find(|branch| allows(branch, "integer")) {
            Some(branch) => self.integer(node, &expanded, plain, branch, path),
            None => self.wrong_kind(node, schema, path),
        }
    }

    fn integer(&mut self, node: &Node, text: &str, plain: bool, schema: &Value, path: &KeyPath) -> Option<Value> {
        let bound = |name, otherwise| schema.get(name).and_then(Value::as_u64).unwrap_or(otherwise);
        let least = bound("minimum", 0);
        let most = match schema.get("format").and_then(Value::as_str) {
            Some("uint32") => bound("maximum", u64::from(u32::MAX)),
            _ => bound("maximum", u64::MAX),
        };
        let digits = plain && !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        match text.parse::<u64>() {
            Ok(number) if digits && (least..=most).contains(&number) => Some(json!(number)),
            _ if most < u64::from(u32::MAX) => {
                self.refuse(node, path, &format!("write a whole number from {least} to {most}"))
            }
            _ => self.refuse(node, path, &format!("write a whole number from {least}")),
        }
    }

    fn wrong_kind(&mut self, node: &Node, schema: &'a Value, path: &KeyPath) -> Option<Value> {
        let branches = self.branches(schema);
        let wanted = forms(&branches);
        self.refuse(node, path, &format!("this is {}; write {}", node.noun(), wanted.join(" or ")))
    }

    fn refuse(&mut self, node: &Node, path: &KeyPath, message: &str) -> Option<Value> {
        self.findings.add(node.at, path, message.to_owned());
        None
    }
}

fn allows(schema: &Value, kind: &str) -> bool {
    match schema.get("type") {
        Some(Value::String(one)) => one == kind,
        Some(Value::Array(several)) => several.iter().any(|one| one == kind),
        _ => false,
    }
}

/// The words of an enum.
fn words_of<'s>(branches: &[&'s Value]) -> Vec<&'s str> {
    let mut words = Vec::new();
    for branch in branches {
        words.extend(branch.get("const").and_then(Value::as_str));
        words.extend(branch.get("enum").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str));
    }
    words
}

/// What may be written there, for a message.
fn forms(branches: &[&Value]) -> Vec<String> {
    let mut forms: Vec<String> = words_of(branches).into_iter().map(str::to_owned).collect();
    for branch in branches.iter().filter(|branch| branch.get("const").is_none() && branch.get("enum").is_none()) {
        let form = if let Some(name) = branch.get(word::KEYWORD).and_then(Value::as_str) {
            format!("a single value ({})", name.replace('_', " "))
        } else if allows(branch, "object") {
            let keys = branch.get("properties").and_then(Value::as_object);
            let mut form = "a section".to_owned();
            if let Some(keys) = keys.filter(|keys| !keys.is_empty()) {
                let keys: Vec<&str> = keys.keys().map(String::as_str).collect();
                let _ = write!(form, " with {}", keys.join(", "));
            }
            form
        } else if allows(branch, "array") {
            "a list".to_owned()
        } else if allows(branch, "boolean") {
            "true or false".to_owned()
        } else if allows(branch, "integer") {
            "a whole number".to_owned()
        } else {
            "a text".to_owned()
        };
        forms.push(form);
    }
    forms
}

/// The name that was probably meant, if one is near.
pub(super) fn nearest<'n>(given: &str, names: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    /// Below it a suggestion reads as a joke.
    const LEAST: f64 = 0.75;
    if given.len() > 100 {
        return None; // the comparison takes the product of the lengths
    }
    let likeness = |name: &str| {
        let given = given.to_lowercase().replace('-', "_");
        let name = name.to_lowercase().replace('-', "_");
        strsim::normalized_damerau_levenshtein(&given, &name).max(strsim::jaro(&given, &name) - 0.05)
    };
    names
        .map(|name| (likeness(name), name))
        .filter(|(likeness, _)| *likeness >= LEAST)
        .max_by(|(a, _), (b, _)| a.total_cmp(b))
        .map(|(_, name)| name)
}

/// The path in the words of [`NOT_BUILT`].
fn pattern(path: &KeyPath) -> String {
    let mut out = String::new();
    let mut named = false;
    for (at, step) in path.steps().iter().enumerate() {
        match step {
            Step::Item(_) => out.push_str("[]"),
            Step::Key(key) => {
                if at > 0 {
                    out.push('.');
                }
                out.push_str(if named { "*" } else { key });
                named = at == 0 && key == "providers";
            }
        }
    }
    out
}

fn lower_first(sentence: &str) -> String {
    let mut chars = sentence.chars();
    chars.next().map(|first| first.to_lowercase().chain(chars).collect()).unwrap_or_default()
}
