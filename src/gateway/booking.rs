//! Books a request in the ledger: opened before its first attempt, settled once with its money (L1, U4, U5).
//!
//! Called by the gateway's stages and by the exchange's end. Touches the ledger's queue; estimates,
//! where no usage came, run off the workers.

use super::exchange::{Admitted, Exchange, Running};
use super::shared::Shared;
use crate::admission::facts::Facts;
use crate::ledger::billing;
use crate::ledger::estimate::{self, Delivered};
use crate::ledger::{Aside, Checkpoint, Durable, OnFailure, OpenRow, Settled, Settlement, Ticket};
use crate::limit::Grant;
use crate::live::Live;
use crate::meter::usage::{Source, Usage};
use crate::outcome::{Failure, Outcome};
use crate::record::Record;
use crate::refusal::Reason;
use crate::relay::Relay;
use crate::timeline::Sight;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A commit takes 20 ms; a disk that takes this long is broken (L5).
const LONGEST_COMMIT: Duration = Duration::from_secs(5);

/// What a request holds of the ledger.
#[derive(Debug, Default)]
pub struct Booking {
    ticket: Option<Ticket>,
    durable: Option<Durable>,
    /// The last checkpoint.
    noted: Option<Instant>,
    /// Prompt tokens, guessed from the body.
    input_estimate: Option<u64>,
    /// The request's own maximum of output tokens.
    max_output: Option<u64>,
    /// A whole reply's text, if it told no usage.
    pub(super) reply: Option<Delivered>,
    /// What the client had got when it left, while the upstream was read on (A9).
    pub(super) at_departure: Option<Delivered>,
    /// The answer passes before it is understood: its bytes are what was delivered (F5, F9).
    pub(super) passes: bool,
    /// It cannot be read at all: its output is guessed from its bytes (F5).
    pub(super) unread: bool,
    /// Other models' usage, what failed attempts reported, counts that could not be true.
    pub(super) aside: Aside,
    /// `message_start`'s number stands for no output yet (B164).
    pub(super) placeholder: bool,
}

impl Booking {
    /// No row stays.
    pub(super) fn cancel(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            ticket.cancel();
        }
    }

    /// The open row may not be on disk yet.
    pub(super) const fn awaits_disk(&self) -> bool {
        self.durable.is_some()
    }
}

/// Opens the row of a request, whose first attempt goes to `target` (L1). Later calls do nothing.
pub(super) async fn open(
    exchange: &mut Exchange,
    admitted: Option<&Admitted>,
    target: Option<&Arc<str>>,
) -> Result<(), Reason> {
    if exchange.booking.ticket.is_some() {
        return Ok(());
    }
    let facts: Option<&Facts> = admitted.map(|admitted| &admitted.facts);
    let input_estimate = admitted.map(|_| exchange.ask.input);
    let record = &exchange.record;
    let row = OpenRow {
        id: record.id,
        client_request_id: record.client_request_id.clone(),
        key: record.key.clone(),
        tag: record.tag.clone(),
        client: record.client,
        endpoint: record.endpoint,
        model: record.model.clone(),
        target: target.cloned(),
        stream: record.stream,
        received: record.received,
        tier_requested: record.tier_requested.clone(),
        input_estimate,
    };
    let (ticket, durable) = exchange.shared.ledger.begin(row).await.map_err(|refused| {
        log::debug!(refused:%; "the ledger takes no new request");
        Reason::Ledger
    })?;
    let max_output = facts.and_then(|facts| facts.max_output_tokens);
    let (ticket, durable) = (Some(ticket), Some(durable));
    exchange.booking = Booking { ticket, durable, input_estimate, max_output, ..Booking::default() };
    Ok(())
}

