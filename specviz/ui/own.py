"""Models of the user's own: two fields, a check before anything large is fetched, and a pairing for the list."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import gradio as gr

from specviz import memory, own
from specviz.errors import Cancelled, UserError
from specviz.models.examine import Examined
from specviz.ui import form, screens
from specviz.ui.controls import Controls
from specviz.ui.handlers import UNEXPECTED
from specviz.ui.javascript import view
from specviz.ui.offer import choices
from specviz.ui.screens import SKIP

Value = Any  # what a Gradio component takes
log = logging.getLogger(__name__)
HINT = "A folder, or a Hub id such as owner/name. Safetensors only; code that comes with a model is never run."


class OwnFields(NamedTuple):
    """The controls of the group, and the id of the pairing that the last check made (state)."""

    target: gr.Textbox
    drafter: gr.Textbox
    check: gr.Button
    cancel: gr.Button
    card: gr.HTML
    made: gr.State


def own_fields() -> OwnFields:
    with gr.Accordion("Your own pair", open=False, elem_id="own"):
        target = gr.Textbox("", label="Target", info=HINT, max_lines=1, elem_id="own-target")
        drafter = gr.Textbox(
            "", label="Drafter", info="The same, or empty: the target alone.", max_lines=1, elem_id="own-drafter"
        )
        with gr.Row(elem_classes="sv-buttons"):
            check = gr.Button("Load", min_width=0, elem_id="own-check")
            cancel = gr.Button("Cancel", min_width=0, interactive=False, elem_id="own-cancel")
        card = view("result_view.js", "", elem_id="own-card", elem_classes="sv-about")
    return OwnFields(target, drafter, check, cancel, card, gr.State(None))


class Brought(NamedTuple):
    """Outputs of the check: its card and buttons, the pairing that it made (state), and the list of pairings."""

    card: Value = SKIP
    check: Value = SKIP
    cancel: Value = SKIP
    made: Value = None
    pairing: Value = SKIP


@dataclass(frozen=True, slots=True)
class OwnModels:
    """The handlers of the group. Its one user has one thing at a time to cancel."""

    controls: Controls
    _cancelled: threading.Event = field(default_factory=threading.Event)
    _facts: dict[str, list[tuple[str, str]]] = field(default_factory=dict)  # of the pairings that were made

    def begin(self) -> tuple[Value, Value, Value]:
        """From here on there is something to cancel: the card, and the two buttons."""
        self._cancelled.clear()
        return screens.about([], ("Looking at the small files", "muted")), *buttons(is_busy=True)

    def check(self, target: str, drafter: str, precision: str) -> Brought:
        """Examine the two, and put the pairing that they make on the list, chosen."""
        models = self.controls.explorer.models
        try:
            found = own.own_pairing(
                target,
                drafter,
                device=models.device,
                dtype=form.EXACT if precision == form.EXACT else models.dtype,
                offline=models.offline,
                progress=self._progress,
            )
        except Cancelled:
            return _ready(screens.about([], ("Cancelled", "muted")))
        except UserError as error:
            return _ready(screens.about([], (str(error), "error")))
        except Exception:
            log.exception("a check failed")
            return _ready(screens.about([], (UNEXPECTED, "error")))
        else:
            pairing = found.pairing
            self.controls.pairings[pairing.id] = pairing
            listed = gr.update(choices=choices(self.controls.pairings, models), value=pairing.id)
            self._facts[pairing.id] = facts(found)
            return Brought(screens.about(facts(found)), made=pairing.id, pairing=listed)

    def listed(self) -> Value:
        """The list of pairings, with those that were made before the page was opened."""
        return gr.update(choices=choices(self.controls.pairings, self.controls.explorer.models))

    def load(self, made: str | None, precision: str) -> Iterator[tuple[Value, Value, Value, Value]]:
        """Fetch and load what has been checked; the model's state, the same in the card, and the two buttons."""
        if made is None:
            yield SKIP, SKIP, SKIP, SKIP  # Gradio empties the outputs of a generator that yields nothing
            return
        pairing = self.controls.pairings[made]
        dtype = form.EXACT if precision == form.EXACT else None
        card = ""
        for status in self.controls.load(pairing, pairing.drafters[0].model, dtype):
            card = screens.about(self._facts[made], _headline(status))
            yield status, card, SKIP, SKIP
        yield SKIP, *_ready(card)[:3]

    def _progress(self, doing: str, fraction: float | None) -> None:
        if self._cancelled.is_set():
            raise Cancelled

    def cancel(self) -> None:
        """Give up the check, or the loading that follows it."""
        self._cancelled.set()
        self.controls.explorer.models.cancel()


def buttons(is_busy: bool) -> tuple[Value, Value]:
    """Load and Cancel."""
    return gr.update(interactive=not is_busy), gr.update(interactive=is_busy)


def _ready(card: str) -> Brought:
    return Brought(card, *buttons(is_busy=False))


def _headline(status: str) -> tuple[str, str]:
    """A state of the model, as the page says it elsewhere, for the card: text and tone."""
    state = json.loads(status)
    share = "" if state["fraction"] is None else f" ({state['fraction']:.0%})"
    return state["text"] + share, {"ready": "good", "failed": "error"}.get(state["state"], "muted")


def facts(found: own.Own) -> list[tuple[str, str]]:
    """What the check found, as the lines of a card."""
    lines = [("Target", _facts(found.target))]
    if found.drafter is not None:
        lines.append(("Drafter", _facts(found.drafter)))
    if found.head is not None:
        lines.append(("Drafter", f"{found.head.name}: trained weights for this target, licence {found.head.licence}"))
    if found.note:
        lines.append(("Note", found.note))
    return lines


def _facts(model: Examined) -> str:
    missing = model.missing_bytes
    parts = [
        model.config.model_type,
        _parameters(memory.count_parameters(model.config)),
        *([model.quantisation] if model.quantisation else []),
        f"{memory.human(model.weight_bytes)} of weights",
        f"{memory.human(missing)} to download" if missing else "on this machine",
        f"licence {model.licence}",
    ]
    return f"{model.source.name}: {', '.join(parts)}"


def _parameters(count: int) -> str:
    return f"{count / 1e9:.2f} billion parameters" if count >= 1e9 else f"{count / 1e6:.1f} million parameters"
