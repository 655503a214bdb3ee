"""Models for a server on a CPU: ``models.py tiny DIRECTORY [SEED]``, ``models.py gguf DIRECTORY FILE``, or
``models.py chat DIRECTORY FILE_OR_MODEL [SEED]``.

Runs in the server's own virtual environment.
"""

import os
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig, LlamaConfig, LlamaForCausalLM


def make_tiny(directory: str, seed: str = "0") -> None:
    """Two layers of random weights, the same for the same seed: hundreds of tokens per second on one core."""
    torch.manual_seed(int(seed))
    config = LlamaConfig(
        vocab_size=1024,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=8192,
        bos_token_id=1,
        eos_token_id=2,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(directory)


def make_chat(directory: str, source: str, seed: str = "0") -> None:
    """Random weights under the tokenizer of a GGUF file or of a model: conversations that say nothing."""
    folder, name = os.path.split(os.path.abspath(source))
    of_gguf = name.endswith(".gguf")
    tokenizer = AutoTokenizer.from_pretrained(
        folder if of_gguf else source, gguf_file=name if of_gguf else None
    )
    torch.manual_seed(int(seed))
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=8192,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def from_gguf(directory: str, file: str) -> None:
    """The weights of a GGUF file, no longer quantised, and its tokenizer."""
    folder, name = os.path.split(os.path.abspath(file))
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
    model = AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=name, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
    )
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.hf_quantizer = None
    model.is_quantized = False
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


if __name__ == "__main__":
    kind, *arguments = sys.argv[1:]
    {"tiny": make_tiny, "gguf": from_gguf, "chat": make_chat}[kind](*arguments)
