//! The harness itself, without a gateway between: a test that cannot see a fault proves nothing.

use crate::harness::*;

async fn direct(reply: Reply) -> (Received, Vec<usize>) {
    let upstream = Upstream::start(reply).await;
    let mut client = Client::connect_to(upstream.address).await;
    client.post(CHAT, CHAT_ASK).await;
    let received = client.receive().await;
    assert_eq!(upstream.request(0).await.body, CHAT_ASK);
    (received, client.arrivals.iter().map(|(_, size)| *size).collect())
}

#[tokio::test]
async fn the_upstream_writes_what_the_script_says() {
    let (received, sizes) = direct(Reply::stream("abcdef")).await;
    assert_eq!((received.text().as_str(), received.ended, sizes), ("abcdef", true, vec![6]));
    let (received, sizes) = direct(Reply::sse().pieces("abcdef", 1)).await;
    assert_eq!((received.text().as_str(), received.ended, sizes), ("abcdef", true, vec![1; 6]));
    let (received, sizes) = direct(Reply::sse().cuts("abcdef", &[2, 2, 5])).await;
    assert_eq!((received.text().as_str(), sizes), ("abcdef", vec![2, 3, 1]));
    let (received, _) = direct(Reply::stream("abc").framing(Framing::Close)).await;
    assert_eq!((received.text().as_str(), received.ended), ("abc", true));
    let (received, _) = direct(Reply::json(418, "{}")).await;
    assert_eq!((received.status(), received.text().as_str(), received.ended), (418, "{}", true));
}

#[tokio::test]
async fn the_client_sees_how_a_body_ends() {
    for broken in [
        Reply::stream("abc").fin(),
        Reply::stream("abc").pause(50).rst(),
        Reply::stream("abc").raw_bytes("20\r\nhalf").fin(),
        Reply::stream("abc").framing(Framing::Length(10)).fin(),
    ] {
        let (received, _) = direct(broken).await;
        assert_eq!((received.text().as_str(), received.ended), ("abc", false));
    }
}

#[tokio::test]
async fn the_upstream_sees_when_the_client_leaves() {
    let upstream = Upstream::start(Reply::stream("abc").hang()).await;
    let mut client = Client::connect_to(upstream.address).await;
    client.open(CHAT, CHAT_ASK).await;
    client.read_past("abc").await;
    assert_eq!(upstream.requests()[0].closed, None);
    let left = std::time::Instant::now();
    drop(client);
    assert!(upstream.gone(0).await - left < std::time::Duration::from_secs(30));
    assert!(!upstream.requests()[0].played);
    assert_eq!((upstream.connections(), upstream.written()), (1, 3));
}

#[tokio::test]
async fn queued_replies_come_before_the_default() {
    let upstream = Upstream::start(Reply::stream("default")).await;
    upstream.push(Reply::stream("first"));
    let mut client = Client::connect_to(upstream.address).await;
    for wanted in ["first", "default"] {
        client.post(CHAT, CHAT_ASK).await;
        assert_eq!(client.receive().await.text(), wanted);
    }
    assert!(upstream.requests().iter().all(|request| request.played && request.connection == 0));
}

#[test]
fn usage_chunks_are_told_from_their_neighbours() {
    let kinds: Vec<_> = events(chat_ok().as_bytes()).iter().map(|event| is_usage_chunk(event)).collect();
    assert_eq!(kinds, [false, false, false, false, true, false]);
    let filter = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":1},\"prompt_filter_results\":[{}]}\n\n";
    assert!(!is_usage_chunk(filter));
    for dialect in &Dialect::ALL[1..] {
        assert_eq!(dialect.seen(), (dialect.ok)());
    }
}
