//! Decides whether one more request or connection is too many (B3).
//!
//! Asked by the gateway at each request and by the listeners at each connection; one thread looks at the memory.

use crate::config;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// How often the memory is looked at; one small file is read.
pub const LOOK_EVERY: Duration = Duration::from_millis(250);

/// How much there is to do.
#[derive(Debug, Default)]
pub struct Load {
    connections: AtomicU64,
    memory_full: AtomicBool,
}

/// One client connection; counts until it is dropped.
#[derive(Debug)]
pub struct Connection {
    load: Arc<Load>,
    /// Open connections, this one included, when it came.
    pub place: u64,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.load.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Load {
    /// One more connection.
    #[must_use]
    pub fn connected(self: &Arc<Self>) -> Connection {
        let place = self.connections.fetch_add(1, Ordering::Relaxed) + 1;
        Connection { load: Arc::clone(self), place }
    }

    /// Open client connections.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }

    /// Whether a request is one too many; `running` counts it, too.
    #[must_use]
    pub fn is_too_much(&self, server: &config::Server, running: u64) -> bool {
        self.memory_full.load(Ordering::Relaxed) || server.max_streams.is_some_and(|max| running > max)
    }

    /// What the memory is like now. Says so when it becomes too much, and when it is not any more.
    pub fn look(&self, resident: Option<u64>, max: Option<u64>) {
        let full = matches!((resident, max), (Some(resident), Some(max)) if resident > max);
        if self.memory_full.swap(full, Ordering::Relaxed) != full {
            let resident = resident.unwrap_or_default();
            if full {
                log::warn!(resident; "max_memory is used up: new requests get 503");
            } else {
                log::info!(resident; "the memory is below max_memory again");
            }
        }
    }
}

/// Lets the allocator give back what is free: mimalloc does so a second later, but only when it frees pages, which an
/// idle process does not; that of large bodies would stay, and count as load. Called now and then.
pub fn give_back() {
    /// Has pages of its own, which are never touched.
    const BLOCK_BYTES: usize = 1024 * 1024;
    drop(std::hint::black_box(Vec::<u8>::with_capacity(BLOCK_BYTES)));
}

/// Bytes of memory that the process holds, as the system counts them; `None` where it does not say.
#[must_use]
pub fn resident() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b3_connections_count_until_they_end() {
        let load = Arc::new(Load::default());
        let (one, two) = (load.connected(), load.connected());
        assert_eq!((one.place, two.place, load.connections()), (1, 2, 2));
        drop(one);
        assert_eq!(load.connections(), 1);
        assert_eq!(load.connected().place, 2);
    }

    #[test]
    fn b3_the_memory_is_known_and_judged() {
        let resident = resident().expect("Linux says");
        assert!(resident > 1024 * 1024, "{resident}");
        let load = Load::default();
        for (now, max, full) in
            [(Some(5), Some(5), false), (Some(6), Some(5), true), (Some(6), None, false), (None, Some(5), false)]
        {
            load.look(now, max);
            assert_eq!(load.memory_full.load(Ordering::Relaxed), full, "{now:?} {max:?}");
        }
    }
}
