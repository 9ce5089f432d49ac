//! Tells the operator's webhook what a person must see at once (`alerts:`).
//!
//! A service beside the server. Looks once a second, and delivers one notice at a time without waiting for it.

use super::Shared;
use crate::alarm::courier::Courier;
use crate::alarm::{Alarms, Notice, signs};
use async_trait::async_trait;
use pingora_core::server::ShutdownWatch;
use pingora_core::services::background::BackgroundService;
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Notices that wait for the one before them; a thousand models may fall at once, a person reads the first.
const MOST_WAITING: usize = 100;

type Delivery<'a> = Option<Pin<Box<dyn Future<Output = ()> + Send + 'a>>>;

/// The task.
pub(super) struct Alarming(pub(super) Arc<Shared>);

#[async_trait]
impl BackgroundService for Alarming {
    async fn start(&self, mut shutdown: ShutdownWatch) {
        let courier = Courier::default();
        let (mut alarms, mut webhook) = (Alarms::default(), None);
        let mut waiting: VecDeque<Notice> = VecDeque::new();
        let mut delivery: Delivery<'_> = None;
        let mut tick = tokio::time::interval(LOOK_EVERY);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = shutdown.wait_for(|stop| *stop) => return,
                () = ended(&mut delivery) => delivery = None,
                _ = tick.tick() => {
                    // Who drains after an upgrade no longer sees what happens; the new process tells.
                    let draining = self.0.draining.load(Ordering::Relaxed);
                    let wanted = self.0.live.load().config.alerts.webhook.clone().filter(|_| !draining);
                    if webhook != wanted {
                        // A new receiver hears what is wrong now.
                        (alarms, webhook, delivery) = (Alarms::default(), wanted, None);
                        waiting.clear();
                    }
                    if webhook.is_some() {
                        let now = Instant::now();
                        waiting.extend(alarms.look(now, SystemTime::now(), signs::all(&self.0, now)));
                        waiting.truncate(MOST_WAITING);
                    }
                }
            }
            if delivery.is_none()
                && let Some(webhook) = &webhook
                && let Some(notice) = waiting.pop_front()
            {
                delivery = Some(Box::pin(courier.deliver(webhook.clone(), notice)));
            }
        }
    }
}

async fn ended(delivery: &mut Delivery<'_>) {
    match delivery {
        Some(delivery) => delivery.await,
        None => std::future::pending().await,
    }
}
