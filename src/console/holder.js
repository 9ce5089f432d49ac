// The page of a key's holder: asks for the key, then shows what that key used.

import { $, Refused, asker, count, el, fill, row, span, theme, usd, width } from "./shared.js";
import { chart } from "./charts.js";

const api = asker("weir-key");
const charts = { ttft: chart($("#chart-ttft"), span), tokens: chart($("#chart-tokens"), count, { stacked: true }) };
let days = 30;

function gate(words) {
  for (const id of ["#page", "#ranges", "#leave", "#name"]) $(id).hidden = true;
  $("#gate").hidden = false;
  $("#wrong").textContent = words;
  $("#key").focus();
}

function show(told) {
  $("#gate").hidden = true;
  for (const id of ["#page", "#ranges", "#leave", "#name"]) $(id).hidden = false;
  $("#name").textContent = told.key;
  const total = told.total ?? {};
  $("#tile-requests").textContent = count(total.requests ?? 0);
  $("#tile-since").textContent = `since ${told.since}`;
  $("#tile-input").textContent = count(total.input ?? 0);
  $("#tile-input").title = `${total.input ?? 0} tokens`;
  $("#tile-cached").textContent = total.cache_read ? `${count(total.cache_read)} from a cache` : "";
  $("#tile-output").textContent = count(total.output ?? 0);
  $("#tile-output").title = `${total.output ?? 0} tokens`;
  $("#tile-reasoning").textContent = total.reasoning ? `${count(total.reasoning)} reasoning` : "";
  $("#tile-charge").textContent = usd(total.charge_usd ?? 0);
  $("#tile-charge").title = `${total.charge_usd ?? 0} USD`;
  const { latency } = told;
  const lines = (name) => latency.groups.map((group) => ({ name: group.name, values: group.series[name] ?? [] }));
  const nothing = "Nothing was asked in this range.";
  charts.ttft.draw(latency.t, lines("ttft_p50_ms"), nothing);
  charts.tokens.draw(latency.t, lines("output"), nothing);
  $("#step").textContent = `per ${width(latency.step_s)}`;
  const times = new Map(latency.groups.map((group) => [group.name, group.totals]));
  const busiest = latency.groups.reduce((one, other) => ((one?.totals.ttft_ms.count ?? 0) >= other.totals.ttft_ms.count ? one : other), null);
  $("#tile-ttft").textContent = span(busiest?.totals.ttft_ms.p50);
  $("#tile-ttft").title = busiest ? `of ${busiest.name}` : "";
  const models = told.models.sort((one, other) => other.requests - one.requests).map((line) => {
    const { ttft_ms: first = {}, duration_ms: took = {} } = times.get(line.model) ?? {};
    return row(line.model, count(line.requests), count(line.input), count(line.output), span(first.p50), span(first.p99), span(took.p50), span(took.p99), [usd(line.charge_usd), `${line.charge_usd} USD`]);
  });
  fill($("#models"), models, 9, nothing);
  $("#zone").textContent = told.timezone;
  const all = [...told.days].reverse().map((line) => el("tr", {}, el("th", { scope: "row" }, line.day), el("td", {}, line.model),
    ...[count(line.requests), count(line.input), count(line.output), usd(line.charge_usd)].map((text) => el("td", { class: "number" }, text))));
  fill($("#days"), all, 6, nothing);
}

async function ask() {
  try {
    show(await api.get(`/v1/weir/usage?days=${days}`));
  } catch (error) {
    if (error instanceof Refused) {
      api.forget();
      gate("This key is not known here, or may not be used from your address.");
    } else {
      gate(error instanceof TypeError ? "The server does not answer. Try again." : error.message);
    }
  }
}

for (const button of document.querySelectorAll("#ranges button")) {
  button.addEventListener("click", () => {
    for (const other of document.querySelectorAll("#ranges button")) other.setAttribute("aria-pressed", String(other === button));
    days = Number(button.dataset.days);
    ask();
  });
}
$("#gate-form").addEventListener("submit", (event) => {
  event.preventDefault();
  api.keep($("#key").value.trim());
  $("#key").value = "";
  ask();
});
$("#leave").addEventListener("click", () => { api.forget(); gate(""); });
theme($("#theme"), () => Object.values(charts).forEach((one) => one.redraw()));
if (api.has()) ask();
else gate("");
