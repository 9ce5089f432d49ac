//! When a person is told.

use super::*;

fn sign(subject: &str, stand: Stand) -> Sign {
    Sign { kind: Kind::Model, subject: subject.to_owned(), stand, summary: format!("{subject} {stand:?}") }
}

/// Looks each second at what the script says (`b`ad, `u`nsure, `g`ood); answers the seconds of firing and resolved.
fn told(script: &str) -> (Vec<usize>, Vec<usize>) {
    let (mut alarms, began, clock) = (Alarms::default(), Instant::now(), SystemTime::UNIX_EPOCH);
    let (mut firing, mut resolved) = (Vec::new(), Vec::new());
    for (at, letter) in script.chars().enumerate() {
        let stand = match letter {
            'b' => Stand::Bad,
            'u' => Stand::Unsure,
            _ => Stand::Good,
        };
        let time = Duration::from_secs(at as u64);
        for notice in alarms.look(began + time, clock + time, vec![sign("m", stand)]) {
            if notice.firing { &mut firing } else { &mut resolved }.push(at);
        }
    }
    (firing, resolved)
}

#[test]
fn l5_a8_told_once_when_it_has_held_and_once_when_it_is_over() {
    for (script, firing, resolved) in [
        ("gggg", &[][..], &[][..]),
        ("bbgbbubb", &[], &[]),
        ("gbbbbbbgggggg", &[4], &[10]),
        ("bbbbgbgbggggg", &[3], &[11]),
        // A cool-down that has passed proves nothing; only an answer does.
        ("bbbbuuuuuuuuu", &[3], &[]),
        ("bbbbuuugggggg", &[3], &[10]),
    ] {
        assert_eq!(told(script), (firing.to_vec(), resolved.to_vec()), "{script}");
    }
}

#[test]
fn a8_what_lasts_is_told_again_every_15_minutes() {
    assert_eq!(told(&"b".repeat(2000)), (vec![3, 903, 1803], vec![]));
}

#[test]
fn c2_what_leaves_the_config_is_over_and_others_are_themselves() {
    let (mut alarms, began, clock) = (Alarms::default(), Instant::now(), SystemTime::UNIX_EPOCH);
    let both = |a, b| vec![sign("a", a), sign("b", b)];
    assert!(alarms.look(began, clock, both(Stand::Bad, Stand::Good)).is_empty());
    let told = alarms.look(began + HOLD, clock + HOLD, both(Stand::Bad, Stand::Bad));
    let [notice] = &told[..] else { panic!("{told:?}") };
    let json = notice.json();
    assert_eq!((json["alert"].as_str(), json["state"].as_str()), (Some("model_down"), Some("firing")));
    assert_eq!((json["since"].as_str(), json["subject"].as_str()), (Some("1970-01-01T00:00:00Z"), Some("a")));
    let told = alarms.look(began + HOLD, clock, Vec::new());
    assert_eq!(told.len(), 1, "b was never told: {told:?}");
    assert_eq!(told[0].json()["state"], "resolved");
    assert!(alarms.0.is_empty());
}
