//! E1, E4: terminal events, their missing, and the upstream's own errors.

use super::script::{CHAT_ERROR, CHAT_FAULT, MSG_ERROR, RESP_ERROR};
use super::*;

use Do::{Broken, Drain, End, Wait};
use Next::{Done, Failed};
use Protocol::{Chat, Messages, Responses};

const DONE: &str = "data: [DONE]\n\n";
const COMPLETE: Next = Done(Outcome::Completed, "terminal");
const ADDED: Next = Done(Outcome::Completed, "terminal_added");
const FAILED: Next = Done(Outcome::UpstreamError, "error_event");

#[test]
fn e1_a_terminal_event_ends_at_once_and_nothing_follows() {
    let chat = Setup::new(Chat);
    let steps = [up(ROLE), up(HEL), up([STOP, DONE, LO, DONE].concat())];
    check("chat", &chat, &steps, &[ROLE, HEL, STOP, DONE], COMPLETE);
    check("no finish", &chat, &[up(HEL), up(DONE)], &[HEL, DONE], COMPLETE);
    check(
        "length",
        &chat,
        &[up(HEL), up(LENGTH), up(DONE)],
        &[HEL, LENGTH, DONE],
        Done(Outcome::Truncated, "terminal"),
    );
    let steps = [up(MSG_START), up(MSG_HEL), up(MSG_STOP), up([MSG_END, MSG_PING].concat())];
    check("messages", &Setup::new(Messages), &steps, &[MSG_START, MSG_HEL, MSG_STOP, MSG_END], COMPLETE);
    let responses = Setup::new(Responses);
    let steps = [up(RESP_CREATED), up(RESP_HEL), up([RESP_DONE, RESP_HEL].concat())];
    check("responses", &responses, &steps, &[RESP_CREATED, RESP_HEL, RESP_DONE], COMPLETE);
    let steps = [up(RESP_HEL), up(RESP_INCOMPLETE)];
    check("incomplete", &responses, &steps, &[RESP_HEL, RESP_INCOMPLETE], Done(Outcome::Truncated, "terminal"));
}

#[test]
fn e1_b58_finished_without_a_terminal_is_complete() {
    for last in [End, Broken, Wait(5.0), Drain] {
        let steps = [up(ROLE), up(HEL), up(STOP), last.clone()];
        check(&format!("chat {last:?}"), &Setup::new(Chat), &steps, &[ROLE, HEL, STOP, DONE], ADDED);
        let steps = [up(MSG_START), up(MSG_HEL), up(MSG_STOP), last.clone()];
        let out = [MSG_START, MSG_HEL, MSG_STOP, MSG_END];
        check(&format!("messages {last:?}"), &Setup::new(Messages), &steps, &out, ADDED);
        let steps = [up(HEL), up(LENGTH), up("data: {\"choices\""), last];
        check(
            "half an event goes",
            &Setup::new(Chat),
            &steps,
            &[HEL, LENGTH, DONE],
            Done(Outcome::Truncated, "terminal_added"),
        );
    }
}

#[test]
fn e1_b55_five_seconds_from_the_last_data_event() {
    let chat = Setup::new(Chat);
    let steps = [up(ROLE), up(HEL), up(STOP), Wait(4.9), up(": hm\n\n"), Wait(0.05)];
    check("a comment is no data", &chat, &steps, &[ROLE, HEL, STOP, ": hm\n\n"], Next::Wait);
    let steps = [up(ROLE), up(HEL), up(STOP), Wait(4.9), up(": hm\n\n"), Wait(0.1)];
    check("a comment is no data", &chat, &steps, &[ROLE, HEL, STOP, ": hm\n\n", DONE], ADDED);
    let steps = [up(ROLE), up(HEL), up(STOP), Wait(4.9), up(USAGE), Wait(4.9)];
    check("usage is", &chat, &steps, &[ROLE, HEL, STOP, USAGE], Next::Wait);
    let steps = [up(ROLE), up(HEL), up(STOP), Wait(4.9), up(USAGE), Wait(5.0)];
    check("usage is", &chat, &steps, &[ROLE, HEL, STOP, USAGE, DONE], ADDED);
    let mut strip = Setup::new(Chat);
    strip.ask.strip_usage = true;
    let steps = [up(ROLE), up(HEL), up(STOP), Wait(4.9), up(USAGE), Wait(4.9)];
    check("even if dropped", &strip, &steps, &[ROLE, HEL, STOP], Next::Wait);
}

