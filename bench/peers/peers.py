"""kvlab beside the engines that people would use instead: same shape, threads, number type and machine, in one run, every
round measuring all of them in turn. Writes peers.csv. See README.md here.

    make bench-peers                                     # Qwen2.5-0.5B
    make bench-peers MODEL=qwen2.5-1.5b ARGS='--rounds 1'
"""
import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile

COLUMNS = ("peer,version,model,phase,tokens,batch,tokens_per_s,effective_gbps,percent_of_read_ceiling,peak_bytes,"
           "kv_bytes_per_token,kvlab_ratio,rounds").split(",")
STEPS = 8


def run(command, **more):
    """(stdout, most resident bytes) of a command. Until it has begun, a child counts as large as this process: which
    therefore loads nothing large (models.py is a process of its own)."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(command, stdout=out, stderr=err, text=True, **more)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        if process.returncode not in (0, 1):
            sys.exit(f"peers: {' '.join(command)}: status {process.returncode}: {err.read()[-2000:]}")
        return out.read(), usage.ru_maxrss * 1024


class Kvlab:
    name = "kvlab"

    def __init__(self, args):
        self.args = args
        self.version = run([args.kvlab, "--version"])[0].split()[-1]

    def measure(self, phase, tokens, batch):
        experiment, more = {
            "decode": ("tpot", ["--batch", str(batch), "--reps", "4"]),
            "prefill": ("phases", ["--new-tokens", "2", "--reps", "1"]),
        }.get(phase, (None, None))
        if experiment is None:
            return None
        with tempfile.TemporaryDirectory() as folder:
            _, peak = run([self.args.kvlab, "run", experiment, "--model", self.args.model, "--device", "cpu", "--dtype",
                           "bf16", "--threads", str(self.args.threads), "--contexts", str(tokens), "--out", folder] + more)
            with open(os.path.join(folder, experiment + ".csv")) as f:
                row = next(csv.DictReader(f))
        if phase == "prefill":
            return dict(ms=float(row["ttft_ms"]), peak_bytes=peak)
        moved = int(row["weight_bytes"]) + int(row["kv_bytes"])
        return dict(ms=float(row["tpot_ms_p50"]), peak_bytes=peak, moved_bytes=moved,
                    read_gbps=moved / float(row["predicted_ms"]) / 1e6)


class Transformers:
    name = "transformers"

    def __init__(self, args, folder):
        self.process = subprocess.Popen([sys.executable, os.path.join(os.path.dirname(__file__), "torch_worker.py"),
                                         folder, str(args.threads)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True)
        self.version = json.loads(self.process.stdout.readline())["version"]

    def measure(self, phase, tokens, batch):
        self.process.stdin.write(json.dumps(dict(phase=phase, tokens=tokens, batch=batch, steps=STEPS)) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            sys.exit("peers: the transformers process ended; see above")
        return json.loads(line)


class LlamaCpp:
    name = "llama.cpp"

    def __init__(self, args, folder, path):
        self.args, self.folder, self.path, self.version = args, folder, path, args.llama_version

    def measure(self, phase, tokens, batch):
        threads = ["-m", self.path, "-t", str(self.args.threads)]
        if phase == "decode" and batch > 1:
            text, peak = run([os.path.join(self.folder, "bin", "llama-batched-bench")] + threads +
                             ["-c", str(batch * (tokens + STEPS + 1)), "-npp", str(tokens), "-ntg", str(STEPS), "-npl",
                              str(batch), "--output-format", "jsonl"])
            row = next(json.loads(line) for line in text.splitlines() if line.startswith("{"))
            return dict(ms=batch / row["speed_tg"] * 1e3, peak_bytes=peak)
        if phase not in ("decode", "prefill"):
            return None
        what = ["-p", "0", "-n", str(STEPS), "-d", str(tokens)] if phase == "decode" else ["-p", str(tokens), "-n", "0"]
        text, peak = run([os.path.join(self.folder, "bin", "llama-bench")] + threads + what + ["-r", "1", "-o", "json"])
        row = json.loads(text)[0]
        return dict(ms=(tokens if phase == "prefill" else 1) / row["avg_ts"] * 1e3, peak_bytes=peak)


def settings(args):
    for tokens in args.prefill:
        yield "prefill", tokens, 1
    for tokens in args.depths:
        yield "decode", tokens, 1
    for batch in args.batch:
        yield "decode", 128, batch
    yield "decode without cache", 128, 1
    yield "logits all", 1024, 1
    yield "logits last", 1024, 1


def summarise(args, peers, phase, tokens, batch, measured):
    """The rows of one setting: medians over the rounds. measured: {peer name: [answers]}."""
    kvlab = measured.get("kvlab")
    moved = kvlab[0].get("moved_bytes") if kvlab else None
    ceiling = statistics.median(a["read_gbps"] for a in kvlab) if moved else None
    for peer in peers:
        answers = measured.get(peer.name)
        if not answers:
            continue
        ms = statistics.median(a["ms"] for a in answers)
        made = tokens if phase in ("prefill", "logits all", "logits last") else batch
        row = dict(peer=peer.name, version=peer.version, model=args.model, phase=phase, tokens=tokens, batch=batch,
                   tokens_per_s=f"{made / ms * 1e3:.2f}", peak_bytes=max(a["peak_bytes"] for a in answers),
                   kv_bytes_per_token=answers[0].get("kv_bytes_per_token") or "", rounds=len(answers))
        if moved:
            row["effective_gbps"] = f"{moved / ms / 1e6:.2f}"
            row["percent_of_read_ceiling"] = f"{moved / ms / 1e6 / ceiling * 100:.1f}"
        if kvlab:
            ratios = [other["ms"] / own["ms"] for other, own in zip(answers, kvlab)]  # of the same round
            row["kvlab_ratio"] = f"{statistics.median(ratios):.2f}"
        yield row


def integers(text):
    return [int(part) for part in text.split(",") if part]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kvlab", default="build/kvlab")
    parser.add_argument("--data", default="data")
    parser.add_argument("--work", default="build/peers", help="where setup put the peers, and models are made")
    parser.add_argument("--model", default="qwen2.5-0.5b")
    parser.add_argument("--out", default="results")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prefill", type=integers, default=[512, 2048])
    parser.add_argument("--depths", type=integers, default=[128, 1024, 4096, 8192])
    parser.add_argument("--batch", type=integers, default=[2, 4, 8])
    args = parser.parse_args()
    args.llama_version = "llama-cpp-python 0.3.36"

    folder, path = (os.path.join(args.work, args.model), os.path.join(args.work, args.model + ".gguf"))
    run([sys.executable, os.path.join(os.path.dirname(__file__), "models.py"),
         os.path.join(args.data, "models", args.model + ".json"), folder, path])
    peers = [Kvlab(args), Transformers(args, folder), LlamaCpp(args, os.path.join(args.work, "llama.cpp"), path)]
    os.makedirs(args.out, exist_ok=True)
    with open(os.path.join(args.out, "peers.csv"), "w", newline="") as f:
        writer = csv.DictWriter(f, COLUMNS)
        writer.writeheader()
        for phase, tokens, batch in settings(args):
            measured = {}
            for _ in range(args.rounds):
                for peer in peers:
                    answer = peer.measure(phase, tokens, batch)
                    if answer:
                        measured.setdefault(peer.name, []).append(answer)
            for row in summarise(args, peers, phase, tokens, batch, measured):
                writer.writerow(row)
                f.flush()
                print("  ".join(f"{row.get(c, '')}" for c in COLUMNS if c not in ("version", "model")), flush=True)


if __name__ == "__main__":
    main()
