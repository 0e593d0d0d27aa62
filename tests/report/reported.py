"""What the tests of reports share: results of two drafters on two workloads, built by hand, and hostile names."""

from __future__ import annotations

from dataclasses import replace

from workloads.suites import HEADER, answer, result

from specviz.workloads.arms import Arm
from specviz.workloads.results import Header, Result

NGRAM, LONGER = Arm("ngram", {"ngram_min": 1, "ngram_max": 3}, 2), Arm("ngram", {"ngram_min": 1, "ngram_max": 3}, 4)
EAGLE = Arm("eagle", {}, 2, {"smollm2-135m/eagle": "sha256:0858a4ff8"})
PLAIN = Arm("plain", {}, 1)
KNOWN = replace(HEADER, pairing="smollm2-135m", threads=2)  # a pairing that there is
HOSTILE = (
    "<script>alert(1)</script> & \"x\" 'y' | a\\|b `c` *d* _e_ [f](http://g.example/) ![h](i) ~j~ # k\n- l\x07\u202em"
)


def results() -> list[Result]:
    """Six prompts of code and six of story, enough for intervals; ngram is faster on code alone, eagle on both."""
    found = []
    for arm, code, story in ((NGRAM, 1.25, 0.8), (LONGER, 1.2, 0.7), (EAGLE, 2.0, 1.1)):
        found += [result(arm, f"code-{i}", code, accepted=(2, 1), answers=(answer(2, 1, gamma=2),)) for i in range(6)]
        found += [
            result(arm, f"story-{i}", story, answers=(answer(0, 1, gamma=2, prompt_tokens=70),), workload="story")
            for i in range(6)
        ]
    return found


def hostile() -> tuple[Header, list[Result]]:
    """Every text of unknown origin is HOSTILE."""
    header = replace(HEADER, pairing=HOSTILE, target=HOSTILE, weights=HOSTILE, device=HOSTILE, dtype=HOSTILE)
    header = replace(header, versions={HOSTILE: HOSTILE}, date=HOSTILE, rule=HOSTILE)
    arms = [Arm("eagle", {"source": HOSTILE}, 2, {HOSTILE: HOSTILE}), Arm("eagle", {"source": "b"}, 2, {"b": HOSTILE})]
    return header, [
        result(arm, HOSTILE + str(i), workload=HOSTILE, suite=HOSTILE + str(i % 2), turns=3)
        for arm in arms
        for i in range(4)
    ]
