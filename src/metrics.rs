//! Every metric, declared in one place.
