"""A page about runs: figures, tables and the verdict on every client, in one file."""

import base64
from collections.abc import Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

from bouquet.core.errors import BadInput
from bouquet.core.measure import ACCURATE, LOSS
from bouquet.report.figures import Picture, draw_all
from bouquet.report.outcomes import Verdicts, verdicts
from bouquet.report.seeds import spread
from bouquet.report.sweep import chosen_rows, final_runs, method, sensitivity
from bouquet.storage.files import write_atomically
from bouquet.storage.runfolder import to_csv
from bouquet.storage.runs import Run, grouped, labels, number, read_all
from bouquet.sweeping.results import Results, is_sweep

Row = dict[str, Any]

MOST_ROWS = 200  # of a table on the page; its CSV file has all

STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #fff; --soft: #5b6470; --line: #d8dde3;
  --stripe: #f5f7f9; --good: #005a91; --bad: #a84400; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ed; --paper: #14181d; --soft: #a3adb8;
  --line: #353d47; --stripe: #1b2129; --good: #7cc0ee; --bad: #f5a26b; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 78rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; } h3 { font-size: 1rem; }
p, figcaption { max-width: 48rem; } figcaption, .soft { color: var(--soft); font-size: .9rem; }
figure { margin: 1rem 0; } img { max-width: 100%; border-radius: 6px; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: .84rem; }
th, td { padding: .25rem .4rem; text-align: right; vertical-align: bottom;
  border-bottom: 1px solid var(--line);
  font-variant-numeric: tabular-nums; } td { white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } tbody tr:nth-child(even) {
  background: var(--stripe); }
.helped { color: var(--good); } .hurt { color: var(--bad); }
"""


def write_report(folders: Sequence[Path], page: Path) -> list[Path]:
    """Write the page, and beside it its figures and tables; returns all that was written."""
    if page.suffix.lower() != ".html":
        raise BadInput(f"--out takes a file that ends in .html, not {str(page)!r}.")
    sweeps = [Results(one) for one in folders if is_sweep(one)]
    places = [place for one in folders if (place := final_runs(one))]
    runs = [run for run in read_all(places) if run.events]
    if not runs and not sweeps:
        raise BadInput(f"{folders[0]} holds no run with a finished round.")
    names = _names(runs)
    groups = [replace(one, name=_short(one.name, runs)) for one in grouped(runs)]
    searched = [picture for one in sweeps for picture in sensitivity(one)]
    pictures = searched + (draw_all(groups) if runs else [])
    compared = comparison(runs)
    judged = [one for one in (verdicts(run, runs) for run in runs) if one]
    tables = {"comparison": compared, "clients": _client_rows(runs, names, judged)}
    tables |= {"trials": [score.row for one in sweeps for score in one.scores]} if sweeps else {}
    files = {
        page.with_name(f"{page.stem}-{one.name}.{kind}"): getattr(one, kind)
        for one in pictures
        for kind in ("png", "svg")
    }
    files |= {
        page.with_name(f"{page.stem}-{name}.csv"): to_csv(rows) for name, rows in tables.items()
    }
    found = [_chosen(one) for one in sweeps]
    files[page] = _html(runs, names, pictures, compared, judged, found).encode()
    try:
        page.absolute().parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"--out: {page.parent} cannot be made ({error.strerror}).") from error
    for path, content in files.items():
        write_atomically(path, content)
    return [page, *(path for path in files if path != page)]


def comparison(runs: Sequence[Run]) -> list[Row]:
    """A row for each configuration: means and standard deviations over the runs' seeds."""
    rows = []
    for group in grouped(runs):
        row: Row = {
            "configuration": group.name,
            "seeds": group.seeds,
            "rounds": " ".join(sorted({f"{run.done}/{run.rounds}" for run in group.runs})),
        }
        for name, values in _measures(group.runs).items():
            row[name], row[f"{name}_std"] = spread(values)
        rows.append(row)
    return rows


def _measures(group: Sequence[Run]) -> dict[str, list[float]]:
    """What is compared, with a value for each run that ended."""
    found: dict[str, list[float]] = {}
    for run in group:
        for what in dict.fromkeys((run.measure, LOSS)):
            for whose in ("shared", "personal"):
                spread = run.summary.get(whose, {}).get(what.name, {})
                _note(found, f"{whose}_{what.name}", spread.get("mean"))
            worst = run.summary.get("personal", {}).get(what.name, {})
            _note(found, f"worst_{what.name}", what.worst(worst))
        for whose, spreads in run.summary.get("train", {}).items():
            _note(
                found,
                f"{whose}_train_{run.measure.name}",
                spreads.get(run.measure.name, {}).get("mean"),
            )
        for name in ("helped", "hurt", "clipped"):
            _note(found, name, run.summary.get(name))
        if run.summary:
            _note(found, "megabytes", _megabytes(run))
            _note(found, "seconds", run.summary.get("seconds"))
    return found


