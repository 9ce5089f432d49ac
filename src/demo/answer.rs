//! What the scripted model says, how fast, and what goes wrong: all decided by the model's name.
//!
//! Called once per request, before rendering. Touches nothing; `fastrand` only varies the pace.

use super::ask::Ask;
use std::time::Duration;

/// Like a small hosted model: the first token after 150 to 300 ms …
const FIRST_TOKEN_MS: std::ops::Range<u64> = 150..300;
/// … then 30 to 60 tokens a second.
const TOKEN_MS: std::ops::Range<u64> = 17..33;
/// `demo-slow`: longer than people wait without a sign of life.
const SLOW_FIRST_TOKEN: Duration = Duration::from_secs(5);
/// `demo-silent` and `demo-quiet`: long enough for a keepalive of a few seconds to show.
const SILENCE: Duration = Duration::from_secs(8);
/// Pieces that go out before a silence or a fault.
const BEFORE_FAULT: usize = 6;
/// `demo-big`: far above one read, far below `max_event_bytes`.
const BIG_BYTES: usize = 1024 * 1024;
/// `demo-burst`.
const BURST_EVENTS: usize = 20_000;
/// Bytes of tool arguments in one event.
const CALL_PIECE_CHARS: usize = 6;

/// What comes, piece by piece; every piece is one event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    Reasoning(String),
    Text(String),
    /// A part of the tool call's arguments.
    Call(String),
}

impl Piece {
    pub(super) fn text(&self) -> &str {
        match self {
            Self::Reasoning(text) | Self::Text(text) | Self::Call(text) => text,
        }
    }

    /// One, but for giant pieces: no word of the script is longer than 16 bytes.
    pub(super) fn tokens(&self) -> u64 {
        (self.text().len() as u64).div_ceil(16).max(1)
    }
}

/// Why the answer ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Stop,
    Length,
    Call,
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// After some pieces nothing more comes, and the connection stays open.
    Stall,
    /// After some pieces the connection is cut inside an event.
    Cut,
    /// The connection is cut after the prelude.
    Dies,
    /// After some pieces a native error.
    Error,
    /// A native error as the first event.
    Overloaded,
    /// An HTTP error.
    Status(u16),
}

/// The whole script of one answer.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    pub(super) pieces: Vec<Piece>,
    pub(super) end: End,
    /// Before the response head.
    pub(super) before_head: Duration,
    /// Before the first piece.
    pub(super) before_first: Duration,
    /// Before each other piece; zero: all at once.
    pub(super) before_each: Duration,
    /// Before the piece [`Self::turning_point`].
    pub(super) silence: Duration,
    pub(super) fault: Option<Fault>,
}

impl Answer {
    /// The words of the model's name after the first `-`, in any combination (`demo-fast-cut`).
    pub(super) fn to(ask: &Ask) -> Self {
        let mut answer = Self {
            pieces: words(&text(ask), Piece::Text),
            end: End::Stop,
            before_head: Duration::ZERO,
            before_first: Duration::from_millis(fastrand::u64(FIRST_TOKEN_MS)),
            before_each: Duration::from_millis(fastrand::u64(TOKEN_MS)),
            silence: Duration::ZERO,
            fault: None,
        };
        if let Some((_, arguments)) = &ask.tool {
            answer.pieces = words("Let me look that up.", Piece::Text);
            let chars = arguments.chars().collect::<Vec<_>>();
            answer.pieces.extend(chars.chunks(CALL_PIECE_CHARS).map(|part| Piece::Call(part.iter().collect())));
            answer.end = End::Call;
        }
        for word in ask.model.split('-').skip(1) {
            answer.obey(word, ask);
        }
        answer.limit(ask.max_tokens);
        answer
    }

    fn obey(&mut self, word: &str, ask: &Ask) {
        match word {
            "fast" => (self.before_first, self.before_each) = (Duration::ZERO, Duration::ZERO),
            "slow" => self.before_first = SLOW_FIRST_TOKEN,
            "quiet" => self.before_head = SILENCE,
            "silent" => self.silence = SILENCE,
            "thinking" => {
                let thought = format!("The user says: {}. A short and honest answer is best.", ask.quote);
                self.pieces.splice(0..0, words(&thought, Piece::Reasoning));
            }
            "big" => self.pieces.insert(0, Piece::Text("weir ".repeat(BIG_BYTES / 5 + 1))),
            "burst" => {
                self.pieces = vec![Piece::Text("drop ".to_owned()); BURST_EVENTS];
                self.before_each = Duration::ZERO;
            }
            "stall" => self.fault = Some(Fault::Stall),
            "cut" => self.fault = Some(Fault::Cut),
            "dies" => self.fault = Some(Fault::Dies),
            "error" => self.fault = Some(Fault::Error),
            "overloaded" => self.fault = Some(Fault::Overloaded),
            _ => {
                if let Some(status) = word.parse().ok().filter(|status| (400..600).contains(status)) {
                    self.fault = Some(Fault::Status(status));
                }
            }
        }
    }

    /// Cuts the answer at the request's token limit.
    fn limit(&mut self, max_tokens: Option<u64>) {
        let Some(max) = max_tokens else { return };
        let mut tokens = 0;
        let kept = self.pieces.iter().take_while(|piece| {
            tokens += piece.tokens();
            tokens <= max
        });
        let kept = kept.count();
        if kept < self.pieces.len() {
            self.pieces.truncate(kept);
            self.end = End::Length;
        }
    }

    /// The piece before which the silence or the fault comes: always one that exists, if any does.
    pub(super) fn turning_point(&self) -> usize {
        BEFORE_FAULT.min(self.pieces.len().saturating_sub(1))
    }

    /// What the answer takes in all, when it is not streamed.
    pub(super) fn duration(&self) -> Duration {
        let others = u32::try_from(self.pieces.len()).unwrap_or(u32::MAX).saturating_sub(1);
        self.before_first + self.silence + self.before_each.saturating_mul(others)
    }

    /// All text of one kind of piece.
    pub(super) fn joined(&self, wanted: fn(&Piece) -> bool) -> String {
        self.pieces.iter().filter(|piece| wanted(piece)).map(Piece::text).collect()
    }

    /// Generated tokens of one choice, reasoning included.
    pub(super) fn output_tokens(&self) -> u64 {
        self.pieces.iter().map(Piece::tokens).sum()
    }

    /// Of them, reasoning.
    pub(super) fn reasoning_tokens(&self) -> u64 {
        self.pieces.iter().filter(|piece| matches!(piece, Piece::Reasoning(_))).map(Piece::tokens).sum()
    }
}

fn text(ask: &Ask) -> String {
    let quote = if ask.quote.is_empty() { "nothing" } else { &ask.quote };
    format!(
        "You said: {quote}. I am the model that is built into Weir; I know nothing, but I stream like \
         the real ones, word by word, with honest usage at the end. Ask for demo-slow, demo-silent, demo-stall or \
         demo-cut to see what happens when a model is less well behaved."
    )
}

/// One piece for each word, with the space before it, as tokenizers do.
fn words(text: &str, piece: fn(String) -> Piece) -> Vec<Piece> {
    text.split(' ')
        .enumerate()
        .map(|(at, word)| piece(if at == 0 { word.to_owned() } else { format!(" {word}") }))
        .collect()
}