#[test]
fn e1_all_choices_have_to_finish() {
    let second = |text: &str| text.replace("\"index\":0", "\"index\":1");
    let mut chat = Setup::new(Chat);
    let steps = [up(HEL), up(second(HEL)), up(STOP), Wait(6.0), End];
    let out = [HEL, &second(HEL), STOP, &chat_cut()];
    check("seen", &chat, &steps, &out, Done(Outcome::UpstreamInterrupted, "ended_early"));
    let steps = [up(HEL), up(second(HEL)), up(STOP), up(second(LENGTH)), End];
    let out = [HEL, &second(HEL), STOP, &second(LENGTH), DONE];
    check("both", &chat, &steps, &out, Done(Outcome::Truncated, "terminal_added"));
    chat.ask.choices = Some(2);
    let steps = [up(HEL), up(STOP), End];
    check("n", &chat, &steps, &[HEL, STOP, &chat_cut()], Done(Outcome::UpstreamInterrupted, "ended_early"));
}

#[test]
fn e1_b05_after_a_final_cr_its_lf_is_waited_for() {
    let crlf = |text: &str| text.replace('\n', "\r\n");
    let before = [ROLE, HEL, STOP, DONE].map(crlf).concat();
    let cut = &before[..before.len() - 1];
    let chat = Setup::new(Chat);
    check("it comes", &chat, &[up(cut), up("\n")], &[&before], COMPLETE);
    check("it comes late", &chat, &[up(cut), Wait(0.9), up("\ndata: more")], &[&before], COMPLETE);
    check("it does not", &chat, &[up(cut), Wait(0.9)], &[cut], Next::Wait);
    for last in [Wait(1.0), End, Broken, Drain, up("data: x")] {
        check(&format!("{last:?}"), &chat, &[up(cut), last], &[cut], COMPLETE);
    }
    check("nothing is nothing", &chat, &[up(cut), up(""), Wait(0.9)], &[cut], Next::Wait);
    let bare = [ROLE, HEL, STOP, DONE].map(|text| text.replace('\n', "\r")).concat();
    check("cr only", &chat, &[up(&bare)], &[&bare], COMPLETE);
    let glued = [cut, "data: x\r"].concat();
    check("an event behind it", &chat, &[up(&glued)], &[cut], COMPLETE);
}

#[test]
fn e1_b41_b43_the_terminal_counts_without_its_blank_line() {
    let chat = Setup::new(Chat);
    let head = [ROLE, HEL, STOP].concat();
    check("lf", &chat, &[up(&head), up("data: [DONE]\n"), End], &[&head, DONE], COMPLETE);
    check("nothing", &chat, &[up(&head), up("data: [DONE]"), End], &[&head, DONE], COMPLETE);
    check("space", &chat, &[up(&head), up("data: [DONE] "), End], &[&head, "data: [DONE] \n\n"], COMPLETE);
    let crlf = head.replace('\n', "\r\n");
    for (tail, rest) in [("data: [DONE]", "\r\n\r\n"), ("data: [DONE]\r", "\n\r\n"), ("data: [DONE]\r\n", "\r\n")] {
        check(&format!("{tail:?}"), &chat, &[up(&crlf), up(tail), End], &[&crlf, tail, rest], COMPLETE);
    }
    check("b44 reset", &chat, &[up(&head), up("data: [DONE]\n"), Broken], &[&head, DONE], ADDED);
    let half = RESP_DONE.trim_end();
    let steps = [up(RESP_CREATED), up(RESP_HEL), up(half), End];
    check("responses", &Setup::new(Responses), &steps, &[RESP_CREATED, RESP_HEL, RESP_DONE], COMPLETE);
}

