"""Chunks: KV payloads that are found by their content and serve at any position, their keys stored unrotated."""
