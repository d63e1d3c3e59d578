#!/usr/bin/env python3
"""Turns a GGUF file of a Qwen2 model into what kvlab and transformers read: config.json, generation_config.json,
tokenizer.json and bf16 safetensors. For trying a real model where only a GGUF is at hand; nothing in the tests needs it.

    pip install gguf torch safetensors
    gguf_to_safetensors.py model.gguf folder

Quantized tensors are dequantized, so the weights are those of the GGUF, not those that were published. The head is
written as a tensor of its own where the file has one, even if its model ties it to the embedding: the two were
quantized differently.
"""
import json
import sys
from pathlib import Path

import torch
from gguf import GGUFReader, dequantize
from safetensors.torch import save_file

# The pre-tokenizer that a GGUF calls "qwen2": the pattern of Qwen2.5's own tokenizer.json.
QWEN2_WORDS = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
               r"|\s*[\r\n]+|\s+(?!\S)|\s+")
NORMAL = 1  # a token's type; all others are added tokens, and CONTROL ones special
CONTROL = 3

LAYER = {"attn_norm.weight": "input_layernorm.weight", "ffn_norm.weight": "post_attention_layernorm.weight",
         **{f"attn_{a}.{kind}": f"self_attn.{b}_proj.{kind}" for a, b in (("q", "q"), ("k", "k"), ("v", "v"),
                                                                         ("output", "o"))
            for kind in ("weight", "bias")},
         **{f"ffn_{name}.weight": f"mlp.{name}_proj.weight" for name in ("gate", "up", "down")}}
TOP = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight",
       "output.weight": "lm_head.weight"}


def published_name(name):
    if name in TOP:
        return TOP[name]
    _, layer, rest = name.split(".", 2)
    return f"model.layers.{layer}.{LAYER[rest]}"


def config(value, tensors):
    heads = value("qwen2.attention.head_count")
    return {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_act": "silu",
            "vocab_size": tensors["model.embed_tokens.weight"].shape[0],
            "hidden_size": value("qwen2.embedding_length"), "intermediate_size": value("qwen2.feed_forward_length"),
            "num_hidden_layers": value("qwen2.block_count"), "num_attention_heads": heads,
            "num_key_value_heads": value("qwen2.attention.head_count_kv"),
            "max_position_embeddings": value("qwen2.context_length"),
            "rms_norm_eps": round(value("qwen2.attention.layer_norm_rms_epsilon"), 12),
            "rope_theta": value("qwen2.rope.freq_base"), "tie_word_embeddings": "lm_head.weight" not in tensors,
            "use_sliding_window": False, "torch_dtype": "bfloat16",
            "eos_token_id": value("tokenizer.ggml.eos_token_id")}


def tokenizer(value):
    texts, types = value("tokenizer.ggml.tokens"), value("tokenizer.ggml.token_type")
    used = max(i for i, text in enumerate(texts) if not text.startswith("[PAD"))  # padding up to the embedding's rows
    added = [{"id": i, "content": texts[i], "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False, "special": types[i] == CONTROL}
             for i in range(used + 1) if types[i] != NORMAL]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
            "normalizer": {"type": "NFC"},
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": QWEN2_WORDS}, "behavior": "Isolated", "invert": False},
                byte_level]},
            "post_processor": byte_level, "decoder": byte_level,
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "",
                      "end_of_word_suffix": "", "fuse_unk": False, "byte_fallback": False,
                      "vocab": {texts[i]: i for i in range(used + 1) if types[i] == NORMAL},
                      "merges": value("tokenizer.ggml.merges")}}


def main():
    reader = GGUFReader(sys.argv[1])
    folder = Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)

    def value(key):
        return reader.fields[key].contents()

    if (value("general.architecture"), value("tokenizer.ggml.pre")) != ("qwen2", "qwen2"):
        sys.exit("not a Qwen2 model with Qwen2's tokenizer")
    tensors = {published_name(t.name): torch.from_numpy(dequantize(t.data, t.tensor_type)).to(torch.bfloat16)
               for t in reader.tensors}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    for name, content in (("config", config(value, tensors)), ("tokenizer", tokenizer(value)),
                          ("generation_config", {"eos_token_id": [value("tokenizer.ggml.eos_token_id"),
                                                                  value("tokenizer.ggml.padding_token_id")]})):
        (folder / f"{name}.json").write_text(json.dumps(content, ensure_ascii=False, indent=1), encoding="utf-8")


main()
