//! TLS towards clients and providers, and the way to a provider through an egress proxy.

use crate::harness::*;
use std::fmt::Write as _;
use tokio_rustls::rustls::version::{TLS12, TLS13};

/// Whether a request on a connection with these certificates and versions is answered.
async fn is_served(weir: &Weir, tls: tokio_rustls::TlsConnector) -> bool {
    let Some(mut client) = Client::try_connect_tls(weir, tls).await else { return false };
    // A refusal of TLS 1.3 comes after the client's side of the handshake.
    if client.try_send(request(CHAT, &[], CHAT_ASK.as_bytes())).await.is_err() {
        return false;
    }
    let Some(head) = within("an answer or an end", client.try_head()).await else { return false };
    head.status == 200 && client.rest().await == chat_seen().as_bytes()
}

fn listener(folder: &std::path::Path, pki: &Pki, more: &str) -> String {
    let [_, cert, key] = pki.write(folder);
    format!("tls: {{ certificates: [{{ cert: \"{}\", key: \"{}\" }}]{more} }}", cert.display(), key.display())
}

#[tokio::test]
async fn tls_min_version_refuses_an_older_client() {
    let upstream = Upstream::start(Reply::stream(chat_ok())).await;
    let (pki, folder) = (Pki::new(), tempfile::tempdir().unwrap());
    for (min_version, old_is_served) in
        [("", true), (", min_version: \"1.2\"", true), (", min_version: \"1.3\"", false)]
    {
        let weir = Setup::new(&upstream.url()).listen(&listener(folder.path(), &pki, min_version)).start().await;
        let name = format!("{min_version:?}");
        assert!(is_served(&weir, pki.client(&[&TLS13], None)).await, "{name}");
        assert!(is_served(&weir, pki.client(&[&TLS12, &TLS13], None)).await, "{name}");
        assert_eq!(is_served(&weir, pki.client(&[&TLS12], None)).await, old_is_served, "{name}");
    }
}

#[tokio::test]
async fn tls_client_ca_lets_in_those_with_a_certificate_of_it() {
    let upstream = Upstream::start(Reply::stream(chat_ok())).await;
    let (pki, known, stranger) = (Pki::new(), Pki::new(), Pki::new());
    let (own, theirs, others) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let ca = known.write(theirs.path())[0].display().to_string();
    let tls = listener(own.path(), &pki, &format!(", client_ca: \"{ca}\""));
    let weir = Setup::new(&upstream.url()).listen(&tls).start().await;
    for version in [&TLS12, &TLS13] {
        assert!(!is_served(&weir, pki.client(&[version], None)).await, "no certificate");
        assert!(!is_served(&weir, pki.client(&[version], Some(&stranger))).await, "of another authority");
        assert!(is_served(&weir, pki.client(&[version], Some(&known))).await, "{}", weir.said());
    }
    assert_eq!(upstream.count(), 2);
    // C2: another authority, another file, and no restart.
    let other = stranger.write(others.path())[0].display().to_string();
    let reloaded = weir.reload(&weir.config().replace(&ca, &other)).await;
    assert!(reloaded.status() == 200 && !reloaded.text().contains("\"listen\""), "{}", reloaded.text());
    assert!(is_served(&weir, pki.client(&[&TLS13], Some(&stranger))).await, "{}", weir.said());
    assert!(!is_served(&weir, pki.client(&[&TLS13], Some(&known))).await);
}

/// Whether a client's session was resumed, and whether its request was answered.
async fn visits(weir: &Weir, tls: &tokio_rustls::TlsConnector) -> (bool, bool) {
    let (mut client, resumed) = Client::resume_tls(weir, tls.clone()).await;
    if client.try_send(request(CHAT, &[], CHAT_ASK.as_bytes())).await.is_err() {
        return (resumed, false);
    }
    let Some(head) = within("an answer or an end", client.try_head()).await else { return (resumed, false) };
    (resumed, head.status == 200 && client.rest().await == chat_seen().as_bytes())
}

#[tokio::test]
async fn tls_a_session_of_an_authority_that_a_reload_took_away_admits_nobody() {
    let upstream = Upstream::start(Reply::stream(chat_ok())).await;
    let (pki, known, stranger) = (Pki::new(), Pki::new(), Pki::new());
    let (own, theirs, others) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let ca = known.write(theirs.path())[0].display().to_string();
    let other = stranger.write(others.path())[0].display().to_string();
    for version in [&TLS12, &TLS13] {
        let tls = listener(own.path(), &pki, &format!(", client_ca: \"{ca}\""));
        let weir = Setup::new(&upstream.url()).listen(&tls).start().await;
        let good = weir.config();
        let client = pki.client(&[version], Some(&known));
        assert_eq!(visits(&weir, &client).await, (false, true));
        assert_eq!(visits(&weir, &client).await, (true, true), "{:?}", version.version);
        assert_eq!(weir.reload(&good.replace(&ca, &other)).await.status(), 200);
        assert_eq!(visits(&weir, &client).await, (true, false), "{:?} {}", version.version, weir.said());
        // Both authorities: the old session is as good as a new one.
        std::fs::write(&other, [std::fs::read(&ca).unwrap(), std::fs::read(&other).unwrap()].concat()).unwrap();
        assert_eq!(weir.reload(&good.replace(&ca, &other)).await.status(), 200);
        assert!(visits(&weir, &client).await.1, "{:?} {}", version.version, weir.said());
        stranger.write(others.path());
    }
}

