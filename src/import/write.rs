//! Writes a plan as Weir's file, with comments.
//!
//! Called at the end of an import. Touches nothing.

use super::Import;
use super::plan::{Model, Plan, Provider};
use crate::protocol::Protocol;
use std::fmt::Write as _;

/// Nobody's: the operator puts a real one there.
const NO_DIGEST: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// The file and the notes.
pub(super) fn write(plan: Plan, from: &str) -> Import {
    let mut out = format!("# Made by `weir import {from}`. Look through it, then: weir check weir.yaml\n");
    out.push_str("# Every other key and its default: conf/weir.yaml.\n");
    if !plan.notes.is_empty() {
        out.push_str("#\n# Not carried over, or different here:\n");
        for note in &plan.notes {
            let _ = writeln!(out, "# - {note}");
        }
    }
    out.push_str("\nlisten:\n  - address: 127.0.0.1:4000 # 0.0.0.0:4000 for others than this machine\n");
    out.push_str("\nproviders:\n");
    let used = |at: usize| plan.models.iter().flat_map(|model| &model.targets).any(|target| target.provider == at);
    for (_, each) in plan.providers.iter().enumerate().filter(|(at, _)| used(*at)) {
        provider(&mut out, each);
    }
    if !plan.defaults.is_empty() {
        out.push_str("\ndefaults:\n");
        for line in &plan.defaults {
            let _ = writeln!(out, "  {line}");
        }
    }
    out.push_str("\nmodels:\n");
    for each in &plan.models {
        model(&mut out, each, &plan);
    }
    let (digest, what) = plan.key.clone().unwrap_or_else(|| {
        (NO_DIGEST.to_owned(), "nobody has it: put the digest there that `weir keys hash` prints".to_owned())
    });
    let _ = write!(out, "\nkeys:\n  - name: default\n    sha256: \"{digest}\" # {what}\n    models: [\"*\"]\n");
    out.push_str("\n# LiteLLM's price list works as it is: prices: { cost: [model_prices_and_context_window.json] }\n");
    out.push_str("prices: {}\n");
    Import { yaml: out, notes: plan.notes }
}

fn provider(out: &mut String, provider: &Provider) {
    let _ = writeln!(out, "  {}:\n    base_url: {}", word(&provider.name), word(&provider.base_url));
    if let Some(key) = &provider.api_key {
        let literal = if key.contains("${") { "" } else { " # better ${NAME} or file:PATH" };
        let _ = writeln!(out, "    api_key: {}{literal}", word(key));
    }
    if !provider.auth.is_empty() {
        let _ = writeln!(out, "    auth: {}", provider.auth);
    }
    if let Some(path) = &provider.chat_path {
        let _ = writeln!(out, "    paths: {{ chat: {} }}", word(path));
    }
    if !provider.headers.is_empty() {
        let headers: Vec<String> =
            provider.headers.iter().map(|(name, value)| format!("{}: {}", word(name), word(value))).collect();
        let _ = writeln!(out, "    headers: {{ {} }}", headers.join(", "));
    }
}

fn model(out: &mut String, model: &Model, plan: &Plan) {
    let _ = writeln!(out, "  - name: {}", word(&model.name));
    if !model.aliases.is_empty() {
        let aliases: Vec<String> = model.aliases.iter().map(|alias| word(alias)).collect();
        let _ = writeln!(out, "    aliases: [{}]", aliases.join(", "));
    }
    let spoken = |protocol: &Protocol| model.targets.iter().all(|target| plan.protocols(target).contains(protocol));
    let protocols: Vec<&str> = Protocol::ALL.iter().filter(|protocol| spoken(protocol)).map(|own| own.word()).collect();
    let _ = writeln!(out, "    protocols: [{}]\n    targets:", protocols.join(", "));
    for target in &model.targets {
        let provider = plan.providers.get(target.provider).map_or("", |provider| &provider.name);
        let mut members = vec![format!("provider: {}", word(provider)), format!("model: {}", word(&target.model))];
        members.extend(target.weight.map(|weight| format!("weight: {weight}")));
        if target.priority > 0 {
            members.push(format!("priority: {}", target.priority));
        }
        members.extend(target.max_concurrent.map(|most| format!("max_concurrent: {most}")));
        let _ = writeln!(out, "      - {{ {} }}", members.join(", "));
    }
    for (name, limit) in [("rpm", model.rpm), ("tpm", model.tpm)] {
        if limit > 0 {
            let _ = writeln!(out, "    {name}: {limit} # of all its deployments together");
        }
    }
    for line in &model.settings {
        let _ = writeln!(out, "    {line}");
    }
}

/// A YAML scalar that is a text in block and flow style.
fn word(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._/-".contains(&byte);
    let is_word = text.bytes().all(plain) && text.bytes().any(|byte| byte.is_ascii_alphabetic());
    let starts = text.starts_with(|first: char| first.is_ascii_alphabetic());
    let known = ["true", "false", "null", "yes", "no", "on", "off"].contains(&text.to_ascii_lowercase().as_str());
    if is_word && starts && !known { text.to_owned() } else { serde_json::Value::from(text).to_string() }
}
