"""Prompts to begin with: from text that repeats itself, where copying pays, to text that does not."""

from __future__ import annotations

EXAMPLES: dict[str, str] = {
    "Editing": (
        "Repeat this text and correct its spelling:\n\n"
        "The lighthouse keeper climed the stairs every evning. He lit the lamp, he wiped the glas, and he wrote the "
        "wether into his book. Every morning he climed the stairs again, put out the lamp and went to sleep."
    ),
    "Code": (
        "Write this class again with type hints and a docstring for each method:\n\n"
        "class Stack:\n"
        "    def __init__(self):\n        self.items = []\n\n"
        "    def push(self, item):\n        self.items.append(item)\n\n"
        "    def pop(self):\n        return self.items.pop()"
    ),
    "List": "List the months of the year with their number of days, like this:\nJanuary: 31 days",
    "Arithmetic": "Add up step by step: 12 + 7 + 30 + 5.",
    "Story": "Tell a short story about a clockmaker who finds a clock that runs backwards.",
}
FIRST = "Editing"
