"""`bench`: time our loop against transformers' assisted generation."""

from __future__ import annotations

import argparse
import json

from specviz import bench
from specviz.commands.common import drafter_settings, load, say, settle_drafter
from specviz.drafters import make_drafter
from specviz.errors import UserError
from specviz.models.load import load_model
from specviz.prompts import encode


def command(options: argparse.Namespace) -> None:
    settle_drafter(options)
    if options.drafter not in bench.GENERATE:
        raise UserError(f"transformers has no counterpart here to {options.drafter}; use {', '.join(bench.GENERATE)}.")
    if min(options.repeats, options.max_new_tokens, options.gamma) < 1:
        raise UserError("--repeats, --max-new-tokens and --gamma must be at least 1 here.")
    if options.drafter == "ngram" and (options.ngram_min, options.ngram_pick) != (1, "recent"):
        raise UserError("transformers' lookup knows no --ngram-min and no --ngram-pick; leave them out here.")
    loaded = load(options)
    drafter = make_drafter(options.drafter, loaded.target, drafter_settings(options, loaded.pairing))
    prompt = encode(loaded.target, options.prompt)
    say("loading transformers' copy of the target, unpacked")
    rival, _ = load_model(loaded.folder, loaded.target.dtype, loaded.target.device, packed=False)
    for timed in bench.against_transformers(
        loaded.target, rival, drafter, prompt, options.gamma, options.max_new_tokens, options.repeats
    ):
        say(f"timed {len(timed[0].seconds)} of {options.repeats} rounds")
    result = bench.summary(timed)
    if options.json:
        print(json.dumps(result))
        return
    for way in timed:
        count = f"{way.passes} forward passes for {len(way.tokens)} tokens"
        print(f"{way.name:20} {way.milliseconds:7.2f} ms per token, {count}")
    print(
        f"specviz with the trace on is {result['ratio']:.2f}x as fast as transformers with its own, unpacked weights "
        f"(median of {options.repeats}, {result['spread'][0]:.2f} to {result['spread'][1]:.2f}); "
        f"switching the trace off gains {result['trace_off_gain']:.1%}."
    )
