"""Texts that tokenizers disagree about: what the recorded and the live comparisons run over."""

# ruff: noqa: RUF001 (characters that look like others are the point)

from __future__ import annotations

import random

WRITTEN = (
    "",
    " ",
    "  ",
    "   ",
    "\t",
    "\n",
    "\n\n",
    "\n\n\n\t\t\n",
    "\r\n",
    " \n \n",
    "trailing space ",
    "trailing newline\n",
    " leading space",
    "    four spaces of indentation",
    "a  b   c    d     e",
    "Hello, world!",
    "hello",
    "HELLO World hElLo",
    "I'm you're he's it'll we've I'd can't DON'T I'M '' 'x",
    "I’m you’re typographic ‘quotes’ “and” such",
    "0",
    "12",
    "123",
    "1234567890",
    "3.14159 1,000,000 1e-5 0xff 10% $42.00 2024-01-31T23:59:59Z",
    "½ ² ³ ⅷ ٣ १२३ １２３ 𝟙𝟚",
    "def f(x):\n    return x**2 + 1  # square\n\nif __name__ == '__main__':\n\tprint(f(3))\n",
    '{"a": [1, 2, {"b": null}], "c": "\\u00e9\\n"}',
    '<div class="x">&amp; <br/></div>',
    "https://example.org/a_b-c?d=e&f=%20#g user@example.org",
    "!!! ??? ... --- *** ### ~~~ @@@ (([[{{}}]]))",
    "a.b,c;d:e/f\\g|h",
    "snake_case camelCase PascalCase kebab-case SCREAMING_SNAKE",
    "naïve café résumé Ångström Œuvre ß ÿ",
    "e\u0301 vs é; n\u0303 vs ñ; a\u0308\u0301\u0323 stacked",
    "Zalgo: h\u0335\u0321\u0352e\u0338\u0327\u034al\u0336\u0322\u0301lo",
    "Привет, как дела? Ёлка",
    "Γειά σου Κόσμε",
    "שלום עולם",
    "مرحبا بالعالم ١٢٣",
    "नमस्ते दुनिया",
    "สวัสดีชาวโลก",
    "你好，世界。今天天气很好！",
    "こんにちは世界。カタカナとひらがな",
    "안녕하세요 세계",
    "混合 text 与 English 123 和 emoji 😀",
    "😀😃😄 👍🏽 👨‍👩‍👧‍👦 🏳️‍🌈 🇫🇷🇩🇪 ☕️ ❤",
    "\u200bzero\u200bwidth\u200d \ufeffbom \u00a0nbsp\u00a0\u2003em\u3000ideographic",
    "\u0000nul \u0001\u001b[31mcontrol\u007f",
    "\u2028line\u2029paragraph\u0085next",
    "▁lower▁block ▁ ▁▁",
    "Ġ Ċ ĉ look like byte-level tokens",
    "<0x0A> <0xFF> look like byte tokens",
    "𐍈 𠜎 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 ꙮ",
    "ﬁ ﬂ ligatures ™ © ® € £ ¥",
    "∀x∈ℝ: ⌈x⌉ = −⌊−x⌋ ∑∏∫ √2 ≠ ≤",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "========================================",
    "antidisestablishmentarianism pneumonoultramicroscopicsilicovolcanoconiosis",
    "\ufffd replacement \ufffd\ufffd",
)
SPECIAL = (
    "{eos}",
    "before{eos}after",
    "before {eos} after",
    "{bos}system\nBe brief.{eos}\n{bos}user\nHi{eos}\n{bos}assistant\n",
    "{eos}{eos}{bos}",
    "almost {eos_start} but not",
)
SURROGATES = ("lone \ud800 high", "lone \udc00 low", "\ud83d\ude00 paired", "\udc00\ud800 swapped")

_BLOCKS = (
    (0x20, 0x7E), (0x20, 0x7E), (0x20, 0x7E), (0xA0, 0x17F), (0x300, 0x36F), (0x370, 0x3FF), (0x400, 0x4FF),
    (0x5D0, 0x5EA), (0x620, 0x66F), (0x900, 0x97F), (0xE01, 0xE5B), (0x2000, 0x206F), (0x2190, 0x21FF),
    (0x3040, 0x30FF), (0x4E00, 0x9FA5), (0xAC00, 0xD7A3), (0x1F300, 0x1F64F), (0x1D400, 0x1D7FF),
)  # fmt: skip
_FREQUENT = (" ", " ", "  ", "\n", "\t", "'s", "'LL", "0", "7", "42", ".", ",", "_", "(", "\r\n", "the", "Ing", "é")


def generated(count: int = 150, seed: int = 0) -> list[str]:
    """``count`` short texts of characters from many blocks, the same for the same seed."""
    rng = random.Random(seed)
    texts = []
    for _ in range(count):
        blocks = rng.sample(_BLOCKS, 3)
        parts = [
            rng.choice(_FREQUENT) if rng.random() < 0.4 else chr(rng.randint(*rng.choice(blocks)))
            for _ in range(rng.randint(1, 24))
        ]
        texts.append("".join(parts))
    return texts


def texts(bos: str, eos: str) -> list[str]:
    """The whole corpus, with a model's special tokens in it."""
    special = [t.format(bos=bos, eos=eos, eos_start=eos[:-1]) for t in SPECIAL]
    return [*WRITTEN, *special, *SURROGATES, *generated()]


def as_utf8(text: str) -> bytes:
    """What a reference that takes bytes is given: pairs of surrogates joined, lone ones replaced by U+FFFD."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").encode()
