//! G4: several gateways that count in one Redis.

use crate::harness::*;
use std::time::Duration;

const CHAT_D: Dialect = Dialect::ALL[0];

/// Gateways over one store, all with the same key.
async fn gateways<const N: usize>(
    redis: &Redis,
    upstream: &str,
    key: &str,
    more: &str,
) -> ([Weir; N], tempfile::TempDir) {
    let (folder, section) = prices("prices.yaml", OWN_PRICES);
    let limits = format!("limits: {{ store: {{ redis: \"{}\" }}{more} }}", redis.url());
    let setup = Setup::new(upstream).section(&section).section(&limits).own_key(key);
    let mut all = Vec::new();
    for _ in 0..N {
        let weir = setup.clone().start().await;
        weir.settles("weir_limit_store_up", 1.0).await;
        all.push(weir);
    }
    (all.try_into().unwrap_or_else(|_| unreachable!("as many as were asked for")), folder)
}

/// As many clients at once as that, each so many times, spread over the gateways; the statuses they got.
async fn rush<const N: usize>(gateways: &[Weir; N], clients: usize, times: usize, ask: &str) -> Vec<u16> {
    let mut tasks = tokio::task::JoinSet::new();
    for client in 0..clients {
        let address = gateways[client % N].address;
        let whole = request(CHAT, &[], ask.as_bytes());
        tasks.spawn(async move {
            let mut statuses = Vec::new();
            for _ in 0..times {
                let mut client = Client::connect_to(address).await;
                client.send(&whole).await;
                statuses.push(client.receive().await.status());
            }
            statuses
        });
    }
    let mut all = Vec::new();
    while let Some(statuses) = tasks.join_next().await {
        all.extend(statuses.expect("a client"));
    }
    all
}

/// A store that answers late is away, and then each gateway goes on by itself. That a machine which stalls makes it
/// late is no fault: what was disturbed so is run again.
async fn with_a_store<F>(scenario: fn() -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    for again in [true, true, true, true, false] {
        let Err(failed) = tokio::spawn(scenario()).await else { return };
        let disturbed = said_by_any("the store of limits is away");
        if !(again && disturbed) {
            std::panic::resume_unwind(failed.into_panic());
        }
        println!("once more: {failed:?}");
    }
}

#[tokio::test]
async fn g4_a_limit_holds_over_three_gateways_under_200_clients() {
    with_a_store(a_limit_holds).await;
}

async fn a_limit_holds() {
    let redis = Redis::start().await;
    let upstream = Upstream::start(Reply::stream(chat_ok())).await;
    let (all, _folder) = gateways::<3>(&redis, &upstream.url(), "rpm: 60, tpm: 1000000", "").await;
    let statuses = rush(&all, 200, 3, CHAT_ASK).await;
    let accepted = statuses.iter().filter(|status| **status == 200).count();
    assert_eq!((accepted, statuses.len(), upstream.count()), (60, 600, 60));
    assert!(statuses.iter().all(|status| matches!(status, 200 | 429)));
    let refused = all[0].post(CHAT, CHAT_ASK).await;
    let wait: u64 = refused.head.get("retry-after").expect("retry-after").parse().expect("seconds");
    assert!((1..=61).contains(&wait));
    assert_eq!(refused.head.get("x-ratelimit-remaining-requests"), Some("0"));
    // A dozen tokens each stand in place of the four thousand that were reserved.
    until("the tokens to be settled", || redis.number("HGET weir:k:test:t s") == 60 * 14).await;
}

