//! One shape for all providers.
