#!/usr/bin/env python3
"""Golden tokenizers: small vocabularies with the settings of published ones, and the ids that the reference gives.

    pip install tokenizers==0.23.3
    tests/golden/make_tokenizer.py             # writes tests/golden/tokenizers/
    tests/golden/make_tokenizer.py FOLDER...   # ids of the same texts by real vocabularies, FOLDER/tokenizer.json, into
                                               # FOLDER/ids.json: KVLAB_TOKENIZERS=FOLDER:FOLDER make TEST=tokenizer test

tokenizers/<name>/tokenizer.json
    qwen2     Qwen2.5's pattern, NFC, single digits
    llama3    Llama 3's pattern, no normalizer, digits by three, ignore_merges, <|begin_of_text|> before a whole text
    smollm2   Digits and then ByteLevel's own pattern
    bytes     no merges: the id of a byte is its value (the models of data/tiny)
tokenizers/<name>/ids.json: for each text of texts.json its ids with what the post-processor adds, and their decoded text
tokenizers/texts.json: the texts, each of them nasty in its way

Each vocabulary is trained on texts.json and PROSE; trained files are kept, since trainers order equals differently.
"""
import json
import sys
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = Path(__file__).parent / "tokenizers"
MERGES = 400

QWEN2 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
         r"|\s+(?!\S)|\s+")
LLAMA3 = QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")

PROSE = """A cache keeps the keys and values of all tokens that were read, so that the next token costs one row and not
the whole text again. It grows with the length of the text, with the number of layers and with the number of heads.
What it costs can be counted before anything runs: two tensors for each layer, one row for each token and head.
Then we'll measure it, and we've said before what we're going to see; if the two differ, that's the interesting part.
Bộ nhớ đệm giữ khóa và giá trị của mọi từ đã đọc. Кэш хранит ключи и значения всех прочитанных слов. 缓存保存所有已读词的键和值。
""" * 4

TEXTS = [
    "", " ", "a", "  ", "   a", "a   ", "Hello, world!", "Hello world", " Hello  World   !",
    # languages, and the same words in decomposed form (NFD), with marks in and out of canonical order
    "Tiếng Việt: Xin chào, tôi là một mô hình ngôn ngữ. Đường phố Hà Nội đông đúc.",
    "Tie\u0302\u0301ng Vie\u0323\u0302t, Vie\u0302\u0323t, a\u0323\u0302 a\u0302\u0323 o\u031b\u0309 u\u031b\u0323",
    "Съешь же ещё этих мягких французских булок, да выпей чаю. Й и\u0306 ё е\u0308",
    "今日は良い天気ですね。カタカナと漢字、ｶﾅ、か\u3099。",
    "你好，世界！缓存的大小可以预先计算。𠀋𠮷", "한국어 각각 \u1100\u1161\u11a8 가\u11a8", "สวัสดีชาวโลก ไม่มีช่องว่าง",
    "שלום עולם, مرحبا بالعالم ٣٤٥ ۱۲۳", "नमस्ते दुनिया क्षि १२३", "Ἀρχιμήδης ᾽Αθῆναι \u03b1\u0313\u0342\u0345 ᾆ",
    "Straße İstanbul ı ſ K Å Å A\u030a ﬁ ﬂ Ⅷ ½ ² x² H₂O ①②③", "Ǖ U\u0308\u0304 \u1e9b\u0323 \u0344 \u2126 \u212b",
    "a\u0301\u0323\u0301\u0323\u0301\u0323" + "\u0315\u0300\u05ae\u0316" * 20,
    # emoji: joined, with skin, flags, keycaps, lone joiners and selectors
    "👩‍👩‍👧‍👦 👍🏽👍 🏳️‍🌈🇻🇳🇷🇺 1️⃣ ☕️ \u200d\ufe0f ✈ 🫠🧑🏿‍🚀",
    # digits
    "0 12 123 1234 12345 1234567890 3.14159 1,000,000 0x1F 1e-9 v1.2.3 192.168.0.1 2026-11-30",
    "١٢٣٤٥٦ १२३४५६ ⅠⅡⅢⅣ ½⅓¼ 𝟘𝟙𝟚𝟛",
    # contractions
    "I'm you're he's we'll they've I'd don't can't", "I'M YOU'RE HE'S WE'LL THEY'VE I'D DON'T CAN'T",
    "'s'S't'T're'RE'm'M'll'LL'd'D'sa 'ſ 'Ll ’s ''s 'x", "o'clock 'tis rock'n'roll",
    # code
    "#include <stdio.h>\n\nint main(int argc, char **argv)\n{\n\treturn printf(\"%d\\n\", argc) < 0;\n}\n",
    "def f(x):\n    if x == 1:\n        return [i**2 for i in range(10)]  # squares\n    return None\n",
    "for(;;){a[i]+=b->c.d<<2&~0xFF;}//---===>>>!=<=\n/* ** */ @#$%^&*()_+-={}[]|\\:;\"'<>,.?/`~",
    "https://example.org/a?b=c&d=%20e#f user@example.org C:\\dir\\file.txt ~/.x_y-z CamelCaseWord snake_case_word",
    # white space of all kinds
    "a\tb\t\tc\n\nd\r\n\r\ne\rf \n g\n \n\n  h   \n   i\t \t", "\n", "\r\n", "\n\n\n", " \n \n ", "\t\t\tx", "x \n", "x  \ny",
    "a\u00a0b\u00a0\u00a0c\u2003d\u3000e\u2028f\u2029g\u0085h\u180ei\u200bj\u202fk\u1680l\u000bm\u000cn",
    " " * 200 + "x" + " " * 77 + "\n" + "\t" * 50 + "y" + "\n" * 40, "word" + " " * 17 + "'s" + " " * 3 + "1",
    # control characters, unassigned, private and the ends of planes
    "a\x00b\x01\x02\x1b[31mred\x1b[0m\x7f\x80\x9f\xad", "\ufeffBOM \ufffe\uffff \ue000 \U0010fffd \U000e0001\u0378",
    "\x1c\x1d\x1e\x1f a", "\u0301 starts with a mark", "\u200d", "\u0300" * 70,
    # special tokens, parts of them, and what only looks like them
    "<|im_start|>system\nYou are.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n", "<|endoftext|>", "<|endoftext|><|endoftext|>",
    "a<|endoftext|>b <|endoftext|> c", "<|begin_of_text|>Hi<|eot_id|>", "<|im_start", "<|im_start|", "<<|im_start|>>",
    "<|IM_START|> <| im_start |>", "<|endoftext|>x", "<tool_call>{\"a\": 1}</tool_call>", "<tool_call><tool_cal",
    "x<+>y<++>z<+++>", "caf\u00e9! cafe\u0301! <e\u0302\u0303> <\u1ec5>", "e<|endoftext|>\u0301", "' <|im_end|>s don<|im_end|>'t",
    # long words
    "a" * 300, "ab" * 200, "abc" * 100 + "'s", "the" * 90 + "cache" * 30, "Donaudampfschifffahrtsgesellschaftskapitän" * 3,
    "—" * 60 + "…" * 31 + "=" * 100 + "-" * 79 + "\n", PROSE[:700],
]

