"""Rules, dashboard and metrics fit together (M2).

    check.py PATH-OF-WEIR FOLDER-OF-PROMTOOL-AND-PROMETHEUS

- `promtool` accepts and tests the rules; each alert has a test in which it fires and one in which it doesn't.
- What rules and dashboard name exists: metrics and labels by README's table, which a test compares with the
  code, and the label values (outcomes, results, kinds) as words in the code.
- A real weir with the demo model gets a few requests: `promtool` accepts its metrics, each of them is in the
  table, and a real Prometheus that scrapes it can answer every expression.
"""

import hashlib
import json
import pathlib
import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request

import yaml

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
CONF = ROOT / "conf"
RULES = sorted((CONF / "prometheus").glob("*.rules.yaml"))
KEY = "prometheus-test-key"
# Of a key that may ask once a minute.
RARE = "prometheus-rare-key"
# Metrics of Prometheus itself and of node exporter.
FOREIGN = {"up", "ALERTS", "node_filesystem_avail_bytes", "node_filesystem_size_bytes"}
FOREIGN_LABELS = {"job", "instance", "le", "mountpoint", "fstype", "version"}
# Where the values of each label stand as words.
WORDS = {
    "outcome": ["src/outcome.rs"],
    "result": ["src/outcome.rs", "src/metrics/mod.rs", "src/gateway/attempt.rs"],
    "kind": ["src/metrics/mod.rs"],
    "clock": ["src/metrics/mod.rs"],
    "stream": ["src/metrics/mod.rs"],
    "endpoint": ["src/protocol.rs"],
}
# What this short run doesn't have: expressions with it may stay empty.
UNUSUAL = {
    "weir_gate_overflow_total", "weir_events_malformed_total", "weir_usage_anomalies_total", "weir_usage_missing_total",
    "weir_web_searches_total", "weir_keepalives_total", "weir_sink_connected", "weir_sink_pending_records",
    "weir_sink_lag_seconds", "weir_config_reload_total", "weir_certificate_expiry_timestamp_seconds", 'kind="cache_read"',
}

failures = []


def fail(text):
    failures.append(text)


def run(title, *command, **options):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, **options)
    said = (done.stdout + done.stderr).strip()
    print("prom: {} {}".format(title, "FAILED" if done.returncode else "ok"))
    if done.returncode:
        fail(f"{title}:\n{said}")
    return said


# ---------------------------------------------------------------- what exists


def declared():
    """README's table: name -> (kind, labels, help)."""
    table = (ROOT / "README.md").read_text().split("<!-- metrics table -->")[1]
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| ([\w, ]*) \| (.*) \|$", table, re.M)
    return {name: (kind, set(re.findall(r"\w+", labels)), said) for name, kind, labels, said in rows}


def family(name, table):
    """The declared metric that a series belongs to."""
    for suffix in ["_bucket", "_sum", "_count", ""]:
        base = name.removesuffix(suffix)
        if base in table and (suffix == "" or table[base][0] == "histogram"):
            return base
    return None


# ---------------------------------------------------------------- what is named

KEYWORDS = {"by", "without", "on", "ignoring", "group_left", "group_right", "and", "or", "unless", "offset", "bool", "inf"}
SELECTOR = re.compile(r"([a-zA-Z_:][\w:]*)\s*(\{[^}]*\})?")
MATCHER = re.compile(r"(\w+)\s*(=~|!~|!=|=)\s*\"((?:[^\"\\]|\\.)*)\"")


def plain(expr):
    """An expression as Prometheus takes it: Grafana's variables filled in."""
    expr = expr.replace("$__rate_interval", "1m").replace("$__range", "1m")
    return re.sub(r"\$\w+", ".*", expr)


def selectors(expr):
    """Each metric that an expression names, with its matchers; and the labels of its `by` and `on`."""
    clauses = re.findall(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)", expr)
    labels = {label for clause in clauses for label in re.findall(r"\w+", clause)}
    rest = re.sub(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)", " ", expr)
    rest = re.sub(r"\[[^\]]*\]", " ", rest)
    rest = re.sub(r"\boffset\s+\w+", " ", rest)
    found = []
    for match in SELECTOR.finditer(rest):
        name, matchers = match.groups()
        before, after = rest[:match.start()], rest[match.end():].lstrip()
        if name in KEYWORDS or after.startswith("(") or re.search(r"[\w.]$", before):
            continue
        found.append((name, MATCHER.findall(matchers or "")))
    return found, labels


