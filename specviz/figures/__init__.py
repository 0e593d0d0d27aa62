"""Figures of a trace, one file each: `info(trace)` gathers plain values, `plot(info)` draws them with Plotly."""
