//! The providers of LiteLLM whose API Weir can pass through.
//!
//! Read by the importer. Touches nothing.

use crate::protocol::Protocol;

/// Names of LiteLLM's providers with an API that Weir can pass through: base URL (empty: must be given), `auth`, path
/// of chat where it is not `/v1/chat/completions`, protocols.
pub(super) type Known = (&'static str, &'static str, &'static str, &'static str, &'static [Protocol]);

const CHAT: &[Protocol] = &[Protocol::Chat];
const OPENAI: &[Protocol] = &[Protocol::Chat, Protocol::Responses];
const MESSAGES: &[Protocol] = &[Protocol::Messages];

#[rustfmt::skip]
pub(super) const KNOWN: &[Known] = &[
    ("openai", "https://api.openai.com", "", "", OPENAI),
    ("anthropic", "https://api.anthropic.com", "x-api-key", "", MESSAGES),
    ("azure", "", "{ header: api-key }", "", CHAT),
    ("groq", "https://api.groq.com/openai", "", "", CHAT),
    ("mistral", "https://api.mistral.ai", "", "", CHAT),
    ("deepseek", "https://api.deepseek.com", "", "", CHAT),
    ("xai", "https://api.x.ai", "", "", CHAT),
    ("openrouter", "https://openrouter.ai/api", "", "", CHAT),
    ("together_ai", "https://api.together.xyz", "", "", CHAT),
    ("fireworks_ai", "https://api.fireworks.ai/inference", "", "", CHAT),
    ("cerebras", "https://api.cerebras.ai", "", "", CHAT),
    ("nvidia_nim", "https://integrate.api.nvidia.com", "", "", CHAT),
    ("perplexity", "https://api.perplexity.ai", "", "/chat/completions", CHAT),
    ("deepinfra", "https://api.deepinfra.com", "", "/v1/openai/chat/completions", CHAT),
    ("gemini", "https://generativelanguage.googleapis.com", "", "/v1beta/openai/chat/completions", CHAT),
    ("ollama", "http://localhost:11434", "", "", CHAT),
    ("ollama_chat", "http://localhost:11434", "", "", CHAT),
    ("hosted_vllm", "", "", "", CHAT),
    ("vllm", "", "", "", CHAT),
    ("openai_like", "", "", "", CHAT),
    ("custom_openai", "", "", "", CHAT),
    ("lm_studio", "", "", "", CHAT),
    ("llamafile", "", "", "", CHAT),
    ("xinference", "", "", "", CHAT),
    ("litellm_proxy", "", "", "", CHAT),
];

/// The variable that LiteLLM reads by itself, for a provider at its own address.
pub(super) fn usual_key(name: &str, own_url: bool) -> Option<String> {
    if !own_url || name.starts_with("ollama") {
        return None;
    }
    let name = name.trim_end_matches("_ai").to_ascii_uppercase();
    Some(format!("${{{}_API_KEY}}", if name == "TOGETHER" { "TOGETHERAI".to_owned() } else { name }))
}
