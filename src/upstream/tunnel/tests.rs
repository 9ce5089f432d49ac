use super::*;

#[test]
fn connect_is_asked_for_with_credentials_that_do_not_print() {
    let secret = crate::config::Secret::new("Basic dTpw".to_owned());
    let proxy = EgressProxy { host: "proxy".to_owned(), port: 3128, authorization: Some(secret) };
    let tunnel = Tunnel::new("openai", &proxy, "::1", 443);
    let head = "CONNECT [::1]:443 HTTP/1.1\r\nhost: [::1]:443\r\nproxy-authorization: Basic dTpw\r\n\r\n";
    assert_eq!(tunnel.ask.0, head.as_bytes());
    assert!(!format!("{tunnel:?}").contains("dTpw"));
}

#[test]
fn only_a_status_line_is_an_answer() {
    for (head, expected) in [
        ("HTTP/1.1 200 Connection established\r\n\r\n", Some(200)),
        ("HTTP/1.0 407 Proxy Authentication Required\r\n", Some(407)),
        ("SSH-2.0-x\r\n", None),
        ("", None),
    ] {
        assert_eq!(status(head.as_bytes()), expected, "{head:?}");
    }
}
