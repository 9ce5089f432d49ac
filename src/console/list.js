// The list of requests: only the rows that can be seen exist, so that 50,000 are as quick as 50. Pages are fetched as
// the end comes near; new requests are put in front.

import { $, clock, count, el, span, usd, utc } from "./shared.js";

const HEIGHT = 34; // of a row, as in style.css
const FRESH = 100; // asked for again and again
const PAGE = 1000;
const MOST = 50000;
const SPARE = 8; // rows beyond the window

export const OWNERS = { client: "client", edge: "edge", weir: "weir", model: "model" };
const GOOD = new Set(["completed", "truncated"]);
const MILD = new Set(["client_gone", "client_error", "rejected", "drained", "budget_reached"]);
export const severity = (outcome) => (GOOD.has(outcome) ? "good" : MILD.has(outcome) ? "odd" : "bad");

export function list(host, api, { open, failed }) {
  const filters = { model: "", key: "", target: "", outcome: "" };
  const canvas = el("div", { class: "canvas", role: "presentation" });
  const nothing = el("p", { class: "nothing" }, "Asking for the last requests");
  host.replaceChildren(canvas, nothing);
  let rows = [];
  let next = null; // where the next page begins; null: there is none
  let chosen = null; // id of the row that the keyboard is on
  let asking = null;
  let generation = 0;

  const query = (extra) => {
    const pairs = Object.entries({ ...filters, ...extra }).filter(([, value]) => value);
    return `/api/requests?${pairs.map(([name, value]) => `${name}=${encodeURIComponent(value)}`).join("&")}`;
  };

  // ---- drawing

  function draw() {
    const first = Math.max(0, Math.floor(host.scrollTop / HEIGHT) - SPARE);
    const last = Math.min(rows.length, Math.ceil((host.scrollTop + host.clientHeight) / HEIGHT) + SPARE);
    canvas.style.height = `${rows.length * HEIGHT}px`;
    const old = new Map([...canvas.children].map((node) => [node.id, node]));
    const wanted = [];
    for (let at = first; at < last; at += 1) {
      const id = `r-${rows[at].request_id}`;
      const node = old.get(id) ?? line(rows[at]);
      node.style.transform = `translateY(${at * HEIGHT}px)`;
      node.setAttribute("aria-posinset", at + 1);
      node.setAttribute("aria-setsize", next ? -1 : rows.length);
      node.setAttribute("aria-selected", String(rows[at].request_id === chosen));
      wanted.push(node);
    }
    canvas.replaceChildren(...wanted);
    nothing.hidden = rows.length > 0;
    host.toggleAttribute("aria-activedescendant", false);
    if (chosen) host.setAttribute("aria-activedescendant", `r-${chosen}`);
    const more = next && rows.length < MOST ? "+" : "";
    $("#listed").textContent = rows.length ? `${count(rows.length)}${more} listed` : "";
    if (next && last > rows.length - PAGE / 2) older().catch(failed);
  }

  function line(request) {
    const date = new Date(request.received);
    const tokens = request.output === null ? "–" : count(request.output);
    const node = el("div", { class: "line", id: `r-${request.request_id}`, role: "option", title: request.why },
      el("time", { datetime: request.received, title: utc(date) }, clock(date)),
      el("span", {}, el("span", { class: "dot", "data-state": severity(request.outcome) }), ` ${OWNERS[request.ended_by]}`, el("small", {}, request.outcome.replaceAll("_", " "))),
      el("span", { title: request.target ?? "" }, request.model ?? "–"),
      el("span", {}, request.key ?? "–"),
      el("span", { class: "number" }, span(request.ttft_ms)),
      el("span", { class: "number" }, span(request.duration_ms)),
      el("span", { class: "number", title: `${request.input ?? "?"} in, ${request.output ?? "?"} out` }, tokens),
      el("span", { class: "number", title: request.charge_usd ? `${request.charge_usd} USD` : "no price" }, usd(request.charge_usd)),
      strip(request));
    node.addEventListener("click", () => choose(request.request_id, true));
    return node;
  }

  // ---- fetching

  async function fetchPage(limit, before) {
    const mine = generation;
    const answer = await api.get(query({ limit, before }));
    return mine === generation ? answer : null;
  }

  async function older() {
    if (asking || rows.length >= MOST) return;
    asking = fetchPage(PAGE, next);
    try {
      const answer = await asking;
      if (answer) {
        rows = rows.concat(answer.requests);
        ({ next } = answer);
      }
    } finally {
      asking = null;
    }
    draw();
  }

  /// New requests go in front; what is being looked at stays where it is.
  async function refresh() {
    const answer = await fetchPage(FRESH, null);
    if (!answer) return;
    const known = new Map(rows.map((request) => [request.request_id, request]));
    const fresh = answer.requests.filter((request) => !known.has(request.request_id));
    if (!rows.length || fresh.length === answer.requests.length) {
      // More came than one answer holds. Whoever looks further down is left alone.
      if (rows.length && host.scrollTop > HEIGHT) return;
      rows = answer.requests;
      ({ next } = answer);
    } else if (fresh.length) {
      rows = rows.concat(fresh).sort((one, other) => (one.request_id < other.request_id ? 1 : -1)).slice(0, MOST);
      if (host.scrollTop > HEIGHT) host.scrollTop += fresh.length * HEIGHT;
    }
    const some = Object.values(filters).some(Boolean);
    nothing.textContent = some ? "No request fits these filters." : "No request yet. The first one shows up here when it has ended.";
    draw();
  }

  async function filter(name, value) {
    filters[name] = value;
    generation += 1;
    [rows, next, chosen, asking] = [[], null, null, null];
    host.scrollTop = 0;
    nothing.textContent = "Looking";
    draw();
    await refresh();
  }

  // ---- choosing

  function choose(id, opens) {
    chosen = id;
    const at = rows.findIndex((request) => request.request_id === id);
    if (at >= 0) {
      if (at * HEIGHT < host.scrollTop) host.scrollTop = at * HEIGHT;
      else if ((at + 1) * HEIGHT > host.scrollTop + host.clientHeight) host.scrollTop = (at + 1) * HEIGHT - host.clientHeight;
    }
    draw();
    if (opens) open(id);
  }

  host.addEventListener("scroll", draw, { passive: true });
  new ResizeObserver(draw).observe(host);
  host.addEventListener("keydown", (event) => {
    const page = Math.max(1, Math.floor(host.clientHeight / HEIGHT) - 1);
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    if (event.key in steps && rows.length) {
      event.preventDefault();
      const at = rows.findIndex((request) => request.request_id === chosen);
      const to = at < 0 ? 0 : Math.min(rows.length - 1, Math.max(0, at + steps[event.key]));
      choose(rows[to].request_id, false);
    } else if (event.key === "Enter" && chosen) {
      event.preventDefault();
      open(chosen);
    }
  });

  return { refresh, filter, choose };
}

