//! Lets a request in, or refuses it: key, headers, body.
//!
//! Called by the gateway before any attempt. Pure: bytes and headers in, facts or a refusal out;
//! it touches no socket and reads no clock.

pub mod address;
pub mod cors;
pub mod edit;
pub mod facts;
pub mod headers;
pub mod keys;
pub mod load;
