"""The memory figure's values and its looks."""

from specviz.figures.memory_parts import DEFINITION, LOOKS, MemoryParts, MemoryPartsInfo, gigabytes, plot

TARGET = MemoryParts("target", {"weights": 16.0, "KV cache": 0.5, "headroom": 3.2})
DRAFTER = MemoryParts("drafter", {"weights": 1.5, "KV cache": 0.25})
BOTH = MemoryParts("both", {"weights": 17.5, "KV cache": 0.75, "headroom": 3.5})


def words(figure):
    return figure.layout.title.subtitle.text


def test_parts_are_stacked_per_model():
    figure = plot(MemoryPartsInfo((TARGET, DRAFTER, BOTH), 24.0))
    drawn = {trace.name: list(trace.x) for trace in figure.data}
    assert drawn == {"weights": [16, 1.5, 17.5], "KV cache": [0.5, 0.25, 0.75], "headroom": [3.2, 0, 3.5]}
    assert figure.layout.barmode == "stack" and figure.layout.xaxis.title.text == "GB"
    assert words(figure) == "fits: 21.8 GB of 24.0 GB"
    assert [note.text for note in figure.layout.annotations] == ["target: 19.7 GB", "drafter: 1.75 GB", "both: 21.8 GB"]


def test_the_budget_is_a_line_where_it_is_near():
    near, over, far = (plot(MemoryPartsInfo((TARGET, DRAFTER, BOTH), budget)) for budget in (24.0, 20.0, 200.0))
    assert [shape.x0 for figure in (near, over) for shape in figure.layout.shapes] == [24.0, 20.0]
    assert not far.layout.shapes and far.layout.xaxis.range[1] < 50
    assert words(over) == "does not fit: 21.8 GB of 20.0 GB" and words(far).startswith("fits")
    assert words(plot(MemoryPartsInfo((BOTH,), None))) == "21.8 GB in all"


def test_without_bars_it_says_why():
    assert plot(MemoryPartsInfo((), None)).layout.annotations[0].text == "Choose a pairing to see what it takes."
    assert plot(MemoryPartsInfo((), None, "Not here.")).layout.annotations[0].text == "Not here."


def test_parts_differ_by_more_than_colour_and_are_defined():
    assert len({look for look in LOOKS.values()}) == len({pattern for _, pattern in LOOKS.values()}) == len(LOOKS)
    for part in LOOKS:
        assert part in DEFINITION or {"KV cache": "keys and values"}[part] in DEFINITION


def test_amounts():
    assert [gigabytes(size) for size in (0, 0.0234, 1, 9.994, 10, 141)] == [
        "0 MB",
        "23 MB",
        "1.00 GB",
        "9.99 GB",
        "10.0 GB",
        "141.0 GB",
    ]
    plot(MemoryPartsInfo((MemoryParts("both", {}),), 0.0)).to_json()
