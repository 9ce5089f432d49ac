//! The YAML text as a tree that remembers where each value stands.
//!
//! Called once per load. Reports what YAML itself forbids, and duplicate keys, which the parser lets pass.
//! Touches nothing else: what the values mean is for `shape` to say.

use super::finding::{Findings, Place};
use super::keypath::{KeyPath, Step};
use granit_parser::{Event, Parser, ScalarStyle, ScanError, Span, StrInput, options};
use std::collections::HashMap;

/// Far deeper than any section; keeps the recursion off the stack's end.
const MAX_DEPTH: usize = 48;
/// More than any honest file; an alias that doubles itself ends here.
const MAX_NODES: usize = 200_000;

/// One value and where it begins.
#[derive(Clone)]
pub(super) struct Node {
    pub(super) at: Place,
    pub(super) kind: Kind,
}

/// What YAML distinguishes; whether a scalar is a number is the schema's business.
#[derive(Clone)]
pub(super) enum Kind {
    Scalar { text: String, plain: bool },
    List(Vec<Node>),
    Map(Vec<Entry>),
}

/// One key of a mapping with its value.
#[derive(Clone)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) at: Place,
    pub(super) value: Node,
}

impl Node {
    /// Nothing, `~` or `null`.
    pub(super) fn is_null(&self) -> bool {
        match &self.kind {
            Kind::Scalar { text, plain: true } => matches!(text.as_str(), "" | "~" | "null" | "Null" | "NULL"),
            Kind::Scalar { plain: false, .. } | Kind::List(_) | Kind::Map(_) => false,
        }
    }

    /// How a message calls it.
    pub(super) fn noun(&self) -> &'static str {
        match &self.kind {
            Kind::Scalar { .. } if self.is_null() => "nothing",
            Kind::Scalar { .. } => "a single value",
            Kind::List(_) => "a list",
            Kind::Map(_) => "a section of keys",
        }
    }

    /// The value at a path, or the last one on the way to it.
    pub(super) fn nearest(&self, path: &KeyPath) -> &Self {
        let mut node = self;
        for next in path.steps() {
            match node.step(next) {
                Some(next) => node = next,
                None => break,
            }
        }
        node
    }

    /// Whether the file has a value at a path.
    pub(super) fn has(&self, path: &KeyPath) -> bool {
        path.steps().iter().try_fold(self, |node, next| node.step(next)).is_some()
    }

    /// The keys of a section.
    pub(super) fn keys(&self) -> impl Iterator<Item = &str> {
        let entries: &[Entry] = match &self.kind {
            Kind::Map(entries) => entries,
            Kind::Scalar { .. } | Kind::List(_) => &[],
        };
        entries.iter().map(|entry| entry.key.as_str())
    }

    fn step(&self, step: &Step) -> Option<&Self> {
        match (step, &self.kind) {
            (Step::Key(key), Kind::Map(entries)) => {
                entries.iter().find(|entry| entry.key == *key).map(|entry| &entry.value)
            }
            (Step::Item(at), Kind::List(items)) => items.get(*at),
            (Step::Key(_) | Step::Item(_), _) => None,
        }
    }

    fn size(&self) -> usize {
        1 + match &self.kind {
            Kind::Scalar { .. } => 0,
            Kind::List(items) => items.iter().map(Self::size).sum(),
            Kind::Map(entries) => entries.iter().map(|entry| entry.value.size()).sum(),
        }
    }
}

/// Reads the text; `None` when YAML's own grammar is broken, which is then reported.
pub(super) fn read(text: &str, findings: &mut Findings) -> Option<Node> {
    let options = options! { flow_nesting_limit: 64, block_nesting_limit: 64 };
    let mut reader = Reader {
        events: Parser::new_from_str_with_options(text, options),
        anchors: HashMap::new(),
        nodes: 0,
        findings,
    };
    match reader.document() {
        Ok(node) => Some(node),
        Err(Broken { at, message }) => {
            reader.findings.add(at, &KeyPath::root(), message);
            None
        }
    }
}

/// The text cannot be read any further.
struct Broken {
    at: Place,
    message: String,
}

impl Broken {
    fn new(at: Place, message: &str) -> Self {
        Self { at, message: message.to_owned() }
    }
}

impl From<ScanError> for Broken {
    fn from(error: ScanError) -> Self {
        let mark = error.marker();
        let at = Place { line: mark.line().max(1), column: mark.col().saturating_add(1) };
        Self { at, message: format!("this is not YAML: {}", error.info()) }
    }
}

