//! F4 and kinds A, B, C of CASES.md: framing, read boundaries, big events.

use crate::harness::*;
use std::time::Duration;

const CHAT_D: Dialect = Dialect::ALL[0];
const RESP_D: Dialect = Dialect::ALL[1];
const MSG_D: Dialect = Dialect::ALL[2];

fn crlf(stream: &str) -> String {
    stream.replace('\n', "\r\n")
}

fn cr(stream: &str) -> String {
    stream.replace('\n', "\r")
}

fn no_space(stream: &str) -> String {
    stream.replace("data: ", "data:").replace("event: ", "event:")
}

const BOM: &str = "\u{feff}";

#[tokio::test]
async fn a_line_and_field_syntax() {
    let chat_id: String = CHAT_D.events().iter().flat_map(|event| ["id: qa-1\n", event]).collect();
    let chat_id_seen: String =
        chat_id.split_inclusive("\n\n").filter(|event| !event.contains("\"usage\"")).map(str::to_owned).collect();
    let [role, hel, lo, finish, usage, done] = CHAT_D.events().try_into().expect("six events");
    let meta = format!("retry: 3000\n\n{role}{hel}id: 9\n\n{lo}{finish}{usage}{done}");
    let meta_seen = meta.replace(&usage, "");
    let resp = resp_ok();
    let three = resp.replace("\"response.completed\",\"sequence", "\"response.completed\",\ndata: \"sequence");
    assert_ne!(resp, three);
    let separator = format!("{role}{}{finish}{usage}{done}", chat_delta("A\u{2028}B"));
    let mixed = format!("{}{}{}{}", crlf(&role), cr(&hel), lo, crlf(&finish)) + &cr(&usage) + &done;
    check(&[
        Row::new("B01 CRLF", RESP_D, crlf(&resp)).usage("cache_read", Some(8)),
        Row::new("B01 no space", RESP_D, no_space(&resp)).usage("cache_read", Some(8)),
        Row::new("B05 CR only", CHAT_D, cr(&chat_ok())).expect(cr(&chat_seen())),
        Row::new("B07 no space", CHAT_D, no_space(&chat_ok())).expect(no_space(&chat_seen())),
        Row::new("B08 BOM", CHAT_D, BOM.to_owned() + &chat_ok()).expect(BOM.to_owned() + &chat_seen()),
        Row::new("B11 BOM before event", MSG_D, BOM.to_owned() + &msg_ok()),
        Row::new("B13 data over two lines", RESP_D, three),
        Row::new("B16 U+2028 is no line end", CHAT_D, separator.clone()).expect(separator.replace(&usage, "")),
        Row::new("B17 blocks without data", CHAT_D, meta).expect(meta_seen),
        Row::new("B19 id with data", CHAT_D, chat_id).expect(chat_id_seen),
        Row::new("F4 mixed line ends", CHAT_D, mixed.clone()).expect(mixed.replace(&cr(&usage), "")),
        Row::new("F4 unknown fields", MSG_D, msg_ok().replace("event: ping", "x").replace("data: ", "foo: 1\ndata: ")),
    ])
    .await;
}

#[tokio::test]
async fn b02_cr_only_events_go_out_before_the_end() {
    let events = MSG_D.events();
    let go_on = Signal::new();
    let upstream =
        Upstream::start(Reply::sse().write(cr(&events[..6].concat())).wait(&go_on).write(cr(&events[6]))).await;
    let weir = Setup::new(&upstream.url()).start().await;
    let mut client = Client::connect(&weir).await;
    let head = client.open(MESSAGES, MSG_D.ask()).await;
    client.read_past("\"lo\"").await;
    go_on.fire();
    assert_eq!(client.rest().await, bytes(&cr(&msg_ok())));
    let record = weir.record(head.id()).await;
    assert_eq!((number(&record, "input"), number(&record, "output")), (Some(25), Some(15)));
}

