"""Where the policy answers: OpenAI-compatible servers, and scripts."""
