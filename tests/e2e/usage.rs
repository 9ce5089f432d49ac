//! U1 to U4 and kinds I, J, K of CASES.md: asking for usage, hiding it, reading it.

use crate::harness::*;

const CHAT_D: Dialect = Dialect::ALL[0];
const RESP_D: Dialect = Dialect::ALL[1];
const MSG_D: Dialect = Dialect::ALL[2];

fn chat_usage(usage: &str) -> String {
    format!("data: {{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"choices\":[],\"usage\":{usage}}}\n\n")
}

/// CHAT-OK with another usage chunk.
fn chat_with(usage: &str) -> String {
    chat_ok().replace(CHAT_USAGE, &chat_usage(usage))
}

/// CHAT-OK with a usage object (or null) in each of its first chunks, one per entry.
fn chat_riding(usages: &[&str]) -> String {
    let mut all = CHAT_D.events();
    all.remove(4);
    for (event, usage) in all.iter_mut().zip(usages) {
        *event = event.replace("}\n\n", &format!(",\"usage\":{usage}}}\n\n"));
    }
    all.concat()
}

fn counts(input: u64, output: u64) -> String {
    let total = input + output;
    format!("{{\"prompt_tokens\":{input},\"completion_tokens\":{output},\"total_tokens\":{total}}}")
}