#[tokio::test]
async fn b04_no_keepalive_between_cr_and_lf() {
    let [role, hel, rest @ ..] = &CHAT_D.events()[..] else { panic!("six events") };
    let (role, hel, rest) = (crlf(role), crlf(hel), crlf(&rest.concat()));
    let body = hel.trim_end();
    // A silence lasts until it was filled, but where it may not be.
    let silences = [Signal::new(), Signal::new(), Signal::new()];
    let reply = Reply::sse()
        .write(role.clone() + &crlf(&chat_delta("a")))
        .wait(&silences[0])
        .write(format!("{body}\r"))
        .wait(&silences[1])
        .write("\n\r")
        .pause(500)
        .write("\n")
        .wait(&silences[2])
        .write(&rest);
    let upstream = Upstream::start(reply).await;
    let weir = Setup::new(&upstream.url()).quick_keepalive().start().await;
    let mut client = Client::connect(&weir).await;
    client.open(CHAT, CHAT_ASK_USAGE).await;
    let begun = role + &crlf(&chat_delta("a"));
    for (so_far, over) in [begun.clone(), begun.clone(), begun.clone() + &hel].into_iter().zip(&silences) {
        client.read_until("the event", |body| without_keepalives(body).0 == so_far).await;
        let before = without_keepalives(&client.body).1;
        client.read_until("a keepalive", |body| without_keepalives(body).1 > before).await;
        over.fire();
    }
    let text = String::from_utf8(client.rest().await.to_vec()).unwrap();
    assert!(!text.contains("\r:"), "a keepalive at a CR whose LF may follow: {text:?}");
    assert_eq!(without_keepalives(text.as_bytes()).0, begun + &hel + &rest);
}

#[tokio::test]
async fn b10_bom_over_frames_after_an_empty_one() {
    let bom = BOM.as_bytes();
    let reply = Reply::sse().write("").pause(20).write(&bom[..1]).pause(20).write(&bom[1..]).pause(20);
    let upstream = H2Upstream::start(reply.write(chat_ok())).await;
    let weir = Setup::with_provider(&upstream.url(), "http2: prior_knowledge").start().await;
    let received = weir.post(CHAT, CHAT_ASK).await;
    assert_eq!(received.text(), BOM.to_owned() + &chat_seen());
    let record = weir.record(received.id()).await;
    assert_eq!((number(&record, "input"), number(&record, "output")), (Some(12), Some(2)));
}

#[tokio::test]
async fn b14_error_event_over_three_data_lines() {
    let error = "event: error\ndata: {\"type\":\"error\",\ndata: \"error\":{\"type\":\"overloaded_error\",\ndata: \"message\":\"x\"}}\n\n";
    check(&[Row::new("B14", MSG_D, MSG_D.begun() + error).outcome("upstream_error").any_usage()]).await;
}

#[tokio::test]
async fn b20_error_in_a_field_of_its_own() {
    let error = "error: {\"code\":400,\"type\":\"invalid_request_error\",\"message\":\"too long\"}\n\n";
    let upstream = Upstream::start(Reply::stream(format!("{error}{DONE}"))).await;
    let weir = Setup::new(&upstream.url()).start().await;
    let refused = weir.post(CHAT, CHAT_ASK).await;
    assert_eq!(refused.status(), 400);
    assert_eq!(refused.json()["error"]["message"], "too long");
    assert_eq!(word(&weir.record(refused.id()).await), "client_error");
    upstream.set_default(Reply::stream(CHAT_D.begun() + error + DONE));
    let late = weir.post(CHAT, CHAT_ASK).await;
    // Clients skip a field they do not know, so one data error event follows that they can see.
    assert_eq!(late.text(), CHAT_D.begun() + error + CHAT_INTERRUPTED);
    assert_eq!(word(&weir.record(late.id()).await), "client_error", "the client's own, whenever it comes (E5)");
}

#[tokio::test]
async fn b22_b23_utf8_cut_at_every_byte() {
    let text = "你好🌍";
    let rows = Dialect::ALL.map(|dialect| {
        let stream = (dialect.ok)().replace("Hel", text);
        let seen: String = events(stream.as_bytes()).into_iter().filter(|event| !is_usage_chunk(event)).collect();
        Row::new("B22", dialect, stream).expect(seen)
    });
    check(&rows).await;
    check(&[Row::new("B22 not stripping", CHAT_D, chat_ok().replace("Hel", text)).ask(CHAT_ASK_USAGE)]).await;
}

