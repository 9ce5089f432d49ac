//! The one thread of the map: writes what came together in one transaction, and shares it with PostgreSQL.
//!
//! Run by [`super::Owners::open`]. Touches the file and the network; nobody waits for PostgreSQL but those who look for
//! what the file does not have.

use super::local::{Local, Row};
use super::remote::Remote;
use super::{Owner, Task, Unreadable, now, patience};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// How often what is over is removed.
const EXPIRE: Duration = Duration::from_mins(10);
/// How often what PostgreSQL lacks is tried again.
const SHARE: Duration = Duration::from_millis(500);
/// Facts in one transaction.
const BATCH: usize = 256;

/// Works until every sender is gone.
pub(super) async fn run(mut local: Local, mut remote: Option<Remote>, mut queue: mpsc::Receiver<Task>) {
    let mut expire = tokio::time::interval(EXPIRE);
    let mut share = tokio::time::interval(SHARE);
    let mut tasks = Vec::with_capacity(BATCH);
    loop {
        tokio::select! {
            count = queue.recv_many(&mut tasks, BATCH) => {
                if count == 0 {
                    return;
                }
                work(&mut local, &mut remote, tasks.drain(..)).await;
                if let Some(remote) = &mut remote {
                    share_some(&mut local, remote).await;
                }
            }
            _ = share.tick(), if remote.is_some() => {
                if let Some(remote) = &mut remote {
                    share_some(&mut local, remote).await;
                }
            }
            _ = expire.tick() => {
                note("expire", local.expire(now()));
                if let Some(remote) = &mut remote {
                    note("expire", remote.expire().await);
                }
            }
        }
    }
}

async fn work(local: &mut Local, remote: &mut Option<Remote>, tasks: impl Iterator<Item = Task>) {
    let (mut rows, mut waiting): (Vec<Row>, Vec<oneshot::Sender<()>>) = (Vec::new(), Vec::new());
    let mut others = Vec::new();
    for task in tasks {
        match task {
            Task::Keep { id, owner, until, done } => {
                let due = now().saturating_add(patience::FIRST);
                rows.push(Row { id, owner, until, due });
                waiting.push(done);
            }
            Task::Due { .. } | Task::Find { .. } | Task::Settle { .. } | Task::Forget { .. } => others.push(task),
        }
    }
    if !rows.is_empty() {
        match local.keep(&rows, remote.is_none()) {
            Ok(()) => {
                for done in waiting {
                    let _ = done.send(());
                }
            }
            // Whoever waits is told by the end of their channel.
            Err(error) => log::error!(error:%; "stored responses are forgotten: the map of them cannot be written"),
        }
    }
    for task in others {
        match task {
            Task::Keep { .. } => {}
            Task::Due { targets, most, due: asked } => drop(asked.send(due(local, remote, &targets, most).await)),
            Task::Find { id, found } => drop(found.send(find(local, remote, &id).await)),
            Task::Settle { id, first } => {
                let _ = first.send(settle(local, remote, &id).await);
            }
            Task::Forget { id } => {
                note("forget", local.forget(&id));
                if let Some(remote) = remote {
                    note("forget", remote.forget(&id).await);
                }
            }
        }
    }
}

async fn find(local: &mut Local, remote: &mut Option<Remote>, id: &str) -> Result<Option<Owner>, Unreadable> {
    let here = local.find(id, now()).map_err(|error| {
        log::error!(error:%; "the map of stored responses cannot be read");
        Unreadable
    })?;
    let (None, Some(remote)) = (&here, remote) else { return Ok(here) };
    match remote.find(id).await {
        Ok(None) => Ok(None),
        Ok(Some(row)) => {
            note("copy", local.keep(std::slice::from_ref(&row), true));
            Ok(Some(row.owner))
        }
        Err(error) => {
            log::warn!(error:%; "PostgreSQL's part of the map of stored responses cannot be read");
            Err(Unreadable)
        }
    }
}

/// With PostgreSQL, it hands them out: another gateway may be asking.
async fn due(local: &mut Local, remote: &mut Option<Remote>, targets: &[String], most: usize) -> Vec<(String, Owner)> {
    let due = if let Some(remote) = remote {
        share_some(local, remote).await;
        remote.due(targets, most).await.map_err(|error| error.to_string())
    } else {
        local.due(targets, most, now()).map_err(|error| error.to_string())
    };
    due.unwrap_or_else(|error| {
        log::debug!(error; "which background responses are to be fetched cannot be told now");
        Vec::new()
    })
}

/// With PostgreSQL, it decides: another gateway may have been first.
async fn settle(local: &mut Local, remote: &mut Option<Remote>, id: &str) -> bool {
    if let Some(remote) = remote {
        share_some(local, remote).await;
        return match remote.settle(id).await {
            Ok(first) => {
                note("settle", local.settle(id));
                first
            }
            Err(error) => {
                log::warn!(error:%; "the usage of a background response is not booked yet: PostgreSQL is away");
                false
            }
        };
    }
    local.settle(id).unwrap_or(false)
}

async fn share_some(local: &mut Local, remote: &mut Remote) {
    loop {
        let rows = match local.unshared() {
            Ok(rows) if rows.is_empty() => return,
            Ok(rows) => rows,
            Err(error) => return note::<(), _>("share", Err(error)),
        };
        if let Err(error) = remote.keep(&rows).await {
            log::debug!(error:%; "stored responses wait for PostgreSQL");
            return;
        }
        if let Err(error) = local.shared(&rows) {
            return note::<(), _>("share", Err(error));
        }
    }
}

fn note<T, E: std::fmt::Display>(what: &'static str, result: Result<T, E>) {
    if let Err(error) = result {
        log::warn!(what, error:%; "the map of stored responses");
    }
}