def check_expression(where, expr, table, known):
    found, grouped = selectors(plain(expr))
    if not found:
        fail(f"{where}: names no metric: {expr}")
    own = set()
    for name, matchers in found:
        base = family(name, table)
        if base is None and name not in known:
            fail(f"{where}: there is no metric {name}")
            continue
        labels = (table[base][1] if base else set()) | FOREIGN_LABELS
        labels |= set(re.findall(r"model|target|kind", name.split(":")[0])) if ":" in name else set()
        own |= labels
        for label, _, value in matchers:
            if label not in labels:
                fail(f"{where}: {name} has no label {label}")
            for word in value.split("|") if label in WORDS else []:
                if word != ".*" and not any(f'"{word}"' in (ROOT / path).read_text() for path in WORDS[label]):
                    fail(f"{where}: {label} is never {word}")
    for label in grouped - own - {"alertname"}:
        fail(f"{where}: nothing there has the label {label}")


def rules():
    for path in RULES:
        for group in yaml.safe_load(path.read_text())["groups"]:
            for rule in group["rules"]:
                yield path.name, rule


def panels(dashboard):
    for panel in dashboard["panels"]:
        yield panel
        yield from panel.get("panels", [])


def check_dashboard(dashboard):
    ids = [panel["id"] for panel in panels(dashboard)]
    if len(ids) != len(set(ids)):
        fail("dashboard: two panels have the same id")
    if dashboard["schemaVersion"] < 39:
        fail("dashboard: an old schemaVersion")
    rows = [panel["title"] for panel in panels(dashboard) if panel["type"] == "row"]
    if rows != ["Overview", "Latency", "Tokens and money", "Targets", "Ledger"]:
        fail(f"dashboard: rows {rows}")
    variables = [variable["name"] for variable in dashboard["templating"]["list"]]
    if variables != ["datasource", "job", "model", "key", "target"]:
        fail(f"dashboard: variables {variables}")
    taken = {}
    for panel in panels(dashboard):
        title, at = panel["title"], panel["gridPos"]
        for cell in ((x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])):
            if taken.setdefault(cell, title) != title or cell[0] > 23:
                fail(f"dashboard: {title} lies over {taken[cell]}")
                break
        if panel["type"] == "row":
            continue
        if not panel.get("description") or not panel["fieldConfig"]["defaults"].get("unit") or not panel.get("targets"):
            fail(f"dashboard: {title} lacks description, unit or query")
        for target in panel.get("targets", []):
            if panel["datasource"]["uid"] != "${datasource}" or target["datasource"] != panel["datasource"]:
                fail(f"dashboard: {title} does not ask the chosen data source")
            for variable in re.findall(r"\$(\w+)", target["expr"]):
                if variable not in [*variables, "__rate_interval", "__range"]:
                    fail(f"dashboard: {title}: there is no variable {variable}")


def check_alerts():
    tests = [test for path in (ROOT / "tests/prometheus").glob("*.test.yaml") for test in yaml.safe_load(path.read_text())["tests"]]
    for _, rule in rules():
        name = rule.get("alert")
        if not name:
            continue
        said = rule.get("annotations", {})
        if rule["labels"].get("severity") not in ["critical", "warning"]:
            fail(f"{name}: severity")
        for annotation in ["summary", "description", "runbook"]:
            if not said.get(annotation):
                fail(f"{name}: no {annotation}")
        about = [test for test in tests if test["name"].startswith(name + " ")]
        fires = [
            test for test in about
            if any(f'"{name}"' in sample["labels"] for check in test["promql_expr_test"] for sample in check["exp_samples"])
        ]
        quiet = [test for test in about if test["name"].startswith(f"{name} does not fire")]
        if not fires or not quiet or any(test in fires for test in quiet):
            fail(f"{name}: needs a test in which it fires and one in which it does not")


# ---------------------------------------------------------------- the live ones


def free_port():
    """Below the ports that the system gives out by itself: nobody gets it meanwhile."""
    while True:
        with socket.socket() as listener:
            try:
                listener.bind(("127.0.0.1", random.randrange(10_000, 32_000)))
                return listener.getsockname()[1]
            except OSError:
                pass


def get(url, body=None, headers=None):
    request = urllib.request.Request(url, data=body, headers=headers or {})
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def wait_for(process, ready):
    until = time.monotonic() + 120
    while time.monotonic() < until and process.poll() is None:
        try:
            if ready():
                return True
        except OSError:
            pass
        time.sleep(0.05)
    return False