#[tokio::test]
async fn b25_b29_one_read_is_one_write() {
    for dialect in Dialect::ALL {
        let upstream = Upstream::start(Reply::stream((dialect.ok)())).await;
        let weir = Setup::new(&upstream.url()).start().await;
        let mut client = Client::connect(&weir).await;
        client.open(dialect.path, dialect.ask()).await;
        assert_eq!(client.rest().await, bytes(&dialect.seen()), "{}", dialect.name);
        assert_eq!(client.arrivals.len(), 1, "{}: {:?}", dialect.name, client.arrivals);
    }
}

#[tokio::test]
async fn b26_cut_at_every_offset() {
    let stream = msg_ok();
    let upstream = Upstream::start(Reply::json(500, "{}")).await;
    let weir = Setup::new(&upstream.url()).start().await;
    let mut client = Client::connect(&weir).await;
    for cut in 1..stream.len() {
        upstream.push(Reply::sse().cuts(&stream, &[cut]));
        client.open(MESSAGES, MSG_D.ask()).await;
        assert_eq!(client.rest().await, bytes(&stream), "cut at {cut}");
    }
    for record in weir.all_records(stream.len() - 1).await {
        assert_eq!((number(&record, "input"), number(&record, "output")), (Some(25), Some(15)), "{record}");
    }
}

#[tokio::test]
async fn b28_cut_in_delimiter_and_in_done() {
    let stream = chat_ok();
    let done = stream.len() - DONE.len();
    let upstream =
        Upstream::start(Reply::sse().gaps([&stream[..done - 1], &stream[done - 1..done + 9], &stream[done + 9..]]))
            .await;
    let weir = Setup::new(&upstream.url()).start().await;
    let received = weir.post(CHAT, CHAT_ASK).await;
    assert_eq!(received.text(), chat_seen());
    let record = weir.record(received.id()).await;
    assert_eq!((word(&record).as_str(), number(&record, "output")), ("completed", Some(2)));
}

fn big(dialect: Dialect, length: usize) -> String {
    (dialect.ok)().replace("Hel", &"x".repeat(length))
}

#[tokio::test]
async fn b31_b32_big_events_pass_and_are_metered() {
    for dialect in Dialect::ALL {
        for length in [1_572_864, 9_437_184] {
            let stream = big(dialect, length);
            let upstream = Upstream::start(Reply::sse().pieces(&stream, 65_536)).await;
            let weir = Setup::new(&upstream.url()).start().await;
            let received = weir.post(dialect.path, dialect.ask()).await;
            let seen: String = events(stream.as_bytes()).into_iter().filter(|event| !is_usage_chunk(event)).collect();
            assert!(received.body == seen, "{} {length}: {} bytes", dialect.name, received.body.len());
            let record = weir.record(received.id()).await;
            assert_eq!((number(&record, "input"), number(&record, "output")).0, Some(dialect.tokens.0), "{record}");
        }
    }
}

#[tokio::test]
async fn b32_f2_beyond_max_event_bytes_is_the_upstreams_fault() {
    let stream = CHAT_D.begun() + &chat_delta(&"x".repeat(300_000)) + CHAT_FINISH + DONE;
    let upstream = Upstream::start(Reply::sse().pieces(&stream, 65_536)).await;
    let weir = Setup::new(&upstream.url()).server("max_event_bytes: 256KiB").start().await;
    let received = weir.post(CHAT, CHAT_ASK).await;
    assert!(received.text().starts_with(&CHAT_D.begun()));
    let added = received.text()[CHAT_D.begun().len()..].to_owned();
    assert_eq!(events(added.as_bytes()).len(), 2, "one error event and [DONE]: {added}");
    assert!(added.starts_with("data: {\"error\":"), "{added}");
    let record = weir.record(received.id()).await;
    assert!(["upstream_error", "upstream_interrupted"].contains(&word(&record).as_str()), "{record}");
    upstream.gone(0).await;
}

fn resident_kib(weir: &Weir) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", weir.pid())).expect("a process");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a size");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

/// 200 MiB of text in events of 64 KiB, to a client that has read the first of them.
struct Flood {
    upstream: Upstream,
    weir: Weir,
    client: Client,
    /// What the process had before.
    resident_kib: u64,
}

