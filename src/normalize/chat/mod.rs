//! Chat Completions: what a chunk, or a whole reply, has to become (N1, N2, N4).
//!
//! Called by the normaliser. Touches only its own fields.

mod calls;
mod choice;
mod delta;
mod identity;

use super::edit::{Edits, Members};
use super::repair::{Level, Repair, Repairs};
use super::{Asked, Settings};
use crate::json::{Kind, Malformed, Text, Walker};
use calls::Calls;
use identity::{Found, Identity};
use std::ops::Range;

type Result<T> = std::result::Result<T, Malformed>;

/// Longer beginnings are not remembered: the model stands behind the text then.
const MAX_BEGIN: usize = 512;

/// What becomes of a chunk.
#[derive(Debug)]
pub(super) enum Fate<'t> {
    /// It stays, with these changes.
    Stays(Edits<'t>),
    /// It goes.
    Goes,
    /// It is the usage chunk: with these changes it waits for the end (N4).
    Usage(Edits<'t>),
}

/// Whether deltas or a whole message are in a choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Chunk,
    Reply,
}

/// One answer in this protocol.
#[derive(Debug)]
pub(super) struct Chat {
    settings: Settings,
    asked_usage: bool,
    /// `chat.completion.chunk`, or what else is streamed here (A10).
    object: &'static str,
    /// The client's name of the model, as JSON.
    model: Vec<u8>,
    fallback: Identity,
    identity: Option<Identity>,
    /// N1 alone: how the last chunk began, up to its model, and where that stands. Chunks of one
    /// answer differ only behind it, so that most need no walk.
    begins: Option<(Vec<u8>, Range<usize>)>,
    usage: Option<HeldUsage>,
    calls: Calls,
    /// Choices that have begun, a bit each.
    roles: u64,
    pub(super) repairs: Repairs,
}

/// N4: the last usage, as JSON, and whether it came in a chunk of its own.
#[derive(Debug)]
struct HeldUsage {
    place: Place,
    usage: Vec<u8>,
    event: Option<Vec<u8>>,
}

/// Where a chunk had its usage; a better place is not overruled by a worse one (U3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Vendor,
    Choice,
    Top,
}

/// A chunk while it is walked.
struct Chunk<'t> {
    form: Form,
    text: &'t [u8],
    members: Members<'t>,
    id: Option<Range<usize>>,
    object: Option<Range<usize>>,
    created: Option<Range<usize>>,
    model: Option<Range<usize>>,
    top_usage: Option<Range<usize>>,
    usage: Option<(Place, &'t [u8])>,
    choices: Option<(Kind, Range<usize>)>,
    count: u64,
    filter: bool,
    error: bool,
}

impl Chat {
    pub(super) fn new(settings: Settings, asked: &Asked<'_>) -> Self {
        let model = quoted(asked.model);
        let id = quoted(&format!("chatcmpl-{}", asked.request_id));
        let fallback = Identity { id, created: asked.created_at.to_string().into(), model: model.clone() };
        let completions = asked.endpoint == crate::protocol::Endpoint::Completions;
        Self {
            settings,
            asked_usage: asked.include_usage,
            object: if completions { "\"text_completion\"" } else { "\"chat.completion.chunk\"" },
            model,
            fallback,
            identity: None,
            begins: None,
            usage: None,
            calls: Calls::default(),
            roles: 0,
            repairs: Repairs::default(),
        }
    }

    /// Whether a chunk may wait until the next one tells the answer's id: it has none itself, none
    /// is known, and the client needs one.
    pub(super) fn waits_for_identity(&self, text: &[u8]) -> bool {
        self.settings.normalize && self.identity.is_none() && Found::read(text).is_none_or(|found| found.id.is_none())
    }

