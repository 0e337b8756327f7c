"""Attention with rotary embedding, its cache and its masks."""
