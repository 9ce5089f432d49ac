// The console: asks the admin API again and again and shows the answers. Everything is set as text; nothing is loaded
// from elsewhere.

import { $, Refused, asker, count, el, fill, rate, row, span, theme, usd, width } from "./shared.js";
import { chart } from "./charts.js";
import { list } from "./list.js";
import { detail } from "./detail.js";

const api = asker("weir-admin-token");
const NOW_EVERY = 3000;
const SERIES_EVERY = 15000;

const view = { range: "1h", by: "model", percentile: "p90", sum: "tokens", day: "key" };
const charts = {
  ttft: chart($("#chart-ttft"), span),
  duration: chart($("#chart-duration"), span),
  tokens: chart($("#chart-tokens"), (value) => (view.sum === "tokens" ? count(value) : usd(value)), { stacked: true, whole: () => view.sum === "tokens" }),
  errors: chart($("#chart-errors"), count, { stacked: true }),
};
const panel = detail($("#detail"), api);
const requests = list($("#list"), api, { open: (id) => panel.open(id), failed });
panel.onclose = () => $("#list").focus();

// ---------------------------------------------------------------- now

function state(word, text) {
  const node = $("#state");
  node.dataset.state = word;
  node.textContent = text;
}

function tiles(now) {
  const { last_minute: minute, today } = now;
  $("#tile-streams").textContent = count(now.streams_active);
  $("#tile-streams-more").textContent = `${count(now.requests_active)} requests in flight`;
  $("#tile-tokens").textContent = rate(minute.output_tokens / 60);
  $("#tile-errors").textContent = count(minute.errors);
  $("#tile-errors").dataset.bad = minute.errors > 0;
  const refused = minute.rejected ? `, ${count(minute.rejected)} refused` : "";
  $("#tile-errors-more").textContent = `of ${count(minute.requests)} ended${refused}`;
  $("#tile-ttft").textContent = span(minute.ttft_p50_ms);
  const sums = today.sums ?? {};
  $("#tile-spend").textContent = usd(sums.charge_usd ?? 0);
  $("#tile-spend").title = `${sums.charge_usd ?? 0} USD`;
  $("#tile-spend-more").textContent = `cost ${usd(sums.cost_usd ?? 0)}, margin ${usd(sums.margin_usd ?? 0)}`;
  $("#tile-spend-more").title = `${count(sums.requests ?? 0)} requests`;
  $("#today").textContent = `${today.day}, ${today.timezone}`;
  $("#version").textContent = `Weir ${now.version}`;
  if (!now.ledger_healthy) state("bad", "ledger cannot be written");
  else if (!now.ready) state("odd", "draining");
  else state("good", "serving");
}

function targets(now) {
  const trouble = (target) => (target.cooling ? 2 : target.healthy ? 0 : 1) * 1e6 + target.failures_in_a_row;
  const sorted = [...now.targets].sort((one, other) => trouble(other) - trouble(one));
  const rows = sorted.map((target) => {
    const cools = Math.max(target.cools_for_ms ?? 0, Math.min(...target.accounts_cool_for_ms.map((ms) => ms ?? 0)));
    const [word, text] = target.off ? ["odd", "switched off"] : target.cooling
      ? ["bad", cools ? `cools for ${span(cools)}` : "being probed"]
      : target.healthy ? ["good", "healthy"] : ["odd", "waits for a probe"];
    const health = el("td", {}, el("span", { class: "state", "data-state": word }, text));
    const bound = target.max_concurrent ? `${count(target.running)} of ${count(target.max_concurrent)}` : count(target.running);
    const name = el("th", { scope: "row", title: `serves ${target.models.join(", ")}; priority ${target.priority}, weight ${target.weight}` },
      target.target, el("small", {}, target.models.length > 2 ? `${target.models.length} models` : target.models.join(", ")));
    return el("tr", {}, name, health, el("td", { class: "number" }, bound), el("td", { class: "number" }, count(target.failures_in_a_row)));
  });
  fill($("#targets"), rows, 4, "The config names no target.");
}