def _note(found: dict[str, list[float]], name: str, value: object) -> None:
    known = number(value)
    if known is not None:
        found.setdefault(name, []).append(known)


def _megabytes(run: Run) -> float:
    return sum(number(run.summary.get(f"bytes_{way}")) or 0.0 for way in ("up", "down")) / 1e6


def _names(runs: Sequence[Run]) -> list[str]:
    """Names that tell the runs apart."""
    found = [_short(name, runs) for name in labels(runs)]
    seeds = len({run.seed for run in runs}) > 1
    found = [f"{n}, seed {r.seed}" if seeds else n for n, r in zip(found, runs, strict=True)]
    twice = {name for name in found if found.count(name) > 1}
    return [f"{n} ({r.name})" if n in twice else n for n, r in zip(found, runs, strict=True)]


def _short(name: str, runs: Sequence[Run]) -> str:
    """A name without the data set, where there is one alone."""
    return name.replace(f" on {runs[0].data}", "", 1) if len({r.data for r in runs}) == 1 else name


def _client_rows(
    runs: Sequence[Run], names: Sequence[str], judged: Sequence[Verdicts]
) -> list[Row]:
    """Every client of every run: what the run says of it, and its verdict."""
    found = []
    by_run = {one.run.path: {row["client"]: row for row in one.rows} for one in judged}
    for run, name in zip(runs, names, strict=True):
        verdict_of = by_run.get(run.path, {})
        for row in run.clients:
            found.append({"run": name, **row, **verdict_of.get(str(row["client"]), {})})
    return found


def _html(
    runs: Sequence[Run],
    names: Sequence[str],
    pictures: Sequence[Picture],
    compared: Sequence[Row],
    judged: Sequence[Verdicts],
    found: Sequence[str],
) -> str:
    title = f"Report on {len(runs)} run{'s' * (len(runs) != 1)}"
    name_of = {run.path: name for run, name in zip(runs, names, strict=True)}
    others = sorted({run.measure.name for run in runs} - {ACCURATE.name, LOSS.name})
    better = "does better, worse by the metric" if others else "is more, less accurate"
    body = [f"<h1>{title}</h1>", *found, "<h2>Comparison</h2>", _comparison_table(compared)]
    body.append(
        '<p class="soft">Mean ± standard deviation over the seeds of a configuration, of means '
        "over clients, each on its own test data. Worst: the client whose personal model does "
        f"worst. Helped, hurt: clients whose personal model {better} than the shared "
        "one, by chance or not.</p>"
    )
    body += [_figure_of(one) for one in pictures]
    body.append("<h2>Who is helped, who is hurt</h2>")
    body += [_verdict(one, name_of[one.run.path]) for one in judged]
    if any(one.measure == ACCURATE for one in judged):
        body.append(_METHOD)
    if any(one.measure != ACCURATE for one in judged):
        body.append(_METHOD_OF_LOSSES)
    if not judged:
        body.append(
            "<p>Whether a difference is more than chance needs each model's answers to the same "
            "examples: run with <code>-c save-outcomes=true</code>, and with <code>-c "
            "validation=0.2</code> for advice on which model to deploy.</p>"
        )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(body)
        + "\n</main>\n</body>\n</html>\n"
    )


_METHOD = (
    '<p class="soft">Each client\'s two models are compared on the same test examples by '
    "McNemar's exact test; p-values are adjusted by Holm's method for the number of clients. "
    "<em>Helped</em> and <em>hurt</em> hold at 5% after that, <em>perhaps</em> at 5% before it. "
    "The interval of a client's change is Agresti and Min's at 95%; that of the mean is a "
    "bootstrap over clients. The model to deploy is the personal one (the shared one, where over "
    "all clients that is shown to be better), unless McNemar's test on validation examples held "
    "out of the client's training data shows another to be better; <em>sure</em> where that test "
    "tells it from all others. The accuracy beside it is on the test examples, which had no part "
    "in the choice.</p>"
)


