-- Version 1. Never edited once released: a change is a new file.
-- Times are microseconds since 1970 or since the request's start, money is nano-USD, NULL is "not known".

CREATE TABLE counters (
  id INTEGER PRIMARY KEY CHECK (id = 0),
  ledger TEXT NOT NULL,                       -- random, names this file in the sink
  opened INTEGER NOT NULL DEFAULT 0,          -- every row ever opened = settled + cancelled + still open
  cancelled INTEGER NOT NULL DEFAULT 0,
  pruned_to INTEGER NOT NULL DEFAULT 0,       -- rows of `settled` up to this one were removed by retention
  shipped_to INTEGER NOT NULL DEFAULT 0,      -- rows of `settled` up to this one are in the sink
  corrections_shipped_to INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE TABLE owners (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  instance TEXT NOT NULL UNIQUE,
  pid INTEGER NOT NULL,
  started INTEGER NOT NULL,
  ended INTEGER
) STRICT;

CREATE TABLE open (
  request_id TEXT PRIMARY KEY,
  owner INTEGER NOT NULL REFERENCES owners (id),
  received INTEGER NOT NULL,
  client_request_id TEXT, key TEXT, tag TEXT, client TEXT, endpoint TEXT, model TEXT, target TEXT,
  stream INTEGER NOT NULL, tier_requested TEXT, input_estimate INTEGER,
  checkpoint INTEGER,                         -- since `received`; NULL: none came
  status INTEGER NOT NULL DEFAULT 0, source TEXT,
  input INTEGER, cache_read INTEGER, cache_write_5m INTEGER, cache_write_1h INTEGER, output INTEGER,
  reasoning INTEGER, audio_input INTEGER, audio_output INTEGER, web_search INTEGER,
  output_estimate INTEGER, bytes INTEGER NOT NULL DEFAULT 0, output_events INTEGER NOT NULL DEFAULT 0,
  first_output INTEGER, tier_served TEXT
) STRICT, WITHOUT ROWID;

CREATE TABLE settled (
  seq INTEGER PRIMARY KEY AUTOINCREMENT,
  request_id TEXT NOT NULL UNIQUE,
  client_request_id TEXT, upstream_request_id TEXT, answer_id TEXT,
  key TEXT, tag TEXT, client TEXT, endpoint TEXT, protocol TEXT, model TEXT, target TEXT,
  attempts TEXT NOT NULL, maybe_billed INTEGER NOT NULL,
  stream INTEGER NOT NULL, status INTEGER NOT NULL, effective_status INTEGER NOT NULL,
  outcome TEXT NOT NULL, cause TEXT, source TEXT NOT NULL,
  input INTEGER, cache_read INTEGER, cache_write_5m INTEGER, cache_write_1h INTEGER, output INTEGER,
  reasoning INTEGER, audio_input INTEGER, audio_output INTEGER, web_search INTEGER,
  other_models TEXT, charged TEXT NOT NULL,
  billing TEXT NOT NULL, billing_why TEXT NOT NULL,
  charge INTEGER, cost INTEGER, sell_version TEXT, cost_version TEXT, unpriced TEXT,
  tier_requested TEXT, tier_served TEXT, anomalies INTEGER NOT NULL,
  received INTEGER NOT NULL, day TEXT NOT NULL,
  admitted INTEGER, upstream_first_byte INTEGER, upstream_first_output INTEGER,
  first_output INTEGER, first_visible INTEGER, last_output INTEGER,
  duration INTEGER NOT NULL, waited INTEGER NOT NULL,
  bytes INTEGER NOT NULL, output_events INTEGER NOT NULL, keepalives INTEGER NOT NULL,
  settled_at INTEGER NOT NULL, owner INTEGER NOT NULL
) STRICT;
CREATE INDEX settled_received ON settled (received);

CREATE TABLE corrections (
  seq INTEGER PRIMARY KEY AUTOINCREMENT,
  id TEXT NOT NULL UNIQUE,
  request_id TEXT NOT NULL,
  made INTEGER NOT NULL, day TEXT NOT NULL,   -- the day of the record it corrects
  charge INTEGER NOT NULL, cost INTEGER NOT NULL,
  input INTEGER NOT NULL, output INTEGER NOT NULL,
  why TEXT NOT NULL
) STRICT;
CREATE INDEX corrections_request ON corrections (request_id);

CREATE TABLE daily (
  day TEXT NOT NULL, key TEXT NOT NULL, tag TEXT NOT NULL, model TEXT NOT NULL, target TEXT NOT NULL, outcome TEXT NOT NULL,
  requests INTEGER NOT NULL, unpriced INTEGER NOT NULL, estimated INTEGER NOT NULL,
  input INTEGER NOT NULL, cache_read INTEGER NOT NULL, cache_write_5m INTEGER NOT NULL, cache_write_1h INTEGER NOT NULL,
  output INTEGER NOT NULL, reasoning INTEGER NOT NULL, audio_input INTEGER NOT NULL, audio_output INTEGER NOT NULL,
  web_search INTEGER NOT NULL, charge INTEGER NOT NULL, cost INTEGER NOT NULL,
  PRIMARY KEY (day, key, tag, model, target, outcome)
) STRICT, WITHOUT ROWID;

-- What retention removed, so that `verify` can still add up the days.
CREATE TABLE pruned (
  day TEXT PRIMARY KEY,
  requests INTEGER NOT NULL, unpriced INTEGER NOT NULL, estimated INTEGER NOT NULL,
  input INTEGER NOT NULL, cache_read INTEGER NOT NULL, cache_write_5m INTEGER NOT NULL, cache_write_1h INTEGER NOT NULL,
  output INTEGER NOT NULL, reasoning INTEGER NOT NULL, audio_input INTEGER NOT NULL, audio_output INTEGER NOT NULL,
  web_search INTEGER NOT NULL, charge INTEGER NOT NULL, cost INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Asks a full disk whether it has room again; empty otherwise.
CREATE TABLE probe (filler BLOB) STRICT;

CREATE VIEW records AS
SELECT
  s.request_id, s.key, s.tag, s.model, s.target, s.outcome, s.source,
  s.input + coalesce(c.input, 0) AS input, s.cache_read, s.cache_write_5m, s.cache_write_1h,
  s.output + coalesce(c.output, 0) AS output, s.reasoning, s.audio_input, s.audio_output, s.web_search,
  CASE WHEN c.request_id IS NULL THEN s.charge ELSE coalesce(s.charge, 0) + c.charge END AS charge,
  CASE WHEN c.request_id IS NULL THEN s.cost ELSE coalesce(s.cost, 0) + c.cost END AS cost,
  s.billing, s.billing_why, s.charged, s.sell_version, s.cost_version, s.unpriced, s.other_models,
  coalesce(c.corrections, 0) AS corrections,
  s.client_request_id, s.upstream_request_id, s.answer_id, s.client, s.endpoint, s.protocol,
  s.attempts, s.maybe_billed, s.stream, s.status, s.effective_status, s.cause,
  s.tier_requested, s.tier_served, s.anomalies,
  s.received, s.day, s.admitted, s.upstream_first_byte, s.upstream_first_output,
  s.first_output, s.first_visible, s.last_output, s.duration, s.waited,
  s.bytes, s.output_events, s.keepalives, s.settled_at, s.seq
FROM settled s LEFT JOIN (
  SELECT request_id, count(*) AS corrections, sum(charge) AS charge, sum(cost) AS cost, sum(input) AS input, sum(output) AS output
  FROM corrections GROUP BY request_id
) c USING (request_id);