async function today({ today: told }) {
  const by = view.day;
  const sums = by === "key" ? told.keys : await api.get(`/api/usage?by=${by}&since=${told.day}`);
  if (by !== view.day) return;
  $("#day-name").textContent = { key: "Key", model: "Model", target: "Target" }[by];
  const lines = [...(sums ?? [])].sort((one, other) => other.charge_nano_usd - one.charge_nano_usd || other.requests - one.requests);
  const rows = lines.map((line) => row(line[by] || `no ${by}`, count(line.requests), [count(line.input), `${line.input} tokens`],
    [count(line.output), `${line.output} tokens`], [usd(line.charge_usd), `${line.charge_usd} USD`],
    [usd(line.cost_usd), `${line.cost_usd} USD`], [usd(line.margin_usd), `${line.margin_usd} USD`]));
  fill($("#keys"), rows, 7, "No request was settled today.");
}

function choices(select, names) {
  const known = new Set([...select.options].map((option) => option.value));
  for (const name of names.filter((name) => !known.has(name))) select.append(el("option", { value: name }, name));
}

let refused = {};
async function now() {
  try {
    const told = await api.get("/api/overview");
    tiles(told);
    targets(told);
    await today(told);
    ({ refused } = told);
    choices($("#by-model"), told.models);
    choices($("#by-key"), [...told.keys, ...told.today.keys.map((line) => line.key).filter(Boolean)]);
    choices($("#by-target"), told.targets.map((target) => target.target));
    await requests.refresh();
  } catch (error) {
    failed(error);
  }
}

// ---------------------------------------------------------------- over time

const words = { "15m": "of the last 15 minutes", "1h": "of the last hour", "6h": "of the last 6 hours", "1day": "of the last 24 hours", "7days": "of the last 7 days", "30days": "of the last 30 days" };

function draw(grouped, causes) {
  const lines = (name) => grouped.groups.filter((group) => group.name).map((group) => ({ name: group.name, values: group.series[name] ?? [] }));
  const nothing = "No request in this range. Send one, or take a longer range.";
  charts.ttft.draw(grouped.t, lines(`ttft_${view.percentile}_ms`), nothing);
  charts.duration.draw(grouped.t, lines(`duration_${view.percentile}_ms`), nothing);
  const margin = (group) => group.series.charge_usd.map((charge, at) => Math.max(0, charge - (group.series.cost_usd?.[at] ?? 0)));
  const sums = { tokens: lines("output"), charge: lines("charge_usd"), margin: grouped.groups.filter((group) => group.name).map((group) => ({ name: group.name, values: margin(group) })) };
  charts.tokens.draw(grouped.t, sums[view.sum], view.sum === "tokens" ? nothing : "No money in this range: no request, or no price for it (prices: in the config).");
  $("#sums-title").textContent = { tokens: "Output tokens", charge: "Charge", margin: "Margin, charge less cost" }[view.sum];
  const failures = causes.groups.filter((group) => group.totals.errors > 0)
    .map((group) => ({ name: cause(group.name), values: group.series.errors }));
  charts.errors.draw(causes.t, failures, "No failure in this range.");
  for (const node of document.querySelectorAll("[data-percentile]")) node.textContent = view.percentile;
  for (const node of document.querySelectorAll("[data-step]")) node.textContent = `per ${width(grouped.step_s)}`;
  $("#series-note").textContent = grouped.read_one_of > 1 ? `from one of ${grouped.read_one_of} requests` : "";
}

const cause = (name) => {
  const [outcome, why] = name.split(" ");
  const plain = { completed: "", truncated: "", client_gone: "" };
  return (outcome in plain || !why ? outcome : `${outcome}: ${why}`).replaceAll("_", " ");
};

