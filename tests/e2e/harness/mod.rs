//! What every test needs: the real binary, upstreams that do exactly what a script says, clients
//! that see every byte, and the streams of the cases.

mod books;
mod client;
mod h2;
mod pki;
mod postgres;
mod proxy;
mod redis;
mod reply;
mod rows;
mod shared;
mod small;
mod streams;
mod upstream;
mod weir;

pub(crate) use books::{LITELLM_PRICES, OWN_PRICES, ask, prices, row, verify, weir_command};
pub(crate) use client::{Client, Received, get, request};
pub(crate) use h2::{H2Client, H2Upstream};
pub(crate) use pki::Pki;
pub(crate) use postgres::Postgres;
pub(crate) use proxy::ConnectProxy;
pub(crate) use redis::Redis;
pub(crate) use reply::{Framing, Reply, Signal, Step};
pub(crate) use rows::{Row, check};
pub(crate) use shared::shared;
pub(crate) use small::Small;
pub(crate) use streams::*;
pub(crate) use upstream::{Seen, Upstream};
pub(crate) use weir::{KEY, Setup, Weir, field, free_address, is_alive, number, said_by_any, tries, word};

use std::future::Future;
use std::time::Duration;

/// Longer than any step of any test takes on a busy machine that stalls; passing it means that a test hangs.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);

/// Waits for a step of a test, but not for ever.
pub(crate) async fn within<T>(what: &str, step: impl Future<Output = T>) -> T {
    let in_time = tokio::time::timeout(PATIENCE, step).await;
    in_time.unwrap_or_else(|_| panic!("waited {PATIENCE:?} for {what}"))
}

/// For promises of the kind "at once": a try is measured, and repeated while it took longer than `bound`. A machine
/// that stalls spoils a try; what waits for a clock is late in each of them.
pub(crate) async fn at_once(what: &str, bound: Duration, mut measure: impl AsyncFnMut() -> Duration) {
    const TRIES: usize = 20;
    let mut took = Vec::new();
    while took.len() < TRIES {
        let time = measure().await;
        if time < bound {
            return;
        }
        took.push(time);
    }
    panic!("{what} took longer than {bound:?} each time: {took:?}");
}

/// Looks again and again until a condition holds.
pub(crate) async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    within(what, async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}
