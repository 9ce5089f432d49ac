//! A2 to A4, K3: the gate, and attempts after one another.

use super::*;
use crate::relay::gate::MAX_PRELUDE_BYTES;

use Do::{Broken, End, Head, Wait};
use Next::{Done, Failed};
use Protocol::{Chat, Messages, Responses};

const KEEPALIVE: &str = ": weir-keepalive\n\n";
const CR: &str = "\n: pad\r\n";

#[test]
fn a3_b125_an_attempt_that_dies_after_its_prelude_leaves_nothing() {
    let second = MSG_START.replace("msg_1", "msg_2");
    let steps = [
        up([MSG_START, MSG_PING, MSG_BLOCK].concat()),
        Broken,
        Head,
        up(&second),
        up(MSG_HEL),
        up(MSG_STOP),
        up(MSG_END),
    ];
    let out = [&second, MSG_HEL, MSG_STOP, MSG_END];
    check("one prelude", &Setup::new(Messages), &steps, &out, Done(Outcome::Completed, "terminal"));
}

#[test]
fn a3_b128_also_after_k3_and_with_the_winners_own_numbers() {
    let second = RESP_CREATED.replace("resp_abc", "resp_two");
    let steps = [up(RESP_CREATED), Wait(10.0), Broken, Head, up(&second), Wait(12.0), up(RESP_HEL), Broken];
    let error = resp_failed(("resp_two", "m", 9, 42), "server_error", "Response stream interrupted, please retry");
    let out = [KEEPALIVE, KEEPALIVE, &second, RESP_HEL, &error];
    check("k3", &Setup::alive(Responses), &steps, &out, Done(Outcome::UpstreamInterrupted, "broken"));
}

#[test]
fn a3_prelude_and_first_content_go_out_in_one_write() {
    let mut play = Setup::new(Messages).start();
    play.head().up(MSG_START).up(MSG_PING).up(MSG_BLOCK);
    assert_eq!(play.relay.held(), [MSG_START, MSG_PING, MSG_BLOCK].concat().len());
    assert!(!play.relay.is_committed());
    play.up(MSG_HEL);
    assert!(play.relay.is_committed());
    assert_eq!(play.writes.len(), 1);
    assert_eq!(play.text(), [MSG_START, MSG_PING, MSG_BLOCK, MSG_HEL].concat());
    assert_eq!(play.relay.held(), 0);
}

#[test]
fn a4_b124_any_output_commits() {
    let tool = "data: {\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":0,\"id\":\"t\"}]}}]}\n\n";
    let steps = [up(ROLE), up(tool), Broken];
    let next = Done(Outcome::UpstreamInterrupted, "broken");
    check("a tool call", &Setup::new(Chat), &steps, &[ROLE, tool, &chat_cut()], next);
    let thought = MSG_HEL.replace("text_delta\",\"text", "thinking_delta\",\"thinking");
    let steps = [up(MSG_START), up(&thought), Broken];
    check("a thought", &Setup::new(Messages), &steps, &[MSG_START, &thought, &msg_cut()], next);
}

#[test]
fn a3_b70_what_is_no_content_does_not_commit() {
    for text in [ROLE, USAGE, "data: null\n\n", ": OPENROUTER\n\n", "retry: 3\n\n", "data:\n\n", "data: {bad\n\n"] {
        check(text, &Setup::new(Chat), &[up(text), End], &[], Failed(Failure::Empty));
    }
}

/// Preludes of just under 4 MiB, of 4 MiB, and one byte more.
fn long_prelude(size: usize) -> String {
    let pad = format!(": {}\n\n", "x".repeat(64 * 1024 - 4));
    let mut prelude = pad.repeat(size / pad.len());
    let rest = size - prelude.len();
    if rest > 0 {
        prelude.extend([":", &"y".repeat(rest.saturating_sub(3)), "\n\n"]);
    }
    prelude
}

#[test]
fn a3_a_prelude_of_more_than_4_mib_is_released_and_commits() {
    let setup = Setup::new(Chat);
    let mut play = setup.start();
    let fits = long_prelude(MAX_PRELUDE_BYTES);
    assert_eq!(fits.len(), MAX_PRELUDE_BYTES);
    play.head().up(&fits);
    assert!(!play.relay.is_committed());
    play.up(": one more\n\n");
    assert!(play.relay.is_committed() && play.relay.gate_overflowed());
    assert_eq!(play.out.len(), MAX_PRELUDE_BYTES + 12);
    play.on(Input::Broken);
    assert_eq!(play.next, Done(Outcome::UpstreamInterrupted, "broken"), "no failover after it");
}

#[test]
fn a3_f4_an_overflow_does_not_depend_on_the_reads() {
    let error = "data: {\"error\":{\"message\":\"x\",\"type\":\"server_error\"}}\n\n";
    let long = long_prelude(MAX_PRELUDE_BYTES + 64);
    let stream = [&long, error].concat();
    let expected = [&long, error, "data: [DONE]\n\n"].concat();
    for size in [stream.len(), 1024 * 1024, 16 * 1024] {
        let mut play = Setup::new(Chat).start();
        play.head();
        for chunk in stream.as_bytes().chunks(size) {
            play.up(chunk);
        }
        assert_eq!(play.next, Done(Outcome::UpstreamError, "error_event"), "reads of {size}");
        assert!(play.text() == expected, "reads of {size}");
        assert!(play.relay.gate_overflowed());
    }
}

#[test]
fn a3_content_opens_without_an_overflow() {
    let mut play = Setup::new(Chat).start();
    play.head().up([&long_prelude(MAX_PRELUDE_BYTES - 10), HEL].concat());
    assert!(play.relay.is_committed());
    assert!(!play.relay.gate_overflowed());
}

#[test]
fn f4_b08_a_byte_order_mark_passes_only_in_front_of_everything() {
    let marked = ["\u{feff}", ROLE].concat();
    let setup = Setup::alive(Chat);
    check("first", &setup, &[up(&marked), up(HEL)], &[&marked, HEL], Next::Wait);
    let out = [KEEPALIVE, ROLE, HEL];
    check("after a keepalive", &setup, &[up(&marked), Wait(10.0), up(HEL)], &out, Next::Wait);
    let late = ["\u{feff}", LO].concat();
    let out = [KEEPALIVE, ROLE, HEL, &late];
    check("a later one is content", &setup, &[up(&marked), Wait(10.0), up(HEL), up(&late)], &out, Next::Wait);
    let steps = [up(&marked), Broken, Head, up(&marked), up(HEL)];
    check("a second attempt", &setup, &steps, &[&marked, HEL], Next::Wait);
}

#[test]
fn a3_line_ends_of_a_held_prelude_stay_whole() {
    let prelude = ROLE.replace('\n', "\r\n");
    let (first, rest) = prelude.split_at(prelude.len() - 1);
    let steps = [up(first), up([rest, HEL].concat())];
    check("a lead", &Setup::new(Chat), &steps, &[&prelude, HEL], Next::Wait);
    let steps = [up(first), up(rest), up(CR), up(HEL)];
    check("a lead alone", &Setup::new(Chat), &steps, &[&prelude, CR, HEL], Next::Wait);
}
