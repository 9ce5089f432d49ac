//! The fault matrix: protocol x phase x fault, and for each cell what the client reads, the status,
//! the outcome, the attempts and the cool-down. The expectations are in `matrix/table.rs`.
//!
//! Every cell is a model of its own, with targets of its own, in one gateway for each protocol.

mod table;
mod transport;
mod world;

use crate::harness::*;
use std::sync::Arc;
use table::{Comes, alone, cell, envelope};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use world::{Doorstep, Fault, Phase, doorstep, reply};

/// Cells at once: more would make one another late on a small machine. Those that only wait do not count.
const AT_ONCE: usize = 12;

/// How soon silence is a fault; the second target has as long to answer.
const SILENCE: &str = ", timeouts: { connect: 2500ms, first_byte: 2500ms, idle: 2500ms }";

/// One cell and what is used to look at it.
struct Cell {
    dialect: Dialect,
    phase: Phase,
    fault: Fault,
    /// With a second target, which is healthy.
    pair: bool,
    comes: Comes,
    /// The client speaks HTTP/2.
    h2: bool,
    /// The client has read what came before the fault.
    read: Signal,
}

impl Cell {
    fn name(&self) -> String {
        let Self { phase, fault, pair, .. } = self;
        format!("{phase:?}-{fault:?}-{}", if *pair { "pair" } else { "alone" }).to_lowercase()
    }

    fn ask(&self) -> String {
        self.dialect.ask().replace("public-model", &self.name())
    }
}

/// The answer of the second target: its ids are not those of the first.
fn second(stream: &str) -> String {
    stream.replace("chatcmpl-1", "chatcmpl-2").replace("resp_abc", "resp_two").replace("msg_1", "msg_2")
}

/// Both variants of the cells that exist; after the commit the second target makes no difference.
fn cells(dialect: Dialect, h2: bool, wanted: impl Fn(Phase, Fault) -> bool) -> Vec<Cell> {
    let mut cells = Vec::new();
    for phase in Phase::ALL {
        for fault in Fault::ALL {
            let comes = cell(dialect, phase, fault);
            if comes == Comes::None || !wanted(phase, fault) {
                continue;
            }
            cells.push(Cell { dialect, phase, fault, pair: true, comes, h2, read: Signal::new() });
            if matches!(comes, Comes::Fails(_)) {
                cells.push(Cell { dialect, phase, fault, pair: false, comes, h2, read: Signal::new() });
            }
        }
    }
    cells
}

/// Where the first targets are.
struct First<'a> {
    url: String,
    settings: &'a str,
    seen: &'a Seen,
}

