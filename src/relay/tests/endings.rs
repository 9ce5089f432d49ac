//! E2, E3, S1, C3: the ends that are none of the upstream's terminal events.

use super::*;

use Do::{Broken, Drain, End, GiveUp, Wait};
use Next::{Done, Failed};
use Protocol::{Chat, Messages, Responses};

const CUT: Next = Done(Outcome::UpstreamInterrupted, "broken");
const SHORT: Next = Done(Outcome::UpstreamInterrupted, "ended_early");

fn starts() -> [(Protocol, [&'static str; 2], String); 3] {
    [
        (Chat, [ROLE, HEL], chat_cut()),
        (Messages, [MSG_START, MSG_HEL], msg_cut()),
        (Responses, [RESP_CREATED, RESP_HEL], resp_cut()),
    ]
}

#[test]
fn e2_b46_b47_an_end_or_a_reset_without_a_finish_is_one_native_error() {
    for (protocol, [prelude, content], error) in starts() {
        let setup = Setup::new(protocol);
        check("end", &setup, &[up(prelude), up(content), End], &[prelude, content, &error], SHORT);
        check("reset", &setup, &[up(prelude), up(content), Broken], &[prelude, content, &error], CUT);
    }
}

#[test]
fn e1_half_an_event_at_a_clean_end_counts_when_its_json_is_whole() {
    for (protocol, [prelude, content], error) in starts() {
        let setup = Setup::new(protocol);
        let both = [prelude, content].concat();
        // The blank line is missing, or the whole line end.
        for missing in 1..=2 {
            let half = &both[..both.len() - missing];
            check("whole JSON", &setup, &[up(half), End], &[prelude, content, &error], SHORT);
        }
        let more = [content, &content[..content.len() - 3]].concat();
        check("cut JSON", &setup, &[up(prelude), up(more), End], &[prelude, content, &error], SHORT);
        let more = [content, &content[..content.len() - 1]].concat();
        check("b44 reset", &setup, &[up(prelude), up(more), Broken], &[prelude, content, &error], CUT);
    }
}

#[test]
fn a2_b49_b50_an_end_before_content_fails_the_attempt_and_leaves_nothing() {
    for (protocol, [prelude, content], _) in starts() {
        let setup = Setup::new(protocol);
        check("no byte", &setup, &[End], &[], Failed(Failure::Empty));
        check("prelude, end", &setup, &[up(prelude), End], &[], Failed(Failure::Empty));
        check("prelude, reset", &setup, &[up(prelude), Broken], &[], Failed(Failure::Broken));
        let half = &content[..content.len() - 3];
        check("half of the first content", &setup, &[up(prelude), up(half), End], &[], Failed(Failure::Empty));
        let half = &content[..content.len() - 1];
        check("the same by a reset", &setup, &[up(prelude), up(half), Broken], &[], Failed(Failure::Broken));
    }
    let chat = Setup::new(Chat);
    check("b109 only [DONE]", &chat, &[up("data: [DONE]\n\n")], &[], Failed(Failure::Empty));
    check("usage and [DONE]", &chat, &[up(ROLE), up(USAGE), up("data: [DONE]\n\n")], &[], Failed(Failure::Empty));
    check("message_stop", &Setup::new(Messages), &[up(MSG_START), up(MSG_END)], &[], Failed(Failure::Empty));
}

#[test]
fn a2_finish_without_output_commits_unless_asked_otherwise() {
    let mut chat = Setup::new(Chat);
    let steps = [up(ROLE), up(STOP), up("data: [DONE]\n\n")];
    check("default", &chat, &steps, &[ROLE, STOP, "data: [DONE]\n\n"], Done(Outcome::Completed, "terminal"));
    chat.plan.failover_on_empty = true;
    check("b107 asked", &chat, &steps[..2], &[], Failed(Failure::Empty));
    chat.ask.choices = Some(2);
    check("one of two choices may be empty", &chat, &steps[..2], &[], Next::Wait);
    let second = HEL.replace("\"index\":0", "\"index\":1");
    check("the other is not", &chat, &[up(ROLE), up(STOP), up(&second)], &[ROLE, STOP, &second], Next::Wait);
    check("neither came", &chat, &[up(ROLE), up(STOP), End], &[], Failed(Failure::Empty));
    let mut responses = Setup::new(Responses);
    responses.plan.failover_on_empty = true;
    check("responses", &responses, &[up(RESP_CREATED), up(RESP_DONE)], &[], Failed(Failure::Empty));
    let mut messages = Setup::new(Messages);
    messages.plan.failover_on_empty = true;
    check("messages", &messages, &[up(MSG_START), up(MSG_STOP)], &[], Failed(Failure::Empty));
}

#[test]
fn f2_an_event_too_large_is_the_upstreams_fault() {
    for (protocol, [prelude, content], error) in starts() {
        let mut setup = Setup::new(protocol);
        setup.plan.max_event_bytes = 512;
        let large = format!("data: {}", "x".repeat(600));
        check("before content", &setup, &[up(prelude), up(&large)], &[], Failed(Failure::TooLarge));
        let next = Done(Outcome::UpstreamInterrupted, "too_large");
        check("after", &setup, &[up(prelude), up(content), up(&large)], &[prelude, content, &error], next);
        let one_read = [prelude, content, &large].concat();
        check("in one read", &setup, &[up(one_read)], &[prelude, content, &error], next);
    }
    let mut chat = Setup::new(Chat);
    chat.plan.max_event_bytes = 512;
    let read = [ROLE, HEL, "data: [DONE]\n\n", &"x".repeat(600), "\r"].concat();
    let out = [ROLE, HEL, "data: [DONE]\n\n"];
    check("behind the terminal", &chat, &[up(read)], &out, Done(Outcome::Completed, "terminal"));
}

#[test]
fn s1_total_ends_a_stream_and_refuses_what_is_not_open() {
    let message = "The response took too long, please retry";
    let errors = [
        chat_error(message, "stream_timeout"),
        msg_error("timeout_error", message),
        resp_failed(("resp_abc", "m", 9, 42), "server_error", message),
    ];
    for ((protocol, [prelude, content], _), error) in starts().into_iter().zip(errors) {
        let mut setup = Setup::new(protocol);
        setup.plan.timeouts.total = Duration::from_secs(30);
        check("before opening", &setup, &[up(prelude), Wait(29.9)], &[], Next::Wait);
        check("before opening", &setup, &[up(prelude), Wait(30.0)], &[], Failed(Failure::Total));
        let steps = [up(prelude), up(content), Wait(30.0)];
        check("after", &setup, &steps, &[prelude, content, &error], Done(Outcome::Timeout, "total"));
    }
}

#[test]
fn c3_drain_ends_a_stream_and_refuses_what_is_not_open() {
    let message = "The server is shutting down, please retry";
    let errors = [
        chat_error(message, "server_draining"),
        msg_error("overloaded_error", message),
        resp_failed(("resp_abc", "m", 9, 42), "server_error", message),
    ];
    for ((protocol, [prelude, content], _), error) in starts().into_iter().zip(errors) {
        let setup = Setup::new(protocol);
        check("before opening", &setup, &[up(prelude), Drain], &[], Failed(Failure::Draining));
        let steps = [up(prelude), up(content), Drain];
        check("after", &setup, &steps, &[prelude, content, &error], Done(Outcome::Drained, "draining"));
        let half = [content, &content[..20]].concat();
        let steps = [up(prelude), up(half), Drain];
        check(
            "never on half an event",
            &setup,
            &steps,
            &[prelude, content, &error],
            Done(Outcome::Drained, "draining"),
        );
    }
}

#[test]
fn e3_stalls_end_in_their_own_words() {
    let message = "The model stopped sending output, please retry";
    let errors = [
        chat_error(message, "stream_stalled"),
        msg_error("api_error", message),
        resp_failed(("resp_abc", "m", 9, 42), "server_error", message),
    ];
    for ((protocol, [prelude, content], _), error) in starts().into_iter().zip(errors) {
        let setup = Setup::new(protocol);
        let steps = [up(prelude), up(content), Wait(90.0)];
        check("b76 silence", &setup, &steps, &[prelude, content, &error], Done(Outcome::Stalled, "idle"));
        let half = [content, &content[..20]].concat();
        let steps = [up(prelude), up(half), Wait(90.0)];
        check("inside an event", &setup, &steps, &[prelude, content, &error], Done(Outcome::Stalled, "idle"));
    }
}

#[test]
fn a7_give_up_after_k3_names_the_request_and_starts_at_zero() {
    let give_up = GiveUp(Ending::Overloaded, Outcome::UpstreamError, "overloaded");
    let message = "The model is overloaded, please retry later";
    let errors = [
        (Chat, chat_error(message, "upstream_overloaded")),
        (Messages, msg_error("overloaded_error", message)),
        (Responses, resp_failed(("resp_0190", "public", 1000, 0), "rate_limit_exceeded", message)),
    ];
    for ((protocol, error), (_, [prelude, _], _)) in errors.into_iter().zip(starts()) {
        let setup = Setup::alive(protocol);
        let steps = [up(prelude), Wait(10.0), Broken, give_up.clone()];
        let out = [": weir-keepalive\n\n", &error];
        check("k3", &setup, &steps, &out, Done(Outcome::UpstreamError, "overloaded"));
    }
}

#[test]
fn k3_drain_and_total_end_a_stream_that_only_keepalives_opened() {
    let mut setup = Setup::alive(Responses);
    let error =
        resp_failed(("resp_0190", "public", 1000, 0), "server_error", "The server is shutting down, please retry");
    let steps = [up(RESP_CREATED), Wait(10.0), Drain];
    check("drain", &setup, &steps, &[": weir-keepalive\n\n", &error], Done(Outcome::Drained, "draining"));
    setup.plan.timeouts.total = Duration::from_secs(15);
    let error =
        resp_failed(("resp_0190", "public", 1000, 0), "server_error", "The response took too long, please retry");
    let steps = [up(RESP_CREATED), Wait(20.0)];
    check("total", &setup, &steps, &[": weir-keepalive\n\n", &error], Done(Outcome::Timeout, "total"));
}

#[test]
fn g2_a_budget_that_runs_out_cuts_in_the_middle() {
    let budget = GiveUp(Ending::Budget, Outcome::BudgetReached, "budget");
    let error = chat_error("The budget of this API key is used up", "budget_exceeded");
    let steps = [up(ROLE), up(HEL), up(&LO[..9]), budget];
    check("cut", &Setup::new(Chat), &steps, &[ROLE, HEL, &error], Done(Outcome::BudgetReached, "budget"));
}

#[test]
fn b100_a_committed_response_without_sequence_numbers_fails_with_zero() {
    let content = RESP_HEL.replace("\"sequence_number\":41,", "");
    let error =
        resp_failed(("resp_0190", "public", 1000, 0), "server_error", "Response stream interrupted, please retry");
    check("none", &Setup::new(Responses), &[up(&content), End], &[&content, &error], SHORT);
}

#[test]
fn e2_no_done_where_the_operator_wants_none() {
    let mut chat = Setup::new(Chat);
    chat.plan.chat_error_done = false;
    let error = chat_cut().replace("data: [DONE]\n\n", "");
    check("cut", &chat, &[up(ROLE), up(HEL), Broken], &[ROLE, HEL, &error], CUT);
}
