//! Chat Completions: what a chunk, or a whole reply, has to become (N1, N2, N4).
//!
//! Called by the normaliser. Touches only its own fields.

use super::delta::Delta;
use super::edit::{Edits, Members};
use super::repair::{Level, Repair, Repairs};
use super::{Asked, Settings};
use crate::json::{Kind, Malformed, Text, Walker};
use std::ops::Range;

type Result<T> = std::result::Result<T, Malformed>;

/// Tool calls of one answer whose places are remembered; past it they share one.
const MAX_CALLS: usize = 128;

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
    usage: Option<HeldUsage>,
    calls: Vec<Call>,
    pub(super) repairs: Repairs,
}

/// What is the same in all chunks, as JSON.
#[derive(Clone, Debug)]
struct Identity {
    id: Vec<u8>,
    created: Vec<u8>,
    model: Vec<u8>,
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

/// A tool call by the number that it was given.
#[derive(Debug)]
struct Call {
    choice: u64,
    id: Vec<u8>,
    index: u64,
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
            usage: None,
            calls: Vec::new(),
            repairs: Repairs::default(),
        }
    }

    /// Whether a chunk may wait until the next one tells the answer's id: it has none itself, none
    /// is known, and the client needs one.
    pub(super) fn waits_for_identity(&self, text: &[u8]) -> bool {
        self.settings.normalize && self.identity.is_none() && Identity::read(text).is_none_or(|found| found.0.is_none())
    }

    /// Reads one chunk.
    pub(super) fn chunk<'t>(&mut self, text: &'t [u8]) -> Result<Fate<'t>> {
        let mut walker = Walker::new(text);
        if walker.peek()? != Kind::Object {
            return Ok(self.no_object());
        }
        self.settle(text);
        let mut chunk = Chunk::new(Form::Chunk, text, &mut walker)?;
        let mut edits = Edits::default();
        walker.object(|walker, name| self.member(&mut chunk, &mut edits, walker, name))?;
        walker.end()?;
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
        let Some((id, created, model)) = Identity::read(text) else { return };
        if id.is_none() && !self.settings.normalize {
            return;
        }
        let fallback = self.fallback.clone();
        self.identity = Some(Identity {
            id: id.map_or(fallback.id, <[u8]>::to_vec),
            created: created.map_or(fallback.created, <[u8]>::to_vec),
            model: model.map_or(fallback.model, <[u8]>::to_vec),
        });
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
        let end = walker.at();
        if goes {
            chunk.members.cut(edits, end)
        } else {
            chunk.members.keep(edits, end)
        }
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

    fn choice<'t>(&mut self, chunk: &mut Chunk<'t>, edits: &mut Edits<'t>, walker: &mut Walker<'t>) -> Result<()> {
        let Settings { normalize, usage_chunk_strict: strict, .. } = self.settings;
        if walker.peek()? != Kind::Object || !(normalize || strict) {
            return walker.skip().map(drop);
        }
        let whole = chunk.text.get(walker.at()..).unwrap_or_default();
        let mut members = Members::of(chunk.text, walker)?;
        let (mut has_index, mut has_said, mut has_finish) = (false, false, false);
        walker.object(|walker, name| {
            let kind = walker.peek()?;
            let start = walker.at();
            let mut goes = false;
            match &*name.bytes() {
                b"usage" => {
                    let raw = walker.skip()?;
                    chunk.saw(Place::Choice, raw);
                    goes = normalize || (strict && chunk.form == Form::Chunk);
                    self.repairs.note(if normalize { Repair::Usage } else { Repair::UsageChunk });
                }
                _ if !normalize => drop(walker.skip()?),
                b"delta" if kind == Kind::Null => {
                    walker.skip()?;
                    edits.replace(start..walker.at(), &b"{}"[..]);
                    self.repairs.note(Repair::Delta);
                    has_said = true;
                }
                b"delta" => {
                    self.said(chunk, edits, walker, whole)?;
                    has_said = true;
                }
                b"message" if chunk.form == Form::Reply => self.said(chunk, edits, walker, whole)?,
                b"message" => {
                    self.repairs.note(Repair::Message);
                    goes = has_member(whole, "delta");
                    if goes {
                        walker.skip()?;
                    } else {
                        edits.replace(members.name(name.raw()), &b"\"delta\""[..]);
                        self.said(chunk, edits, walker, whole)?;
                        has_said = true;
                    }
                }
                b"text" => {
                    walker.skip()?;
                    has_said = true;
                }
                b"index" => has_index = walker.skip()?.first().is_some_and(u8::is_ascii_digit),
                b"finish_reason" => {
                    self.finish_reason(edits, walker)?;
                    has_finish = true;
                }
                other => {
                    walker.skip()?;
                    goes = self.repairs.private(Level::Choice, other);
                }
            }
            let end = walker.at();
            if goes {
                members.cut(edits, end)
            } else {
                members.keep(edits, end)
            }
            Ok(())
        })?;
        if !normalize {
            return Ok(());
        }
        if !has_index && !has_member(whole, "index") {
            self.repairs.note(Repair::Index);
            members.add(edits, format!("\"index\":{}", chunk.count).as_bytes());
        }
        if chunk.form == Form::Reply {
            return Ok(());
        }
        if !has_said {
            self.repairs.note(Repair::Delta);
            members.add(edits, b"\"delta\":{}");
        }
        if !has_finish {
            self.repairs.note(Repair::Unfinished);
            members.add(edits, b"\"finish_reason\":null");
        }
        Ok(())
    }

    /// A delta or a message; `choice` is the text from its choice on.
    fn said<'t>(
        &mut self,
        chunk: &Chunk<'t>,
        edits: &mut Edits<'t>,
        walker: &mut Walker<'t>,
        choice: &'t [u8],
    ) -> Result<()> {
        if walker.peek()? != Kind::Object {
            return walker.skip().map(drop);
        }
        let delta = Delta::look(chunk.text.get(walker.at()..).unwrap_or_default())?;
        let mut members = Members::of(chunk.text, walker)?;
        walker.object(|walker, name| {
            let kind = walker.peek()?;
            if kind == Kind::Array && chunk.form == Form::Chunk && name.is("tool_calls") {
                let mut position = 0;
                walker.array(|walker| {
                    self.call(chunk.text, edits, walker, choice, position)?;
                    position += 1;
                    Ok(())
                })?;
                members.keep(edits, walker.at());
                return Ok(());
            }
            delta.member(&mut self.repairs, &mut members, edits, walker, name)
        })?;
        Ok(())
    }

    /// A part of a tool call: a missing number is that of its id, else of the call before.
    fn call<'t>(
        &mut self,
        text: &'t [u8],
        edits: &mut Edits<'t>,
        walker: &mut Walker<'t>,
        choice: &'t [u8],
        position: u64,
    ) -> Result<()> {
        if walker.peek()? != Kind::Object {
            return walker.skip().map(drop);
        }
        let mut members = Members::of(text, walker)?;
        let (mut id, mut index, mut null) = (None, None, None);
        walker.object(|walker, name| {
            walker.peek()?;
            let start = walker.at();
            if name.is("id") {
                id = walker.string()?.map(Text::raw).filter(|id| !id.is_empty());
            } else if name.is("index") {
                let raw = walker.skip()?;
                index = std::str::from_utf8(raw).ok().and_then(|raw| raw.parse().ok());
                null = (raw == b"null").then(|| start..walker.at());
            } else {
                walker.skip()?;
            }
            members.keep(edits, walker.at());
            Ok(())
        })?;
        if index.is_none() || id.is_some() {
            let choice = number(choice, "index").unwrap_or(0);
            let found = self.call_index(choice, id, index, position);
            match (index, null) {
                (Some(_), _) => return Ok(()),
                (None, Some(range)) => edits.replace(range, found.to_string().into_bytes()),
                (None, None) => members.add(edits, format!("\"index\":{found}").as_bytes()),
            }
            self.repairs.note(Repair::Call);
        }
        Ok(())
    }

    fn call_index(&mut self, choice: u64, id: Option<&[u8]>, index: Option<u64>, position: u64) -> u64 {
        let of_choice = || self.calls.iter().filter(move |call| call.choice == choice);
        let Some(id) = id else { return of_choice().next_back().map_or(position, |call| call.index) };
        if let Some(known) = of_choice().find(|call| call.id == id) {
            return known.index;
        }
        let next = of_choice().map(|call| call.index + 1).max().unwrap_or(0);
        let index = index.unwrap_or(next).min(u64::from(u32::MAX));
        if self.calls.len() < MAX_CALLS {
            self.calls.push(Call { choice, id: id.to_vec(), index });
        }
        index
    }

    fn finish_reason<'t>(&mut self, edits: &mut Edits<'t>, walker: &mut Walker<'t>) -> Result<()> {
        walker.peek()?;
        let start = walker.at();
        let Some(reason) = walker.string()? else { return Ok(()) };
        let word: &[u8] = match &*reason.bytes() {
            b"" => b"null",
            b"eos" | b"end_turn" | b"stop_sequence" => b"\"stop\"",
            b"max_tokens" => b"\"length\"",
            b"tool_use" => b"\"tool_calls\"",
            _ => return Ok(()),
        };
        self.repairs.note(Repair::Finish);
        edits.replace(start..walker.at(), word);
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

