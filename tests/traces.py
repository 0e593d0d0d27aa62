"""Steps and traces written as short strings, without torch.

One letter per draft token: a accepted, r rejected, u untested, c cut.
"""

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

from specviz.trace import LastToken, Node, Outcome, Run, Step, Trace

OUTCOMES: dict[str, Outcome] = {"a": "accepted", "r": "rejected", "u": "untested", "c": "cut"}
RUN = Run(
    target="tiny",
    drafter="ngram",
    drafter_settings={},
    gamma=4,
    sampler={"temperature": 0.0},
    seed=0,
    max_new_tokens=64,
    prompt=(1, 2),
    prompt_text="Hi",
    chat_template=False,
    device="cpu",
    dtype="float32",
    threads=2,
    synchronised=False,
)


def step(letters: str = "", parents: Sequence[int] | None = None, texts: Sequence[str] = (), **changes: Any) -> Step:
    """A step; a chain unless `parents` says otherwise. `texts`: of the draft tokens, then of the last one."""
    if parents is None:
        parents = range(-1, len(letters) - 1)
    texts = list(texts) or [f" t{node}" for node in range(len(letters))] + [" own"]
    depths: list[int] = []
    for parent in parents:
        depths.append(1 if parent < 0 else depths[parent] + 1)
    nodes = tuple(
        Node(100 + i, texts[i], parent, depth, OUTCOMES[letter], *[None] * 9)
        for i, (letter, parent, depth) in enumerate(zip(letters, parents, depths, strict=True))
    )
    path = tuple(i for i, letter in enumerate(letters) if letter == "a")
    last = None
    if "c" not in letters and not changes.get("cut"):
        last = LastToken(7, texts[-1], "correction" if _refused(nodes, path) else "bonus", None)
    kept = Step(
        index=0,
        start=2,
        gamma_asked=4,
        gamma_used=max(depths, default=0),
        nodes=nodes,
        path=path,
        last=last,
        committed=tuple([*(nodes[i].token for i in path), *([7] if last else [])]),
        text=tuple([*(nodes[i].text for i in path), *([last.text] if last else [])]),
        cut=None,
        seconds=None,
    )
    return replace(kept, **changes)


def _refused(nodes: Sequence[Node], path: Sequence[int]) -> bool:
    end = path[-1] if path else -1
    return any(node.outcome == "rejected" and node.parent == end for node in nodes)


def trace(*steps: Step | str, **run: Any) -> Trace:
    """A trace of these steps (or their letters), numbered from 0; keywords change the header."""
    numbered = (replace(step(s) if isinstance(s, str) else s, index=i) for i, s in enumerate(steps))
    return Trace(replace(RUN, **run), tuple(numbered))


def random_step(rng: Random, gamma: int = 5, width: int = 3, ends: bool = False) -> Step:
    """A random tree, walked as the acceptance rule does; with `ends`, the run stops somewhere on the way."""
    parents = [-1] * rng.randint(0, width)
    depths = [1] * len(parents)
    for _ in range(rng.randint(0, 12) if parents else 0):
        parent = rng.randrange(len(parents))
        if depths[parent] < gamma:
            parents.append(parent)
            depths.append(depths[parent] + 1)
    letters = ["u"] * len(parents)
    path: list[int] = []
    place, surviving = -1, True
    while surviving:
        surviving = False
        for child in [node for node, parent in enumerate(parents) if parent == place]:
            surviving = rng.random() < 0.6
            letters[child] = "a" if surviving else "r"
            if surviving:
                path.append(child)
                place = child
                break
    if not (ends and path):
        return step("".join(letters), parents)
    kept = rng.randint(1, len(path))
    letters = ["c" if depths[node] > kept else letter for node, letter in enumerate(letters)]
    return step("".join(letters), parents, cut="stop_token")