#[tokio::test]
async fn u1_usage_is_asked_for_and_hidden_from_who_did_not_ask() {
    let upstream = Upstream::start(Reply::stream(chat_ok())).await;
    let weir = Setup::new(&upstream.url()).start().await;
    // (what the client sends as stream_options, whether it then sees the chunk)
    let rows = [
        ("", false),
        (r#""stream_options":null,"#, false),
        (r#""stream_options":{},"#, false),
        (r#""stream_options":{"include_usage":null},"#, false),
        (r#""stream_options":{"include_usage":false},"#, false),
        (r#""stream_options":{"include_obfuscation":false,"include_usage":false},"#, false),
        (r#""stream_options":{"include_usage":true},"#, true),
        (r#""stream_options": { "include_usage" : true , "x" : 1 } ,"#, true),
    ];
    for (at, (options, asked)) in rows.into_iter().enumerate() {
        let body = format!(r#"{{"model":"public-model",{options}"stream":true,"messages":[]}}"#);
        let received = weir.post(CHAT, &body).await;
        assert_eq!(received.text(), if asked { chat_ok() } else { chat_seen() }, "{options}");
        let sent = upstream.request(at).await;
        assert_eq!(sent.json()["stream_options"]["include_usage"], true, "{options}");
        if options.contains("obfuscation") {
            assert_eq!(sent.json()["stream_options"]["include_obfuscation"], false, "B178: the rest survives");
        }
        if asked {
            let expected = body.replace("public-model", "upstream-model");
            assert_eq!(String::from_utf8_lossy(&sent.body), expected, "nothing to change but the model");
        }
        let record = weir.record(received.id()).await;
        assert_eq!((number(&record, "input"), number(&record, "output")), (Some(12), Some(2)), "{options}");
    }
}

#[tokio::test]
async fn u1_b187_not_without_stream_and_not_elsewhere() {
    for dialect in Dialect::ALL {
        let upstream = Upstream::start(Reply::json(200, (dialect.json)())).await;
        let weir = Setup::new(&upstream.url()).start().await;
        let plain = dialect.ask_json();
        let mut bodies = vec![plain.clone(), plain.replacen('{', "{ \"stream\" : false , ", 1)];
        if dialect.name != "chat" {
            bodies.push(dialect.ask());
        }
        for (at, body) in bodies.into_iter().enumerate() {
            weir.post(dialect.path, &body).await;
            let sent = upstream.request(at).await;
            assert_eq!(String::from_utf8_lossy(&sent.body), body.replace("public-model", "upstream-model"));
        }
    }
}

#[tokio::test]
async fn u1_b184_inject_usage_false_leaves_the_body_alone() {
    let upstream = Upstream::start(Reply::stream(chat_seen())).await;
    let weir = Setup::with_provider(&upstream.url(), "inject_usage: false").start().await;
    let received = weir.post(CHAT, CHAT_ASK).await;
    assert_eq!(received.text(), chat_seen());
    let sent = upstream.request(0).await;
    assert_eq!(String::from_utf8_lossy(&sent.body), CHAT_ASK.replace("public-model", "upstream-model"));
    assert_ne!(field(&weir.record(received.id()).await, "source"), "reported");
}

#[tokio::test]
async fn u1_b185_a_refused_option_is_left_out_once_and_remembered() {
    let refusal = r#"{"error":{"message":"Unknown parameter: 'stream_options'","type":"invalid_request_error","param":"stream_options"}}"#;
    let upstream = Upstream::start(Reply::stream(chat_seen())).await;
    upstream.push(Reply::json(400, refusal));
    let weir = Setup::new(&upstream.url()).start().await;
    for _ in 0..2 {
        let received = weir.post(CHAT, CHAT_ASK).await;
        assert_eq!((received.status(), received.text()), (200, chat_seen()));
    }
    let asked: Vec<_> =
        upstream.requests().iter().map(|request| request.json().get("stream_options").is_some()).collect();
    assert_eq!(asked, [true, false, false]);
}

#[tokio::test]
async fn u1_b179_b181_b182_b190_only_usage_chunks_are_dropped() {
    let [role, hel, lo, finish, usage, done] = CHAT_D.events().try_into().expect("six events");
    let filter = "data: {\"choices\":[],\"created\":0,\"id\":\"\",\"model\":\"\",\"object\":\"\",\"prompt_filter_results\":[{\"prompt_index\":0,\"content_filter_results\":{}}]}\n\n";
    let filtered = filter.to_owned() + &chat_ok();
    let filter_usage =
        filter.replace("\"choices\":[]", "\"choices\":[],\"usage\":{\"prompt_tokens\":12,\"completion_tokens\":2}");
    let riding = chat_riding(&["null", "null", "null", &counts(12, 2)]);
    let no_choices = chat_ok().replace("\"choices\":[],\"usage\"", "\"usage\"");
    let null_usage = format!("{role}{hel}data: {{\"choices\":[],\"usage\":null}}\n\n{lo}{finish}{usage}{done}");
    let in_content = chat_riding(&["null", &counts(12, 1), &counts(12, 2)]);
    check(&[
        Row::new("B179 no stray block where it was", CHAT_D, chat_ok()).expect(chat_seen()),
        Row::new("B182 filter results first", CHAT_D, filtered).expect(filter.to_owned() + &chat_seen()),
        Row::new("U1 filter results with usage", CHAT_D, chat_seen().replace(DONE, &filter_usage) + DONE),
        Row::new("U1 usage on the finish chunk passes", CHAT_D, riding),
        Row::new("U1 no choices member", CHAT_D, no_choices).expect(chat_seen()),
        Row::new("U1 empty choices without usage pass", CHAT_D, null_usage.clone())
            .expect(null_usage.replace(&usage, "")),
        Row::new("B190 usage on content", CHAT_D, in_content),
        Row::new("B188 asked", CHAT_D, chat_ok()).ask(CHAT_ASK_USAGE),
    ])
    .await;
}

#[tokio::test]
async fn u3_i_messages() {
    let row = |name, start: &str, deltas: &[&str]| Row::new(name, MSG_D, msg_with(start, deltas));
    let b154 =
        r#"{"input_tokens":4,"cache_creation_input_tokens":11822,"cache_read_input_tokens":0,"output_tokens":1}"#;
    let b155 = |name, delta: &str| row(name, b154, &[delta]).tokens(11_826, 205);
    check(&[
        row("B148", r#"{"input_tokens":25,"output_tokens":1}"#, &[r#"{"output_tokens":15}"#]).tokens(25, 15),
        row(
            "B149",
            r#"{"input_tokens":5,"cache_read_input_tokens":1000,"cache_creation_input_tokens":200,"output_tokens":1}"#,
            &[r#"{"input_tokens":5,"cache_read_input_tokens":1000,"cache_creation_input_tokens":200,"output_tokens":40}"#],
        )
        .tokens(1205, 40)
        .usage("cache_read", Some(1000))
        .usage("cache_write_5m", Some(200)),
        row(
            "B152",
            r#"{"input_tokens":25,"output_tokens":1}"#,
            &[r#"{"output_tokens":10}"#, r#"{"output_tokens":25}"#, r#"{"output_tokens":40}"#],
        )
        .tokens(25, 40),
        b155(
            "B154",
            r#"{"input_tokens":0,"cache_creation_input_tokens":0,"cache_read_input_tokens":0,"output_tokens":205}"#,
        )
        .usage("cache_write_5m", Some(11_822)),
        b155("B155 absent", r#"{"output_tokens":205}"#),
        b155(
            "B155 null",
            r#"{"input_tokens":null,"cache_creation_input_tokens":null,"cache_read_input_tokens":null,"output_tokens":205}"#,
        ),
        row(
            "B161",
            r#"{"input_tokens":3,"cache_creation_input_tokens":100,"cache_creation":{"ephemeral_5m_input_tokens":40,"ephemeral_1h_input_tokens":60},"output_tokens":1}"#,
            &[r#"{"cache_creation_input_tokens":100,"output_tokens":7}"#],
        )
        .tokens(103, 7)
        .usage("cache_write_5m", Some(40))
        .usage("cache_write_1h", Some(60)),
        row(
            "B163 the surplus is 5m",
            r#"{"input_tokens":3,"cache_creation_input_tokens":100,"cache_creation":{"ephemeral_5m_input_tokens":40,"ephemeral_1h_input_tokens":60},"output_tokens":1}"#,
            &[r#"{"cache_creation_input_tokens":110,"output_tokens":7}"#],
        )
        .tokens(113, 7)
        .usage("cache_write_5m", Some(50))
        .usage("cache_write_1h", Some(60)),
        row("B167", r#"{"input_tokens":19,"cache_read_input_tokens":39000,"output_tokens":1}"#, &[r#"{"output_tokens":3}"#])
            .tokens(39_019, 3)
            .usage("cache_read", Some(39_000)),
        row("B214", r#"{"input_tokens":25,"output_tokens":1}"#, &[
            r#"{"output_tokens":9,"server_tool_use":{"web_search_requests":1}}"#,
            r#"{"output_tokens":15,"server_tool_use":{"web_search_requests":2}}"#,
        ])
        .usage("web_search", Some(2)),
        row("U3 iterations", r#"{"input_tokens":25,"output_tokens":1}"#, &[
            r#"{"input_tokens":10,"output_tokens":15,"iterations":[{"input_tokens":100,"output_tokens":20,"type":"compaction"},{"input_tokens":10,"output_tokens":15,"type":"message"}]}"#,
        ])
        .tokens(110, 35),
    ])
    .await;
}

#[tokio::test]
async fn u3_j_chat() {
    let asking = |name, stream: String| Row::new(name, CHAT_D, stream).ask(CHAT_ASK_USAGE);
    let with = |name, usage: &str| asking(name, chat_with(usage));
    let role = CHAT_D.events()[0].clone();
    let groq = "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}],\"x_groq\":{\"id\":\"r\",\"usage\":{\"prompt_tokens\":12,\"completion_tokens\":2}}}\n\n";
    let moonshot = CHAT_FINISH.replace(
        "\"finish_reason\":\"stop\"",
        "\"finish_reason\":\"stop\",\"usage\":{\"prompt_tokens\":12,\"completion_tokens\":2,\"cached_tokens\":8}",
    );
    check(&[
        asking("B169 B56", chat_riding(&["null", &counts(12, 1), &counts(12, 2), &counts(12, 3)])).tokens(12, 3),
        asking("B170", chat_riding(&["null", &counts(13_856, 133), &counts(13_856, 134)])).tokens(13_856, 134),
        asking("B172 null before", chat_riding(&["null"; 4]).replace(DONE, CHAT_USAGE) + DONE),
        asking("B172 null after", chat_riding(&["null", "null", &counts(12, 2), "null"])),
        with("B173", r#"{"prompt_tokens":12,"completion_tokens":2,"total_tokens":14,"prompt_tokens_details":{"cached_tokens":0,"cache_write_tokens":null},"x":{}}"#),
        with("B200", r#"{"prompt_tokens":17903,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":17817}}"#)
            .tokens(17_903, 2)
            .usage("cache_read", Some(17_817)),
        with("B199 reasoning left out", r#"{"prompt_tokens":36,"completion_tokens":10,"total_tokens":736,"completion_tokens_details":{"reasoning_tokens":690}}"#)
            .tokens(36, 700)
            .usage("reasoning", Some(690)),
        with("B197 reasoning inside", r#"{"prompt_tokens":36,"completion_tokens":135,"total_tokens":171,"completion_tokens_details":{"reasoning_tokens":78}}"#)
            .tokens(36, 135),
        with("U3 text and floats", r#"{"prompt_tokens":"12","completion_tokens":2.0,"total_tokens":14}"#),
        with("U3 cached_tokens at the top", r#"{"prompt_tokens":12,"completion_tokens":2,"cached_tokens":8}"#)
            .usage("cache_read", Some(8)),
        asking("U3 x_groq", format!("{role}{}{groq}{DONE}", chat_delta("Hello"))),
        asking("U3 in a choice", format!("{role}{}{moonshot}{DONE}", chat_delta("Hello"))).usage("cache_read", Some(8)),
        asking(
            "B175",
            chat_riding(&[
                "null",
                r#"{"prompt_tokens":12,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":8}}"#,
                r#"{"prompt_tokens":12,"completion_tokens":2,"prompt_tokens_details":null}"#,
            ]),
        ),
    ])
    .await;
}

#[tokio::test]
async fn u3_b176_b203_b205_broken_counts_are_missing_not_zero() {
    for usage in [
        r#"{"prompt_tokens":12,"completion_tokens":null}"#,
        r#"{"prompt_tokens":12,"completion_tokens":-100}"#,
        r#"{"prompt_tokens":12,"completion_tokens":9000000000000000000}"#,
    ] {
        let upstream = Upstream::start(Reply::stream(chat_with(usage))).await;
        let weir = Setup::new(&upstream.url()).start().await;
        let received = weir.post(CHAT, CHAT_ASK).await;
        assert_eq!(received.text(), chat_seen());
        let record = weir.record(received.id()).await;
        assert_eq!(number(&record, "input"), Some(12), "{usage}: {record}");
        assert!(number(&record, "output").is_none_or(|count| (1..100).contains(&count)), "{usage}: {record}");
        assert_eq!(field(&record, "source"), "partial", "{usage}");
    }
}

#[tokio::test]
async fn u3_k_responses() {
    let usage = r#"{"input_tokens":64,"output_tokens":1500,"total_tokens":1564}"#;
    let incomplete = resp_with("incomplete", usage).replace(
        "\"status\":\"incomplete\"",
        "\"status\":\"incomplete\",\"incomplete_details\":{\"reason\":\"max_output_tokens\"}",
    );
    let failed = resp_with("failed", r#"{"input_tokens":20,"output_tokens":3}"#).replace(
        "\"status\":\"failed\"",
        "\"status\":\"failed\",\"error\":{\"code\":\"server_error\",\"message\":\"x\"}",
    );
    check(&[
        Row::new("RESP-OK", RESP_D, resp_ok()).usage("cache_read", Some(8)),
        Row::new("B191", RESP_D, incomplete).tokens(64, 1500).outcome("truncated"),
        Row::new("B193", RESP_D, failed).tokens(20, 3).outcome("upstream_error"),
    ])
    .await;
}

#[tokio::test]
async fn b196_a_stream_without_usage_is_never_reported() {
    for (dialect, stream) in [(CHAT_D, chat_seen()), (RESP_D, resp_with("completed", "null"))] {
        let upstream = Upstream::start(Reply::stream(&stream)).await;
        let weir = Setup::new(&upstream.url()).start().await;
        let received = weir.post(dialect.path, dialect.ask()).await;
        assert_eq!(received.text(), stream);
        let record = weir.record(received.id()).await;
        assert_eq!(word(&record), "completed");
        assert_ne!(field(&record, "source"), "reported", "{record}");
        assert_ne!(number(&record, "output"), Some(0), "never a silent 0/0: {record}");
    }
}

#[tokio::test]
async fn b194_b220_a_client_that_leaves_after_the_terminal_event_changes_nothing() {
    let upstream = Upstream::start(Reply::stream(resp_ok())).await;
    let weir = Setup::new(&upstream.url()).start().await;
    let mut client = Client::connect(&weir).await;
    let head = client.open(RESPONSES, RESP_D.ask()).await;
    client.read_past("response.completed").await;
    drop(client);
    let record = weir.record(head.id()).await;
    assert_eq!((number(&record, "input"), number(&record, "output")), (Some(20), Some(5)));
    assert_eq!(word(&record), "completed");
}

#[tokio::test]
async fn length_is_truncated() {
    let chat = chat_ok().replace("\"finish_reason\":\"stop\"", "\"finish_reason\":\"length\"");
    let chat_seen = chat.replace(CHAT_USAGE, "");
    let messages = msg_ok().replace("end_turn", "max_tokens");
    check(&[
        Row::new("E5 length", CHAT_D, chat).expect(chat_seen).outcome("truncated"),
        Row::new("E5 max_tokens", MSG_D, messages).outcome("truncated"),
    ])
    .await;
}

#[tokio::test]
async fn b61_b166_what_is_known_when_the_client_leaves_is_kept() {
    let start = msg_start(r#"{"input_tokens":5,"cache_read_input_tokens":1000,"output_tokens":1}"#);
    let begun = start + &MSG_D.events()[1..3].concat();
    let upstream = Upstream::start(Reply::sse().write(&begun).hang()).await;
    let weir = Setup::new(&upstream.url()).start().await;
    let mut client = Client::connect(&weir).await;
    let head = client.open(MESSAGES, MSG_D.ask()).await;
    client.read_past("Hel").await;
    drop(client);
    let record = weir.record(head.id()).await;
    assert_eq!(word(&record), "client_gone");
    assert_eq!((number(&record, "input"), number(&record, "cache_read")), (Some(1005), Some(1000)), "{record}");
    assert_eq!(field(&record, "source"), "partial", "the 1 of message_start is a placeholder (B164): {record}");
    assert!(record["ttft_ms"].as_f64().is_some_and(|time| time > 0.0), "{record}");
}
