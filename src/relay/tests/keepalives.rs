//! K1 to K5: when a keepalive goes out, where, and in which shape.

use super::*;
use crate::config::Style;

use Do::{Broken, End, Wait};
use Next::Done;
use Protocol::{Chat, Messages, Responses};

const COMMENT: &str = ": weir-keepalive\n\n";
const LINE: &str = ": weir-keepalive\n";
const PING: &str = "event: ping\ndata: {\"type\":\"ping\"}\n\n";

#[test]
fn k1_one_per_interval_of_silence() {
    let mut play = Setup::alive(Chat).start();
    play.head().up(ROLE).wait(3.0).up(HEL).wait(25.0).up(LO).wait(9.9);
    let times: Vec<f64> = play.writes.iter().map(|(at, _)| *at).collect();
    assert_eq!(times, [3.0, 13.0, 23.0, 28.0]);
    assert_eq!(play.text(), [ROLE, HEL, COMMENT, COMMENT, LO].concat());
    assert_eq!(play.relay.keepalives(), 2);
}

#[test]
fn k1_always_means_every_interval() {
    let mut setup = Setup::alive(Chat);
    setup.keepalive.when = When::Always;
    let mut play = setup.start();
    play.wait(2.0).head().up([ROLE, HEL].concat());
    for _ in 0..8 {
        play.wait(3.0).up(LO);
    }
    let beats: Vec<f64> = play.writes.iter().filter(|(_, size)| *size == COMMENT.len()).map(|(at, _)| *at).collect();
    assert_eq!(beats, [12.0, 22.0]);
    setup.keepalive.before_headers = None;
    let mut play = setup.start();
    play.wait(60.0).head().up(HEL).wait(1.0);
    assert_eq!(play.text(), HEL, "it counts from the response's head");
}

#[test]
fn k3_weir_opens_the_stream_itself() {
    let mut play = Setup::alive(Chat).start();
    play.wait(25.0).head().up(ROLE).wait(10.0).up(HEL);
    let times: Vec<f64> = play.writes.iter().map(|(at, _)| *at).collect();
    assert_eq!(times, [10.0, 20.0, 30.0, 35.0], "before the head, and while the gate holds");
    assert_eq!(play.text(), [COMMENT, COMMENT, COMMENT, ROLE, HEL].concat());
}

#[test]
fn k3_before_headers_has_its_own_time_and_can_be_off() {
    let mut setup = Setup::alive(Chat);
    setup.keepalive.before_headers = Some(Duration::from_secs(3));
    check("3 s", &setup, &[Wait(12.9)], &[COMMENT], Next::Wait);
    check("then the interval", &setup, &[Wait(13.0)], &[COMMENT, COMMENT], Next::Wait);
    setup.keepalive.before_headers = None;
    let steps = [up(ROLE), Wait(80.0), up(HEL), Wait(10.0)];
    check("b77 off", &setup, &steps, &[ROLE, HEL, COMMENT], Next::Wait);
    setup.ask.stream = false;
    setup.keepalive.before_headers = Some(Duration::from_secs(3));
    check("f9 no stream was asked for", &setup, &steps, &[ROLE, HEL], Next::Wait);
}

#[test]
fn k4_b62_never_inside_an_event() {
    for (protocol, first, second) in [(Chat, HEL, LO), (Messages, MSG_HEL, MSG_HEL), (Responses, RESP_HEL, RESP_HEL)] {
        for at in 1..second.len() {
            let (half, rest) = second.split_at(at);
            let steps = [up(first), up(half), Wait(25.0), up(rest)];
            check(
                &format!("cut at {at}"),
                &Setup::alive(protocol),
                &steps,
                &[first, COMMENT, COMMENT, second],
                Next::Wait,
            );
        }
    }
}

#[test]
fn k2_b04_not_while_an_lf_may_follow_a_cr() {
    let crlf = HEL.replace('\n', "\r\n");
    let (cut, lf) = crlf.split_at(crlf.len() - 1);
    let steps = [up(cut), Wait(30.0), up(lf), Wait(10.0)];
    check("crlf", &Setup::alive(Chat), &steps, &[&crlf, COMMENT], Next::Wait);
    let steps = [up(cut), Wait(30.0), up("d"), Wait(1.0)];
    check("no lf came, and it is overdue", &Setup::alive(Chat), &steps, &[cut, COMMENT], Next::Wait);
    let bare = [HEL, LO].concat().replace('\n', "\r");
    check("cr only", &Setup::alive(Chat), &[up(&bare), Wait(10.0)], &[&bare, COMMENT], Next::Wait);
    let steps = [up(HEL.replace('\n', "\r")), Wait(10.0)];
    let out = HEL.replace('\n', "\r");
    let known = "one line end is known to be bare";
    check(known, &Setup::alive(Chat), &steps, &[&out, COMMENT], Next::Wait);
}