struct Reader<'t, 'f> {
    events: Parser<'t, StrInput<'t>>,
    anchors: HashMap<usize, Node>,
    nodes: usize,
    findings: &'f mut Findings,
}

impl<'t> Reader<'t, '_> {
    fn next(&mut self) -> Result<(Event<'t>, Place), Broken> {
        match self.events.next_event() {
            Some(Ok((event, span))) => Ok((event, place(span))),
            Some(Err(error)) => Err(error.into()),
            None => Err(Broken::new(Place::START, "this is not YAML: the text ends too early")),
        }
    }

    fn document(&mut self) -> Result<Node, Broken> {
        let mut root = None;
        loop {
            let (event, at) = self.next()?;
            match event {
                Event::StreamEnd => break,
                Event::StreamStart | Event::DocumentEnd => {}
                Event::DocumentStart(..) if root.is_some() => {
                    return Err(Broken::new(at, "a second document begins; keep one and remove the `---`"));
                }
                Event::DocumentStart(..) => {
                    let first = self.next()?;
                    root = Some(self.node(first, &KeyPath::root(), 0)?);
                }
                _ => return Err(Broken::new(at, "this is not YAML: a value outside of the document")),
            }
        }
        root.ok_or_else(|| Broken::new(Place::START, "the file is empty; start from one of the files in conf/"))
    }

    fn node(&mut self, (event, at): (Event<'t>, Place), path: &KeyPath, depth: usize) -> Result<Node, Broken> {
        self.nodes += 1;
        if depth > MAX_DEPTH || self.nodes > MAX_NODES {
            return Err(Broken::new(at, "the file is nested too deeply or too large"));
        }
        let (anchor, tag, kind) = match event {
            Event::Alias(id) => return self.alias(id, at),
            Event::Scalar(text, style, anchor, tag) => {
                (anchor, tag, Kind::Scalar { text: text.into_owned(), plain: style == ScalarStyle::Plain })
            }
            Event::SequenceStart(_, anchor, tag) => (anchor, tag, Kind::List(self.list(path, depth)?)),
            Event::MappingStart(_, anchor, tag) => (anchor, tag, Kind::Map(self.map(path, depth)?)),
            _ => return Err(Broken::new(at, "this is not YAML: a value is missing")),
        };
        if tag.is_some() {
            self.findings.add(at, path, "YAML tags (`!…`) are not read; remove it".to_owned());
        }
        let node = Node { at, kind };
        if anchor != 0 {
            self.anchors.insert(anchor, node.clone());
        }
        Ok(node)
    }

    fn alias(&mut self, id: usize, at: Place) -> Result<Node, Broken> {
        let Some(node) = self.anchors.get(&id) else {
            return Err(Broken::new(at, "this alias stands inside the value it means; write the value out"));
        };
        self.nodes = self.nodes.saturating_add(node.size());
        if self.nodes > MAX_NODES {
            return Err(Broken::new(at, "the file is nested too deeply or too large"));
        }
        Ok(node.clone())
    }

    fn list(&mut self, path: &KeyPath, depth: usize) -> Result<Vec<Node>, Broken> {
        let mut items = Vec::new();
        loop {
            let next = self.next()?;
            if matches!(next.0, Event::SequenceEnd) {
                return Ok(items);
            }
            let path = path.item(items.len());
            items.push(self.node(next, &path, depth + 1)?);
        }
    }

    fn map(&mut self, path: &KeyPath, depth: usize) -> Result<Vec<Entry>, Broken> {
        let mut entries: Vec<Entry> = Vec::new();
        let mut first_lines: HashMap<String, usize> = HashMap::new();
        loop {
            let (event, at) = self.next()?;
            if matches!(event, Event::MappingEnd) {
                return Ok(entries);
            }
            let key = self.node((event, at), path, depth + 1)?;
            let Kind::Scalar { text: key, .. } = key.kind else {
                return Err(Broken::new(at, "a key must be a single word"));
            };
            let below = path.key(&key);
            let next = self.next()?;
            let mut value = self.node(next, &below, depth + 1)?;
            if value.is_null() {
                value.at = at; // the parser places a missing value anywhere between here and the next key
            }
            if let Some(line) = first_lines.get(&key) {
                let message = format!("this key is there twice, first at line {line}; remove one");
                self.findings.add(at, &below, message);
                continue;
            }
            first_lines.insert(key.clone(), at.line);
            entries.push(Entry { key, at, value });
        }
    }
}

fn place(span: Span) -> Place {
    Place { line: span.start.line().max(1), column: span.start.col().saturating_add(1) }
}
