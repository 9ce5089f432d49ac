use super::*;
use proptest::prelude::*;

fn usage(input: Option<u64>, output: Option<u64>) -> Usage {
    Usage { input, output, ..Usage::default() }
}

/// Whole, nothing estimated, output delivered.
fn facts(outcome: Outcome, reported: Usage) -> Facts {
    Facts {
        outcome,
        reported,
        output_delivered: true,
        input_estimate: None,
        delivered_estimate: None,
        received_estimate: None,
        max_output: None,
    }
}

#[test]
fn u4_where_the_numbers_are_from() {
    let done = Outcome::Completed;
    let estimates = |facts: Facts| Facts { input_estimate: Some(9), delivered_estimate: Some(5), ..facts };
    let no_output = |facts: Facts| Facts { output_delivered: false, ..facts };
    for (name, facts, source, used) in [
        ("reported", facts(done, usage(Some(12), Some(2))), Source::Reported, usage(Some(12), Some(2))),
        (
            "estimates never replace reports",
            estimates(facts(done, usage(Some(12), Some(2)))),
            Source::Reported,
            usage(Some(12), Some(2)),
        ),
        ("B176 output null", estimates(facts(done, usage(Some(12), None))), Source::Partial, usage(Some(12), Some(5))),
        ("input null", estimates(facts(done, usage(None, Some(2)))), Source::Partial, usage(Some(9), Some(2))),
        (
            "B196 nothing reported",
            estimates(facts(done, usage(None, None))),
            Source::Estimated,
            usage(Some(9), Some(5)),
        ),
        ("embeddings", no_output(facts(done, usage(Some(8), None))), Source::Reported, usage(Some(8), None)),
        ("nothing at all", no_output(facts(done, usage(None, None))), Source::None, usage(None, None)),
        (
            "B223 left before output",
            no_output(facts(Outcome::ClientGone, usage(Some(25), None))),
            Source::None,
            usage(Some(25), None),
        ),
    ] {
        let bill = decide(&facts, &Policy::default());
        assert_eq!((bill.source, bill.usage), (source, used), "{name}");
    }
}

#[expect(clippy::too_many_lines, reason = "a table")]
#[test]
fn u5_what_is_charged_and_why() {
    let gone = |reported| Facts {
        input_estimate: Some(9),
        delivered_estimate: Some(50),
        ..facts(Outcome::ClientGone, reported)
    };
    let all = Policy::default();
    let free = Policy { client_gone: Basis::Free, ..all };
    let full = Policy { client_gone: Basis::Full, ..all };
    let drained = Facts { received_estimate: Some(80), ..gone(usage(Some(12), None)) };
    for (name, facts, policy, charged, why) in [
        (
            "whole",
            facts(Outcome::Completed, usage(Some(12), Some(2))),
            all,
            usage(Some(12), Some(2)),
            "whole answer, reported usage",
        ),
        (
            "truncated is whole",
            facts(Outcome::Truncated, usage(Some(12), Some(2))),
            all,
            usage(Some(12), Some(2)),
            "whole answer, reported usage",
        ),
        (
            "B218 refused",
            facts(Outcome::ClientError, usage(Some(12), None)),
            all,
            NOTHING,
            "refused: nothing was generated",
        ),
        ("B220 left, usage drained", gone(usage(Some(12), Some(40))), all, usage(Some(12), Some(40)), "reported usage"),
        (
            "left early, usage drained",
            gone(usage(Some(12), Some(400))),
            all,
            usage(Some(12), Some(50)),
            "reported usage, capped by the estimate of what was delivered",
        ),
        (
            "B164 left, input only",
            gone(usage(Some(12), None)),
            all,
            usage(Some(12), Some(50)),
            "reported input, estimated delivered output",
        ),
        (
            "B221 left, nothing reported",
            gone(usage(None, None)),
            all,
            usage(Some(9), Some(50)),
            "estimated input and delivered output",
        ),
        ("free", gone(usage(Some(12), Some(400))), free, NOTHING, "free of charge by policy"),
        (
            "full",
            gone(usage(Some(12), Some(400))),
            full,
            usage(Some(12), Some(400)),
            "all that was generated, by policy",
        ),
        (
            "full, estimated over all received",
            drained,
            full,
            usage(Some(12), Some(80)),
            "all that was generated, by policy",
        ),
        (
            "delivered is less than received",
            drained,
            all,
            usage(Some(12), Some(50)),
            "reported input, estimated delivered output",
        ),
        (
            "B223 no output, even in full",
            Facts { output_delivered: false, ..gone(usage(Some(12), None)) },
            full,
            NOTHING,
            "no output was delivered",
        ),
        (
            "B193 failed with usage and output",
            facts(Outcome::UpstreamError, usage(Some(20), Some(3))),
            all,
            usage(Some(20), Some(3)),
            "reported usage",
        ),
        (
            "an estimate stops at the request's maximum",
            Facts { max_output: Some(30), ..gone(usage(Some(12), None)) },
            all,
            usage(Some(12), Some(30)),
            "reported input, estimated delivered output",
        ),
        (
            "unmeasurable",
            Facts { delivered_estimate: None, ..gone(usage(Some(12), None)) },
            all,
            usage(Some(12), None),
            "the delivered output could not be estimated: input only",
        ),
    ] {
        let bill = decide(&facts, &policy);
        assert_eq!((bill.charged, bill.why), (charged, why), "{name}");
    }
}