#[tokio::test]
async fn tls_a_session_of_a_version_that_a_reload_took_away_admits_nobody() {
    let upstream = Upstream::start(Reply::stream(chat_ok())).await;
    let (pki, folder) = (Pki::new(), tempfile::tempdir().unwrap());
    let tls = listener(folder.path(), &pki, ", min_version: \"1.2\"");
    let weir = Setup::new(&upstream.url()).listen(&tls).start().await;
    let client = pki.client(&[&TLS12], None);
    assert_eq!(visits(&weir, &client).await, (false, true));
    assert_eq!(visits(&weir, &client).await, (true, true));
    let raised = weir.config().replace("min_version: \"1.2\"", "min_version: \"1.3\"");
    assert_eq!(weir.reload(&raised).await.status(), 200);
    assert!(!is_served(&weir, client).await, "in the handshake, as a new session");
    assert_eq!(visits(&weir, &pki.client(&[&TLS12, &TLS13], None)).await, (false, true));
}

#[tokio::test]
async fn tls_client_cert_is_shown_to_the_provider() {
    let pki = Pki::new();
    let folder = tempfile::tempdir().unwrap();
    let [ca, cert, key] = pki.write(folder.path());
    let upstream = Upstream::start_strict(Reply::stream(chat_ok()), &pki).await;
    for shown in [true, false] {
        let mut settings = format!("ca: \"{}\"", ca.display());
        if shown {
            let _ = write!(settings, ", client_cert: {{ cert: \"{}\", key: \"{}\" }}", cert.display(), key.display());
        }
        let weir = Setup::with_provider(&upstream.url(), &settings).start().await;
        let answer = weir.post(CHAT, CHAT_ASK).await;
        assert_eq!(answer.status() == 200, shown, "{} {}", answer.text(), weir.said());
        assert_eq!(upstream.count(), 1, "only who shows one is heard");
        let ends = weir.metric("weir_certificate_expiry_timestamp_seconds", &["cert.pem"]).await;
        assert_eq!(ends > 1_700_000_000.0, shown);
    }
}

#[tokio::test]
async fn egress_proxy_is_the_way_to_the_provider() {
    let pki = Pki::new();
    let folder = tempfile::tempdir().unwrap();
    let ca = format!(", ca: \"{}\"", pki.write(folder.path())[0].display());
    let plain = Upstream::start(Reply::stream(chat_ok())).await;
    let tls = Upstream::start_tls(Reply::stream(chat_ok()), &pki).await;
    let h2 = H2Upstream::start_tls(Reply::stream(chat_ok()), &pki).await;
    // Only the proxy knows the plain one's name.
    let nowhere = plain.url().replace("127.0.0.1", "provider.invalid");
    for (url, ca, user) in [(nowhere, "", "me:p%40ss@"), (tls.url(), &ca, ""), (h2.url(), &ca, "me@")] {
        let proxy = ConnectProxy::start("HTTP/1.1 200 Connection established\r\nvia: 1.1 proxy").await;
        let settings = format!("egress_proxy: \"http://{user}{}\"{ca}", proxy.address);
        let weir = Setup::with_provider(&url, &settings).start().await;
        for _ in 0..2 {
            let answer = weir.post(CHAT, CHAT_ASK).await;
            assert_eq!((answer.status(), answer.text()), (200, chat_seen()), "{url}: {}", weir.said());
        }
        let place = url.split("//").nth(1).unwrap();
        let credentials = match user {
            "me:p%40ss@" => "proxy-authorization: Basic bWU6cEBzcw==\r\n",
            "me@" => "proxy-authorization: Basic bWU6\r\n",
            _ => "",
        };
        let wanted = format!("CONNECT {place} HTTP/1.1\r\nhost: {place}\r\n{credentials}\r\n");
        let heads = proxy.heads();
        assert!(!heads.is_empty() && heads.iter().all(|head| *head == wanted), "{heads:?} instead of {wanted:?}");
        assert!(!weir.said().contains("p@ss") && !weir.said().contains("bWU6"), "{}", weir.said());
    }
    assert_eq!((plain.count(), tls.count(), h2.seen.count()), (2, 2, 2));
    let up = &plain.requests()[0];
    assert_eq!((up.path.as_str(), up.header("proxy-authorization")), (CHAT, None), "the provider sees nothing of it");
}

#[tokio::test]
async fn egress_proxy_that_refuses_fails_the_attempt_and_the_next_target_answers() {
    let (first, second) =
        (Upstream::start(Reply::stream(chat_ok())).await, Upstream::start(Reply::stream(chat_ok())).await);
    for (answer, told) in [
        ("HTTP/1.1 407 Proxy Authentication Required", "Some(407)"),
        ("HTTP/1.1 502 Bad Gateway", "Some(502)"),
        ("SSH-2.0-server", "None"),
    ] {
        let proxy = ConnectProxy::start(answer).await;
        let weir = Setup::with_provider(&first.url(), &format!("egress_proxy: \"http://{}\"", proxy.address))
            .target(&second.url(), "")
            .defaults("retry: { attempts: 2 }")
            .start()
            .await;
        let received = weir.post(CHAT, CHAT_ASK).await;
        assert_eq!((received.status(), received.text()), (200, chat_seen()), "{answer}");
        let tries = tries(&weir.record(received.id()).await);
        assert!(tries.first().unwrap().starts_with("up:connect"), "{answer}: {tries:?}");
        let refused = "the egress proxy refuses to connect";
        until("the log to say so", || weir.said().contains(refused) && weir.said().contains(told)).await;
    }
    assert_eq!(first.count(), 0);
}
