"""Between text and token ids: tokenizers, chat templates, tool-call parsers, constrained calls."""
