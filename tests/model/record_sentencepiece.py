"""Train a small SentencePiece model and record its vocabulary and encodings of the corpus.

``python -m tests.model.record_sentencepiece``, with the sentencepiece package; writes
tests/model/data/sentencepiece.json. The training options are those of Llama 2's tokenizer.
"""

from __future__ import annotations

import io
import json
from pathlib import Path

import sentencepiece

from tests.model.corpus import SURROGATES, WRITTEN, generated

DATA = Path(__file__).parent / "data" / "sentencepiece.json"
VOCAB = 600


def main() -> None:
    # Only ASCII and the Greek line are learnt, so that other scripts fall back on bytes.
    training = [t for t in WRITTEN if t.strip() and (t.isascii() or t.startswith("Γ"))] * 3
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(training),
        model_writer=out,
        model_type="bpe",
        vocab_size=VOCAB,
        byte_fallback=True,
        split_digits=True,
        character_coverage=1.0,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True,
        add_dummy_prefix=True,
        minloglevel=2,
    )
    sp = sentencepiece.SentencePieceProcessor(model_proto=out.getvalue())
    pieces = [
        {
            "piece": sp.id_to_piece(i),
            "score": sp.get_score(i),
            "type": 2 if sp.is_unknown(i) else 3 if sp.is_control(i) else 6 if sp.is_byte(i) else 1,
        }
        for i in range(sp.get_piece_size())
    ]
    # The literal U+2581 is a space to SentencePiece and a character of its own to nobody.
    texts = [t for t in (*WRITTEN, *generated()) if t not in SURROGATES]
    cases = [{"text": t, "ids": sp.encode(t)} for t in texts]
    origin = {"reference": f"sentencepiece {sentencepiece.__version__}", "vocab_size": VOCAB}
    parts = (",\n".join(json.dumps(x) for x in part) for part in (pieces, cases))
    text = '{{"origin": {},\n"pieces": [\n{}\n],\n"cases": [\n{}\n]}}\n'.format(json.dumps(origin), *parts)
    DATA.write_text(text)


if __name__ == "__main__":
    main()
