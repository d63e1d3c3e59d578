#!/usr/bin/env python3
"""Makes the golden files beside this script: small random models and what the reference (transformers) says of them.

    python3 -m venv /tmp/golden && /tmp/golden/bin/pip install -r tests/golden/requirements.txt
    /tmp/golden/bin/python tests/golden/make_golden.py [case ...]

Nothing is downloaded: a model is its config plus seeded random weights. The same versions give the same bytes again.
Each case is a folder that looks like a published model, so that kvlab reads it as it would read a user's:

    config.json          as save_pretrained writes it (rope_parameters, dtype), or in the form of the published files
                         (rope_theta, rope_scaling, torch_dtype) where the case says `published`
    model*.safetensors   the weights, in the case's stored type
    golden.json          tokens: PROMPT_TOKENS of a prompt, then what greedy decoding in f32 made of it
    golden.safetensors   logits.f32, logits.f16, logits.bf16 [tokens][vocab]: logits of every position of `tokens`,
                         computed by the reference in that type (weights, activations and logits), attention eager

A forward pass over the first PROMPT_TOKENS and one decode step per token after them must give exactly these rows. The
reference makes all of them in one pass without a cache, so that no cache of its own can be wrong in the same way.
"""

import json
import pathlib
import shutil
import sys

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen2Config
from transformers.utils import logging

PROMPT_TOKENS, NEW_TOKENS, VARIED_TOKENS = 64, 16, 8
TYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}

# Small, but every count differs from its neighbours, so that two swapped dimensions cannot cancel. The large epsilon
# shows where it is left out; at the usual 1e-6 its absence would drown in rounding.
SMALL = dict(hidden_size=64, intermediate_size=88, vocab_size=160, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=256, rms_norm_eps=1e-3, tie_word_embeddings=False,
             bos_token_id=None, eos_token_id=None)
# Trained on 32 positions: with head_dim 16 one wavelength stays, one is blended, the others are slowed, and half of
# the prompt lies past position 32.
LLAMA3 = dict(rope_type="llama3", rope_theta=10000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=32)


def rope(theta):
    return dict(rope_type="default", rope_theta=theta)


# name: (config class, what differs from SMALL, how it is stored)
CASES = {
    "qwen2-tied": (Qwen2Config, dict(tie_word_embeddings=True, rope_parameters=rope(1e6)), {}),
    "qwen2-untied": (Qwen2Config, dict(rope_parameters=rope(1e6)), dict(shard="100KB")),
    "llama-mha": (LlamaConfig, dict(num_key_value_heads=4), {}),
    "llama-gqa": (LlamaConfig, dict(num_attention_heads=8, num_key_value_heads=2), dict(stored="bf16")),
    "llama-mqa": (LlamaConfig, dict(num_key_value_heads=1, tie_word_embeddings=True), dict(stored="f16")),
    "llama-rope-llama3": (LlamaConfig, dict(rope_parameters=LLAMA3), {}),
    "llama-bias": (LlamaConfig, dict(attention_bias=True, mlp_bias=True), {}),
    # 24 != 64 / 4, and the heads together are wider than the model.
    "llama-head-dim": (LlamaConfig, dict(head_dim=24, rope_parameters=rope(5e5)), {}),
    # No size is a multiple of a vector register, a row of a 16-bit weight starts at an odd multiple of two bytes.
    "llama-odd": (LlamaConfig, dict(hidden_size=45, num_attention_heads=3, num_key_value_heads=1, head_dim=14,
                                    intermediate_size=77, vocab_size=163, attention_bias=True, mlp_bias=True), {}),
    # A window shorter than the prompt, in both layers: position p sees (p - 7, p].
    "mistral-window": (MistralConfig, dict(sliding_window=7), {}),
    # Layers 0 and 1 see everything, 2 and 3 a window.
    "qwen2-window": (Qwen2Config, dict(num_hidden_layers=4, intermediate_size=56, use_sliding_window=True,
                                       sliding_window=9, max_window_layers=2), {}),
    # The two configs above whose keys changed most since the models were published.
    "published-rope": (LlamaConfig, dict(rope_parameters=LLAMA3), dict(published=True)),
    "published-window": (Qwen2Config, dict(num_hidden_layers=3, use_sliding_window=True, sliding_window=11,
                                           max_window_layers=1, tie_word_embeddings=True), dict(published=True)),
}


