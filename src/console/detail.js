// One request: who ended it and why, its timeline as a waterfall, and its row of the ledger.

import { bytes, clock, count, el, span, usd, utc } from "./shared.js";
import { severity } from "./list.js";

const WHO = { client: "The client ended it", edge: "Something in front of Weir ended it", weir: "Weir ended it", model: "The model ended it" };
const ID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/i;

export function detail(host, api) {
  const self = { open, find, close, onclose: () => {} };
  let asked = 0;

  async function open(id) {
    asked += 1;
    const mine = asked;
    try {
      const told = await api.get(`/api/requests/${encodeURIComponent(id)}`);
      if (mine === asked) show(told);
    } catch (error) {
      if (error.status !== 404 || mine !== asked) throw error;
      missing(id);
    }
  }

  /// An id may also be the client's own, the provider's, or that of the answer.
  async function find(text) {
    const id = text.trim();
    if (ID.test(id)) {
      await open(id.toLowerCase());
    } else {
      const found = await api.get(`/api/requests?id=${encodeURIComponent(id)}&limit=1`);
      if (found.requests.length) await open(found.requests[0].request_id);
      else missing(id);
    }
    host.scrollIntoView({ block: "nearest" });
    host.focus();
  }

  function close() {
    if (host.hidden) return;
    asked += 1;
    host.hidden = true;
    history.replaceState(null, "", location.pathname);
    self.onclose();
  }

  function frame(...content) {
    const button = el("button", { type: "button", class: "icon close", "aria-label": "Close", title: "Close (Esc)", onclick: close }, "✕");
    host.replaceChildren(button, ...content.filter(Boolean));
    host.hidden = false;
  }

  function missing(id) {
    frame(el("h3", {}, "No such request"),
      el("p", {}, "Nothing is known of ", el("code", {}, id), ". It is neither among the last requests in memory nor in the ledger. ",
        "Refused requests are in memory only; rows leave the ledger after ", el("code", {}, "ledger.retention"), "."));
  }

  function show(told) {
    history.replaceState(null, "", `#request=${told.request_id}`);
    if (told.running) {
      frame(el("h3", {}, "Still running"), facts([["Request", code(told.request_id)], ["Key", told.key], ["Model", told.model], ["Target", told.target],
        ["Sent so far", bytes(told.bytes)], ["Output events", count(told.output_events)]]));
      return;
    }
    const line = told.timeline;
    frame(
      el("p", { class: "verdict", "data-state": severity(line.outcome) }, el("b", {}, WHO[line.ended_by]), el("span", {}, line.why)),
      waterfall(line),
      facts([
        ["Request", code(told.request_id)],
        ["Received", el("time", { datetime: line.received, title: utc(new Date(line.received)) }, clock(new Date(line.received), true))],
        ["Outcome", `${line.outcome.replaceAll("_", " ")}${line.cause ? ` (${line.cause.replaceAll("_", " ")})` : ""}`],
        ["Status", line.status ? `${line.status}${line.effective_status !== line.status ? `, rightly ${line.effective_status}` : ""}` : "none was sent"],
        ["Key", [line.key, line.tag].filter(Boolean).join(", ")],
        ["Client", line.client],
        ["Model", line.model], ["Target", line.target],
        ["Endpoint", line.endpoint ? `${line.endpoint}${line.stream ? ", streamed" : ""}` : null],
        ["First token", line.ttft_ms === null ? null : span(line.ttft_ms)],
        ["Duration", span(line.duration_ms)],
        ["Weir's own time", line.overhead_ms === undefined ? null : span(line.overhead_ms)],
        ["Longest write", line.longest_write_ms ? span(line.longest_write_ms) : null],
        ["Sent", bytes(line.bytes)], ["Keepalives", line.keepalives ? count(line.keepalives) : null],
        ["Tokens", line.input === null && line.output === null ? null : `${count(line.input)} in, ${count(line.output)} out${line.reasoning ? `, ${count(line.reasoning)} of them reasoning` : ""} (${told.source ?? line.source ?? "not settled"})`],
        ["Charge", told.charge === undefined ? null : `${usd(line.charge_usd)}${told.billing_why ? `: ${told.billing}, ${told.billing_why.replaceAll("_", " ")}` : ""}`],
        ["Cost", told.cost ? usd(told.cost / 1e9) : null],
        ["Client's id", line.client_request_id ? code(line.client_request_id) : null],
        ["Provider's id", line.upstream_request_id ? code(line.upstream_request_id) : null],
      ]),
      told.timeline_from === "ledger" ? el("p", { class: "note" }, "From the ledger: silences and keepalive times are kept in memory only, for the last requests.") : null,
      el("details", {}, el("summary", {}, "All that is known, as JSON"), el("pre", {}, JSON.stringify(told, null, 2))),
    );
  }

  return self;
}

