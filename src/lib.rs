//! Weir: a streaming gateway for LLM APIs, on Pingora. `ARCHITECTURE.md` is the map.

#![cfg_attr(test, expect(clippy::string_slice, reason = "tests slice the texts they wrote themselves"))]

pub mod access;
pub mod admin;
pub mod admission;
pub mod alarm;
pub mod config;
pub mod console;
pub mod demo;
pub mod gateway;
pub mod handover;
pub mod import;
pub mod json;
pub mod keystore;
pub mod ledger;
pub mod limit;
pub mod live;
pub mod logging;
pub mod meter;
pub mod metrics;
pub mod normalize;
pub mod otlp;
pub mod outcome;
pub mod owners;
pub mod protocol;
pub mod record;
pub mod refusal;
pub mod relay;
pub mod route;
pub mod server;
pub mod sse;
pub mod switches;
pub mod timeline;
pub mod trial;
pub mod upstream;

#[cfg(test)]
#[path = "../tests/shared/mod.rs"]
mod shared;