/// The timeline as one strip: attempts that failed, waiting, the silent part of the answer, output.
export function strip(request) {
  const whole = Math.max(request.duration_ms ?? 0, 0.001);
  const bar = el("span", { class: "strip", "aria-hidden": "true" });
  const part = (kind, from, to) => {
    if (from === null || to === null || from === undefined || to === undefined || to <= from) return;
    const node = el("i", { class: kind });
    node.style.left = `${(from / whole) * 100}%`;
    node.style.width = `${Math.max(((to - from) / whole) * 100, 0.8)}%`;
    bar.append(node);
  };
  const tries = request.attempts ?? [];
  const last = tries.at(-1);
  for (const one of tries.slice(0, -1)) part("failed", one.began_ms, one.ended_ms);
  if (last) {
    const end = last.ended_ms;
    part("wait", last.began_ms, request.upstream_first_byte_ms ?? end);
    part("silent", request.upstream_first_byte_ms, request.first_output_ms ?? end);
    part("output", request.first_output_ms, request.last_output_ms);
    if (request.first_output_ms !== null) part("silent", request.last_output_ms, end);
    if (!["ok", "client_gone"].includes(last.result)) part("failed", Math.max(request.last_output_ms ?? last.began_ms, end - whole * 0.02), end);
  }
  return bar;
}