const code = (text) => el("code", {}, text);

function facts(pairs) {
  const known = pairs.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return el("dl", { class: "facts" }, known.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
}

/// Drawn to scale: a row per attempt, the silences, and marks for what happened at one moment.
function waterfall(line) {
  const whole = Math.max(line.duration_ms, 0.001);
  const WIDE = 1000;
  const x = (ms) => (Math.min(Math.max(ms, 0), whole) / whole) * WIDE;
  const rows = [];
  const add = (label, bars, text) => rows.push({ label, bars: bars.filter((bar) => bar && bar[2] > bar[1]), text });
  if (line.admitted_ms > 0.5) add("read the request", [["wait", 0, line.admitted_ms, "reading the request's body"]], span(line.admitted_ms));
  line.attempts.forEach((one, at) => {
    const won = at === line.attempts.length - 1;
    const bad = !["ok", "client_gone"].includes(one.result);
    const first = won ? line.upstream_first_byte_ms : null;
    const output = won ? line.first_output_ms : null;
    const bars = won && first !== null
      ? [["wait", one.began_ms, first, "waiting for the provider's head"], ["silent", first, output ?? one.ended_ms, "answer begun, no output yet"],
        output !== null && ["output", output, line.last_output_ms, "output"], line.last_output_ms !== null && ["silent", line.last_output_ms, one.ended_ms, "after the last output"]]
      : [[bad ? "failed" : "wait", one.began_ms, one.ended_ms, one.result]];
    if (bad && won) bars.push(["failed", Math.max(one.began_ms, one.ended_ms - whole * 0.012), one.ended_ms, one.result]);
    add(one.target, bars, `${one.result.replaceAll("_", " ")}${one.status ? ` ${one.status}` : ""}, ${span(one.ended_ms - one.began_ms)}`);
  });
  for (const gap of (line.gaps ?? []).filter((gap) => gap.took_ms > Math.max(20, whole * 0.02))) {
    add("silence", [["gap", gap.at_ms, gap.at_ms + gap.took_ms, "nothing came from the provider"]], span(gap.took_ms));
  }
  const marks = [["head sent", line.opened_ms], ["first keepalive", line.first_keepalive_ms], ["first output", line.first_output_ms], ["first text", line.first_visible_ms !== line.first_output_ms ? line.first_visible_ms : null], ["last output", line.last_output_ms]]
    .filter(([, at]) => at !== null && at !== undefined);
  const body = rows.map(({ label, bars, text }) => {
    const track = el("svg", { class: "track", viewBox: `0 0 ${WIDE} 14`, preserveAspectRatio: "none", "aria-hidden": "true" },
      ...marks.map(([, at]) => el("line", { x1: x(at), x2: x(at), y1: 0, y2: 14, class: "mark" })),
      ...bars.map(([kind, from, to, title]) => el("rect", { class: kind, x: x(from), width: Math.max(x(to) - x(from), 3), y: 2, height: 10, rx: 1 }, el("title", {}, `${title}: ${span(to - from)}, from ${span(from)} on`))));
    return el("li", {}, el("span", { class: "name", title: label }, label), track, el("span", { class: "text" }, text));
  });
  const scale = el("li", { class: "scale", "aria-hidden": "true" }, el("span", {}), el("div", {}, el("span", {}, "0"), el("span", {}, span(whole / 2)), el("span", {}, span(whole))), el("span", {}));
  const legend = el("ul", { class: "legend still" }, ...[["wait", "waiting"], ["silent", "no output"], ["output", "output"], ["failed", "failed"], ["gap", "silence"]].map(([kind, text]) => el("li", {}, el("i", { class: kind }), text)));
  const moments = el("ul", { class: "moments" }, ...marks.map(([name, at]) => el("li", {}, el("b", {}, span(at)), ` ${name}`)));
  if (!rows.length) return el("p", { class: "note" }, `It was answered by Weir itself after ${span(line.duration_ms)}; no provider was asked.`);
  return el("div", { class: "waterfall" }, el("ol", {}, ...body, scale), legend, moments);
}
