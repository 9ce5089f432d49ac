//! The built-in scripted model.
