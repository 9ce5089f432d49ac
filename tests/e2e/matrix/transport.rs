//! The fault matrix: what breaks below HTTP's messages, at the phases where it makes a difference. A length
//! that is not true, chunks and codings cut short, TLS that ends without its close notify.

use super::world::Phase;
use super::{ending, second};
use crate::harness::*;
use std::io::Write as _;

const PHASES: [Phase; 4] = [Phase::Prelude, Phase::Between, Phase::Finished, Phase::Terminal];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// The length says that there is more.
    ShortOfLength,
    /// The length says that this is all, and more comes behind it: the connection is out of step.
    PastLength,
    /// The connection's end is the body's, and comes too early.
    Close,
    /// A chunk ends before its size.
    HalfChunk,
    /// A compressed body without its end, in a whole HTTP body.
    Gzip,
    /// The same, and the HTTP body breaks off as well.
    GzipCut,
}

const FAULTS: [Fault; 6] =
    [Fault::ShortOfLength, Fault::PastLength, Fault::Close, Fault::HalfChunk, Fault::Gzip, Fault::GzipCut];

fn reply(fault: Fault, sent: &str, rest: &str, read: &Signal) -> Reply {
    let packed = || {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        encoder.write_all(sent.as_bytes()).expect("memory");
        encoder.flush().expect("memory");
        Reply::sse().header("content-encoding", "gzip").write(encoder.get_ref()).wait(read)
    };
    match fault {
        Fault::ShortOfLength => Reply::sse().framing(Framing::Length(sent.len() + 100)).write(sent).wait(read).cut(),
        // In one write: what comes later may meet the next request, which nobody can tell from its answer.
        Fault::PastLength => {
            Reply::sse().framing(Framing::Length(sent.len())).write(format!("{sent}{rest}\n\n")).hang()
        }
        Fault::Close => Reply::sse().framing(Framing::Close).write(sent).wait(read).cut(),
        Fault::HalfChunk => Reply::sse().write(sent).wait(read).raw_bytes("100\r\ndata: {\"half").cut(),
        Fault::Gzip => packed(),
        Fault::GzipCut => packed().cut(),
    }
}

/// Every fault in every phase, for one kind of upstream.
async fn run(tls: bool) {
    let pki = Pki::new();
    let folder = std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("wire-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a writable folder");
    let [ca, ..] = pki.write(&folder);
    for dialect in Dialect::ALL {
        let refuse = Reply::json(404, "{}");
        let first = if tls { Upstream::start_tls(refuse, &pki).await } else { Upstream::start(refuse).await };
        let healthy = Upstream::start(Reply::stream(second(&(dialect.ok)()))).await;
        let settings = if tls { format!("ca: \"{}\"", ca.display()) } else { String::new() };
        let weir = Setup::with_provider(&first.url(), &settings)
            .target(&healthy.url(), "")
            .defaults("retry: { attempts: 2 }, health: { failures: 1000 }")
            .start()
            .await;
        for phase in PHASES {
            for fault in FAULTS {
                let read = Signal::new();
                let sent = phase.sent(dialect);
                first.push(reply(fault, &sent, &(dialect.ok)()[sent.len()..], &read));
                look(&weir, dialect, phase, fault, &read).await;
            }
        }
    }
    std::fs::remove_dir_all(&folder).expect("its own folder");
}

async fn look(weir: &Weir, dialect: Dialect, phase: Phase, fault: Fault, read: &Signal) {
    let name = format!("{} {phase:?} {fault:?}", dialect.name);
    let seen = phase.seen(dialect);
    let mut client = Client::connect(weir).await;
    client.post(dialect.path, dialect.ask()).await;
    if phase == Phase::Prelude {
        read.fire();
    }
    let head = client.head().await;
    while phase != Phase::Prelude && client.body.len() < seen.len() && client.chunk().await.is_some() {}
    read.fire();
    let got = String::from_utf8(client.rest().await.to_vec()).expect("text");
    let record = weir.record(head.id()).await;
    // A responses stream finishes with its terminal event.
    let (text, outcome, tried) = match (phase, dialect.name) {
        (Phase::Prelude, _) => (second(&dialect.seen()), "completed", vec!["up:", "up2:ok"]),
        (Phase::Between, _) | (Phase::Finished, "responses") => {
            (seen + &ending(dialect, "broken", phase), "upstream_interrupted", vec!["up:"])
        }
        _ => (dialect.seen(), "completed", vec!["up:ok"]),
    };
    assert_eq!(got, text, "{name}");
    assert!(client.ended, "{name}: a clean end");
    assert_eq!(word(&record), outcome, "{name}: {record}");
    let tries = tries(&record);
    assert!(
        tries.len() == tried.len() && tries.iter().zip(&tried).all(|(tried, wanted)| tried.starts_with(wanted)),
        "{name}: {tries:?}"
    );
}

#[tokio::test]
async fn a3_e1_e2_bodies_that_do_not_end_as_they_should() {
    run(false).await;
}

#[tokio::test]
async fn a3_e1_e2_the_same_over_tls_without_its_close_notify() {
    run(true).await;
}
