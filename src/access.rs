//! The access record of a request.