_METHOD_OF_LOSSES = (
    '<p class="soft">Where models are compared by each example\'s loss, or by another number than '
    "right or wrong, the test is the sign-flip test: how often differences of these sizes, each "
    "with either sign by the toss of a coin, have a mean at least as far from 0. All tosses are "
    "counted, so it is exact; p-values are adjusted by Holm's method for the number of clients. "
    "<em>Helped</em> and <em>hurt</em> hold at 5% after that, <em>perhaps</em> at 5% before it. A "
    "change above 0 is for the better. Its interval is Student's at 95%; that of the mean is a "
    "bootstrap over clients. The model to deploy is chosen by the same test on validation examples "
    "held out of the client's training data; the number beside it is on the test examples, which "
    "had no part in the choice. A metric that is about all of a client's examples at once, such as "
    "r2 or f1, is judged by the loss of each.</p>"
)


def _comparison_table(rows: Sequence[Row]) -> str:
    columns = [
        column
        for column in dict.fromkeys(column for row in rows for column in row)
        if not column.endswith("_std")
    ]
    cells = []
    for row in rows:
        line = []
        for column in columns:
            value, std = row.get(column), row.get(f"{column}_std")
            said = _said(value)
            line.append(said if std is None else f"{said} ± {std:.2g}")
        cells.append(line)
    return _table([column.replace("_", " ") for column in columns], cells)


def _chosen(results: Results) -> str:
    """What a sweep chose, and how."""
    rows = chosen_rows(results)
    cells = [[_said(cell) for cell in row.values()] for row in rows]
    table = _table(list(rows[0]), cells) if rows else "<p>Nothing is chosen yet.</p>"
    return f'<h2>Chosen settings</h2>{table}<p class="soft">{escape(method(results))}</p>'


def _verdict(judged: Verdicts, name: str) -> str:
    what = judged.measure.name
    columns = {
        "client": "client",
        "train_examples": "training examples",
        "test_examples": "test examples",
        f"shared_{what}": "shared",
        f"personal_{what}": "personal",
        "change": "change",
        "interval": "95% interval",
        "p": "p",
        "p_holm": "p (Holm)",
        "verdict": "verdict",
    }
    if judged.local:
        columns |= {f"local_{what}": "Local", "p_local": "p (Local)"}
        columns |= {"verdict_local": "against Local"}
    if any("advice" in row for row in judged.rows):
        columns |= {"advice": "deploy", "advice_p": "p (deploy)", "advice_sure": "sure"}
        columns |= {f"advised_{what}": f"its {what}"}
    rows = sorted(judged.rows, key=lambda row: float(row["change"]))
    if len(rows) > MOST_ROWS:  # those who lose and those who win most
        rows = rows[: MOST_ROWS // 2] + rows[-MOST_ROWS // 2 :]
    cells = []
    for row in rows:
        interval = f"{row['change_low']:+.3f} to {row['change_high']:+.3f}"
        full = row | {"interval": interval, "change": f"{row['change']:+.4f}"}
        cells.append([_said(full.get(column)) for column in columns])
    said = "".join(f"<p>{escape(sentence)}</p>" for sentence in judged.sentences())
    few = len(judged.rows) > MOST_ROWS
    note = f"{MOST_ROWS} of {len(judged.rows)} clients; the CSV file has all" if few else "Clients"
    table = _table(list(columns.values()), cells)
    by = "" if judged.measure == ACCURATE else f", by the {judged.measure.name} of each example"
    return f"<h3>{escape(name + by)}</h3>{said}<details><summary>{note}</summary>{table}</details>"


def _figure_of(picture: Picture) -> str:
    # As an image of its own, a drawing's names cannot clash with another's.
    light, dark = (
        f"data:image/svg+xml;base64,{base64.b64encode(drawn).decode()}"
        for drawn in (picture.svg, picture.dark)
    )
    return (
        f"<h2>{escape(picture.title)}</h2><figure><picture>"
        f'<source media="(prefers-color-scheme: dark)" srcset="{dark}">'
        f'<img alt="{escape(picture.words)}" src="{light}"></picture>'
        f"<figcaption>{escape(picture.words)}</figcaption></figure>"
    )


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in columns)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return (
        f'<div class="wide" tabindex="0"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _cell(text: str) -> str:
    word = text.removeprefix("perhaps ")
    mark = f' class="{word}"' if word in ("helped", "hurt") else ""
    return f"<td{mark}>{escape(text)}</td>"


def _said(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.0f}" if value.is_integer() and abs(value) > 1 else f"{value:.4g}"
    return str(value)
