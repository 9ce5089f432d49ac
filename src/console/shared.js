// What both pages need: elements, numbers and times for people, the theme, and asking the server with a secret
// that stays in this tab.

export const $ = (selector, root = document) => root.querySelector(selector);

/// An element; text is set as text, never as HTML.
export function el(name, attributes = {}, ...children) {
  const svg = ["svg", "rect", "line", "path", "text", "g", "title", "circle"].includes(name);
  const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

// ---------------------------------------------------------------- numbers

const THIN = " ";
const group = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

/// 12,345 whole; 1.23 M above a million.
export function count(number) {
  if (number === null || number === undefined) return "–";
  if (Math.abs(number) >= 1e9) return `${(number / 1e9).toFixed(2)}${THIN}B`;
  if (Math.abs(number) >= 1e6) return `${(number / 1e6).toFixed(2)}${THIN}M`;
  return group.format(number);
}

/// A rate: two digits that matter.
export function rate(number) {
  if (number === null || number === undefined) return "–";
  if (number === 0) return "0";
  return number >= 100 ? group.format(number) : number >= 10 ? number.toFixed(1) : number.toFixed(2);
}

/// Milliseconds as people say them.
export function span(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms === 0) return "0";
  if (ms < 1) return `${ms.toFixed(2)}${THIN}ms`;
  if (ms < 10) return `${ms.toFixed(1)}${THIN}ms`;
  if (ms < 1000) return `${Math.round(ms)}${THIN}ms`;
  if (ms < 60000) return `${(ms / 1000).toFixed(ms < 10000 ? 2 : 1)}${THIN}s`;
  if (ms < 3600000) return `${Math.floor(ms / 60000)}${THIN}min ${Math.round((ms % 60000) / 1000)}${THIN}s`;
  return `${Math.floor(ms / 3600000)}${THIN}h ${Math.round((ms % 3600000) / 60000)}${THIN}min`;
}

/// A width of time, such as a chart's step: 30 s, 15 min, 6 h.
export function width(seconds) {
  if (seconds < 60) return `${seconds}${THIN}s`;
  if (seconds < 3600) return `${seconds / 60}${THIN}min`;
  return seconds < 86400 ? `${seconds / 3600}${THIN}h` : `${seconds / 86400}${THIN}d`;
}

/// USD: cents above a dollar, all digits that matter below.
export function usd(amount) {
  if (amount === null || amount === undefined || amount === "") return "–";
  const number = Number(amount);
  if (number === 0) return "$0";
  const digits = Math.abs(number) >= 1 ? 2 : Math.min(9, Math.max(2, 2 - Math.floor(Math.log10(Math.abs(number)))));
  const text = Math.abs(number).toLocaleString("en-US", { minimumFractionDigits: 2, maximumFractionDigits: digits });
  return `${number < 0 ? "−" : ""}$${text}`;
}

/// Bytes in powers of 1024.
export function bytes(number) {
  if (number === null || number === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB"];
  let at = 0;
  while (number >= 1024 && at < units.length - 1) [number, at] = [number / 1024, at + 1];
  return `${at ? number.toFixed(1) : number}${THIN}${units[at]}`;
}

// ---------------------------------------------------------------- times: local, UTC on hover

export const utc = (date) => `${date.toISOString().replace("T", " ").replace(/\.\d+Z$|Z$/, "")} UTC`;
const sameDay = (one, other) => one.toDateString() === other.toDateString();

export function clock(date, withDay = !sameDay(date, new Date())) {
  const time = date.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
  return withDay ? `${date.toLocaleDateString([], { day: "numeric", month: "short" })} ${time}` : time;
}

export function when(text) {
  const date = new Date(text);
  return el("time", { datetime: text, title: utc(date) }, clock(date));
}

// ---------------------------------------------------------------- theme

const THEMES = ["auto", "light", "dark"];
const stored = (key) => { try { return localStorage.getItem(key); } catch { return null; } };

/// `changed` is called whenever the colours are others.
export function theme(button, changed) {
  let now = THEMES.includes(stored("weir-theme")) ? stored("weir-theme") : "auto";
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const apply = () => {
    document.documentElement.dataset.theme = now === "auto" ? (dark.matches ? "dark" : "light") : now;
    button.textContent = { auto: "◐", light: "☀", dark: "☾" }[now];
    button.title = `Colours: ${now}`;
    button.setAttribute("aria-label", `Colours: ${now}. Press to change.`);
    changed();
  };
  button.addEventListener("click", () => {
    now = THEMES[(THEMES.indexOf(now) + 1) % THEMES.length];
    try { localStorage.setItem("weir-theme", now); } catch { /* private window */ }
    apply();
  });
  dark.addEventListener("change", apply);
  apply();
}

// ---------------------------------------------------------------- asking

export class Refused extends Error {}

/// Asks with the secret of this tab, if there is one. `name`: under which it is kept until the tab closes.
export function asker(name) {
  const secret = () => sessionStorage.getItem(name);
  return {
    has: () => Boolean(secret()),
    keep: (text) => sessionStorage.setItem(name, text),
    forget: () => sessionStorage.removeItem(name),
    async get(path, { text = false, signal } = {}) {
      const headers = secret() ? { authorization: `Bearer ${secret()}` } : {};
      const reply = await fetch(path, { headers, signal, cache: "no-store", credentials: "omit" });
      if (reply.status === 401 || reply.status === 403) throw new Refused(`HTTP ${reply.status}`);
      if (text && reply.ok) return reply.text();
      const body = await reply.json();
      if (!reply.ok) {
        const error = new Error(body?.error?.message ?? body?.error ?? `HTTP ${reply.status}`);
        error.status = reply.status;
        throw error;
      }
      return body;
    },
  };
}

/// A row of a table; numbers (`[text, title]` or text) to the right.
export function row(first, ...cells) {
  const cell = (value) => {
    const [text, title] = Array.isArray(value) ? value : [value, null];
    return el("td", { class: "number", title }, text);
  };
  return el("tr", {}, el("th", { scope: "row" }, first), cells.map(cell));
}

/// Puts rows in, or says in words why there is none.
export function fill(body, rows, columns, empty) {
  body.replaceChildren(...(rows.length ? rows : [el("tr", { class: "empty" }, el("td", { colspan: columns }, empty))]));
}
