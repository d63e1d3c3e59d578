"""One published shape with the same kind of random bf16 weights for every peer: a folder that transformers reads, and a
GGUF file that llama.cpp reads. kvlab makes its own (synthetic weights). Values do not matter for time or memory; zeros
would (some products skip them), so they are random everywhere.

    models.py CONFIG.json FOLDER FILE.gguf"""
import json
import os
import sys

import gguf
import numpy
import torch
import transformers


def make_transformers(config, folder):
    if os.path.exists(os.path.join(folder, "model.safetensors")):
        return
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**config),
                                                          dtype=torch.bfloat16)
    model.save_pretrained(folder, max_shard_size="100GB")


def bf16(values):
    """f32 to the bits of bf16, rounded to nearest even."""
    bits = values.astype(numpy.float32).view(numpy.uint32)
    return ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16).astype(numpy.uint16)


def make_gguf(config, path):
    if os.path.exists(path):
        return
    hidden, layers = config["hidden_size"], config["num_hidden_layers"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    wide, vocab = config["intermediate_size"], config["vocab_size"]
    kv = hidden // heads * kv_heads
    writer = gguf.GGUFWriter(path + ".part", "qwen2")
    writer.add_block_count(layers)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(wide)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_custom_alignment(64)  # the file format begins tensors on 32 bytes, which costs its products a third
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    writer.add_tokenizer_model("no_vocab")
    writer.add_vocab_size(vocab)
    draw = numpy.random.default_rng(1)

    def matrix(name, rows, columns):
        values = bf16(draw.standard_normal((rows, columns), dtype=numpy.float32) * 0.02)
        writer.add_tensor(name, values.view(numpy.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)

    def vector(name, values):
        writer.add_tensor(name, values.astype(numpy.float32))

    matrix("token_embd.weight", vocab, hidden)
    vector("output_norm.weight", numpy.ones(hidden))
    if not config["tie_word_embeddings"]:
        matrix("output.weight", vocab, hidden)
    for i in range(layers):
        at = f"blk.{i}."
        vector(at + "attn_norm.weight", numpy.ones(hidden))
        vector(at + "ffn_norm.weight", numpy.ones(hidden))
        for name, rows in (("q", hidden), ("k", kv), ("v", kv)):
            matrix(f"{at}attn_{name}.weight", rows, hidden)
            vector(f"{at}attn_{name}.bias", draw.standard_normal(rows) * 0.02)
        matrix(at + "attn_output.weight", hidden, hidden)
        matrix(at + "ffn_gate.weight", wide, hidden)
        matrix(at + "ffn_up.weight", wide, hidden)
        matrix(at + "ffn_down.weight", hidden, wide)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    os.rename(path + ".part", path)


if __name__ == "__main__":
    with open(sys.argv[1]) as f:
        published = {k: v for k, v in json.load(f).items() if not k.startswith("_")}
    make_transformers(published, sys.argv[2])
    make_gguf(published, sys.argv[3])
