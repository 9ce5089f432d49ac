//! The operators' listener.
