//! A9 and B224 to B235: a client that leaves cancels its upstream request, and nothing is left behind.

use crate::harness::*;
use std::time::{Duration, Instant};

const CHAT_D: Dialect = Dialect::ALL[0];

/// 100 ms by the rule, and as much again for two busy cores.
const AT_ONCE: Duration = Duration::from_millis(200);

/// Asks and leaves (`leave` is given the number of the request and answers when it left) until the upstream is let
/// go at once.
async fn is_gone_at_once(upstream: &Seen, when: &str, mut leave: impl AsyncFnMut(usize) -> Instant) {
    at_once(&format!("{when}: letting the upstream go"), AT_ONCE, async || {
        let at = upstream.count();
        let left = leave(at).await;
        upstream.gone(at).await.saturating_duration_since(left)
    })
    .await;
}

/// All requests so far ended so.
async fn all_have_left(weir: &Weir, upstream: &Seen) {
    for record in weir.all_records(upstream.count()).await {
        assert_eq!(word(&record), "client_gone", "{record}");
    }
}

#[tokio::test]
async fn a9_b224_b226_leaving_at_any_point_lets_the_upstream_go() {
    for dialect in Dialect::ALL {
        let rows: [(&str, Reply, bool); 4] = [
            ("before the head", Reply::silent(), false),
            ("in the held prelude", Reply::sse().write(dialect.before()).hang(), false),
            ("after output", Reply::sse().write(dialect.begun()).hang(), true),
            ("inside an event", Reply::sse().write(dialect.begun() + "data: {\"half").hang(), true),
        ];
        for (when, reply, seen) in rows {
            let upstream = Upstream::start(reply).await;
            let weir = Setup::new(&upstream.url()).start().await;
            is_gone_at_once(&upstream, &format!("{}, {when}", dialect.name), async |at| {
                let mut client = Client::connect(&weir).await;
                client.post(dialect.path, dialect.ask()).await;
                upstream.request(at).await;
                if seen {
                    client.head().await;
                    client.read_until("output", |body| body.len() >= dialect.begun().len()).await;
                }
                let left = Instant::now();
                drop(client);
                left
            })
            .await;
            all_have_left(&weir, &upstream).await;
            weir.settles("weir_streams_active", 0.0).await;
        }
    }
}

#[tokio::test]
async fn a9_in_keepalive_time() {
    let upstream = Upstream::start(Reply::silent()).await;
    let weir = Setup::new(&upstream.url()).defaults("keepalive: { interval: 100ms }").start().await;
    is_gone_at_once(&upstream, "between keepalives", async |_| {
        let mut client = Client::connect(&weir).await;
        client.open(CHAT, CHAT_ASK).await;
        client.read_until("two keepalives", |body| without_keepalives(body).1 >= 2).await;
        let left = Instant::now();
        drop(client);
        left
    })
    .await;
    all_have_left(&weir, &upstream).await;
}

#[tokio::test]
async fn a9_b230_without_stream() {
    let upstream = Upstream::start(Reply::silent()).await;
    let weir = Setup::new(&upstream.url()).start().await;
    for dialect in Dialect::ALL {
        is_gone_at_once(&upstream, dialect.name, async |at| {
            let mut client = Client::connect(&weir).await;
            client.post(dialect.path, dialect.ask_json()).await;
            upstream.request(at).await;
            let left = Instant::now();
            drop(client);
            left
        })
        .await;
    }
    all_have_left(&weir, &upstream).await;
}

#[tokio::test]
async fn a9_b221_an_http2_reset_is_leaving() {
    let upstream = Upstream::start(Reply::sse().write(CHAT_D.begun()).hang()).await;
    let weir = Setup::new(&upstream.url()).listen("h2c: true").start().await;
    let client = H2Client::connect(&weir).await;
    is_gone_at_once(&upstream, "RST_STREAM after output", async |_| {
        let mut stream = client.open(CHAT, CHAT_ASK).await;
        stream.read_until("output", |body| body.len() >= CHAT_D.begun().len()).await;
        let left = Instant::now();
        stream.cancel();
        left
    })
    .await;
    // Before the head as well, and the connection still serves others.
    upstream.set_default(Reply::silent());
    is_gone_at_once(&upstream, "RST_STREAM before the head", async |at| {
        let (response, mut sender) = client.start(CHAT, CHAT_ASK).await;
        upstream.request(at).await;
        let left = Instant::now();
        sender.send_reset(h2::Reason::CANCEL);
        drop(response);
        left
    })
    .await;
    upstream.push(Reply::stream(chat_ok()));
    assert_eq!(client.post(CHAT, CHAT_ASK).await.body, bytes(&chat_seen()));
}

#[tokio::test]
async fn a9_an_http2_upstream_sees_a_reset() {
    let upstream = H2Upstream::start(Reply::sse().write(CHAT_D.begun()).hang()).await;
    let weir = Setup::with_provider(&upstream.url(), "http2: prior_knowledge").start().await;
    is_gone_at_once(&upstream, "HTTP/2 upstream", async |_| {
        let mut client = Client::connect(&weir).await;
        client.open(CHAT, CHAT_ASK).await;
        client.read_past("Hel").await;
        let left = Instant::now();
        drop(client);
        left
    })
    .await;
    upstream.push(Reply::stream(chat_ok()));
    assert_eq!(weir.post(CHAT, CHAT_ASK).await.text(), chat_seen());
    assert_eq!(upstream.connections(), 1, "only the stream was reset");
}