#[test]
fn a2_b92_an_error_event_before_content_fails_the_attempt() {
    let failed = Failed(Failure::ErrorEvent(500));
    check("chat", &Setup::new(Chat), &[up(ROLE), up(CHAT_ERROR)], &[], failed);
    check("one read", &Setup::new(Chat), &[up([ROLE, CHAT_ERROR, HEL].concat())], &[], failed);
    let fault = Failed(Failure::ClientErrorEvent(400));
    check("b110 fault", &Setup::new(Chat), &[up(CHAT_FAULT)], &[], fault);
    let steps = [up([MSG_START, MSG_PING, MSG_PING].concat()), Wait(2.0), up(MSG_ERROR)];
    check("b127", &Setup::new(Messages), &steps, &[], Failed(Failure::ErrorEvent(529)));
    let steps = [up(RESP_CREATED), up(RESP_ERROR)];
    check("b128", &Setup::new(Responses), &steps, &[], Failed(Failure::ErrorEvent(529)));
    let b20 = "error: {\"code\":400,\"type\":\"invalid_request_error\"}\n\ndata: [DONE]\n\n";
    check("b20", &Setup::new(Chat), &[up(b20)], &[], fault);
    let with_text = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"x\"},\"finish_reason\":\"error\"}]}\n\n";
    check("text in the error itself", &Setup::new(Chat), &[up(with_text)], &[], failed);
}

#[test]
fn e4_b91_b106_an_error_event_after_content_passes_and_ends() {
    let chat = Setup::new(Chat);
    check("chat", &chat, &[up(HEL), up(CHAT_ERROR)], &[HEL, CHAT_ERROR, DONE], FAILED);
    let steps = [up([HEL, CHAT_ERROR, DONE, LO].concat())];
    check("its own [DONE]", &chat, &steps, &[HEL, CHAT_ERROR, DONE], FAILED);
    let steps = [up([HEL, CHAT_ERROR, LO].concat())];
    check("nothing behind it", &chat, &steps, &[HEL, CHAT_ERROR, DONE], FAILED);
    let fault = Done(Outcome::ClientError, "error_event");
    check("the client's own fault", &chat, &[up(HEL), up(CHAT_FAULT)], &[HEL, CHAT_FAULT, DONE], fault);
    check("after the finish", &chat, &[up(HEL), up(STOP), up(CHAT_ERROR)], &[HEL, STOP, CHAT_ERROR, DONE], FAILED);
    let half = CHAT_ERROR.trim_end();
    check("without a blank line", &chat, &[up(HEL), up(half), End], &[HEL, CHAT_ERROR, DONE], FAILED);
    let steps = [up(MSG_START), up(MSG_HEL), up([MSG_ERROR, MSG_END].concat())];
    check("b95 messages", &Setup::new(Messages), &steps, &[MSG_START, MSG_HEL, MSG_ERROR], FAILED);
    let steps = [up(RESP_CREATED), up(RESP_HEL), up(RESP_ERROR)];
    check("responses", &Setup::new(Responses), &steps, &[RESP_CREATED, RESP_HEL, RESP_ERROR], FAILED);
    let mut quiet = Setup::new(Chat);
    quiet.plan.chat_error_done = false;
    check("no [DONE] wanted", &quiet, &[up(HEL), up(CHAT_ERROR)], &[HEL, CHAT_ERROR], FAILED);
}

#[test]
fn e4_an_error_event_that_ends_in_a_cr_gets_its_lf_before_the_done() {
    let crlf = [HEL, CHAT_ERROR].concat().replace('\n', "\r\n");
    let cut = &crlf[..crlf.len() - 1];
    let chat = Setup::new(Chat);
    check("waits", &chat, &[up(cut)], &[cut], Next::Wait);
    check("lf", &chat, &[up(cut), up("\n")], &[&crlf, DONE], FAILED);
    check("no lf", &chat, &[up(cut), Wait(1.0)], &[cut, DONE], FAILED);
    check("end", &chat, &[up(cut), End], &[cut, DONE], FAILED);
    check("whole", &chat, &[up(&crlf)], &[&crlf, DONE], FAILED);
}

#[test]
fn f4_b20_a_field_named_error_after_content_is_said_again_so_that_sdks_see_it() {
    for (json, error) in [
        ("{\"code\":500,\"type\":\"error\"}", chat_cut()),
        (
            "{\"code\":529,\"type\":\"error\"}",
            chat_error("The model is overloaded, please retry later", "upstream_overloaded"),
        ),
        (
            "{\"code\":429,\"type\":\"error\"}",
            chat_error("The model's rate limit was reached, please retry later", "rate_limit_exceeded"),
        ),
    ] {
        let field = format!("error: {json}\n\n");
        let steps = [up([HEL, &field, "data: [DONE]\n\n"].concat())];
        check(json, &Setup::new(Chat), &steps, &[HEL, &field, &error], FAILED);
    }
}