#[tokio::test]
async fn g4_the_store_is_reached_by_tls_if_its_certificate_is_of_a_known_authority() {
    let (pki, other) = (Pki::new(), Pki::new());
    let redis = Redis::start_tls(&pki).await;
    let upstream = Upstream::start(Reply::stream(chat_ok())).await;
    let folder = tempfile::tempdir().unwrap();
    let setup = |pki: &Pki, name: &str| {
        let folder = folder.path().join(name);
        std::fs::create_dir(&folder).unwrap();
        let [ca, ..] = pki.write(&folder);
        let limits = format!("limits: {{ store: {{ redis: \"{}\" }}, on_failure: reject }}", redis.tls_url(&ca));
        Setup::new(&upstream.url()).section(&limits).own_key("rpm: 2")
    };
    let (one, two) = (setup(&pki, "one").start().await, setup(&pki, "two").start().await);
    for weir in [&one, &two] {
        weir.settles("weir_limit_store_up", 1.0).await;
        assert_eq!(weir.post(CHAT, CHAT_ASK).await.status(), 200);
    }
    for weir in [&one, &two] {
        assert_eq!(weir.post(CHAT, CHAT_ASK).await.status(), 429, "they count together");
    }
    let stranger = setup(&other, "stranger").start().await;
    assert_eq!(stranger.metric("weir_limit_store_up", &[]).await.to_bits(), 0.0_f64.to_bits());
    assert_eq!(stranger.post(CHAT, CHAT_ASK).await.status(), 503, "it does not talk to whom it cannot verify");
}

#[tokio::test]
async fn g4_a_budget_is_not_overdrawn_by_three_gateways_and_survives_them_and_the_store() {
    with_a_store(a_budget_is_not_overdrawn).await;
}