#[tokio::test]
async fn a9_b227_a_half_close_counts_as_gone() {
    let upstream = Upstream::start(Reply::sse().write(CHAT_D.begun()).hang()).await;
    let weir = Setup::new(&upstream.url()).start().await;
    let mut half_closed = Vec::new();
    is_gone_at_once(&upstream, "half-close", async |_| {
        let mut client = Client::connect(&weir).await;
        client.open(CHAT, CHAT_ASK).await;
        client.read_past("Hel").await;
        let left = Instant::now();
        client.half_close().await;
        half_closed.push(client);
        left
    })
    .await;
}

#[tokio::test]
async fn a9_early_bytes_of_a_pipelined_request_are_no_departure() {
    let go_on = Signal::new();
    let rest = &chat_ok()[CHAT_D.begun().len()..];
    let upstream = Upstream::start(Reply::sse().write(CHAT_D.begun()).wait(&go_on).write(rest)).await;
    let weir = Setup::new(&upstream.url()).start().await;
    let mut client = Client::connect(&weir).await;
    client.open(CHAT, CHAT_ASK).await;
    client.read_past("Hel").await;
    client.send(request(CHAT, &[], CHAT_ASK.as_bytes())).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    go_on.fire();
    assert_eq!(client.rest().await, bytes(&chat_seen()));
    assert!(client.is_closed().await, "closed after the response");
}

#[tokio::test]
async fn a9_drain_reads_on_for_the_usage_within_its_bound() {
    let go_on = Signal::new();
    let rest = &chat_ok()[CHAT_D.begun().len()..];
    let upstream = Upstream::start(Reply::sse().write(CHAT_D.begun()).wait(&go_on).write(rest)).await;
    let weir = Setup::new(&upstream.url()).defaults("on_client_gone: { drain: 1h }").start().await;
    let mut record = serde_json::Value::Null;
    // Nobody outside sees that Weir has noticed it; where it had not, the answer was sent as ever.
    for _ in 0..10 {
        let mut client = Client::connect(&weir).await;
        let head = client.open(CHAT, CHAT_ASK).await;
        client.read_past("Hel").await;
        drop(client);
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(upstream.requests().last().unwrap().closed, None, "still read");
        go_on.fire();
        record = weir.record(head.id()).await;
        if word(&record) == "client_gone" {
            break;
        }
    }
    assert_eq!((word(&record).as_str(), number(&record, "output")), ("client_gone", Some(2)), "{record}");
    // B229: and not for ever.
    let upstream = Upstream::start(Reply::sse().write(CHAT_D.begun()).hang()).await;
    let weir = Setup::new(&upstream.url()).defaults("on_client_gone: { drain: 1s }").start().await;
    let mut client = Client::connect(&weir).await;
    client.open(CHAT, CHAT_ASK).await;
    client.read_past("Hel").await;
    let left = Instant::now();
    drop(client);
    let took = upstream.gone(0).await - left;
    assert!(took > Duration::from_millis(900) && took < Duration::from_secs(40), "{took:?}");
}

#[tokio::test]
async fn a9_b233_b235_a_thousand_random_leaves_leave_nothing() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let upstream = Upstream::start(Reply::sse().pieces(chat_ok(), 40).hang()).await;
    let (_folder, section) = prices("prices.yaml", OWN_PRICES);
    let limits = "concurrent: 100000, rpm: 100000, tpm: 1000000000";
    let key = format!("{limits}, budgets: [{{ usd: \"1000\", per: day }}, {{ usd: \"5000\", per: total }}]");
    let setup = Setup::new(&upstream.url()).section(&section).own_key(&key).model(limits);
    let weir = setup.start().await;
    let mut total = 0;
    for _ in 0..50 {
        let mut clients = tokio::task::JoinSet::new();
        for _ in 0..20 {
            let (bytes, patience) = (random.usize(0..2_000), random.u64(0..6));
            let address = weir.address;
            clients.spawn(async move {
                let mut client = Client::connect_to(address).await;
                let whole = request(CHAT, &[], CHAT_ASK.as_bytes());
                // Sometimes it leaves in the middle of its own request.
                client.send(&whole[..bytes.min(whole.len())]).await;
                let _ = tokio::time::timeout(Duration::from_millis(patience), client.try_head()).await;
                u32::from(bytes >= whole.len())
            });
        }
        while let Some(whole) = clients.join_next().await {
            total += whole.expect("a client");
        }
    }
    weir.settles("weir_streams_active", 0.0).await;
    let upstream_open = || upstream.requests().iter().filter(|request| request.closed.is_none()).count();
    until("all upstream connections to be closed", || upstream_open() == 0).await;
    assert!(total > 400, "{total} of 1,000 sent their whole request");
    let held = || async {
        let page = get(weir.admin, "/api/limits").await.expect("the page").json();
        let all = ["keys", "models"].map(|kind| page[kind][0].clone());
        all.iter().any(|one| one["running"] != 0 || one["reserved_usd"] != "0.000000000").then_some(page)
    };
    within("all slots and reservations to be given back", async {
        while held().await.is_some() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    // And it still serves.
    upstream.set_default(Reply::stream(chat_ok()));
    assert_eq!(weir.post(CHAT, CHAT_ASK).await.text(), chat_seen());
    for (name, value) in weir.metrics().await {
        assert!(value >= 0.0 || value.is_nan(), "B236: {name} is {value}");
    }
}
