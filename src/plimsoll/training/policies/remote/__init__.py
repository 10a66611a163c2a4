"""The policy on inference servers that take new weights: vLLM, SGLang, others."""