async fn a_budget_is_not_overdrawn() {
    let mut redis = Redis::start().await;
    // 10 of the 20 tokens that are reserved: 12·3600 + 10·18000 = 223,200 nano-USD.
    let usage = r#"{"prompt_tokens":12,"completion_tokens":10}"#;
    let reply = chat_ok().replace(r#"{"prompt_tokens":12,"completion_tokens":2,"total_tokens":14}"#, usage);
    let upstream = Upstream::start(Reply::stream(reply)).await;
    let key = "budgets: [{ usd: \"0.01\", per: day }]";
    let (all, _folder) = gateways::<3>(&redis, &upstream.url(), key, "").await;
    let ask = CHAT_ASK.replace("\"stream\"", "\"max_tokens\":20,\"stream\"");
    let mut statuses = Vec::new();
    // Those that waited for others' reservations come again, until nobody is let in any more.
    loop {
        let round = rush(&all, 200, 1, &ask).await;
        until("nothing to be reserved", || redis.number("GET weir:k:test:v") == 0).await;
        let over = round.iter().all(|status| *status != 200);
        statuses.extend(round);
        if over {
            break;
        }
    }
    let charged =
        || all.iter().map(|weir| weir.ask("SELECT sum(charge) FROM records").parse::<i64>().unwrap_or(0)).sum::<i64>();
    let accepted = i64::try_from(statuses.iter().filter(|status| **status == 200).count()).expect("a number");
    until("the ledgers to have it all", || charged() == accepted * 223_200).await;
    // 10,000,000 have room for 44; the last that fit has to have its reservation, 20 tokens and the prompt, left.
    assert!((42..=44).contains(&accepted), "{accepted}, {statuses:?}");
    let refused = all[1].post(CHAT, &ask).await;
    assert_eq!((refused.status(), refused.head.get("x-should-retry")), (429, Some("false")));
    let day = format!("weir:k:test:d:{}", all[0].ask("SELECT day FROM records LIMIT 1"));
    assert_eq!(redis.number(&format!("HLEN {day}")), 3, "one sum for each ledger");
    // Each gateway tells a store that has forgotten everything what it knows.
    redis.kill();
    redis.run().await;
    for weir in &all {
        assert_eq!(weir.post(CHAT, &ask).await.status(), 429, "as far as it knows");
    }
    until("the store to know again", || redis.number(&format!("HLEN {day}")) == 3).await;
    for weir in &all {
        weir.settles("weir_limit_store_up", 1.0).await;
        assert_eq!(weir.post(CHAT, &ask).await.status(), 429);
    }
    assert!(charged() <= 10_000_000);
}

#[tokio::test]
async fn g4_a_gateway_that_is_killed_lets_go_of_its_slots_within_a_minute() {
    with_a_store(a_gateway_that_is_killed).await;
}

async fn a_gateway_that_is_killed() {
    let redis = Redis::start().await;
    let upstream = Upstream::start(Reply::sse().write(CHAT_D.begun()).hang()).await;
    let key = "concurrent: 2, budgets: [{ usd: \"100\", per: total }]";
    let (all, _folder) = gateways::<2>(&redis, &upstream.url(), key, "").await;
    let mut clients = Vec::new();
    for _ in 0..2 {
        let mut client = Client::connect(&all[0]).await;
        client.open(CHAT, CHAT_ASK).await;
        client.read_past("Hel").await;
        clients.push(client);
    }
    assert_eq!(all[1].post(CHAT, CHAT_ASK).await.status(), 429);
    assert!(redis.number("GET weir:k:test:v") > 0);
    // A lease is renewed for as long as the request runs.
    let later = std::time::SystemTime::UNIX_EPOCH.elapsed().expect("a time") + Duration::from_secs(16);
    until("a renewal", || redis.number(&format!("ZCOUNT weir:k:test:c {} +inf", later.as_millis())) == 2).await;
    assert_eq!(all[1].post(CHAT, CHAT_ASK).await.status(), 429, "it still runs");
    all[0].signal("KILL");
    all[0].ended().await;
    upstream.set_default(Reply::stream(chat_ok()));
    let left = std::time::Instant::now();
    while all[1].post(CHAT, CHAT_ASK).await.status() == 429 {
        assert!(left.elapsed() < Duration::from_mins(1), "the slots leak");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    until("the money to be free again", || redis.number("GET weir:k:test:v") == 0).await;
}

#[tokio::test]
async fn g4_b233_random_leaves_leave_nothing_in_the_store() {
    with_a_store(random_leaves).await;
}

async fn random_leaves() {
    let redis = Redis::start().await;
    let upstream = Upstream::start(Reply::sse().pieces(chat_ok(), 40).hang()).await;
    let key = "concurrent: 1000, rpm: 100000, tpm: 10000000, budgets: [{ usd: \"100\", per: month }]";
    let ([weir], _folder) = gateways::<1>(&redis, &upstream.url(), key, "").await;
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..20 {
        let mut clients = tokio::task::JoinSet::new();
        for _ in 0..20 {
            let (patience, address) = (random.u64(0..8), weir.address);
            clients.spawn(async move {
                let mut client = Client::connect_to(address).await;
                client.send(request(CHAT, &[], CHAT_ASK.as_bytes())).await;
                let _ = tokio::time::timeout(Duration::from_millis(patience), client.try_head()).await;
            });
        }
        while clients.join_next().await.is_some() {}
    }
    until("no slot to be taken", || redis.number("ZCARD weir:k:test:c") == 0).await;
    until("no money to be held", || redis.number("GET weir:k:test:v") == 0 && redis.number("HLEN weir:k:test:h") == 0)
        .await;
}

#[tokio::test]
async fn g4_while_the_store_is_away_each_gateway_has_its_share_or_refuses() {
    with_a_store(while_the_store_is_away).await;
}

async fn while_the_store_is_away() {
    let mut redis = Redis::start().await;
    let upstream = Upstream::start(Reply::stream(chat_ok())).await;
    let (all, _folder) = gateways::<3>(&redis, &upstream.url(), "rpm: 12", "").await;
    // Each hears of the others when it renews.
    for weir in &all {
        within("three gateways to be known", async {
            while get(weir.admin, "/api/limits").await.expect("the page").json()["gateways"] != 3 {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        })
        .await;
    }
    redis.kill();
    let statuses = rush(&all, 30, 1, CHAT_ASK).await;
    let accepted = statuses.iter().filter(|status| **status == 200).count();
    assert_eq!(accepted, 12, "a third each: {statuses:?}");
    for weir in &all {
        weir.settles("weir_limit_store_up", 0.0).await;
    }
    redis.run().await;
    for weir in &all {
        weir.settles("weir_limit_store_up", 1.0).await;
    }
    assert_eq!(all[0].post(CHAT, CHAT_ASK).await.status(), 200, "the store counts again");
    let (strict, _folder) = gateways::<1>(&redis, &upstream.url(), "rpm: 12", ", on_failure: reject").await;
    redis.kill();
    let refused = strict[0].post(CHAT, CHAT_ASK).await;
    assert_eq!(refused.status(), 503);
    assert_eq!(refused.json()["error"]["code"], "server_unavailable");
    assert_eq!(strict[0].metric("weir_limit_rejections_total", &["limit=\"limit_store\""]).await, 1.0);
}