/// Waits until the open row is on disk: nothing of an answer goes out before (L1).
pub(super) async fn durable(exchange: &mut Exchange) -> Result<(), Failure> {
    let Some(durable) = exchange.booking.durable.take() else { return Ok(()) };
    let since = Instant::now();
    let waited = tokio::time::timeout(LONGEST_COMMIT, durable.wait()).await;
    exchange.waited(since);
    match waited {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => {
            log::error!(error:%; "a request was refused because the ledger cannot be written");
            Err(Failure::Ledger)
        }
        Err(_) if exchange.live.config.ledger.on_failure == OnFailure::Serve => Ok(()),
        Err(_) => {
            log::error!("a request was refused because the ledger's disk does not answer");
            Err(Failure::Ledger)
        }
    }
}

/// A new attempt begins: what the one before it reported was used in vain, and costs all the same (L3).
pub(super) fn next_attempt(exchange: &mut Exchange) {
    let (record, booking) = (&mut exchange.record, &mut exchange.booking);
    let mut usage = std::mem::take(&mut record.usage);
    record.source = Source::None;
    if std::mem::take(&mut booking.placeholder) {
        usage.output = None;
    }
    booking.reply = None;
    booking.aside.other_models.clear();
    if usage != Usage::default()
        && let Some(target) = &record.target
    {
        booking.aside.failed.push((Arc::clone(target), usage));
    }
}

/// Leaves a checkpoint right after the commit, and when the last one is old enough (L1).
pub(super) fn checkpoint(exchange: &mut Exchange, now: Instant) {
    let every = exchange.live.config.ledger.checkpoint;
    let booking = &mut exchange.booking;
    if booking.noted.is_some_and(|noted| now.saturating_duration_since(noted) < every) {
        return;
    }
    let (Some(ticket), Some(relay)) = (&booking.ticket, &exchange.relay) else { return };
    let Some(meter) = relay.meter().filter(|_| relay.is_committed()) else { return };
    booking.noted = Some(now);
    let mut usage = meter.usage();
    if meter.output_is_placeholder() {
        usage.output = None;
    }
    ticket.checkpoint(Checkpoint {
        target: exchange.aim.as_ref().map(|aim| Arc::clone(&aim.target.word)),
        usage,
        source: meter.source(),
        output_estimate: relay.delivered().and_then(Delivered::rough),
        status: exchange.record.status,
        bytes: exchange.record.bytes,
        output_events: relay.seen().output_events,
        first_output: relay.seen().first_output.map(|at| at.saturating_duration_since(exchange.began)),
        elapsed: exchange.began.elapsed(),
        tier_served: meter.service_tier().map(str::to_owned),
    });
}

/// Everything that is needed to end a request's books.
pub(super) struct Closing {
    pub(super) shared: Arc<Shared>,
    pub(super) live: Arc<Live>,
    pub(super) record: Record,
    pub(super) booking: Booking,
    /// What only relay and pump saw (M4).
    pub(super) sight: Sight,
    grant: Option<Grant>,
    /// Its usage is another request's to book (A12).
    elsewhere: bool,
    /// All output that was received.
    pub(super) received: Option<Delivered>,
    /// The process waits for this at its end.
    _running: Option<Running>,
    is_settled: bool,
}

