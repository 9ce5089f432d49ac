//! M1: the latency figures, and the meter that goes with them.

use super::*;

use Protocol::{Chat, Messages};

fn seconds(play: &Play, at: Option<Instant>) -> Option<f64> {
    at.map(|at| (at - play.began).as_secs_f64())
}

#[test]
fn m1_b295_b299_only_output_stops_the_clock() {
    let thought = MSG_HEL.replace("text_delta\",\"text", "thinking_delta\",\"thinking");
    let mut play = Setup::alive(Messages).start();
    play.wait(1.0).head().up(MSG_START).up(MSG_PING).wait(14.0).up(&thought).wait(5.0).up(MSG_HEL).wait(1.0);
    play.up([MSG_HEL, MSG_HEL].concat()).wait(1.0).up(MSG_STOP).up(MSG_END);
    let seen = *play.relay.seen();
    assert_eq!(seconds(&play, seen.first_output_read), Some(15.0));
    assert_eq!(seconds(&play, seen.first_output), Some(15.0));
    assert_eq!(seconds(&play, seen.first_visible), Some(20.0));
    assert_eq!(seconds(&play, seen.last_output), Some(21.0));
    assert_eq!(seen.output_events, 4);
}

#[test]
fn m1_written_means_that_the_client_took_it() {
    let mut play = Setup::new(Chat).start();
    play.head();
    play.relay.on(play.now, Input::Chunk(Bytes::from([ROLE, HEL].concat())));
    assert_eq!(play.relay.seen().first_output, None);
    let from = play.now;
    play.now += Duration::from_secs(3);
    play.relay.wrote(from, play.now);
    assert_eq!(seconds(&play, play.relay.seen().first_output_read), Some(0.0));
    assert_eq!(seconds(&play, play.relay.seen().first_output), Some(3.0));
    assert_eq!(seconds(&play, play.relay.seen().first_visible), Some(3.0));
}

#[test]
fn m1_a_failed_attempt_leaves_no_figures() {
    let with_text = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"x\"},\"finish_reason\":\"error\"}]}\n\n";
    let mut play = Setup::alive(Chat).start();
    play.head().up(with_text);
    assert_eq!(play.next, Next::Failed(Failure::ErrorEvent(500)));
    assert_eq!(play.relay.seen(), &Seen::default());
    assert!(play.relay.meter().unwrap().error().is_some(), "but its meter, which knows why");
    play.head().wait(12.0);
    assert_eq!(play.relay.seen(), &Seen::default(), "a keepalive is no output");
    play.up(STOP).up("data: [DONE]\n\n");
    assert_eq!(play.relay.seen(), &Seen::default(), "nor is a finish");
    assert!(play.relay.meter().unwrap().error().is_none());
}