def start_weir(weir, folder):
    """Weir with the demo model, a store of limits, and traces that nobody takes; `None` when somebody took its ports."""
    port, admin, store, nobody = free_port(), free_port(), free_port(), free_port()
    models = ["demo-fast", "demo-fast-thinking", "demo-500", "demo-401", "demo-fast-cut", "demo-fast-stall"]
    # Short only where it is to fire: a machine that stalls is no stalled model.
    timeouts = {"demo-fast-stall": ", timeouts: { idle: 3s }"}
    targets = "\n".join(
        f"  - {{ name: {name}, targets: [{{ provider: demo, model: {name} }}]{timeouts.get(name, '')} }}" for name in models
    )
    # All but one of them have no price.
    (folder / "prices.yaml").write_text('prices: [{ provider: demo, model: demo-fast, input: "1", output: "2" }]\n')
    (folder / "weir.yaml").write_text(f"""
listen: [{{ address: "127.0.0.1:{port}" }}]
admin: {{ address: "127.0.0.1:{admin}" }}
providers: {{ demo: {{ builtin: demo }} }}
defaults: {{ retry: {{ attempts: 1 }} }}
models:
{targets}
keys:
  - {{ name: prom, sha256: {hashlib.sha256(KEY.encode()).hexdigest()}, models: ["*"] }}
  - {{ name: rare, sha256: {hashlib.sha256(RARE.encode()).hexdigest()}, models: ["*"], rpm: 1 }}
limits: {{ store: {{ redis: "redis://127.0.0.1:{store}" }} }}
otlp: {{ endpoint: "http://127.0.0.1:{nobody}", enabled: true }}
prices: {{ cost: [prices.yaml], sell: {{ markup: "1.5" }} }}
ledger: {{ path: weir.db }}
log: {{ format: json, level: warn, access: all }}
""")
    log = open(folder / "weir.log", "w", encoding="utf-8")
    # The package redis-tools brings the server's program under this name, and no service.
    program = shutil.which("redis-check-rdb") or sys.exit("prom: 'redis-check-rdb' is missing (make setup-redis)")
    beside = subprocess.Popen(
        ["redis-server", "--port", str(store), "--bind", "127.0.0.1", "--save", ""], executable=program, stdout=log, stderr=log, cwd=folder
    )
    process = subprocess.Popen([weir, "serve", "--config", folder / "weir.yaml"], stdout=log, stderr=log, cwd=folder)
    if wait_for(process, lambda: get(f"http://127.0.0.1:{admin}/readyz")[0] == 200):
        return process, beside, port, admin
    for one in [process, beside]:
        one.kill()
        one.wait()
    print((folder / "weir.log").read_text()[-2000:])
    return None


def ask(port, model, stream=True, key=KEY, path="/v1/chat/completions"):
    body = {"model": model, "stream": stream, "max_tokens": 64, "messages": [{"role": "user", "content": "hello"}]}
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    return get(f"http://127.0.0.1:{port}{path}", json.dumps(body).encode(), headers)[0]


def traffic(port, all_kinds=True):
    """A few requests of each kind of ending; each status is as it should be. Returns how many."""
    expected = [("demo-fast", 200), ("demo-fast-thinking", 200)]
    if all_kinds:
        expected += [("demo-500", 500), ("demo-401", 503), ("demo-fast-cut", 200), ("demo-fast-stall", 200), ("unknown", 404)]
    for model, status in expected:
        got = ask(port, model)
        if got != status:
            fail(f"weir: {model} got {got}, not {status}")
    others = [(200, {"stream": False}), (200, {"path": "/v1/messages"}), (401, {"key": "wrong"})]
    if all_kinds:
        others += [(200, {"key": RARE}), (429, {"key": RARE})]
    for status, options in others:
        got = ask(port, "demo-fast", **options)
        if got != status:
            fail(f"weir: {options} got {got}, not {status}")
    return len(expected) + len(others)


def counted(text):
    return sum(int(count) for count in re.findall(r"^weir_requests_total\{.*\} (\d+)$", text, re.M))


def check_live(text, table):
    """What the endpoint shows is what README's table says."""
    kinds = dict(re.findall(r"^# TYPE (\w+) (\w+)$", text, re.M))
    helps = dict(re.findall(r"^# HELP (\w+) (.*)$", text, re.M))
    for name, kind in kinds.items():
        if name.startswith("weir_") and (name not in table or (kind, helps[name]) != (table[name][0], table[name][2])):
            fail(f"/metrics: {name} is not as in README's table")
    missing = [name for name in table if name not in kinds and name not in UNUSUAL]
    if missing:
        fail(f"/metrics: after all kinds of requests these are not there: {missing}")


