//! Speaks to providers: names, connections, one call.
//!
//! Called by the pump, once per attempt. Touches the network.

pub mod call;
pub mod decode;
pub mod resolve;
pub mod site;
mod tunnel;