#[test]
fn k4_never_after_the_terminal_event() {
    let mut setup = Setup::alive(Chat);
    setup.keepalive.interval = Duration::from_millis(100);
    setup.keepalive.before_headers = None;
    let crlf = [HEL, STOP, "data: [DONE]\n\n"].concat().replace('\n', "\r\n");
    let cut = &crlf[..crlf.len() - 1];
    check("not while its LF is waited for", &setup, &[up(cut), Wait(0.99)], &[cut], Next::Wait);
    check("nor then", &setup, &[up(cut), Wait(5.0)], &[cut], Done(Outcome::Completed, "terminal"));
}

#[test]
fn k4_b85_b76_a_keepalive_is_no_progress() {
    let mut setup = Setup::alive(Chat);
    setup.plan.timeouts.idle = Duration::from_secs(30);
    let mut play = setup.start();
    play.head().up(HEL).wait(30.0);
    assert_eq!(play.next, Done(Outcome::Stalled, "idle"));
    assert_eq!(play.now - play.began, Duration::from_secs(30), "not a keepalive later");
    assert_eq!(play.relay.keepalives(), 2, "what ends goes before what keeps alive");
}

#[test]
fn k2_styles() {
    let after_start = |style, steps: &[Do], out: &[&str]| {
        let mut setup = Setup::alive(Messages);
        setup.keepalive.style = style;
        setup.keepalive.before_headers = Some(Duration::from_secs(5));
        check(&format!("{style:?}"), &setup, steps, out, Next::Wait);
    };
    let steps = [Wait(5.0), up(MSG_START), Wait(10.0), up(MSG_HEL), Wait(10.0)];
    after_start(Style::Ping, &steps, &[COMMENT, COMMENT, MSG_START, MSG_HEL, PING]);
    after_start(Style::Comment, &steps, &[COMMENT, COMMENT, MSG_START, MSG_HEL, COMMENT]);
    after_start(Style::CommentLine, &steps, &[LINE, LINE, MSG_START, MSG_HEL, LINE]);
    after_start(Style::Auto, &steps, &[COMMENT, COMMENT, MSG_START, MSG_HEL, COMMENT]);
    let retry = "retry: 3\n\n";
    let steps = [up(retry), Wait(5.0), up(MSG_HEL), Wait(10.0)];
    after_start(Style::Auto, &steps, &[COMMENT, retry, MSG_HEL, LINE]);
    after_start(Style::Ping, &steps, &[COMMENT, retry, MSG_HEL, COMMENT]);
    let mut chat = Setup::alive(Chat);
    chat.keepalive.style = Style::Ping;
    check("chat has no ping", &chat, &[up([ROLE, HEL].concat()), Wait(10.0)], &[ROLE, HEL, COMMENT], Next::Wait);
}

#[test]
fn k2_what_a_failed_attempt_said_does_not_shape_the_keepalive() {
    let mut setup = Setup::alive(Messages);
    setup.keepalive.style = Style::Ping;
    let steps = [up(MSG_START), up("id: 1\n\n"), Broken, Do::Head, up(MSG_HEL), Wait(10.0)];
    check("ping", &setup, &steps, &[MSG_HEL, COMMENT], Next::Wait);
    setup.keepalive.style = Style::Auto;
    check("auto", &setup, &steps, &[MSG_HEL, COMMENT], Next::Wait);
}

#[test]
fn k1_s2_a_slow_write_is_no_silence() {
    let mut play = Setup::alive(Chat).start();
    play.head();
    let write = play.relay.on(play.now, Input::Chunk(Bytes::from(HEL))).write;
    assert_eq!(write, HEL);
    let from = play.now;
    play.now += Duration::from_secs(40);
    play.relay.wrote(from, play.now);
    assert_eq!(play.relay.next_wake(), play.now + Duration::from_secs(10));
    play.on(Input::Tick);
    assert_eq!(play.out, b"");
}

#[test]
fn k4_b68_the_upstreams_own_pings_and_comments_pass() {
    let comment = ": OPENROUTER PROCESSING\n\n";
    let steps = [up(MSG_START), up(comment), up(MSG_HEL), up(MSG_PING), up(comment), End];
    let out = [MSG_START, comment, MSG_HEL, MSG_PING, comment, &msg_cut()];
    check("pass", &Setup::new(Messages), &steps, &out, Done(Outcome::UpstreamInterrupted, "ended_early"));
}