impl Closing {
    /// Closes the books: at once, or off the workers where tokens have to be estimated.
    pub(super) fn close(mut self) {
        if self.needs_estimate()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn_blocking(move || self.settle());
            return;
        }
        self.settle();
    }

    /// Closes the books and waits until they are on disk (`durability: strict`).
    pub(super) async fn close_durably(mut self) {
        let since = Instant::now();
        let settled = tokio::task::spawn_blocking(move || self.settle()).await;
        if let Ok(Some(settled)) = settled
            && !matches!(tokio::time::timeout(LONGEST_COMMIT, settled.wait()).await, Ok(true))
        {
            log::error!(waited:? = since.elapsed(); "a record is not on disk yet; it is kept and tried again");
        }
    }

    fn needs_estimate(&self) -> bool {
        let record = &self.record;
        if self.elsewhere {
            return false;
        }
        self.booking.placeholder || record.usage.output.is_none() || record.outcome == Outcome::ClientGone
    }

    /// Once; [`Drop`] does it where nobody else could.
    fn settle(&mut self) -> Option<Settled> {
        if std::mem::replace(&mut self.is_settled, true) {
            return None;
        }
        let ticket = self.booking.ticket.take();
        if self.record.attempts.is_empty() {
            if let Some(ticket) = ticket {
                ticket.cancel();
            }
            drop(self.grant.take());
            let record = Arc::new(self.take_record());
            self.shared.record(&record, self.sight, None, &self.live.config.log);
            return None;
        }
        let facts = self.facts();
        let aside = std::mem::take(&mut self.booking.aside);
        let record = self.take_record();
        let settlement = Settlement::new(&self.live.terms, record, &facts, aside);
        super::limits::settle(self.grant.take(), &settlement.record.usage, settlement.money.charge);
        self.shared.record(&settlement.record, self.sight, settlement.money.charge, &self.live.config.log);
        ticket.map(|ticket| {
            let money = &settlement.money;
            self.shared.metrics.charged(&settlement.record, money.charge, money.cost, !money.unpriced.is_empty());
            ticket.settle(settlement)
        })
    }

    fn take_record(&mut self) -> Record {
        let left = Record::new(self.record.id, self.record.received);
        std::mem::replace(&mut self.record, left)
    }

    /// What the bill of a request is decided by whose usage is another's to book (A12): nothing.
    fn nothing(&self) -> billing::Facts {
        billing::Facts {
            outcome: self.record.outcome,
            reported: Usage::default(),
            output_delivered: false,
            input_estimate: None,
            delivered_estimate: None,
            received_estimate: None,
            max_output: None,
        }
    }

    /// What the bill is decided by; tokens are estimated here where nobody told them (U4, U5).
    fn facts(&self) -> billing::Facts {
        if self.elsewhere {
            return self.nothing();
        }
        let model = self.record.model.as_deref().unwrap_or_default();
        let booking = &self.booking;
        let wanted = self.needs_estimate();
        let tokens = |delivered: Option<&Delivered>| delivered.filter(|_| wanted).and_then(|text| text.tokens(model));
        let received_estimate = if booking.unread {
            (self.record.bytes > 0).then(|| estimate::rough(self.record.bytes))
        } else {
            tokens(booking.reply.as_ref().or(self.received.as_ref()))
        };
        let delivered_estimate = match &booking.at_departure {
            Some(delivered) => tokens(Some(delivered)),
            None => received_estimate,
        };
        let mut reported = self.record.usage;
        if booking.placeholder {
            reported.output = None;
        }
        let whole = matches!(self.record.outcome, Outcome::Completed | Outcome::Truncated);
        billing::Facts {
            outcome: self.record.outcome,
            reported,
            output_delivered: self.record.output_events > 0 || whole || (booking.passes && self.record.bytes > 0),
            input_estimate: booking.input_estimate,
            delivered_estimate,
            received_estimate,
            max_output: booking.max_output,
        }
    }
}

impl Drop for Closing {
    /// The runtime ended before the blocking part could run.
    fn drop(&mut self) {
        self.settle();
    }
}

impl Exchange {
    /// Takes what has to be known to close the books; `record`: as it is now.
    pub(super) fn closing(&mut self, record: Record) -> Closing {
        // Money waits for the bill, which may have to be estimated; a slot does not.
        self.free_slot();
        Closing {
            shared: Arc::clone(&self.shared),
            live: Arc::clone(&self.live),
            sight: self.sight(record.duration),
            record,
            booking: std::mem::take(&mut self.booking),
            grant: self.grant.take(),
            elsewhere: self.storing.elsewhere,
            received: self.relay.as_ref().and_then(Relay::delivered).cloned(),
            _running: self.take_running(),
            is_settled: false,
        }
    }
}