/// Runs cells, many at a time, and names all that are not as the table says.
async fn run(cells: Vec<Cell>, first: First<'_>) {
    let dialect = cells[0].dialect;
    let healthy = Upstream::start(Reply::stream(second(&(dialect.ok)()))).await;
    let mut setup = Setup::default()
        .provider(&format!("up: {{ base_url: \"{}\", api_key: k{} }}", first.url, first.settings))
        .provider(&format!("up2: {{ base_url: \"{}\", api_key: k }}", healthy.url()))
        .listen("h2c: true")
        .defaults("retry: { attempts: 1 }, health: { failures: 1 }");
    let mut doors: Vec<Doorstep> = Vec::new();
    let mut owners = 0;
    for cell in &cells {
        let name = cell.name();
        let mut provider = "up".to_owned();
        if cell.phase == Phase::Connect {
            let door = doorstep(dialect, cell.fault).await;
            provider = format!("door{}", doors.len());
            setup = setup.provider(&format!(
                "{provider}: {{ base_url: \"http://{}\", api_key: k{} }}",
                door.address, first.settings
            ));
            doors.push(door);
        } else {
            // What spoils a whole HTTP/2 connection must not spoil it for other cells.
            if !first.settings.is_empty() && matches!(cell.fault, Fault::Fin | Fault::Garbage) {
                provider = format!("own{owners}");
                owners += 1;
                setup = setup
                    .provider(&format!("{provider}: {{ base_url: \"{}\", api_key: k{} }}", first.url, first.settings));
            }
            first.seen.when(&format!("\"{name}\""), reply(dialect, cell.phase, cell.fault, &cell.read));
        }
        let next =
            if cell.pair { format!(", {{ provider: up2, model: \"{name}\", priority: 1 }}") } else { String::new() };
        let attempts = if cell.pair { 2 } else { 1 };
        // Short where silence is the fault; elsewhere a stall of the machine must not be taken for one.
        let timeouts = if cell.fault == Fault::Stall { SILENCE } else { "" };
        setup = setup.other_model(&format!(
            "{{ name: \"{name}\", targets: [{{ provider: {provider}, model: \"{name}\" }}{next}], retry: {{ attempts: {attempts} }}{timeouts} }}"
        ));
    }
    let weir = Arc::new(setup.start().await);
    let (gate, healthy) = (Arc::new(Semaphore::new(AT_ONCE)), Arc::new(healthy));
    let mut tasks = JoinSet::new();
    for cell in cells {
        let (weir, gate, healthy) = (Arc::clone(&weir), Arc::clone(&gate), Arc::clone(&healthy));
        tasks.spawn(async move {
            let turn = (cell.fault != Fault::Stall).then(|| gate.acquire_owned());
            let _turn = match turn {
                Some(turn) => Some(turn.await.expect("never closed")),
                None => None,
            };
            let name = format!("{} {}", cell.dialect.name, cell.name());
            let found = look(&cell, &weir, &healthy).await;
            (found.map_err(|wrong| format!("{name}: {wrong}")), cell)
        });
    }
    let (mut wrong, mut cells) = (Vec::new(), Vec::new());
    while let Some(done) = tasks.join_next().await {
        let (found, cell) = done.expect("a cell that panics says so");
        wrong.extend(found.err());
        cells.push(cell);
    }
    // Once for all: a gateway with so many models has many metrics.
    let metrics = weir.metrics().await;
    for cell in cells {
        let cools = !matches!(cell.comes, Comes::Whole | Comes::Added);
        let target = format!("/{}\"", cell.name());
        let mut healths = metrics.iter().filter(|(name, _)| {
            name.starts_with("weir_target_healthy{") && name.contains(&target) && !name.contains("\"up2/")
        });
        let health = healths.next().map(|(_, value)| *value);
        if health != Some(if cools { 0.0 } else { 1.0 }) {
            wrong.push(format!("{} {}: its health is {health:?}", dialect.name, cell.name()));
        }
    }
    assert!(wrong.is_empty(), "{} cells are wrong:\n{}", wrong.len(), wrong.join("\n"));
}

/// What the client got.
struct Got {
    head: Option<(u16, Option<String>, Option<String>)>,
    id: String,
    text: String,
    ended: bool,
}

async fn ask(cell: &Cell, weir: &Weir) -> Got {
    let header = |head: &dyn Fn(&str) -> Option<String>, status| {
        (Some((status, head("content-type"), head("retry-after"))), head("x-request-id").unwrap_or_default())
    };
    let before = cell.phase.seen(cell.dialect).len();
    if cell.h2 {
        let mut stream = H2Client::connect(weir).await.open(cell.dialect.path, cell.ask()).await;
        while stream.received.len() < before && stream.chunk().await.is_some() {}
        cell.read.fire();
        stream.rest().await;
        let (head, id) = header(&|name| stream.head.get(name).map(str::to_owned), stream.head.status);
        let text = String::from_utf8_lossy(&stream.received).into_owned();
        return Got { head, id, text, ended: stream.error.is_none() };
    }
    let mut client = Client::connect(weir).await;
    let got = client.open(cell.dialect.path, cell.ask()).await;
    while client.body.len() < before && client.chunk().await.is_some() {}
    cell.read.fire();
    let text = String::from_utf8_lossy(&client.rest().await).into_owned();
    let (head, id) = header(&|name| got.get(name).map(str::to_owned), got.status);
    Got { head, id, text, ended: client.ended }
}