MARKS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|eot_id|>"]


def split(pattern):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def train(pre_tokenizer, normalizer=None):
    tokenizer = Tokenizer(models.BPE())
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=256 + MERGES, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                  show_progress=False)
    tokenizer.train_from_iterator(TEXTS + [PROSE], trainer)
    return tokenizer


def qwen2():
    tokenizer = train(split(QWEN2), normalizers.NFC())
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.add_special_tokens([AddedToken(mark, normalized=False, special=True) for mark in MARKS[:3]])
    # not special; the last two are looked for after NFC. Letters of Latin-1 in an added token come back from the
    # reference as single bytes, so there is none
    tokenizer.add_tokens([AddedToken("<tool_call>", normalized=False), AddedToken("<+>", normalized=False),
                          AddedToken("<++", normalized=False), AddedToken("<++>", normalized=False),
                          AddedToken("<\u1ec5>", normalized=True), AddedToken("cafe", normalized=True)])
    return tokenizer


def llama3():
    content = json.loads(train(split(LLAMA3)).to_str())
    content["model"]["ignore_merges"] = True
    # a word that no merges lead to, as Llama 3 has some: with ignore_merges it is found all the same
    content["model"]["vocab"]["\u0120starts"] = 256 + MERGES
    tokenizer = Tokenizer.from_str(json.dumps(content))
    tokenizer.add_special_tokens([AddedToken(mark, normalized=False, special=True) for mark in MARKS[3:]])
    begin = tokenizer.token_to_id(MARKS[3])
    tokenizer.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single=f"{MARKS[3]} $A", pair=f"{MARKS[3]} $A {MARKS[3]} $B:1",
                                      special_tokens=[(MARKS[3], begin)])])
    return tokenizer


def smollm2():
    tokenizer = train(pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                               pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]))
    tokenizer.add_special_tokens([AddedToken(mark, normalized=False, special=True) for mark in MARKS[:3]])
    return tokenizer


def by_value():
    """bytes_to_unicode of GPT-2, in the order of the bytes."""
    own = [b for b in range(256) if 0x21 <= b <= 0x7e or 0xa1 <= b <= 0xac or b >= 0xae]
    others = iter(range(0x100, 0x200))
    return {chr(b if b in own else next(others)): b for b in range(256)}


def single_bytes():
    tokenizer = Tokenizer(models.BPE(vocab=by_value(), merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def write(path, content):
    """An object on one line, a list with a line for each of its parts."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(part, ensure_ascii=False) for part in (content if isinstance(content, list) else [content])]
    text = "[\n" + ",\n".join(lines) + "\n]" if isinstance(content, list) else lines[0]
    path.write_text(text + "\n", encoding="utf-8")


def write_ids(path, tokenizer):
    encoded = [tokenizer.encode(text).ids for text in TEXTS]
    write(path, [{"ids": ids, "text": tokenizer.decode(ids, skip_special_tokens=True)} for ids in encoded])


def main():
    for folder in map(Path, sys.argv[1:]):
        write_ids(folder / "ids.json", Tokenizer.from_file(str(folder / "tokenizer.json")))
    if sys.argv[1:]:
        return
    write(HERE / "texts.json", TEXTS)
    for name, make in (("qwen2", qwen2), ("llama3", llama3), ("smollm2", smollm2), ("bytes", single_bytes)):
        path = HERE / name / "tokenizer.json"
        if not path.exists():
            write(path, json.loads(make().to_str()))
        write_ids(path.with_name("ids.json"), Tokenizer.from_file(str(path)))


main()
