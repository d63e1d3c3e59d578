"""Trains the pair of byte-level models in this folder. Debian 12 packages for the text:

    apt-get install bible-kjv bible-kjv-text jargon-text dict-devil
    python3 -m venv venv && venv/bin/pip install torch==2.8.0 safetensors numpy
    venv/bin/python train.py target && venv/bin/python train.py draft

Seeded; writes <name>/model.safetensors (bf16), <name>/config.json, <name>/loss.csv and heldout.txt.
The model is the Llama architecture as Hugging Face names its tensors: RMS norm, RoPE over halves, grouped-query
attention, SwiGLU, tied embeddings. One token is one byte.
"""
import gzip
import json
import math
import os
import random
import re
import subprocess
import sys
import time

import numpy
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

HERE = os.path.dirname(os.path.abspath(__file__))
PIECE_BYTES = 16384   # the texts are cut into pieces of this size,
HELD_OUT_EVERY = 20   # and every 20th is never trained on
SEED = 20261130

MODELS = {
    "target": dict(hidden_size=256, num_hidden_layers=5, num_attention_heads=4, num_key_value_heads=2, head_dim=64,
                   intermediate_size=640),
    "draft": dict(hidden_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=32,
                  intermediate_size=320),
}
# Sequence length, sequences per step, share of the steps: long contexts last, since they cost most.
STAGES = [(256, 32, 0.5), (512, 16, 0.3), (2048, 4, 0.2)]
STEPS = {"target": 1900, "draft": 1000}


# ---- the texts

def king_james():
    """The whole of it by the package's own program: one line per verse, without its numbering."""
    books = subprocess.run(["bible", "-f"], input="ge1:1-re22:21\n", capture_output=True, text=True).stdout
    return "".join(verse + "\n" for verse in re.findall(r"^[0-9A-Za-z]+:\d+ (.*)$", books, flags=re.M))


def jargon():
    return gzip.open("/usr/share/doc/jargon-text/jargon.txt.gz", "rb").read().decode("utf-8", "replace")


def devil():
    text = gzip.open("/usr/share/dictd/devil.dict.dz", "rb").read().decode("utf-8", "replace")
    return text


