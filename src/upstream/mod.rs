//! Speaks to providers.
