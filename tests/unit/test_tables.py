"""A report's tables: what they say of runs, and that they are well-formed, also as LaTeX."""

import csv
import json
import math
import re
from html import unescape
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import t as student

from bouquet.core.measure import LOSS, Measure
from bouquet.report.keys import common_table, settings_table
from bouquet.report.outcomes import verdicts
from bouquet.report.overview import against_local, best_of, change_of, overview
from bouquet.report.page import write_report
from bouquet.report.tables import Cell, Table, escaped, table_of, to_html, to_latex
from bouquet.report.verdict import mean_interval
from bouquet.storage.runs import Group, grouped, read_all
from tests.unit.test_report import event, write_outcome, write_run


def write_finished(
    path: Path, personal: list[float], measure: Measure | None = None, **keys: object
) -> Path:
    """A made-up run that ended, with what each client's own model came to."""
    name = measure.name if measure else "accuracy"
    metrics = {f"shared_{name}": 0.5, f"personal_{name}": 0.6}
    run = write_run(path, event(3, metrics=metrics), **keys)
    mean = sum(personal) / len(personal)
    summary = {whose: {name: {"mean": one}} for whose, one in (("shared", 0.5), ("personal", mean))}
    (run / "summary.json").write_text(json.dumps(summary))
    with open(run / "clients.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["client", "train_examples", f"shared_{name}", f"personal_{name}"])
        writer.writerows([f"c{n}", 9, 0.5, value] for n, value in enumerate(personal))
    return run


def groups_in(folder: Path) -> list[Group]:
    return grouped(read_all([folder]))


def column(table: Table, name: str) -> list[str]:
    place = table.columns.index(name)
    return [row[place].text for row in table.rows]


# What stands in bold


def test_the_best_is_bold_and_so_is_what_is_not_told_from_it(tmp_path: Path) -> None:
    write_finished(tmp_path / "a", [0.90, 0.80, 0.95, 0.85], scheme="apfl")
    write_finished(tmp_path / "b", [0.95, 0.70, 0.96, 0.84], scheme="ditto")  # now better, now not
    write_finished(tmp_path / "c", [0.80, 0.70, 0.90, 0.80], scheme="fedavg")  # always worse
    groups = groups_in(tmp_path)
    assert best_of(groups) == {"apfl on digits", "ditto on digits"}
    table = overview(groups, {})
    place = table.columns.index("personal accuracy")
    assert [row[place].bold for row in table.rows] == [True, True, False]
    assert [row[0].scheme for row in table.rows] == ["apfl", "ditto", "fedavg"]


def test_of_losses_the_lowest_is_best(tmp_path: Path) -> None:
    write_finished(tmp_path / "a", [0.2, 0.3, 0.1], LOSS, scheme="apfl")
    write_finished(tmp_path / "b", [0.5, 0.7, 0.4], LOSS, scheme="ditto")
    assert best_of(groups_in(tmp_path)) == {"apfl on digits"}


def test_with_several_seeds_it_is_their_means_that_tell(tmp_path: Path) -> None:
    """Ditto's clients all lose, by as much in each seed; of Prox's seeds one wins, by far."""
    for seed in range(3):
        own = [0.9 - 0.1 * seed, 0.8 - 0.1 * seed]
        write_finished(tmp_path / f"a{seed}", own, scheme="apfl", seed=seed)
        lost = [value - 0.05 - 0.001 * seed for value in own]
        write_finished(tmp_path / f"d{seed}", lost, scheme="ditto", seed=seed)
        mixed = [value + (0.05 if seed == 2 else -0.05) for value in own]
        write_finished(tmp_path / f"p{seed}", mixed, scheme="fedprox", seed=seed)
    assert best_of(groups_in(tmp_path)) == {"apfl on digits", "fedprox on digits"}


def test_what_is_not_about_the_same_data_is_not_compared(tmp_path: Path) -> None:
    write_finished(tmp_path / "a", [0.9, 0.8], scheme="apfl")
    other = write_finished(tmp_path / "b", [0.1, 0.2], scheme="ditto")
    config = (other / "config.toml").read_text()
    (other / "config.toml").write_text(config + "clients = 7\n")
    assert best_of(groups_in(tmp_path)) == set()  # nothing to be better than


def test_runs_that_have_not_ended_are_in_the_table_and_never_bold(tmp_path: Path) -> None:
    write_run(tmp_path / "run", event(1))
    write_finished(tmp_path / "z", [0.9, 0.8], scheme="ditto")
    table = overview(groups_in(tmp_path), {})
    assert column(table, "personal accuracy") == ["–", "0.850"]
    assert not any(cell.bold for row in table.rows for cell in row)


# The change, and who is helped


def test_one_seeds_change_is_over_its_clients_several_seeds_over_their_means() -> None:
    """0.1, 0.2 and 0.3 have the deviation 0.1, so the half width is t · 0.1 / √3."""
    one = change_of([[0.1, 0.3, 0.2]])
    assert one is not None
    assert (one.low, one.high) == mean_interval([0.1, 0.3, 0.2])
    several = change_of([[0.0, 0.2], [0.2, 0.2], [0.3]])
    assert several is not None
    half = student.ppf(0.975, 2) * 0.1 / math.sqrt(3)
    assert (several.mean, several.low, several.high) == pytest.approx((0.2, 0.2 - half, 0.2 + half))
    assert change_of([[], []]) is None


def judged_runs(folder: Path) -> None:
    """Of APFL's four clients one is hurt and two are helped, all are as good as alone."""
    apfl, local = (
        write_finished(folder / name, [0.5] * 4, scheme=name) for name in ("apfl", "local")
    )
    right, wrong = [1] * 20, [0] * 20
    for client, (shared, own) in {
        "a": (wrong, right), "b": (wrong, right), "c": (right, wrong), "d": (right, right),
    }.items():  # fmt: skip
        for run, everyones in ((apfl, shared), (local, own)):
            write_outcome(
                run,
                client,
                test_shared=everyones,
                test_personal=own,
                validation_shared=everyones,
                validation_personal=own,
            )


def test_the_overview_counts_verdicts_and_says_what_to_deploy(tmp_path: Path) -> None:
    judged_runs(tmp_path)
    runs = read_all([tmp_path])
    found = {run.path: verdict for run in runs if (verdict := verdicts(run, runs))}
    table = overview(grouped(runs), found)
    first = dict(zip(table.columns, (cell.text for cell in table.rows[0]), strict=True))
    assert first["configuration"] == "apfl on digits"
    kept = ("clients", "helped", "hurt", "no difference shown")
    assert [first[name] for name in kept] == ["4", "2", "1", "1"]
    assert first["deploy"] == "3 personal, 1 shared"
    assert first["which gives"] == "1"  # each client gets the model that is right
    assert first["mean change in accuracy"] == "+0.2 (-0.5 to +1.0)"  # 1, 1, -1 and 0
    alone = against_local(grouped(runs), found)
    assert alone is not None
    assert [cell.text for cell in alone.rows[0]][1:] == ["4", "0", "0", "4", "0 (0 to 0)"]
    assert len(alone.rows) == 1  # Local is not compared with itself


def test_perhaps_is_in_brackets(tmp_path: Path) -> None:
    run = write_finished(tmp_path / "run", [0.5])
    for client in "abcdef":  # six of six: 2/64 each, and six times that with the others
        write_outcome(run, client, test_shared=[0] * 6, test_personal=[1] * 6)
    runs = read_all([tmp_path])
    table = overview(grouped(runs), {runs[0].path: verdicts(runs[0], runs)})  # type: ignore[dict-item]
    assert column(table, "helped") == ["0 (+6)"]


# Settings


def test_keys_that_differ_are_columns_and_the_rest_is_apart(tmp_path: Path) -> None:
    for name, lr in (("apfl", 0.1), ("ditto", 0.5)):
        run = write_run(tmp_path / name, event(1), scheme=name, lr=lr, out=f"in/{name}")
        tables = "clients = 9\n[apfl]\nalpha = 0.25\n[ditto]\nlambda = 2.0\n"
        (run / "config.toml").write_text((run / "config.toml").read_text() + tables)
    groups = groups_in(tmp_path)
    table = settings_table(groups)
    assert table.columns == ("configuration", "lr", "the scheme's own keys")
    assert column(table, "lr") == ["0.1", "0.5"]
    assert column(table, "the scheme's own keys") == ["alpha=0.25", "lambda=2"]
    common = common_table(groups)
    told = dict(zip(column(common, "key"), (row[1] for row in common.rows), strict=True))
    assert list(told) == ["rounds", "data.clients", "data.name"]  # first what somebody set
    assert (told["data.clients"].text, told["data.clients"].bold) == ("9", True)
    assert not told["data.name"].bold


# The page


def test_the_page_begins_with_the_table_and_all_words_are_folded(tmp_path: Path) -> None:
    judged_runs(tmp_path / "runs")
    page = unescape(write_report([tmp_path / "runs"], tmp_path / "page.html")[0].read_text())
    open_ = re.sub(r"<details>.*?</details>", "", page, flags=re.S)
    assert "The personal model against shared, of 4 clients" in page
    assert "The personal model against shared" not in open_
    headings = re.findall(r"<h2>(.*?)</h2>", open_)
    assert headings[:2] == ["Comparison", "Settings"]
    first = open_.index("<table>")
    assert "no difference shown" in open_[first : open_.index("</table>")]
    assert page.count("<details>") == page.count("</details>") == 5  # numbers, keys, two runs, how


def test_a_cell_is_text_wherever_it_stands() -> None:
    table = table_of(
        ["a<b", "c"], [[Cell("<i>x</i>", bold=True, scheme="apfl"), "helped"]], "1 < 2"
    )
    told = to_html(table)
    assert "<b>&lt;i&gt;x&lt;/i&gt;</b>" in told
    assert "a&lt;b" in told
    assert "1 &lt; 2" in told
    assert '<td class="helped">helped</td>' in told


# LaTeX


def cells_of(latex: str) -> list[list[str]]:
    """The cells of a tabular, a list a line; fails where LaTeX would."""
    body = latex.split("\\toprule\n")[1].split("\\bottomrule")[0].replace("\\midrule\n", "")
    rows = []
    for line in body.splitlines():
        assert line.endswith(r" \\"), line
        rows.append(re.split(r"(?<!\\) & ", line.removesuffix(r" \\")))
    for cell in (cell for row in rows for cell in row):
        # Without what is escaped, only known commands, groups and formulas are left.
        bare = re.sub(r"\\[&%$#_{}]", "", cell)
        bare = re.sub(r"\\shortstack\[r\]|\\\\", "", bare)
        bare = re.sub(
            r"\\text(backslash|asciitilde|asciicircum|less|greater|bar|bf)(?=\{)", "", bare
        )
        bare = re.sub(r"\\(pm|alpha|lambda)\b", "", bare)
        assert not re.search(r"[\\&%#_~^\n]", bare), cell
        assert bare.count("$") % 2 == 0, cell
        depth = 0
        for letter in bare:
            depth += (letter == "{") - (letter == "}")
            assert depth >= 0, cell
        assert depth == 0, cell
    return rows


@given(text=st.text(max_size=30), other=st.text("\\{}$&#_%~^<>|-[*1a \n", max_size=30))
def test_whatever_a_run_is_called_its_table_is_well_formed(text: str, other: str) -> None:
    rows = [[Cell(text), Cell(other, bold=True)], [Cell(other), Cell(text, long=True)]]
    found = cells_of(to_latex(table_of([other, text], rows, text)))
    assert [len(row) for row in found] == [2, 2, 2]


@pytest.mark.parametrize(
    ("text", "latex"),
    [
        ("50 % & more_#1", r"50 \% \& more\_\#1"),
        (r"C:\{x}$", r"C:\textbackslash{}\{x\}\$"),
        ("0.92 ± 0.02", r"0.92 $\pm$ 0.02"),
        ("~a^b", r"\textasciitilde{}a\textasciicircum{}b"),
        ("two\nlines\x0c", "two lines "),
    ],
)
def test_what_means_something_to_latex_is_escaped(text: str, latex: str) -> None:
    assert escaped(text) == latex


def test_a_table_for_a_paper_has_rules_bold_cells_and_minus_signs() -> None:
    first: list[str | Cell] = ["apfl", Cell("0.9", bold=True), "-0.1 (-0.2 to +0.1)"]
    rows: list[list[str | Cell]] = [first, ["[x]", "–", "mr-mtl"]]
    told = to_latex(table_of(["scheme", "personal accuracy of all", "change"], rows, "Means.\n"))
    assert told.startswith("% \\usepackage{booktabs}\n% Means.\n\\begin{tabular}{@{}lrr@{}}\n")
    assert "\\shortstack[r]{personal\\\\accuracy of\\\\all}" in told
    assert "apfl & \\textbf{0.9} & $-$0.1 ($-$0.2 to +0.1) \\\\\n" in told
    assert "{}[x] & -- & mr-mtl \\\\\n" in told  # or the bracket were an option of the line before
    assert told.endswith("\\bottomrule\n\\end{tabular}\n")
