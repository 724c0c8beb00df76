"""The verdict on every client of a run, for who wants to know it all."""

from html import escape

from bouquet.core.measure import ACCURATE
from bouquet.report.digits import plain, with_interval
from bouquet.report.outcomes import Verdicts
from bouquet.report.tables import dot, table_of, to_html

MOST_ROWS = 200  # of a table on the page; its CSV file has all

METHOD = (
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


METHOD_OF_LOSSES = (
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


def detail(judged: Verdicts, name: str) -> str:
    """A run's verdict in words and a table of its clients, to be unfolded."""
    what = judged.measure.name
    columns = {
        "client": "client",
        "train_examples": "training examples",
        "test_examples": "test examples",
        f"shared_{what}": "shared",
        f"personal_{what}": "personal",
        "change": "change (95% interval)",
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
        told = with_interval(row["change"], row["change_low"], row["change_high"])
        full = row | {"change": told}
        cells.append([_said(full.get(column)) for column in columns])
    few = len(judged.rows) > MOST_ROWS
    note = f"{MOST_ROWS} of {len(judged.rows)} clients; the CSV file has all." if few else ""
    said = "".join(f"<p>{escape(sentence)}</p>" for sentence in judged.sentences())
    by = "" if judged.measure == ACCURATE else f", by the {judged.measure.name} of each example"
    counts = f"{judged.count('helped')} helped, {judged.count('hurt')} hurt of {len(judged.rows)}"
    return (
        f"<details><summary>{dot(judged.run.scheme)}{escape(name + by)}: {counts}</summary>"
        f"{said}{to_html(table_of(columns.values(), cells, note))}</details>"
    )


def _said(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or isinstance(value, float):
        return plain(value)
    return str(value)
