//! The scanner's law, kept by the relay: where reads are cut never changes what the client gets (F4).

use super::script::{CHAT_ERROR, Fate, MAX_EVENT, Script};
use super::*;
use fastrand::Rng;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

/// What came of a stream: the client's bytes, the last word, the tokens, the figures.
type Come = (String, Next, Option<u64>, Option<u64>, u64);

fn played(setup: &Setup, chunks: &[&[u8]], fate: Fate) -> Come {
    let mut play = setup.start();
    play.head();
    for chunk in chunks {
        if play.next == Next::Wait {
            play.up(chunk);
        }
    }
    if play.next == Next::Wait {
        play.act(&if fate == Fate::Broken { Do::Broken } else { Do::End });
    }
    let usage = play.relay.meter().unwrap().usage();
    let events = play.relay.seen().output_events;
    (play.text(), play.next, usage.input, usage.output, events)
}

fn cut<'a>(stream: &'a [u8], at: &[Index]) -> Vec<&'a [u8]> {
    let mut places: Vec<usize> = at.iter().map(|index| index.index(stream.len() + 1)).collect();
    places.sort_unstable();
    let mut chunks = Vec::new();
    let mut from = 0;
    for place in places {
        chunks.push(&stream[from..place]);
        from = place;
    }
    chunks.push(&stream[from..]);
    chunks
}

proptest! {
    #[test]
    fn f4_where_reads_are_cut_never_matters(seed: u64, at in vec(any::<Index>(), 0..9)) {
        let mut rng = Rng::with_seed(seed);
        let protocol = *rng.choice(&[Protocol::Chat, Protocol::Messages, Protocol::Responses]).unwrap();
        let mut setup = Setup::new(protocol);
        setup.ask.strip_usage = rng.bool();
        setup.plan.max_event_bytes = MAX_EVENT;
        setup.plan.failover_on_empty = rng.bool();
        let script = Script::random(&mut rng, protocol);
        let stream: Vec<u8> = script.steps.iter().flat_map(|(_, bytes)| bytes.clone()).collect();
        let whole = played(&setup, &[&stream], script.fate.1);
        prop_assert_eq!(&played(&setup, &cut(&stream, &at), script.fate.1), &whole);
        let bytes: Vec<&[u8]> = stream.chunks(1).collect();
        prop_assert_eq!(&played(&setup, &bytes, script.fate.1), &whole);
    }
}

#[test]
fn u3_usage_is_counted_once_however_often_it_comes() {
    let stream = [ROLE, USAGE, HEL, USAGE, STOP, USAGE, USAGE, "data: [DONE]\n\n"].concat();
    let (_, _, input, output, _) = played(&Setup::new(Protocol::Chat), &[stream.as_bytes()], Fate::End);
    assert_eq!((input, output), (Some(12), Some(2)));
}

#[test]
fn f4_an_error_event_and_its_done_cut_at_every_byte() {
    for line_end in ["\n", "\r\n", "\r"] {
        let stream = [ROLE, HEL, CHAT_ERROR, "data: [DONE]\n\n"].concat().replace('\n', line_end);
        let setup = Setup::new(Protocol::Chat);
        let whole = played(&setup, &[stream.as_bytes()], Fate::End);
        for at in 0..stream.len() {
            let (first, second) = stream.as_bytes().split_at(at);
            assert_eq!(played(&setup, &[first, second], Fate::End), whole, "{line_end:?} cut at {at}");
        }
    }
}
