//! The file as it is written: models, their targets and settings.
//!
//! Filled by `shape`, read by `check` alone, as all of `raw`.

use crate::config::model::{Affinity, Style, When};
use crate::config::word::{Comment, Name, Span, SpanOrOff, Statuses};
use schemars::JsonSchema;
use serde::Deserialize;

/// Settings of all models.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct Settings {
    /// When a silent upstream or client is given up.
    #[serde(default)]
    pub(in crate::config) timeouts: Timeouts,
    /// What keeps a silent stream alive.
    #[serde(default)]
    pub(in crate::config) keepalive: Keepalive,
    /// When another attempt is made.
    #[serde(default)]
    pub(in crate::config) retry: Retry,
    /// When a target is left alone for a while.
    #[serde(default)]
    pub(in crate::config) health: Health,
    /// What happens upstream when the client has left; default cancel.
    pub(in crate::config) on_client_gone: Option<OnClientGone>,
    /// Whether `[DONE]` follows Weir's own error event in a chat stream; default true.
    pub(in crate::config) chat_error_done: Option<bool>,
    /// What makes requests go to the same target; default nothing.
    pub(in crate::config) affinity: Option<Vec<Affinity>>,
}

/// When a silent upstream or client is given up.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct Timeouts {
    /// DNS, TCP, TLS; default 5s.
    pub(in crate::config) connect: Option<Span>,
    /// Without progress of the upload; default 30s.
    pub(in crate::config) send: Option<Span>,
    /// Last request byte to response head; default 120s.
    pub(in crate::config) first_byte: Option<Span>,
    /// No bytes since head or last byte; default 90s.
    pub(in crate::config) idle: Option<Span>,
    /// No output since the last output; default 150s.
    pub(in crate::config) no_output: Option<Span>,
    /// Response head to first content; default `no_output`.
    pub(in crate::config) first_content: Option<Span>,
    /// The whole request; default 60m.
    pub(in crate::config) total: Option<Span>,
    /// The whole upstream call of a request without `stream: true`; default 10m.
    pub(in crate::config) non_stream: Option<Span>,
    /// One write to the client; default 60s.
    pub(in crate::config) client_write: Option<Span>,
}

/// What keeps a silent stream alive.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct Keepalive {
    /// Silence after which a keepalive goes out; default 10s.
    pub(in crate::config) interval: Option<Span>,
    /// Only in silence, or at every interval; default silence.
    pub(in crate::config) when: Option<When>,
    /// Its shape; default auto.
    pub(in crate::config) style: Option<Style>,
    /// The comment's text; default weir-keepalive.
    pub(in crate::config) text: Option<Comment>,
    /// When Weir answers 200 by itself for an upstream that has not; default the interval.
    pub(in crate::config) before_headers: Option<SpanOrOff>,
}

/// When another attempt is made.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct Retry {
    /// Attempts in all; default 3.
    #[schemars(range(min = 1, max = 100))]
    pub(in crate::config) attempts: Option<u32>,
    /// Statuses that fail an attempt; default 408, 429, 5xx.
    pub(in crate::config) on: Option<Vec<Statuses>>,
    /// No new attempt starts later than this after the request came; default 5m.
    pub(in crate::config) deadline: Option<Span>,
    /// Whether a finish without output fails the attempt; default false.
    pub(in crate::config) failover_on_empty: Option<bool>,
}

/// When a target is left alone for a while.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct Health {
    /// Failures in a row until a cool-down; default 5.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub(in crate::config) failures: Option<u32>,
    /// The first cool-down, doubling; default 10s.
    pub(in crate::config) cooldown: Option<Span>,
    /// The longest cool-down; default 5m.
    pub(in crate::config) cooldown_max: Option<Span>,
    /// The cool-down of a refused credential or a used-up account; default 10m.
    pub(in crate::config) cooldown_account: Option<Span>,
}

/// What happens upstream when the client has left.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(in crate::config) enum OnClientGone {
    /// Close the upstream at once.
    Cancel,
    /// Read on for the usage, at most this long: `{ drain: 30s }`.
    Drain(Span),
}

/// One public model.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct Model {
    /// The name that clients send.
    #[schemars(required)]
    pub(in crate::config) name: Option<Name>,
    /// Other names that clients may send.
    #[serde(default)]
    pub(in crate::config) aliases: Vec<Name>,
    /// The protocols it answers; default all.
    #[schemars(length(min = 1))]
    pub(in crate::config) protocols: Option<Vec<ProtocolWord>>,
    /// The places that can serve it.
    #[schemars(required, length(min = 1))]
    pub(in crate::config) targets: Option<Vec<Target>>,
    /// Overrides `defaults.timeouts`, key by key.
    #[serde(default)]
    pub(in crate::config) timeouts: Timeouts,
    /// Overrides `defaults.keepalive`, key by key.
    #[serde(default)]
    pub(in crate::config) keepalive: Keepalive,
    /// Overrides `defaults.retry`, key by key.
    #[serde(default)]
    pub(in crate::config) retry: Retry,
    /// Overrides `defaults.health`, key by key.
    #[serde(default)]
    pub(in crate::config) health: Health,
    /// Overrides `defaults.on_client_gone`.
    pub(in crate::config) on_client_gone: Option<OnClientGone>,
    /// Overrides `defaults.chat_error_done`.
    pub(in crate::config) chat_error_done: Option<bool>,
    /// Overrides `defaults.affinity`.
    pub(in crate::config) affinity: Option<Vec<Affinity>>,
    /// Requests in any minute, of all keys together; default no bound.
    #[schemars(range(min = 1, max = 1_000_000_000_000_u64))]
    pub(in crate::config) rpm: Option<u64>,
    /// Tokens in any minute, input and output, of all keys together; default no bound.
    #[schemars(range(min = 1, max = 1_000_000_000_000_u64))]
    pub(in crate::config) tpm: Option<u64>,
    /// Requests at the same time, of all keys together; default no bound.
    #[schemars(range(min = 1, max = 10_000_000))]
    pub(in crate::config) concurrent: Option<u64>,
    /// Output tokens that are reserved for a request that names no maximum; default 4096.
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub(in crate::config) default_max_tokens: Option<u64>,
}

/// A streaming protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(in crate::config) enum ProtocolWord {
    /// OpenAI Chat Completions.
    Chat,
    /// OpenAI Responses.
    Responses,
    /// Anthropic Messages.
    Messages,
}

/// One place that can serve a model.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct Target {
    /// A name under `providers`.
    #[schemars(required)]
    pub(in crate::config) provider: Option<Name>,
    /// The model's name there.
    #[schemars(required)]
    pub(in crate::config) model: Option<Name>,
    /// Share within its priority; default 1.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub(in crate::config) weight: Option<u32>,
    /// Lowest first; default 0.
    #[serde(default)]
    pub(in crate::config) priority: u32,
    /// Requests at once; default no bound.
    #[schemars(range(min = 1))]
    pub(in crate::config) max_concurrent: Option<u32>,
}