function outcomes(causes) {
  const sums = new Map();
  for (const group of causes.groups) sums.set(cause(group.name), (sums.get(cause(group.name)) ?? 0) + group.totals.requests);
  const all = [...sums.values()].reduce((sum, number) => sum + number, 0);
  const rows = [...sums].sort((one, other) => other[1] - one[1]).map(([name, number]) => {
    const share = all ? number / all : 0;
    const bar = el("span", { class: "share" });
    bar.style.setProperty("--share", share);
    const percent = share > 0 && share < 0.001 ? "< 0.1 %" : `${(share * 100).toFixed(1)} %`;
    return el("tr", {}, el("th", { scope: "row" }, name), el("td", { class: "number" }, count(number)), el("td", { class: "number" }, percent, bar));
  });
  for (const [name, number] of Object.entries(refused)) {
    const title = "Refused before it was sent anywhere: of the requests kept in memory, whatever the range";
    rows.push(el("tr", { title }, el("th", { scope: "row" }, `refused: ${name.replaceAll("_", " ")}`), el("td", { class: "number" }, count(number)), el("td", { class: "number" }, "kept")));
  }
  fill($("#outcomes"), rows, 3, "No request ended in this range.");
  $("[data-range-words]").textContent = words[view.range];
}

let asked = 0;
async function series() {
  asked += 1;
  const mine = asked;
  try {
    const [grouped, causes] = await Promise.all([
      api.get(`/api/series?by=${view.by}&since=${view.range}`), api.get(`/api/series?by=cause&since=${view.range}`)]);
    if (mine !== asked) return;
    draw(grouped, causes);
    outcomes(causes);
  } catch (error) {
    failed(error);
  }
}

// ---------------------------------------------------------------- what people do

function segments(id, name, then) {
  const buttons = [...document.querySelectorAll(`#${id} button`)];
  for (const button of buttons) {
    button.addEventListener("click", () => {
      for (const other of buttons) other.setAttribute("aria-pressed", String(other === button));
      view[name] = Object.values(button.dataset)[0];
      then();
    });
  }
}

segments("ranges", "range", series);
segments("groups", "by", series);
segments("percentiles", "percentile", series);
segments("sums", "sum", series);
segments("days", "day", now);
theme($("#theme"), () => Object.values(charts).forEach((one) => one.redraw()));

for (const word of ["completed", "truncated", "client_gone", "client_error", "upstream_error", "upstream_interrupted", "stalled", "timeout", "rejected", "budget_reached", "drained", "internal", "crashed"]) {
  $("#by-outcome").append(el("option", { value: word }, word.replaceAll("_", " ")));
}
for (const name of ["model", "key", "target", "outcome"]) {
  $(`#by-${name}`).addEventListener("change", (event) => requests.filter(name, event.target.value).catch(failed));
}

$("#search").addEventListener("submit", (event) => {
  event.preventDefault();
  const id = $("#find").value.trim();
  if (id) panel.find(id).catch(failed);
});

document.addEventListener("keydown", (event) => {
  const typing = event.target.closest?.("input, select, textarea, dialog");
  if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) {
    event.preventDefault();
    $("#find").select();
    $("#find").focus();
  } else if (event.key === "Escape" && !event.target.closest?.("dialog")) {
    if (document.activeElement === $("#find")) $("#find").blur();
    else panel.close();
  }
});

// ---------------------------------------------------------------- the token

function failed(error) {
  if (error instanceof Refused) {
    state("odd", "locked");
    if (!$("#ask").open) {
      $("#ask-wrong").textContent = api.has() ? "That token is not the right one." : "";
      api.forget();
      $("#ask").showModal();
    }
    return;
  }
  if (error.name === "AbortError") return;
  const gone = error instanceof TypeError;
  state("bad", gone ? "Weir does not answer" : error.message);
}

$("#ask-form").addEventListener("submit", (event) => {
  event.preventDefault();
  api.keep($("#token").value);
  $("#token").value = "";
  $("#ask").close();
  start();
});
$("#ask").addEventListener("cancel", (event) => event.preventDefault());

// ---------------------------------------------------------------- again and again

let life = 0;
function start() {
  life += 1;
  const mine = life;
  const again = async (work, every) => {
    if (mine !== life) return;
    if (!document.hidden && !$("#ask").open) await work();
    setTimeout(again, every, work, every);
  };
  again(now, NOW_EVERY);
  again(series, SERIES_EVERY);
}

document.addEventListener("visibilitychange", () => { if (!document.hidden) start(); });
start();
const linked = new URLSearchParams(location.hash.slice(1)).get("request");
if (linked) panel.find(linked).catch(failed);
