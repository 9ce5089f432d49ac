//! What Weir may have to mend in a provider's answers, in words.
//!
//! Noted by the dialects; the table in the README is made of it. Touches nothing.

/// Members that tell of a vendor's inside and mean nothing to a client: N2 takes them out.
pub(in crate::normalize) const PRIVATE: &[(Level, &str)] = &[
    (Level::Top, "x_groq"),
    (Level::Top, "provider"),
    (Level::Top, "p"),
    (Level::Top, "time_info"),
    (Level::Top, "timings"),
    (Level::Top, "sla_metrics"),
    (Level::Top, "latency_checkpoint"),
    (Level::Top, "stream_options"),
    (Level::Top, "generationId"),
    (Level::Top, "provider_specific_fields"),
    (Level::Choice, "native_finish_reason"),
    (Level::Choice, "trace_details"),
    (Level::Choice, "provider_specific_fields"),
    (Level::Delta, "provider_metadata"),
    (Level::Delta, "provider_specific_fields"),
    (Level::Delta, "graph_data"),
    (Level::Delta, "llm_data"),
    (Level::Delta, "image_data"),
    (Level::Delta, "translation_data"),
    (Level::Delta, "web_search_data"),
];

/// Where a member stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::normalize) enum Level {
    /// In the chunk or reply.
    Top,
    /// In a choice.
    Choice,
    /// In a delta or message.
    Delta,
}

/// One kind of change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::normalize) enum Repair {
    /// N1.
    Model,
    /// `id`, `created` or `model` missing or empty.
    Identity,
    /// `id`, `created` or `model` other than in the first chunk.
    Unstable,
    /// `object` missing or another word.
    Object,
    /// `choices` missing or null.
    Choices,
    /// A choice without `index`.
    Index,
    /// `delta` missing or null.
    Delta,
    /// No `role` in a choice's first delta.
    Role,
    /// A whole `message` in a chunk.
    Message,
    /// `finish_reason` missing.
    Unfinished,
    /// A finish reason of another vocabulary.
    Finish,
    /// A tool call without `index`.
    Call,
    /// Reasoning under `reasoning`.
    Reasoning,
    /// Content as a list of parts.
    Parts,
    /// Usage in a choice or a vendor's member.
    Usage,
    /// Something of [`PRIVATE`].
    Private,
    /// A chunk that says nothing.
    Empty,
    /// N4.
    UsageChunk,
    /// No `event:` line, or another name than `type`.
    Name,
    /// No `sequence_number`.
    Sequence,
    /// A part's number that is not its place.
    Part,
    /// `response.reasoning_part.…`, which OpenAI does not have.
    PartEvent,
    /// Null members in a part of a tool call.
    CallNulls,
    /// N5.
    Error,
}

/// What was changed so far; a set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Repairs {
    kinds: u32,
    private: u32,
}

impl Repairs {
    pub(in crate::normalize) const fn note(&mut self, repair: Repair) {
        self.kinds |= 1 << repair as u32;
    }

    /// Whether `name` at this level is private; if so, that one is noted.
    pub(in crate::normalize) fn private(&mut self, level: Level, name: &[u8]) -> bool {
        let found = PRIVATE.iter().position(|(at, private)| *at == level && private.as_bytes() == name);
        if let Some(at) = found {
            self.note(Repair::Private);
            self.private |= 1 << at;
        }
        found.is_some()
    }

    /// Adds those of another stream.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self { kinds: self.kinds | other.kinds, private: self.private | other.private }
    }

    /// What differed and what was made of it, a pair of phrases each.
    #[must_use]
    pub fn phrases(self) -> Vec<(String, &'static str)> {
        let noted = |repair: &&(Repair, &str, &str)| self.kinds & (1 << repair.0 as u32) != 0;
        let phrase = |(repair, differs, becomes): &(Repair, &'static str, &'static str)| {
            let differs = if *repair == Repair::Private { self.private_names() } else { (*differs).to_owned() };
            (differs, *becomes)
        };
        PHRASES.iter().filter(noted).map(phrase).collect()
    }

    fn private_names(self) -> String {
        let mut names: Vec<String> = Vec::new();
        for (at, (_, name)) in PRIVATE.iter().enumerate() {
            let name = format!("`{name}`");
            if self.private & (1 << at) != 0 && !names.contains(&name) {
                names.push(name);
            }
        }
        names.join(", ")
    }
}

/// In the order of the table.
const PHRASES: &[(Repair, &str, &str)] = &[
    (Repair::Model, "its own model name", "the client's name"),
    (Repair::Identity, "`id`, `created` or `model` missing or empty", "filled, the same in every chunk"),
    (Repair::Unstable, "`id`, `created` or `model` changes within the stream", "as in the first chunk"),
    (Repair::Object, "`object` missing or another word", "`chat.completion.chunk`"),
    (Repair::Choices, "`choices` missing or null", "`[]`"),
    (Repair::Index, "choices without `index`", "their position"),
    (Repair::Delta, "choices without `delta`", "`{}`"),
    (Repair::Role, "no `role` in a choice's first delta", "`assistant`"),
    (Repair::Message, "the whole `message` again in each chunk", "left out"),
    (Repair::Unfinished, "`finish_reason` missing until the end", "`null`"),
    (Repair::Finish, "finish reasons of its own", "`stop`, `length`, `tool_calls`"),
    (Repair::Call, "tool calls without `index`", "numbered by their ids"),
    (Repair::CallNulls, "null members in parts of tool calls", "left out"),
    (Repair::Reasoning, "`reasoning`", "`reasoning_content`"),
    (Repair::Parts, "`content` as a list of parts", "`content` and `reasoning_content` as text"),
    (Repair::Usage, "usage in a choice or in a member of its own", "`usage` at the top"),
    (Repair::Private, "", "left out"),
    (Repair::Empty, "chunks that say nothing", "left out"),
    (
        Repair::UsageChunk,
        "usage beside choices or in several chunks",
        "one chunk before `[DONE]` (`usage_chunk: strict`)",
    ),
    (Repair::Name, "no `event:` lines", "added from `type`"),
    (Repair::Sequence, "no `sequence_number`", "counted"),
    (Repair::Part, "`content_index` that is not the part's place", "the place"),
    (Repair::PartEvent, "`response.reasoning_part.added` and `.done`", "`response.content_part.…`"),
    (Repair::Error, "errors in a form of its own", "Weir's form (`stream_errors: native`)"),
];