    /// Reads one chunk.
    pub(super) fn chunk<'t>(&mut self, text: &'t [u8]) -> Result<Fate<'t>> {
        if let Some((_, model)) = self.begins.as_ref().filter(|(begins, _)| text.starts_with(begins)) {
            self.repairs.note(Repair::Model);
            return Ok(Fate::Stays(Edits::one(model.clone(), self.model.clone())));
        }
        let mut walker = Walker::new(text);
        if walker.peek()? != Kind::Object {
            return Ok(self.no_object());
        }
        self.settle(text);
        let mut chunk = Chunk::new(Form::Chunk, text, &mut walker)?;
        let mut edits = Edits::default();
        walker.object(|walker, name| self.member(&mut chunk, &mut edits, walker, name))?;
        walker.end()?;
        self.remember(&chunk);
        Ok(self.chunk_fate(chunk, edits))
    }

    /// Reads a whole reply.
    pub(super) fn reply<'t>(&mut self, text: &'t [u8]) -> Result<Edits<'t>> {
        let mut walker = Walker::new(text);
        let mut edits = Edits::default();
        if walker.peek()? != Kind::Object {
            return Ok(edits);
        }
        self.object = "\"chat.completion\"";
        self.settle(text);
        let mut chunk = Chunk::new(Form::Reply, text, &mut walker)?;
        walker.object(|walker, name| self.member(&mut chunk, &mut edits, walker, name))?;
        walker.end()?;
        if self.settings.normalize {
            self.usage_to_top(&mut chunk, &mut edits);
        }
        self.identify(&mut chunk, &mut edits);
        Ok(edits)
    }

    fn remember(&mut self, chunk: &Chunk<'_>) {
        if self.settings.normalize || self.settings.usage_chunk_strict {
            return;
        }
        let begins = |model: Range<usize>| Some((chunk.text.get(..model.end)?.to_vec(), model));
        let changes = |model: &Range<usize>| chunk.text.get(model.clone()) != Some(&self.model);
        self.begins = chunk.model.clone().filter(changes).filter(|model| model.end <= MAX_BEGIN).and_then(begins);
    }

    /// The usage chunk, when it is time for it (N4).
    pub(super) fn usage_chunk(&mut self) -> Option<Vec<u8>> {
        let HeldUsage { usage, event, .. } = self.usage.take()?;
        if event.is_some() {
            return event;
        }
        let Identity { id, created, model } = self.identity.as_ref().unwrap_or(&self.fallback);
        let model = if self.settings.rewrite_model { &self.model } else { model };
        let members: [(&str, &[u8]); 6] = [
            ("{\"id\":", id),
            (",\"object\":", self.object.as_bytes()),
            (",\"created\":", created),
            (",\"model\":", model),
            (",\"choices\":[],\"usage\":", &usage),
            ("}", b""),
        ];
        let mut event = b"data: ".to_vec();
        for (name, value) in members {
            event.extend_from_slice(name.as_bytes());
            event.extend_from_slice(value);
        }
        event.extend_from_slice(b"\n\n");
        Some(event)
    }

    /// The event that brought the usage.
    pub(super) fn hold(&mut self, event: Vec<u8>) {
        if let Some(held) = &mut self.usage {
            held.event = Some(event);
        }
    }

    /// `null` and the like say nothing (B70).
    fn no_object(&mut self) -> Fate<'static> {
        if self.settings.normalize {
            self.repairs.note(Repair::Empty);
            return Fate::Goes;
        }
        Fate::Stays(Edits::default())
    }

    /// The first chunk decides what all are called.
    pub(super) fn settle(&mut self, text: &[u8]) {
        let needed = self.settings.normalize || (self.settings.usage_chunk_strict && self.asked_usage);
        if !needed || self.identity.is_some() {
            return;
        }
        let Some(found) = Found::read(text) else { return };
        if found.id.is_some() || self.settings.normalize {
            self.identity = Some(found.or(&self.fallback));
        }
    }

    fn member<'t>(
        &mut self,
        chunk: &mut Chunk<'t>,
        edits: &mut Edits<'t>,
        walker: &mut Walker<'t>,
        name: Text<'t>,
    ) -> Result<()> {
        let kind = walker.peek()?;
        let start = walker.at();
        let Settings { normalize, usage_chunk_strict: strict, .. } = self.settings;
        let mut goes = false;
        match &*name.bytes() {
            b"choices" if kind == Kind::Array => {
                walker.array(|walker| {
                    self.choice(chunk, edits, walker)?;
                    chunk.count += 1;
                    Ok(())
                })?;
                chunk.choices = Some((kind, start..walker.at()));
            }
            b"choices" => {
                walker.skip()?;
                chunk.choices = Some((kind, start..walker.at()));
            }
            b"id" => chunk.id = passed(walker)?,
            b"object" => chunk.object = passed(walker)?,
            b"created" => chunk.created = passed(walker)?,
            b"model" => chunk.model = passed(walker)?,
            b"usage" => {
                let raw = walker.skip()?;
                chunk.top_usage = Some(start..walker.at());
                chunk.saw(Place::Top, raw);
                goes = strict && !self.asked_usage && chunk.form == Form::Chunk;
                if goes {
                    self.repairs.note(Repair::UsageChunk);
                }
            }
            b"x_groq" => {
                goes = normalize && self.repairs.private(Level::Top, b"x_groq");
                self.vendor(chunk, edits, walker, !goes)?;
            }
            b"error" => chunk.error |= walker.filled()?,
            b"prompt_filter_results"
            | b"content_filter_results"
            | b"content_filter_result"
            | b"prompt_annotations"
            | b"moderation" => chunk.filter |= walker.filled()?,
            other => {
                walker.skip()?;
                goes = normalize && self.repairs.private(Level::Top, other);
            }
        }
        chunk.members.pass(goes, edits, walker.at());
        Ok(())
    }

    /// A vendor's own member that may hold usage; `stays`: only its usage may have to go.
    fn vendor<'t>(
        &mut self,
        chunk: &mut Chunk<'t>,
        edits: &mut Edits<'t>,
        walker: &mut Walker<'t>,
        stays: bool,
    ) -> Result<()> {
        let strict = self.settings.usage_chunk_strict && chunk.form == Form::Chunk;
        let mut members = Members::of(chunk.text, walker)?;
        walker.object(|walker, name| {
            let raw = walker.skip()?;
            let is_usage = name.is("usage");
            if is_usage {
                chunk.saw(Place::Vendor, raw);
            }
            if stays && strict && is_usage {
                self.repairs.note(Repair::UsageChunk);
                members.cut(edits, walker.at());
            } else if stays {
                members.keep(edits, walker.at());
            }
            Ok(())
        })?;
        Ok(())
    }

    fn chunk_fate<'t>(&mut self, mut chunk: Chunk<'t>, mut edits: Edits<'t>) -> Fate<'t> {
        let Settings { normalize, usage_chunk_strict: strict, .. } = self.settings;
        let bare = chunk.count == 0 && !chunk.filter && !chunk.error;
        let usage_only = bare && chunk.usage.is_some();
        if usage_only && !self.asked_usage && (normalize || strict) {
            return Fate::Goes;
        }
        if normalize && bare && chunk.usage.is_none() {
            self.repairs.note(Repair::Empty);
            return Fate::Goes;
        }
        if strict && self.asked_usage {
            self.hold_usage(&chunk);
            if !usage_only && let Some(at) = chunk.top_usage.clone().filter(|_| chunk.has_top_usage()) {
                self.repairs.note(Repair::UsageChunk);
                edits.replace(at, &b"null"[..]);
            }
        }
        if normalize && (!strict || usage_only) {
            self.usage_to_top(&mut chunk, &mut edits);
        }
        if normalize {
            self.choices(&mut chunk, &mut edits);
        }
        self.identify(&mut chunk, &mut edits);
        if strict && usage_only { Fate::Usage(edits) } else { Fate::Stays(edits) }
    }

    fn hold_usage(&mut self, chunk: &Chunk<'_>) {
        let Some((place, usage)) = chunk.usage else { return };
        if self.usage.as_ref().is_none_or(|held| place >= held.place) {
            self.usage = Some(HeldUsage { place, usage: usage.to_vec(), event: None });
        }
    }

    fn usage_to_top<'t>(&mut self, chunk: &mut Chunk<'t>, edits: &mut Edits<'t>) {
        let Some((Place::Vendor | Place::Choice, usage)) = chunk.usage else { return };
        self.repairs.note(Repair::Usage);
        match chunk.top_usage.clone() {
            Some(null) => edits.replace(null, usage),
            None => chunk.members.add(edits, &[b"\"usage\":", usage].concat()),
        }
    }

    fn choices<'t>(&mut self, chunk: &mut Chunk<'t>, edits: &mut Edits<'t>) {
        match chunk.choices.clone() {
            Some((Kind::Array, _)) => return,
            Some((_, at)) => edits.replace(at, &b"[]"[..]),
            None => chunk.members.add(edits, b"\"choices\":[]"),
        }
        self.repairs.note(Repair::Choices);
    }

    /// `id`, `object`, `created` and `model` as they have to be.
    fn identify<'t>(&mut self, chunk: &mut Chunk<'t>, edits: &mut Edits<'t>) {
        let identity = self.identity.as_ref().filter(|_| self.settings.normalize);
        let rewritten = self.settings.rewrite_model.then_some(&self.model[..]);
        let wanted = [
            ("id", chunk.id.clone(), identity.map(|known| &known.id[..]), Repair::Unstable),
            ("object", chunk.object.clone(), identity.map(|_| self.object.as_bytes()), Repair::Object),
            ("created", chunk.created.clone(), identity.map(|known| &known.created[..]), Repair::Unstable),
            (
                "model",
                chunk.model.clone(),
                rewritten.or_else(|| identity.map(|known| &known.model[..])),
                if rewritten.is_some() { Repair::Model } else { Repair::Unstable },
            ),
        ];
        for (name, at, wanted, repair) in wanted {
            let Some(wanted) = wanted else { continue };
            let found = at.clone().and_then(|at| chunk.text.get(at));
            if found == Some(wanted) {
                continue;
            }
            let empty = found.is_none_or(|found| matches!(found, b"\"\"" | b"null" | b"0"));
            let repair = if empty && repair == Repair::Unstable { Repair::Identity } else { repair };
            match at {
                Some(at) => edits.replace(at, wanted.to_vec()),
                None if identity.is_none() => continue,
                None => chunk.members.add(edits, &[b"\"", name.as_bytes(), b"\":", wanted].concat()),
            }
            self.repairs.note(repair);
        }
    }
}

impl<'t> Chunk<'t> {
    fn new(form: Form, text: &'t [u8], walker: &mut Walker<'t>) -> Result<Self> {
        Ok(Self {
            form,
            text,
            members: Members::of(text, walker)?,
            id: None,
            object: None,
            created: None,
            model: None,
            top_usage: None,
            usage: None,
            choices: None,
            count: 0,
            filter: false,
            error: false,
        })
    }

    fn saw(&mut self, place: Place, usage: &'t [u8]) {
        if usage.first() == Some(&b'{') && self.usage.is_none_or(|(other, _)| place >= other) {
            self.usage = Some((place, usage));
        }
    }

    const fn has_top_usage(&self) -> bool {
        matches!(self.usage, Some((Place::Top, _)))
    }
}

fn passed(walker: &mut Walker<'_>) -> Result<Option<Range<usize>>> {
    walker.peek()?;
    let start = walker.at();
    walker.skip()?;
    Ok(Some(start..walker.at()))
}

/// A text as JSON.
pub(super) fn quoted(text: &str) -> Vec<u8> {
    serde_json::Value::from(text).to_string().into_bytes()
}
