"""The race: two measured runs, plain and speculative, as assets/js/race_view.js replays them."""

from __future__ import annotations

import json
import uuid

from specviz.comparison import Lap
from specviz.ui.facts import plural
from specviz.ui.report import Record, is_noisy, pays


def lanes(record: Record) -> str:
    """The repeat that is nearest the median; "" where nothing was measured."""
    timed = record.measured
    if timed is None or timed.typical is None:
        return ""
    name = record.drafter if record.run.lossless else f"{record.drafter} (lossy)"
    shown = {
        "id": uuid.uuid4().hex,
        "recorded": record.run.mode == "recorded",
        "lanes": [
            _lane("plain decoding", "plain", timed.plain[timed.typical]),
            _lane(name, "speculative", timed.speculative[timed.typical]),
        ],
        "note": f"the median of {plural(timed.repeats, 'repeat')}; reading the prompt is left out",
        "is_clear": pays(timed) is not None and not is_noisy(timed),
        "lossy": not record.run.lossless,
        "sampled": record.run.sampler["temperature"] > 0,
    }
    return json.dumps(shown, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


def _lane(name: str, kind: str, lap: Lap) -> dict[str, object]:
    steps = [[round(second, 6), list(texts)] for second, texts in zip(lap.seconds, lap.texts, strict=True)]
    return {"name": name, "kind": kind, "tokens_per_s": lap.tokens / lap.total, "steps": steps}
