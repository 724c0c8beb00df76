"""A page about runs: tables, figures and the verdict on every client, in one file."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from html import escape
from pathlib import Path

from bouquet.core.errors import BadInput
from bouquet.core.measure import ACCURATE, LOSS
from bouquet.report.comparison import (
    client_rows,
    comparison,
    comparison_table,
    names_of,
    short,
)
from bouquet.report.detail import METHOD, METHOD_OF_LOSSES, detail
from bouquet.report.figures import drawings
from bouquet.report.keys import common_table, settings_table
from bouquet.report.looks import Draw, Picture, darkened, drawn, for_paper
from bouquet.report.outcomes import Verdicts, verdicts
from bouquet.report.overview import against_local, overview
from bouquet.report.style import STYLE
from bouquet.report.sweep import chosen_table, final_runs, method, sensitivity
from bouquet.report.tables import Table, to_html, to_latex
from bouquet.storage.atomic import write_atomically
from bouquet.storage.runfolder import to_csv
from bouquet.storage.runs import Group, Run, grouped, read_all
from bouquet.sweeping.results import Results, is_sweep


@dataclass(frozen=True)
class Report:
    """All there is to say of some runs, and of the sweeps that some of them end.

    Parameters
    ----------
    runs : list of Run
        Those with a round.
    sweeps : list of Results
        May be none.
    """

    runs: list[Run]
    sweeps: list[Results]

    @cached_property
    def groups(self) -> list[Group]:
        """The configurations."""
        return [replace(one, name=short(one.name, self.runs)) for one in grouped(self.runs)]

    @cached_property
    def judged(self) -> dict[Path, Verdicts]:
        """The verdicts, by the run's folder."""
        found = ((run.path, verdicts(run, self.runs)) for run in self.runs)
        return {path: one for path, one in found if one}

    @cached_property
    def tables(self) -> dict[str, Table]:
        """What the page and a paper have in common, by name."""
        found = {}
        chosen = [table for one in self.sweeps if (table := chosen_table(one))]
        for place, table in enumerate(chosen, start=1):
            found[f"chosen{place if len(chosen) > 1 else ''}"] = table
        if not self.runs:
            return found
        found["overview"] = overview(self.groups, self.judged)
        alone = against_local(self.groups, self.judged)
        found |= {"local": alone} if alone else {}
        found["settings"] = settings_table(self.groups)
        found["keys"] = common_table(self.groups)
        others = {run.measure.name for run in self.runs} - {ACCURATE.name, LOSS.name}
        better = "does better, worse by the metric" if others else "is more, less accurate"
        rows = [
            row | {"configuration": group.name}
            for row, group in zip(comparison(self.runs), self.groups, strict=True)
        ]
        found["comparison"] = comparison_table(rows, better)
        return found

    def draw(self) -> list[Draw]:
        """What figures there are."""
        searched: list[Draw] = [partial(sensitivity, one) for one in self.sweeps]
        return [*searched, partial(drawings, self.groups)]


def write_report(folders: Sequence[Path], page: Path, paper: Path | None = None) -> list[Path]:
    """Write the page, and beside it its figures and tables.

    Parameters
    ----------
    folders : sequence of Path
        Runs, sweeps, or folders of runs.
    page : Path
        The HTML file.
    paper : Path or None
        A folder for figures as PDF and tables as LaTeX; without, there are none.

    Returns
    -------
    list of Path
        All that was written.
    """
    if page.suffix.lower() != ".html":
        raise BadInput(f"--out takes a file that ends in .html, not {str(page)!r}.")
    sweeps = [Results(one) for one in folders if is_sweep(one)]
    places = [place for one in folders if (place := final_runs(one))]
    runs = [run for run in read_all(places) if run.events]
    if not runs and not sweeps:
        raise BadInput(f"{folders[0]} holds no run with a finished round.")
    report = Report(runs, sweeps)
    files = _beside(report, page) | (_for_paper(report, paper) if paper else {})
    for option, folder in {"out": page.parent, "paper": paper or page.parent}.items():
        try:
            folder.absolute().mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadInput(f"--{option}: {folder} cannot be made ({error.strerror}).") from error
    for path, content in files.items():
        write_atomically(path, content)
    return list(files)


