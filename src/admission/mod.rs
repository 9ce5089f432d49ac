//! Lets a request in, or refuses it.