/// An id, a time and a model, each only if it says something.
type Found<'t> = (Option<&'t [u8]>, Option<&'t [u8]>, Option<&'t [u8]>);

impl Identity {
    /// `None`: not an object.
    fn read(text: &[u8]) -> Option<Found<'_>> {
        let mut found: Found<'_> = (None, None, None);
        let was_object = Walker::new(text).object(|walker, name| {
            let raw = walker.skip()?;
            let said = raw.first() == Some(&b'"') && raw.len() > 2;
            match &*name.bytes() {
                b"id" => found.0 = Some(raw).filter(|_| said),
                b"created" => found.1 = Some(raw).filter(|raw| is_time(raw)),
                b"model" => found.2 = Some(raw).filter(|_| said),
                _ => {}
            }
            Ok(())
        });
        was_object.is_ok_and(|was| was).then_some(found)
    }
}

fn is_time(raw: &[u8]) -> bool {
    raw != b"0" && raw.iter().all(u8::is_ascii_digit)
}

fn passed(walker: &mut Walker<'_>) -> Result<Option<Range<usize>>> {
    walker.peek()?;
    let start = walker.at();
    walker.skip()?;
    Ok(Some(start..walker.at()))
}

/// Whether the object at the front of `text` has this member.
fn has_member(text: &[u8], wanted: &str) -> bool {
    let mut found = false;
    let _ = Walker::new(text).object(|walker, name| {
        found |= name.is(wanted);
        walker.skip().map(drop)
    });
    found
}

/// A whole number among the members of the object at the front of `text`.
fn number(text: &[u8], wanted: &str) -> Option<u64> {
    let mut found = None;
    let _ = Walker::new(text).object(|walker, name| {
        let raw = walker.skip()?;
        if name.is(wanted) {
            found = std::str::from_utf8(raw).ok().and_then(|raw| raw.parse().ok());
        }
        Ok(())
    });
    found
}

/// A text as JSON.
pub(super) fn quoted(text: &str) -> Vec<u8> {
    serde_json::Value::from(text).to_string().into_bytes()
}
