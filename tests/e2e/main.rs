//! End to end: the real binary between scripted upstreams and clients that see every byte.
//!
//! One binary for all of it; each test starts a gateway of its own and names the rule of DESIGN or
//! the case of CASES.md that it holds to.

#![expect(
    clippy::string_slice,
    clippy::float_cmp,
    clippy::format_push_string,
    reason = "streams are cut at known ASCII places, metrics that count are whole, speed does not matter here"
)]

#[cfg(test)]
mod harness;

#[cfg(test)]
mod admission;
mod alarm;
#[cfg(test)]
mod captures;
#[cfg(test)]
mod cluster;
#[cfg(test)]
mod commands;
#[cfg(test)]
mod crash;
#[cfg(test)]
mod crowd;
#[cfg(test)]
mod drain;
#[cfg(test)]
mod durable;
#[cfg(test)]
mod endings;
#[cfg(test)]
mod failover;
#[cfg(test)]
mod fidelity;
#[cfg(test)]
mod framing;
#[cfg(test)]
mod headers;
#[cfg(test)]
mod holder;
#[cfg(test)]
mod hostile;
#[cfg(test)]
mod keepalive;
#[cfg(test)]
mod keys;
#[cfg(test)]
mod latency;
#[cfg(test)]
mod leaving;
#[cfg(test)]
mod limits;
#[cfg(test)]
mod matrix;
#[cfg(test)]
mod money;
#[cfg(test)]
mod otlp;
#[cfg(test)]
mod packages;
#[cfg(test)]
mod project;
#[cfg(test)]
mod promises;
#[cfg(test)]
mod reload;
#[cfg(test)]
mod retries;
#[cfg(test)]
mod routing;
#[cfg(test)]
mod secrets;
#[cfg(test)]
mod selftest;
#[cfg(test)]
mod stalls;
#[cfg(test)]
mod stateful;
#[cfg(test)]
mod timeline;
mod tls;
#[cfg(test)]
mod trial;
#[cfg(test)]
mod upgrade;
#[cfg(test)]
mod usage;