def randomise(model, generator):
    """Norms around 1 and biases around 0, but far enough from both that one left out shows; logits with real spread.

    0.9 is as large as the reference itself allows: at 1.2 its own rounding in bf16 reaches 2e-2 of the logits, and
    nothing could be told from a comparison with it. Embeddings are small enough that the layers outweigh them;
    otherwise a tied model only repeats its last token."""
    for name, parameter in model.named_parameters():
        shape = parameter.shape
        if "norm" in name:
            value = 0.5 + torch.rand(shape, generator=generator)
        elif name.endswith("bias"):
            value = 0.1 * torch.randn(shape, generator=generator)
        elif "embed_tokens" in name:
            value = 0.1 * torch.randn(shape, generator=generator)
        else:
            value = 0.9 * torch.randn(shape, generator=generator) / shape[1] ** 0.5
        parameter.data.copy_(value)


def as_published(path):
    """Rewrites config.json with the keys that published models have: what transformers 4 wrote, and no more."""
    config = json.loads(path.read_text())
    parameters = config.pop("rope_parameters")
    config["rope_theta"] = parameters.pop("rope_theta")
    if parameters["rope_type"] != "default":
        config["rope_scaling"] = parameters
    config["torch_dtype"] = config.pop("dtype")
    for key in ("layer_types", "head_dim", "transformers_version"):
        config.pop(key, None)
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def logits_of(model, tokens):
    with torch.no_grad():
        return model(torch.tensor([tokens]), use_cache=False).logits[0].contiguous()


def continuation(model, prompt):
    tokens = list(prompt)
    for _ in range(NEW_TOKENS):
        tokens.append(logits_of(model, tokens)[-1].argmax().item())
    return tokens[len(prompt):]


def relative(a, b):
    return ((a.double() - b.double()).norm() / b.double().norm()).item()


def make(name, folder):
    config_class, changes, how = CASES[name]
    stored = TYPES[how.get("stored", "f32")]
    config = config_class(**{**SMALL, **changes})

    # Many random models soon repeat one token, and decode steps that are all alike show little: take the first seed
    # whose continuation is varied.
    for seed in range(1000):
        generator = torch.Generator().manual_seed(sum(name.encode()) * 1000 + seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        randomise(model, generator)
        prompt = torch.randint(config.vocab_size, (PROMPT_TOKENS,), generator=generator).tolist()
        if len(set(continuation(model, prompt))) >= VARIED_TOKENS:
            break

    shutil.rmtree(folder, ignore_errors=True)
    model.to(stored).save_pretrained(folder, max_shard_size=how.get("shard", "1GB"))
    (folder / "generation_config.json").unlink(missing_ok=True)
    if how.get("published"):
        as_published(folder / "config.json")

    # From here on only what lies in the folder counts, as for any other reader.
    def load(dtype):
        return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()

    tokens = prompt + continuation(load(torch.float32), prompt)
    logits = {kind: logits_of(load(dtype), tokens) for kind, dtype in TYPES.items()}
    save_file({f"logits.{kind}": value for kind, value in logits.items()}, folder / "golden.safetensors")
    golden = dict(prompt_tokens=PROMPT_TOKENS, tokens=tokens)
    (folder / "golden.json").write_text(json.dumps(golden) + "\n")

    # How far the reference is from exact arithmetic itself: no tolerance may be smaller than that.
    exact = {kind: logits_of(load(dtype).double(), tokens) for kind, dtype in TYPES.items()}
    own = "  ".join(f"{kind} {relative(logits[kind], exact[kind]):.1e}" for kind in TYPES)
    top = logits["f32"].topk(2).values
    for path in folder.iterdir():
        path.chmod(0o644)  # safetensors writes for the owner only
    size = sum(path.stat().st_size for path in folder.iterdir())
    print(f"{name:18} spread {logits['f32'].std():.2f}  smallest top-2 gap {(top[:, 0] - top[:, 1]).min():.1e}  "
          f"seed {seed}  "
          f"reference's own error {own}  {size} bytes", flush=True)


if __name__ == "__main__":
    logging.disable_progress_bar()
    torch.set_num_threads(1)  # sums in one order: the same bytes on every run
    here = pathlib.Path(__file__).resolve().parent
    for case in sys.argv[1:] or CASES:
        make(case, here / case)