def check_prometheus(tools, folder, admin, port, expressions):
    """A real Prometheus with the shipped config scrapes weir and answers every expression."""
    config = yaml.safe_load((CONF / "prometheus/scrape.yaml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(path) for path in RULES]
    jobs = {job["job_name"]: job for job in config["scrape_configs"]}
    jobs["weir"]["static_configs"] = [{"targets": [f"127.0.0.1:{admin}"]}]
    config["scrape_configs"] = [jobs["weir"]]
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    own = free_port()
    log = open(folder / "prometheus.log", "w", encoding="utf-8")
    process = subprocess.Popen(
        [tools / "prometheus", f"--config.file={folder / 'prometheus.yaml'}", f"--storage.tsdb.path={folder / 'tsdb'}",
         f"--web.listen-address=127.0.0.1:{own}"],
        stdout=log, stderr=log,
    )

    def query(expr):
        status, answer = get(f"http://127.0.0.1:{own}/api/v1/query?" + urllib.parse.urlencode({"query": expr}))
        return status, json.loads(answer) if answer.startswith("{") else {"error": answer}

    def scraped():
        status, answer = query('count_over_time(weir_build_info[5m])')  # 503 while it starts
        result = answer["data"]["result"] if status == 200 else []
        return result and int(result[0]["value"][1]) >= 3

    try:
        if not wait_for(process, scraped):
            fail("prometheus did not scrape weir:\n" + (folder / "prometheus.log").read_text()[-2000:])
            return
        traffic(port, all_kinds=False)
        before = time.monotonic()
        wait_for(process, lambda: time.monotonic() - before > 3)
        empty = 0
        for where, expr, must_answer in expressions:
            status, answer = query(plain(expr))
            if status != 200:
                fail(f"{where}: {answer.get('error')}: {expr}")
            elif must_answer and not answer["data"]["result"]:
                fail(f"{where}: no answer: {expr}")
            empty += status == 200 and not answer["data"]["result"]
        print(f"prom: prometheus answers {len(expressions)} expressions, {empty} of them with nothing")
    finally:
        process.kill()
        process.wait()


def main():
    weir, tools = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
    promtool = tools / "promtool"
    table = declared()
    if len(table) < 30:
        fail("README.md: no table of metrics")
    run("promtool check rules", promtool, "check", "rules", *RULES)
    run("promtool check config", promtool, "check", "config", "--syntax-only", CONF / "prometheus/scrape.yaml")
    run("promtool test rules", promtool, "test", "rules", *sorted((ROOT / "tests/prometheus").glob("*.test.yaml")))
    dashboard = json.loads((CONF / "grafana/weir.json").read_text())
    check_dashboard(dashboard)
    check_alerts()

    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        started = start_weir(weir, folder) or start_weir(weir, folder)
        if not started:
            sys.exit("prom: weir did not start")
        process, beside, port, admin = started
        try:
            sent, metrics = traffic(port), f"http://127.0.0.1:{admin}/metrics"
            # A request is counted when it is settled, shortly after the client has its answer.
            if not wait_for(process, lambda: counted(get(metrics)[1]) == sent):
                fail(f"/metrics: {sent} requests were sent, {counted(get(metrics)[1])} are counted")
            text = get(metrics)[1]
            run("promtool check metrics", promtool, "check", "metrics", input=text)
            check_live(text, table)
            recorded = {rule["record"] for _, rule in rules() if "record" in rule}
            known = recorded | FOREIGN | set(re.findall(r"^# TYPE (process_\w+)", text, re.M))
            expressions = []
            for path, rule in rules():
                expressions.append((f"{path}: {rule.get('alert') or rule['record']}", rule["expr"], False))
            for panel in panels(dashboard):
                for target in panel.get("targets", []):
                    usual = not any(word in target["expr"] for word in UNUSUAL)
                    expressions.append((f"dashboard: {panel['title']}", target["expr"], usual))
            for where, expr, _ in expressions:
                check_expression(where, expr, table, known)
            check_prometheus(tools, folder, admin, port, expressions)
        finally:
            for one in [process, beside]:
                one.kill()
                one.wait()
    # A name that does not exist must be found, or this check says nothing.
    before = len(failures)
    for wrong in ['rate(weir_requests[5m])', 'weir_requests_total{modell="x"}', 'sum by (targett) (weir_attempts_total)',
                  'weir_requests_total{outcome="complete"}', 'weir_tokens_total_bucket']:
        check_expression("self-test", wrong, table, known)
    found = len(failures) - before
    del failures[before:]
    if found != 5:
        fail(f"self-test: only {found} of 5 mistakes were found")
    for text in failures:
        print("  " + text.replace("\n", "\n  "))
    sys.exit("prom: FAILED" if failures else 0)


main()