#[test]
fn b166_cache_parts_stay_when_the_client_leaves() {
    let reported = Usage { cache_read: Some(1000), ..usage(Some(1005), None) };
    let bill =
        decide(&Facts { delivered_estimate: Some(7), ..facts(Outcome::ClientGone, reported) }, &Policy::default());
    assert_eq!(bill.charged, Usage { output: Some(7), ..reported });
}

#[test]
fn u5_policy_is_read_strictly() {
    let policy: Policy = serde_saphyr::from_str("{ client_gone: free, crashed: full }").unwrap();
    assert_eq!(policy, Policy { client_gone: Basis::Free, crashed: Basis::Full, ..Policy::default() });
    for bad in ["{ client_gnoe: free }", "{ client_gone: half }", "{ completed: free }"] {
        assert!(serde_saphyr::from_str::<Policy>(bad).is_err(), "{bad}");
    }
}

proptest! {
    /// Whatever is known: nobody pays for more output than was used, and no output means no charge.
    #[test]
    fn u5_never_more_than_used(
        which in 0_usize..13, basis in 0_usize..3, output_delivered: bool,
        numbers in proptest::array::uniform6(proptest::option::of(0_u64..1 << 40)),
    ) {
        let basis = [Basis::Delivered, Basis::Full, Basis::Free][basis];
        let policy = Policy { client_gone: basis, upstream_error: basis, upstream_interrupted: basis, stalled: basis,
            timeout: basis, budget_reached: basis, drained: basis, internal: basis, crashed: basis };
        let [input, output, input_estimate, delivered_estimate, extra, max_output] = numbers;
        let received_estimate = delivered_estimate.map(|tokens| tokens + extra.unwrap_or(0));
        let facts = Facts { outcome: Outcome::ALL[which], reported: usage(input, output), output_delivered,
            input_estimate, delivered_estimate, received_estimate, max_output };
        let bill = decide(&facts, &policy);
        prop_assert!(bill.charged.output.unwrap_or(0) <= bill.usage.output.unwrap_or(0));
        prop_assert!(bill.charged.input.unwrap_or(0) <= bill.usage.input.unwrap_or(0));
        if let (None, Some(most)) = (output, max_output) {
            prop_assert!(bill.usage.output.unwrap_or(0) <= most);
        }
        if policy.of(facts.outcome).is_some() && !output_delivered {
            prop_assert_eq!(bill.charged, NOTHING);
        }
        if output.is_some() {
            prop_assert_eq!(bill.usage.output, output, "a report is never replaced");
        }
    }
}
