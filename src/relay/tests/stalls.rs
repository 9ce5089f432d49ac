//! S1, S2: which clock fires, when, and what it does not count.

use super::*;

use Do::Wait;
use Next::{Done, Failed};
use Protocol::{Chat, Messages};

fn pinging(play: &mut Play, seconds: u32) {
    for _ in 0..seconds / 10 {
        if play.next == Next::Wait {
            play.wait(10.0);
        }
        if play.next == Next::Wait {
            play.up(MSG_PING);
        }
    }
}

#[test]
fn s1_b83_idle_counts_from_the_head_and_in_any_phase() {
    let chat = Setup::new(Chat);
    check("head", &chat, &[Wait(89.9)], &[], Next::Wait);
    check("head", &chat, &[Wait(90.0)], &[], Failed(Failure::Idle));
    check("prelude", &chat, &[Wait(50.0), up(ROLE), Wait(89.9)], &[], Next::Wait);
    check("prelude", &chat, &[Wait(50.0), up(ROLE), Wait(90.0)], &[], Failed(Failure::Idle));
    check("half an event is bytes", &chat, &[Wait(50.0), up("d"), Wait(89.9)], &[], Next::Wait);
    check("b10 an empty read is none", &chat, &[Wait(50.0), up(""), Wait(40.0)], &[], Failed(Failure::Idle));
}

#[test]
fn s1_pings_extend_idle_but_neither_first_content_nor_no_output() {
    let mut play = Setup::new(Messages).start();
    play.head().up(MSG_START);
    pinging(&mut play, 140);
    assert_eq!(play.next, Next::Wait, "a model that thinks for long is not cut");
    pinging(&mut play, 20);
    assert_eq!(play.next, Failed(Failure::FirstContent));
    assert_eq!((play.now - play.began).as_secs(), 150, "a model that pings for ever is");
    let mut play = Setup::new(Messages).start();
    play.head().up([MSG_START, MSG_HEL].concat());
    pinging(&mut play, 100);
    play.up(MSG_HEL);
    pinging(&mut play, 140);
    assert_eq!(play.next, Next::Wait);
    pinging(&mut play, 20);
    assert_eq!(play.next, Done(Outcome::Stalled, "no_output"));
    assert_eq!((play.now - play.began).as_secs(), 250);
}

#[test]
fn s1_no_output_counts_from_the_commit_at_least() {
    let mut setup = Setup::new(Chat);
    setup.ask.choices = Some(2);
    setup.plan.timeouts.idle = Duration::from_hours(1);
    let steps = [up(ROLE), Wait(100.0), up(STOP), Wait(149.9)];
    check("a finish without output", &setup, &steps, &[ROLE, STOP], Next::Wait);
    let steps = [up(ROLE), Wait(100.0), up(STOP), Wait(150.0)];
    let error = chat_error("The model stopped sending output, please retry", "stream_stalled");
    check("a finish without output", &setup, &steps, &[ROLE, STOP, &error], Done(Outcome::Stalled, "no_output"));
}

#[test]
fn s1_the_first_to_fire_names_the_outcome() {
    let mut setup = Setup::new(Chat);
    setup.plan.timeouts.first_content = Duration::from_secs(20);
    check("first_content", &setup, &[up(ROLE), Wait(99.0)], &[], Failed(Failure::FirstContent));
    setup.plan.timeouts.total = Duration::from_secs(10);
    check("total", &setup, &[up(ROLE), Wait(99.0)], &[], Failed(Failure::Total));
}

#[test]
fn f9_without_a_stream_asked_for_only_idle_and_total_run() {
    let mut setup = Setup::new(Chat);
    setup.ask.stream = false;
    setup.plan.timeouts.first_content = Duration::from_secs(20);
    setup.plan.timeouts.no_output = Duration::from_secs(20);
    check("idle", &setup, &[up(ROLE), Wait(89.0), up(HEL), Wait(89.0)], &[ROLE, HEL], Next::Wait);
    check("idle", &setup, &[up(ROLE), Wait(90.0)], &[], Failed(Failure::Idle));
}

/// A write that takes `seconds`.
fn slow(play: &mut Play, bytes: &str, seconds: u64) {
    let write = play.relay.on(play.now, Input::Chunk(Bytes::copy_from_slice(bytes.as_bytes()))).write;
    play.out.extend_from_slice(&write);
    let from = play.now;
    play.now += Duration::from_secs(seconds);
    play.relay.wrote(from, play.now);
}

#[test]
fn s2_b40_time_spent_on_the_client_counts_for_no_clock() {
    let mut play = Setup::new(Chat).start();
    play.head();
    slow(&mut play, HEL, 300);
    play.wait(89.9);
    assert_eq!(play.next, Next::Wait);
    play.wait(0.1);
    assert_eq!(play.next, Done(Outcome::Stalled, "idle"));
    assert_eq!((play.now - play.began).as_secs(), 390);
}

#[test]
fn s2_the_grace_after_the_finish_is_forgiven_too() {
    let mut play = Setup::new(Chat).start();
    play.head();
    slow(&mut play, &[HEL, STOP].concat(), 30);
    play.wait(4.9);
    assert_eq!(play.next, Next::Wait);
    play.wait(0.1);
    assert_eq!(play.next, Done(Outcome::Completed, "terminal_added"));
    let mut play = Setup::new(Chat).start();
    play.head();
    let crlf = [HEL, STOP, "data: [DONE]\n\n"].concat().replace('\n', "\r\n");
    slow(&mut play, &crlf[..crlf.len() - 1], 30);
    play.wait(0.9);
    assert_eq!(play.next, Next::Wait);
    play.up("\n");
    assert_eq!((play.text(), play.next), (crlf, Done(Outcome::Completed, "terminal")));
}

#[test]
fn s2_keepalives_that_the_client_takes_slowly_do_not_fail_an_attempt() {
    let mut play = Setup::alive(Chat).start();
    play.head().up(ROLE).wait(9.0);
    play.now = play.relay.next_wake();
    let keepalive = play.relay.on(play.now, Input::Tick).write;
    assert!(!keepalive.is_empty());
    let from = play.now;
    play.now += Duration::from_secs(200);
    play.relay.wrote(from, play.now);
    play.wait(79.9);
    assert_eq!(play.next, Next::Wait, "idle has 80 s left");
    play.wait(0.1);
    assert_eq!(play.next, Failed(Failure::Idle));
}

#[test]
fn s1_total_counts_everything() {
    let mut setup = Setup::new(Chat);
    setup.plan.timeouts.total = Duration::from_secs(100);
    let mut play = setup.start();
    play.head();
    slow(&mut play, HEL, 100);
    play.wait(0.0);
    assert_eq!(play.next, Done(Outcome::Timeout, "total"));
}

#[test]
fn s1_once_all_have_finished_only_the_grace_and_total_run() {
    let mut setup = Setup::new(Chat);
    setup.plan.timeouts.no_output = Duration::from_secs(8);
    setup.plan.timeouts.idle = Duration::from_secs(2);
    let steps = [up(HEL), up(STOP), Wait(4.0), up(USAGE), Wait(4.0), up(USAGE), Wait(4.0)];
    check("no stall", &setup, &steps, &[HEL, STOP, USAGE, USAGE], Next::Wait);
    setup.plan.timeouts.total = Duration::from_secs(10);
    let out = [HEL, STOP, USAGE, USAGE, "data: [DONE]\n\n"];
    check("total", &setup, &steps, &out, Done(Outcome::Completed, "terminal_added"));
}
