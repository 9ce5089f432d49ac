-- Version 1 of the sink's tables. Never edited once released: a change is a new file.
-- Times are microseconds since 1970 or since the request's start, money is nano-USD.
CREATE TABLE weir_cursors (
  ledger text PRIMARY KEY,
  settled bigint NOT NULL DEFAULT 0,
  settled_id text NOT NULL DEFAULT '',
  corrections bigint NOT NULL DEFAULT 0
);
CREATE TABLE weir_settled (
  request_id uuid PRIMARY KEY,
  ledger text NOT NULL, seq bigint NOT NULL,
  client_request_id text, upstream_request_id text, answer_id text,
  key text, tag text, client text, endpoint text, protocol text, model text, target text,
  attempts jsonb NOT NULL, maybe_billed bigint NOT NULL,
  stream bigint NOT NULL, status bigint NOT NULL, effective_status bigint NOT NULL,
  outcome text NOT NULL, cause text, source text NOT NULL,
  input bigint, cache_read bigint, cache_write_5m bigint, cache_write_1h bigint, output bigint,
  reasoning bigint, audio_input bigint, audio_output bigint, web_search bigint,
  other_models jsonb, charged jsonb NOT NULL,
  billing text NOT NULL, billing_why text NOT NULL,
  charge bigint, cost bigint, sell_version text, cost_version text, unpriced text,
  tier_requested text, tier_served text, anomalies bigint NOT NULL,
  received bigint NOT NULL, day text NOT NULL,
  admitted bigint, upstream_first_byte bigint, upstream_first_output bigint,
  first_output bigint, first_visible bigint, last_output bigint,
  duration bigint NOT NULL, waited bigint NOT NULL,
  bytes bigint NOT NULL, output_events bigint NOT NULL, keepalives bigint NOT NULL,
  settled_at bigint NOT NULL
);
CREATE INDEX weir_settled_day ON weir_settled (day);
CREATE TABLE weir_corrections (
  id uuid PRIMARY KEY,
  ledger text NOT NULL, seq bigint NOT NULL,
  request_id uuid NOT NULL,
  made bigint NOT NULL, day text NOT NULL,
  charge bigint NOT NULL, cost bigint NOT NULL, input bigint NOT NULL, output bigint NOT NULL,
  why text NOT NULL
);
CREATE INDEX weir_corrections_request ON weir_corrections (request_id);
CREATE VIEW weir_records AS
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
  s.bytes, s.output_events, s.keepalives, s.settled_at, s.ledger, s.seq
FROM weir_settled s LEFT JOIN (
  SELECT request_id, count(*) AS corrections, sum(charge)::bigint AS charge, sum(cost)::bigint AS cost,
    sum(input)::bigint AS input, sum(output)::bigint AS output
  FROM weir_corrections GROUP BY request_id
) c USING (request_id);
