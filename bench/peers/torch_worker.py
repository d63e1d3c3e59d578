"""PyTorch + transformers as one peer: a process that loads the model once and answers a line of JSON per measurement.
    {"phase": "decode", "tokens": 1024, "batch": 1, "steps": 8}
Answers {"ms": ..., "peak_bytes": ..., "kv_bytes_per_token": ...}; ms is a token's step, or the whole prefill."""
import json
import sys
import time

import torch
import transformers

CHUNK = 512


def resident_peak():
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) * 1024 for line in f if line.startswith("VmHWM"))


def forget_peak():
    with open("/proc/self/clear_refs", "w") as f:
        f.write("5")


def cache_bytes(cache):
    return sum(t.numel() * t.element_size() for layer in cache.layers for t in (layer.keys, layer.values))


def fill(model, tokens, cache):
    for at in range(0, tokens.shape[1], CHUNK):
        logits = model(tokens[:, at:at + CHUNK], past_key_values=cache, use_cache=True, logits_to_keep=1).logits
    return logits


def measure(model, phase, count, batch, steps):
    vocab = model.config.vocab_size
    tokens = torch.randint(0, vocab, (batch, count), generator=torch.Generator().manual_seed(1))
    cache = transformers.DynamicCache(config=model.config)
    forget_peak()
    if phase == "prefill":
        start = time.perf_counter()
        fill(model, tokens, cache)[0, -1].argmax().item()
        ms = (time.perf_counter() - start) * 1e3
    elif phase in ("logits all", "logits last"):
        start = time.perf_counter()
        model(tokens, past_key_values=cache, use_cache=True, logits_to_keep=0 if phase == "logits all" else 1)
        ms = (time.perf_counter() - start) * 1e3
    elif phase == "decode without cache":
        times = []
        for _ in range(steps):
            start = time.perf_counter()
            following = model(tokens, use_cache=False, logits_to_keep=1).logits[:, -1].argmax(-1, keepdim=True)
            times.append(time.perf_counter() - start)
            tokens = torch.cat((tokens, following), 1)
        ms, cache = sorted(times)[len(times) // 2] * 1e3, None
    else:
        following, times = fill(model, tokens, cache)[:, -1].argmax(-1, keepdim=True), []
        for _ in range(steps + 1):
            start = time.perf_counter()
            following = model(following, past_key_values=cache, use_cache=True).logits[:, -1].argmax(-1, keepdim=True)
            times.append(time.perf_counter() - start)
        ms = sorted(times[1:])[steps // 2] * 1e3
    held = cache_bytes(cache) // (batch * cache.get_seq_length()) if cache is not None else None
    return dict(ms=ms, peak_bytes=resident_peak(), kv_bytes_per_token=held)


def main():
    torch.set_num_threads(int(sys.argv[2]))
    model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16).eval()
    print(json.dumps(dict(version=f"torch {torch.__version__}, transformers {transformers.__version__}")), flush=True)
    with torch.inference_mode():
        for line in sys.stdin:
            ask = json.loads(line)
            print(json.dumps(measure(model, ask["phase"], ask["tokens"], ask["batch"], ask["steps"])), flush=True)


if __name__ == "__main__":
    main()
