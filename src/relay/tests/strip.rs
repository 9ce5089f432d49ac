//! U1: the usage chunk that the client did not ask for, in any framing.

use super::*;

use Protocol::Chat;

const DONE: &str = "data: [DONE]\n\n";

fn stripping() -> Setup {
    let mut setup = Setup::new(Chat);
    setup.ask.strip_usage = true;
    setup
}

/// Plays the stream whole, one byte per read and cut in two everywhere: the client's bytes must be `expected`.
fn check_cuts(setup: &Setup, stream: &str, expected: &str) {
    let play = |chunks: Vec<&[u8]>| {
        let mut play = setup.start();
        play.head();
        for chunk in chunks {
            if matches!(play.next, Next::Done(..)) {
                break;
            }
            play.up(chunk);
        }
        play.wait(1.0);
        assert_eq!(play.next, Next::Done(Outcome::Completed, "terminal"));
        let usage = play.relay.meter().unwrap().usage();
        assert_eq!((usage.input, usage.output), (Some(12), Some(2)), "metered all the same");
        play.text()
    };
    let bytes = stream.as_bytes();
    assert_eq!(play(vec![bytes]), expected, "whole");
    assert_eq!(play(bytes.chunks(1).collect()), expected, "one byte per read");
    for at in 0..=bytes.len() {
        assert_eq!(play(vec![&bytes[..at], &bytes[at..]]), expected, "cut at {at}");
    }
}

#[test]
fn u1_b29_the_usage_chunk_goes_and_nothing_else_in_any_framing() {
    let framings: [fn(&str) -> String; 3] =
        [str::to_owned, |text| text.replace('\n', "\r\n"), |text| text.replace('\n', "\r")];
    for framing in framings {
        let stream = framing(&[ROLE, HEL, STOP, USAGE, DONE].concat());
        let expected = framing(&[ROLE, HEL, STOP, DONE].concat());
        check_cuts(&stripping(), &stream, &expected);
    }
}

#[test]
fn u1_between_mixed_line_ends_no_half_of_one_is_left() {
    let usage = USAGE.trim_end();
    for end in ["\r\n\r\n", "\r\n\n", "\n\r\n", "\r\r\n", "\r\n\r"] {
        let stream = [ROLE, HEL, STOP, usage, end, DONE].concat();
        check_cuts(&stripping(), &stream, &[ROLE, HEL, STOP, DONE].concat());
        let kept = STOP.trim_end();
        let stream = [ROLE, HEL, kept, end, USAGE, DONE].concat();
        check_cuts(&stripping(), &stream, &[ROLE, HEL, kept, end, DONE].concat());
    }
}

#[test]
fn u1_a_client_that_asked_gets_it() {
    let stream = [ROLE, HEL, STOP, USAGE, DONE].concat();
    check_cuts(&Setup::new(Chat), &stream, &stream);
}

#[test]
fn u1_usage_before_the_content_goes_too() {
    let stream = [USAGE, ROLE, HEL, USAGE, STOP, USAGE, DONE].concat();
    check_cuts(&stripping(), &stream, &[ROLE, HEL, STOP, DONE].concat());
}

#[test]
fn u1_usage_in_a_finish_chunk_or_with_a_filter_result_passes() {
    let usage = "\"usage\":{\"prompt_tokens\":12,\"completion_tokens\":2}}";
    let finish = format!("data: {{\"choices\":[{{\"index\":0,\"delta\":{{}},\"finish_reason\":\"stop\"}}],{usage}\n\n");
    let filter = format!("data: {{\"choices\":[],\"prompt_filter_results\":[{{\"prompt_index\":0}}],{usage}\n\n");
    let stream = [ROLE, HEL, &filter, &finish, DONE].concat();
    check_cuts(&stripping(), &stream, &stream);
}

#[test]
fn u1_a_usage_chunk_without_its_blank_line_is_metered_and_goes() {
    let steps = [up(ROLE), up(HEL), up(STOP), up(USAGE.trim_end()), Do::End];
    let next = Next::Done(Outcome::Completed, "terminal_added");
    check("tail", &stripping(), &steps, &[ROLE, HEL, STOP, DONE], next);
}

#[test]
fn u1_k2_after_a_dropped_chunk_the_client_still_sits_between_events() {
    let mut setup = Setup::alive(Chat);
    setup.ask.strip_usage = true;
    setup.keepalive.interval = Duration::from_secs(2);
    let head = [ROLE, HEL, STOP].concat().replace('\n', "\r\n");
    let usage = USAGE.replace('\n', "\r\n");
    let steps = [up(&head), up(&usage[..usage.len() - 1]), Do::Wait(2.0), up("\n"), up(DONE)];
    let out = [&head, ": weir-keepalive\n\n", DONE];
    check("its LF is dropped as well", &setup, &steps, &out, Next::Done(Outcome::Completed, "terminal"));
}