def pieces():
    """(training text, held-out text), both bytes."""
    train, held_out = [], []
    for read in (king_james, jargon, devil):
        text = read().encode("utf-8")
        print(f"{read.__name__}: {len(text)} bytes", flush=True)
        assert len(text) > 200_000, "the text is not there: see the packages above"
        for i, at in enumerate(range(0, len(text), PIECE_BYTES)):
            (held_out if i % HELD_OUT_EVERY == HELD_OUT_EVERY // 2 else train).append(text[at:at + PIECE_BYTES])
    return b"".join(train), b"".join(held_out)


# ---- facts planted early and asked late, so that the models learn to look back over the whole context

NAMES = ("Aaron Boaz Caleb Dinah Esther Felix Gideon Hannah Isaac Joel Kenan Leah Micah Naomi Obed Perez Rahab Silas "
         "Tamar Uriah Vashti Zadok Abel Amos Cain Dan Eli Gad Ham Jonah Lot Mark Nahum Omri Paul Ruth Saul Titus").split()


def with_facts(text, draw):
    """`text` with two to four facts among its lines and each asked for again later; the same number of bytes."""
    length, lines = len(text), text.split(b"\n")
    for name in draw.sample(NAMES, draw.randint(2, 4)):
        number = draw.randint(1000, 9999)
        early = draw.randint(0, max(0, len(lines) - 2))
        late = draw.randint(early + 1, len(lines))
        lines.insert(late, b"Recall: the number of %s is %d." % (name.encode(), number))
        lines.insert(early, b"Remember: the number of %s is %d." % (name.encode(), number))
    return b"\n".join(lines)[:length]


def batch(text, rows, length, draw):
    out = numpy.empty((rows, length + 1), dtype=numpy.int64)
    for r in range(rows):
        at = draw.randrange(len(text) - length - 1)
        piece = text[at:at + length + 1]
        if draw.random() < 0.4:
            piece = with_facts(piece, draw)
        out[r] = numpy.frombuffer(piece, dtype=numpy.uint8)
    tokens = torch.from_numpy(out)
    return tokens[:, :-1], tokens[:, 1:]


# ---- the model

class Model(torch.nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        h, d = c["hidden_size"], c["head_dim"]
        q, kv, f = c["num_attention_heads"] * d, c["num_key_value_heads"] * d, c["intermediate_size"]
        def weight(rows, columns, scale=1.0):
            return torch.nn.Parameter(torch.randn(rows, columns) * scale / math.sqrt(columns))
        self.p = torch.nn.ParameterDict()
        self.p["model_embed_tokens"] = torch.nn.Parameter(torch.randn(256, h) * 0.05)
        self.p["model_norm"] = torch.nn.Parameter(torch.ones(h))
        depth = 1 / math.sqrt(2 * c["num_hidden_layers"])
        for i in range(c["num_hidden_layers"]):
            for name, value in (("input_layernorm", torch.nn.Parameter(torch.ones(h))),
                                ("post_attention_layernorm", torch.nn.Parameter(torch.ones(h))),
                                ("self_attn_q_proj", weight(q, h)), ("self_attn_k_proj", weight(kv, h)),
                                ("self_attn_v_proj", weight(kv, h)), ("self_attn_o_proj", weight(h, q, depth)),
                                ("mlp_gate_proj", weight(f, h)), ("mlp_up_proj", weight(f, h)),
                                ("mlp_down_proj", weight(h, f, depth))):
                self.p[f"layer{i}_{name}"] = value

    def norm(self, x, name):
        return F.rms_norm(x, x.shape[-1:], self.p[name].to(x.dtype), 1e-5)

    def forward(self, tokens):
        c, (rows, length) = self.c, tokens.shape
        d = c["head_dim"]
        angle = torch.outer(torch.arange(length).float(), 10000.0 ** (-torch.arange(0, d, 2).float() / d))
        cos, sin = angle.cos(), angle.sin()
        def rotate(x):
            a, b = x.float().chunk(2, -1)
            return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)
        def heads(x, n):
            return x.view(rows, length, n, d).transpose(1, 2)
        x = F.embedding(tokens, self.p["model_embed_tokens"])
        for i in range(c["num_hidden_layers"]):
            at = lambda name: self.p[f"layer{i}_{name}"]
            y = self.norm(x, f"layer{i}_input_layernorm")
            q = rotate(heads(F.linear(y, at("self_attn_q_proj")), c["num_attention_heads"]))
            k = rotate(heads(F.linear(y, at("self_attn_k_proj")), c["num_key_value_heads"]))
            v = heads(F.linear(y, at("self_attn_v_proj")), c["num_key_value_heads"])
            group = c["num_attention_heads"] // c["num_key_value_heads"]
            k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + F.linear(y.transpose(1, 2).reshape(rows, length, -1), at("self_attn_o_proj"))
            y = self.norm(x, f"layer{i}_post_attention_layernorm")
            x = x + F.linear(F.silu(F.linear(y, at("mlp_gate_proj"))) * F.linear(y, at("mlp_up_proj")),
                             at("mlp_down_proj"))
        return F.linear(self.norm(x, "model_norm"), self.p["model_embed_tokens"])


def bits_per_byte(model, text, length, limit):
    total = count = 0
    with torch.no_grad():
        for at in range(0, min(len(text), limit) - length, length):
            t = torch.from_numpy(numpy.frombuffer(text[at:at + length + 1], dtype=numpy.uint8).astype(numpy.int64))
            total += F.cross_entropy(model(t[None, :-1])[0].float(), t[1:], reduction="sum").item()
            count += length
    return total / count / math.log(2)


def recall(model, text, length, trials, seed):
    """Share of facts planted at the start of `length` bytes of held-out text that are told right at its end."""
    draw, right = random.Random(seed), 0
    with torch.no_grad():
        for _ in range(trials):
            name, number = draw.choice(NAMES).encode(), b"%d" % draw.randint(1000, 9999)
            early = b"Remember: the number of %s is %s.\n" % (name, number)
            late = b"\nRecall: the number of %s is " % name
            at = draw.randrange(len(text) - length)
            whole = early + text[at:at + length - len(early) - len(late) - 4] + late + number
            t = torch.from_numpy(numpy.frombuffer(whole, dtype=numpy.uint8).astype(numpy.int64))
            guess = model(t[None, :-1])[0, -4:].argmax(-1)
            right += bool((guess == t[-4:]).all())
    return right / trials


# ---- writing

def save(model, name):
    folder = os.path.join(HERE, name)
    tensors = {}
    for key, value in model.p.items():
        key = re.sub(r"^layer(\d+)_(self_attn|mlp)_", r"model.layers.\1.\2.", key)
        key = re.sub(r"^layer(\d+)_", r"model.layers.\1.", key)
        key = re.sub(r"^model_", "model.", key)
        tensors[key + ".weight"] = value.detach().to(torch.bfloat16).contiguous()
    save_file(tensors, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
    config = dict(architectures=["LlamaForCausalLM"], model_type="llama", vocab_size=256, **MODELS[name],
                  hidden_act="silu", max_position_embeddings=2048, rms_norm_eps=1e-5, rope_theta=10000.0,
                  tie_word_embeddings=True, attention_bias=False, mlp_bias=False, torch_dtype="bfloat16",
                  bos_token_id=None, eos_token_id=None)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(config, f, indent=2)
        f.write("\n")


def train(name):
    folder = os.path.join(HERE, name)
    os.makedirs(folder, exist_ok=True)
    torch.manual_seed(SEED)
    draw = random.Random(SEED)
    text, held_out = pieces()
    with open(os.path.join(HERE, "heldout.txt"), "wb") as f:
        f.write(held_out)
    model = Model(MODELS[name])
    print(name, sum(p.numel() for p in model.parameters()), "parameters", len(text), "bytes of text", flush=True)
    decay = [p for p in model.parameters() if p.dim() == 2]
    rest = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW([dict(params=decay, weight_decay=0.1), dict(params=rest, weight_decay=0.0)],
                                  lr=1e-3, betas=(0.9, 0.95), fused=True)
    start, done, step, seen, curve = time.time(), 0.0, 0, 0, open(os.path.join(folder, "loss.csv"), "w")
    curve.write("step,bytes,sequence,training_bits_per_byte,held_out_bits_per_byte\n")
    losses = []
    while done < 1.0:
        stage, past = 0, 0.0
        while stage + 1 < len(STAGES) and done >= past + STAGES[stage][2]:
            past, stage = past + STAGES[stage][2], stage + 1
        length, rows, _ = STAGES[stage]
        rate = 3e-3 * min(1.0, (step + 1) / 100) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * done)))
        for group in optimizer.param_groups:
            group["lr"] = rate
        x, y = batch(text, rows, length, draw)
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(x)
        loss = F.cross_entropy(logits.float().view(-1, 256), y.reshape(-1))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step, seen = step + 1, seen + rows * length
        losses.append(loss.item() / math.log(2))
        done = step / STEPS[name]
        if step % 100 == 0 or done >= 1.0:
            bpb = bits_per_byte(model, held_out, 1024, 32768 if done < 1 else 1 << 30)
            curve.write(f"{step},{seen},{length},{sum(losses) / len(losses):.4f},{bpb:.4f}\n")
            curve.flush()
            print(f"step {step} bytes {seen} {seen / (time.time() - start):.0f}/s loss {sum(losses) / len(losses):.3f} "
                  f"held out {bpb:.3f}  {done * 100:.0f} %", flush=True)
            losses = []
        if step % 500 == 0:
            save(model, name)
            print("recall at 200, 1000, 2000:", [recall(model, held_out, n, 20, 1) for n in (200, 1000, 2000)],
                  flush=True)
    save(model, name)
    model.to(torch.bfloat16).to(torch.float32)  # the weights as shipped
    print("as shipped: held out", bits_per_byte(model, held_out, 2048, 1 << 30),
          "recall at 200, 500, 1000, 2000:", [recall(model, held_out, n, 100, 2) for n in (200, 500, 1000, 2000)])


if __name__ == "__main__":
    train(sys.argv[1])