async fn look(cell: &Cell, weir: &Weir, healthy: &Upstream) -> Result<(), String> {
    let same = |what: &str, got: &str, wanted: &str| {
        if got == wanted { Ok(()) } else { Err(format!("{what} is\n  {got}\nand not\n  {wanted}")) }
    };
    let dialect = cell.dialect;
    let got = ask(cell, weir).await;
    let record = weir.record(&got.id).await;
    let (status, kind, wait) = got.head.clone().expect("a head");
    let mut word_wanted = "completed";
    let mut first = "ok";
    let (mut status_wanted, mut cause) = (200, "terminal");
    let mut text = dialect.seen();
    match cell.comes {
        Comes::Fails(why) if cell.pair => (first, text) = (why, second(&text)),
        Comes::Fails(why) => {
            (status_wanted, word_wanted) = alone(why, cell.fault);
            (first, cause) = (why, why);
            let body: serde_json::Value =
                serde_json::from_str(&got.text).map_err(|error| format!("{error}: {}", got.text))?;
            same("the error", &body.to_string(), &refusal(cell, why, &got.id).to_string())?;
            text.clone_from(&got.text);
            let hint = matches!(why, "rate_limited").then_some("3");
            same("retry-after", wait.as_deref().unwrap_or_default(), hint.unwrap_or_default())?;
        }
        Comes::Ends(why) => {
            word_wanted = if why == "idle" { "stalled" } else { "upstream_interrupted" };
            (first, cause) = (why, why);
            text = cell.phase.seen(dialect) + &ending(dialect, why, cell.phase);
        }
        Comes::Whole => {}
        Comes::Added => cause = "terminal_added",
        Comes::Own => {
            (word_wanted, first, cause) = ("upstream_error", "error_event", "error_event");
            let done = if dialect.name == "chat" { DONE } else { "" };
            text = cell.phase.seen(dialect) + &cell.fault.event(dialect) + done;
        }
        Comes::None => return Err("there is no such cell".into()),
    }
    let kind_wanted = if status_wanted == 200 { "text/event-stream" } else { "application/json" };
    same("the status", &status.to_string(), &status_wanted.to_string())?;
    same("the type", kind.as_deref().unwrap_or_default(), kind_wanted)?;
    same("the answer", &got.text, &text)?;
    same("the clean end", &got.ended.to_string(), "true")?;
    same("the outcome", &word(&record), word_wanted)?;
    same("the cause", &field(&record, "cause"), cause)?;
    let fails_over = cell.pair && matches!(cell.comes, Comes::Fails(_));
    let results: Vec<_> =
        tries(&record).iter().map(|tried| tried.split(':').nth(1).unwrap_or_default().to_owned()).collect();
    same("the attempts", &results.join(" "), &if fails_over { format!("{first} ok") } else { first.to_owned() })?;
    let asked = healthy.asked(&format!("\"{}\"", cell.name()));
    same("the second target's requests", &asked.to_string(), if fails_over { "1" } else { "0" })
}

/// The envelope of a cell that fails alone.
fn refusal(cell: &Cell, why: &str, id: &str) -> serde_json::Value {
    let (openai, code, anthropic, message) = envelope(why, cell.fault);
    let messages = cell.dialect.name == "messages";
    // Where the upstream's words have arrived, they are told.
    let spoken = matches!(why, "error_event" | "rate_limited" | "status" | "overloaded");
    if spoken && !(cell.phase == Phase::Headers && why != "error_event") {
        let event = cell.fault.event(cell.dialect);
        let upstream = match (cell.dialect.name, cell.phase) {
            ("responses", Phase::Headers | Phase::Prelude) => {
                let error = data(&event)["response"]["error"].clone();
                let kind = if cell.fault == Fault::S429 { "rate_limit_error" } else { "server_error" };
                serde_json::json!({"error": {"message": error["message"], "type": kind, "param": null, "code": error["code"]}})
            }
            _ => serde_json::from_str(&cell.fault.json(cell.dialect)).expect("JSON"),
        };
        let mut upstream = upstream;
        if messages {
            upstream["request_id"] = id.into();
        } else {
            upstream["error"]["param"] = serde_json::Value::Null;
        }
        return upstream;
    }
    if messages {
        return serde_json::json!({"type": "error", "error": {"type": anthropic, "message": message}, "request_id": id});
    }
    serde_json::json!({"error": {"message": message, "type": openai, "param": null, "code": code}})
}