impl Flood {
    async fn start() -> Self {
        let event = bytes(&chat_delta(&"x".repeat(65_536)));
        let begun = Reply::sse().write(CHAT_D.begun());
        let reply = (0..3_200).fold(begun, |reply, _| reply.step(Step::Write(event.clone())));
        let upstream = Upstream::start(reply).await;
        let weir = Setup::new(&upstream.url()).start().await;
        weir.post(CHAT, CHAT_ASK_USAGE.replace("public", "unknown")).await;
        let resident_kib = resident_kib(&weir);
        let mut client = Client::connect(&weir).await;
        client.open(CHAT, CHAT_ASK).await;
        client.read_past("Hel").await;
        Self { upstream, weir, client, resident_kib }
    }

    /// Most of it waits at the upstream, and not in this process.
    fn is_held_back(&self) {
        let written = self.upstream.written();
        assert!(written < 64 << 20, "the upstream could write {written} bytes to a client that hardly reads");
        let grown = resident_kib(&self.weir).saturating_sub(self.resident_kib);
        assert!(grown < 8 * 1024, "{grown} KiB for one stream");
    }
}

#[tokio::test]
async fn b38_a_client_that_never_reads_costs_no_memory() {
    let flood = Flood::start().await;
    // Blocked: what the upstream could write stops growing.
    let mut written = 0;
    within("the upstream to be blocked", async {
        loop {
            tokio::time::sleep(Duration::from_millis(300)).await;
            if flood.upstream.written() == written {
                break;
            }
            written = flood.upstream.written();
        }
    })
    .await;
    flood.is_held_back();
}

#[tokio::test]
async fn b40_s2_a_slow_client_is_no_stall() {
    let event = bytes(&chat_delta(&"x".repeat(65_536)));
    let reply = (0..640).fold(Reply::sse().write(CHAT_D.begun()), |reply, _| reply.step(Step::Write(event.clone())));
    let upstream = Upstream::start(reply.write(CHAT_FINISH).write(DONE)).await;
    let weir =
        Setup::new(&upstream.url()).defaults("timeouts: { idle: 3s, no_output: 3s, first_content: 3s }").start().await;
    let mut client = Client::connect(&weir).await;
    let head = client.open(CHAT, CHAT_ASK).await;
    client.read_past("Hel").await;
    tokio::time::sleep(Duration::from_secs(7)).await;
    let body = client.rest().await;
    assert!(body.ends_with(format!("{CHAT_FINISH}{DONE}").as_bytes()), "{} bytes", body.len());
    assert_eq!(body.len(), CHAT_D.begun().len() + 640 * event.len() + CHAT_FINISH.len() + DONE.len());
    assert_eq!(word(&weir.record(head.id()).await), "completed");
}

#[tokio::test]
async fn b37_what_a_slow_client_has_not_read_waits_at_the_upstream() {
    let mut flood = Flood::start().await;
    for _ in 0..10 {
        flood.client.chunk().await.expect("the stream goes on");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    flood.is_held_back();
}

#[tokio::test]
async fn b80_a_keepalive_into_a_full_window_is_whole_or_not_there() {
    let event = bytes(&chat_delta(&"x".repeat(65_536)));
    let begun = (0..640).fold(Reply::sse().write(CHAT_D.begun()), |reply, _| reply.step(Step::Write(event.clone())));
    let go_on = Signal::new();
    let upstream = Upstream::start(begun.wait(&go_on).write(CHAT_FINISH).write(DONE)).await;
    let weir = Setup::new(&upstream.url()).quick_keepalive().start().await;
    let mut client = Client::connect(&weir).await;
    client.open(CHAT, CHAT_ASK).await;
    client.read_past("Hel").await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    client.read_until("a keepalive in the silence", |body| body.ends_with(KEEPALIVE.as_bytes())).await;
    go_on.fire();
    let body = client.rest().await;
    let (plain, keepalives) = without_keepalives(&body);
    assert!(plain.ends_with(&format!("{CHAT_FINISH}{DONE}")), "{} bytes", plain.len());
    assert_eq!(plain.len(), CHAT_D.begun().len() + 640 * event.len() + CHAT_FINISH.len() + DONE.len());
    assert!(keepalives > 0, "the upstream was silent for several intervals");
    assert!(!plain.contains("keepalive"), "a fragment of one");
}