def _beside(report: Report, page: Path) -> dict[Path, bytes]:
    """The page, its figures, and all numbers as CSV."""
    names = names_of(report.runs)
    pictures = [picture for draw in report.draw() for picture in drawn(draw)]
    files = {page: _html(report, names, pictures).encode()}
    for one in pictures:
        files[page.with_name(f"{page.stem}-{one.name}.png")] = one.png
        files[page.with_name(f"{page.stem}-{one.name}.svg")] = one.svg
    rows = {"comparison": comparison(report.runs)}
    rows["clients"] = client_rows(report.runs, names, list(report.judged.values()))
    if report.sweeps:
        rows["trials"] = [score.row for one in report.sweeps for score in one.scores]
    csv = {page.with_name(f"{page.stem}-{name}.csv"): to_csv(told) for name, told in rows.items()}
    return files | csv


def _for_paper(report: Report, folder: Path) -> dict[Path, bytes]:
    """Figures as PDF and tables as LaTeX."""
    figures = {name: file for draw in report.draw() for name, file in for_paper(draw).items()}
    tables = {f"{name}.tex": to_latex(table).encode() for name, table in report.tables.items()}
    return {folder / name: content for name, content in (figures | tables).items()}


def _html(report: Report, names: Sequence[str], pictures: Sequence[Picture]) -> str:
    runs = report.runs
    title = f"Report on {len(runs)} run{'s' * (len(runs) != 1)}"
    body = [f"<h1>{title}</h1>"]
    chosen = {name: table for name, table in report.tables.items() if name.startswith("chosen")}
    if report.sweeps:
        body.append("<h2>Chosen settings</h2>")
        body += map(to_html, chosen.values()) if chosen else ["<p>Nothing is chosen yet.</p>"]
        body += [f'<p class="soft">{escape(method(one))}</p>' for one in report.sweeps]
    body += _tables(report) if runs else []
    body += [_figure_of(one) for one in pictures]
    body += _verdicts(report.judged, dict(zip((run.path for run in runs), names, strict=True)))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(body)
        + "\n</main>\n</body>\n</html>\n"
    )


def _tables(report: Report) -> list[str]:
    """What comes before the figures: the comparison, and what was set."""
    tables = report.tables
    body = ["<h2>Comparison</h2>", to_html(tables["overview"])]
    if "local" in tables:
        body += ["<h3>Against training alone</h3>", to_html(tables["local"])]
    body.append(_folded("All numbers", to_html(tables["comparison"])))
    body += ["<h2>Settings</h2>", to_html(tables["settings"])]
    return [*body, _folded("Keys that are the same for all", to_html(tables["keys"]))]


def _verdicts(judged: Mapping[Path, Verdicts], name_of: Mapping[Path, str]) -> list[str]:
    """Who is helped or hurt, run by run, to be unfolded."""
    body = ["<h2>Who is helped, who is hurt</h2>"]
    body += [detail(one, name_of[path]) for path, one in judged.items()]
    methods = {METHOD if one.measure == ACCURATE else METHOD_OF_LOSSES for one in judged.values()}
    if methods:
        body.append(_folded("How that is decided", "".join(sorted(methods))))
    else:
        body.append(
            "<p>Whether a difference is more than chance needs each model's answers to the same "
            "examples: run with <code>-c save-outcomes=true</code>, and with <code>-c "
            "validation=0.2</code> for advice on which model to deploy.</p>"
        )
    return body


def _folded(summary: str, content: str) -> str:
    return f"<details><summary>{escape(summary)}</summary>{content}</details>"


def _figure_of(picture: Picture) -> str:
    sources = (
        ("(max-width: 40rem) and (prefers-color-scheme: dark)", darkened(picture.narrow)),
        ("(max-width: 40rem)", picture.narrow),
        ("(prefers-color-scheme: dark)", picture.dark),
    )
    others = "".join(f'<source media="{when}" srcset="{_data(svg)}">' for when, svg in sources)
    return (
        f"<h2>{escape(picture.title)}</h2><figure><picture>{others}"
        f'<img alt="{escape(picture.words)}" src="{_data(picture.svg)}"></picture>'
        f"<figcaption>{escape(picture.words)}</figcaption></figure>"
    )


def _data(svg: bytes) -> str:
    """A drawing within the page; as an image of its own, its names cannot clash with another's."""
    return f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}"