/// E2, E3: exactly what Weir adds.
fn ending(dialect: Dialect, why: &str, phase: Phase) -> String {
    let stalled = "The model stopped sending output, please retry";
    let (message, code) = if why == "idle" {
        (stalled, "stream_stalled")
    } else if dialect.name == "chat" {
        ("Stream interrupted", "stream_interrupted")
    } else {
        ("Response stream interrupted, please retry", "")
    };
    match dialect.name {
        "chat" => format!(
            "data: {{\"error\":{{\"message\":\"{message}\",\"type\":\"api_error\",\"code\":\"{code}\"}}}}\n\n{DONE}"
        ),
        "messages" => format!(
            "event: error\ndata: {{\"type\":\"error\",\"error\":{{\"type\":\"api_error\",\"message\":\"{message}\"}}}}\n\n"
        ),
        _ => {
            let sequence = events(phase.seen(dialect).as_bytes()).len();
            format!(
                "event: response.failed\ndata: {{\"type\":\"response.failed\",\"sequence_number\":{sequence},\"response\":{{\"id\":\"resp_abc\",\"object\":\"response\",\"created_at\":1,\"status\":\"failed\",\"error\":{{\"code\":\"server_error\",\"message\":\"{message}\"}},\"incomplete_details\":null,\"instructions\":null,\"metadata\":{{}},\"model\":\"upstream-model\",\"output\":[],\"parallel_tool_calls\":true,\"temperature\":null,\"tool_choice\":\"auto\",\"tools\":[],\"top_p\":null,\"usage\":null}}}}\n\n"
            )
        }
    }
}

/// All cells of one protocol, HTTP/1.1 both ways.
async fn whole(dialect: Dialect) {
    let upstream = Upstream::start(Reply::json(404, "{}")).await;
    let first = First { url: upstream.url(), settings: "", seen: &upstream };
    run(cells(dialect, false, |_, _| true), first).await;
}

#[tokio::test]
async fn a2_e1_e2_the_fault_matrix_of_chat() {
    whole(Dialect::ALL[0]).await;
}

#[tokio::test]
async fn a2_e1_e2_the_fault_matrix_of_responses() {
    whole(Dialect::ALL[1]).await;
}

#[tokio::test]
async fn a2_e1_e2_the_fault_matrix_of_messages() {
    whole(Dialect::ALL[2]).await;
}

/// What is worth its time on the other pairs of versions: 429 and 529 stand for all statuses, and E1's
/// five seconds after a finish are waited for once.
fn sample(phase: Phase, fault: Fault) -> bool {
    let slow = matches!((phase, fault), (Phase::Finished | Phase::Usage, Fault::Stall));
    !slow && fault != Fault::S500
}

/// An HTTP/2 upstream resets with `INTERNAL_ERROR`; a status without its body does not exist there as the
/// table has it, and who answers before the connection stands speaks no HTTP/2.
fn sample_http2(phase: Phase, fault: Fault) -> bool {
    let headless = matches!((phase, fault), (Phase::Headers, Fault::S429 | Fault::S529));
    let early = phase == Phase::Connect && !matches!(fault, Fault::Fin | Fault::Rst | Fault::Stall);
    sample(phase, fault) && !headless && !early
}

#[tokio::test]
async fn a2_e2_a_sample_from_http2_to_http1() {
    for dialect in Dialect::ALL {
        let upstream = Upstream::start(Reply::json(404, "{}")).await;
        let first = First { url: upstream.url(), settings: "", seen: &upstream };
        run(cells(dialect, true, sample), first).await;
    }
}

#[tokio::test]
async fn a2_e2_a_sample_from_http1_to_http2() {
    for dialect in Dialect::ALL {
        let upstream = H2Upstream::start(Reply::json(404, "{}")).await;
        let first = First { url: upstream.url(), settings: ", http2: prior_knowledge", seen: &upstream };
        run(cells(dialect, false, sample_http2), first).await;
    }
}

#[tokio::test]
async fn a2_e2_a_sample_over_http2_both_ways() {
    for dialect in Dialect::ALL {
        let upstream = H2Upstream::start(Reply::json(404, "{}")).await;
        let first = First { url: upstream.url(), settings: ", http2: prior_knowledge", seen: &upstream };
        run(cells(dialect, true, sample_http2), first).await;
    }
}
