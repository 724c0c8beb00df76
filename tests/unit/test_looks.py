"""A report's figures: whose colours they have, and that all of it can be read at any size."""

import re
from pathlib import Path
from typing import Any

import pytest

from bouquet.colours import colour_of
from bouquet.report.figures import drawings
from bouquet.report.looks import COLUMN, PAGE, WIDE, Drawing, Look, canvas, for_paper, saved, style
from bouquet.storage.runs import grouped, read_all
from tests.unit.test_report import event, write_run

LONG = "fedavg:100 fedalt:50 finetune:5"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four configurations, two of one scheme and one with a long name, with a table of clients."""
    folder = tmp_path_factory.mktemp("runs")
    table = "client,train_examples,shared_accuracy,personal_accuracy\n"
    table += "".join(f"c{n},{10 + n},0.{n + 1},0.{9 - n}\n" for n in range(8))
    kinds: list[dict[str, Any]] = [{"scheme": "ditto"}, {"pipeline": LONG}]
    kinds += [{"scheme": "apfl", "lr": lr, "weight_decay": lr / 8} for lr in (0.1, 0.5)]
    for place, keys in enumerate(kinds):
        run = write_run(folder / str(place), event(1) + "\n" + event(2), **keys)
        (run / "clients.csv").write_text(table)
    return folder


def drawn(folder: Path, look: Look) -> list[Drawing]:
    from matplotlib import rc_context

    with rc_context(style(look)):
        return drawings(grouped(read_all([folder])), look)


@pytest.mark.parametrize("look", [PAGE, WIDE, COLUMN], ids=["page", "wide", "column"])
def test_legends_hide_nothing_and_nothing_is_cut_off(runs: Path, look: Look) -> None:
    figures = drawn(runs, look)
    assert [one.name for one in figures] == ["accuracy", "spread", "change"]
    for one in figures:
        figure = one.figure
        figure.draw_without_rendering()  # which settles the layout
        (key,) = figure.legends
        box = key.get_window_extent()
        for axis in figure.axes:
            assert not axis.get_legend()
            assert not axis.get_visible() or not box.overlaps(axis.get_tightbbox()), one.name
        taken = figure.get_tightbbox()  # in inches
        assert taken.x0 > -0.01, one.name
        assert taken.x1 < look.width + 0.01, one.name
        assert figure.get_figwidth() <= look.width


def test_a_scheme_has_its_colour_whatever_it_is_compared_with(runs: Path) -> None:
    (curves, spread, _) = drawn(runs, WIDE)
    lines = curves.figure.axes[0].lines
    found = {line.get_label().replace("\n", " "): line for line in lines}
    assert found["ditto on digits"].get_color() == colour_of("ditto")
    assert next(one for name, one in found.items() if "fedalt" in name).get_color() == colour_of(
        LONG
    )
    both = [one for name, one in found.items() if name.startswith("apfl")]
    assert {one.get_color() for one in both} == {colour_of("apfl")}
    assert len({one.get_linestyle() for one in both}) == 2  # told apart all the same
    assert len({one.get_marker() for one in lines}) == 4
    assert colour_of("ditto") in saved(spread.figure, "svg").decode()


def test_figures_for_a_paper_are_as_wide_as_its_column_and_its_page() -> None:
    def draw(look: Look) -> list[Drawing]:
        figure = canvas(look.width, 2)
        figure.subplots().set_xlabel("round")
        return [Drawing(figure, "mine", "Mine", "")]

    files = for_paper(draw)
    assert list(files) == ["mine-column.pdf", "mine-wide.pdf"]
    for file, inches in zip(files.values(), (3.3, 6.9), strict=True):
        assert file.startswith(b"%PDF")
        box = re.search(rb"/MediaBox \[ 0 0 ([\d.]+) ", file)
        assert box is not None
        assert float(box[1]) == pytest.approx(72 * inches, abs=0.1)
        assert b"/Type3" not in file  # publishers refuse such letters
    assert for_paper(draw) == files  # no date in it: the same runs, the same files
