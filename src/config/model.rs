//! What the file says of a public model, with its defaults.
//!
//! Plain data, made by the check, read by routing, relay and pump.

use super::{Limits, Provider};
use crate::protocol::Protocol;
use schemars::JsonSchema;
use serde::Deserialize;
use std::sync::Arc;
use std::time::Duration;

/// One public model; every setting is merged with `defaults:`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    /// The name clients send, and under which everything is recorded.
    pub name: String,
    /// Other names clients may send.
    pub aliases: Vec<String>,
    /// `None`: all.
    pub protocols: Option<Vec<Protocol>>,
    /// Never empty.
    pub targets: Vec<Arc<Target>>,
    /// S1.
    pub timeouts: Timeouts,
    /// K1 to K3.
    pub keepalive: Keepalive,
    /// A2, A5.
    pub retry: Retry,
    /// A6, A8.
    pub health: Health,
    /// A9.
    pub on_client_gone: OnClientGone,
    /// E2: whether `[DONE]` follows Weir's own chat error event.
    pub chat_error_done: bool,
    /// A1.
    pub affinity: Vec<Affinity>,
    /// G2; of all keys together.
    pub limits: Limits,
    /// Output tokens that are reserved for a request that names no maximum.
    pub default_max_tokens: u64,
}

/// One place that can serve a model.
#[derive(Clone, Debug)]
pub struct Target {
    /// The provider.
    pub provider: Arc<Provider>,
    /// The model's name there.
    pub model: String,
    /// Share within its priority; at least 1.
    pub weight: u32,
    /// Lowest first.
    pub priority: u32,
    /// Requests at once, if bounded.
    pub max_concurrent: Option<u32>,
}

impl Eq for Target {}

/// A provider counts by its name: what changed of it, it tells itself.
impl PartialEq for Target {
    fn eq(&self, other: &Self) -> bool {
        let Self { provider, model, weight, priority, max_concurrent } = self;
        let same_place = provider.name == other.provider.name && *model == other.model;
        let same_share = *weight == other.weight && *priority == other.priority;
        same_place && same_share && *max_concurrent == other.max_concurrent
    }
}

impl Target {
    /// `provider/model`, the word for it in metrics and records.
    #[must_use]
    pub fn word(&self) -> String {
        format!("{}/{}", self.provider.name, self.model)
    }
}

/// The stall clocks (S1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// DNS, TCP, TLS.
    pub connect: Duration,
    /// Without progress of the upload.
    pub send: Duration,
    /// Last request byte to head.
    pub first_byte: Duration,
    /// No bytes since head or last byte.
    pub idle: Duration,
    /// Since the last output, after the commit.
    pub no_output: Duration,
    /// Head to commit.
    pub first_content: Duration,
    /// Admission to end.
    pub total: Duration,
    /// `stream: false`: request sent to last byte.
    pub non_stream: Duration,
    /// One write to the client.
    pub client_write: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self {
            connect: seconds(5),
            send: seconds(30),
            first_byte: seconds(120),
            idle: seconds(90),
            no_output: seconds(150),
            first_content: seconds(150),
            total: seconds(60 * 60),
            non_stream: seconds(10 * 60),
            client_write: seconds(60),
        }
    }
}

/// The keepalive (K1 to K3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keepalive {
    /// Silence after which one goes out.
    pub interval: Duration,
    /// Only in silence, or at every interval.
    pub when: When,
    /// Its shape.
    pub style: Style,
    /// The comment's text; no line break in it.
    pub text: String,
    /// K3; `None`: off.
    pub before_headers: Option<Duration>,
}

impl Default for Keepalive {
    fn default() -> Self {
        /// Shorter than the 20 s after which impatient clients warn (B74) and the 60 s at which balancers cut.
        const INTERVAL: Duration = Duration::from_secs(10);
        Self {
            interval: INTERVAL,
            when: When::Silence,
            style: Style::Auto,
            text: "weir-keepalive".to_owned(),
            before_headers: Some(INTERVAL),
        }
    }
}

/// K1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum When {
    /// After an interval without a byte written.
    Silence,
    /// Every interval.
    Always,
}

/// K2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Style {
    /// `comment`, or `comment_line` once an `id:` or `retry:` was forwarded.
    Auto,
    /// Comment and blank line.
    Comment,
    /// Comment and one newline.
    CommentLine,
    /// Messages' own ping event once `message_start` was forwarded, else a comment.
    Ping,
}

/// A2, A5.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retry {
    /// Attempts in all, the first included.
    pub attempts: u32,
    /// Statuses that fail an attempt.
    pub on: Vec<StatusRange>,
    /// From admission; after it no new attempt starts.
    pub deadline: Duration,
    /// Whether a finish without output fails the attempt.
    pub failover_on_empty: bool,
}

/// `429` or `5xx`, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusRange {
    /// First status.
    pub from: u16,
    /// Last status.
    pub to: u16,
}

impl Default for Retry {
    fn default() -> Self {
        let status = |from, to| StatusRange { from, to };
        Self {
            attempts: 3,
            on: vec![status(408, 408), status(429, 429), status(500, 599)],
            deadline: Duration::from_mins(5),
            failover_on_empty: false,
        }
    }
}

impl Retry {
    /// Whether a status fails the attempt.
    #[must_use]
    pub fn is_on(&self, status: u16) -> bool {
        self.on.iter().any(|range| (range.from..=range.to).contains(&status))
    }
}

/// A6, A8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Health {
    /// Failures in a row until a cool-down.
    pub failures: u32,
    /// The first cool-down; doubles.
    pub cooldown: Duration,
    /// The longest.
    pub cooldown_max: Duration,
    /// After a 401, 402 or used-up account.
    pub cooldown_account: Duration,
}

impl Default for Health {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self { failures: 5, cooldown: seconds(10), cooldown_max: seconds(5 * 60), cooldown_account: seconds(10 * 60) }
    }
}

/// A9.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnClientGone {
    /// Close the upstream at once.
    Cancel,
    /// Read on for the usage, at most this long.
    Drain(Duration),
}

/// What makes requests go to the same target (A1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Affinity {
    /// The body's `prompt_cache_key`.
    PromptCacheKey,
    /// The body's `user` (chat, responses) or `metadata.user_id` (messages).
    User,
    /// The virtual key.
    Key,
}
