//! Every token accounted for.
