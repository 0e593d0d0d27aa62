import json

import pytest

from specviz.figures import drift
from specviz.figures.drift import Change, DriftInfo


def change(low: float | None, high: float = 0.0, workload: str = "code", after: float = 1.75) -> Change:
    interval = None if low is None else (low, high)
    return Change("ngram, gamma 4", workload, 1.5, after, interval, (3, 4), False)


MORE, LESS, NOISE, UNKNOWN = change(0.125, 0.5), change(-0.5, -0.125, after=1.25), change(-0.1, 0.5), change(None)
INFO = DriftInfo("acceptance length", "old.jsonl", "new <b>.jsonl", (MORE, LESS, NOISE, UNKNOWN))


def drawn(info: DriftInfo):
    figure = json.loads(drift.plot(info).to_json())
    return figure["data"], figure["layout"]


def test_what_is_beyond_noise_has_a_mark_of_its_own():
    data, layout = drawn(INFO)
    assert [each["x"] for each in data] == [[0.25], [-0.25], [0.25], [0.25]]
    assert [each["marker"]["symbol"] for each in data] == [
        "triangle-up",
        "triangle-down",
        "circle-open",
        "x-thin-open",
    ]
    assert data[0]["error_x"]["array"] == [0.25] and data[0]["error_x"]["arrayminus"] == [0.125]
    words = [each["text"] for each in layout["annotations"]]
    assert words[0] == "code · ngram, gamma 4" and words[1::2] == ["▲ +0.25", "▼ -0.25", "≈ +0.25", "? +0.25"]
    assert layout["title"]["subtitle"]["text"].startswith("from old.jsonl<br>to new &lt;b&gt;.jsonl<br>")
    assert layout["xaxis"]["range"] == [pytest.approx(-0.55), pytest.approx(0.55)]


def test_hovering_tells_all():
    data, _ = drawn(INFO._replace(changes=(MORE, UNKNOWN._replace(paired=True))))
    assert data[0]["hovertext"] == [
        "<b>code</b><br>ngram, gamma 4<br>1.50 → 1.75: more, beyond noise<br>interval of the change: +0.12 to +0.50<br>"
        "3 and 4 prompts, other prompts"
    ]
    assert data[1]["hovertext"][0].endswith(
        "too few prompts to tell<br>interval of the change: none<br>3 and 4 prompts, the same prompts"
    )


def test_zero_in_the_interval_is_within_noise():
    assert (change(0.0, 1.0).mark, change(-1.0, 0.0).mark, change(0.01, 1.0).mark) == ("≈", "≈", "▲")


def test_where_there_is_no_room_what_is_beyond_noise_stays():
    many = tuple(change(-1, 1, f"w{n}", after=1.5 + n / 100) for n in range(drift.MOST_ROWS + 1))
    shown = drift.clearest((*many, LESS))
    assert len(shown) == drift.MOST_ROWS and shown[-1] == LESS
    assert many[0] not in shown and many[1] not in shown and many[2] in shown, "the smallest go"
    _, layout = drawn(INFO._replace(changes=(*many, LESS)))
    assert "2 smaller ones are in the table alone" in layout["title"]["subtitle"]["text"]


@pytest.mark.parametrize(
    ("after", "words"), [("", "Nothing is compared yet"), ("b", "These two have no drafter<br>at the same setting")]
)
def test_without_changes_it_says_why(after: str, words: str):
    data, layout = drawn(DriftInfo("speed-up", "a", after, ()))
    assert data == [] and layout["annotations"][0]["text"].startswith(words)
