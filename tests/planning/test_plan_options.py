"""The options of `plan`, read and checked."""

import argparse

import pytest

from specviz.errors import UserError
from specviz.planning.options import add_arguments, amount, check, devices


def parsed(*arguments):
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(arguments)


@pytest.mark.parametrize(
    ("text", "size"),
    [("24GB", 24 * 10**9), ("24", 24 * 10**9), ("1.5 gb", 1_500_000_000), ("16GiB", 2**34), ("900MB", 9 * 10**8)],
)
def test_amounts_of_memory(text, size):
    assert amount(text) == size


@pytest.mark.parametrize("text", ["", "GB", "0GB", "-1GB", "24KB", "24 apples", "1e3GB", "nan"])
def test_what_is_no_amount_is_refused(text):
    with pytest.raises(argparse.ArgumentTypeError, match="no amount of memory"):
        amount(text)


def test_several_devices():
    assert devices("2x24GB") == (2, 24 * 10**9)
    for text in ("24GB", "0x24GB", "65x24GB", "x24GB"):
        with pytest.raises(argparse.ArgumentTypeError):
            devices(text)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--context", "1"), "--context is 1"),
        (("--batch", "0"), "--batch is 0"),
        (("--gamma", "65"), "--gamma is 65"),
        (("--nodes", "0"), "--nodes is 0"),
        (("--memory", "8GB", "--devices", "2x8GB"), "both name a budget"),
        (("--measure", "--memory", "8GB"), "--measure decodes a pairing here"),
        (("--measure", "--target", "x"), "--measure decodes a pairing here"),
        (("--measure", "--quantisation", "4bit"), "--measure runs models as they are loaded here"),
    ],
)
def test_what_makes_no_sense_is_said(arguments, words):
    with pytest.raises(UserError, match=words):
        check(parsed(*arguments))


def test_what_makes_sense_passes():
    check(parsed())
    check(parsed("--measure", "--context", "512"))
